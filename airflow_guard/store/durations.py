"""How long guarded tasks took."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from airflow_guard.store.task_runs import aware

if TYPE_CHECKING:
    from datetime import timedelta

    from airflow_guard.store.ledger import Ledger

_NEWEST = 20_000


def longest(ledger: Ledger) -> dict[tuple[str, str], timedelta]:
    """Return how long each task took at most among the newest tries that have ended, by DAG and task."""
    run = ledger.database.tables.task_run
    newest = (
        sa.select(run.c.dag_id, run.c.task_id, run.c.started_at, run.c.ended_at)
        .where(run.c.ended_at.is_not(None))
        .order_by(run.c.id.desc())
        .limit(_NEWEST)
    )
    found: dict[tuple[str, str], timedelta] = {}
    for row in ledger.database.read(lambda connection: connection.execute(newest).all()):
        started, ended = aware(row.started_at), aware(row.ended_at)
        if started is None or ended is None:
            continue
        key = (row.dag_id, row.task_id)
        found[key] = max(found.get(key, ended - started), ended - started)
    return found
