"""Which documents were done under other keys: for the key-drift check."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from airflow_guard.core.states import State

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from airflow_guard.store.database import LedgerDatabase

_SETTLED = (
    State.COMPLETED.value,
    State.IN_PROGRESS.value,
    State.IN_DOUBT.value,
    State.REJECTED.value,
    State.DROPPED.value,
)


def done_under(
    database: LedgerDatabase,
    key_namespace: str,
    operation: str,
    business_date: date,
    documents: Sequence[str] | None,
) -> list[str | None]:
    """Return documents that another operation has done, or may have done, for a business date.

    :param documents: only these; ``None``: any (one side names the run as a whole, so everything overlaps).
    :return: at most five.
    """
    e = database.tables.execution
    found = (
        sa.select(e.c.document)
        .where(
            e.c.business_date == business_date,
            e.c.key_namespace == key_namespace,
            e.c.operation == operation,
            e.c.state.in_(_SETTLED),
        )
        .limit(5)
    )
    if documents is not None:
        found = found.where(sa.or_(e.c.document.is_(None), e.c.document.in_(documents)))
    return list(database.read(lambda connection: connection.execute(found).scalars().all()))
