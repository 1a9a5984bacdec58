"""What people do at a bad moment: clear, mark, backfill, trigger."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, get_args

import httpx

from airflow_guard.core.errors import GuardError
from chaos.faults.drawing import NothingToHit, Strike, fault
from chaos.plan import OPERATIONS
from demo.airflow_client import Reprocess

if TYPE_CHECKING:
    from demo.airflow_client import DagRun

DAGS = tuple(sorted({operation.dag_id for operation in OPERATIONS.values()}))


@fault("clear a run", often=3)
def clear(strike: Strike) -> str:
    """A run begins again, also while it runs."""
    dag_id, run = _run(strike)
    with strike.rig.taking(dag_id, run.run_id):
        _asked(lambda: strike.rig.client.clear_run(dag_id, run.run_id))
    return f"{run.run_id} of {dag_id}, which was {run.state}"


@fault("mark a running run failed")
def mark_failed(strike: Strike) -> str:
    """Its tasks work on for some seconds."""
    dag_id, run = _run(strike, "running")
    with strike.rig.taking(dag_id, run.run_id):
        _asked(lambda: strike.rig.client.mark_run(dag_id, run.run_id, "failed"))
    return f"{run.run_id} of {dag_id}"


@fault("backfill")
def backfill(strike: Strike) -> str:
    """Dates that are done, that run now, and that are to come."""
    plan = strike.rig.plan
    dag_id, reprocess = strike.choose(DAGS), strike.choose(get_args(Reprocess))
    if dag_id == "payments":
        first = plan.start_at + timedelta(hours=strike.draw.randrange(max(1, plan.hours - 3)))
        last = min(first + timedelta(hours=3), plan.last_hour)
    else:
        first = plan.start_at + timedelta(days=strike.draw.randrange(max(1, plan.days - 1)))
        last = min(first + timedelta(days=1), plan.last_day)
    _asked(lambda: strike.rig.client.backfill(dag_id, first, last, reprocess=reprocess, max_active_runs=2))
    return f"{dag_id} from {first.isoformat()} to {last.isoformat()}, reprocess {reprocess}"


@fault("two manual runs at the same moment", often=2)
def trigger_twice(strike: Strike) -> str:
    """Of one date, by conf."""
    dag_id, conf = _occasion(strike)
    runs = [_asked(lambda: strike.rig.client.trigger(dag_id, conf=conf)) for _ in range(2)]
    return f"{dag_id} for {' '.join(conf.values())}: {' and '.join(runs)}"


@fault("trigger a date that runs now")
def trigger_beside(strike: Strike) -> str:
    """A manual run beside the scheduled one."""
    dag_id, run = _run(strike, "running")
    if run.interval_start is None:
        raise NothingToHit
    at = datetime.fromisoformat(run.interval_start)
    conf = {"business_date": at.date().isoformat(), "cycle": at.strftime("%H")}
    made = _asked(lambda: strike.rig.client.trigger(dag_id, conf=conf))
    return f"{made} of {dag_id} beside {run.run_id}"


def _run(strike: Strike, state: str | None = None) -> tuple[str, DagRun]:
    dag_id = strike.choose(DAGS)
    runs = _asked(lambda: strike.rig.client.runs(dag_id))
    return dag_id, strike.choose([run for run in runs if state is None or run.state == state])


def _occasion(strike: Strike) -> tuple[str, dict[str, str]]:
    operation = strike.choose(sorted(OPERATIONS.values(), key=lambda each: each.name))
    day, cycle = strike.choose(list(strike.rig.plan.occasions(operation)))
    return operation.dag_id, {"business_date": day.isoformat(), "cycle": cycle}


def _asked(ask: Any) -> Any:
    """Ask Airflow; where it does not answer or refuses, there is nothing to hit now."""
    try:
        return ask()
    except (GuardError, httpx.HTTPError):
        raise NothingToHit from None
