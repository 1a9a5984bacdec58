"""Every interleaving of the steps of several attempts at one key, on real databases, by stepping them.

Nobody sleeps and nobody is lucky: :mod:`tests.contract.exploring` goes through all orders. Being killed needs no
step of its own, since the promise is checked in every world as if all actors were killed there.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from tests.contract import acting
from tests.contract.acting import (
    OPERATIONS,
    Authoriser,
    Lease,
    Person,
    TaskTry,
    keeps_the_promise,
    never_twice,
)
from tests.contract.attempts import SPACE, events_of, new_ledger
from tests.contract.exploring import Bench, Explorer, Violation
from tests.contract.in_transactions import DatabaseTry, LiveExplorer
from tests.databases import databases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from airflow_guard.store.by_keys import ByKeys
    from airflow_guard.store.ledger import Ledger
    from tests.contract.exploring import Program
    from tests.databases import DatabaseKind, DatabaseUnderTest

    Put = Callable[[str, ByKeys], None]
    """Puts a statement in the place of the one of this name."""

SCENARIOS: dict[str, Callable[[], Sequence[Program]]] = {
    # The second may judge the first, a person may judge either, and either may be slow enough to be given up.
    "two tries, a person": lambda: [TaskTry(), TaskTry(), Person(), Lease(0), Lease(1)],
    "a lease that is renewed": lambda: [TaskTry(), TaskTry(), Lease(0, renewed=True)],
    "two people, no verify": lambda: [
        TaskTry(verify=False), TaskTry(verify=False), Person(), Person(), Lease(0),
    ],
    "three tries": lambda: [TaskTry(turns=1), TaskTry(turns=1), TaskTry(turns=1, ends=("it is done",)), Lease(0)],
}  # fmt: skip
LONG = {"postgres_embedded": {"three tries"}, "mariadb": {"three tries", "two tries, a person"}}
REPLAYED = {"sqlite": 100, "postgres_embedded": 40, "mariadb": 15}


@pytest.fixture
def ledger(database: DatabaseUnderTest) -> Iterator[Ledger]:
    ledger = new_ledger(database.url)
    if ledger.database.dialect == "sqlite":
        # What survives a power cut is not examined here.
        for engine in (ledger.database.engine, ledger.database.business_engine):
            sa.event.listen(engine, "connect", lambda c, _: c.execute("PRAGMA synchronous = OFF"))
        ledger.database.dispose()
    yield ledger
    ledger.database.dispose()


@databases("sqlite", "postgres_embedded", "mariadb")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_interleaving_executes_twice_or_loses_a_key(
    ledger: Ledger, scenario: str, database_kind: DatabaseKind
) -> None:
    if scenario in LONG.get(database_kind, ()):
        pytest.skip(
            f"{scenario}: the calls that it makes on {database_kind} are those of the other scenarios"
        )
    explorer = Explorer(Bench(ledger, OPERATIONS), SCENARIOS[scenario](), keeps_the_promise).explore()
    assert len(explorer.ends) > 80
    # Both ways to end an effect that somebody else has settled meanwhile were really there.
    told = frozenset().union(*(world.history for _, world in explorer.ends))
    assert any(each.startswith("complete") and each.endswith("too late") for each in told)
    assert any(world.effects and not world.disowned for _, world in explorer.ends)
    assert any(len(world.effects) == 2 for _, world in explorer.ends)
    every = max(1, len(explorer.ends) // REPLAYED[database_kind])
    for schedule, world in explorer.ends[::every]:
        there, key = explorer.replay(schedule)
        assert there == world, schedule
        kinds = [event.kind for event in events_of(ledger, SPACE.key_date, key.document.key_hash)]
        late = [each for each in world.history if each.startswith("complete") and each.endswith("too late")]
        assert kinds.count("conflict") >= len(late), "an effect that happened although disowned is not told"


@databases("sqlite")
def test_no_interleaving_uses_an_authorisation_twice(ledger: Ledger) -> None:
    done = ("it is done",)
    actors = [
        TaskTry(turns=1, ends=done),
        TaskTry(turns=1),
        TaskTry(turns=1, ends=done),
        Authoriser(),
        Lease(1),
    ]
    explorer = Explorer(Bench(ledger, OPERATIONS), actors, keeps_the_promise).explore()
    ends = [world for _, world in explorer.ends]
    assert any(len(world.effects) == 2 and not world.disowned for world in ends)
    for schedule, world in explorer.ends[:: max(1, len(explorer.ends) // 20)]:
        assert explorer.replay(schedule)[0] == world, schedule


# -- the explorer must be able to fail ---------------------------------------------------------------------


def without_fencing(ledger: Ledger, put: Put) -> None:
    """A begin that does not ask whose key it is."""
    e, s = ledger.database.tables.execution, ledger.statements
    anybody = (
        sa.update(e)
        .where(e.c.state == "in_progress", e.c.phase == "none")
        .values(phase="begun", begun_at=MOMENT)
    )
    put("begin", by_keys(s, anybody))


def without_asking_whether_it_began(ledger: Ledger, put: Put) -> None:
    """A take-over that looks at the lease only."""
    e, s = ledger.database.tables.execution, ledger.statements
    claimable = sa.or_(e.c.state == "failed", sa.and_(e.c.state == "in_progress", ~s._lease_lives()))
    locking = sa.select(e)
    put("lock_claimable", by_keys(s, locking.where(claimable)))
    taking = sa.update(e).where(claimable).values(
        state="in_progress", phase="none", owner_token=sa.bindparam("token"), task_run_id=sa.bindparam("run"),
        attempt=e.c.attempt + 1, finished_at=None,
    )  # fmt: skip
    put("take", by_keys(s, taking))


def without_asking_who_completes(ledger: Ledger, put: Put) -> None:
    """A completion by whoever comes."""
    e, s = ledger.database.tables.execution, ledger.statements
    open_ = e.c.state == "in_progress"
    done = {"state": "completed", "phase": "done", "finished_at": MOMENT, "result": sa.bindparam("outcome")}
    put("complete", by_keys(s, sa.update(e).where(open_).values(done)))


def without_remembering_that_it_began(ledger: Ledger, put: Put) -> None:
    """A begin mark that is not written."""
    e, s = ledger.database.tables.execution, ledger.statements
    mine = sa.update(e).where(e.c.owner_token == sa.bindparam("token"), e.c.state == "in_progress")
    put("begin", by_keys(s, mine.values(begun_at=MOMENT)))
    done = {"state": "completed", "phase": "done", "finished_at": MOMENT, "result": sa.bindparam("outcome")}
    put("complete", by_keys(s, mine.values(done)))


def an_answer_about_whoever_is_there(key: Any, token: str, decision: str) -> bool:
    """A resolution that does not carry the attempt that it judged."""
    row = key.read()
    return acting.resolve(key, row.owner_token if row is not None else token, decision)


def a_doubt_that_is_no_doubt(key: Any, index: int, turn: int) -> bool:
    """An attempt that raised in its window, and counts as failed."""
    return not key.ledger.fail(key.own(index, turn), key.hashes, "raised", begun=True)


BROKEN: dict[str, tuple[Callable[[Ledger, Put], None] | None, dict[str, Callable[..., Any]], str]] = {
    "no fencing": (without_fencing, {}, "executed twice"),
    "take-over of what began": (without_asking_whether_it_began, {}, "executed twice"),
    "completion by anybody": (without_asking_who_completes, {}, "two attempts were told|nobody said so"),
    "no begin mark": (without_remembering_that_it_began, {}, "is forgotten"),
    "stale answers": (None, {"resolve": an_answer_about_whoever_is_there}, "is forgotten"),
    "doubt as failure": (None, {"doubt": a_doubt_that_is_no_doubt}, "is forgotten"),
}
MOMENT = sa.literal_column("'2025-03-31 12:00:00'")


def by_keys(statements: Any, statement: Any) -> ByKeys:
    found: ByKeys = statements._by_keys(statement)
    return found


@databases("sqlite")
@pytest.mark.parametrize("fault", BROKEN)
def test_the_explorer_finds_the_schedule_that_breaks_a_broken_ledger(
    ledger: Ledger, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks, operations, promise = BROKEN[fault]
    if breaks is not None:  # until the end of the test: all ledgers share the statements
        breaks(ledger, partial(monkeypatch.setattr, ledger.statements))
    check = never_twice if promise == "executed twice" else keeps_the_promise
    explorer = Explorer(Bench(ledger, OPERATIONS | operations), SCENARIOS["two tries, a person"](), check)
    with pytest.raises(Violation, match=promise) as caught:
        explorer.explore()
    assert "actor 0: " in str(caught.value)
    assert "actor 1: " in str(caught.value)


# -- effects in the ledger's own database ------------------------------------------------------------------


@databases("sqlite", "postgres_embedded", "mariadb")
def test_no_interleaving_of_business_transactions_posts_twice_or_loses_a_key(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, database_kind: DatabaseKind
) -> None:
    programs = [DatabaseTry(), DatabaseTry(), Lease(0)]
    if database_kind != "mariadb":  # which commits too slowly for all of them
        programs.append(Lease(1))
    with LiveExplorer(ledger, programs, monkeypatch) as explorer:
        explorer.explore()
    assert explorer.worlds > 100
    assert {len(world.effects) for world in explorer.ends} == {0, 1}
