"""Coming to rest: all that was planned is done, and no run goes on. Where that takes too long: what is still open."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import httpx

from airflow_guard.core.errors import GuardError
from chaos.faults.people import DAGS
from demo.waiting import NothingMoves, Patience

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chaos.rig import Rig

_OPEN = ("queued", "running", "failed")
_SHOWN = 5


def wait_for_rest(rig: Rig, documents: int, quiet_s: float) -> bool:
    """Wait until all that was planned is done, and no run goes on; whether that came.

    :param documents: how many are to be planned at least.
    :param quiet_s: how long nothing may get done.
    """
    counted = "SELECT count(*) AS number FROM guard_execution WHERE state = 'completed'"
    open_, done = -1, rig.rows(counted)
    patience = Patience("rest", lambda: (open_, done), quiet_s=quiet_s)
    while True:
        try:
            patience.check()
        except NothingMoves:
            return False
        time.sleep(2)
        plan = rig.plan
        done = rig.rows(counted) or done
        if plan.size < documents or not done or done[0]["number"] < plan.size:
            continue
        try:
            left = sum(rig.client.count_runs(dag_id, states=_OPEN) for dag_id in DAGS)
        except (GuardError, OSError, httpx.HTTPError):
            continue
        if not left:
            return True
        # Fewer than ever: a run that fails and is cleared again and again is no sign of life.
        open_ = left if open_ < 0 else min(open_, left)


def open_work(rig: Rig) -> Iterator[str]:
    """Say of each DAG which runs have not succeeded, and in which states their tasks are."""
    try:
        for dag_id in DAGS:
            runs = [run for run in rig.client.runs(dag_id) if run.state in _OPEN]
            for run in runs[:_SHOWN]:
                states = Counter(
                    f"{task.task_id} {task.state} (try {task.try_number})"
                    for task in rig.client.tasks(dag_id, run.run_id)
                    if task.state != "success"
                )
                tasks = ", ".join(f"{number} {name}" for name, number in sorted(states.items()))
                yield f"open: {run.run_id} of {dag_id}, {run.state}: {tasks or 'no open task'}"
            if len(runs) > _SHOWN:
                yield f"open: … and {len(runs) - _SHOWN} more of {dag_id}"
    except (GuardError, OSError, httpx.HTTPError) as error:
        yield f"open: Airflow does not say: {type(error).__name__}"
