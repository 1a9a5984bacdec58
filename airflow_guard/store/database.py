"""The ledger's database: engines, transactions, and what an error of the driver means."""

from __future__ import annotations

import logging
import random
import shlex
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, PendingRollbackError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from airflow_guard.core.commands import without_password
from airflow_guard.core.errors import (
    ConfigurationError,
    LedgerBusy,
    LedgerError,
    LedgerNotMigrated,
    LedgerRefused,
    LedgerUnavailable,
    UnknownCommit,
)
from airflow_guard.store import dialects
from airflow_guard.store.tables import Tables, ledger_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_guard.store.driver import OnDriver

log = logging.getLogger(__name__)
T = TypeVar("T")

LOCK_TIMEOUT_S = 3
"""How long a claim waits for a lock before the key counts as "in progress elsewhere"."""
UNKNOWN_COMMIT_PATIENCE_S = 15.0
"""How long a write is repeated after the answer to its commit was lost."""
_MAX_REPEATS = 8
_MAX_RACES = 2
_READ_ONLY = "airflow_guard_read_only"


class LedgerDatabase:
    """Engines and transactions of one ledger.

    :param url: SQLAlchemy URL, used where no ``creator`` is given.
    :param creator: returns a DBAPI connection (an Airflow hook's ``get_conn``), so that TLS and authentication
        settings of the connection count.
    :param tables: the ledger's tables.
    :param name: the id of the Airflow connection, for messages.
    :param max_connections: upper limit of connections for the ledger itself, and again for business
        transactions.
    """

    def __init__(
        self,
        url: str | sa.URL,
        *,
        tables: Tables | None = None,
        name: str | None = None,
        creator: Callable[[], Any] | None = None,
        max_connections: int = 8,
    ) -> None:
        parsed = sa.make_url(url)
        try:
            self.dialect = dialects.family(parsed.get_backend_name())
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        self.url = parsed
        self.name = name
        address = address_of(parsed)
        self.named = f"{name!r} ({address})" if name else address
        self.tables = tables or ledger_tables()
        options: dict[str, Any] = {"pool_size": max_connections, "max_overflow": 0, "pool_timeout": 30}
        if creator is not None:
            options["creator"] = creator
        if self.dialect == dialects.MYSQL:
            options["pool_recycle"] = 1800
        own = {} if self.dialect == dialects.SQLITE else {"isolation_level": "READ COMMITTED"}
        self.engine = sa.create_engine(parsed, **options, **own)
        self.business_engine = sa.create_engine(parsed, **options)
        self._autocommit = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        self._relaxed_commit: bool | None = None
        for engine in (self.engine, self.business_engine):
            _prepare(engine, self.dialect)

    def dispose(self) -> None:
        """Close all pooled connections."""
        self.engine.dispose()
        self.business_engine.dispose()

    def read(self, work: Callable[[sa.Connection], T], *, limit_s: float | None = None) -> T:
        """Run reads in one short transaction.

        :param limit_s: how long each statement may take; ``None``: as long as the server allows.
        :raises LedgerUnavailable: retryable.
        :raises LedgerRefused: not retryable.
        :raises LedgerNotMigrated: not retryable.
        :raises LedgerBusy: a statement took longer (a retry may help).
        """
        with translated("read", self), self.engine.connect() as connection:
            # SQLite: readers take no write lock, so that they see a ledger that a task holds for its transaction.
            connection.execution_options(**{_READ_ONLY: True})
            if limit_s is None:
                return work(connection)
            with dialects.statement_limit(connection, self.dialect, limit_s):
                return work(connection)

    def look(self, work: Callable[[sa.Connection], T]) -> T:
        """Run one reading statement, without the round trips of a transaction around it. Raises as :meth:`read`."""
        if self.dialect == dialects.SQLITE:
            return self.read(work)
        with translated("read", self), self._autocommit.connect() as connection:
            return work(connection)

    def write(self, work: Callable[[sa.Connection], T], *, patience_s: float = 0.0) -> T:
        """Run conditional writes in one short transaction; repeat them after a deadlock or a lost answer.

        :param work: must be repeatable: every statement in it matches the state it leaves, so that a repetition
            after a commit whose answer was lost changes nothing and can tell so.
        :param patience_s: how long to go on when the database is down or busy.
        :raises LedgerBusy: a lock was not free (retryable).
        :raises LedgerUnavailable: down (retryable), or it refuses the connection. Nothing was committed.
        :raises UnknownCommit: the answer to a commit was lost, and so were the repetitions (retryable).
        """
        deadline = time.monotonic() + patience_s
        repeats, unknown = 0, False
        failure: LedgerError
        while True:
            try:
                return self._write_once(work)
            except _Transient as error:
                repeats += 1
                if repeats <= _MAX_REPEATS:
                    time.sleep(random.uniform(0.0, 0.01 * 2**repeats))  # noqa: S311 - not cryptographic
                    continue
                failure = LedgerBusy(f"{repeats} deadlocks or serialisation failures in a row: {error}")
                raise failure if not unknown else _still_unknown(failure, self) from error
            except UnknownCommit as error:
                failure = error
                if not unknown:
                    # Only the repetition finds out, so it gets some time even without patience.
                    unknown, deadline = True, max(deadline, time.monotonic() + UNKNOWN_COMMIT_PATIENCE_S)
            except (LedgerBusy, LedgerUnavailable) as error:
                failure = error
            if time.monotonic() >= deadline or not failure.retryable:
                if unknown:
                    raise _still_unknown(failure, self) from failure
                raise failure  # which has its own cause, the driver's error
            time.sleep(0.2)

    def look_and_write(self, work: Callable[[sa.Connection], T]) -> T:
        """Write as :meth:`write`, where the work looks for a row and inserts it if it is not there.

        Another process may insert it between the two. Then it is there, and the work is done once more.
        """
        for _ in range(_MAX_RACES):
            try:
                return self.write(work)
            except IntegrityError as error:
                if not dialects.is_duplicate(error):
                    raise
        return self.write(work)

    def _write_once(self, work: Callable[[sa.Connection], T]) -> T:
        with translated("write", self), self.engine.connect() as connection:
            with connection.begin() as transaction:
                self.durable(connection)
                outcome = work(connection)
                commit(transaction, connection, self)
            return outcome

    def at_once(self) -> AtOnce:
        """Return what executes writing statements in one round trip each."""
        return AtOnce(self._autocommit, lambda: self._relaxed_commit is False)

    def durable(self, connection: sa.Connection) -> None:
        """Make the current transaction's commit survive a crash where the server's default does not.

        ``SET LOCAL`` and no session state, so that PgBouncer in transaction mode works.
        """
        if self.dialect != dialects.POSTGRES:
            return
        if self._relaxed_commit is None:
            value = connection.exec_driver_sql("SHOW synchronous_commit").scalar_one()
            self._relaxed_commit = value == "off"
        if self._relaxed_commit:
            connection.exec_driver_sql("SET LOCAL synchronous_commit = on")

    def limit_locks(self, connection: sa.Connection, seconds: float | None = None) -> None:
        """Let the current transaction wait for locks only so long (SQLite and MySQL: set at connect).

        :param seconds: instead of ``LOCK_TIMEOUT_S``.
        """
        if self.dialect == dialects.POSTGRES:
            limit_ms = int((LOCK_TIMEOUT_S if seconds is None else seconds) * 1000)
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{limit_ms}ms'")


