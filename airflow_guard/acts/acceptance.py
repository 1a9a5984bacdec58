"""A person accepts breaks as they were shown: those that have changed since stay open."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.checks import BreakState
from airflow_guard.core.decisions import check_words
from airflow_guard.store.break_rows import describe, found_of
from airflow_guard.store.events import AuditEvent, EventLog, storable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date

    from airflow_guard.store.database import LedgerDatabase


@dataclass(slots=True)
class Accepted:
    """What became of breaks that a person accepted.

    :param explained: now explained, in words.
    :param refused: by id, why it stays as it is.
    """

    explained: list[str] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)


def accept(database: LedgerDatabase, judged: Mapping[int, str], *, actor: str, reason: str) -> Accepted:
    """A person accepts breaks (open → explained), each as it was judged.

    :param judged: by ``StoredBreak.id``, the ``values_digest`` of the break as it was shown.
    :param actor: a user's name.
    :param reason: why, mandatory.
    :raises ResolutionError: a reason is missing. A retry does not help.
    :raises LedgerError: the ledger does not answer.
    """
    actor, reason = check_words(actor, reason)
    b, events = database.tables.breaks, EventLog(database.tables)

    def work(connection: sa.Connection) -> Accepted:
        database.limit_locks(connection)
        accepted = Accepted()
        lock = sa.select(b).where(b.c.id.in_(sorted(judged))).order_by(b.c.id).with_for_update()
        rows = {row.id: row for row in connection.execute(lock)}
        for break_id in sorted(judged):
            row = rows.get(break_id)
            why = _refusal(row, judged[break_id])
            if why is not None:
                accepted.refused[break_id] = why
                continue
            connection.execute(
                sa.update(b)
                .where(b.c.id == break_id)
                .values(state=BreakState.EXPLAINED.value, actor=storable(actor, 250), reason=storable(reason))
            )
            events.write(connection, _event(row, actor, reason))
            accepted.explained.append(describe(row))
        return accepted

    return database.write(work)


def note(
    database: LedgerDatabase, kind: str, what: str, dates: Sequence[date], actor: str, reason: str
) -> None:
    """Record that a person was asked about the breaks of these dates, or what came of it."""
    events = [AuditEvent(kind, what, actor, reason, key_date=day) for day in dates]
    log = EventLog(database.tables)
    database.write(lambda connection: log.write(connection, *events))


def _refusal(row: Any, judged: str) -> str | None:
    if row is None:
        return "the ledger does not have it any more"
    if row.state != BreakState.OPEN:
        by = f" by {row.actor}: {row.reason}" if row.actor else ""
        return f"{describe(row)} is {row.state} already{by}"
    if found_of(row).values_digest != judged:
        return f"it has changed since it was shown, and is now: {describe(row)}"
    return None


def _event(row: Any, actor: str, reason: str) -> AuditEvent:
    return AuditEvent(
        "break_explained", describe(row), actor, reason, row.business_date, row.break_hash,
        from_state=row.state, to_state=BreakState.EXPLAINED.value,
    )  # fmt: skip
