"""Reconciliations as people look at them, and what they found over time."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.checks import CheckOutcome
from airflow_guard.core.monitoring.checks import CHANGED, CheckRow, GroupTotals, SideTotals
from airflow_guard.core.monitoring.series import VariancePoint
from airflow_guard.store.monitoring.calendar import last_checks
from airflow_guard.store.monitoring.scope import dated, equal
from airflow_guard.store.monitoring.tries import of_task
from airflow_guard.store.task_runs import aware, known

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import date

    from airflow_guard.core.monitoring.filters import CheckFilters
    from airflow_guard.core.monitoring.pages import Page
    from airflow_guard.store.monitoring.scope import Scope


def checks(scope: Scope, filters: CheckFilters, limit: int, offset: int) -> Page[CheckRow]:
    """Return the reconciliations of a scope, newest business date first, then the newest check."""
    r, scope = scope.tables.reconciliation, scope.of(filters.dag_id)
    start, end = filters.start, filters.end
    if filters.run_id is None:
        start, end = scope.dates(start, end, r.c.business_date, r.c.dag_id)
    where = [*dated(r.c.business_date, start, end), *scope.where(r.c.dag_id), *of_task(r, filters)]
    where += equal(
        (r.c.key_namespace, filters.key_namespace),
        (r.c.operation, filters.operation),
        (r.c.cycle, filters.cycle),
        (r.c.deployment, filters.deployment),
    )
    if filters.outcomes:
        where.append(r.c.outcome.in_(sorted(filters.outcomes)))
    if filters.stale:
        where.append(r.c.reason.like(f"{CHANGED}%"))
    found = sa.select(r).where(*where)
    rows, page = scope.page(found, [r.c.business_date.desc()], [r.c.id.desc()], limit, offset)
    return replace(page, rows=[check_row(row) for row in rows], start=start, end=end)


def checks_by_id(scope: Scope, ids: Iterable[int | None]) -> dict[int, CheckRow]:
    """Return the reconciliations of a scope that have these ids."""
    r, wanted = scope.tables.reconciliation, sorted({each for each in ids if each is not None})
    if not wanted:
        return {}
    found = sa.select(r).where(r.c.id.in_(wanted), *scope.where(r.c.dag_id))
    return {row.id: check_row(row) for row in scope.rows(found)}


def variances(scope: Scope, start: date, end: date) -> list[VariancePoint]:
    """Return what the last reconciliation of each date found, for each group and amount column."""
    r = scope.tables.reconciliation
    names = (
        r.c.business_date, r.c.dag_id, r.c.key_namespace, r.c.operation, r.c.cycle, r.c.outcome, r.c.totals,
    )  # fmt: skip
    points: list[VariancePoint] = []
    for row in last_checks(scope, start, end, None, *names):
        for group in _totals(row.totals):
            source = group.source.amounts if group.source else {}
            target = group.target.amounts if group.target else {}
            points += [
                VariancePoint(
                    row.business_date, row.dag_id, row.key_namespace, row.operation, row.cycle, group.group, name,
                    source.get(name), target.get(name), difference, CheckOutcome(row.outcome),
                )
                for name, difference in group.variances().items()
            ]  # fmt: skip
    return points


def check_row(row: Any) -> CheckRow:
    """Return a row of ``guard_reconciliation``."""
    return CheckRow(
        id=row.id, dag_id=row.dag_id, task_id=row.task_id, run_id=row.run_id, map_index=row.map_index,
        try_number=row.try_number, run_type=row.run_type, deployment=row.deployment,
        key_namespace=row.key_namespace, operation=row.operation, business_date=row.business_date,
        cycle=row.cycle, run_date=row.run_date, outcome=CheckOutcome(row.outcome) if row.outcome else None,
        reason=row.reason, with_keys=None if row.with_keys is None else bool(row.with_keys),
        source_count=row.source_count, target_count=row.target_count, totals=_totals(row.totals),
        source_read_at=aware(row.source_read_at), target_read_at=aware(row.target_read_at),
        break_count=row.break_count, capped=bool(row.capped), pokes=row.poke_count,
        difference_persisted=row.same_pokes, settled=bool(row.settled), errors=row.error_count,
        last_error=row.last_error, started_at=known(row.started_at), ended_at=aware(row.ended_at),
    )  # fmt: skip


def _totals(text: str | None) -> list[GroupTotals]:
    return [
        GroupTotals(
            dict(each.get("group") or {}), _side(each.get("source")), _side(each.get("target")),
            tuple(each.get("reasons") or ()),
        )
        for each in json.loads(text or "[]")
    ]  # fmt: skip


def _side(given: Mapping[str, Any] | None) -> SideTotals | None:
    if given is None:
        return None
    amounts = {name: None if text is None else Decimal(text) for name, text in given["amounts"].items()}
    return SideTotals(given["records"], amounts, dict(given["missing"]))
