"""Breaks as a person looks for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.checks import BreakState
from airflow_guard.store.break_rows import stored_break
from airflow_guard.store.breaks import Breaks

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import date

    from airflow_guard.store.break_rows import StoredBreak
    from airflow_guard.store.database import LedgerDatabase

UNSETTLED = frozenset({BreakState.OPEN, BreakState.EXPLAINED})


@dataclass(frozen=True, slots=True)
class BreakSelection:
    """Which breaks; every part narrows it.

    :param dag: a DAG, or its namespace.
    :param types: empty: all.
    :param ids: empty: all.
    """

    dag: str | None = None
    business_date: date | None = None
    operation: str | None = None
    states: Collection[BreakState] = UNSETTLED
    types: Collection[str] = ()
    ids: Collection[int] = ()
    limit: int = 50


@dataclass(frozen=True, slots=True)
class FoundBreaks:
    """Breaks that a selection gives, the oldest first, and how many there are beyond its limit."""

    breaks: list[StoredBreak]
    more: int


def find_breaks(database: LedgerDatabase, selection: BreakSelection) -> FoundBreaks:
    """Return the breaks that a selection gives.

    :raises LedgerError: the ledger does not answer.
    """
    b, r = database.tables.breaks, database.tables.reconciliation
    wanted: list[sa.ColumnElement[bool]] = [b.c.state.in_([state.value for state in selection.states])]
    if selection.dag is not None:
        wanted.append(sa.or_(b.c.key_namespace == selection.dag, r.c.dag_id == selection.dag))
    given = ((b.c.business_date, selection.business_date), (b.c.operation, selection.operation))
    wanted += [column == value for column, value in given if value is not None]
    chosen = ((b.c.break_type, selection.types), (b.c.id, selection.ids))
    wanted += [column.in_(sorted(values)) for column, values in chosen if values]
    found = Breaks(database).select.where(*wanted)

    def read(connection: sa.Connection) -> tuple[list[Any], int]:
        rows = connection.execute(found.order_by(b.c.first_seen_at, b.c.id).limit(selection.limit)).all()
        if len(rows) < selection.limit:
            return list(rows), len(rows)
        counted = sa.select(sa.func.count()).select_from(found.subquery())
        return list(rows), int(connection.execute(counted).scalar_one())

    rows, count = database.read(read)
    return FoundBreaks([stored_break(row) for row in rows], count - len(rows))
