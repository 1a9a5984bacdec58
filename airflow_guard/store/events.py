"""The append-only audit: what was out of the ordinary, by whom and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.texts import without_secrets
from airflow_guard.store.dialects import utc_now

if TYPE_CHECKING:
    from datetime import date

    from airflow_guard.store.tables import Tables

MAX_TEXT_CHARACTERS = 4000
_LETS_GO = {
    "take_over": "another attempt took it over",
    "resolve_not_happened": "it was resolved as not happened",
    "resolve_happened": "it was resolved as happened",
    "fail_over_key": "a fail-over was recorded",
}
"""What ends an attempt's hold of its key, in words."""


@dataclass(frozen=True)
class AuditEvent:
    """One entry.

    :param kind: ``take_over``, ``doubt``, ``late_report``, ``conflict``, ``blocked``, ``resolve_happened``,
        ``resolve_not_happened``, ``waive``, ``send_again``, ``follow_up_settled``, ``content_accepted``,
        ``new_content``, ``adopt``, ``rename``, ``would_block``, ``namesake``.
    :param actor: a user's name, ``verify``, or the task try that did it.
    :param reason: in words; mandatory where a person acts.
    """

    kind: str
    key_text: str
    actor: str
    reason: str
    key_date: date | None = None
    key_hash: str | None = None
    attempt: int | None = None
    owner_token: str | None = None
    task_run_id: int | None = None
    from_state: str | None = None
    to_state: str | None = None


class EventLog:
    """Writes and reads events, always in the transaction of what they tell about."""

    def __init__(self, tables: Tables) -> None:
        self._table = tables.event
        self._insert = sa.insert(self._table).values(at=utc_now())

    def write(self, connection: sa.Connection, *events: AuditEvent) -> None:
        """Append events in the caller's transaction."""
        if events:
            connection.execute(self._insert, [_as_row(event) for event in events])

    def written(self, connection: sa.Connection, kind: str, row: Any, actor: str, reason: str) -> bool:
        """Return whether the same person has said the same about the attempt that a row has."""
        e = self._table
        same = sa.select(sa.literal(1)).where(
            e.c.key_date == row.key_date,
            e.c.key_hash == row.key_hash,
            e.c.kind == kind,
            e.c.owner_token == row.owner_token,
            e.c.actor == storable(actor, 250),
            e.c.reason == storable(reason),
        )
        return connection.execute(same.limit(1)).first() is not None

    def of_key(self, connection: sa.Connection, key_date: date, key_hash: str) -> list[Any]:
        """Return the events of one key, oldest first."""
        e = self._table
        found = sa.select(e).where(e.c.key_date == key_date, e.c.key_hash == key_hash).order_by(e.c.id)
        return list(connection.execute(found))

    def let_go_by(self, connection: sa.Connection, key_date: date, key_hash: str, token: str) -> str:
        """Return, in words, what ended an attempt's hold of its key.

        :param token: the owner token of that attempt, which such an event carries.
        """
        for event in reversed(self.of_key(connection, key_date, key_hash)):
            if event.owner_token == token and event.kind in _LETS_GO:
                return f"{_LETS_GO[event.kind]}, by {event.actor} at {event.at:%Y-%m-%d %H:%M:%S} UTC ({event.reason})"
        return "the audit does not say what let it go"


def _as_row(event: AuditEvent) -> dict[str, Any]:
    row = {name: str(value) if isinstance(value, str) else value for name, value in vars(event).items()}
    row["actor"] = storable(event.actor, 250)
    row["reason"] = told(event.reason)
    row["key_text"] = storable(event.key_text)
    return row


def told(value: str | None, limit: int = MAX_TEXT_CHARACTERS) -> str | None:
    """Return what an exception or a person says as it is stored: without secrets, and storable.

    Whoever may read the ledger need not know the passwords of a business. They are hidden before anything is cut.
    """
    return None if value is None else storable(without_secrets(value), limit)


def storable(value: str | None, limit: int = MAX_TEXT_CHARACTERS) -> str | None:
    """Return a text that every database stores: no NUL, no lone surrogates, bounded."""
    if value is None:
        return None
    # Cut once more: what replaces a character may be longer than it.
    return value[:limit].replace("\x00", "\\x00").encode("utf-8", "replace").decode()[:limit]


def namesakes(connection: sa.Connection, tables: Tables, namespace: str, business_date: date) -> list[str]:
    """Return what was said of keys of a date that another key namespace has done as well, the first of them first."""
    e, x = tables.event, tables.execution
    found = (
        sa.select(e.c.reason)
        .join(x, sa.and_(x.c.key_date == e.c.key_date, x.c.key_hash == e.c.key_hash))
        .where(x.c.business_date == business_date, x.c.key_namespace == namespace, e.c.kind == "namesake")
        .order_by(e.c.id)
    )
    return list(dict.fromkeys(row.reason for row in connection.execute(found)))
