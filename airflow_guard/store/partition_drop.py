"""A partition behind the horizon goes as a whole; what must stay of it is moved out first, in the same transaction."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.store.events import AuditEvent
from airflow_guard.store.partitions import (
    DEFAULT_SUFFIX,
    Partition,
    is_partitioned,
    partitions_of,
    qualified,
    written_columns,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import date

    from airflow_guard.store.aliases import Name
    from airflow_guard.store.ledger import Ledger

log = logging.getLogger(__name__)

MOST_MOVED = 100_000
"""A partition of which more stays is emptied row by row instead: moving them would keep the table locked for long."""


def droppable(connection: sa.Connection, table: sa.Table, until: date) -> list[Partition]:
    """Return the partitions whose dates are all at or before a date."""
    if not is_partitioned(connection, table):
        return []
    return [
        each
        for each in partitions_of(connection, table)
        if each.after and each.dated and each.after <= _next(until)
    ]


def _next(day: date) -> date:
    return day.fromordinal(day.toordinal() + 1)


@dataclass(frozen=True)
class PartitionDrop:
    """One partition that is to go.

    :param may_go: returns the conditions of rows that may go, of a table or an alias of it.
    """

    ledger: Ledger
    partition: Partition
    actor: str
    reason: str
    may_go: Callable[[sa.FromClause], tuple[sa.ColumnElement[bool], ...]]

    def run(self, connection: sa.Connection) -> Counter[Name]:
        """Move out what stays, drop the rest, and record it, in the caller's transaction.

        The ledger's table is locked for as long as the partition is read once. Claims of the dates have been refused
        since the horizon was committed; an operation without a horizon keeps its rows.

        :returns: how many keys of each operation are gone; empty if too many would have to be moved.
        """
        table = self.ledger.database.tables.execution
        parent, name = (
            qualified(connection, each, table.schema) for each in (table.name, self.partition.name)
        )
        self.ledger.database.limit_locks(connection)
        connection.exec_driver_sql(f"LOCK TABLE {parent} IN ACCESS EXCLUSIVE MODE")
        part = _as_table(table, self.partition.name)
        goes = sa.and_(*self.may_go(part), self._behind_horizon(part))
        stays = connection.execute(
            sa.select(sa.func.count()).select_from(part).where(sa.not_(goes))
        ).scalar_one()
        if stays > MOST_MOVED:
            log.warning(
                "%s of %s keys stay, more than %s: it is emptied row by row and not dropped.",
                f"{stays:,}",
                self.partition.name,
                f"{MOST_MOVED:,}",
            )
            return Counter()
        gone = self._counted(connection, part, goes)
        connection.exec_driver_sql(f"ALTER TABLE {parent} DETACH PARTITION {name}")
        columns = written_columns(table)
        kept = sa.select(*(part.c[column] for column in columns)).where(sa.not_(goes))
        connection.execute(sa.insert(table).from_select(columns, kept))
        self._forget_reruns(connection)
        connection.exec_driver_sql(f"DROP TABLE {name}")
        self._tell(connection, gone, stays)
        return gone

    def _behind_horizon(self, part: sa.FromClause) -> sa.ColumnElement[bool]:
        h = self.ledger.database.tables.horizon
        return sa.exists().where(
            h.c.key_namespace == part.c.key_namespace,
            h.c.operation == part.c.operation,
            h.c.business_date >= part.c.business_date,
        )

    @staticmethod
    def _counted(connection: sa.Connection, part: sa.FromClause, goes: Any) -> Counter[Name]:
        names = (part.c.key_namespace, part.c.operation)
        counts = sa.select(*names, sa.func.count()).where(goes).group_by(*names)
        return Counter({(row[0], row[1]): int(row[2]) for row in connection.execute(counts)})

    def _forget_reruns(self, connection: sa.Connection) -> None:
        """Remove authorisations of keys that are gone."""
        tables = self.ledger.database.tables
        r, e = tables.rerun, tables.execution
        left = sa.exists().where(e.c.key_date == r.c.key_date, e.c.key_hash == r.c.key_hash)
        dates = (r.c.key_date >= self.partition.first, r.c.key_date < self.partition.after)
        connection.execute(sa.delete(r).where(*dates, sa.not_(left)))

    def _tell(self, connection: sa.Connection, gone: Counter[Name], stays: int) -> None:
        table = self.ledger.database.tables.execution
        text = (
            f"partition {self.partition.name} ({self.partition.first} up to before {self.partition.after}): "
            f"{gone.total():,} keys are gone with it, {stays:,} that are not done were moved to {table.name}_{DEFAULT_SUFFIX}"
        )
        self.ledger.events.write(connection, AuditEvent("purged", text, self.actor, self.reason))


def _as_table(table: sa.Table, name: str) -> sa.Table:
    """Return the partition as a table of its own, in no metadata that anybody migrates."""
    columns = [sa.Column(column.name, column.type) for column in table.columns]
    return sa.Table(name, sa.MetaData(schema=table.schema), *columns)
