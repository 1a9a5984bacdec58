"""Reads reconciliations and breaks: what they found, now and over time."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.checks import BreakState, CheckOutcome
from airflow_guard.reading.calendar import last_checks
from airflow_guard.reading.check_records import (
    CHANGED,
    BreakLife,
    BreakRow,
    CheckRow,
    GroupTotals,
    SideTotals,
    VariancePoint,
)
from airflow_guard.reading.key_records import AuditEntry
from airflow_guard.reading.scope import dated, equal
from airflow_guard.reading.tries import of_task
from airflow_guard.store.break_rows import found_of, stored_break
from airflow_guard.store.breaks import Breaks
from airflow_guard.store.dialects import age_s
from airflow_guard.store.situations import constant
from airflow_guard.store.task_runs import aware, known

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from datetime import date

    from airflow_guard.reading.lists import BreakFilters, CheckFilters, Page
    from airflow_guard.reading.scope import Scope
    from airflow_guard.store.break_rows import StoredBreak
    from airflow_guard.store.database import LedgerDatabase


# -- Reconciliations as people look at them, and what they found over time -----------------------------------


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


# -- Breaks as people look at them ---------------------------------------------------------------------------

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


# -- Breaks as a person looks for them -----------------------------------------------------------------------


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
