"""A side's connection: its snapshot, its thread, and what its errors mean."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, PendingRollbackError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from airflow_guard.core.errors import GuardError, SideInvalid, SideUnavailable
from airflow_guard.reconciling import canonical
from airflow_guard.store import dialects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)
T = TypeVar("T")

OTHER = "other"
"""Any database but PostgreSQL, MySQL, MariaDB and SQLite: no snapshot, no checksums."""
LOCK_TIMEOUT_S = 30
"""How long a scan waits for a table that is locked (a migration, TRUNCATE) before it counts as busy."""
_RESOURCES = ("08", "53", "57", "58")
"""Classes of SQLSTATE of a server that is short of something, stopping or broken."""
_INTERRUPTED = {"1317", "3024", "1969"}
"""MySQL: somebody, or a time limit, ended the statement."""


class SideSession:
    """One side while it is read.

    Everything that concerns its connection happens in one thread, because SQLite insists on that.

    :param name: for messages.
    :param engine: where its connection comes from.
    :param lock_timeout_s: how long a statement waits for a locked table.
    """

    def __init__(self, name: str, engine: sa.Engine, lock_timeout_s: int) -> None:
        self.name = name
        self.engine = engine
        try:
            self.dialect = dialects.family(engine.dialect.name)
        except ValueError:
            self.dialect = OTHER
        self.shared = False
        self._lock_timeout_s = lock_timeout_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="airflow_guard_side")
        self._opened: sa.Connection | None = None
        self._raised: canonical.Raised | None = None
        self._before: dict[str, Any] = {}

    def sibling(self, name: str) -> SideSession:
        """Return another side of the same database that reads in the same connection, one after the other."""
        other = SideSession.__new__(SideSession)
        other.__dict__.update(self.__dict__)
        other.name = name
        self.shared = other.shared = True
        return other

    def start(self, work: Callable[[sa.Connection], T]) -> Future[T]:
        """Begin some work on the connection, in the side's own thread."""
        return self._thread.submit(self._guarded, lambda: work(self._connection))

    def run(self, work: Callable[[sa.Connection], T]) -> T:
        """Do some work on the connection and wait for it.

        :raises SideUnavailable: a retry helps.
        :raises SideInvalid: no retry helps.
        """
        return self.start(work).result()

    def open(self, snapshot: str | None = None) -> datetime:
        """Connect and begin the snapshot; return its time by the database's clock.

        :param snapshot: an exported snapshot of PostgreSQL to read in.
        """
        return self._thread.submit(self._guarded, lambda: self._open(snapshot)).result()

    def export_snapshot(self) -> str:
        """Return the snapshot's name, for another session of the same PostgreSQL database."""
        return self.run(
            lambda connection: str(connection.exec_driver_sql("SELECT pg_export_snapshot()").scalar_one())
        )

    def close(self) -> None:
        """Give the connection back as it was."""
        with suppress(GuardError):
            self._thread.submit(self._guarded, self._close).result()
        self._thread.shutdown()

    @property
    def _connection(self) -> sa.Connection:
        if self._opened is None:
            raise RuntimeError("The side is not open.")
        return self._opened

    def _guarded(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except GuardError:
            raise
        except (SQLAlchemyError, OSError) as error:
            raise self._meaning(error) from error

    def _meaning(self, error: Exception) -> GuardError:
        """Return what an error means: will it go away by itself?"""
        if self._raised is not None and self._raised.error is not None:
            kept, self._raised.error = self._raised.error, None
            return type(kept)(f"{self.name}: {kept}")
        if isinstance(error, PoolTimeout):
            return SideUnavailable(f"{self.name}: no free connection: {error}")
        if not isinstance(error, DBAPIError):
            # Pending: the connection broke in an earlier statement of this side, or of its sibling.
            broken = isinstance(error, (OSError, PendingRollbackError))
            kind = SideUnavailable if broken else SideInvalid
            return kind(f"{self.name}: {error}")
        return self._meaning_for_driver(error, str(error.orig).strip())

    def _meaning_for_driver(self, error: DBAPIError, said: str) -> GuardError:
        code = dialects.error_code(error)
        short = self.dialect == dialects.POSTGRES and code[:2] in _RESOURCES
        interrupted = self.dialect == dialects.MYSQL and code in _INTERRUPTED
        if dialects.is_transient(error) or dialects.is_busy(error) or interrupted:
            return SideUnavailable(
                f"{self.name}: a lock was not free in time, or the statement was ended: {said}"
            )
        if dialects.is_refused(error):
            return SideInvalid(
                f"{self.name}: the database refuses the connection: {said}. Correct the connection, or what its account "
                "may do."
            )
        if dialects.is_down(error) or short:
            return SideUnavailable(f"{self.name}: the database cannot be reached or went away: {said}")
        what = (
            "no such table or column" if dialects.is_missing(error) else "the database refused the statement"
        )
        return SideInvalid(f"{self.name}: {what}: {said}")

    def _open(self, snapshot: str | None) -> datetime:
        options: dict[str, Any] = {}
        if self.dialect not in (dialects.SQLITE, OTHER):
            options["isolation_level"] = "REPEATABLE READ"
        if self.dialect == dialects.POSTGRES:
            options["postgresql_readonly"] = True
        self._opened = self.engine.connect().execution_options(**options)
        getattr(self, f"_begin_{self.dialect}")(self._opened, snapshot)
        if self.dialect == OTHER:
            return datetime.now(UTC)
        read_at: datetime = self._opened.execute(sa.select(dialects.utc_now())).scalar_one()
        return read_at.replace(tzinfo=UTC) if read_at.tzinfo is None else read_at.astimezone(UTC)

    def _begin_postgresql(self, connection: sa.Connection, snapshot: str | None) -> None:
        if snapshot is not None:
            connection.execute(sa.text(f"SET TRANSACTION SNAPSHOT '{snapshot}'"))
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{self._lock_timeout_s}s'")

    def _begin_mysql(self, connection: sa.Connection, _snapshot: str | None) -> None:
        wanted = {"lock_wait_timeout": self._lock_timeout_s, "time_zone": "+00:00"}
        names = ", ".join(f"@@SESSION.{name}" for name in wanted)
        before = connection.exec_driver_sql(f"SELECT {names}").one()
        self._before = dict(zip(wanted, before, strict=True))
        self._set(connection, wanted)
        connection.exec_driver_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")

    def _begin_sqlite(self, connection: sa.Connection, _snapshot: str | None) -> None:
        driver: Any = connection.connection.driver_connection
        self._raised = canonical.install(driver)
        connection.execute(sa.select(1))  # SQLAlchemy begins; the driver does not, before a SELECT
        if not driver.in_transaction:
            connection.exec_driver_sql("BEGIN")
        # The snapshot is taken by the first read of the file.
        connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar_one()

    def _begin_other(self, connection: sa.Connection, _snapshot: str | None) -> None:
        connection.execute(sa.select(1)).close()

    def _close(self) -> None:
        connection, self._opened = self._opened, None
        if connection is None:
            return
        with ExitStack() as stack:
            stack.callback(connection.close)
            try:
                connection.rollback()
                if self._before:
                    self._set(connection, self._before)
                    connection.rollback()
            except (SQLAlchemyError, OSError):
                # It may be gone, or in a state that nobody else should inherit.
                connection.invalidate()

    def _set(self, connection: sa.Connection, values: dict[str, Any]) -> None:
        for name, value in values.items():
            connection.execute(sa.text(f"SET SESSION {name} = :value"), {"value": value})


@contextmanager
def sessions(
    source: tuple[str, sa.Engine], target: tuple[str, sa.Engine], lock_timeout_s: int
) -> Iterator[tuple[tuple[SideSession, SideSession], tuple[datetime, datetime]]]:
    """Open both sides, in one snapshot if they are in one database, and yield them with their read times.

    PostgreSQL can share a snapshot between two connections. In MySQL, MariaDB and SQLite two sides of one database
    share the connection, and are read one after the other.

    :param source: name and engine.
    :param target: name and engine.
    """
    same = source[1] is target[1] or source[1].url == target[1].url
    with ExitStack() as stack:
        first = SideSession(*source, lock_timeout_s)
        same = same and first.dialect != OTHER
        stack.callback(first.close)
        if same and first.dialect != dialects.POSTGRES:
            read_at = first.open()
            yield (first, first.sibling(target[0])), (read_at, read_at)
            return
        second = SideSession(*target, lock_timeout_s)
        stack.callback(second.close)
        first_at = first.open()
        try:
            second_at = second.open(first.export_snapshot() if same else None)
        except SideInvalid:
            if not same:
                raise
            # One address, but not one server (a load balancer): read both in the one connection.
            second, second_at = first.sibling(target[0]), first_at
        yield (first, second), (first_at, second_at)
