"""Lists of keys as people look at them, and the whole life of one: all that the ledger has kept about it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.decisions import UNFINISHED, Situation
from airflow_guard.core.keys import KeySpace
from airflow_guard.core.reruns import Reversal
from airflow_guard.core.states import State
from airflow_guard.reading.calendar import ATTENTION
from airflow_guard.reading.figures import held_keys
from airflow_guard.reading.key_records import AuditEntry, KeyLife, Renaming, RerunRow, TimelineEntry, key_row
from airflow_guard.reading.scope import dated, equal
from airflow_guard.reading.tries import of_task, try_row, try_rows
from airflow_guard.store import aliases
from airflow_guard.store.dialects import utc_now
from airflow_guard.store.situations import constant, situations
from airflow_guard.store.task_runs import as_stored, aware, known

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import date

    from airflow_guard.reading.key_records import KeyRow, TryRow
    from airflow_guard.reading.lists import KeyFilters, Page
    from airflow_guard.reading.scope import Scope


# -- Lists of keys as people look at them --------------------------------------------------------------------

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


# -- The whole life of a key: everything that the ledger has kept about it, in the order of time -------------

_TRIES = 200
_NEAR = timedelta(days=1)
"""An adoption's event is as old as its keys, which an index knows."""


def one_key(scope: Scope, key_date: date, key_hash: str) -> KeyLife | None:
    """Return the life of a key, ``None`` if it is not in the scope."""
    rows = scope.ledger.statements.read.run(scope.connection, key_date, [key_hash]).all()
    found = [view for view in as_key_rows(scope, rows) if scope.allows(view.dag_id)]
    if not found:
        return None
    key = found[0]
    former = aliases.former_names(scope.connection, scope.tables, (key.key_namespace, key.operation))
    tries = _tries(scope, key, [(key.key_namespace, key.operation), *former])
    reruns, events, renames = _reruns(scope, key), _events(scope, key, former), _renames(scope, former)
    own = next((each for each in reruns if each.generation == key.row.generation), None)
    told = [
        TimelineEntry(
            each.at, each.kind, each.actor, each.reason, each.from_state, each.to_state, each.attempt, each.by
        )
        for each in events
        if each.at is not None
    ]  # fmt: skip
    moved = [
        TimelineEntry(
            each.at, "renamed", each.actor, f"{' / '.join(each.old)} → {' / '.join(each.new)}: {each.reason}"
        )
        for each in renames
        if each.at is not None
    ]  # fmt: skip
    timeline = sorted([*_steps(key), *_duplicates(key, tries), *moved, *told], key=lambda entry: entry.at)
    in_doubt = own is not None and own.reversal == Reversal.BEGUN and key.row.state is State.FAILED
    return KeyLife(key, timeline, events, renames, tries, reruns, _batch_size(scope, key), in_doubt)


def _events(scope: Scope, key: KeyRow, former: Sequence[aliases.Name]) -> Sequence[AuditEntry]:
    v = scope.tables.event
    hashes = [key.key_hash, *(_hash_under(key, name) for name in former)]
    about = sa.and_(v.c.key_date == key.key_date, v.c.key_hash.in_(hashes))
    rows = list(scope.rows(sa.select(v).where(about)))
    if key.row.task_run_id is None:
        # Adopted: one event for the whole adoption, which carries the same owner token.
        claimed_at = known(key.claimed_at)
        earliest, latest = (as_stored(claimed_at + far, scope.dialect) for far in (-_NEAR, _NEAR))
        token = (v.c.kind == "adopt", v.c.owner_token == key.row.owner_token)
        rows += scope.rows(sa.select(v).where(*token, v.c.at.between(earliest, latest)))
    people = scope.people(row.task_run_id for row in rows)
    return [
        AuditEntry(
            aware(row.at), row.kind, row.actor, row.reason, row.from_state, row.to_state, row.attempt, row.key_text,
            people.get(row.task_run_id),
        )
        for row in sorted(rows, key=lambda row: row.id)
    ]  # fmt: skip