def address_of(url: sa.URL) -> str:
    """Return a database's address as it may be printed."""
    return without_password(url.render_as_string())


class AtOnce:
    """Executes writing statements as transactions of their own, on one connection that it keeps. For one thread.

    :param engine: in autocommit mode.
    :param allowed: whether a commit needs no more than the statement (see :meth:`LedgerDatabase.durable`).
    """

    def __init__(self, engine: sa.Engine, allowed: Callable[[], bool]) -> None:
        self._engine = engine
        self._allowed = allowed
        self._connection: sa.Connection | None = None

    def changed(self, statement: OnDriver, parameters: dict[str, Any]) -> int | None:
        """Execute a statement and return its row count.

        :return: ``None`` where it was not allowed, or if it failed: nothing is known then, and the caller repeats the
            conditional writes through :meth:`LedgerDatabase.write`.
        """
        if not self._allowed():
            return None
        try:
            self._connection = self._connection or self._engine.connect()
            return statement.changed(self._connection, parameters)
        except (DBAPIError, PoolTimeout) as error:
            log.info("A write is repeated: %s", error)
            self.close()
            return None

    def close(self) -> None:
        """Give the connection back."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _Transient(LedgerBusy):
    """A deadlock or serialisation failure: the transaction is rolled back, repeat it.

    Where it is not repeated here (a read, a business transaction), the caller sees a busy ledger.
    """


def commit(transaction: sa.RootTransaction, connection: sa.Connection, database: LedgerDatabase) -> None:
    """Commit.

    :raises UnknownCommit: the connection broke before the answer came, or the answer says nothing: MySQL and MariaDB
        have errors at a commit that do not tell whether it took effect.
    """
    try:
        transaction.commit()
    except DBAPIError as error:
        unclear = database.dialect == dialects.MYSQL and not dialects.is_transient(error)
        if unclear or dialects.is_down(error):
            raise UnknownCommit(
                f"The connection to the ledger {database.named} broke at a commit: {error.orig}"
            ) from error
        raise


def _still_unknown(cause: LedgerError, database: LedgerDatabase) -> UnknownCommit:
    return UnknownCommit(
        f"The connection to the ledger {database.named} broke at a commit, and repeating it did not succeed ({cause}). "
        "Nothing is lost: the row tells what happened as soon as the database is back. Try again then."
    )


@contextmanager
def translated(doing: str, database: LedgerDatabase) -> Iterator[None]:
    """Turn errors of driver and pool into errors of this package, which name the ledger."""
    try:
        yield
    except LedgerError:
        raise
    except PoolTimeout as error:
        raise LedgerBusy(f"No free connection to the ledger {database.named}: {error}") from error
    except PendingRollbackError as error:
        raise LedgerUnavailable(
            f"The connection to the ledger {database.named} broke in an earlier statement ({doing}): {error}"
        ) from error
    except DBAPIError as error:
        raise_meant(meaning(error, doing, database), error)


def raise_meant(meant: Exception, error: DBAPIError) -> NoReturn:
    """Raise what an error means. One that stays as it is does not come from itself: a walk of causes would never end."""
    if meant is error:
        raise error
    raise meant from error


def meaning(error: DBAPIError, doing: str, database: LedgerDatabase) -> Exception:
    """Return what an error of the driver means for the ledger; programming errors are returned as they are."""
    named = database.named
    if dialects.is_transient(error):
        return _Transient(
            f"A deadlock or serialisation failure ({doing}), rolled back: {error.orig}. Try again."
        )
    if dialects.is_busy(error):
        return LedgerBusy(
            f"A lock in the ledger {named} was not free in time ({doing}): {error.orig}. Try again."
        )
    if dialects.is_missing(error):
        return LedgerNotMigrated(
            f"The tables of the ledger {named} are missing or of another version ({error.orig}). Run: airflow-guard "
            f"migrate --ledger {shlex.quote(database.name or address_of(database.url))}"
        )
    if dialects.is_refused(error):
        return LedgerRefused(
            f"The server of the ledger {named} refuses the connection ({doing}): {error.orig}. A retry does not help: "
            "correct the connection, or what its account may do."
        )
    if dialects.is_down(error):
        return LedgerUnavailable(f"The ledger {named} cannot be reached ({doing}): {error.orig}")
    return error


def _prepare(engine: sa.Engine, dialect: str) -> None:
    if dialect == dialects.POSTGRES:
        sa.event.listen(engine, "connect", _prepare_postgres)
    elif dialect == dialects.MYSQL:
        sa.event.listen(engine, "connect", _prepare_mysql)
        sa.event.listen(engine, "before_cursor_execute", dialects.limited_mysql, retval=True)
    else:
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_immediate)


def _prepare_postgres(connection: Any, record: Any) -> None:
    # Server-side prepared statements live in a session; behind a pooler in transaction mode the next transaction may
    # be another session's. A pooler shows itself by a process id of its own in the start-up packet.
    if hasattr(connection, "prepare_threshold"):
        cursor = connection.execute("SELECT pg_backend_pid()")
        (backend,) = cursor.fetchone()
        connection.rollback()
        if backend != connection.info.backend_pid:
            connection.prepare_threshold = None


def _prepare_mysql(connection: Any, record: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET SESSION innodb_lock_wait_timeout = {LOCK_TIMEOUT_S}")
        cursor.execute("SET SESSION sql_mode = CONCAT(@@SESSION.sql_mode, ',STRICT_ALL_TABLES')")
        cursor.execute("SELECT @@GLOBAL.innodb_flush_log_at_trx_commit")
        (flush,) = cursor.fetchone()
    if int(flush) != 1:
        log.warning(
            "innodb_flush_log_at_trx_commit is %s: a crash of the server can lose acknowledged commits, and with "
            "them the memory of what was done. Set it to 1 for a ledger.",
            flush,
        )


def _prepare_sqlite(connection: Any, record: Any) -> None:
    connection.isolation_level = None  # the driver starts no transaction by itself: BEGIN IMMEDIATE does
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {LOCK_TIMEOUT_S * 1000}")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.close()


def _begin_immediate(connection: sa.Connection) -> None:
    # Readers need no write lock: a deferred transaction in WAL mode reads beside a writer.
    deferred = connection.get_execution_options().get(_READ_ONLY)
    connection.exec_driver_sql("BEGIN" if deferred else "BEGIN IMMEDIATE")
