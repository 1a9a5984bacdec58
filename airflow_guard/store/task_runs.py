"""Task tries and their leases: who is at work, since when, with what result."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.guard import TaskIdentity
from airflow_guard.core.keys import DATELESS
from airflow_guard.core.states import State
from airflow_guard.store.columns import COUNTS
from airflow_guard.store.dialects import utc_after, utc_now
from airflow_guard.store.events import told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from airflow_guard.core.keys import KeySpace
    from airflow_guard.store.database import LedgerDatabase


@dataclass(frozen=True)
class TaskTry:
    """What a task try records about itself when it opens.

    :param key_shape: see :class:`airflow_guard.core.keys.KeyShape`.
    :param date_source: where the business date came from, see ``core.dates.DateSource``.
    :param map_length: how many instances Airflow made of a mapped task; ``None``: not mapped, or not known.
    :param own_at: the instant that the date was made from by a rule of dates, ``None`` if it was made otherwise.
    :param date_of_then: gives the date that an earlier run would have by the rule and zone of now, of its ``own_at``;
        ``None``: that cannot be said.
    """

    identity: TaskIdentity
    space: KeySpace
    key_shape: str
    mode: str = "enforce"
    date_source: str = "explicit"
    date_detail: str = ""
    own_at: datetime | None = None
    map_length: int | None = None
    date_of_then: Callable[[datetime], date | None] = field(default=lambda _: None, compare=False)


@dataclass(frozen=True)
class StoredDate:
    """The business date that a task of a run recorded first."""

    date: date
    source: str
    detail: str


class RunDates:
    """Reads which dates the runs of a task had.

    :param dated: the table of what a task does in a run.
    :param date: its column of the run's date.
    """

    def __init__(self, database: LedgerDatabase, dated: sa.Table, date: str) -> None:
        self._db = database
        self._dated, self._date = dated, dated.c[date]

    def stored_date(self, dag_id: str, run_id: str, task_id: str) -> StoredDate | None:
        """Return the business date that this task of this run recorded first, ``None`` if it has not run."""
        run, day = self._dated, self._date
        found = (
            sa.select(day, run.c.date_source, run.c.date_detail)
            .where(run.c.run_id == run_id, run.c.dag_id == dag_id, run.c.task_id == task_id)
            .order_by(run.c.id)
            .limit(1)
        )
        row = self._db.read(lambda connection: connection.execute(found).first())
        return StoredDate(row[0], row.date_source, row.date_detail) if row else None

    def previous_run(self, dag_id: str, task_id: str, before: datetime) -> tuple[str, date, datetime] | None:
        """Return run id, business date and due time of the scheduled run of this task that was due last before."""
        run, day = self._dated, self._date
        found = (
            sa.select(run.c.run_id, day, run.c.run_after_at)
            .where(
                run.c.dag_id == dag_id,
                run.c.task_id == task_id,
                run.c.run_type == "scheduled",
                run.c.run_after_at < as_stored(before, self._db.dialect),
            )
            .order_by(run.c.run_after_at.desc(), run.c.id)
            .limit(1)
        )
        row = self._db.read(lambda connection: connection.execute(found).first())
        due = aware(row.run_after_at) if row else None
        return (row[0], row[1], due) if row and due else None


class TaskRuns(RunDates):
    """Reads and writes ``guard_task_run`` and ``guard_lease``."""

    def __init__(self, database: LedgerDatabase) -> None:
        super().__init__(database, database.tables.task_run, "business_date")
        self._run = database.tables.task_run
        self._lease = database.tables.lease

    def open(self, task_try: TaskTry, lease_s: float, resumed: int | None = None) -> int:
        """Record a task try and start its lease.

        :param lease_s: length of the lease, seconds.
        :param resumed: the id from before a deferral: the same try goes on.
        :return: the id of the task try's row.
        :raises LedgerUnavailable: nothing may start (retryable).
        """
        if resumed is not None:
            self._reopen(resumed, lease_s)
            return resumed
        row = _row_of(task_try, self._db.dialect)

        def work(connection: sa.Connection) -> int:
            inserted = connection.execute(sa.insert(self._run).values(**row, started_at=utc_now()))
            task_run_id = int(inserted.inserted_primary_key[0])  # type: ignore[index]
            connection.execute(self._new_lease(), {"run": task_run_id, "seconds": lease_s})
            return task_run_id

        return self._db.write(work)

    def renew(self, task_run_id: int, lease_s: float, *, create: bool = False) -> bool:
        """Extend a lease from the database's now; return whether it was there.

        :param create: make it if it is gone.
        """

        def work(connection: sa.Connection) -> bool:
            found = self._extend(connection, task_run_id, lease_s)
            if not found and create:
                connection.execute(self._new_lease(), {"run": task_run_id, "seconds": lease_s})
            return found or create

        return self._db.look_and_write(work)

    def _extend(self, connection: sa.Connection, task_run_id: int, lease_s: float) -> bool:
        extend = (
            sa.update(self._lease)
            .where(self._lease.c.task_run_id == sa.bindparam("run"))
            .values(expires_at=utc_after(sa.bindparam("seconds")), renewed_at=utc_now())
        )
        return connection.execute(extend, {"run": task_run_id, "seconds": lease_s}).rowcount == 1

    def _reopen(self, task_run_id: int, lease_s: float) -> None:
        """Go on with a try that waited: it runs again, under a new lease."""
        running = (
            sa.update(self._run).where(self._run.c.id == task_run_id).values(outcome=None, ended_at=None)
        )

        def work(connection: sa.Connection) -> None:
            connection.execute(running)
            if not self._extend(connection, task_run_id, lease_s):
                connection.execute(self._new_lease(), {"run": task_run_id, "seconds": lease_s})

        self._db.look_and_write(work)

    def count_claims(self, connection: sa.Connection, task_run_id: int, first: int, listed: int) -> None:
        """Add keys that a try is the first to claim, and note how many documents it has listed, with its claim."""
        run = self._run
        count = sa.bindparam("listed", type_=sa.Integer)
        more = sa.case((run.c.documents < count, count), else_=run.c.documents)
        added = run.c.first_claims + sa.bindparam("first", type_=sa.Integer)
        this = sa.update(run).where(run.c.id == sa.bindparam("run"))
        change = this.values(documents=more, first_claims=added)
        connection.execute(change, {"run": task_run_id, "first": first, "listed": listed})

    def close(
        self,
        task_run_id: int,
        outcome: str,
        counts: Mapping[str, int],
        error: str | None = None,
        expectation: Mapping[str, Any] | None = None,
    ) -> None:
        """Record how a try ended and end its lease at once, so that nobody waits for it.

        The lease of a try that failed stays, over, as long as keys are in its hands (the ledger was away when it had to
        report them): that is how they are found.

        :param expectation: what was expected, by column.
        :param outcome: ``success``, ``failed``, ``skipped``, or ``waiting``: it goes on when other attempts have ended.
        """
        values: dict[str, Any] = {name: int(counts.get(name, 0)) for name in COUNTS} | dict(expectation or {})

        def work(connection: sa.Connection) -> None:
            connection.execute(
                sa.update(self._run)
                .where(self._run.c.id == task_run_id)
                .values(outcome=outcome, error=told(error), ended_at=utc_now(), **values)
            )
            mine = self._lease.c.task_run_id == task_run_id
            if outcome == "failed" and self._holds(connection, task_run_id):
                connection.execute(sa.update(self._lease).where(mine).values(expires_at=utc_now()))
            else:
                connection.execute(sa.delete(self._lease).where(mine))

        self._db.write(work)

    def _holds(self, connection: sa.Connection, task_run_id: int) -> bool:
        e = self._db.tables.execution
        held = (e.c.task_run_id == task_run_id, e.c.state == State.IN_PROGRESS.value)
        return connection.execute(sa.select(sa.literal(1)).where(*held).limit(1)).first() is not None

    def identities(self, ids: Iterable[int]) -> dict[int, TaskIdentity]:
        """Return who the task tries were."""
        wanted = sorted(set(ids))
        if not wanted:
            return {}
        found = sa.select(self._run).where(self._run.c.id.in_(wanted))
        rows = self._db.read(lambda connection: connection.execute(found).all())
        return {row.id: identity_of(row) for row in rows}

    def of_date(self, dag_id: str, business_date: date) -> list[Any]:
        """Return the tries of a DAG about a business date, oldest first."""
        run = self._run
        found = (
            sa.select(run)
            .where(run.c.business_date == business_date, run.c.dag_id == dag_id)
            .order_by(run.c.id)
        )
        return list(self._db.read(lambda connection: connection.execute(found).all()))

    def seen_from_start(self, dag_id: str, run_id: str, task_id: str) -> bool:
        """Return whether the ledger saw the first try of this task in this run. A later one may have been refused."""
        run = self._run
        first = sa.select(sa.func.min(run.c.try_number)).where(
            run.c.run_id == run_id, run.c.dag_id == dag_id, run.c.task_id == task_id
        )
        number = self._db.read(lambda connection: connection.execute(first).scalar_one())
        return number is not None and number < 2

    def operation_since(self, key_namespace: str, operation: str) -> datetime | None:
        """Return when the ledger first saw this operation, ``None`` if never."""
        run = self._run
        found = sa.select(sa.func.min(run.c.started_at)).where(
            run.c.key_namespace == key_namespace, run.c.operation == operation
        )
        return aware(self._db.read(lambda connection: connection.execute(found).scalar_one()))

    def namesakes(self, space: KeySpace, identity: TaskIdentity) -> list[str]:
        """Return the key namespaces of other DAGs that have the operation for this date, if this is its first run.

        With keys that hold once per document: for any date.
        """
        run = self._run
        mine = sa.and_(run.c.dag_id == identity.dag_id, run.c.run_id == identity.run_id)
        before = sa.select(run.c.id).where(
            run.c.key_namespace == space.key_namespace, run.c.operation == space.operation, sa.not_(mine)
        )
        same_date = run.c.business_date == space.business_date
        if space.key_date == DATELESS:
            same_date = run.c.key_date == DATELESS
        others = (
            sa.select(run.c.key_namespace)
            .where(
                same_date,
                run.c.operation == space.operation,
                run.c.key_namespace != space.key_namespace,
                run.c.deployment == space.deployment,
                run.c.mode == "enforce",
            )
            .distinct()
            .order_by(run.c.key_namespace)
        )

        def look(connection: sa.Connection) -> list[str]:
            if connection.execute(before.limit(1)).first() is not None:
                return []
            return [row.key_namespace for row in connection.execute(others)]

        return self._db.read(look)

    def _new_lease(self) -> Any:
        return sa.insert(self._lease).values(
            task_run_id=sa.bindparam("run"),
            expires_at=utc_after(sa.bindparam("seconds")),
            renewed_at=utc_now(),
        )


def aware(value: datetime | None) -> datetime | None:
    """Return an instant from the database as aware UTC.

    MySQL and SQLite give it without a zone, PostgreSQL in the zone of the session.
    """
    if value is None:
        return None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def instant_of(text: str) -> datetime:
    """Return an instant that was read as text: the database's clock, for which drivers have no type."""
    found = datetime.fromisoformat(text.strip())
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def known(value: datetime | None) -> datetime:
    """Return an instant of a column that is never NULL."""
    found = aware(value)
    if found is None:  # cannot be
        raise ValueError("an instant is missing")
    return found


