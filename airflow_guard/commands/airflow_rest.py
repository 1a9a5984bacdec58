"""The scheduling log through Airflow's REST API, for who cannot reach the metadata database. GET requests only."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow_guard.core.diagnosis import Run, Try
from airflow_guard.core.errors import ResolutionError
from airflow_guard.store.scheduling_log import is_about

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from datetime import date

    import httpx

_PAGE = 100


class RestLog:
    """The runs and tries of a DAG, as :class:`~airflow_guard.store.scheduling_log.SchedulingLog` gives them.

    The API does not tell how often a run was cleared: its tries do.

    :param client: with the address of the API server, and with authorisation.
    """

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def runs(self, dag_id: str, day: date, known: Collection[str] = (), zone: str = "UTC") -> list[Run]:
        """Return the runs about a business date, oldest first, each with all of its tries.

        :raises ResolutionError: there is no such DAG, no permission, or no answer (then a retry helps).
        """
        path = f"/api/v2/dags/{quote(dag_id, safe='')}/dagRuns"
        found = []
        for run in self._pages(path, "dag_runs"):
            begins = _instant(run["data_interval_start"] or run["logical_date"])
            if is_about(run["dag_run_id"], run["conf"], begins, day, known, zone):
                tries = tuple(self._tries(f"{path}/{quote(run['dag_run_id'], safe='')}/taskInstances"))
                user = run.get("triggering_user_name") or ""
                found.append(Run(run["dag_run_id"], run["run_type"], run["state"], 0, user, tries))
        return sorted(found, key=lambda run: run.run_id)

    def execution_timeouts(self, dag_id: str) -> dict[str, timedelta]:
        """Return the ``execution_timeout`` of the tasks that have one."""
        answer = self._get(f"/api/v2/dags/{quote(dag_id, safe='')}/tasks", {})
        return {
            task["task_id"]: timedelta(
                days=task["execution_timeout"]["days"],
                seconds=task["execution_timeout"]["seconds"],
                microseconds=task["execution_timeout"]["microseconds"],
            )
            for task in answer["tasks"]
            if task.get("execution_timeout")
        }

    def _tries(self, path: str) -> Iterator[Try]:
        for instance in self._pages(path, "task_instances"):
            task = f"{path}/{quote(instance['task_id'], safe='')}"
            mapped = f"/{instance['map_index']}" if instance["map_index"] >= 0 else ""
            for each in self._get(f"{task}{mapped}/tries", {})["task_instances"]:
                if each["start_date"] is not None:
                    yield Try(
                        each["task_id"], each["map_index"], each["try_number"], each["state"] or "",
                        _instant(each["start_date"]), _instant(each["end_date"]), each["hostname"] or "",
                    )  # fmt: skip

    def _pages(self, path: str, name: str) -> Iterator[dict[str, Any]]:
        offset = 0
        while True:
            rows = self._get(path, {"limit": _PAGE, "offset": offset})[name]
            yield from rows
            if len(rows) < _PAGE:
                return
            offset += _PAGE

    def _get(self, path: str, parameters: dict[str, int]) -> Any:
        import httpx

        try:
            response = self._client.get(path, params=parameters)
        except httpx.TransportError as error:
            raise ResolutionError(f"Airflow's API does not answer: {error}.") from error
        if response.status_code != httpx.codes.OK:
            raise ResolutionError(
                f"Airflow's API refused {path}: {response.status_code} {response.text[:200]}"
            )
        return response.json()


def open_rest(url: str, token: str | None) -> httpx.Client:
    """Return a client of an API server.

    :param token: a JSON web token, as ``POST /auth/token`` gives it; ``None``: no authorisation.
    :raises ResolutionError: httpx is not installed.
    """
    try:
        import httpx
    except ImportError:
        raise ResolutionError("--airflow-url needs httpx, which Airflow brings. Nothing was read.") from None
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.Client(base_url=url, headers=headers, timeout=30)


def _instant(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
