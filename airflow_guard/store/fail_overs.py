"""A fail-over that lost commits, recorded by a person: what is unfinished, and what may be forgotten, is not trusted.

One transaction that holds off all writes to keys records it. In it, effects that had begun become in doubt, and claims
whose effect had not begun are taken from their owners, who find that out before they begin. Every claim looks for open
fail-overs after its inserts, so that a task that was at work meanwhile claims nothing without knowing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.errors import ResolutionError
from airflow_guard.store.task_runs import aware

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_guard.store.database import LedgerDatabase

NOT_BEGUN = "a fail-over was recorded before the effect had begun"


@dataclass(frozen=True, slots=True)
class OpenFailOver:
    """A recorded fail-over that nobody has closed."""

    id: int
    lost_since: datetime
    recorded_at: datetime
    actor: str
    reason: str


def listed(database: LedgerDatabase) -> list[OpenFailOver]:
    """Return the open fail-overs, oldest first."""
    return database.read(lambda connection: listed_in(connection, database.tables.fail_over))


def listed_in(connection: sa.Connection, fail_over: sa.Table) -> list[OpenFailOver]:
    found = sa.select(fail_over).where(fail_over.c.closed_at.is_(None)).order_by(fail_over.c.id)
    return [open_of(row) for row in connection.execute(found)]


def open_of(row: Any) -> OpenFailOver:
    return OpenFailOver(
        row.id, instant_in(row.lost_since_at), instant_in(row.recorded_at), row.actor, row.reason
    )


def instant_in(value: Any) -> datetime:
    found = aware(value)
    if found is None:  # a column that is NOT NULL
        raise ResolutionError("The ledger has a fail-over without a time.")
    return found
