"""Range partitions of ``guard_execution`` by ``key_date``, on PostgreSQL: made, added ahead, and dropped.

One partition for each month, one for keys without a date (``once_per="document"``), one for what the ledger held before
(``…_history``), and a default one, so that no claim ever fails for want of a partition. Tasks never run DDL: all of this
is for the account that owns the tables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING

import sqlalchemy as sa

from airflow_guard.core.errors import ConfigurationError
from airflow_guard.core.keys import DATELESS
from airflow_guard.store import dialects

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_guard.store.database import LedgerDatabase

DEFAULT_SUFFIX, DATELESS_SUFFIX, HISTORY_SUFFIX = "default", "dateless", "history"
AHEAD = 3
"""How many months after the current one have a partition, unless somebody says otherwise."""
_RANGE = re.compile(r"FOR VALUES FROM \('(?P<first>[\d-]+)'\) TO \('(?P<after>[\d-]+)'\)")
_AFTER_DATELESS = DATELESS + timedelta(days=1)
# Neither indexes nor what only a whole table has: those come from the parent.
_LIKE = "INCLUDING DEFAULTS INCLUDING GENERATED INCLUDING CONSTRAINTS INCLUDING STORAGE"


@dataclass(frozen=True)
class Partition:
    """One partition.

    :param first: its first date; ``None`` for the default one.
    :param after: the first date after it.
    """

    name: str
    first: date | None
    after: date | None

    @property
    def dated(self) -> bool:
        """Whether its keys have dates."""
        return self.first is not None and self.first > DATELESS

    def holds(self, day: date) -> bool:
        """Whether keys of a date are in it."""
        return self.first is not None and self.after is not None and self.first <= day < self.after


@dataclass(frozen=True)
class Split:
    """What :func:`split` has made of a ledger.

    :param history: the partition with what the ledger held before; ``None``: it held nothing with a date.
    :param moved: keys without a date that were moved to their own partition.
    :param added: the partitions of months.
    """

    history: Partition | None
    moved: int
    added: tuple[str, ...]


def is_partitioned(connection: sa.Connection, table: sa.Table) -> bool:
    """Whether the table is partitioned; never on other databases."""
    if connection.dialect.name != dialects.POSTGRES:
        return False
    kind = sa.text("SELECT relkind = 'p' FROM pg_class WHERE oid = to_regclass(:name)")
    return bool(connection.execute(kind, {"name": qualified(connection, table.name, table.schema)}).scalar())


def partitions_of(connection: sa.Connection, table: sa.Table) -> list[Partition]:
    """Return the partitions, oldest first, the default one last."""
    found = connection.execute(
        sa.text(
            "SELECT c.relname, pg_get_expr(c.relpartbound, c.oid) AS bound FROM pg_inherits i "
            "JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = to_regclass(:name)"
        ),
        {"name": qualified(connection, table.name, table.schema)},
    )
    listed = []
    for row in found:
        bound = _RANGE.match(row.bound)
        ends = [date.fromisoformat(bound[name]) if bound else None for name in ("first", "after")]
        listed.append(Partition(row.relname, *ends))
    return sorted(listed, key=lambda each: (each.first or date.max, each.name))


def today(connection: sa.Connection) -> date:
    """Return the date of the database's clock, in UTC."""
    now = sa.text("SELECT CAST(clock_timestamp() AT TIME ZONE 'UTC' AS date)")
    day: date = connection.execute(now).scalar_one()
    return day


def split(connection: sa.Connection, database: LedgerDatabase, *, ahead: int = AHEAD) -> Split | None:
    """Make a partitioned table of the ledger's, in the caller's transaction. Nothing is copied but keys without a date.

    The table is locked meanwhile: for the time that PostgreSQL needs to read it once.

    :param ahead: months after the current one that get a partition.
    :returns: ``None`` if it is partitioned already.
    :raises ConfigurationError: another database, or views that would go on reading only the old part.
    """
    table = database.tables.execution
    if database.dialect != dialects.POSTGRES:
        raise ConfigurationError(
            f"Only a ledger on PostgreSQL can be partitioned, and this one is on {database.dialect}."
        )
    if is_partitioned(connection, table):
        return None
    return _Splitting(connection, table).run(ahead)


