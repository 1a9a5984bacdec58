"""The figures of a business date, from its keys and from what was listed and never claimed; which keys an attempt holds.

No index has their state: it would cost each key on its way a new entry for each step. But every try that may hold keys
has a lease, running or over, and leases are few. So they lead to the keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.decisions import Situation
from airflow_guard.core.states import Phase, State
from airflow_guard.reading.calendar_records import WAIVED
from airflow_guard.reading.scope import dated
from airflow_guard.store.dialects import utc_now
from airflow_guard.store.situations import constant, situations

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from airflow_guard.reading.scope import Scope
    from airflow_guard.store.tables import Tables


# -- Keys that an attempt holds: in progress, or in doubt although nobody has marked them --------------------


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


# -- The figures of a business date, from its keys and from what was listed and never claimed ----------------

Operation = tuple[str, str, str]
"""Key namespace, operation and cycle."""


def where_keys_stand(tables: Tables) -> sa.Case[Any]:
    """Return where a key stands, for executions joined with their leases; what was waived is told from what is done."""
    e = tables.execution
    waived = sa.and_(
        e.c.state == constant(State.COMPLETED),
        e.c.phase == constant(Phase.NONE),
        e.c.task_run_id.is_not(None),
    )
    stands = situations(tables)
    return sa.case((waived, WAIVED), *((condition, name.value) for name, condition in stands.items()))


def not_begun(scope: Scope, start: date, end: date) -> dict[tuple[str, date, Operation], int]:
    """Return how many documents were listed that have no key, by DAG, business date and operation."""
    t = scope.tables
    listed, run, e = t.listed, t.task_run, t.execution
    claimed = sa.exists().where(e.c.key_date == listed.c.key_date, e.c.key_hash == listed.c.key_hash)
    names = (run.c.dag_id, run.c.business_date, run.c.key_namespace, run.c.operation, run.c.cycle)
    each = (
        sa.select(*names, listed.c.key_hash)
        .select_from(listed.join(run, run.c.id == listed.c.task_run_id))
        .where(run.c.business_date.between(start, end), sa.not_(claimed), *scope.where(run.c.dag_id))
        .distinct()
        .subquery("each_listed")
    )
    columns = [each.c[column.name] for column in names]
    rows: Sequence[Any] = scope.rows(sa.select(*columns, sa.func.count().label("found")).group_by(*columns))
    return {(row[0], row[1], (row[2], row[3], row[4])): int(row.found) for row in rows}


def situation_counts(counts: dict[str, int]) -> dict[Situation, int]:
    """Return counts by situation, for people who look at single keys: what was waived is done."""
    found: dict[Situation, int] = {}
    for name, count in counts.items():
        situation = Situation.DONE if name == WAIVED else Situation(name)
        found[situation] = found.get(situation, 0) + count
    return found
