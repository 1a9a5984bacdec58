"""The figures of a business date, from its keys and from what was listed and never claimed; which keys an attempt holds.

No index has their state: it would cost each key on its way a new entry for each step. But every try that may hold keys
has a lease, running or over, and leases are few. So they lead to the keys.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.amounts import shown
from airflow_guard.core.decisions import Situation
from airflow_guard.core.expectations import expected_words
from airflow_guard.core.figures import WAIVED, Asks, Figures
from airflow_guard.core.states import Phase, State
from airflow_guard.reading.calendar_records import OperationOfDay
from airflow_guard.reading.scope import dated
from airflow_guard.reading.tries import count_of
from airflow_guard.store.dialects import utc_now
from airflow_guard.store.situations import constant, situations
from airflow_guard.store.task_runs import aware

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import date, datetime

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
_Of = tuple["date", Operation]


def operations(
    scope: Scope, start: date, end: date, operation: str | None = None
) -> Sequence[OperationOfDay]:
    """Return the operations of a scope on the dates of a range, with the figures of each."""
    counts: dict[_Of, dict[str, int]] = {}
    last: dict[_Of, list[datetime]] = {}
    for row in scope.rows(_keys(scope, start, end)):
        at = (row.business_date, (row.key_namespace, row.operation, row.cycle))
        counts.setdefault(at, {})[row.situation] = row.keys
        last.setdefault(at, []).extend(filter(None, [aware(row.last_at)]))
    waiting: dict[_Of, int] = {}
    for (_, day, name), found in not_begun(scope, start, end).items():
        waiting[day, name] = waiting.get((day, name), 0) + found
    asked = _asked(scope, start, end)
    return [
        OperationOfDay(
            day,
            *name,
            counts=situation_counts(counts.get((day, name), {})),
            last_finished_at=max(last.get((day, name), []), default=None),
            figures=Figures.of(counts.get((day, name), {}), waiting.get((day, name), 0)),
            **asked.get((day, name), {}),
        )
        for day, name in sorted({*counts, *waiting, *asked})
        if operation in (None, name[1])
    ]


def _keys(scope: Scope, start: date, end: date) -> sa.Select[Any]:
    t = scope.tables
    e, run, lease, which = t.execution, t.task_run, t.lease, where_keys_stand(t)
    dag_id = sa.func.coalesce(run.c.dag_id, e.c.key_namespace)
    own = (e.c.business_date, e.c.key_namespace, e.c.operation, e.c.cycle)
    each = (
        sa.select(*own, e.c.finished_at, which.label("situation"))
        .select_from(
            e.outerjoin(run, run.c.id == e.c.task_run_id).outerjoin(
                lease, lease.c.task_run_id == e.c.task_run_id
            )
        )
        .where(*dated(e.c.business_date, start, end), *scope.where(dag_id))
        .where(*(() if scope.everything else (e.c.key_namespace.in_(scope.namespaces(start, end)),)))
        .subquery("each_key")
    )
    columns = (*(each.c[column.name] for column in own), each.c.situation)
    counted = sa.select(
        *columns, sa.func.count().label("keys"), sa.func.max(each.c.finished_at).label("last_at")
    )
    return counted.group_by(*columns)


def _asked(scope: Scope, start: date, end: date) -> dict[_Of, dict[str, Any]]:
    """Return what the tries asked, what their listings should bring, and what they brought twice."""
    run, now = scope.tables.task_run, scope.now
    sums = ("executed", "replayed", "own_replays", "blocked")
    name = (run.c.business_date, run.c.key_namespace, run.c.operation, run.c.cycle)
    task = (run.c.dag_id, run.c.task_id, run.c.run_id, run.c.map_index)
    where = (*dated(run.c.business_date, start, end), *scope.where(run.c.dag_id))
    each = (
        sa.select(
            *(
                sa.func.sum(count_of(scope.tables, one)).label(one)
                if one == "executed"
                else sa.func.sum(run.c[one]).label(one)
                for one in sums
            ),
            sa.func.max(run.c.id).label("last_id"),
        )
        .where(*where)
        .group_by(*name, *task)
        .subquery("each_task")
    )
    expecting = ("expected_least", "expected_most", "expected_total", "listed_total", "repeated")
    columns = (*name, run.c.run_id, *(run.c[one] for one in expecting), *(each.c[one] for one in sums))
    found: dict[_Of, list[Any]] = {}
    for row in scope.rows(
        sa.select(*columns).select_from(each.join(run, run.c.id == each.c.last_id)).order_by(run.c.id)
    ):
        namespace, operation = now.get((row.key_namespace, row.operation), (row.key_namespace, row.operation))
        found.setdefault((row.business_date, (namespace, operation, row.cycle)), []).append(row)
    return {at: _asked_of(rows) for at, rows in found.items()}


def _asked_of(rows: Sequence[Any]) -> dict[str, Any]:
    """Return it for the last tries of one operation and date: each task and run; what was expected, of the newest run."""
    asks = (
        sum(int(getattr(row, name)) for row in rows)
        for name in ("executed", "replayed", "own_replays", "blocked")
    )
    newest = [row for row in rows if row.run_id == rows[-1].run_id]
    bounds = [_total(getattr(row, name) for row in newest) for name in ("expected_least", "expected_most")]
    expected, listed = (
        _total(_amount(getattr(row, name)) for row in newest) for name in ("expected_total", "listed_total")
    )
    least, most = (None if each is None else int(each) for each in bounds)
    return {
        "asks": Asks.of(*asks),
        "repeated": sum(row.repeated for row in newest),
        "expected": expected_words(least, most, None if expected is None else shown(Decimal(expected))),
        "listed_total": None if listed is None else shown(Decimal(listed)),
    }


def _amount(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)


def _total(parts: Iterable[int | Decimal | None]) -> int | Decimal | None:
    """Return the sum of what the instances of a task say; ``None``: one of them says nothing."""
    total: int | Decimal = 0
    for part in parts:
        if part is None:
            return None
        total += part
    return total


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
