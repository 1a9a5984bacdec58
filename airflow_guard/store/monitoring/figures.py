"""The figures of a business date, from its keys and from what was listed and never claimed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.decisions import Situation
from airflow_guard.core.monitoring.figures import WAIVED
from airflow_guard.core.states import Phase, State
from airflow_guard.store.situations import constant, situations

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from airflow_guard.store.monitoring.scope import Scope
    from airflow_guard.store.tables import Tables

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
