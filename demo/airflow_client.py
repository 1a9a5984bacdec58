"""Airflow's REST API, as far as the demo and the tests under the real scheduler need it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import quote

import httpx

from airflow_guard.core.errors import GuardError
from demo.waiting import QUIET_S, Patience

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from datetime import datetime

__all__ = ["ENDED", "AirflowClient", "AirflowRefused", "DagRun", "NoSuchTask", "TaskInstance"]

Reprocess = Literal["none", "failed", "completed"]
#: States of a run that has ended.
ENDED = frozenset({"success", "failed"})
_PAGE = 100


class AirflowRefused(GuardError):
    """Airflow refused a request; the message holds its answer."""


class NoSuchTask(GuardError):
    """A run has no such task, or the task does not run now."""


@dataclass(frozen=True, slots=True)
class DagRun:
    """A run as Airflow sees it; ``state`` is Airflow's word."""

    run_id: str
    run_type: str
    state: str
    logical_date: str | None
    interval_start: str | None


@dataclass(frozen=True, slots=True)
class TaskInstance:
    """A task of a run; ``pid`` is the process that executes, or executed, the try."""

    task_id: str
    map_index: int
    state: str | None
    try_number: int
    pid: int | None


class AirflowClient:
    """Talks to an API server as one user.

    :param address: ``http://127.0.0.1:PORT``.
    :param user: who logs in, at the first request.
    :param password: of that user.
    :param alive: called while waiting; raises if waiting is pointless because a process has ended.
    :param signs: what moves while this Airflow works, for waits, see :class:`~demo.waiting.Patience`.
    :param timeout_s: seconds that an answer to a question may take.
    :param changes_timeout_s: the same for what changes something: without an answer nobody knows whether it was done.

    ``told`` is called with what is waited for, again and again.
    """

    def __init__(
        self,
        address: str,
        user: str,
        password: str,
        *,
        alive: Callable[[], None] = lambda: None,
        signs: Callable[[], object] = lambda: None,
        timeout_s: float = 60,
        changes_timeout_s: float = QUIET_S,
    ) -> None:
        # Not through a proxy that the environment names.
        self._http = httpx.Client(base_url=address, timeout=timeout_s, trust_env=False)
        self._credentials = {"username": user, "password": password}
        self._alive = alive
        self._signs = signs
        self._changes_timeout_s = changes_timeout_s
        self.told: Callable[[str], None] = lambda _: None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def request(self, method: str, path: str, **arguments: Any) -> Any:
        """Send one request and return its JSON answer, ``None`` if it has none.

        :param path: below the server's address, ``/api/v2/…``.
        :param arguments: as for ``httpx.Client.request``: ``json``, ``params``, ``headers``.
        :raises AirflowRefused: the answer is an error.
        :raises httpx.TransportError: there was no answer.
        """
        if "Authorization" not in self._http.headers:
            self._log_in()
        if method != "GET":
            arguments.setdefault("timeout", self._changes_timeout_s)
        response = self._http.request(method, path, **arguments)
        if response.status_code == httpx.codes.UNAUTHORIZED:
            self._log_in()
            response = self._http.request(method, path, **arguments)
        return _answer(response)

    def _log_in(self) -> None:
        token = _answer(self._http.post("/auth/token", json=self._credentials))["access_token"]
        self._http.headers["Authorization"] = f"Bearer {token}"

    def health(self) -> dict[str, str | None]:
        """Return the state of each component: ``healthy``, ``unhealthy`` or ``None`` if it never reported."""
        answer: dict[str, dict[str, Any] | None] = _answer(self._http.get("/api/v2/monitor/health"))
        return {name: (part or {}).get("status") for name, part in answer.items()}

    def dag_ids(self) -> list[str]:
        """Return the DAGs that are parsed and may run."""
        answer = self.request("GET", "/api/v2/dags", params={"limit": _PAGE})
        return [dag["dag_id"] for dag in answer["dags"]]

    def import_errors(self) -> dict[str, str]:
        """Return the error of each DAG file that does not import."""
        errors = self.request("GET", "/api/v2/importErrors", params={"limit": _PAGE})["import_errors"]
        return {error["filename"]: error["stack_trace"] for error in errors}

    # -- runs -----------------------------------------------------------------------------------------------

    def trigger(
        self,
        dag_id: str,
        *,
        conf: Mapping[str, Any] | None = None,
        logical_date: datetime | None = None,
        run_id: str | None = None,
    ) -> str:
        """Start a manual run and return its id.

        :param conf: of the run.
        :param logical_date: aware; ``None``: the run has none.
        :param run_id: default: Airflow makes one.
        """
        body = {
            "conf": dict(conf or {}),
            "logical_date": logical_date.isoformat() if logical_date else None,
            **({"dag_run_id": run_id} if run_id else {}),
        }
        return str(self.request("POST", f"/api/v2/dags/{quote(dag_id)}/dagRuns", json=body)["dag_run_id"])

    def backfill(
        self,
        dag_id: str,
        start: datetime,
        end: datetime,
        *,
        reprocess: Reprocess = "none",
        max_active_runs: int = 10,
        conf: Mapping[str, Any] | None = None,
    ) -> int:
        """Create a backfill and return its id; its runs exist when this returns.

        :param start: first logical date, aware.
        :param end: last logical date, aware and included.
        :param reprocess: what becomes of runs that exist. ``completed`` clears and runs them again.
        :param max_active_runs: runs at the same time.
        :param conf: of every run.
        :raises AirflowRefused: for example because an earlier backfill of the DAG is not marked as completed,
            which the scheduler does every 30 seconds.
        """
        body = {
            "dag_id": dag_id,
            "from_date": start.isoformat(),
            "to_date": end.isoformat(),
            "reprocess_behavior": reprocess,
            "max_active_runs": max_active_runs,
            "dag_run_conf": dict(conf or {}),
        }
        return int(self.request("POST", "/api/v2/backfills", json=body)["id"])

    def backfill_completed(self, backfill_id: int) -> bool:
        """Whether the scheduler has marked a backfill as completed, so that another can be created."""
        return self.request("GET", f"/api/v2/backfills/{backfill_id}")["completed_at"] is not None

    def clear_run(self, dag_id: str, run_id: str, *, only_failed: bool = False) -> None:
        """Clear the tasks of a run, so that it runs again."""
        body = {"dry_run": False, "only_failed": only_failed}
        self.request("POST", f"{_run_path(dag_id, run_id)}/clear", json=body)

    def mark_run(self, dag_id: str, run_id: str, state: Literal["failed", "success"]) -> None:
        """Give a run a state by hand, as a person does in the UI."""
        self.request("PATCH", _run_path(dag_id, run_id), json={"state": state})

    def clear_task(self, dag_id: str, run_id: str, task_id: str, *, downstream: bool = False) -> None:
        """Clear one task of a run."""
        body = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": [task_id],
            "only_failed": False,
            "include_downstream": downstream,
        }
        self.request("POST", f"/api/v2/dags/{quote(dag_id)}/clearTaskInstances", json=body)

    def run(self, dag_id: str, run_id: str) -> DagRun:
        """Return one run."""
        return _dag_run(self.request("GET", _run_path(dag_id, run_id)))

    def runs(self, dag_id: str) -> list[DagRun]:
        """Return all runs of a DAG, oldest first."""
        found: list[DagRun] = []
        while True:
            page = {"limit": _PAGE, "offset": len(found), "order_by": "run_after"}
            answer = self.request("GET", f"/api/v2/dags/{quote(dag_id)}/dagRuns", params=page)
            found += [_dag_run(run) for run in answer["dag_runs"]]
            if len(found) >= answer["total_entries"] or not answer["dag_runs"]:
                return found

    def count_runs(
        self,
        dag_id: str,
        *,
        states: Collection[str] = (),
        run_type: str | None = None,
        logical_date: datetime | None = None,
    ) -> int:
        """Count the runs of a DAG; much cheaper for the server than :meth:`runs`.

        :param states: only runs in one of these.
        :param run_type: only runs of this type.
        :param logical_date: only the run of this date, aware.
        """
        which: dict[str, Any] = {"limit": 1, "state": list(states)}
        if run_type is not None:
            which["run_type"] = run_type
        if logical_date is not None:
            which["logical_date_gte"] = which["logical_date_lte"] = logical_date.isoformat()
        return int(
            self.request("GET", f"/api/v2/dags/{quote(dag_id)}/dagRuns", params=which)["total_entries"]
        )

    # -- tasks ----------------------------------------------------------------------------------------------

    def tasks(self, dag_id: str, run_id: str) -> list[TaskInstance]:
        """Return the tasks of a run."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances"
        found = self.request("GET", path, params={"limit": 10 * _PAGE})["task_instances"]
        names = ("task_id", "map_index", "state", "try_number", "pid")
        return [TaskInstance(**{name: task[name] for name in names}) for task in found]

    def task(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> TaskInstance:
        """Return one task of a run.

        :raises NoSuchTask: the run has no such task.
        """
        for task in self.tasks(dag_id, run_id):
            if (task.task_id, task.map_index) == (task_id, map_index):
                return task
        raise NoSuchTask(f"run {run_id} of {dag_id} has no task {task_id} [{map_index}]")

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        """Return what a task returned.

        :raises AirflowRefused: it returned nothing.
        """
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}/xcomEntries/{quote(key)}"
        return self.request("GET", path, params={"deserialize": "true"})["value"]

    def task_log(self, dag_id: str, run_id: str, task_id: str, try_number: int, map_index: int = -1) -> str:
        """Return the log of one try, a line per entry."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}/logs/{try_number}"
        arguments = {"full_content": "true", "map_index": map_index}
        content = self.request("GET", path, params=arguments, headers={"Accept": "application/json"})[
            "content"
        ]
        return "\n".join(_log_line(entry) for entry in content)

    # -- waiting --------------------------------------------------------------------------------------------

    def wait(
        self,
        done: Callable[[], bool],
        what: str,
        *,
        signs: Callable[[], object] = lambda: None,
        every_s: float = 0.5,
    ) -> None:
        """Wait until something is so, for as long as this Airflow moves.

        :param done: asked again and again. A server that does not answer is no answer: it may be starting.
        :param what: names it in the message, "the run to end".
        :param signs: what moves besides.
        :raises NothingMoves: it is still not so, and nothing moves.
        """
        patience = Patience(what, lambda: (self._signs(), signs()))
        while not _answered(done):
            self._alive()
            self.told(what)
            patience.check()
            time.sleep(every_s)

    def wait_for_run(self, dag_id: str, run_id: str, states: Collection[str] = ENDED) -> DagRun:
        """Wait until a run has one of these states, and return it."""
        found: list[DagRun] = []

        def there() -> bool:
            found[:] = [self.run(dag_id, run_id)]
            return found[0].state in states

        what = f"run {run_id} of {dag_id} to be {' or '.join(sorted(states))}"
        self.wait(there, what, signs=lambda: [run.state for run in found])
        return found[0]

    def wait_for_task(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        states: Collection[str],
        *,
        try_number: int = 1,
    ) -> TaskInstance:
        """Wait until a task has one of these states in this try or a later one, and return it."""
        found: list[TaskInstance] = []

        def there() -> bool:
            found[:] = [task for task in self.tasks(dag_id, run_id) if task.task_id == task_id]
            return bool(found) and found[0].try_number >= try_number and found[0].state in states

        what = f"task {task_id} of run {run_id} to be {' or '.join(sorted(states))} in try {try_number}"
        self.wait(there, what, signs=lambda: [(task.try_number, task.state) for task in found])
        return found[0]


def _answered(done: Callable[[], bool]) -> bool:
    try:
        return done()
    except httpx.TransportError:
        return False


def _answer(response: httpx.Response) -> Any:
    if response.is_error:
        request = response.request
        raise AirflowRefused(
            f"Airflow answered {response.status_code} to {request.method} {request.url.path}: "
            f"{response.text:.2000}"
        )
    return response.json() if response.content else None


def _run_path(dag_id: str, run_id: str) -> str:
    return f"/api/v2/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}"


def _dag_run(answer: Mapping[str, Any]) -> DagRun:
    return DagRun(
        answer["dag_run_id"],
        answer["run_type"],
        answer["state"],
        answer["logical_date"],
        answer["data_interval_start"],
    )


def _log_line(entry: Any) -> str:
    if not isinstance(entry, dict):
        return str(entry)
    details = entry.get("error_detail") or ()
    errors = "".join(f" {error.get('exc_type')}: {error.get('exc_value')}" for error in details)
    return (
        f"{entry.get('timestamp') or ''} {entry.get('level') or ''} {entry.get('event', '')}{errors}".strip()
    )
