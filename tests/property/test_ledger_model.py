"""The ledger against a plain model of it, on every database: whatever is called in whatever order, both agree."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import Phase as HypothesisPhase
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from airflow_guard.core.errors import ResolutionError
from airflow_guard.core.states import PHASES_OF_STATE, FollowUp, Phase, State
from airflow_guard.store import resolution
from airflow_guard.store.changes import Ownership
from airflow_guard.store.dialects import utc_after
from tests.contract.attempts import SPACE, documents_of, new_ledger, opened
from tests.databases import databases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from airflow_guard.core.documents import Document
    from airflow_guard.store.ledger import Ledger
    from tests.databases import DatabaseKind, DatabaseUnderTest

_numbers = itertools.count(1)
KEYS = ("a", "b")
EXAMPLES = {"sqlite": 60, "postgres_embedded": 30, "postgres_server": 10, "mariadb": 8}
DECISIONS = ("happened", "did_not_happen", "waive", "send_again", "followed_up")
PLACES = {
    "claimed": (),
    "released": ("stops",),
    "begun": ("begins",),
    "given up": ("begins", "dies"),
    "in doubt": ("begins", "raises"),
    "marked by others": ("begins", "dies", "is noticed"),
    "failed": ("begins", "fails"),
    "disowned": ("begins", "dies", "did_not_happen"),
    "happened": ("begins", "dies", "happened"),
    "disowned, claimed": ("begins", "dies", "did_not_happen", "is claimed by another"),
    "disowned, given up again": (
        *("begins", "dies", "did_not_happen"),
        *("is claimed by another", "the other begins", "the other dies"),
    ),
    "failed, claimed, released": ("begins", "fails", "is claimed by another, who goes on", "stops"),
    "rejected": ("begins", "is refused"),
    "pending": ("begins", "is done, pending"),
    "pending, given up": ("begins", "is done, pending", "dies"),
    "followed up": ("begins", "is done, pending", "follows up"),
    "follow-up failed": ("begins", "is done, pending", "fails to follow up"),
    "done": ("begins", "is done"),
}
STEPS = (
    "begins", "stops", "fails", "is done", "is done, pending", "is refused", "raises", "dies", "lives", "is noticed",
    "is claimed by another", "is claimed by another, who goes on", "follows up", "fails to follow up", *DECISIONS,
)  # fmt: skip
IN_DOUBT_PHASES = {Phase.BEGUN, Phase.IN_TRANSACTION}


@dataclass
class Modelled:
    """What the model knows of a key."""

    token: str
    run: int
    state: State = State.IN_PROGRESS
    phase: Phase = Phase.NONE
    follow_up: FollowUp = FollowUp.NONE
    attempt: int = 1
    result: str | None = None
    error: str | None = None
    begun: bool = False

    def to(self, state: State, phase: Phase, **more: Any) -> None:
        self.state, self.phase = state, phase
        for name, value in more.items():
            setattr(self, name, value)

    @property
    def at(self) -> tuple[State, Phase]:
        return self.state, self.phase


@dataclass
class Model:
    """The state machine of the ledger in plain Python: one dictionary, no database."""

    rows: dict[str, Modelled] = field(default_factory=dict)
    alive: set[int] = field(default_factory=set)

    def in_doubt(self, row: Modelled) -> bool:
        begun = row.state is State.IN_PROGRESS and row.phase in IN_DOUBT_PHASES
        return row.state is State.IN_DOUBT or (begun and row.run not in self.alive)

    def claimable(self, row: Modelled) -> bool:
        abandoned = row.at == (State.IN_PROGRESS, Phase.NONE) and row.run not in self.alive
        return row.state is State.FAILED or abandoned

    def claim(self, own: Ownership, new: Iterable[str], known: Iterable[str]) -> set[str]:
        new, known = list(new), list(known)
        for key in known:
            row = self.rows.get(key)
            if row is not None and self.claimable(row):
                row.to(
                    State.IN_PROGRESS,
                    Phase.NONE,
                    token=own.token,
                    run=own.task_run_id,
                    error=None,
                    begun=False,
                )
                row.attempt += 1
        for key in new:
            self.rows.setdefault(key, Modelled(own.token, own.task_run_id))
        return {key for key in (*new, *known) if self.owns(own, key, {(State.IN_PROGRESS, Phase.NONE)})}

    def owns(self, own: Ownership, key: str, places: set[tuple[State, Phase]]) -> bool:
        row = self.rows.get(key)
        return row is not None and row.token == own.token and row.at in places

    def begin(self, own: Ownership, key: str) -> bool:
        if self.owns(own, key, {(State.IN_PROGRESS, Phase.NONE)}):
            self.rows[key].to(State.IN_PROGRESS, Phase.BEGUN, begun=True)
        return self.owns(own, key, {(State.IN_PROGRESS, Phase.BEGUN)})

    def complete(self, own: Ownership, key: str, result: str | None, follow_up: FollowUp) -> bool:
        places = {(State.IN_PROGRESS, Phase.BEGUN), (State.IN_DOUBT, Phase.BEGUN)}
        refuted = self.owns(own, key, {(State.FAILED, Phase.NONE)}) and self.rows[key].begun
        if self.owns(own, key, places) or refuted:
            self.rows[key].to(State.COMPLETED, Phase.DONE, result=result, follow_up=follow_up, error=None)
            return True
        if not self.owns(own, key, {(State.COMPLETED, Phase.DONE)}):
            return False
        row = self.rows[key]
        if row.result is None and row.follow_up is FollowUp.NONE:
            row.result, row.follow_up = result, follow_up
        return True

    def end_follow_up(self, own: Ownership, key: str, result: str | None, why: str | None) -> bool:
        if not self.owns(own, key, {(State.COMPLETED, Phase.DONE), (State.COMPLETED, Phase.NONE)}):
            return False
        row, target = self.rows[key], FollowUp.NONE if why is None else FollowUp.FAILED
        if row.follow_up is FollowUp.PENDING:
            row.follow_up, row.error = target, why
            row.result = result if why is None else row.result
            return True
        same_result = why is not None or row.result == result
        return row.follow_up is target and row.error == why and same_result

    def fail(self, own: Ownership, key: str, why: str, *, begun: bool) -> bool:
        places = {(State.IN_PROGRESS, Phase.NONE)}
        if begun:
            places |= {(State.IN_PROGRESS, Phase.BEGUN), (State.IN_DOUBT, Phase.BEGUN)}
        if self.owns(own, key, places):
            self.rows[key].to(State.FAILED, Phase.NONE, error=why)
        return self.owns(own, key, {(State.FAILED, Phase.NONE)})

    def reject(self, own: Ownership, key: str, why: str) -> bool:
        places = {
            (State.IN_PROGRESS, Phase.NONE),
            (State.IN_PROGRESS, Phase.BEGUN),
            (State.IN_DOUBT, Phase.BEGUN),
        }
        if self.owns(own, key, places):
            self.rows[key].to(State.REJECTED, Phase.NONE, error=why)
        return self.owns(own, key, {(State.REJECTED, Phase.NONE)})

    def doubt(self, own: Ownership, key: str, why: str) -> bool:
        if self.owns(own, key, {(State.IN_PROGRESS, Phase.BEGUN), (State.IN_DOUBT, Phase.BEGUN)}):
            self.rows[key].to(State.IN_DOUBT, Phase.BEGUN, error=why)
        return self.owns(own, key, {(State.IN_DOUBT, Phase.BEGUN)})

    def expire(self, key: str) -> int:
        row = self.rows.get(key)
        if row is None or row.state is State.IN_DOUBT or not self.in_doubt(row):
            return 0
        row.to(State.IN_DOUBT, row.phase, error="expired")
        return 1

    def resolve(self, key: str, token: str, decision: str) -> bool:
        row = self.rows.get(key)
        if row is None or row.token != token:
            return False
        open_ = row.follow_up is FollowUp.PENDING and row.run not in self.alive
        applies = {
            "happened": self.in_doubt(row),
            "did_not_happen": self.in_doubt(row),
            "waive": row.state is State.REJECTED,
            "send_again": row.state is State.REJECTED,
            "followed_up": row.follow_up is FollowUp.FAILED or open_,
        }[decision]
        if not applies:
            return False
        if decision == "followed_up":
            row.follow_up = FollowUp.SETTLED
        else:
            row.to(*{
                "happened": (State.COMPLETED, Phase.DONE),
                "did_not_happen": (State.FAILED, Phase.NONE),
                "waive": (State.COMPLETED, Phase.NONE),
                "send_again": (State.FAILED, Phase.NONE),
            }[decision])  # fmt: skip
        row.error = "resolved"
        return True


class LedgerAndModel(RuleBasedStateMachine):
    """Calls both, and compares what they answer and what they know."""

    owners: Bundle[Ownership] = Bundle("owners")
    a_key = st.sampled_from(KEYS)
    some_keys = st.sampled_from([["a"], ["b"], ["a", "b"], ["b", "a"]])
    who = st.sampled_from(["owner", "owner", "owner", "the one before", "anybody"])
    a_result = st.sampled_from([None, "null", "1", '"🧾"'.encode("unicode-escape").decode()])

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger = ledger
        self.model = Model()
        self.owners_of: dict[str, list[Ownership]] = {key: [] for key in KEYS}

    @initialize()
    def new_keys(self) -> None:
        number = next(_numbers)
        documents = documents_of(SPACE, *(f"{key} {number}" for key in KEYS))
        self.documents: dict[str, Document] = dict(zip(KEYS, documents, strict=True))
        self.names = {document.key_hash: key for key, document in self.documents.items()}

    def hashes(self, keys: Iterable[str]) -> list[str]:
        return [self.documents[key].key_hash for key in keys]

    def lost(self, keys: Iterable[str], ours: Callable[[str], bool]) -> set[str]:
        """Return the hashes of the keys for which the model says that they are not ours."""
        return {self.documents[key].key_hash for key in keys if not ours(key)}

    def pick(self, who: str, key: str, anybody: Ownership) -> Ownership:
        """Return the owner of a key, or the one before it: most that happens is between these two."""
        owners = self.owners_of[key]
        if who == "owner" and owners:
            return owners[-1]
        return owners[-2] if who == "the one before" and len(owners) > 1 else anybody

    # -- tries and leases ----------------------------------------------------------------------------------

    @rule(target=owners)
    def a_try_opens(self) -> Ownership:
        own = Ownership.new(SPACE.key_date, opened(self.ledger), "test")
        self.model.alive.add(own.task_run_id)
        return own

    @rule(target=owners, own=owners)
    def a_try_claims_anew(self, own: Ownership) -> Ownership:
        return Ownership.new(SPACE.key_date, own.task_run_id, "test")

    @rule(own=owners, key=a_key, who=who)
    def a_lease_ends(self, own: Ownership, key: str, who: str) -> None:
        own = self.pick(who, key, own)
        lease = self.ledger.database.tables.lease
        over = sa.update(lease).where(lease.c.task_run_id == own.task_run_id)
        with self.ledger.database.engine.begin() as connection:
            connection.execute(over.values(expires_at=utc_after(sa.bindparam("s"))), {"s": -1})
        self.model.alive.discard(own.task_run_id)

    @rule(own=owners)
    def a_lease_is_renewed(self, own: Ownership) -> None:
        assert self.ledger.runs.renew(own.task_run_id, 3600, create=True)
        self.model.alive.add(own.task_run_id)

    @rule(own=owners, key=a_key, who=who)
    def a_try_closes(self, own: Ownership, key: str, who: str) -> None:
        own = self.pick(who, key, own)
        self.ledger.runs.close(own.task_run_id, "failed", {})
        self.model.alive.discard(own.task_run_id)

    # -- what an attempt does ------------------------------------------------------------------------------

    @rule(own=owners, keys=some_keys, right=st.booleans(), split=st.integers(0, 2))
    def claim(self, own: Ownership, keys: list[str], right: bool, split: int) -> None:
        """As a task does it, or with keys that are not what the task takes them for."""
        new, known = keys[:split], keys[split:]
        if right:
            new = [key for key in keys if key not in self.model.rows]
            known = [key for key in keys if key in self.model.rows]
        won = self.ledger.claim(own, SPACE, *([self.documents[key] for key in part] for part in (new, known)))
        assert {self.names[key_hash] for key_hash in won} == self.model.claim(own, new, known)
        for key_hash, claimed in won.items():
            key = self.names[key_hash]
            assert claimed.attempt == self.model.rows[key].attempt
            if own not in self.owners_of[key]:
                self.owners_of[key].append(own)

    @rule(own=owners, keys=some_keys, who=who)
    def begin(self, own: Ownership, keys: list[str], who: str) -> None:
        own = self.pick(who, keys[0], own)
        assert self.ledger.begin(own, self.hashes(keys)) == self.lost(
            keys, lambda key: self.model.begin(own, key)
        )

    @rule(own=owners, keys=some_keys, who=who, result=a_result, pending=st.booleans())
    def complete(self, own: Ownership, keys: list[str], who: str, result: str | None, pending: bool) -> None:
        own = self.pick(who, keys[0], own)
        follow_up = FollowUp.PENDING if pending else FollowUp.NONE
        lost = self.ledger.complete(own, self.hashes(keys), result, follow_up=follow_up)
        assert lost == self.lost(keys, lambda key: self.model.complete(own, key, result, follow_up))

    @rule(own=owners, keys=some_keys, who=who)
    def complete_each(self, own: Ownership, keys: list[str], who: str) -> None:
        own = self.pick(who, keys[0], own)
        outcomes = {self.documents[key].key_hash: f'"{key}"' for key in keys}
        lost = self.ledger.write(lambda connection: self.ledger.complete_each(connection, own, outcomes))
        assert lost == self.lost(keys, lambda key: self.model.complete(own, key, f'"{key}"', FollowUp.NONE))

    @rule(own=owners, key=a_key, who=who, result=a_result, failed=st.booleans())
    def end_follow_up(self, own: Ownership, key: str, who: str, result: str | None, failed: bool) -> None:
        own = self.pick(who, key, own)
        why = "archive is full" if failed else None
        ended = self.ledger.end_follow_up(
            own, self.hashes([key]), outcome=result, failed=failed, why=why, patience_s=0
        )
        assert ended == self.model.end_follow_up(own, key, result, why)

    @rule(own=owners, keys=some_keys, who=who, begun=st.booleans())
    def fail(self, own: Ownership, keys: list[str], who: str, begun: bool) -> None:
        own = self.pick(who, keys[0], own)
        lost = self.ledger.fail(own, self.hashes(keys), "refused", begun=begun)
        assert lost == self.lost(keys, lambda key: self.model.fail(own, key, "refused", begun=begun))

    @rule(own=owners, keys=some_keys, who=who)
    def reject(self, own: Ownership, keys: list[str], who: str) -> None:
        own = self.pick(who, keys[0], own)
        lost = self.ledger.reject(own, self.hashes(keys), "no such account")
        assert lost == self.lost(keys, lambda key: self.model.reject(own, key, "no such account"))

    @rule(own=owners, keys=some_keys, who=who)
    def doubt(self, own: Ownership, keys: list[str], who: str) -> None:
        own = self.pick(who, keys[0], own)
        lost = self.ledger.doubt(own, self.hashes(keys), "no answer")
        assert lost == self.lost(keys, lambda key: self.model.doubt(own, key, "no answer"))

    @rule(
        key=a_key,
        place=st.sampled_from(list(PLACES)),
        then=st.lists(st.sampled_from(STEPS), min_size=1, max_size=2),
    )
    def an_attempt_gets_to(self, key: str, place: str, then: list[str]) -> None:
        """Several of the steps above and below at once, so that every place is met often, and left in every way."""
        row = self.model.rows.get(key)
        if row is not None and not self.model.claimable(row):
            self.a_new_document(key)
        own = self.a_try_opens()
        self.claim(own, [key], right=True, split=0)
        for step in (*PLACES[place], *then):
            if step == "is claimed by another, who goes on":
                own = self.a_try_opens()
                self.claim(own, [key], right=True, split=0)
            else:
                self.take(step, own, key)
            self.both_know_the_same()

    def a_new_document(self, key: str) -> None:
        del self.model.rows[key], self.names[self.documents[key].key_hash]
        (self.documents[key],) = documents_of(SPACE, f"{key} {next(_numbers)}")
        self.names[self.documents[key].key_hash] = key
        self.owners_of[key].clear()

    def take(self, step: str, own: Ownership, key: str) -> None:
        steps: dict[str, Callable[[], object]] = {
            "begins": lambda: self.begin(own, [key], "anybody"),
            "stops": lambda: self.fail(own, [key], "anybody", begun=False),
            "fails": lambda: self.fail(own, [key], "anybody", begun=True),
            "is done": lambda: self.complete(own, [key], "anybody", "1", pending=False),
            "is done, pending": lambda: self.complete(own, [key], "anybody", None, pending=True),
            "is refused": lambda: self.reject(own, [key], "anybody"),
            "raises": lambda: self.doubt(own, [key], "anybody"),
            "dies": lambda: self.a_lease_ends(own, key, "anybody"),
            "lives": lambda: self.a_lease_is_renewed(own),
            "is noticed": lambda: self.somebody_notices(key),
            "is claimed by another": lambda: self.claim(self.a_try_opens(), [key], right=True, split=0),
            "the other begins": lambda: self.begin(self.owners_of[key][-1], [key], "anybody"),
            "the other dies": lambda: self.a_lease_ends(self.owners_of[key][-1], key, "anybody"),
            "follows up": lambda: self.end_follow_up(own, key, "anybody", "7", failed=False),
            "fails to follow up": lambda: self.end_follow_up(own, key, "anybody", None, failed=True),
            **{
                decision: lambda decision=decision: self.somebody_decides(
                    own, key, "anybody", False, decision
                )
                for decision in DECISIONS
            },
        }
        steps[step]()

    asked = itertools.count(1)

    # -- what others do ------------------------------------------------------------------------------------

    @rule(key=a_key)
    def somebody_notices(self, key: str) -> None:
        rows = self.ledger.read(SPACE.key_date, self.hashes([key]))
        assert self.ledger.expire(SPACE.key_date, list(rows.values()), "watcher") == self.model.expire(key)

    @rule(own=owners, key=a_key, who=who, fitting=st.booleans(), decision=st.sampled_from(DECISIONS))
    def somebody_decides(self, own: Ownership, key: str, who: str, fitting: bool, decision: str) -> None:
        """About the attempt that is there, or about another; with a decision that can be right, or with any."""
        token, row = self.pick(who, key, own).token, self.model.rows.get(key)
        if fitting and row is not None:
            fit = {State.REJECTED: DECISIONS[2:4], State.COMPLETED: DECISIONS[4:]}.get(
                row.state, DECISIONS[:2]
            )
            decision = fit[DECISIONS.index(decision) % len(fit)]
        (key_hash,) = self.hashes([key])
        try:
            resolution.resolve(
                self.ledger,
                SPACE.key_date,
                key_hash,
                token,
                decision,
                actor="ada",
                reason=f"asked for the {next(self.asked)}. time",  # the same words once more are a second click
            )
            accepted = True
        except ResolutionError:
            accepted = False
        assert accepted == self.model.resolve(key, token, decision)

    # -- both know the same --------------------------------------------------------------------------------

    @invariant()
    def both_know_the_same(self) -> None:
        found = self.ledger.read(SPACE.key_date, self.hashes(KEYS)) if hasattr(self, "documents") else {}
        assert {self.names[key_hash] for key_hash in found} == set(self.model.rows)
        for key_hash, row in found.items():
            known = self.model.rows[self.names[key_hash]]
            assert (row.state, row.phase, row.follow_up) == (known.state, known.phase, known.follow_up)
            assert (row.owner_token, row.task_run_id, row.attempt) == (known.token, known.run, known.attempt)
            assert row.result == known.result
            assert row.lease_over == (known.run not in self.model.alive)
            assert row.phase in PHASES_OF_STATE[row.state]
            assert (row.error is None) == (known.error is None)


@pytest.fixture
def ledger(database: DatabaseUnderTest) -> Iterator[Ledger]:
    ledger = new_ledger(database.url)
    yield ledger
    ledger.database.dispose()


def test_the_ledger_does_what_the_model_does(ledger: Ledger, database_kind: DatabaseKind) -> None:
    run_state_machine_as_test(
        lambda: LedgerAndModel(ledger),
        settings=settings(
            max_examples=EXAMPLES[database_kind],
            stateful_step_count=20,
            derandomize=True,  # the same steps in every run
            phases=[HypothesisPhase.generate],  # to shrink a failure would take longer than a test may
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@databases("sqlite", "postgres_embedded", "mariadb")
def test_every_place_is_left_in_every_way(ledger: Ledger) -> None:
    machine = LedgerAndModel(ledger)
    machine.new_keys()
    for place, step in itertools.product(PLACES, STEPS):
        machine.an_attempt_gets_to("a", place, [step])
