"""A recorded fail-over: what is unfinished is not trusted, and what may be forgotten is not executed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from airflow_guard.acts import lost_commits
from airflow_guard.core.errors import OwnershipLost, ResolutionError
from airflow_guard.core.states import State
from airflow_guard.store import fail_overs
from airflow_guard.store.changes import Ownership
from airflow_guard.store.task_runs import as_stored
from tests.contract.attempts import (
    SPACE,
    attempt,
    documents_of,
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

SINCE = datetime(2025, 3, 31, 2, 10, tzinfo=UTC)
pytestmark = databases("sqlite", "postgres_embedded", "mariadb")


@pytest.fixture
def ledger(database: DatabaseUnderTest) -> Iterator[Ledger]:
    ledger = new_ledger(database.url)
    yield ledger
    ledger.database.dispose()


def record(ledger: Ledger, reason: str = "db2 took over", **more: bool) -> lost_commits.Recorded:
    return lost_commits.record(ledger, SINCE, actor="ada", reason=reason, **more)


def claimed(ledger: Ledger, name: str, fail_over: int | None) -> bool:
    own = Ownership.new(SPACE.key_date, opened(ledger), "task")
    return bool(ledger.claim(own, SPACE, documents_of(SPACE, name), [], fail_over=fail_over))


def test_what_had_begun_is_in_doubt_and_what_had_not_is_taken_back(ledger: Ledger) -> None:
    begun, waiting = attempt(ledger, "begun").begin(), attempt(ledger, "waiting")
    done, failed = attempt(ledger, "done").begin().complete("1"), attempt(ledger, "failed").fail("no")
    planned = record(ledger, dry_run=True)
    assert begun.row().state is State.IN_PROGRESS
    assert not fail_overs.listed(ledger.database)
    recorded = record(ledger)
    assert recorded == planned
    assert sorted((each.key_text.split(" / ")[-1], each.begun) for each in recorded.unfinished) == [
        ("begun", True),
        ("waiting", False),
    ]
    assert begun.row().state is State.IN_DOUBT
    assert waiting.row().state is State.FAILED
    assert (done.row().state, failed.row().state) == (State.COMPLETED, State.FAILED)
    (event,) = [
        each for each in events_of(ledger, SPACE.key_date, begun.hashes[0]) if each.kind == "fail_over_key"
    ]
    assert (event.actor, event.to_state) == ("ada", "in_doubt")
    # Their owners live: the one finds out before it begins, the other reports late, which wins.
    assert ledger.begin(waiting.own, waiting.hashes) == set(waiting.hashes)
    assert ledger.complete(begun.own, begun.hashes, "1") == set()
    assert begun.row().state is State.COMPLETED


def test_a_claim_of_a_task_that_does_not_know_of_it_is_refused(ledger: Ledger) -> None:
    assert claimed(ledger, "before", 0)
    record(ledger)
    with pytest.raises(OwnershipLost, match="fail-over"):
        claimed(ledger, "after", 0)
    (known,) = fail_overs.listed(ledger.database)
    assert claimed(ledger, "after", known.id)
    assert claimed(ledger, "in the database", None), "what was lost with the ledger is new"
    lost_commits.close(ledger, actor="ada", reason="compared")
    assert claimed(ledger, "later", 0)
    with pytest.raises(ResolutionError, match="No fail-over is open"):
        lost_commits.close(ledger, actor="ada", reason="again")


@databases("postgres_embedded", "mariadb")
def test_a_claim_that_races_with_the_recording_is_refused_or_taken_back(
    ledger: Ledger, database: DatabaseUnderTest
) -> None:
    def claim(other: Ledger) -> bool:
        return claimed(other, "raced", 0)

    with held_before_commit(database, record) as (release, outcome):
        racing = in_thread(lambda: claim(ledger))
        release()
        assert isinstance(outcome(), lost_commits.Recorded)
    assert not ledger.read(SPACE.key_date, [documents_of(SPACE, "raced")[0].key_hash]), racing()
    with held_before_commit(database, lambda other: claimed(other, "first", 1), skip=1) as (release, outcome):
        recording = in_thread(lambda: record(ledger, "and db3"))
        release()
        assert outcome() is True
        found = recording()
    assert isinstance(found, lost_commits.Recorded)
    row = ledger.read(SPACE.key_date, [documents_of(SPACE, "first")[0].key_hash])
    assert [each.state for each in row.values()] == [State.FAILED]


def test_only_what_the_ledger_learnt_since_is_trusted(ledger: Ledger) -> None:
    before = attempt(ledger, "before").fail("no")
    record(ledger)
    after = attempt(ledger, "after").fail("no")
    hashes = [*before.hashes, *after.hashes]
    assert ledger.not_trusted(SPACE.key_date, hashes) == set(before.hashes)
    assert ledger.not_trusted(SPACE.key_date, []) == set()
    lost_commits.close(ledger, actor="ada", reason="compared")
    assert ledger.not_trusted(SPACE.key_date, hashes) == set()


def test_what_is_put_in_doubt_counts_from_when_commits_were_lost(ledger: Ledger) -> None:
    record(ledger)
    known = ledger.open_fail_over()
    assert known is not None
    assert known.lost_since == SINCE
    claim = attempt(ledger, "PAY-1", "PAY-2")
    for _ in range(2):  # the answer to the first commit may be lost
        assert ledger.doubt_since(claim.own, claim.hashes, None, known) == set()
    row = claim.row()
    assert (row.state, row.error) == (State.IN_DOUBT, known.why)
    assert row.first_begun_age_s == pytest.approx((datetime.now(UTC) - SINCE).total_seconds(), abs=600)
    assert [each.kind for each in events_of(ledger, SPACE.key_date, row.key_hash)] == ["doubt"]
    stranger = Ownership.new(SPACE.key_date, opened(ledger), "another")
    assert ledger.doubt_since(stranger, claim.hashes, None, known) == set(claim.hashes)


def test_an_effect_that_began_before_the_loss_is_remembered_since_then(ledger: Ledger) -> None:
    earlier = attempt(ledger, "PAY-1").begin().fail("no")
    e = ledger.database.tables.execution
    long_ago = datetime(2025, 1, 1, tzinfo=UTC)
    with ledger.database.engine.begin() as connection:
        stored = as_stored(long_ago, ledger.database.dialect)
        connection.execute(sa.update(e).values(first_begun_at=stored, state=e.c.state))
    record(ledger)
    known = ledger.open_fail_over()
    assert known is not None
    again = attempt(ledger, "PAY-1", known=True)
    assert ledger.doubt_since(again.own, again.hashes, None, known) == set()
    assert earlier.row().first_begun_age_s == pytest.approx(
        (datetime.now(UTC) - long_ago).total_seconds(), abs=600
    )


@databases("sqlite")
def test_several_open_ones_are_read_as_one(ledger: Ledger) -> None:
    for since in (SINCE, SINCE - timedelta(days=1), SINCE + timedelta(days=1)):
        lost_commits.record(ledger, since, actor="ada", reason="again")
    known = ledger.open_fail_over()
    assert known is not None
    assert (known.lost_since, known.id) == (SINCE - timedelta(days=1), 3)
    assert len(lost_commits.close(ledger, actor="bob", reason="compared")) == 3
    with ledger.database.engine.connect() as connection:
        closed = connection.execute(sa.select(ledger.database.tables.fail_over.c.closed_by)).scalars().all()
    assert closed == ["bob"] * 3


@databases("sqlite")
@pytest.mark.parametrize(
    ("since", "says"), [(SINCE.replace(tzinfo=None), "has no zone"), (datetime(2999, 1, 1, tzinfo=UTC), "not come yet")]
)  # fmt: skip
def test_an_instant_that_cannot_be_meant_is_refused(ledger: Ledger, since: datetime, says: str) -> None:
    begun = attempt(ledger, "begun").begin()
    with pytest.raises(ResolutionError, match=says):
        lost_commits.record(ledger, since, actor="ada", reason="x")
    assert begun.row().state is State.IN_PROGRESS
    assert not fail_overs.listed(ledger.database)
