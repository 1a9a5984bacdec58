"""Breaks as people look at them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.checks import BreakState
from airflow_guard.core.monitoring.breaks import BreakLife, BreakRow
from airflow_guard.core.monitoring.keys import AuditEntry
from airflow_guard.store.break_rows import found_of
from airflow_guard.store.dialects import age_s
from airflow_guard.store.monitoring.checks import checks_by_id
from airflow_guard.store.monitoring.scope import dated, equal
from airflow_guard.store.monitoring.tries import of_task
from airflow_guard.store.situations import constant
from airflow_guard.store.task_runs import aware, known

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_guard.core.monitoring.filters import BreakFilters
    from airflow_guard.core.monitoring.pages import Page
    from airflow_guard.store.monitoring.scope import Scope

UNSETTLED = frozenset({BreakState.OPEN, BreakState.EXPLAINED})


def breaks(scope: Scope, filters: BreakFilters, limit: int, offset: int) -> Page[BreakRow]:
    """Return the breaks of a scope: oldest first; with settled ones, of which there are many, newest date first."""
    b, scope = scope.tables.breaks, scope.of(filters.dag_id)
    states = filters.states or UNSETTLED
    start, end = filters.start, filters.end
    if BreakState.RESOLVED in states:
        start, end = scope.dates(start, end, b.c.business_date, scope.dag_of_break(b))
    where = [
        b.c.state.in_([constant(state) for state in sorted(states)]),
        *dated(b.c.business_date, start, end),
    ]
    where += scope.visible(scope.dag_of_break(b))
    where += _narrowed(scope, filters)
    found, newest = _selected(scope).where(*where), [b.c.business_date.desc()]
    settled = BreakState.RESOLVED in states
    rest: list[Any] = [b.c.id.desc()] if settled else [b.c.first_seen_at, b.c.id]
    rows, page = scope.page(found, newest if settled else [], rest, limit, offset)
    return replace(page, rows=[_row(row) for row in rows], start=start, end=end)


def one_break(scope: Scope, break_id: int) -> BreakLife | None:
    """Return the life of a break, ``None`` if it is not in the scope."""
    t = scope.tables
    found = _selected(scope).where(t.breaks.c.id == break_id, *scope.where(scope.dag_of_break(t.breaks)))
    stored = scope.connection.execute(found).first()
    if stored is None:
        return None
    row, v = _row(stored), t.event
    about = sa.select(v).where(v.c.key_date == row.business_date, v.c.key_hash == stored.break_hash)
    events = [
        AuditEntry(
            aware(each.at), each.kind, each.actor, each.reason, each.from_state, each.to_state, each.attempt,
            each.key_text, None,
        )
        for each in scope.rows(about.order_by(v.c.id))
    ]  # fmt: skip
    checks = checks_by_id(scope, (row.opened_by_id, row.seen_by_id, row.closed_by_id))
    return BreakLife(
        row,
        events,
        checks.get(row.opened_by_id),
        checks.get(row.seen_by_id),
        checks.get(row.closed_by_id or 0),
    )


def breaks_by_id(scope: Scope, ids: Sequence[int]) -> list[BreakRow]:
    """Return the breaks of these ids that are in the scope, in the order of their ids."""
    b = scope.tables.breaks
    found = _selected(scope).where(b.c.id.in_(sorted(set(ids))), *scope.where(scope.dag_of_break(b)))
    return [_row(row) for row in scope.rows(found.order_by(b.c.id))]


def _selected(scope: Scope) -> sa.Select[Any]:
    b = scope.tables.breaks
    return sa.select(b, age_s(b.c.first_seen_at).label("age"), scope.dag_of_break(b).label("dag_id"))


def _narrowed(scope: Scope, filters: BreakFilters) -> list[sa.ColumnElement[bool]]:
    b, r = scope.tables.breaks, scope.tables.reconciliation
    where = equal(
        (b.c.key_namespace, filters.key_namespace),
        (b.c.operation, filters.operation),
        (b.c.cycle, filters.cycle),
        (b.c.deployment, filters.deployment),
        (b.c.break_type, filters.break_type),
        (b.c.document, filters.document),
    )
    if filters.group is not None:
        where.append(b.c.group_values == json.dumps(dict(filters.group)))
    if filters.min_age_s is not None:
        where.append(age_s(b.c.first_seen_at) >= filters.min_age_s)
    if filters.run_id is not None or filters.task_id is not None:
        task = sa.select(r.c.id, r.c.business_date).where(*of_task(r, filters), *scope.where(r.c.dag_id))
        seen = scope.rows(task)
        where += [
            b.c.seen_by_id.in_([row.id for row in seen]),
            b.c.business_date.in_(sorted({row.business_date for row in seen})),
        ]
    return where


def _row(row: Any) -> BreakRow:
    return BreakRow(
        id=row.id, dag_id=row.dag_id, deployment=row.deployment, key_namespace=row.key_namespace,
        operation=row.operation, business_date=row.business_date, cycle=row.cycle, found=found_of(row),
        state=BreakState(row.state), opened_by_id=row.opened_by_id, seen_by_id=row.seen_by_id,
        closed_by_id=row.closed_by_id, first_seen_at=known(row.first_seen_at),
        last_seen_at=known(row.last_seen_at), closed_at=aware(row.closed_at), age_s=float(row.age),
        actor=row.actor, reason=row.reason,
    )  # fmt: skip
