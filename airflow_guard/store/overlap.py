"""Which documents were done under other keys: for the key-drift check."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from airflow_guard.core.states import State

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from airflow_guard.core.keys import KeySpace
    from airflow_guard.store.database import LedgerDatabase

_SETTLED = (
    State.COMPLETED.value,
    State.IN_PROGRESS.value,
    State.IN_DOUBT.value,
    State.REJECTED.value,
    State.DROPPED.value,
)
_NAMED = 5


def done_under(
    database: LedgerDatabase,
    key: tuple[str, str],
    business_date: date,
    documents: Sequence[str] | None,
    shape: str | None,
) -> list[str | None]:
    """Return documents that are done, or may be, for a business date.

    :param key: key namespace and operation.
    :param documents: only these; ``None``: any (one side names the run as a whole, so everything overlaps).
    :param shape: only of tries whose keys have this shape.
    :return: at most five.
    """
    e = database.tables.execution
    found = _of_shape(database, shape).where(
        e.c.business_date == business_date, e.c.key_namespace == key[0], e.c.operation == key[1]
    )
    if documents is not None:
        found = found.where(sa.or_(e.c.document.is_(None), e.c.document.in_(documents)))
    return [row.document for row in database.read(lambda connection: connection.execute(found).all())]


def done_once(
    database: LedgerDatabase, space: KeySpace, shape: str | None, documents: Sequence[str]
) -> list[str | None]:
    """Return documents that are done, or may be, on whatever date.

    :param space: of those keys, which hold once per document.
    :return: at most five.
    """
    e, hasher = database.tables.execution, space.hasher()
    found = _of_shape(database, shape).where(
        e.c.key_date == space.key_date, e.c.key_hash.in_([hasher.key_hash(name) for name in documents])
    )
    return [row.document for row in database.read(lambda connection: connection.execute(found).all())]


def _of_shape(database: LedgerDatabase, shape: str | None) -> sa.Select[tuple[str | None]]:
    e, run = database.tables.execution, database.tables.task_run
    found = sa.select(e.c.document).where(e.c.state.in_(_SETTLED)).limit(_NAMED)
    if shape is None:
        return found
    return found.join(run, run.c.id == e.c.task_run_id).where(run.c.key_shape == shape)
