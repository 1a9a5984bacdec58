"""Leases and ages are the database's clock: the worker's clock and every time zone may be wrong."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard.core.guard import Asking, TaskIdentity, Verdict, judge
from airflow_guard.store.changes import Ownership
from airflow_guard.store.database import LedgerDatabase
from airflow_guard.store.dialects import utc_after
from airflow_guard.store.ledger import Ledger
from tests.contract.attempts import SPACE, Attempt, attempt, documents_of, new_ledger, opened
from tests.databases import databases

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_guard.core.keys import KeySpace
    from tests.databases import DatabaseUnderTest
    from tests.processes import Worker

ASKING = Asking(TaskIdentity("statements", "post", "manual__1"), "default")
HOURS = 6
LIBFAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)


def verdict(one: Attempt) -> Verdict:
    return judge(one.row(), ASKING).verdict


def expires(one: Attempt, in_seconds: float) -> None:
    """Let the lease end at a moment of the database's clock."""
    lease = one.ledger.database.tables.lease
    moved = sa.update(lease).where(lease.c.task_run_id == one.own.task_run_id)
    with one.ledger.database.engine.begin() as connection:
        connection.execute(moved.values(expires_at=utc_after(sa.bindparam("s"))), {"s": in_seconds})


def take(one: Attempt) -> set[str]:
    own = Ownership.new(one.space.key_date, opened(one.ledger, one.space), "other")
    return set(one.ledger.claim(own, one.space, [], one.documents))


# -- the lease ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_seconds", [3600, 30.5])
def test_a_lease_that_is_not_over_is_respected(
    shared_ledger: Ledger, space: KeySpace, in_seconds: float
) -> None:
    one = attempt(shared_ledger, space=space)
    expires(one, in_seconds)
    assert verdict(one) is Verdict.ELSEWHERE
    assert take(one) == set()


@pytest.mark.parametrize("in_seconds", [0, -0.001, -30.5, -3600])
def test_a_lease_is_over_at_its_last_moment(
    shared_ledger: Ledger, space: KeySpace, in_seconds: float
) -> None:
    one = attempt(shared_ledger, space=space)
    expires(one, in_seconds)
    assert verdict(one) is Verdict.TAKE_OVER
    assert take(one) == set(one.hashes)
    assert verdict(one) is Verdict.ELSEWHERE


@databases("mariadb")
def test_a_lease_is_over_at_its_last_microsecond_and_not_before(database: DatabaseUnderTest) -> None:
    """There, a session's clock can be made to stand still."""
    new_ledger(database.url).database.dispose()
    for standing, expected in [
        ("1893456000.000001", Verdict.ELSEWHERE),
        ("1893456000.000002", Verdict.TAKE_OVER),
    ]:
        url = sa.make_url(database.url).update_query_dict({"init_command": f"SET timestamp = {standing}"})
        ledger = Ledger(LedgerDatabase(url))
        one = attempt(ledger, f"S-{standing}")
        lease = ledger.database.tables.lease
        end = datetime(2030, 1, 1, microsecond=2)  # noqa: DTZ001 - the column holds UTC without saying so
        with ledger.database.engine.begin() as connection:
            connection.execute(sa.update(lease).values(expires_at=end))
        assert verdict(one) is expected
        ledger.database.dispose()


def test_an_ended_lease_that_is_renewed_lives_again(shared_ledger: Ledger, space: KeySpace) -> None:
    one = attempt(shared_ledger, space=space).begin()
    expires(one, -60)
    assert verdict(one) is Verdict.DOUBT
    assert shared_ledger.runs.renew(one.own.task_run_id, 60)
    assert verdict(one) is Verdict.ELSEWHERE
    assert shared_ledger.expire(space.key_date, [one.row()], "watcher") == 0


def test_the_length_of_a_lease_may_be_a_fraction(shared_ledger: Ledger, space: KeySpace) -> None:
    one = attempt(shared_ledger, space=space)
    for lease_s in (0.25, 1e-9, 86_400 * 365.25):
        assert shared_ledger.runs.renew(one.own.task_run_id, lease_s)
    lease = shared_ledger.database.tables.lease
    with shared_ledger.database.engine.connect() as connection:
        row = connection.execute(sa.select(lease).where(lease.c.task_run_id == one.own.task_run_id)).one()
    assert timedelta(days=365) < row.expires_at - row.renewed_at < timedelta(days=366)


