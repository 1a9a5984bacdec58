"""The ledger on every database: claims, begin marks, endings and late reports."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard.core.documents import DocumentReader
from airflow_guard.core.errors import OwnershipLost, StaleResolution
from airflow_guard.core.guard import Asking, TaskIdentity, Verdict, judge
from airflow_guard.core.states import FollowUp, Phase, State
from airflow_guard.store import resolution
from airflow_guard.store.changes import Ownership
from tests.contract.attempts import Attempt, attempt, documents_of, events_of, opened

if TYPE_CHECKING:
    from airflow_guard.core.keys import KeySpace
    from airflow_guard.store.ledger import Ledger

ASKING = Asking(TaskIdentity("statements", "post", "manual__1"), "default")


def claimed(one: Attempt, *, known: bool = False) -> set[str]:
    """Try to claim the documents of an attempt for another one, and return what was won."""
    other = Ownership.new(one.space.key_date, opened(one.ledger, one.space), "other")
    new, old = ([], one.documents) if known else (one.documents, [])
    return set(one.ledger.claim(other, one.space, new, old))


def verdict(one: Attempt) -> Verdict:
    return judge(one.row(), ASKING).verdict


def kinds(one: Attempt) -> list[str]:
    return [event.kind for event in events_of(one.ledger, one.space.key_date, one.hashes[0])]


# -- claims ------------------------------------------------------------------------------------------------


def test_a_new_key_is_claimed_and_read_back_as_it_was_given(shared_ledger: Ledger, space: KeySpace) -> None:
    one = attempt(shared_ledger, "INV-1", "INV-2", space=space)
    row = one.row()
    assert (row.state, row.phase, row.follow_up) == (State.IN_PROGRESS, Phase.NONE, FollowUp.NONE)
    assert (row.document, row.attempt, row.generation) == ("INV-1", 1, 1)
    assert (row.owner_token, row.task_run_id) == (one.own.token, one.own.task_run_id)
    assert row.idempotency_key == one.documents[0].idempotency_key
    assert not row.lease_over
    assert row.first_begun_age_s is row.finished_at is row.result is row.error is None
    assert row.first_run == row.last_run
    assert kinds(one) == []


def test_the_whole_run_is_a_key_of_its_own(shared_ledger: Ledger, space: KeySpace) -> None:
    one = attempt(shared_ledger, None, space=space)
    assert one.row().document is None
    assert attempt(shared_ledger, "-", space=space).hashes != one.hashes


def test_a_live_key_is_not_claimed_by_anybody_else(shared_ledger: Ledger, space: KeySpace) -> None:
    one = attempt(shared_ledger, space=space)
    before = one.row()
    assert claimed(one) == claimed(one, known=True) == set()
    assert replace(one.row(), last_sign_age_s=0.0) == replace(before, last_sign_age_s=0.0)
    assert verdict(one) is Verdict.ELSEWHERE


def test_a_failed_key_is_claimed_once(shared_ledger: Ledger, space: KeySpace) -> None:
    one = attempt(shared_ledger, space=space).begin().fail("refused connection")
    assert claimed(one, known=True) == {one.hashes[0]}
    assert claimed(one, known=True) == set()
    row = one.row()
    assert (row.state, row.attempt, row.error, row.finished_at) == (State.IN_PROGRESS, 2, None, None)
    assert row.first_begun_age_s is not None


def test_an_abandoned_key_is_taken_over_and_told(shared_ledger: Ledger, space: KeySpace) -> None:
    one = attempt(shared_ledger, space=space).die()
    assert verdict(one) is Verdict.TAKE_OVER
    assert claimed(one, known=True) == {one.hashes[0]}
    assert kinds(one) == ["take_over"]
    assert shared_ledger.begin(one.own, one.hashes) == set(one.hashes)
    assert verdict(one) is Verdict.ELSEWHERE


def test_a_closed_try_has_no_lease(shared_ledger: Ledger, space: KeySpace) -> None:
    one = attempt(shared_ledger, space=space)
    shared_ledger.runs.close(one.own.task_run_id, "failed", {})
    assert verdict(one) is Verdict.TAKE_OVER


def test_an_effect_that_began_is_never_taken_over(shared_ledger: Ledger, space: KeySpace) -> None:
    one = attempt(shared_ledger, space=space).begin().die()
    assert verdict(one) is Verdict.DOUBT
    assert claimed(one, known=True) == set()


@pytest.mark.parametrize("ending", ["complete", "reject", "doubt"])
def test_what_ended_otherwise_is_never_claimed(shared_ledger: Ledger, space: KeySpace, ending: str) -> None:
    one = attempt(shared_ledger, space=space).begin()
    getattr(one, ending)("because")
    one.die()
    assert claimed(one) == claimed(one, known=True) == set()


def test_a_claim_wins_what_it_can_and_says_what(shared_ledger: Ledger, space: KeySpace) -> None:
    attempt(shared_ledger, "held", space=space)
    attempt(shared_ledger, "failed", space=space).begin().fail("why")
    attempt(shared_ledger, "dead", space=space).die()
    new, known = documents_of(space, "new", "held"), documents_of(space, "failed", "dead", "gone")
    own = Ownership.new(space.key_date, opened(shared_ledger, space), "me")
    won = shared_ledger.claim(own, space, new, known)
    assert won.keys() == {new[0].key_hash, known[0].key_hash, known[1].key_hash}
    assert [won[document.key_hash].attempt for document in (new[0], *known[:2])] == [1, 2, 2]


def test_a_repeated_claim_finds_what_it_has_won(shared_ledger: Ledger, space: KeySpace) -> None:
    """After a lost answer the same claim runs again."""
    one = attempt(shared_ledger, "a", "b", space=space)
    failed = attempt(shared_ledger, "c", space=space).begin().fail("why")
    everything = [*one.documents, *failed.documents]
    for _ in range(2):
        won = shared_ledger.claim(one.own, space, one.documents, failed.documents)
        assert won.keys() == {document.key_hash for document in everything}
        assert won[failed.hashes[0]].attempt == 2


def test_the_idempotency_key_is_the_same_for_every_attempt(shared_ledger: Ledger, space: KeySpace) -> None:
    one = attempt(shared_ledger, space=space).begin().fail("why")
    sent = {one.row().idempotency_key}
    for _ in range(3):
        again = attempt(shared_ledger, space=space, known=True)
        sent.add(again.row().idempotency_key)
        again.begin().fail("why")
    assert len(sent) == 1


def test_the_first_run_never_changes(shared_ledger: Ledger, space: KeySpace) -> None:
    attempt(shared_ledger, space=space, run_id="first").begin().fail("why")
    again = attempt(shared_ledger, space=space, run_id="second", known=True)
    assert again.row().first_run.run_id == "first"
    assert again.row().last_run.run_id == "second"


def test_a_claim_takes_the_content_that_is_now_to_be_processed(
    shared_ledger: Ledger, space: KeySpace
) -> None:
    reader = DocumentReader(space.hasher(), "no")
    old, new = reader.read_one({"no": "S-1", "amount": 1}), reader.read_one({"no": "S-1", "amount": 2})
    own = Ownership.new(space.key_date, opened(shared_ledger, space), "me")
    shared_ledger.claim(own, space, [old], [])
    shared_ledger.fail(own, [old.key_hash], "why", begun=False)
    again = Ownership.new(space.key_date, own.task_run_id, "me")
    shared_ledger.claim(again, space, [], [new])
    assert shared_ledger.read(space.key_date, [old.key_hash])[old.key_hash].fingerprint == new.fingerprint


# -- effects and endings -----------------------------------------------------------------------------------


def test_every_write_tells_the_keys_that_are_no_longer_ours(shared_ledger: Ledger, space: KeySpace) -> None:
    one = attempt(shared_ledger, "a", "b", "c", space=space)
    stranger = Ownership.new(space.key_date, one.own.task_run_id, "stranger")
    everything = set(one.hashes)
    assert shared_ledger.begin(stranger, one.hashes) == everything
    assert shared_ledger.begin(one.own, one.hashes[:2]) == set()
    for own, keys, lost in [
        (stranger, one.hashes, everything),
        (one.own, [*one.hashes, "0" * 32], {one.hashes[2], "0" * 32}),
    ]:
        assert shared_ledger.complete(own, keys, "1") == lost
    assert shared_ledger.fail(stranger, one.hashes, "why", begun=True) == everything
    assert shared_ledger.fail(stranger, one.hashes, "why", begun=False) == everything
    assert shared_ledger.reject(stranger, one.hashes, "why") == everything
    assert shared_ledger.doubt(stranger, one.hashes, "why") == everything
    assert [one.row(number).state for number in range(3)] == [
        State.COMPLETED,
        State.COMPLETED,
        State.IN_PROGRESS,
    ]


def test_nothing_is_completed_that_has_not_begun(shared_ledger: Ledger, space: KeySpace) -> None:
    one = attempt(shared_ledger, space=space)
    assert shared_ledger.complete(one.own, one.hashes, "1") == set(one.hashes)
    assert one.row().state is State.IN_PROGRESS
    assert kinds(one) == ["conflict"]


@pytest.mark.parametrize("result", [None, "null", "0", '"\\ud83e\\uddfe"', '{"a":[1,2]}', "x" * 32_768])
def test_a_result_is_read_back_as_it_was_stored(
    shared_ledger: Ledger, space: KeySpace, result: str | None
) -> None:
    one = attempt(shared_ledger, space=space).begin().complete(result)
    row = one.row()
    assert (row.state, row.phase, row.result) == (State.COMPLETED, Phase.DONE, result)
    assert row.finished_at is not None
    assert row.finished_at.utcoffset() is not None


def test_each_key_of_a_group_gets_its_own_result(shared_ledger: Ledger, space: KeySpace) -> None:
    one = attempt(shared_ledger, "a", "b", "c", space=space)
    shared_ledger.begin(one.own, one.hashes[:2])
    outcomes = {key: f'"{number}"' for number, key in enumerate(one.hashes)}
    for _ in range(2):  # the second time as after a lost answer
        lost = shared_ledger.write(lambda c: shared_ledger.complete_each(c, one.own, outcomes))
        assert lost == {one.hashes[2]}
    assert [one.row(number).result for number in range(3)] == ['"0"', '"1"', None]


def test_a_batch_begins_together_or_not_at_all(shared_ledger: Ledger, space: KeySpace) -> None:
    one = attempt(shared_ledger, "a", "b", "c", space=space)
    shared_ledger.reject(one.own, one.hashes[2:], "why")
    with pytest.raises(OwnershipLost, match="1 of 3"):
        shared_ledger.begin_together(one.own, one.hashes, "b" * 32)
    assert [one.row(number).phase for number in range(3)] == [Phase.NONE] * 3
    for _ in range(2):
        shared_ledger.begin_together(one.own, one.hashes[:2], "b" * 32)
    assert {one.row(number).batch_id for number in range(2)} == {"b" * 32}
    members = shared_ledger.members_of_batches(["b" * 32, "c" * 32])
    assert {key: name for batch in members.values() for key, name in batch.items()} == {
        one.hashes[0]: "a", one.hashes[1]: "b",
    }  # fmt: skip


@pytest.mark.parametrize("how", ["begin", "complete", "fail", "reject", "doubt"])
def test_a_repeated_write_finds_itself_done(shared_ledger: Ledger, space: KeySpace, how: str) -> None:
    """After a lost answer the same write runs again: it is not lost, and it is not a second event."""
    one = attempt(shared_ledger, space=space)
    if how != "begin":
        one.begin()
    write: Any = {
        "begin": lambda: shared_ledger.begin(one.own, one.hashes),
        "complete": lambda: shared_ledger.complete(one.own, one.hashes, "1"),
        "fail": lambda: shared_ledger.fail(one.own, one.hashes, "why", begun=True),
        "reject": lambda: shared_ledger.reject(one.own, one.hashes, "why"),
        "doubt": lambda: shared_ledger.doubt(one.own, one.hashes, "why"),
    }[how]
    assert write() == set()
    first, events = one.row(), kinds(one)
    assert write() == set()
    assert (one.row().state, one.row().phase, kinds(one)) == (first.state, first.phase, events)


def test_a_follow_up_is_ended_once_and_again_after_a_lost_answer(
    shared_ledger: Ledger, space: KeySpace
) -> None:
    for failed, target in [(False, FollowUp.NONE), (True, FollowUp.FAILED)]:
        one = attempt(shared_ledger, f"failed {failed}", space=space).begin().complete(None, FollowUp.PENDING)
        ending = {
            "outcome": None if failed else "7",
            "failed": failed,
            "why": "archive is full" if failed else None,
        }
        for _ in range(2):
            assert shared_ledger.end_follow_up(one.own, one.hashes, **ending, patience_s=0)
        assert (one.row().follow_up, one.row().result) == (target, None if failed else "7")
        stranger = Ownership.new(space.key_date, one.own.task_run_id, "stranger")
        assert not shared_ledger.end_follow_up(stranger, one.hashes, **ending, patience_s=0)
        assert not shared_ledger.end_follow_up(
            one.own, one.hashes, **ending | {"failed": not failed}, patience_s=0
        )


# -- late reports ------------------------------------------------------------------------------------------


def expired(one: Attempt) -> Attempt:
    one.die()
    assert one.ledger.expire(one.space.key_date, [one.row()], "watcher") == 1
    return one


def resolved(one: Attempt, statement: str) -> Attempt:
    by_keys, values = (
        getattr(one.ledger.statements, statement),
        {"token": one.own.token, "why": "a person said so"},
    )
    changed = one.ledger.write(lambda c: by_keys.run(c, one.space.key_date, one.hashes, **values).rowcount)
    assert changed == 1
    return one


@pytest.mark.parametrize(
    ("report", "state"), [("complete", State.COMPLETED), ("fail", State.FAILED), ("reject", State.REJECTED)]
)
def test_an_attempt_that_others_gave_up_reports_late(
    shared_ledger: Ledger, space: KeySpace, report: str, state: State
) -> None:
    one = expired(attempt(shared_ledger, space=space).begin())
    getattr(one, report)("1")
    assert one.row().state is state
    assert kinds(one) == ["doubt", "late_report"]


def test_a_late_report_refutes_a_did_not_happen_that_nobody_has_acted_on(
    shared_ledger: Ledger, space: KeySpace
) -> None:
    one = resolved(expired(attempt(shared_ledger, space=space).begin()), "resolve_not_happened").complete("1")
    assert (one.row().state, one.row().result) == (State.COMPLETED, "1")
    assert claimed(one, known=True) == set()


def test_a_late_report_after_another_claim_is_a_conflict_that_is_told(
    shared_ledger: Ledger, space: KeySpace
) -> None:
    one = resolved(expired(attempt(shared_ledger, space=space).begin()), "resolve_not_happened")
    again = attempt(shared_ledger, space=space, known=True)
    assert shared_ledger.complete(one.own, one.hashes, "1") == set(one.hashes)
    assert kinds(one)[-1] == "conflict"
    assert (one.row().owner_token, one.row().state) == (again.own.token, State.IN_PROGRESS)


@pytest.mark.parametrize("report", ["fail", "reject"])
def test_a_proof_against_a_happened_is_told(shared_ledger: Ledger, space: KeySpace, report: str) -> None:
    """A payment that a person believes done, and that its attempt knows was refused, would be lost in silence."""
    one = resolved(expired(attempt(shared_ledger, space=space).begin()), "resolve_happened")
    write: Any = {
        "fail": lambda: shared_ledger.fail(one.own, one.hashes, "refused", begun=True),
        "reject": lambda: shared_ledger.reject(one.own, one.hashes, "refused"),
    }[report]
    assert write() == set(one.hashes)
    assert one.row().state is State.COMPLETED
    assert kinds(one)[-1] == "conflict"


def test_the_result_of_an_attempt_that_a_person_settled_is_kept(
    shared_ledger: Ledger, space: KeySpace
) -> None:
    one = resolved(expired(attempt(shared_ledger, space=space).begin()), "resolve_happened").complete("42")
    assert (one.row().state, one.row().result) == (State.COMPLETED, "42")


# -- the last sign of life ---------------------------------------------------------------------------------


def aged(one: Attempt, hours: int) -> Attempt:
    """Let all that the ledger knows of an attempt be some hours ago."""
    e, lease = one.ledger.database.tables.execution, one.ledger.database.tables.lease
    shift = {
        "postgresql": lambda c: c - sa.text(f"interval '{hours} hours'"),
        "mysql": lambda c: sa.func.timestampadd(sa.text("HOUR"), -hours, c),
        "sqlite": lambda c: sa.func.strftime("%Y-%m-%d %H:%M:%f000", c, f"-{hours} hours"),
    }[one.ledger.database.dialect]  # fmt: skip
    instants = [e.c.claimed_at, e.c.begun_at, e.c.first_begun_at, e.c.last_sign_at]
    with one.ledger.database.engine.begin() as connection:
        connection.execute(
            sa.update(e)
            .where(e.c.key_hash.in_(one.hashes))
            .values({column: shift(column) for column in instants})
        )
        mine = sa.update(lease).where(lease.c.task_run_id == one.own.task_run_id)
        connection.execute(
            mine.values(renewed_at=shift(lease.c.renewed_at), expires_at=shift(lease.c.expires_at))
        )
    return one


def test_the_last_sign_of_life_is_the_latest_of_claim_begin_and_renewal(
    shared_ledger: Ledger, space: KeySpace
) -> None:
    one = aged(attempt(shared_ledger, space=space).begin(), 5)
    assert 5 * 3600 <= one.row().last_sign_age_s < 5 * 3600 + 60
    shared_ledger.runs.renew(one.own.task_run_id, 60)
    assert one.row().last_sign_age_s < 60


def test_a_doubt_is_a_sign_of_life_also_where_others_gave_the_attempt_up(
    shared_ledger: Ledger, space: KeySpace
) -> None:
    """Its call may be on its way since then: a "no" of verify must wait from here."""
    one = expired(aged(attempt(shared_ledger, space=space).begin(), 5))
    assert one.row().last_sign_age_s > 3600
    one.doubt("ReadTimeout: no answer")
    assert one.row().last_sign_age_s < 60
    assert one.row().error == "ReadTimeout: no answer"


def test_a_no_that_was_asked_for_before_a_sign_of_life_is_refused(
    shared_ledger: Ledger, space: KeySpace
) -> None:
    """verify looked, then the attempt came back and called: what it saw is about the time before the call."""
    one = expired(aged(attempt(shared_ledger, space=space).begin(), 5))
    said = {"actor": "verify", "reason": "no trace of it", "quiet_s": 300.0}
    key = (space.key_date, one.hashes[0], one.own.token)
    one.doubt("ReadTimeout: no answer")
    with pytest.raises(StaleResolution, match="sign of life"):
        resolution.resolve(shared_ledger, *key, "did_not_happen", **said)
    assert one.row().state is State.IN_DOUBT
    (settled,) = resolution.resolve(aged(one, 1).ledger, *key, "did_not_happen", **said)
    assert settled.after is State.FAILED


def test_the_end_of_a_try_is_a_sign_of_life(shared_ledger: Ledger, space: KeySpace) -> None:
    """Closing ends the lease; what an effect of hours did last is not older for that."""
    one = aged(attempt(shared_ledger, space=space).begin(), 5)
    shared_ledger.runs.renew(one.own.task_run_id, 60)
    shared_ledger.runs.close(one.own.task_run_id, "failed", {})
    assert one.row().lease_over
    assert one.row().last_sign_age_s < 60
