"""What people write about breaks: they are explained or resolved, all of them or none; or each accepted as it was shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.checks import BreakState
from airflow_guard.core.decisions import check_words
from airflow_guard.core.errors import ResolutionError, StaleResolution
from airflow_guard.store.break_rows import describe, found_of, stored_break
from airflow_guard.store.breaks import Breaks
from airflow_guard.store.dialects import utc_now
from airflow_guard.store.events import AuditEvent, EventLog, storable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import date

    from airflow_guard.store.break_rows import StoredBreak
    from airflow_guard.store.database import LedgerDatabase

SOURCES = {
    BreakState.EXPLAINED: frozenset({BreakState.OPEN}),
    BreakState.RESOLVED: frozenset({BreakState.OPEN, BreakState.EXPLAINED}),
}
"""Which states a decision leaves."""


@dataclass(slots=True)
class Accepted:
    """What became of breaks that a person accepted.

    :param explained: now explained, in words.
    :param refused: by id, why it stays as it is.
    """

    explained: list[str] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)


def decide(
    database: LedgerDatabase,
    target: BreakState,
    break_ids: Iterable[int],
    *,
    actor: str,
    reason: str,
    seen: Mapping[int, str] | None = None,
    dry_run: bool = False,
) -> list[StoredBreak]:
    """A person explains breaks (open → explained), or has settled them (open, explained → resolved).

    Found again, resolved ones are open again. The same once more (a second click) changes nothing.

    :param break_ids: ``StoredBreak.id``.
    :param actor: a user's name.
    :param reason: why, mandatory.
    :param seen: the ``version`` of breaks as the person looked at them, by id; a break that is another one by now is
        refused.
    :param dry_run: check, and return the breaks as they are.
    :raises StaleResolution: one is no longer as it was looked at, or was decided about by somebody else. Look again.
    :raises ResolutionError: one does not stand so, or there is none of that id; nothing was changed. A retry does not help.
    """
    actor, reason = check_words(actor, reason)
    wanted, b = sorted(set(break_ids)), database.tables.breaks

    def work(connection: sa.Connection) -> list[StoredBreak]:
        rows = _locked(database, connection, wanted)
        # After a commit whose answer was lost, or a second click, the same decision is found done.
        done = (target, storable(actor, 250), storable(reason))
        todo = [row for row in rows.values() if (row.state, row.actor, row.reason) != done]
        _refuse(wanted, rows, todo, target, seen or {})
        if not dry_run:
            _write(database, connection, todo, target, actor, reason)
        after = Breaks(database).select.where(b.c.id.in_(wanted))
        return [stored_break(row) for row in connection.execute(after.order_by(b.c.id))]

    return database.write(work)


def accept(database: LedgerDatabase, judged: Mapping[int, str], *, actor: str, reason: str) -> Accepted:
    """A person accepts breaks (open → explained), each as it was judged; those that have changed since stay open.

    :param judged: by ``StoredBreak.id``, the ``values_digest`` of the break as it was shown.
    :param actor: a user's name.
    :param reason: why, mandatory.
    :raises ResolutionError: a reason is missing. A retry does not help.
    :raises LedgerError: the ledger does not answer.
    """
    actor, reason = check_words(actor, reason)

    def work(connection: sa.Connection) -> Accepted:
        rows = _locked(database, connection, sorted(judged))
        refusals = {each: _refusal(rows.get(each), judged[each]) for each in sorted(judged)}
        refused = {each: why for each, why in refusals.items() if why is not None}
        fitting = [row for each, row in rows.items() if each not in refused]
        _write(database, connection, fitting, BreakState.EXPLAINED, actor, reason)
        return Accepted([describe(row) for row in fitting], refused)

    return database.write(work)


def note(
    database: LedgerDatabase, kind: str, what: str, dates: Sequence[date], actor: str, reason: str
) -> None:
    """Record that a person was asked about the breaks of these dates, or what came of it."""
    events = [AuditEvent(kind, what, actor, reason, key_date=day) for day in dates]
    log = EventLog(database.tables)
    database.write(lambda connection: log.write(connection, *events))


def _locked(database: LedgerDatabase, connection: sa.Connection, ids: Sequence[int]) -> dict[int, Any]:
    b = database.tables.breaks
    database.limit_locks(connection)
    lock = sa.select(b).where(b.c.id.in_(ids)).order_by(b.c.id).with_for_update()
    return {row.id: row for row in connection.execute(lock)}


def _write(
    database: LedgerDatabase,
    connection: sa.Connection,
    rows: Sequence[Any],
    target: BreakState,
    actor: str,
    reason: str,
) -> None:
    if not rows:
        return
    b = database.tables.breaks
    closed = utc_now() if target is BreakState.RESOLVED else None
    values = {"state": target.value, "actor": storable(actor, 250), "reason": storable(reason)}
    connection.execute(
        sa.update(b).where(b.c.id.in_([row.id for row in rows])).values(closed_at=closed, **values)
    )
    events = [_event(row, target, actor, reason) for row in rows]
    EventLog(database.tables).write(connection, *events)


def _event(row: Any, target: BreakState, actor: str, reason: str) -> AuditEvent:
    where = (describe(row), actor, reason, row.business_date, row.break_hash)
    states = {"from_state": row.state, "to_state": target.value}
    if target is BreakState.EXPLAINED:
        return AuditEvent("break_explained", *where, **states)
    return AuditEvent("break_resolved", *where, **states)


def _refuse(
    wanted: Sequence[int],
    rows: Mapping[int, Any],
    todo: Sequence[Any],
    target: BreakState,
    seen: Mapping[int, str],
) -> None:
    missing = [break_id for break_id in wanted if break_id not in rows]
    if missing:
        raise ResolutionError(f"The ledger has no break {missing[0]}. Nothing was changed.")
    for row in todo:
        if row.id in seen and seen[row.id] != found_of(row).version(BreakState(row.state)):
            raise StaleResolution(
                f"{describe(row)} is no longer as it was looked at: it is {row.state}{_by(row)}. Nothing was changed. Look "
                "at it again."
            )
        if row.state not in SOURCES[target]:
            raise ResolutionError(f"{describe(row)} is {row.state} already{_by(row)}. Nothing was changed.")


def _refusal(row: Any, judged: str) -> str | None:
    if row is None:
        return "the ledger does not have it any more"
    if row.state != BreakState.OPEN:
        return f"{describe(row)} is {row.state} already{_by(row)}"
    if found_of(row).values_digest != judged:
        return f"it has changed since it was shown, and is now: {describe(row)}"
    return None


def _by(row: Any) -> str:
    return f" by {row.actor}: {row.reason}" if row.actor else ""
