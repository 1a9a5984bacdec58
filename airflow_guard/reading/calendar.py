"""The calendar: what tries, keys, breaks and checks say about every DAG and date of a range."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.checks import BreakState, CheckOutcome
from airflow_guard.core.decisions import Situation
from airflow_guard.reading.calendar_records import Calendar, DayCell
from airflow_guard.reading.check_records import CHANGED
from airflow_guard.reading.figures import held_keys, not_begun
from airflow_guard.reading.scope import dated, equal
from airflow_guard.reading.spaces import spaces
from airflow_guard.reading.tries import count_of, listed_nothing
from airflow_guard.store.dialects import age_s, utc_now
from airflow_guard.store.situations import constant, situations
from airflow_guard.store.task_runs import aware

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import date, datetime

    from airflow_guard.reading.scope import Scope

ATTENTION = ("in_doubt", "rejected", "failed", "follow_up")
_COUNTED_AS = {
    Situation.IN_DOUBT: "in_doubt", Situation.REJECTED: "rejected", Situation.FAILED: "failed",
    Situation.ABANDONED: "failed", Situation.FOLLOW_UP_OPEN: "follow_up",
    Situation.FOLLOW_UP_RUNNING: "in_progress", Situation.RUNNING: "in_progress",
}  # fmt: skip
_WORST = (CheckOutcome.BROKEN, CheckOutcome.FAILED, CheckOutcome.EMPTY, CheckOutcome.PASSED)

Cells = dict[tuple[str, "date"], DayCell]


def calendar(scope: Scope, start: date, end: date, deployment: str | None = None) -> Calendar:
    """Return where every DAG of a scope stands about the dates of a range."""
    cells: Cells = {}
    executed_at = _add_tries(scope, cells, start, end, deployment)
    for which in (_wanting_attention, _held):
        for row in scope.rows(which(scope, start, end, deployment)):
            name = _COUNTED_AS[Situation(row.situation)]
            cell = _cell(cells, row.dag_id, row.business_date)
            cells[row.dag_id, row.business_date] = replace(cell, **{name: getattr(cell, name) + row.keys})
    for (dag_id, at, _), found in not_begun(scope, start, end).items():
        cell = _cell(cells, dag_id, at)
        cells[dag_id, at] = replace(cell, documents=cell.documents + found, not_begun=cell.not_begun + found)
    for row in scope.rows(_empty(scope, start, end, deployment)):
        cell = _cell(cells, row.dag_id, row.business_date)
        cells[row.dag_id, row.business_date] = replace(cell, empty=cell.empty + 1)
    _add_breaks(scope, cells, start, end, deployment)
    _add_checks(scope, cells, executed_at, start, end, deployment)
    _add_adopted(scope, cells, start, end, deployment)
    purged = _purged(scope, start)
    return Calendar(start, end, sorted({dag_id for dag_id, _ in cells} | purged.keys()), cells, purged)


def _purged(scope: Scope, start: date) -> dict[str, date]:
    """Return up to which date the keys of each DAG were purged, where that reaches into the range."""
    h = scope.tables.horizon
    until = sa.func.max(h.c.business_date)
    found = (
        sa.select(h.c.key_namespace, until.label("until"))
        .where(h.c.business_date >= start, *scope.where(h.c.key_namespace))
        .group_by(h.c.key_namespace)
    )
    return {row.key_namespace: row.until for row in scope.rows(found)}


def _cell(cells: Cells, dag_id: str, business_date: date) -> DayCell:
    return cells.get((dag_id, business_date)) or DayCell(dag_id=dag_id, business_date=business_date)


# -- tries ----------------------------------------------------------------------------------------------------


def _add_tries(
    scope: Scope, cells: Cells, start: date, end: date, deployment: str | None
) -> dict[tuple[str, date], datetime]:
    """Add what the tries say; return when the last one ended that executed something."""
    executed_at: dict[tuple[str, date], datetime] = {}
    for row in scope.rows(_tries(scope, start, end, deployment)):
        where = (row.dag_id, row.business_date)
        cells[where] = DayCell(
            dag_id=row.dag_id, business_date=row.business_date, documents=int(row.documents),
            executed=int(row.executed), replayed=int(row.replayed), blocked=int(row.blocked),
            own_replays=int(row.own_replays),
            running=int(row.running), died=int(row.died), unsuccessful=int(row.unsuccessful),
            last_at=aware(row.last_at),
        )  # fmt: skip
        at = aware(row.executed_at)
        if at is not None:
            executed_at[where] = at
    return executed_at


def _tries(scope: Scope, start: date, end: date, deployment: str | None) -> sa.Select[Any]:
    """Return the sums of each DAG and date. A key counts for the try that claimed it first; the last try says how it is."""
    t = scope.tables
    run, lease = t.task_run, t.lease
    ended = sa.func.coalesce(run.c.ended_at, run.c.started_at)
    task = (
        run.c.business_date, run.c.dag_id, run.c.task_id, run.c.map_index, run.c.key_namespace, run.c.operation,
        run.c.cycle,
    )  # fmt: skip
    each = (
        sa.select(
            run.c.business_date,
            run.c.dag_id,
            sa.func.sum(run.c.first_claims).label("documents"),
            sa.func.sum(count_of(t, "executed")).label("executed"),
            *(sa.func.sum(run.c[name]).label(name) for name in ("replayed", "blocked", "own_replays")),
            sa.func.max(run.c.id).label("last_id"),
            sa.func.max(ended).label("last_at"),
            sa.func.max(sa.case((run.c.executed > 0, ended))).label("executed_at"),
        )
        .where(*dated(run.c.business_date, start, end), *scope.where(run.c.dag_id))
        .where(*equal((run.c.deployment, deployment)))
        .group_by(*task)
        .subquery("each_task")
    )
    last = run.alias("last")
    alive = lease.c.expires_at > utc_now()
    open_ = last.c.ended_at.is_(None)
    flags = {
        "running": sa.and_(open_, alive),
        "died": sa.and_(open_, sa.case((alive, 1), else_=0) == 0),
        "unsuccessful": last.c.outcome == "failed",
    }
    return (
        sa.select(
            each.c.business_date,
            each.c.dag_id,
            *(
                sa.func.sum(each.c[name]).label(name)
                for name in ("documents", "executed", "replayed", "blocked", "own_replays")
            ),
            *(sa.func.sum(sa.case((flag, 1), else_=0)).label(name) for name, flag in flags.items()),
            sa.func.max(each.c.last_at).label("last_at"),
            sa.func.max(each.c.executed_at).label("executed_at"),
        )
        .select_from(
            each.join(last, last.c.id == each.c.last_id).outerjoin(lease, lease.c.task_run_id == last.c.id)
        )
        .group_by(each.c.business_date, each.c.dag_id)
    )


def _empty(scope: Scope, start: date, end: date, deployment: str | None) -> sa.Select[Any]:
    """Return the operations and dates that ended well without a document, where that is not said to be normal."""
    run = scope.tables.task_run
    return (
        sa.select(run.c.dag_id, run.c.business_date, run.c.key_namespace, run.c.operation, run.c.cycle)
        .where(
            *dated(run.c.business_date, start, end),
            *scope.where(run.c.dag_id),
            *equal((run.c.deployment, deployment)),
        )
        .group_by(run.c.dag_id, run.c.business_date, run.c.key_namespace, run.c.operation, run.c.cycle)
        .having(*listed_nothing(run))
    )


# -- keys -----------------------------------------------------------------------------------------------------


def _counted(
    scope: Scope, found: sa.FromClause, deployment: str | None, *where: sa.ColumnElement[bool]
) -> sa.Select[Any]:
    """Return the keys of each DAG, date and situation, for executions joined with leases and ``own_run``."""
    t = scope.tables
    e, stands = t.execution, situations(t)
    dag_id = sa.func.coalesce(t.task_run.c.dag_id, e.c.key_namespace)
    which = sa.case(*((condition, situation.value) for situation, condition in stands.items()))
    each = (
        sa.select(dag_id.label("dag_id"), e.c.business_date, which.label("situation"))
        .select_from(found)
        .where(*where, *scope.where(dag_id), *equal((e.c.deployment, deployment)))
        .subquery("each_key")
    )
    columns = (each.c.dag_id, each.c.business_date, each.c.situation)
    return sa.select(*columns, sa.func.count().label("keys")).group_by(*columns)


def _wanting_attention(scope: Scope, start: date, end: date, deployment: str | None) -> sa.Select[Any]:
    t = scope.tables
    e, run, lease = t.execution, t.task_run, t.lease
    found = e.outerjoin(run, run.c.id == e.c.task_run_id).outerjoin(
        lease, lease.c.task_run_id == e.c.task_run_id
    )
    wanted = e.c.attention.in_([constant(word) for word in ATTENTION])
    return _counted(scope, found, deployment, wanted, *dated(e.c.business_date, start, end))


def _held(scope: Scope, start: date, end: date, deployment: str | None) -> sa.Select[Any]:
    t = scope.tables
    e, run, lease, held = t.execution, t.task_run, t.lease, held_keys(scope, start, end)
    same = sa.and_(e.c.key_date == held.c.key_date, e.c.key_hash == held.c.key_hash)
    found = (
        held.join(e, same)
        .outerjoin(run, run.c.id == e.c.task_run_id)
        .outerjoin(lease, lease.c.task_run_id == e.c.task_run_id)
    )
    return _counted(scope, found, deployment)


def _add_adopted(scope: Scope, cells: Cells, start: date, end: date, deployment: str | None) -> None:
    """Add the dates that people have recorded as done, and that no task has met."""
    t = scope.tables
    e, run = t.execution, t.task_run
    tried = sa.select(run.c.business_date, run.c.key_namespace, run.c.operation).distinct()
    known = {tuple(row) for row in scope.rows(tried.where(*dated(run.c.business_date, start, end)))}
    now = scope.now
    known |= {(row[0], *now[row[1], row[2]]) for row in known if (row[1], row[2]) in now}
    for space in spaces(scope, start, end):
        if tuple(space) in known or not scope.allows(space.key_namespace):
            continue
        count = sa.select(sa.func.count()).where(
            e.c.business_date == space.business_date, e.c.key_namespace == space.key_namespace,
            e.c.operation == space.operation, e.c.task_run_id.is_(None), *equal((e.c.deployment, deployment)),
        )  # fmt: skip
        adopted = int(scope.connection.execute(count).scalar_one())
        if adopted:
            where = (space.key_namespace, space.business_date)
            cell = _cell(cells, *where)
            cells[where] = replace(cell, adopted=cell.adopted + adopted, documents=cell.documents + adopted)


# -- breaks and checks ----------------------------------------------------------------------------------------


def _add_breaks(scope: Scope, cells: Cells, start: date, end: date, deployment: str | None) -> None:
    t = scope.tables
    b, check = t.breaks, t.reconciliation
    dag_id = sa.func.coalesce(check.c.dag_id, b.c.key_namespace)
    states = [constant(BreakState.OPEN), constant(BreakState.EXPLAINED)]
    each = (
        sa.select(dag_id.label("dag_id"), b.c.business_date, b.c.state, b.c.first_seen_at)
        .select_from(b.outerjoin(check, check.c.id == b.c.seen_by_id))
        .where(b.c.state.in_(states), *dated(b.c.business_date, start, end))
        .where(*scope.where(dag_id), *equal((b.c.deployment, deployment)))
        .subquery("each_break")
    )
    columns = (each.c.dag_id, each.c.business_date, each.c.state)
    age = age_s(sa.func.min(each.c.first_seen_at))
    for row in scope.rows(
        sa.select(*columns, sa.func.count().label("found"), age.label("age")).group_by(*columns)
    ):
        where = (row.dag_id, row.business_date)
        cell = _cell(cells, *where)
        if row.state == BreakState.OPEN:
            cells[where] = replace(cell, breaks_open=row.found, oldest_break_age_s=float(row.age))
        else:
            cells[where] = replace(cell, breaks_explained=row.found)


def last_checks(
    scope: Scope, start: date | None, end: date | None, deployment: str | None, *columns: Any
) -> Sequence[Any]:
    """Return columns of the last check that has ended of each pair of sides and date."""
    r = scope.tables.reconciliation
    sides = (r.c.business_date, r.c.key_namespace, r.c.operation, r.c.cycle, r.c.deployment)
    newest = (
        sa.select(sa.func.max(r.c.id).label("id"))
        .where(*dated(r.c.business_date, start, end), r.c.outcome.is_not(None), *scope.where(r.c.dag_id))
        .where(*equal((r.c.deployment, deployment)))
        .group_by(*sides)
        .subquery("newest")
    )
    return scope.rows(
        sa.select(*columns)
        .select_from(r.join(newest, newest.c.id == r.c.id))
        .order_by(r.c.business_date, r.c.id)
    )


def _add_checks(
    scope: Scope, cells: Cells, executed_at: dict[tuple[str, date], datetime], start: date, end: date,
    deployment: str | None,
) -> None:  # fmt: skip
    r = scope.tables.reconciliation
    stale = sa.case((r.c.reason.like(f"{CHANGED}%"), 1), else_=0).label("stale")
    read_at = sa.func.coalesce(r.c.target_read_at, r.c.ended_at).label("read_at")
    columns = (r.c.dag_id, r.c.business_date, r.c.outcome, stale, read_at)
    by_cell: dict[tuple[str, date], list[Any]] = {}
    for row in last_checks(scope, start, end, deployment, *columns):
        by_cell.setdefault((row.dag_id, row.business_date), []).append(row)
    for where, checks in by_cell.items():
        outcomes = {CheckOutcome(row.outcome) for row in checks}
        read = list(_instants(checks))
        later = where in executed_at and bool(read) and executed_at[where] > min(read)
        cells[where] = replace(
            _cell(cells, *where),
            check=next(each for each in _WORST if each in outcomes),
            stale=later or any(row.stale for row in checks),
        )


def _instants(checks: Sequence[Any]) -> Iterator[datetime]:
    for row in checks:
        at = aware(row.read_at)
        if at is not None:
            yield at