def add_ahead(connection: sa.Connection, database: LedgerDatabase, *, ahead: int = AHEAD) -> tuple[str, ...]:
    """Add partitions for the current month and those after it that have none, in the caller's transaction.

    What the default partition holds of such a month moves with it. Only the default partition is locked.

    :returns: the names of the new partitions.
    """
    table = database.tables.execution
    made = []
    existing = partitions_of(connection, table)
    for first in _months(today(connection), ahead):
        if any(each.holds(first) for each in existing):
            continue
        made.append(_add_month(connection, table, first))
    return tuple(made)


def _add_month(connection: sa.Connection, table: sa.Table, first: date) -> str:
    """Attach a partition, which takes a lighter lock than ``CREATE TABLE … PARTITION OF``."""
    name, after = f"{table.name}_p{first:%Y%m}", next_month(first)
    parent, month, default = (
        qualified(connection, each, table.schema)
        for each in (table.name, name, f"{table.name}_{DEFAULT_SUFFIX}")
    )
    _run(connection, f"LOCK TABLE {default} IN ACCESS EXCLUSIVE MODE")
    _run(connection, f"CREATE TABLE {month} (LIKE {parent} {_LIKE}) {_storage(connection, default)}")
    _move(connection, table, default, month, f"key_date >= '{first}' AND key_date < '{after}'")
    _run(
        connection,
        f"ALTER TABLE {parent} ATTACH PARTITION {month} FOR VALUES FROM ('{first}') TO ('{after}')",
    )
    return name


class _Splitting:
    """The statements that make a partitioned table of a plain one."""

    def __init__(self, connection: sa.Connection, table: sa.Table) -> None:
        self._connection = connection
        self._table = table
        self._plain = qualified(connection, table.name, table.schema)
        self._history = qualified(connection, f"{table.name}_{HISTORY_SUFFIX}", table.schema)

    def run(self, ahead: int) -> Split:
        self._execute(f"LOCK TABLE {self._plain} IN ACCESS EXCLUSIVE MODE")
        self._refuse_views()
        last = self._last_date()
        indexes, grants = self._indexes(), self._grants()
        storage = _storage(self._connection, self._plain)
        self._execute(
            f"ALTER TABLE {self._plain} RENAME TO {self._quoted(f'{self._table.name}_{HISTORY_SUFFIX}')}"
        )
        for name, _ in indexes:
            renamed = self._quoted(f"{name[:55]}_history")
            self._execute(
                f"ALTER INDEX {qualified(self._connection, name, self._table.schema)} RENAME TO {renamed}"
            )
        self._execute(
            f"CREATE TABLE {self._plain} (LIKE {self._history} {_LIKE}) PARTITION BY RANGE (key_date)"
        )
        for statement in (*(made for _, made in indexes), *grants):
            self._execute(statement)
        self._part(DATELESS_SUFFIX, f"FOR VALUES FROM ('{DATELESS}') TO ('{_AFTER_DATELESS}')", storage)
        self._part(DEFAULT_SUFFIX, "DEFAULT", storage)
        moved = _move(self._connection, self._table, self._history, self._plain, f"key_date <= '{DATELESS}'")
        history = self._keep_history(last)
        added = [
            _add_month(self._connection, self._table, first)
            for first in _months(today(self._connection), ahead)
            if history is None or not history.holds(first)
        ]
        return Split(history, moved, tuple(added))

    def _last_date(self) -> date | None:
        key_date = self._table.c.key_date
        last = sa.select(sa.func.max(key_date)).where(key_date > DATELESS)
        day: date | None = self._connection.execute(last).scalar()
        return day

    def _keep_history(self, last: date | None) -> Partition | None:
        """Attach the old table up to the end of its last month; an empty one goes."""
        if last is None:
            self._execute(f"DROP TABLE {self._history}")
            return None
        after = next_month(max(last, today(self._connection)).replace(day=1))
        self._execute(
            f"ALTER TABLE {self._plain} ATTACH PARTITION {self._history} "
            f"FOR VALUES FROM ('{_AFTER_DATELESS}') TO ('{after}')"
        )
        return Partition(f"{self._table.name}_{HISTORY_SUFFIX}", _AFTER_DATELESS, after)

    def _part(self, name: str, bound: str, storage: str) -> None:
        part = qualified(self._connection, f"{self._table.name}_{name}", self._table.schema)
        self._execute(f"CREATE TABLE {part} PARTITION OF {self._plain} {bound} {storage}")

    def _refuse_views(self) -> None:
        views = self._connection.execute(
            sa.text(
                "SELECT DISTINCT CAST(r.ev_class AS regclass)::text FROM pg_depend d "
                "JOIN pg_rewrite r ON r.oid = d.objid WHERE d.classid = 'pg_rewrite'::regclass "
                "AND d.refobjid = to_regclass(:name) AND r.ev_class <> d.refobjid ORDER BY 1"
            ),
            {"name": self._plain},
        ).scalars()
        named = ", ".join(views)
        if named:
            raise ConfigurationError(
                f"These views read {self._plain}: {named}. They would go on reading only what it holds now. Drop them, "
                "run this again, and create them anew."
            )

    def _indexes(self) -> list[tuple[str, str]]:
        """Return the indexes, each with the statement that makes it; the primary key as a constraint."""
        found = self._connection.execute(
            sa.text(
                "SELECT c.relname, pg_get_indexdef(c.oid) AS made, k.conname FROM pg_index i "
                "JOIN pg_class c ON c.oid = i.indexrelid "
                "LEFT JOIN pg_constraint k ON k.conindid = c.oid AND k.contype = 'p' "
                "WHERE i.indrelid = to_regclass(:name) ORDER BY k.conname IS NULL, c.relname"
            ),
            {"name": self._plain},
        )
        key = "PRIMARY KEY (key_date, key_hash)"
        return [
            (
                row.relname,
                f"ALTER TABLE {self._plain} ADD CONSTRAINT {self._quoted(row.conname)} {key}"
                if row.conname
                else row.made,
            )
            for row in found
        ]

    def _grants(self) -> list[str]:
        """Return what gives the new table the rights and the owner of the old one."""
        found = self._connection.execute(
            sa.text(
                "SELECT a.privilege_type, a.is_grantable, pg_get_userbyid(a.grantee) AS who, a.grantee = 0 AS everybody "
                "FROM pg_class c, aclexplode(c.relacl) a "
                "WHERE c.oid = to_regclass(:name) AND a.grantee <> c.relowner ORDER BY 3, 1"
            ),
            {"name": self._plain},
        ).all()
        owner = self._connection.execute(
            sa.text("SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = to_regclass(:name)"),
            {"name": self._plain},
        ).scalar_one()
        return [
            f"ALTER TABLE {self._plain} OWNER TO {self._quoted(str(owner))}",
            *(
                f"GRANT {row.privilege_type} ON {self._plain} TO "
                f"{'PUBLIC' if row.everybody else self._quoted(row.who)}"
                f"{' WITH GRANT OPTION' if row.is_grantable else ''}"
                for row in found
            ),
        ]

    def _quoted(self, name: str) -> str:
        return str(self._connection.dialect.identifier_preparer.quote(name))

    def _execute(self, statement: str) -> None:
        _run(self._connection, statement)


