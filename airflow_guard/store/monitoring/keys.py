"""Lists of keys as people look at them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.decisions import UNFINISHED, Situation
from airflow_guard.store.monitoring.calendar import ATTENTION
from airflow_guard.store.monitoring.held import held_keys
from airflow_guard.store.monitoring.scope import dated, equal
from airflow_guard.store.monitoring.tries import of_task
from airflow_guard.store.rows import key_row
from airflow_guard.store.situations import constant, situations

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import date

    from airflow_guard.core.monitoring.filters import KeyFilters
    from airflow_guard.core.monitoring.keys import KeyRow
    from airflow_guard.core.monitoring.pages import Page
    from airflow_guard.store.monitoring.scope import Scope

Key = tuple["date", str]
"""``key_date`` and ``key_hash``."""


def keys(scope: Scope, filters: KeyFilters, limit: int, offset: int) -> Page[KeyRow]:
    """Return the keys of a scope, newest business date first, then by namespace, operation, cycle and document."""
    scope = scope.of(filters.dag_id)
    start, end = filters.start, filters.end
    unfinished = bool(filters.situations) and filters.situations <= UNFINISHED
    of_tries = _of_tries(scope, filters)
    e = scope.tables.execution
    if not unfinished and of_tries is None:
        run = scope.tables.task_run
        start, end = scope.dates(start, end, run.c.business_date, run.c.dag_id)
        if start is None:
            start, end = scope.dates(None, None, e.c.business_date, e.c.key_namespace)
    alive = Situation.RUNNING in filters.situations
    found = _unfinished(scope, start, end, alive=alive) if unfinished else _of_dates(scope, start, end)
    found = found.where(*_narrowed(scope, filters, start, end))
    if of_tries is not None:
        found = found.where(of_tries)
    if filters.situations:
        stands = situations(scope.tables)
        found = found.where(sa.or_(*(stands[each] for each in sorted(filters.situations))))
    # As an index has it, so that a page is read without sorting all dates.
    newest = (e.c.business_date.desc(), e.c.key_namespace.desc(), e.c.operation.desc())
    order = ([], newest) if unfinished else (newest, ())
    rest = (e.c.cycle, e.c.document, e.c.key_date, e.c.key_hash)
    rows, page = scope.page(found, order[0], [*order[1], *rest], limit, offset)
    views = key_rows(scope, [(row.key_date, row.key_hash) for row in rows])
    return replace(page, rows=views, start=start, end=end)


def key_rows(scope: Scope, wanted: Sequence[Key]) -> list[KeyRow]:
    """Return keys in the order in which they are named; one that is gone meanwhile is left out."""
    hashes: dict[date, list[str]] = {}
    for key_date, key_hash in wanted:
        hashes.setdefault(key_date, []).append(key_hash)
    read = scope.ledger.statements.read
    rows = [row for day, some in hashes.items() for row in read.run(scope.connection, day, some)]
    views = {(view.key_date, view.key_hash): view for view in as_key_rows(scope, rows)}
    return [views[key] for key in wanted if key in views]


def as_key_rows(scope: Scope, rows: Iterable[Any]) -> list[KeyRow]:
    """Return rows of ``Statements.read`` as people look at them."""
    rows = list(rows)
    people = scope.people(each for row in rows for each in (row.task_run_id, row.first_task_run_id))
    return [key_row(row, people) for row in rows]


def _columns(scope: Scope) -> sa.Select[Any]:
    e = scope.tables.execution
    return sa.select(e.c.key_date, e.c.key_hash)


def _of_dates(scope: Scope, start: date | None, end: date | None) -> sa.Select[Any]:
    e, lease = scope.tables.execution, scope.tables.lease
    joined = e.outerjoin(lease, lease.c.task_run_id == e.c.task_run_id)
    return _columns(scope).select_from(joined).where(*dated(e.c.business_date, start, end))


def _unfinished(scope: Scope, start: date | None, end: date | None, *, alive: bool) -> sa.Select[Any]:
    """Return the read of what wants attention or is held, from the two places that have few rows."""
    e, lease, held = scope.tables.execution, scope.tables.lease, held_keys(scope, start, end, alive=alive)
    words = [constant(word) for word in ATTENTION]
    wanting = sa.select(e.c.key_date, e.c.key_hash).where(
        e.c.attention.in_(words), *dated(e.c.business_date, start, end)
    )
    open_ = sa.union_all(wanting, sa.select(held.c.key_date, held.c.key_hash)).subquery("open_keys")
    same = sa.and_(e.c.key_date == open_.c.key_date, e.c.key_hash == open_.c.key_hash)
    joined = open_.join(e, same).outerjoin(lease, lease.c.task_run_id == e.c.task_run_id)
    return _columns(scope).select_from(joined)


def _narrowed(
    scope: Scope, filters: KeyFilters, start: date | None, end: date | None
) -> list[sa.ColumnElement[bool]]:
    e = scope.tables.execution
    where = [] if scope.everything else scope.visible(scope.dag_of_key(e))
    if start is not None and not scope.everything and filters.run_id is None:
        where.append(e.c.key_namespace.in_(scope.namespaces(start, end)))
    return where + equal(
        (e.c.key_namespace, filters.key_namespace),
        (e.c.operation, filters.operation),
        (e.c.cycle, filters.cycle),
        (e.c.deployment, filters.deployment),
    )


def _of_tries(scope: Scope, filters: KeyFilters) -> sa.ColumnElement[bool] | None:
    """Return the condition of keys whose last attempt was one of the tries of a run, task or try."""
    if filters.run_id is None:
        return None
    e, run = scope.tables.execution, scope.tables.task_run
    tried = sa.select(run.c.id).where(*of_task(run, filters), *scope.where(run.c.dag_id))
    return e.c.task_run_id.in_([row.id for row in scope.rows(tried)])
