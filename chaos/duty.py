"""The person on duty: clears what has failed, runs dates that were left out, settles what is in doubt after asking the
receiver, and plans ahead.

This person tells the truth, and is told by alerts only: a doubt of which no alert speaks stays one.
"""

from __future__ import annotations

import contextlib
import io
import threading
import time
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import httpx

from airflow_guard.commands.main import main as airflow_guard
from airflow_guard.core.errors import GuardError
from chaos.faults.people import DAGS
from chaos.plan import MAPPED, OPERATIONS, start_of
from chaos.referee import effects_of, tells_of, told
from chaos.rig import DATABASE, LONGEST_STALL_S
from demo.airflow_client import AirflowRefused

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import date

    from chaos.plan import Plan
    from chaos.rig import Rig

_EVERY_S = 3.0
_SOON = timedelta(minutes=2)
#: As long as a call can be on its way, a look at the receiver proves nothing.
_SETTLED_S = LONGEST_STALL_S + 10
_DOUBTS = """
    SELECT e.key_hash, e.operation, e.business_date, e.document, e.owner_token
    FROM guard_execution e LEFT JOIN guard_lease l USING (task_run_id)
    WHERE e.operation = 'print' AND (e.state = 'in_doubt' OR (e.state = 'in_progress' AND e.phase = 'begun'))
      AND coalesce(l.expires_at, 'epoch') < timezone('utc', now())
      AND greatest(e.begun_at, e.last_sign_at, l.renewed_at) < timezone('utc', now()) - make_interval(secs => %(age)s)
"""
#: Payments that are made, and whose callable did not come to its end afterwards. Nothing follows in it, so there is
#: nothing to do by hand before a person says so.
_FOLLOW_UPS = """
    SELECT e.key_hash, e.operation, e.business_date, e.owner_token
    FROM guard_execution e LEFT JOIN guard_lease l USING (task_run_id)
    WHERE e.state = 'completed' AND (e.follow_up = 'failed' OR (e.follow_up = 'pending'
      AND coalesce(l.expires_at, 'epoch') < timezone('utc', now())))
"""
#: The dates that runs have come to.
_BEGUN = """
    SELECT dag_id, business_date, cycle, bool_or(run_type IN ('scheduled', 'backfill')) AS automatic
    FROM guard_task_run GROUP BY dag_id, business_date, cycle
"""


