"""What needs a person first: one item for each operation, date and reason."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.checks import BreakState, name_of, printable
from airflow_guard.core.decisions import Situation
from airflow_guard.reading.calendar import ATTENTION, last_checks
from airflow_guard.reading.check_records import CHANGED
from airflow_guard.reading.figures import held_keys
from airflow_guard.reading.lists import (
    COUNTED,
    LARGEST_LIMIT,
    AttentionItem,
    AttentionKind,
    Page,
    break_words,
    place_of_item,
)
from airflow_guard.reading.scope import dated, equal
from airflow_guard.store.dialects import age_s, utc_now
from airflow_guard.store.situations import constant, situations
from airflow_guard.store.task_runs import aware

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_guard.reading.lists import AttentionFilters
    from airflow_guard.reading.scope import Scope

STALE_DAYS = 92
"""Business dates, back from the newest that was reconciled, whose changes are shown."""
_KINDS = {
    Situation.IN_DOUBT: AttentionKind.IN_DOUBT, Situation.REJECTED: AttentionKind.REJECTED,
    Situation.FAILED: AttentionKind.FAILED, Situation.ABANDONED: AttentionKind.FAILED,
    Situation.FOLLOW_UP_OPEN: AttentionKind.FOLLOW_UP,
}  # fmt: skip


def attention(scope: Scope, filters: AttentionFilters, limit: int, offset: int) -> Page[AttentionItem]:
    """Return what needs a person in a scope: the worst kind first, then the oldest."""
    scope = scope.of(filters.dag_id)
    limit, offset = min(max(limit, 1), LARGEST_LIMIT), min(max(offset, 0), COUNTED)
    items = [
        *_keys(scope, filters),
        *_breaks(scope, filters),
        *_stale(scope, filters),
        *_died(scope, filters),
    ]
    if filters.kinds:
        items = [item for item in items if item.kind in filters.kinds]
    items.sort(key=place_of_item)
    total = len(items) if len(items) <= COUNTED else None
    return Page(items[offset : offset + limit], total, limit, offset, filters.start, filters.end)


def _keys(scope: Scope, filters: AttentionFilters) -> Iterator[AttentionItem]:
    """Yield groups of keys: those that an index names, and those that a try held when it died."""
    t = scope.tables
    e, held = t.execution, held_keys(scope, filters.start, filters.end, alive=False)
    words = e.c.attention.in_([constant(word) for word in ATTENTION])
    same = sa.and_(e.c.key_date == held.c.key_date, e.c.key_hash == held.c.key_hash)
    groups: dict[tuple[Any, ...], AttentionItem] = {}
    for found, where in (
        (e, [words, *dated(e.c.business_date, filters.start, filters.end)]),
        (held.join(e, same), []),
    ):
        for row in scope.rows(_grouped(scope, found, filters, where)):
            kind = _KINDS.get(Situation(row.situation))
            if kind is None:
                continue  # somebody is at work on it
            item = _key_item(kind, row)
            place = (kind, row.dag_id, row.key_namespace, row.operation, row.business_date, row.cycle)
            groups[place] = _added(groups[place], item) if place in groups else item
    yield from groups.values()


def _grouped(
    scope: Scope, found: sa.FromClause, filters: AttentionFilters, where: list[sa.ColumnElement[bool]]
) -> sa.Select[Any]:
    t = scope.tables
    e, run, lease, stands = t.execution, t.task_run, t.lease, situations(t)
    dag_id = sa.func.coalesce(run.c.dag_id, e.c.key_namespace)
    which = sa.case(*((condition, situation.value) for situation, condition in stands.items()))
    joined = found.outerjoin(run, run.c.id == e.c.task_run_id).outerjoin(
        lease, lease.c.task_run_id == e.c.task_run_id
    )
    names = ("key_namespace", "operation", "business_date", "cycle")
    each = (
        sa.select(
            dag_id.label("dag_id"), which.label("situation"), *(e.c[name] for name in names), e.c.document,
            e.c.key_date, e.c.key_hash,
            sa.func.coalesce(e.c.finished_at, e.c.begun_at, e.c.claimed_at).label("since"),
        )
        .select_from(joined)
        .where(*where, *scope.where(dag_id), *equal((e.c.deployment, filters.deployment)))
        .subquery("each_key")
    )  # fmt: skip
    columns = (each.c.dag_id, each.c.situation, *(each.c[name] for name in names))
    since = sa.func.min(each.c.since)
    return sa.select(
        *columns, sa.func.count().label("found"), sa.func.min(each.c.document).label("first"),
        sa.func.max(each.c.document).label("last"), sa.func.min(each.c.key_date).label("key_date"),
        sa.func.min(each.c.key_hash).label("key_hash"), since.label("since"), age_s(since).label("age"),
    ).group_by(*columns)  # fmt: skip


def _key_item(kind: AttentionKind, row: Any) -> AttentionItem:
    samples = tuple(sorted({name for name in (row.first, row.last) if name is not None}))
    return AttentionItem(
        kind, row.dag_id, row.key_namespace, row.operation, row.business_date, row.cycle, row.found, samples,
        aware(row.since), float(row.age or 0.0), (row.key_date, row.key_hash) if row.found == 1 else None,
    )  # fmt: skip


def _added(one: AttentionItem, other: AttentionItem) -> AttentionItem:
    """Return two groups of the same reason as one."""
    older = one if (one.age_s or 0.0) >= (other.age_s or 0.0) else other
    return AttentionItem(
        one.kind, one.dag_id, one.key_namespace, one.operation, one.business_date, one.cycle,
        one.count + other.count, tuple(sorted({*one.samples, *other.samples}))[:2], older.since, older.age_s,
    )  # fmt: skip


def _breaks(scope: Scope, filters: AttentionFilters) -> Iterator[AttentionItem]:
    t = scope.tables
    b, check = t.breaks, t.reconciliation
    dag_id = sa.func.coalesce(check.c.dag_id, b.c.key_namespace)
    names = ("key_namespace", "operation", "business_date", "cycle")
    each = (
        sa.select(
            dag_id.label("dag_id"), *(b.c[name] for name in names), b.c.id, b.c.break_type, b.c.document,
            b.c.first_seen_at,
        )
        .select_from(b.outerjoin(check, check.c.id == b.c.seen_by_id))
        .where(b.c.state == constant(BreakState.OPEN), *dated(b.c.business_date, filters.start, filters.end))
        .where(*scope.where(dag_id), *equal((b.c.deployment, filters.deployment)))
        .subquery("each_break")
    )  # fmt: skip
    columns = (each.c.dag_id, *(each.c[name] for name in names))
    since = sa.func.min(each.c.first_seen_at)
    grouped = sa.select(
        *columns, each.c.break_type, sa.func.count().label("found"), sa.func.min(each.c.id).label("ref"),
        since.label("since"), age_s(since).label("age"), sa.func.min(each.c.document).label("first"),
        sa.func.max(each.c.document).label("last"),
    ).group_by(*columns, each.c.break_type)  # fmt: skip
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for row in scope.rows(grouped):
        groups.setdefault(tuple(row[: len(columns)]), []).append(row)
    yield from map(_break_item, groups.values())


def _break_item(types: Sequence[Any]) -> AttentionItem:
    """Return the breaks of one operation and date, of which there is a row for each type."""
    types = sorted(types, key=lambda row: (-row.found, row.break_type))
    row, oldest, count = types[0], max(types, key=lambda row: row.age or 0.0), sum(row.found for row in types)
    words = tuple(break_words(row.break_type, row.found, _named(row)) for row in types)
    return AttentionItem(
        AttentionKind.BREAK, row.dag_id, row.key_namespace, row.operation, row.business_date, row.cycle, count, words,
        aware(oldest.since), float(oldest.age or 0.0), ref=row.ref if count == 1 else None,
    )  # fmt: skip


def _named(row: Any) -> list[str]:
    return sorted({printable(name_of(each)) for each in (row.first, row.last) if each is not None})


def _stale(scope: Scope, filters: AttentionFilters) -> Iterator[AttentionItem]:
    r = scope.tables.reconciliation
    start = filters.start
    if start is None and filters.end is None:
        newest = scope.connection.execute(sa.select(sa.func.max(r.c.business_date))).scalar_one()
        start = None if newest is None else newest - timedelta(days=STALE_DAYS)
    stale = sa.case((r.c.reason.like(f"{CHANGED}%"), 1), else_=0).label("stale")
    columns = (
        r.c.id, r.c.dag_id, r.c.key_namespace, r.c.operation, r.c.business_date, r.c.cycle, r.c.ended_at, stale,
        age_s(r.c.ended_at).label("age"), sa.case((stale == 1, r.c.reason)).label("reason"),
    )  # fmt: skip
    for row in last_checks(scope, start, filters.end, filters.deployment, *columns):
        if row.stale:
            yield AttentionItem(
                AttentionKind.STALE, row.dag_id, row.key_namespace, row.operation, row.business_date, row.cycle, 1,
                (row.reason.partition("\n")[0],), aware(row.ended_at), float(row.age), ref=row.id,
            )  # fmt: skip


def _died(scope: Scope, filters: AttentionFilters) -> Iterator[AttentionItem]:
    """Yield tries that neither ended nor live, and after which no other has come."""
    t = scope.tables
    run, lease = t.task_run, t.lease
    later = run.alias("later")
    followed = sa.exists().where(
        later.c.business_date == run.c.business_date, later.c.dag_id == run.c.dag_id,
        later.c.key_namespace == run.c.key_namespace, later.c.operation == run.c.operation,
        later.c.cycle == run.c.cycle, later.c.map_index == run.c.map_index, later.c.id > run.c.id,
    )  # fmt: skip
    found = (
        sa.select(run, lease.c.renewed_at, age_s(lease.c.renewed_at).label("age"))
        .join(lease, lease.c.task_run_id == run.c.id)
        .where(run.c.ended_at.is_(None), lease.c.expires_at <= utc_now(), sa.not_(followed))
        .where(*dated(run.c.business_date, filters.start, filters.end), *scope.where(run.c.dag_id))
        .where(*equal((run.c.deployment, filters.deployment)))
        .order_by(run.c.id)
    )
    for row in scope.rows(found):
        yield AttentionItem(
            AttentionKind.DIED, row.dag_id, row.key_namespace, row.operation, row.business_date, row.cycle, 1,
            (f"run {row.run_id}, try {row.try_number}",), aware(row.renewed_at), float(row.age), ref=row.id,
        )  # fmt: skip
