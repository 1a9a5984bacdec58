"""Chunks over Celery's workers: one worker against two, guarded against by hand, in one Airflow on one machine.

A Redis, two PostgreSQL servers, a scheduler, an API server, a DAG processor and the workers are started for it, and end
with it. Each run is timed by Airflow's own clock, from its start to its end.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self

import psycopg

from airflow_guard.store.database import LedgerDatabase
from airflow_guard.store.migrate import migrate
from chaos.broker import Broker
from demo.postgres import EmbeddedPostgres
from demo.stack import COMPONENTS, AirflowStack

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNKS, POSTED, CALLED, ROUNDS = 16, 4_000, 400, 3
_DAGS = Path(__file__).parent / "dags"
_ROOT = Path(__file__).parents[1]
_TABLE = "CREATE TABLE posted (kind text NOT NULL, run_id text NOT NULL, document text NOT NULL)"
_WORK = {"posts": POSTED, "calls": CALLED}


@dataclass
class Timed:
    """What was measured of one DAG."""

    documents: int
    run_s: list[float] = field(default_factory=list)
    task_s: list[float] = field(default_factory=list)
    connections: int = 0

    @property
    def per_second(self) -> float:
        """Documents per second over the whole run, the median."""
        return self.documents / statistics.median(self.run_s)


class _Peak:
    """How many connections the tasks had to the business database at most, as seen by the server."""

    def __init__(self, url: str) -> None:
        self._dsn = _dsn(url)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.most = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(10)

    def _look(self) -> None:
        count = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'bank' AND pid <> pg_backend_pid()"
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._over.wait(0.02):
                (now,) = connection.execute(count).fetchone() or (0,)
                self.most = max(self.most, now)


def measure(workers: int) -> dict[str, Timed]:
    """Return what was measured with so many workers, by the id of the DAG."""
    with ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="guard-bench-")))
        folder.chmod(0o755)  # the servers run as another user, where root starts them
        settings = {"max_connections": "300"}
        metadata = cleanup.enter_context(EmbeddedPostgres(folder / "metadata", settings=settings))
        metadata.create_database("airflow")
        bank = cleanup.enter_context(EmbeddedPostgres(folder / "business", settings=settings))
        bank.create_database("bank")
        url = bank.url("bank")
        database = LedgerDatabase(url)
        migrate(database)
        database.dispose()
        broker = cleanup.enter_context(Broker(folder / "redis"))
        airflow = cleanup.enter_context(_airflow(folder, metadata, bank, broker, workers))
        dag_ids = [f"{how}_{what}" for what in _WORK for how in ("by_hand", "guarded")]
        airflow.wait_for_dag(*dag_ids)
        with psycopg.connect(_dsn(url), autocommit=True) as connection:
            connection.execute(_TABLE)
            return dict(_timed(airflow, url, connection, dag_ids))


def _timed(
    airflow: AirflowStack, url: str, connection: psycopg.Connection[tuple[object, ...]], dag_ids: list[str]
) -> Iterator[tuple[str, Timed]]:
    found = {each: Timed(CHUNKS * _WORK[each.rpartition("_")[2]]) for each in dag_ids}
    for dag_id in dag_ids:
        _run(airflow, dag_id)  # the first one imports, and is not counted
    for _ in range(ROUNDS):
        for dag_id, timed in found.items():
            with _Peak(url) as peak:
                run_id = _run(airflow, dag_id)
            run, tasks = _times(airflow, dag_id, run_id)
            timed.run_s.append(run)
            timed.task_s += tasks
            timed.connections = max(timed.connections, peak.most)
            _assert_done(connection, dag_id, run_id, timed.documents)
    yield from found.items()


def _run(airflow: AirflowStack, dag_id: str) -> str:
    run_id = airflow.client.trigger(dag_id, conf={"business_date": "2026-01-30"})
    run = airflow.client.wait_for_run(dag_id, run_id)
    assert run.state == "success", f"{run_id} of {dag_id} is {run.state}"
    return run_id


def _assert_done(
    connection: psycopg.Connection[tuple[object, ...]], dag_id: str, run_id: str, documents: int
) -> None:
    """Both sides have done the same: each document once."""
    if dag_id == "guarded_calls":
        done = "SELECT count(*) FROM guard_execution WHERE operation = 'call' AND cycle = %s AND state = 'completed'"
        row = connection.execute(done, (run_id,)).fetchone()
    else:
        posted = "SELECT count(DISTINCT document) FROM posted WHERE run_id = %s HAVING count(*) = count(DISTINCT document)"
        row = connection.execute(posted, (run_id,)).fetchone()
    assert row == (documents,), f"{dag_id}: {row} documents, not {documents:,}"


def _times(airflow: AirflowStack, dag_id: str, run_id: str) -> tuple[float, list[float]]:
    """Return the seconds of a run, and of each of its tasks."""
    path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}"
    run = airflow.client.request("GET", path)
    tasks = airflow.client.request("GET", f"{path}/taskInstances", params={"limit": 100})["task_instances"]
    began, ended = (datetime.fromisoformat(run[name]) for name in ("start_date", "end_date"))
    return (ended - began).total_seconds(), [each["duration"] for each in tasks]


def _airflow(
    folder: Path, metadata: EmbeddedPostgres, bank: EmbeddedPostgres, broker: Broker, workers: int
) -> AirflowStack:
    names = dict(list(broker.components(folder).items())[:workers])
    place = {"host": str(bank.socket_dir), "port": bank.port, "login": "postgres", "schema": "bank"}
    return AirflowStack(
        folder / "airflow",
        _DAGS,
        metadata.url("airflow"),
        connections={"bank": json.dumps({"conn_type": "postgres", **place})},
        settings={
            **broker.settings(metadata.url("airflow")),
            # No task is to be given out twice here.
            "AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__VISIBILITY_TIMEOUT": "3600",
            "AIRFLOW__CORE__PARALLELISM": "32",
            "AIRFLOW__AIRFLOW_GUARD__LEDGER_CONN_ID": "bank",
            "PYTHONPATH": str(_ROOT),
            "CHUNKS": json.dumps({"chunks": CHUNKS, "posted": POSTED, "called": CALLED}),
        },
        components={
            **{name: command for name, command in COMPONENTS.items() if name != "triggerer"},
            **names,
        },
    )


def _dsn(url: str) -> str:
    return url.replace("postgresql+psycopg:", "postgresql:", 1)


def table() -> list[str]:
    """Measure with one worker and with two, and return the lines of the table."""
    head = (
        "work", "workers", "by hand, documents/s", "guarded, documents/s", "ratio", "a task by hand", "guarded",
        "connections, peak",
    )  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for workers in (1, 2):
        found = measure(workers)
        for what, size in _WORK.items():
            hand, ours = found[f"by_hand_{what}"], found[f"guarded_{what}"]
            tasks = [statistics.median(each.task_s) for each in (hand, ours)]
            lines.append(
                f"| {CHUNKS} chunks of {size:,} {what} | {workers} | {hand.per_second:,.0f} | {ours.per_second:,.0f} | "
                f"{ours.per_second / hand.per_second:.2f} | {tasks[0]:.1f} s | {tasks[1]:.1f} s | {ours.connections} |"
            )
    return lines
