"""Selections of keys, as commands, operators and alerts make them; those of an export a business date at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.decisions import UNFINISHED, Situation
from airflow_guard.core.errors import ResolutionError
from airflow_guard.core.states import State
from airflow_guard.reading.key_records import key_row
from airflow_guard.store import aliases, dialects
from airflow_guard.store.situations import constant, situations
from airflow_guard.store.task_runs import aware

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import date

    from airflow_guard.reading.key_records import KeyRow
    from airflow_guard.store.ledger import Ledger
    from airflow_guard.store.tables import Tables


# -- Selections of keys, as commands, operators and alerts make them ---------------------------------

DEFAULT_LIMIT = 50
SHORTEST_PREFIX = 6
_KEY_HEX = 32
_DATES = 500
# What wants attention comes first, however many keys are done.
_ORDER = (
    Situation.IN_DOUBT, Situation.FOLLOW_UP_OPEN, Situation.REJECTED, Situation.FAILED, Situation.ABANDONED,
    Situation.RUNNING, Situation.FOLLOW_UP_RUNNING, Situation.DROPPED, Situation.DONE,
)  # fmt: skip


_FOLLOW_UPS = frozenset({Situation.FOLLOW_UP_OPEN, Situation.FOLLOW_UP_RUNNING})
_PARTS = (UNFINISHED - _FOLLOW_UPS, _FOLLOW_UPS, frozenset({Situation.DONE, Situation.DROPPED}))
"""What is read by one statement each, as each has an index of its own."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which keys; every part narrows it.

    :param dag: a DAG: its own namespace and those that its tasks used (also before renames).
    :param until: with ``business_date``: up to this one, inclusive.
    :param cycle: ``None``: any.
    :param documents: normalised ids, ``None`` for the run as a whole; empty: all.
    :param situations: empty: all.
    """

    dag: str | None = None
    business_date: date | None = None
    operation: str | None = None
    documents: Sequence[str | None] = ()
    situations: frozenset[Situation] = frozenset()
    limit: int = DEFAULT_LIMIT
    until: date | None = None
    cycle: str | None = None

    def dated(self, column: sa.ColumnElement[Any]) -> list[sa.ColumnElement[bool]]:
        """Return the condition of the business dates, if there is one."""
        if self.business_date is None:
            return []
        return [
            column == self.business_date
            if self.until is None
            else column.between(self.business_date, self.until)
        ]


@dataclass(frozen=True, slots=True)
class Listing:
    """Keys, those that want attention first.

    :param more: whether there are more than the limit.
    """

    keys: list[KeyRow]
    more: bool


def keys(ledger: Ledger, selection: Selection) -> Listing:
    """Return the keys of a selection: unfinished ones first, then the newest business dates.

    :raises LedgerUnavailable: the database is down (a retry helps).
    """
    wanted = selection.situations or frozenset(Situation)

    def read(connection: sa.Connection) -> list[Any]:
        where = _conditions(connection, ledger.database.tables, selection)
        found: list[Any] = []
        for part in _PARTS:
            # Done keys are the many: they are read only for the room that is left.
            room = selection.limit + 1 - (len(found) if Situation.DONE in part else 0)
            if part & wanted and room > 0:
                found.extend(connection.execute(_select(ledger, where, part & wanted).limit(room)))
        return found

    views = _views(ledger, ledger.database.read(read))
    views.sort(key=_place)
    return Listing(views[: selection.limit], len(views) > selection.limit)


def counts(ledger: Ledger, selection: Selection) -> dict[Situation, int]:
    """Return how many keys of a selection stand where. Reads all of them: give a date, or few have it.

    :raises LedgerUnavailable: the database is down (a retry helps).
    """
    tables = ledger.database.tables
    stands = situations(tables)
    which = sa.case(*((condition, situation.value) for situation, condition in stands.items()))

    def read(connection: sa.Connection) -> list[Any]:
        where = _conditions(connection, tables, selection)
        if selection.situations:
            where.append(sa.or_(*(stands[situation] for situation in selection.situations)))
        counted = sa.select(which.label("situation"), sa.func.count().label("keys")).select_from(
            _joined(tables)
        )
        return list(connection.execute(counted.where(*where).group_by(sa.literal_column("situation"))))

    found = {Situation(row.situation): int(row.keys) for row in ledger.database.read(read)}
    return {situation: found[situation] for situation in _ORDER if situation in found}


def find(ledger: Ledger, prefix: str) -> list[KeyRow]:
    """Return the keys whose hash begins so; two at most, since the second says that the prefix is too short.

    :param prefix: 6 to 32 hex characters.
    :raises ResolutionError: it cannot be the beginning of a key. A retry does not help.
    """
    prefix = prefix.strip().lower()
    if not SHORTEST_PREFIX <= len(prefix) <= _KEY_HEX or set(prefix) - set("0123456789abcdef"):
        raise ResolutionError(
            f"{prefix!r} is no key: a key is {_KEY_HEX} hex characters; its first {SHORTEST_PREFIX} or more "
            "will do."
        )
    e = ledger.database.tables.execution

    def read(connection: sa.Connection) -> list[Any]:
        dates = list(connection.execute(key_dates(e, ledger.database.dialect)).scalars())
        found: list[Any] = []
        while dates and len(found) < 2:
            # "g" comes after every hex digit: a range, which the primary key answers date by date.
            begins = sa.select(e.c.key_date, e.c.key_hash).where(
                e.c.key_date.in_(dates[-_DATES:]), e.c.key_hash >= prefix, e.c.key_hash < f"{prefix}g"
            )
            found += connection.execute(begins.limit(2)).all()
            del dates[-_DATES:]
        return [
            row
            for key in found[:2]
            for row in ledger.statements.read.run(connection, key.key_date, [key.key_hash])
        ]

    return _views(ledger, ledger.database.read(read))


def named(ledger: Ledger, keys: Sequence[tuple[date, str]]) -> list[KeyRow]:
    """Return keys by date and hash; those that the ledger does not have are left out."""
    hashes: dict[date, list[str]] = {}
    for key_date, key_hash in keys:
        hashes.setdefault(key_date, []).append(key_hash)
    read = ledger.statements.read
    rows = ledger.database.read(
        lambda c: [row for day, some in hashes.items() for row in read.run(c, day, some)]
    )
    return _views(ledger, rows)


def other_deployments(ledger: Ledger, deployment: str) -> list[str]:
    """Return the names of other deployments that worked with this ledger, if this one never did."""
    run = ledger.database.tables.task_run
    names = ledger.database.read(
        lambda connection: connection.execute(sa.select(run.c.deployment).distinct()).scalars().all()
    )
    return [] if deployment in names else sorted(names)


def _views(ledger: Ledger, rows: Iterable[Any]) -> list[KeyRow]:
    rows = list(rows)
    people = ledger.identities(
        {run for row in rows for run in (row.task_run_id, row.first_task_run_id) if run is not None}
    )
    return [key_row(row, people) for row in rows]


def _joined(tables: Tables) -> sa.FromClause:
    e, lease = tables.execution, tables.lease
    return e.outerjoin(lease, lease.c.task_run_id == e.c.task_run_id)


def _select(ledger: Ledger, where: Sequence[sa.ColumnElement[bool]], part: frozenset[Situation]) -> Any:
    """Return the read of keys that stand so, in an order that an index has, or that few rows need."""
    tables = ledger.database.tables
    e, stands = tables.execution, situations(tables)
    conditions = [*where, sa.or_(*(stands[situation] for situation in _ORDER if situation in part))]
    newest: list[sa.ColumnElement[Any]] = [
        e.c.business_date.desc(),
        e.c.key_namespace.desc(),
        e.c.operation.desc(),
    ]
    if Situation.DONE not in part:
        # Said once more in the words of the index of what is unfinished.
        open_follow_ups = e.c.attention == constant("follow_up")
        conditions.append(open_follow_ups if part <= _FOLLOW_UPS else e.c.state != constant(State.COMPLETED))
        newest.insert(0, sa.case(*((stands[situation], rank) for rank, situation in enumerate(_ORDER))))
    return ledger.statements.read_where.where(*conditions).order_by(*newest)


def _place(view: KeyRow) -> tuple[Any, ...]:
    """Return where a key stands in a list: what wants attention first, then the newest business date."""
    names = (view.key_namespace, view.operation, view.cycle, view.row.document or "")
    return (_ORDER.index(view.situation), -view.business_date.toordinal(), *names)


def _conditions(
    connection: sa.Connection, tables: Tables, selection: Selection
) -> list[sa.ColumnElement[bool]]:
    e = tables.execution
    conditions = selection.dated(e.c.business_date)
    if selection.cycle is not None:
        conditions.append(e.c.cycle == selection.cycle)
    if selection.dag is not None:
        conditions.append(_of_dag(connection, tables, selection))
    elif selection.operation is not None:
        conditions.append(e.c.operation == selection.operation)
    if selection.documents:
        named = e.c.document.in_([each for each in selection.documents if each is not None])
        conditions.append(sa.or_(named, e.c.document.is_(None)) if None in selection.documents else named)
    return conditions


def _of_dag(connection: sa.Connection, tables: Tables, selection: Selection) -> sa.ColumnElement[bool]:
    """Return what belongs to a DAG: its namespace, and the operations that its tasks worked on elsewhere."""
    e, run = tables.execution, tables.task_run
    dag, operation = str(selection.dag), selection.operation
    used = sa.select(run.c.key_namespace, run.c.operation).where(run.c.dag_id == dag).distinct()
    used = used.where(*selection.dated(run.c.business_date))
    if operation is not None:
        used = used.where(run.c.operation == operation)
    names = {(row[0], row[1]) for row in connection.execute(used)}
    names |= {(dag, operation)} if operation is not None else set()
    now = {aliases.follow(connection, tables, name)[-1] for name in names}
    own = e.c.key_namespace == dag
    if operation is not None:
        own = sa.and_(own, e.c.operation == operation)
    elsewhere = [
        sa.and_(e.c.key_namespace == namespace, e.c.operation == name) for namespace, name in sorted(now)
    ]
    return sa.or_(own, *elsewhere)


def key_dates(execution: sa.Table, dialect: str) -> sa.Select[Any]:
    """Return the dates that keys have, oldest first, from the steps of the primary key instead of every row.

    MySQL and MariaDB step by themselves; the others are led from each date to the next.
    """
    if dialect == dialects.MYSQL:
        stepping = sa.select(execution.c.key_date).distinct().order_by(execution.c.key_date)
        # Left to itself, MariaDB reads the whole index.
        for name in ("mysql", "mariadb"):
            stepping = stepping.with_hint(execution, "FORCE INDEX (PRIMARY)", name)
        return stepping
    first = sa.select(sa.func.min(execution.c.key_date).label("d")).cte("dates", recursive=True)
    later = execution.alias("later")
    following = sa.select(sa.func.min(later.c.key_date)).where(later.c.key_date > first.c.d)
    dates = first.union_all(sa.select(following.scalar_subquery()).where(first.c.d.is_not(None)))
    return sa.select(dates.c.d).where(dates.c.d.is_not(None)).order_by(dates.c.d)


# -- What an export reads: a business date at a time, so that a year fits into memory ------------------------

EVENT_COLUMNS = (
    "id", "at", "kind", "key_text", "key_date", "key_hash", "attempt", "owner_token", "task_run_id", "from_state",
    "to_state", "actor", "reason",
)  # fmt: skip
_PAGE = 5000
_ALL = 100_000_000


def dates(ledger: Ledger, selection: Selection) -> list[date]:
    """Return the business dates in a range that have keys, oldest first."""
    e = ledger.database.tables.execution
    found = sa.select(e.c.business_date).where(*selection.dated(e.c.business_date)).distinct()
    return list(ledger.database.read(lambda c: c.execute(found.order_by(e.c.business_date)).scalars().all()))


def of_day(selection: Selection, day: date) -> Selection:
    """Return the part of a selection that one business date has."""
    return replace(selection, business_date=day, until=None, limit=_ALL)


def events(ledger: Ledger, start: date, end: date) -> Iterator[Sequence[Any]]:
    """Yield the events of a range of days (UTC), oldest first, as :data:`EVENT_COLUMNS` has them."""
    v = ledger.database.tables.event
    first = datetime.combine(start, time(), UTC)
    after = datetime.combine(end + timedelta(days=1), time(), UTC)
    if ledger.database.dialect != "postgresql":  # there instants are UTC without saying so
        first, after = first.replace(tzinfo=None), after.replace(tzinfo=None)
    last = 0
    while True:
        wanted = (
            sa.select(v).where(v.c.at >= first, v.c.at < after, v.c.id > last).order_by(v.c.id).limit(_PAGE)
        )
        rows = ledger.database.read(lambda c, wanted=wanted: c.execute(wanted).all())  # type: ignore[misc]
        if not rows:
            return
        for row in rows:
            at = aware(row.at)
            yield [at.isoformat() if name == "at" and at else getattr(row, name) for name in EVENT_COLUMNS]
        last = rows[-1].id
