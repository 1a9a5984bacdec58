"""The whole life of a key: everything that the ledger has kept about it, in the order of time."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import sqlalchemy as sa

from airflow_guard.core.keys import KeySpace
from airflow_guard.core.monitoring.keys import AuditEntry, KeyLife, Renaming, RerunRow, TimelineEntry
from airflow_guard.core.reruns import Reversal
from airflow_guard.core.states import State
from airflow_guard.store import aliases
from airflow_guard.store.dialects import utc_now
from airflow_guard.store.monitoring.keys import as_key_rows
from airflow_guard.store.monitoring.tries import try_row, try_rows
from airflow_guard.store.task_runs import as_stored, aware, known

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import date

    from airflow_guard.core.monitoring.keys import KeyRow
    from airflow_guard.core.monitoring.tries import TryRow
    from airflow_guard.store.monitoring.scope import Scope

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
        e.c.key_date == key.key_date, e.c.batch_id == key.row.batch_id, e.c.owner_token == key.row.owner_token
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