def _run(connection: sa.Connection, statement: str) -> None:
    connection.execution_options(no_parameters=True).exec_driver_sql(statement)


def qualified(connection: sa.Connection, name: str, schema: str | None) -> str:
    """Return the quoted name of a table or index."""
    preparer = connection.dialect.identifier_preparer
    quoted = str(preparer.quote(name))
    return f"{preparer.quote_schema(schema)}.{quoted}" if schema else quoted


def _storage(connection: sa.Connection, table: str) -> str:
    """Return the storage parameters of a table (``fillfactor``) as a new one gets them."""
    found = sa.text("SELECT array_to_string(reloptions, ', ') FROM pg_class WHERE oid = to_regclass(:name)")
    options = connection.execute(found, {"name": table}).scalar()
    return f"WITH ({options})" if options else ""


def _move(connection: sa.Connection, table: sa.Table, source: str, target: str, where: str) -> int:
    """Move rows from one table to another and return how many; the new rows get the generated columns anew."""
    columns = ", ".join(written_columns(table))
    moved = connection.execution_options(no_parameters=True).exec_driver_sql(
        f"WITH moved AS (DELETE FROM {source} WHERE {where} RETURNING {columns}) "  # noqa: S608 - names of ours
        f"INSERT INTO {target} ({columns}) SELECT {columns} FROM moved"
    )
    return int(moved.rowcount)


def written_columns(table: sa.Table) -> Sequence[str]:
    """Return the columns that are not generated."""
    return [column.name for column in table.columns if column.computed is None]


def _months(day: date, ahead: int) -> Iterator[date]:
    """Yield the first days of the month of a date and of the months after it."""
    first = day.replace(day=1)
    for _ in range(ahead + 1):
        yield first
        first = next_month(first)


def next_month(first: date) -> date:
    """Return the first day of the month after."""
    return (first + timedelta(days=32)).replace(day=1)
