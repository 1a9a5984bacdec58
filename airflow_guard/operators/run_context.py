"""What Airflow's task context says about the run and the try, as the values that the core decides on."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_guard.airflow_compat import STARTED, count_of_instances
from airflow_guard.core.dates import NoBusinessDate, RunFacts, resolve_business_date
from airflow_guard.core.guard import TaskIdentity
from airflow_guard.operators.business_date import refuse_uncalled_rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import date

    from airflow_guard.core.dates import OperatorDate


def business_date_of(context: Mapping[str, Any], business_date: OperatorDate = None) -> date:
    """Return the business date of the run, by the same rules as a guarded task of this DAG.

    ::

        @task
        def report(**context):
            day = business_date_of(context, previous_business_day("DE"))

    :param context: Airflow's task context.
    :param business_date: what the guarded tasks have as ``business_date``: a template, a date, a rule or a
        callable.
    :raises BusinessDateError: no date, or one that cannot be read. A retry does not help.
    :raises AirflowSkipException: the rule says that there is nothing to do in this run.
    """
    refuse_uncalled_rule(business_date)
    if isinstance(business_date, str):
        business_date = context["task"].render_template(business_date, context)
    resolved = resolve_business_date(run_facts(context), business_date)
    if isinstance(resolved, NoBusinessDate):
        from airflow_guard.airflow_compat import AirflowSkipException

        raise AirflowSkipException(resolved.reason)
    return resolved.date


def run_facts(context: Mapping[str, Any]) -> RunFacts:
    """Return what a run offers for its business date.

    :raises BusinessDateError: an instant has no zone. A retry does not help.
    """
    run = context["dag_run"]
    return RunFacts(
        dag_id=run.dag_id,
        run_id=run.run_id,
        run_type=run_type_of(run),
        timezone=context["dag"].timezone,
        conf=run.conf or {},
        logical_at=run.logical_date,
        interval_start_at=run.data_interval_start,
        interval_end_at=run.data_interval_end,
        run_after_at=run.run_after,
        partition_date=context.get("partition_date"),
        partition_key=context.get("partition_key"),
        asset_extras=tuple(_asset_extras(context)),
    )


def identity_of(context: Mapping[str, Any], hostname: str) -> TaskIdentity:
    """Return who asks: the task try of a context, in this process."""
    ti, run = context["ti"], context["dag_run"]
    map_index = ti.map_index
    return TaskIdentity(
        dag_id=ti.dag_id,
        task_id=ti.task_id,
        run_id=ti.run_id,
        map_index=-1 if map_index is None else map_index,
        try_number=ti.try_number,
        run_type=run_type_of(run),
        run_after_at=run.run_after,
        host=hostname,
        pid=os.getpid(),
        producers=producers_of(context),
        more_tries=ti.try_number <= (ti.max_tries or 0),
        code_since_at=code_since(ti) if ti.try_number > 1 else None,
        run_began_at=None if run.clear_number else run.start_date,
    )


def map_length_of(context: Mapping[str, Any]) -> int | None:
    """Return how many instances Airflow made of a mapped task, ``None`` if it is not mapped or does not say."""
    ti = context["ti"]
    if ti.map_index is None or ti.map_index < 0:
        return None
    length = context.get("expanded_ti_count")
    return int(length) if length is not None else count_of_instances(ti)


def others_to_come(context: Mapping[str, Any]) -> bool:
    """Return whether instances of this mapped task are still to begin, so that they may list what this one does not."""
    ti = context["ti"]
    if ti.map_index is None or ti.map_index < 0:
        return False
    every, begun = count_of_instances(ti), count_of_instances(ti, STARTED)
    return every is not None and begun is not None and begun < every


def producers_of(context: Mapping[str, Any]) -> str | None:
    """Return a digest of the asset events that set a run off: who emitted which, and what they carried.

    Events that a producer's run emits again, because it was cleared, have the same one. ``None``: there are none, or
    one does not say which run emitted it (a person, or a watcher, did), so that it could be anything.
    """
    found = set()
    for of_one_asset in (context.get("triggering_asset_events") or {}).values():
        for event in of_one_asset:
            if not event.source_run_id:
                return None
            found.add(
                json.dumps(
                    [
                        event.asset.name,
                        event.asset.uri,
                        event.source_dag_id,
                        event.source_run_id,
                        event.source_task_id,
                        event.source_map_index,
                        getattr(event, "partition_key", None),
                        event.extra or {},
                    ],
                    sort_keys=True,
                )
            )
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()[:32] if found else None


def code_since(ti: Any) -> datetime | None:
    """Return since when the code of a task try is certainly in place, ``None`` if that cannot be told.

    A bundle that knows versions gives all tries of a run the same code. Otherwise the DAG's version says what the
    scheduler knew, and the files what this process has loaded: a file that was changed or put there by a deployment has
    a new inode time, which no tool sets back.
    """
    if getattr(getattr(ti, "bundle_instance", None), "version", None):
        return datetime(1970, 1, 1, tzinfo=UTC)
    version = getattr(ti, "dag_version_id", None)
    if version is None or version.version != 7:
        return None
    made_s = (version.int >> 80) / 1000  # what a UUID of version 7 begins with
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    try:
        changed_s = max(Path(file).stat().st_ctime for file in [ti.task.dag.fileloc, *files] if file)
    except OSError:
        return None
    return datetime.fromtimestamp(max(made_s, changed_s), UTC)


def run_type_of(run: Any) -> str:
    """Return Airflow's word for the type of a run, such as ``scheduled``."""
    return str(getattr(run.run_type, "value", run.run_type))


def _asset_extras(context: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    events = context.get("triggering_asset_events") or {}
    for of_one_asset in events.values():
        for event in of_one_asset:
            yield event.extra or {}
