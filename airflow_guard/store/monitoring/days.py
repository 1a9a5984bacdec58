"""One DAG on one business date."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.monitoring.calendar import Day, OperationOfDay
from airflow_guard.core.monitoring.figures import Figures
from airflow_guard.core.monitoring.filters import BreakFilters, CheckFilters, TryFilters
from airflow_guard.core.monitoring.pages import DEFAULT_LIMIT
from airflow_guard.store.monitoring.breaks import breaks
from airflow_guard.store.monitoring.calendar import calendar
from airflow_guard.store.monitoring.checks import checks
from airflow_guard.store.monitoring.figures import not_begun, situation_counts, where_keys_stand
from airflow_guard.store.monitoring.tries import tries
from airflow_guard.store.task_runs import aware

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date, datetime

    from airflow_guard.store.monitoring.scope import Scope


def day(scope: Scope, dag_id: str, business_date: date) -> Day | None:
    """Return one DAG on one date, ``None`` if there is nothing of it in the scope."""
    if not scope.allows(dag_id):
        return None
    cell = calendar(scope.of(dag_id), business_date, business_date).cells.get((dag_id, business_date))
    if cell is None:
        return None
    of_day: dict[str, Any] = {"dag_id": dag_id, "start": business_date, "end": business_date}
    return Day(
        cell,
        operations(scope.of(dag_id), business_date),
        tries(scope, TryFilters(**of_day), DEFAULT_LIMIT, 0),
        tries(scope, TryFilters(**of_day, duplicates=True), DEFAULT_LIMIT, 0),
        checks(scope, CheckFilters(**of_day), DEFAULT_LIMIT, 0),
        breaks(scope, BreakFilters(**of_day), DEFAULT_LIMIT, 0),
    )


def operations(scope: Scope, business_date: date) -> Sequence[OperationOfDay]:
    """Return the operations of a scope on a date, with the figures of each."""
    t = scope.tables
    e, run, lease, which = t.execution, t.task_run, t.lease, where_keys_stand(t)
    dag_id = sa.func.coalesce(run.c.dag_id, e.c.key_namespace)
    each = (
        sa.select(e.c.key_namespace, e.c.operation, e.c.cycle, e.c.finished_at, which.label("situation"))
        .select_from(
            e.outerjoin(run, run.c.id == e.c.task_run_id).outerjoin(
                lease, lease.c.task_run_id == e.c.task_run_id
            )
        )
        .where(e.c.business_date == business_date, *scope.where(dag_id))
        .where(e.c.key_namespace.in_(scope.namespaces(business_date, business_date)))
        .subquery("each_key")
    )
    columns = (each.c.key_namespace, each.c.operation, each.c.cycle, each.c.situation)
    counted = sa.select(
        *columns, sa.func.count().label("keys"), sa.func.max(each.c.finished_at).label("last_at")
    )
    counts: dict[tuple[str, str, str], dict[str, int]] = {}
    last: dict[tuple[str, str, str], list[datetime]] = {}
    for row in scope.rows(counted.group_by(*columns)):
        name = (row.key_namespace, row.operation, row.cycle)
        counts.setdefault(name, {})[row.situation] = row.keys
        last.setdefault(name, []).extend(filter(None, [aware(row.last_at)]))
    waiting: dict[tuple[str, str, str], int] = {}
    for (_, _, name), found in not_begun(scope, business_date, business_date).items():
        waiting[name] = waiting.get(name, 0) + found
    return [
        OperationOfDay(
            *name,
            situation_counts(counts.get(name, {})),
            max(last.get(name, []), default=None),
            Figures.of(counts.get(name, {}), waiting.get(name, 0)),
        )
        for name in sorted({*counts, *waiting})
    ]