def _hash_under(key: KeyRow, name: aliases.Name) -> str:
    space = KeySpace(*name, key.key_date, key.cycle, key.once_per)
    return space.hasher().key_hash(key.document)


def _batch_size(scope: Scope, key: KeyRow) -> int:
    if key.row.batch_id is None:
        return 0
    e = scope.tables.execution
    members = sa.select(sa.func.count()).where(
        e.c.batch_id == key.row.batch_id, e.c.owner_token == key.row.owner_token
    )
    return int(scope.connection.execute(members).scalar_one())


def _tries(scope: Scope, key: KeyRow, names: Sequence[aliases.Name]) -> Sequence[TryRow]:
    """Return the newest tries that asked for keys such as this one."""
    run = scope.tables.task_run
    named = [sa.and_(run.c.key_namespace == name[0], run.c.operation == name[1]) for name in names]
    where = [sa.or_(*named), *scope.where(run.c.dag_id)]
    if key.once_per == "date":
        where += [run.c.business_date == key.business_date, run.c.cycle == key.cycle]
    newest = try_rows(scope).where(*where).order_by(run.c.id.desc()).limit(_TRIES)
    return [try_row(row) for row in scope.rows(newest)]


def _reruns(scope: Scope, key: KeyRow) -> Sequence[RerunRow]:
    r = scope.tables.rerun
    open_ = sa.case((sa.and_(r.c.used_at.is_(None), r.c.expires_at > utc_now()), 1), else_=0)
    found = sa.select(r, open_.label("open")).where(
        r.c.key_date == key.key_date, r.c.key_hash == key.key_hash
    )
    rows = scope.rows(found.order_by(r.c.generation))
    people = scope.people(each for row in rows for each in (row.used_by_id, row.previous_task_run_id))
    return [
        RerunRow(
            row.generation, row.actor, row.reason, bool(row.without_reversal), known(row.authorised_at),
            known(row.expires_at), bool(row.open), aware(row.used_at), people.get(row.used_by_id),
            row.previous_result, row.previous_idempotency_key, people.get(row.previous_task_run_id), row.reversal,
        )
        for row in rows
    ]  # fmt: skip


def _steps(key: KeyRow) -> Iterable[TimelineEntry]:
    """Yield what the row itself tells: who claimed it first, and the steps of its last attempt."""
    row, first = key.row, key.row.first_run
    if first is not None and first.started_at is not None and first != row.last_run:
        yield TimelineEntry(first.started_at, "first_claimed", attempt=1, by=first)
    if row.last_run is not None and key.claimed_at is not None:
        yield TimelineEntry(key.claimed_at, "claimed", attempt=row.attempt, by=row.last_run)
    if key.begun_at is not None:
        yield TimelineEntry(key.begun_at, "begun", attempt=row.attempt, by=row.last_run)
    if key.finished_at is not None and row.last_run is not None:
        yield TimelineEntry(
            key.finished_at, "finished", reason=row.error or "", to_state=row.state.value, attempt=row.attempt,
            by=row.last_run,
        )  # fmt: skip


def _duplicates(key: KeyRow, tries: Sequence[TryRow]) -> Iterable[TimelineEntry]:
    """Yield the tries after the one that did it, which found work of its operation and date done, or were kept from it."""
    own = key.row.task_run_id or 0
    for each in tries:
        if each.id > own and (each.replayed or each.blocked):
            what = [f"{each.replayed:,} done already"] if each.replayed else []
            what += [f"{each.blocked:,} blocked"] if each.blocked else []
            yield TimelineEntry(each.started_at, "asked_again", reason=", ".join(what), by=each.identity)


def _renames(scope: Scope, former: Sequence[aliases.Name]) -> Sequence[Renaming]:
    found = [aliases.find(scope.connection, scope.tables, name) for name in former]
    renames = [
        Renaming(each.old, each.new, each.created_at, each.actor, each.reason) for each in found if each
    ]
    return sorted(renames, key=lambda each: str(each.at))
