"""Task tries as people look at them, and how long guarded tasks took."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.expectations import expected_words
from airflow_guard.core.states import State
from airflow_guard.reading.key_records import TryRow
from airflow_guard.reading.scope import dated, equal
from airflow_guard.store.columns import COUNTS
from airflow_guard.store.dialects import utc_now
from airflow_guard.store.situations import constant
from airflow_guard.store.task_runs import aware, identity_of, known

if TYPE_CHECKING:
    from datetime import timedelta

    from airflow_guard.reading.lists import Page, TryFilters
    from airflow_guard.reading.scope import Scope
    from airflow_guard.store.ledger import Ledger
    from airflow_guard.store.tables import Tables


# -- Task tries as people look at them -----------------------------------------------------------------------


def tries(scope: Scope, filters: TryFilters, limit: int, offset: int) -> Page[TryRow]:
    """Return the tries of a scope, newest business date first, then the newest try."""
    run, scope = scope.tables.task_run, scope.of(filters.dag_id)
    start, end = filters.start, filters.end
    if filters.run_id is None:
        start, end = scope.dates(start, end, run.c.business_date, run.c.dag_id)
    where = [*dated(run.c.business_date, start, end), *scope.where(run.c.dag_id), *of_task(run, filters)]
    where += equal(
        (run.c.key_namespace, filters.key_namespace),
        (run.c.operation, filters.operation),
        (run.c.cycle, filters.cycle),
        (run.c.deployment, filters.deployment),
    )
    if filters.duplicates:
        where.append(sa.or_(run.c.replayed > 0, run.c.blocked > 0))
    found = try_rows(scope).where(*where)
    rows, page = scope.page(found, [run.c.business_date.desc()], [run.c.id.desc()], limit, offset)
    return replace(page, rows=[try_row(row) for row in rows], start=start, end=end)


def try_rows(scope: Scope) -> sa.Select[Any]:
    """Return the read of tries with what the database's clock says of their leases; without a condition."""
    run, lease = scope.tables.task_run, scope.tables.lease
    live = sa.exists().where(lease.c.task_run_id == run.c.id, lease.c.expires_at > utc_now())
    known = [count_of(scope.tables, name).label(f"{name}_now") for name in FROM_KEYS]
    return sa.select(run, sa.case((live, 1), else_=0).label("alive"), *known)


FROM_KEYS = {
    "executed": (State.COMPLETED,),
    "rejected": (State.REJECTED,),
    "failed": (State.FAILED, State.DROPPED),
    "in_doubt": (State.IN_DOUBT,),
}
"""Counts of a try that its keys tell while it runs, and after it was killed."""


def count_of(tables: Tables, name: str) -> sa.ColumnElement[int]:
    """Return a count of a try: as it was written at its end, or as its keys tell it if it has not ended."""
    run, e = tables.task_run, tables.execution
    states = [constant(state) for state in FROM_KEYS[name]]
    keys = (
        sa.select(sa.func.count())
        .where(e.c.task_run_id == run.c.id, e.c.state.in_(states))
        .correlate(run)
        .scalar_subquery()
    )
    return sa.case((run.c.ended_at.is_(None), keys), else_=run.c[name])


def listed_nothing(run: sa.Table) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of tries, grouped by operation and date, that ended well and listed nothing in all."""
    well = sa.func.sum(sa.case((run.c.outcome == "success", 1), else_=0))
    wanted = sa.func.min(sa.func.coalesce(run.c.expected_least, 1))
    return [sa.func.sum(run.c.documents) == 0, well > 0, wanted > 0]


def of_task(table: sa.Table, filters: Any) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of a run, task, map index and try."""
    return equal(
        (table.c.run_id, filters.run_id),
        (table.c.task_id, filters.task_id),
        (table.c.map_index, filters.map_index),
        (table.c.try_number, filters.try_number),
    )


def try_row(row: Any) -> TryRow:
    """Return a row of :func:`try_rows`."""
    return TryRow(
        id=row.id, identity=identity_of(row), deployment=row.deployment, key_namespace=row.key_namespace,
        operation=row.operation, business_date=row.business_date, cycle=row.cycle, mode=row.mode,
        started_at=known(row.started_at), ended_at=aware(row.ended_at), outcome=row.outcome, alive=bool(row.alive),
        error=row.error, expected=expected_words(row.expected_least, row.expected_most, row.expected_total),
        listed_total=row.listed_total,
        **{name: getattr(row, f"{name}_now" if name in FROM_KEYS else name) for name in COUNTS},
    )  # fmt: skip


# -- How long guarded tasks took -----------------------------------------------------------------------------

_NEWEST = 20_000


def longest(ledger: Ledger) -> dict[tuple[str, str], timedelta]:
    """Return how long each task took at most among the newest tries that have ended, by DAG and task."""
    run = ledger.database.tables.task_run
    newest = (
        sa.select(run.c.dag_id, run.c.task_id, run.c.started_at, run.c.ended_at)
        .where(run.c.ended_at.is_not(None))
        .order_by(run.c.id.desc())
        .limit(_NEWEST)
    )
    found: dict[tuple[str, str], timedelta] = {}
    for row in ledger.database.read(lambda connection: connection.execute(newest).all()):
        started, ended = aware(row.started_at), aware(row.ended_at)
        if started is None or ended is None:
            continue
        key = (row.dag_id, row.task_id)
        found[key] = max(found.get(key, ended - started), ended - started)
    return found
