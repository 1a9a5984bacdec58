"""Task tries as people look at them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.expectations import expected_words
from airflow_guard.core.monitoring.tries import TryRow
from airflow_guard.store.dialects import utc_now
from airflow_guard.store.listed_table import COUNTS
from airflow_guard.store.monitoring.scope import dated, equal
from airflow_guard.store.task_runs import aware, identity_of, known

if TYPE_CHECKING:
    from airflow_guard.core.monitoring.filters import TryFilters
    from airflow_guard.core.monitoring.pages import Page
    from airflow_guard.store.monitoring.scope import Scope


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
    return sa.select(run, sa.case((live, 1), else_=0).label("alive"))


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
        listed_total=row.listed_total, **{name: getattr(row, name) for name in COUNTS},
    )  # fmt: skip
