"""The content that a key is for: what a claim takes, and what is listed of a key that stands with another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_guard.core.content import changed_fields, content_id
from airflow_guard.core.states import State
from airflow_guard.store.events import AuditEvent

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    import sqlalchemy as sa

    from airflow_guard.core.documents import Document
    from airflow_guard.core.guard import LedgerRow
    from airflow_guard.core.keys import KeySpace
    from airflow_guard.store.changes import Ownership
    from airflow_guard.store.ledger import Ledger


def take(
    ledger: Ledger, connection: sa.Connection, own: Ownership, space: KeySpace, row: Any, document: Document
) -> None:
    """Let a claimed key take the content that is now to be processed, in the claim's transaction.

    It gets an idempotency key of its own, if the receiver may have been given the old one with other content.

    :param row: as it was locked, before the claim.
    """
    print_ = document.fingerprint
    if row.fingerprint == print_:
        return
    s, one = ledger.statements, (own.key_date, [row.key_hash])
    s.take_content.run(connection, *one, token=own.token, print_=print_)
    fields = changed_fields(row.fingerprint, print_)
    if fields is None:
        return
    why = f"claimed with new content (changed: {', '.join(fields) or 'none of the fields can be compared'}), "
    if row.first_begun_at is None:
        why += "under the same idempotency key, which no receiver has been given"
    else:
        receiver_key = document.hasher.idempotency_key(row.key_hash, row.generation, content_id(print_))
        s.renew_key.run(connection, *one, token=own.token, receiver_key=receiver_key)
        why += f"under idempotency key {receiver_key}: the receiver may know {row.idempotency_key} with the old content"
    event = AuditEvent(
        "new_content", space.describe(document.name), own.actor, why, own.key_date, row.key_hash, row.attempt + 1,
        own.token, own.task_run_id, row.state, State.IN_PROGRESS.value,
    )  # fmt: skip
    ledger.events.write(connection, event)


def offer(ledger: Ledger, key_date: date, offers: Sequence[tuple[LedgerRow, str]]) -> None:
    """Remember which content was listed of keys that stand with another, so that a person can accept just that.

    :param offers: rows as they were judged, and the fingerprint that was listed. A row that has a newer attempt, or is
        no longer completed or rejected, is left alone.
    """
    new = sorted(
        ((row.key_hash, row.owner_token, print_) for row, print_ in offers if row.offered != print_),
    )
    statement = ledger.statements.offer_content

    def work(connection: sa.Connection) -> None:
        for key_hash, token, print_ in new:
            statement.run(connection, key_date, [key_hash], token=token, print_=print_)

    if new:
        ledger.write(work)