# -- the worker's clock ------------------------------------------------------------------------------------


@pytest.mark.parametrize("hours", [HOURS, -HOURS])
def test_the_clock_of_the_process_decides_nothing(
    shared_ledger: Ledger, space: KeySpace, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + hours * 3600)
    one = attempt(shared_ledger, space=space).begin()
    assert verdict(one) is Verdict.ELSEWHERE
    assert one.row().last_sign_age_s < 60
    expires(one, -1)
    assert verdict(one) is Verdict.DOUBT


def look_and_claim(url: str, new: str) -> dict[str, Any]:
    """In a process with a clock of its own: judge what others hold, and claim a key."""
    ledger = Ledger(LedgerDatabase(url))
    documents = documents_of(SPACE, "alive", "over")
    rows = ledger.read(SPACE.key_date, [document.key_hash for document in documents])
    one = attempt(ledger, new).begin()
    verdicts = [judge(rows[document.key_hash], ASKING).verdict for document in documents]
    seen = {"now": time.time(), "verdicts": verdicts, "age_s": one.row().last_sign_age_s}
    ledger.database.dispose()
    return seen


@databases("postgres_embedded", "mariadb")
@pytest.mark.skipif(LIBFAKETIME is None, reason="not run: libfaketime is not installed")
def test_a_worker_whose_clock_is_hours_off_sees_what_the_database_sees(
    database: DatabaseUnderTest, start_worker: Callable[..., Worker]
) -> None:
    ledger = new_ledger(database.url)
    attempt(ledger, "alive")
    attempt(ledger, "over").die()
    workers = {}
    for hours in (HOURS, -HOURS):
        env = {
            "LD_PRELOAD": str(LIBFAKETIME),
            "FAKETIME": f"{hours:+d}h",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        workers[hours] = start_worker(look_and_claim, url=database.url, env=env, new=f"{hours} hours off")
    for hours, worker in workers.items():
        seen = worker.result()
        assert abs(seen["now"] - time.time() - hours * 3600) < 600, "its clock is not off"
        assert seen["verdicts"] == [Verdict.ELSEWHERE, Verdict.TAKE_OVER]
        assert -1 < seen["age_s"] < 600
        (claimed,) = documents_of(SPACE, f"{hours} hours off")
        row = ledger.read(SPACE.key_date, [claimed.key_hash])[claimed.key_hash]
        assert not row.lease_over
        assert -1 < row.last_sign_age_s < 600
    ledger.database.dispose()


# -- time zones --------------------------------------------------------------------------------------------


def in_auckland(database: DatabaseUnderTest) -> sa.URL:
    """The same database, seen by sessions on the other side of the world."""
    url = sa.make_url(database.url)
    if database.kind == "mariadb":
        return url.update_query_dict({"init_command": "SET time_zone = '+13:00'"})
    if database.kind == "sqlite":
        return url
    return url.update_query_dict({"options": f"{url.query['options']} -ctimezone=Pacific/Auckland"})


def test_c09_the_time_zone_of_session_and_process_changes_nothing(
    database: DatabaseUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = new_ledger(database.url)
    alive, done = attempt(here, "alive"), attempt(here, "done").begin().complete("1")
    over = attempt(here, "over").begin().die()
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    time.tzset()
    try:
        there = Ledger(LedgerDatabase(in_auckland(database)))
        for one, expected in [(alive, Verdict.ELSEWHERE), (done, Verdict.DONE), (over, Verdict.DOUBT)]:
            one.ledger = there
            assert verdict(one) is expected
            assert one.row().last_sign_age_s < 600
        theirs = attempt(there, "theirs").begin()
        theirs.ledger = here
        assert verdict(theirs) is Verdict.ELSEWHERE
        finished, started = done.row().finished_at, done.row().last_run.started_at
        for instant in (finished, started):
            assert instant.utcoffset() == timedelta(0)
            assert abs(instant - datetime.now(UTC)) < timedelta(minutes=10)
        assert f"{started:%H:%M:%S} UTC" in done.row().done_by
        there.database.dispose()
    finally:
        here.database.dispose()
        monkeypatch.undo()
        time.tzset()