def as_stored(value: datetime | None, dialect: str) -> datetime | None:
    """Return an instant as the database's type takes it."""
    if value is None:
        return None
    utc = value.astimezone(UTC)
    return utc if dialect == "postgresql" else utc.replace(tzinfo=None)


def identity_of(row: Any) -> TaskIdentity:
    """Return who a row of ``guard_task_run`` tells about."""
    return TaskIdentity(
        dag_id=row.dag_id,
        task_id=row.task_id,
        run_id=row.run_id,
        map_index=row.map_index,
        try_number=row.try_number,
        run_type=row.run_type,
        run_after_at=aware(row.run_after_at),
        host=row.host,
        pid=row.pid,
        started_at=aware(row.started_at),
        producers=row.producers,
    )


def _row_of(task_try: TaskTry, dialect: str) -> dict[str, Any]:
    identity, space = task_try.identity, task_try.space
    return {
        "dag_id": identity.dag_id,
        "task_id": identity.task_id,
        "run_id": identity.run_id,
        "map_index": identity.map_index,
        "try_number": identity.try_number,
        "run_type": identity.run_type,
        "run_after_at": as_stored(identity.run_after_at, dialect),
        "producers": identity.producers,
        "deployment": space.deployment,
        "key_namespace": space.key_namespace,
        "operation": space.operation,
        "business_date": space.business_date,
        "date_source": task_try.date_source,
        "date_detail": task_try.date_detail[:250],
        "own_at": as_stored(task_try.own_at, dialect),
        "cycle": space.cycle,
        "key_date": space.key_date,
        "key_shape": task_try.key_shape,
        "mode": task_try.mode,
        "map_length": task_try.map_length,
        "host": identity.host[:250],
        "pid": identity.pid,
    }