class Duty(threading.Thread):
    """Does that every few seconds, until it is told to go home.

    :param documents: how many effects are to be planned at least.
    """

    def __init__(self, rig: Rig, documents: int) -> None:
        super().__init__(name="duty", daemon=True)
        self._rig = rig
        self._documents = documents
        self._home = threading.Event()
        self.more_work = True
        self.cleared: Counter[str] = Counter()
        self.settled: Counter[str] = Counter()
        self.called_back = 0
        self.filled = 0
        self._troubles: Counter[str] = Counter()

    def run(self) -> None:
        """Be on duty."""
        while not self._home.wait(_EVERY_S):
            for task in (
                self._plan_ahead,
                self._fill_gaps,
                self._settle,
                self._follow_up,
                self._clear,
                self._call_back,
            ):
                try:
                    task()
                except (GuardError, httpx.HTTPError, OSError) as error:
                    self._troubles[type(error).__name__] += 1

    def go_home(self) -> None:
        """End."""
        self._home.set()
        self.join(30)

    def _plan_ahead(self) -> None:
        plan = self._rig.plan
        if not self.more_work and plan.size >= self._documents:
            return
        done = {
            row["operation"]: row["number"]
            for row in self._rig.rows(
                "SELECT operation, count(*) AS number FROM guard_execution WHERE state = 'completed' GROUP BY operation"
            )
        }
        if not done:
            return
        backlog: dict[bool, list[float]] = {True: [], False: []}
        for operation in OPERATIONS.values():
            per_run = MAPPED if operation.mapped else plan.documents
            runs = plan.hours if operation.hourly else plan.days
            backlog[operation.hourly].append(runs - done.get(operation.name, 0) / per_run)
        # Nobody idles, and nobody is left far behind.
        days, hours = (
            int(min(open_runs) < 3 and max(open_runs) < 5) for open_runs in (backlog[False], backlog[True])
        )
        if days or hours:
            self._rig.extend(days=days, hours=3 * hours)

    def _fill_gaps(self) -> None:
        """Backfill dates that Airflow has left out.

        It goes on after the latest automatic run. One that a backfill has made ahead of the schedule is such a run, and
        Airflow never comes to the dates between.
        """
        client = self._rig.client
        for dag_id, dates in left_out(self._rig.plan, self._rig.rows(_BEGUN)).items():
            gaps = [at for at in dates if not client.count_runs(dag_id, logical_date=at)]
            # While another backfill is under way Airflow refuses this one: then at a later look.
            with contextlib.suppress(AirflowRefused):
                if gaps:
                    client.backfill(dag_id, gaps[0], gaps[-1], max_active_runs=2)
                    self.filled += len(gaps)

    def _settle(self) -> None:
        doubts = self._rig.rows(_DOUBTS, age=_SETTLED_S)
        if not doubts:
            return
        alerts, arrived = told(self._rig), effects_of(self._rig, "printer")
        for row in doubts:
            if not tells_of(alerts, row, self._rig.began):
                continue
            self._say(row, "--happened" if arrived[row["document"]] else "--did-not-happen")

    def _follow_up(self) -> None:
        rows = self._rig.rows(_FOLLOW_UPS)
        alerts = told(self._rig) if rows else []
        for row in rows:
            if tells_of(alerts, row, self._rig.began):
                self._say(row, "--followed-up")

    def _say(self, row: dict[str, Any], answer: str) -> None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = airflow_guard([
                "resolve", "--key", row["key_hash"], "--owner-token", row["owner_token"], answer, "--yes",
                "--actor", "duty", "--reason", "seen in the journal of the receiver",
                "--ledger", self._rig.ledger.url(DATABASE),
            ])  # fmt: skip
        self.settled[answer if code == 0 else "refused"] += 1

    def _clear(self) -> None:
        client = self._rig.client
        for dag_id in DAGS:
            if not client.count_runs(dag_id, states=["failed"]):
                continue
            for run in [run for run in client.runs(dag_id) if run.state == "failed"][:3]:
                # A run that somebody has marked as failed may have no failed task, only skipped ones.
                with self._rig.taking(dag_id, run.run_id):
                    client.clear_run(dag_id, run.run_id, only_failed=not self.cleared[run.run_id])
                self.cleared[run.run_id] += 1
                time.sleep(0.1)

    def _call_back(self) -> None:
        """Clear tasks that Airflow would try again in hours.

        It counts the delay from the end that the worker has reported, by the worker's clock.
        """
        client, soon = self._rig.client, datetime.now(UTC) + _SOON
        for dag_id in DAGS:
            waiting = client.request(
                "GET",
                f"/api/v2/dags/{dag_id}/dagRuns/~/taskInstances",
                params={"state": "up_for_retry", "limit": 100},
            )["task_instances"]
            for task in waiting:
                if task["end_date"] and datetime.fromisoformat(task["end_date"]) > soon:
                    with self._rig.taking(dag_id, task["dag_run_id"]):
                        client.clear_task(dag_id, task["dag_run_id"], task["task_id"])
                    self.called_back += 1

    def summary(self) -> str:
        """Say what there was to do."""
        settled = ", ".join(f"{number} {name.strip('-')}" for name, number in sorted(self.settled.items()))
        return (
            f"duty: {self.cleared.total()} runs cleared, {self.called_back} tasks that waited for a clock that was ahead, "
            f"{self.filled} dates backfilled that were left out, settled: {settled or 'none'}"
        )


def left_out(plan: Plan, begun: Iterable[dict[str, Any]]) -> dict[str, list[datetime]]:
    """Return by DAG the dates to which no run has come, although an automatic run has come to a later one.

    :param begun: DAG, date and cycle that a run has come to, and whether an automatic one has.
    """
    reached: dict[str, tuple[date, str]] = {}
    there: dict[str, set[tuple[date, str]]] = defaultdict(set)
    for row in begun:
        at = (row["business_date"], row["cycle"])
        there[row["dag_id"]].add(at)
        if row["automatic"]:
            reached[row["dag_id"]] = max(at, reached.get(row["dag_id"], at))
    found: dict[str, list[datetime]] = {}
    for operation in OPERATIONS.values():
        name = operation.dag_id
        if name in reached:
            before = (at for at in plan.occasions(operation) if at < reached[name])
            found[name] = [start_of(*at) for at in before if at not in there[name]]
    return found
