"""A person, or verify, settles keys: what is accepted, what is refused, what is left behind."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from airflow_guard.core.errors import ResolutionError, StaleResolution
from airflow_guard.core.states import FollowUp, State
from airflow_guard.store import resolution
from airflow_guard.store.changes import Ownership
from airflow_guard.store.resolution import Judged, resolve_many
from tests.contract.attempts import (
    DAY,
    SPACE,
    Attempt,
    attempt,
    events_of,
    held_before_commit,
    in_thread,
    new_ledger,
    opened,
)
from tests.databases import databases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_guard.store.ledger import Ledger
    from tests.databases import DatabaseUnderTest


@pytest.fixture
def ledger(database: DatabaseUnderTest) -> Iterator[Ledger]:
    ledger = new_ledger(database.url)
    yield ledger
    ledger.database.dispose()


def resolve(one: Attempt, decision: str, **words: Any) -> list[resolution.Settled]:
    """Settle the first document of an attempt, judged as it was made."""
    said = {"actor": "ana", "reason": "the bank's statement shows it", **words}
    return resolution.resolve(one.ledger, DAY, one.hashes[0], one.own.token, decision, **said)


# -- C27: a killed attempt ---------------------------------------------------------------------------------


def test_c27_during_the_lease_the_holder_is_named_and_nothing_changes(ledger: Ledger) -> None:
    running = attempt(ledger, "INV-1").begin()
    with pytest.raises(ResolutionError, match=r"worker-7 pid 4711") as caught:
        resolve(running, "did_not_happen")
    assert "scheduled__2025-03-31" in str(caught.value)
    assert running.row().state is State.IN_PROGRESS
    assert events_of(ledger, DAY, running.hashes[0]) == []


def test_c27_did_not_happen_lets_the_next_run_execute_it_once(ledger: Ledger) -> None:
    killed = attempt(ledger, "INV-1").begin().die()
    (settled,) = resolve(killed, "did_not_happen", reason="not in the bank's file")
    assert (settled.before, settled.after) == (State.IN_DOUBT, State.FAILED)

    again = attempt(ledger, "INV-1", known=True, run_id="manual__1")
    assert again.row().attempt == 2
    assert again.row().idempotency_key == killed.documents[0].idempotency_key
    again.begin().complete('"posted"')
    assert again.row().state is State.COMPLETED


def test_c27_happened_is_replayed_from_then_on(ledger: Ledger) -> None:
    killed = attempt(ledger, "INV-1").begin().die()
    resolve(killed, "happened")
    row = killed.row()
    assert (row.state, row.result) == (State.COMPLETED, None)
    assert row.error is not None
    assert "resolved as happened by ana: the bank's statement shows it" in row.error


def test_c27_each_resolution_leaves_who_when_from_to_and_why(ledger: Ledger) -> None:
    killed = attempt(ledger, "INV-1").begin().die()
    resolve(killed, "did_not_happen", actor="ana", reason="not in the bank's file")
    doubt, event = events_of(ledger, DAY, killed.hashes[0])
    assert (doubt.kind, doubt.from_state, doubt.to_state) == ("doubt", "in_progress", "in_doubt")
    assert (event.kind, event.actor, event.reason) == (
        "resolve_not_happened",
        "ana",
        "not in the bank's file",
    )
    assert (event.from_state, event.to_state) == ("in_doubt", "failed")
    assert (event.owner_token, event.attempt) == (killed.own.token, 1)
    assert event.at is not None
    assert "statements / post_statement / 2025-03-31 / INV-1" in event.key_text


@databases("sqlite")
@pytest.mark.parametrize("words", [{"reason": ""}, {"reason": " \n\t"}, {"actor": "  "}])
def test_c27_a_missing_reason_or_name_is_refused(ledger: Ledger, words: dict[str, str]) -> None:
    killed = attempt(ledger, "INV-1").begin().die()
    with pytest.raises(ResolutionError, match=r"reason|who"):
        resolve(killed, "happened", **words)
    assert killed.row().state is State.IN_PROGRESS


def test_c27_the_second_of_two_resolutions_is_refused_and_told_who_was_first(ledger: Ledger) -> None:
    killed = attempt(ledger, "INV-1").begin().die()
    resolve(killed, "happened", actor="ana", reason="seen at the bank")
    with pytest.raises(StaleResolution, match="by ana: seen at the bank"):
        resolve(killed, "did_not_happen", actor="bob")
    with pytest.raises(StaleResolution, match=r"settled already.*airflow-guard show --key"):
        resolve(killed, "happened", actor="bob", reason="seen at the bank")
    with pytest.raises(StaleResolution, match="airflow-guard show --ledger core_banking --key"):
        resolve(killed, "happened", actor="bob", ledger_name="core_banking")
    assert killed.row().state is State.COMPLETED
    assert [event.kind for event in events_of(ledger, DAY, killed.hashes[0])] == ["doubt", "resolve_happened"]


@pytest.mark.parametrize("first", ["happened", "did_not_happen"])
def test_c27_of_two_simultaneous_resolutions_one_is_refused(
    ledger: Ledger, database: DatabaseUnderTest, first: str
) -> None:
    """The second stands at the row that the first has changed and not yet committed."""
    killed = attempt(ledger, "INV-1").begin().die()
    other = {"happened": "did_not_happen", "did_not_happen": "happened"}[first]

    def settle(own_ledger: Ledger) -> Any:
        return resolve(replace(killed, ledger=own_ledger), first, actor="the first")

    with held_before_commit(database, settle) as (release, first_outcome):
        second = in_thread(lambda: resolve(killed, other, actor="the second"))
        release()
        assert [settled.key_hash for settled in first_outcome()] == killed.hashes
        second_outcome = second()
    assert isinstance(second_outcome, StaleResolution), second_outcome
    assert "by the first" in str(second_outcome)
    assert killed.row().state is {"happened": State.COMPLETED, "did_not_happen": State.FAILED}[first]
    assert len(events_of(ledger, DAY, killed.hashes[0])) == 2


def test_c27_an_attempt_that_died_before_its_effect_needs_no_resolution(ledger: Ledger) -> None:
    killed = attempt(ledger, "INV-1").die()
    for decision in ("did_not_happen", "happened"):
        with pytest.raises(ResolutionError, match="next run takes it over by itself"):
            resolve(killed, decision)
    assert attempt(ledger, "INV-1", known=True).row().attempt == 2


# -- late, and about another attempt -----------------------------------------------------------------------


def test_an_answer_about_an_earlier_attempt_changes_nothing(ledger: Ledger) -> None:
    first = attempt(ledger, "INV-1").begin().die()
    resolve(first, "did_not_happen")
    second = attempt(ledger, "INV-1", known=True).begin().doubt("timeout")
    with pytest.raises(StaleResolution, match="earlier attempt") as caught:
        resolve(first, "happened")
    assert "attempt 2" in str(caught.value)
    assert "airflow-guard show --key " + first.hashes[0] in str(caught.value)
    assert second.row().state is State.IN_DOUBT
    assert "resolve_happened" not in [event.kind for event in events_of(ledger, DAY, first.hashes[0])]


def test_an_answer_at_the_moment_of_a_claim_is_about_the_attempt_before_it(ledger: Ledger) -> None:
    """Judged as failed and claimed meanwhile: neither answer reaches the new attempt."""
    first = attempt(ledger, "INV-1").begin().doubt("timeout")
    resolve(first, "did_not_happen")
    second = attempt(ledger, "INV-1", known=True)
    for decision in ("happened", "did_not_happen"):
        with pytest.raises(StaleResolution):
            resolve(first, decision)
    second.begin().complete()
    assert second.row().state is State.COMPLETED


def test_a_claim_at_the_moment_of_a_resolution_sees_all_of_it_or_nothing(
    ledger: Ledger, database: DatabaseUnderTest
) -> None:
    doubtful = attempt(ledger, "INV-1").begin().doubt("timeout")

    def did_not_happen(other: Ledger) -> Any:
        return resolve(replace(doubtful, ledger=other), "did_not_happen")

    own = Ownership.new(DAY, opened(ledger), "test")
    with held_before_commit(database, did_not_happen) as (release, resolved):
        claiming = in_thread(lambda: ledger.claim(own, SPACE, [], doubtful.documents))
        release()
        assert len(resolved()) == 1
        won = claiming()
    row = doubtful.row()
    if won:
        assert (row.state, row.attempt, row.owner_token) == (State.IN_PROGRESS, 2, own.token)
    else:
        assert (row.state, row.attempt) == (State.FAILED, 1)
    with pytest.raises(StaleResolution):
        resolve(doubtful, "happened")


def test_an_answer_that_waits_for_a_claim_is_about_an_earlier_attempt(
    ledger: Ledger, database: DatabaseUnderTest
) -> None:
    first = attempt(ledger, "INV-1").begin().doubt("timeout")
    resolve(first, "did_not_happen")

    def claim(other: Ledger) -> Any:
        own = Ownership.new(DAY, opened(other), "test")
        return other.claim(own, SPACE, [], first.documents)

    with held_before_commit(database, claim, skip=1) as (release, claimed):
        answering = in_thread(lambda: resolve(first, "happened"))
        release()
        assert len(claimed()) == 1
        outcome = answering()
    assert isinstance(outcome, StaleResolution), outcome
    assert "earlier attempt" in str(outcome)
    assert first.row().attempt == 2


def test_a_late_report_of_the_attempt_itself_beats_a_resolution(ledger: Ledger) -> None:
    late = attempt(ledger, "INV-1").begin().die()
    ledger.expire(DAY, [late.row()], "test")
    late.complete('"done"')
    with pytest.raises(StaleResolution, match="settled already"):
        resolve(late, "did_not_happen")
    assert late.row().state is State.COMPLETED


@databases("sqlite")
def test_an_unknown_key_is_refused(ledger: Ledger) -> None:
    with pytest.raises(ResolutionError, match="no key"):
        resolution.resolve(ledger, DAY, "0" * 32, "1" * 32, "happened", actor="ana", reason="x")


# -- the other decisions -----------------------------------------------------------------------------------


def test_waive_completes_a_rejected_document_without_an_effect(ledger: Ledger) -> None:
    rejected = attempt(ledger, "INV-1").begin().reject("account closed")
    (settled,) = resolve(rejected, "waive", reason="paid by cheque")
    assert (settled.before, settled.after) == (State.REJECTED, State.COMPLETED)
    row = rejected.row()
    assert (row.state, row.phase) == (State.COMPLETED, "none")
    assert row.error == "waived by ana: paid by cheque (before: account closed)"


def test_send_again_lets_the_next_run_execute_a_rejected_document(ledger: Ledger) -> None:
    rejected = attempt(ledger, "INV-1").begin().reject("account closed")
    resolve(rejected, "send-again", reason="account reopened")
    assert attempt(ledger, "INV-1", known=True).row().attempt == 2


def test_r03_a_failed_follow_up_is_settled_and_the_effect_is_not_repeated(ledger: Ledger) -> None:
    done = attempt(ledger, "INV-1").begin().complete(follow_up=FollowUp.PENDING)
    with pytest.raises(ResolutionError, match="at work on what follows it"):
        resolve(done, "followed_up")
    assert ledger.end_follow_up(
        done.own, done.hashes, outcome=None, failed=True, why="archive missing", patience_s=0
    )
    resolve(done, "followed_up", reason="moved to the archive by hand")
    row = done.row()
    assert (row.state, row.follow_up) == (State.COMPLETED, FollowUp.SETTLED)
    (event,) = events_of(ledger, DAY, done.hashes[0])
    assert (event.kind, event.from_state, event.to_state) == ("follow_up_settled", "completed", "completed")
    with pytest.raises(StaleResolution):
        resolve(done, "followed_up")


def test_r03_a_follow_up_whose_attempt_was_killed_can_be_settled(ledger: Ledger) -> None:
    done = attempt(ledger, "INV-1").begin().complete(follow_up=FollowUp.PENDING).die()
    resolve(done, "followed_up")
    assert done.row().follow_up is FollowUp.SETTLED


@databases("sqlite")
@pytest.mark.parametrize("decision", ["waive", "send_again", "followed_up"])
def test_a_decision_that_does_not_fit_names_those_that_do(ledger: Ledger, decision: str) -> None:
    doubtful = attempt(ledger, "INV-1").begin().doubt("timeout")
    with pytest.raises(ResolutionError, match="use --happened or --did-not-happen") as caught:
        resolve(doubtful, decision)
    assert not isinstance(caught.value, StaleResolution)
    assert doubtful.row().state is State.IN_DOUBT


@databases("sqlite")
def test_an_unknown_decision_is_refused(ledger: Ledger) -> None:
    with pytest.raises(ResolutionError, match="no decision 'maybe'"):
        resolve(attempt(ledger, "INV-1"), "maybe")


def test_a_dry_run_checks_everything_and_changes_nothing(ledger: Ledger) -> None:
    killed = attempt(ledger, "INV-1").begin().die()
    (settled,) = resolve(killed, "happened", dry_run=True)
    assert settled.after is State.COMPLETED
    assert killed.row().state is State.IN_PROGRESS
    assert events_of(ledger, DAY, killed.hashes[0]) == []
    with pytest.raises(ResolutionError):
        resolve(killed, "waive", dry_run=True)


# -- batches and sets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("marked", [True, False], ids=["marked", "lease over"])
def test_the_members_of_a_batch_are_resolved_together(ledger: Ledger, *, marked: bool) -> None:
    names = [f"PAY-{number}" for number in range(5)]
    batch = attempt(ledger, *names).begin(batch=True)
    alone = attempt(ledger, "PAY-9").begin().doubt("timeout")
    _ = batch.doubt("killed in its window") if marked else batch.die()
    settled = resolve(batch, "did_not_happen")
    assert {each.key_hash for each in settled} == set(batch.hashes)
    assert [each.asked for each in settled] == [True, False, False, False, False]
    assert {batch.row(number).state for number in range(5)} == {State.FAILED}
    assert alone.row().state is State.IN_DOUBT
    for key_hash in batch.hashes:
        assert [event.kind for event in events_of(ledger, DAY, key_hash)][-1] == "resolve_not_happened"


def test_members_of_a_batch_that_stand_elsewhere_are_left_alone(ledger: Ledger) -> None:
    batch = attempt(ledger, "PAY-1", "PAY-2", "PAY-3").begin(batch=True).doubt("killed")
    ledger.complete(batch.own, [batch.hashes[2]], None)
    settled = resolve(batch, "did_not_happen")
    assert len(settled) == 2
    assert batch.row(2).state is State.COMPLETED


def test_a_member_of_a_later_attempt_is_not_resolved_along(ledger: Ledger) -> None:
    batch = attempt(ledger, "PAY-1", "PAY-2").begin(batch=True).doubt("killed")
    ledger.fail(batch.own, [batch.hashes[1]], "proved", begun=True)
    later = attempt(ledger, "PAY-2", known=True).begin().doubt("timeout")
    resolve(batch, "happened")
    assert batch.row(0).state is State.COMPLETED
    assert later.row().state is State.IN_DOUBT


def test_rejected_members_of_a_batch_are_decided_one_by_one(ledger: Ledger) -> None:
    batch = attempt(ledger, "PAY-1", "PAY-2").begin(batch=True).reject("file refused: PAY-1 has no IBAN")
    assert len(resolve(batch, "waive")) == 1
    assert batch.row(1).state is State.REJECTED


def test_many_keys_are_settled_in_one_go_and_refusals_are_returned(ledger: Ledger) -> None:
    doubtful = attempt(ledger, "A", "B", "C").begin().doubt("connection lost")
    running = attempt(ledger, "D").begin()
    judged = [Judged(DAY, key, doubtful.own.token) for key in doubtful.hashes]
    judged.append(Judged(DAY, running.hashes[0], running.own.token))
    outcome = resolve_many(ledger, judged, "happened", actor="verify", reason="the receiver knows them")
    assert {each.key_hash for each in outcome.settled} == set(doubtful.hashes)
    assert list(outcome.refused) == running.hashes
    assert {doubtful.row(number).state for number in range(3)} == {State.COMPLETED}
    assert {events_of(ledger, DAY, key)[-1].actor for key in doubtful.hashes} == {"verify"}

    with pytest.raises(StaleResolution):
        resolve_many(ledger, judged, "happened", actor="ana", reason="x", strict=True)


def test_strict_means_all_or_none(ledger: Ledger) -> None:
    doubtful = attempt(ledger, "A").begin().doubt("connection lost")
    running = attempt(ledger, "B").begin()
    judged = [Judged(DAY, each.hashes[0], each.own.token) for each in (doubtful, running)]
    with pytest.raises(ResolutionError):
        resolve_many(ledger, judged, "happened", actor="ana", reason="x", strict=True)
    assert doubtful.row().state is State.IN_DOUBT


# -- marking -----------------------------------------------------------------------------------------------


def test_expired_attempts_are_marked_in_doubt_once_with_an_event(ledger: Ledger) -> None:
    killed = attempt(ledger, "A", "B").begin().die()
    before_effect = attempt(ledger, "C").die()
    running = attempt(ledger, "D").begin()
    rows = [killed.row(0), killed.row(1), before_effect.row(), running.row()]
    assert [ledger.expire(DAY, rows, "post try 2") for _ in range(2)] == [2, 0]
    assert [row.state for row in (killed.row(0), killed.row(1))] == [State.IN_DOUBT] * 2
    assert killed.row().state is State.IN_DOUBT
    assert before_effect.row().state is State.IN_PROGRESS
    assert running.row().state is State.IN_PROGRESS
    (event,) = events_of(ledger, DAY, killed.hashes[0])
    assert (event.kind, event.actor, event.attempt) == ("doubt", "post try 2", 1)


def test_a_lease_that_is_renewed_after_the_read_is_not_marked(ledger: Ledger) -> None:
    paused = attempt(ledger, "A").begin().die()
    seen = paused.row()
    assert seen.lease_over
    ledger.runs.renew(paused.own.task_run_id, 60)
    assert ledger.expire(DAY, [seen], "post try 2") == 0
    with pytest.raises(ResolutionError, match="worker-7"):
        resolve(paused, "happened")


def test_a_commit_whose_answer_is_lost_is_found_to_have_settled_the_key(ledger: Ledger) -> None:
    """The write is repeated; the repetition finds its own work, not somebody else's."""
    killed = attempt(ledger, "INV-1").begin().die()
    answers = ["lost"]

    @sa.event.listens_for(ledger.database.engine, "commit")
    def lose_the_answer(connection: sa.Connection) -> None:
        if answers:
            connection.connection.commit()
            raise OperationalError("COMMIT", {}, Exception(f"server closed the connection: {answers.pop()}"))

    (settled,) = resolve(killed, "happened")
    assert (settled.key_hash, settled.after) == (killed.hashes[0], State.COMPLETED)
    assert answers == []
    assert killed.row().state is State.COMPLETED
    assert [event.kind for event in events_of(ledger, DAY, killed.hashes[0])] == ["doubt", "resolve_happened"]
