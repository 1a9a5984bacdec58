"""What a night left: dates that are not complete, listings that brought nothing, documents that nobody tries again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.states import State
from airflow_guard.reading.tries import listed_nothing
from airflow_guard.store.dialects import age_s, utc_now
from airflow_guard.store.situations import constant
from airflow_guard.store.task_runs import as_stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import date, datetime, timedelta

    from airflow_guard.core.alerts.expected import ExpectedOperation
    from airflow_guard.store.database import LedgerDatabase


def shortfalls(database: LedgerDatabase, each: ExpectedOperation, days: Sequence[date]) -> Mapping[date, str]:
    """Return the dates on which an operation is not complete, and why, in words.

    It is complete when one run has done all of it: the task, or every instance of a mapped one, ended well at its last try,
    and as many documents are done as are expected at least. A reconciliation is complete when both sides were compared.
    """
    checked = _checked(database, each, days)
    runs = _runs(database, each, days)
    done = _done(database, each, days)
    found = {}
    for day in days:
        if day in checked:
            continue
        why = _why(each, day, runs.get(day, {}), done.get(day, 0))
        if why is not None:
            found[day] = why
    return found


def _why(each: ExpectedOperation, day: date, runs: Mapping[str, Mapping[int, Any]], done: int) -> str | None:
    complete = [run for run in runs.values() if not _missing(run)]
    if not complete:
        if runs and all(any(row.outcome == "success" for row in run.values()) for run in runs.values()):
            missing = min((_missing(run) for run in runs.values()), key=len)
            named = ", ".join(str(index) for index in sorted(missing)[:5])
            more = f" and {len(missing) - 5:,} more" if len(missing) > 5 else ""
            return f"Of {each.operation} for {day}, instances have not succeeded: {named}{more}."
        if not runs and done and done >= each.least:
            return None  # adopted
        return f"No try of {each.operation} has succeeded for {day}: it did not run, or it failed."
    listed = max(sum(row.documents - row.repeated for row in run.values()) for run in complete)
    if each.least and done == 0 and listed == 0:
        return f"{each.operation} ended well for {day}, but listed nothing."
    if max(done, listed) < each.least:
        found = f"{max(done, listed):,} documents"
        return f"{each.operation} ended well for {day} with {found}; at least {each.least:,} are expected."
    return None


def _missing(run: Mapping[int, Any]) -> set[int]:
    """Return the instances of a run that have not ended well at their last try, as far as they are known."""
    mapped = [index for index in run if index >= 0]
    length = max((row.map_length or 0 for row in run.values()), default=0)
    every: Iterable[int] = range(max(length, max(mapped) + 1)) if mapped else run
    return {index for index in every if index not in run or run[index].outcome != "success"}


def _runs(
    database: LedgerDatabase, each: ExpectedOperation, days: Sequence[date]
) -> dict[date, dict[str, dict[int, Any]]]:
    """Return the last try of each instance, by business date and run."""
    run = database.tables.task_run
    wanted = (
        sa.select(
            run.c.business_date,
            run.c.dag_id,
            run.c.run_id,
            run.c.task_id,
            run.c.cycle,
            run.c.map_index,
            run.c.map_length,
            run.c.outcome,
            run.c.documents,
            run.c.repeated,
        )
        .where(
            run.c.business_date.in_(days),
            run.c.key_namespace == each.key_namespace,
            run.c.operation == each.operation,
        )
        .order_by(run.c.id)
    )
    found: dict[date, dict[str, dict[int, Any]]] = {}
    for row in database.read(lambda connection: connection.execute(wanted).all()):
        name = f"{row.dag_id} {row.task_id} {row.run_id} {row.cycle}"
        found.setdefault(row.business_date, {}).setdefault(name, {})[row.map_index] = row
    return found


def _done(database: LedgerDatabase, each: ExpectedOperation, days: Sequence[date]) -> dict[date, int]:
    e = database.tables.execution
    wanted = (
        sa.select(e.c.business_date, sa.func.count().label("keys"))
        .where(
            e.c.business_date.in_(days),
            e.c.key_namespace == each.key_namespace,
            e.c.operation == each.operation,
            e.c.state == State.COMPLETED.value,
        )
        .group_by(e.c.business_date)
    )
    return {row.business_date: int(row.keys) for row in database.read(lambda c: c.execute(wanted).all())}


def _checked(database: LedgerDatabase, each: ExpectedOperation, days: Sequence[date]) -> set[date]:
    check = database.tables.reconciliation
    wanted = sa.select(check.c.business_date).where(
        check.c.business_date.in_(days),
        check.c.key_namespace == each.key_namespace,
        check.c.operation == each.operation,
        check.c.outcome.in_(["passed", "broken"]),
    )
    return set(database.read(lambda connection: connection.execute(wanted).scalars().all()))


def empty_listings(database: LedgerDatabase, deployment: str, since: datetime) -> sa.Select[Any]:
    """Return the read of operations and dates that ended well since then and listed nothing in all."""
    run = database.tables.task_run
    names = (run.c.key_namespace, run.c.operation, run.c.business_date, run.c.cycle)
    return (
        sa.select(*names, sa.func.max(run.c.started_at).label("since"))
        .where(run.c.deployment == deployment, run.c.business_date >= since.date())
        .group_by(*names)
        .having(*listed_nothing(run), sa.func.max(run.c.started_at) >= as_stored(since, database.dialect))
        .order_by(*names)
    )


def left_alone(database: LedgerDatabase, deployment: str, age: timedelta) -> sa.Select[Any]:
    """Return the read of operations and dates with documents that failed, or that were listed and never claimed, and that
    nobody has tried for so long."""
    each = sa.union_all(
        _failed(database, deployment, age.total_seconds()),
        _never_claimed(database, deployment, age.total_seconds()),
    ).subquery("each_left")
    names = (each.c.key_namespace, each.c.operation, each.c.business_date, each.c.cycle)
    return (
        sa.select(
            *names,
            sa.func.count().label("found"),
            sa.func.min(each.c.since).label("since"),
            sa.func.min(each.c.document).label("first"),
            sa.func.max(each.c.document).label("last"),
        )
        .group_by(*names)
        .order_by(*names)
    )


def _failed(database: LedgerDatabase, deployment: str, age: float) -> sa.Select[Any]:
    e = database.tables.execution
    return sa.select(
        e.c.key_namespace,
        e.c.operation,
        e.c.business_date,
        e.c.cycle,
        e.c.document,
        e.c.finished_at.label("since"),
    ).where(
        e.c.deployment == deployment, e.c.attention == constant(State.FAILED), age_s(e.c.finished_at) >= age
    )


def _never_claimed(database: LedgerDatabase, deployment: str, age: float) -> sa.Select[Any]:
    """Each document once, by the last try that listed it; one that works now is still to get to it."""
    t = database.tables
    listed, run, e, lease = t.listed, t.task_run, t.execution, t.lease
    claimed = sa.exists().where(e.c.key_date == listed.c.key_date, e.c.key_hash == listed.c.key_hash)
    alive = sa.exists().where(lease.c.task_run_id == run.c.id, lease.c.expires_at > utc_now())
    names = (run.c.key_namespace, run.c.operation, run.c.business_date, run.c.cycle)
    since = sa.func.max(sa.func.coalesce(run.c.ended_at, run.c.started_at))
    return (
        sa.select(*names, listed.c.document, since.label("since"))
        .select_from(listed.join(run, run.c.id == listed.c.task_run_id))
        .where(run.c.deployment == deployment, sa.not_(claimed), sa.not_(alive))
        .group_by(*names, listed.c.key_hash, listed.c.document)
        .having(age_s(since) >= age)
    )
