"""Checks before the first claim: the run's stored date, its warnings, and whether the operation was guarded then."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_guard.core import dates
from airflow_guard.core.commands import adopt_command
from airflow_guard.core.date_checks import DatedRun, check_stored_date, in_the_future, repeated_or_jumped
from airflow_guard.core.dates import DateSource, NoBusinessDate, ResolvedDate, RunFacts

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_guard.core.guard import TaskIdentity
    from airflow_guard.core.keys import KeySpace
    from airflow_guard.execution.spec import GuardSpec
    from airflow_guard.store.task_runs import TaskRuns


def check_date(
    runs: TaskRuns,
    facts: RunFacts,
    identity: TaskIdentity,
    business_date: dates.OperatorDate,
    resolved: ResolvedDate | NoBusinessDate,
    warn: Callable[[str], None],
) -> None:
    """Compare the resolved date with what this run recorded before and with the run before it.

    A mapped instance whose date was written for it (``expand(business_date=…)``) is not compared: the instances of
    one task have several dates.

    :raises DateChangedError: a cleared run now gives another date (not retryable).
    :raises BusinessDateError: the date lies more than a year in the future (not retryable).
    """
    own = (
        isinstance(resolved, ResolvedDate)
        and resolved.source is DateSource.EXPLICIT
        and identity.map_index >= 0
    )
    if not own:
        stored = runs.stored_date(identity.dag_id, identity.run_id, identity.task_id)
        before = ResolvedDate(stored.date, DateSource(stored.source), stored.detail) if stored else None
        check_stored_date(
            resolved, before, dag_id=identity.dag_id, run_id=identity.run_id, task_id=identity.task_id
        )
    if isinstance(resolved, NoBusinessDate):
        return
    for line in dates.date_warnings(facts, business_date, resolved):
        warn(line)
    early = in_the_future(resolved, facts, datetime.now(UTC))
    if early:
        warn(early)
    if facts.run_type == "scheduled" and facts.run_after_at is not None:
        previous = runs.previous_run(identity.dag_id, identity.task_id, facts.run_after_at)
        line_ = repeated_or_jumped(
            DatedRun(previous[0], previous[1], previous[2]) if previous else None,
            facts,
            resolved,
            business_date,
        )
        if line_:
            warn(line_)


def unguarded_reason(runs: TaskRuns, spec: GuardSpec, space: KeySpace, identity: TaskIdentity) -> str | None:
    """Return why a key that the ledger does not know must not run, ``None`` if it may.

    Asked before the try is recorded: its own row would say since when the operation is watched.
    """
    command = adopt_command(space.key_namespace, space.operation, ledger=spec.ledger)
    adopt = (
        f"If the work was done then, list it in done.csv (business_date,document) and record it: {command}. If it was "
        "not, set guarded_from to a date at or before this one, so that it may run."
    )
    if spec.guarded_from is not None:
        if space.business_date < spec.guarded_from:
            return (
                f"business date {space.business_date} lies before guarded_from={spec.guarded_from}. {adopt}"
            )
        return None
    if identity.try_number < 2 or identity.run_after_at is None:
        return None
    if runs.seen_from_start(identity.dag_id, identity.run_id, identity.task_id):
        return None
    since = runs.operation_since(space.key_namespace, space.operation)
    watched = since is not None and identity.run_after_at >= since
    # In the second case its first try has died before its first commit: nothing has happened.
    if watched or identity.guarded_from_its_start:
        return None
    first = f"only since {since:%Y-%m-%d %H:%M} UTC" if since else "not before this try"
    return (
        f"this is try {identity.try_number} of a run that was due {identity.run_after_at:%Y-%m-%d %H:%M} UTC, but the "
        f"ledger has watched this operation {first} and did not see the first try: the "
        f"work may have been done unguarded. {_unclear(identity)} {adopt}"
    )


def _unclear(identity: TaskIdentity) -> str:
    """Return why it is not clear that the first try was guarded."""
    if identity.run_began_at is None:
        return "The run was cleared since it began, so that its first try may have had other code."
    if identity.code_since_at is None:
        return "Airflow does not tell which code its first try had."
    return (
        f"The run began {identity.run_began_at:%Y-%m-%d %H:%M:%S} UTC, and its code may be newer: it is there since "
        f"{identity.code_since_at:%Y-%m-%d %H:%M:%S} UTC."
    )
