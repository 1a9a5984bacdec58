"""What an error of the driver means: repeat it, try again later, the ledger is down, or somebody must act."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard.core.errors import (
    LedgerBusy,
    LedgerError,
    LedgerNotMigrated,
    LedgerUnavailable,
    UnknownCommit,
)
from airflow_guard.store import database as database_module
from airflow_guard.store.database import LedgerDatabase, translated

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class DriverError(Exception):
    """As psycopg has it: a text, and a code beside it."""

    def __init__(self, text: str, sqlstate: str | None = None) -> None:
        super().__init__(text)
        self.sqlstate = sqlstate


def error(
    *arguments: Any, code: str | None = None, kind: type[sa.exc.DBAPIError] = sa.exc.OperationalError
) -> Any:
    original = DriverError(arguments[0], code) if code else Exception(*arguments)
    return kind("SELECT 1", {}, original)


def meaning(given: Exception) -> Exception:
    try:
        with translated("test"):
            raise given
    except Exception as found:
        return found


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (error("could not serialize access", code="40001"), LedgerBusy),
        (error("deadlock detected", code="40P01"), LedgerBusy),
        (error(1213, "Deadlock found"), LedgerBusy),
        (error("canceling statement due to lock timeout", code="55P03"), LedgerBusy),
        (error("canceling statement due to statement timeout", code="57014"), LedgerBusy),
        (error(1205, "Lock wait timeout exceeded"), LedgerBusy),
        (error(1969, "Query execution was interrupted (max_statement_time exceeded)"), LedgerBusy),
        (error("database is locked"), LedgerBusy),
        (error("database table is locked: guard_lease"), LedgerBusy),
        (error("terminating connection due to administrator command", code="57P01"), LedgerUnavailable),
        (error("server closed the connection unexpectedly"), LedgerUnavailable),
        (error("connection failed: Connection refused"), LedgerUnavailable),
        (error("query_wait_timeout", code="08P01"), LedgerUnavailable),
        (error("cannot execute UPDATE in a read-only transaction", code="25006"), LedgerUnavailable),
        (error(2013, "Lost connection to MySQL server during query"), LedgerUnavailable),
        (error(2003, "Can't connect to MySQL server"), LedgerUnavailable),
        (
            error(1203, "User already has more than 'max_user_connections' active connections"),
            LedgerUnavailable,
        ),
        (error("unable to open database file"), LedgerUnavailable),
        (error('relation "guard_execution" does not exist', code="42P01"), LedgerNotMigrated),
        (error(1146, "Table 'x.guard_execution' doesn't exist"), LedgerNotMigrated),
        (error("no such table: guard_execution"), LedgerNotMigrated),
        (error("no such column: batch_id"), LedgerNotMigrated),
    ],
)
def test_each_error_gets_its_meaning(given: Exception, expected: type[LedgerError]) -> None:
    found = meaning(given)
    assert isinstance(found, expected)
    assert found.retryable == (expected is not LedgerNotMigrated)


@pytest.mark.parametrize(
    "text",
    [
        "Failing row contains (S-1, database is locked)",
        "no such table: chair",
        "Key (document)=(busy road 7)",
        "connection 7",
    ],
)
def test_the_text_of_a_document_gives_an_error_no_other_meaning(text: str) -> None:
    given = error(text, code="23514", kind=sa.exc.IntegrityError)
    assert meaning(given) is given
    assert given.__cause__ is None, "not itself: a walk of causes would never end"


def test_a_pool_without_a_free_connection_is_busy() -> None:
    assert isinstance(meaning(sa.exc.TimeoutError("QueuePool limit")), LedgerBusy)


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LedgerDatabase]:
    monkeypatch.setattr(random, "uniform", lambda low, high: 0.0)
    monkeypatch.setattr(database_module, "UNKNOWN_COMMIT_PATIENCE_S", 0.0)
    database = LedgerDatabase(f"sqlite:///{tmp_path / 'ledger.db'}")
    yield database
    database.dispose()


class Failing:
    """A write that fails in a given way before it succeeds."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.calls = 0

    def __call__(self, connection: sa.Connection) -> str:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)
        return "written"


DEADLOCK = error("deadlock detected", code="40P01")
LOST = UnknownCommit("the answer was lost")


def test_deadlocks_are_repeated_and_then_given_up(database: LedgerDatabase) -> None:
    work = Failing(*[DEADLOCK] * 8)
    assert database.write(work) == "written"
    assert work.calls == 9
    with pytest.raises(LedgerBusy, match="9 deadlocks"):
        database.write(Failing(*[DEADLOCK] * 9))


def test_a_lost_answer_is_never_told_as_anything_else(database: LedgerDatabase) -> None:
    """Whatever the repetition meets: whether the first write took effect is not known."""
    for second in ([error("database is locked")], [error("server closed the connection")], [DEADLOCK] * 9):
        with pytest.raises(UnknownCommit):
            database.write(Failing(LOST, *second))


def test_a_ledger_that_is_down_is_waited_for_only_with_patience(database: LedgerDatabase) -> None:
    down = error("connection failed: Connection refused")
    work = Failing(down)
    with pytest.raises(LedgerUnavailable) as caught:
        database.write(work)
    assert caught.value.__cause__ is down, "not itself: whoever follows the causes must come to an end"
    assert work.calls == 1
    assert database.write(Failing(down), patience_s=30) == "written"


def test_a_mistake_is_not_repeated(database: LedgerDatabase) -> None:
    work = Failing(error("NOT NULL constraint failed", kind=sa.exc.IntegrityError))
    with pytest.raises(sa.exc.IntegrityError):
        database.write(work, patience_s=30)
    assert work.calls == 1
