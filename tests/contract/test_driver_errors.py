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
    LedgerRefused,
    LedgerUnavailable,
    UnknownCommit,
)
from airflow_guard.store import database as database_module
from airflow_guard.store.database import LedgerDatabase, _Transient, translated

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


LEDGER = LedgerDatabase(
    "postgresql+psycopg://guard:se%2Fcret@db7:5433/bank?password=hidden", name="core_banking"
)


def meaning(given: Exception) -> Exception:
    try:
        with translated("test", LEDGER):
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
        (error(1317, "Query execution was interrupted"), LedgerBusy),
        (error("database is locked"), LedgerBusy),
        (error("database table is locked: guard_lease"), LedgerBusy),
        (error("terminating connection due to administrator command", code="57P01"), LedgerUnavailable),
        (error("server closed the connection unexpectedly"), LedgerUnavailable),
        (error("connection failed: Connection refused"), LedgerUnavailable),
        (error("query_wait_timeout", code="08P01"), LedgerUnavailable),
        (error("cannot execute UPDATE in a read-only transaction", code="25006"), LedgerUnavailable),
        (error(2013, "Lost connection to MySQL server during query"), LedgerUnavailable),
        (error(2003, "Can't connect to MySQL server"), LedgerUnavailable),
        (error(0, "", kind=sa.exc.InterfaceError), LedgerUnavailable),
        (error(2014, "Commands out of sync", kind=sa.exc.ProgrammingError), LedgerUnavailable),
        (
            error("Packet sequence number wrong - got 1 expected 2", kind=sa.exc.InternalError),
            LedgerUnavailable,
        ),
        (error(1047, "WSREP has not yet prepared node for application use"), LedgerUnavailable),
        (error(4031, "The client was disconnected by the server because of inactivity"), LedgerUnavailable),
        (
            error(1203, "User already has more than 'max_user_connections' active connections"),
            LedgerUnavailable,
        ),
        (error("unable to open database file"), LedgerUnavailable),
        (
            error("failed to resolve host 'db7': [Errno -3] Temporary failure in name resolution"),
            LedgerUnavailable,
        ),
        (
            error('could not translate host name "db7" to address: Name or service not known'),
            LedgerUnavailable,
        ),
        (error('relation "guard_execution" does not exist', code="42P01"), LedgerNotMigrated),
        (error(1146, "Table 'x.guard_execution' doesn't exist"), LedgerNotMigrated),
        (error("no such table: guard_execution"), LedgerNotMigrated),
        (error("no such column: batch_id"), LedgerNotMigrated),
    ],
)
def test_each_error_gets_its_meaning(given: Exception, expected: type[LedgerError]) -> None:
    found = meaning(given)
    assert isinstance(found, expected)
    assert "'core_banking' (postgresql+psycopg://guard:***@db7:5433/bank?password=***)" in str(
        found
    ) or isinstance(found, _Transient)
    assert found.retryable == (expected is not LedgerNotMigrated)


def at_connect(*arguments: Any, code: str | None = None) -> Any:
    given = error(*arguments, code=code)
    given.statement = None
    return given


FATAL = 'connection failed: connection to server at "10.0.0.7", port 5432 failed: FATAL:  '


@pytest.mark.parametrize(
    "given",
    [
        at_connect(f'{FATAL}database "bank" does not exist'),
        at_connect(f'{FATAL}role "guard" does not exist'),
        at_connect(f'{FATAL}role "guard" is not permitted to log in'),
        at_connect(f'{FATAL}password authentication failed for user "guard"'),
        at_connect(
            f'{FATAL}no pg_hba.conf entry for host "10.0.0.1", user "guard", database "bank", no encryption'
        ),
        at_connect(
            f'{FATAL}permission denied for database "bank"\nDETAIL:  User does not have CONNECT privilege.'
        ),
        at_connect(f"{FATAL}no such database: bank"),
        at_connect(f"{FATAL}SASL authentication failed"),
        at_connect(
            'connection to server at "db" (::1), port 5432 failed: Connection refused\n'
            'connection to server at "db" (127.0.0.1), port 5432 failed: FATAL:  database "bank" does not exist'
        ),
        at_connect("connection failed: fe_sendauth: no password supplied"),
        at_connect("connection failed: server does not support SSL, but SSL was required"),
        at_connect("connection failed: SSL error: certificate verify failed"),
        at_connect("whatever the server's language is", code="28P01"),
        at_connect(1045, "Access denied for user 'guard'@'h' (using password: YES)"),
        at_connect(1044, "Access denied for user 'guard'@'h' to database 'bank'"),
        at_connect(1049, "Unknown database 'bank'"),
        at_connect(1698, "Access denied for user 'guard'@'h'"),
        at_connect(1130, "Host 'h' is not allowed to connect to this MariaDB server"),
        at_connect(4151, "Access denied, this account is locked"),
        at_connect("file is not a database"),
    ],
)
def test_a_refused_connection_never_comes_back_by_itself(given: Exception) -> None:
    found = meaning(given)
    assert type(found) is LedgerRefused
    assert isinstance(found, LedgerUnavailable), "who works on without a ledger does so here as well"
    assert found.retryable is False
    assert "'core_banking'" in str(found)
    assert "cret" not in str(found)
    assert "hidden" not in str(found)


@pytest.mark.parametrize(
    "given",
    [
        at_connect(f"{FATAL}the database system is starting up"),
        at_connect(f"{FATAL}sorry, too many clients already"),
        at_connect(f"{FATAL}remaining connection slots are reserved for roles with the SUPERUSER attribute"),
        at_connect("connection failed: timeout expired"),
        at_connect(1040, "Too many connections"),
        at_connect(2003, "Can't connect to MySQL server on 'db' ([Errno -2] Name or service not known)"),
    ],
)
def test_a_server_that_may_come_back_is_no_refusal(given: Exception) -> None:
    assert type(meaning(given)) is LedgerUnavailable


def test_a_statement_is_never_a_refused_connection() -> None:
    given = error(1044, "Access denied for user 'guard'@'h' to database 'other'")
    assert meaning(given) is given


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
