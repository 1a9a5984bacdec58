"""Keys that an attempt holds: in progress, or in doubt although nobody has marked them.

No index has their state: it would cost each key on its way a new entry for each step. But every try that may hold keys
has a lease, running or over, and leases are few. So they lead to the keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from airflow_guard.core.states import State
from airflow_guard.store.dialects import utc_now
from airflow_guard.store.monitoring.scope import dated
from airflow_guard.store.situations import constant

if TYPE_CHECKING:
    from datetime import date

    from airflow_guard.store.monitoring.scope import Scope


def held_keys(
    scope: Scope, start: date | None = None, end: date | None = None, *, alive: bool = True
) -> sa.Subquery:
    """Return ``key_date`` and ``key_hash`` of the keys in progress, whoever may read them.

    :param start: first business date of the keys.
    :param alive: also those of tries at work, which may have had many keys.
    """
    lease, e = scope.tables.lease, scope.tables.execution
    return (
        sa.select(e.c.key_date, e.c.key_hash)
        .select_from(lease.join(e, e.c.task_run_id == lease.c.task_run_id))
        .where(e.c.state == constant(State.IN_PROGRESS), *dated(e.c.business_date, start, end))
        .where(*(() if alive else (lease.c.expires_at <= utc_now(),)))
        .subquery("held")
    )
