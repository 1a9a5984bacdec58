"""How long Airflow's API server takes for each page, asked over HTTP as a browser asks it."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_guard.reading.monitor import Monitor
from benchmarks.readers import READERS
from tests.history import DAGS, LAST, document
from tests.ui.airflow_with_pages import AirflowWithPages

if TYPE_CHECKING:
    import httpx
    import sqlalchemy as sa

    from airflow_guard.store.ledger import Ledger

LIMIT_MS = 300.0
CALLS = 9
_WARM_UP = 2
_DAG_FILE = """
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

for dag_id in {dags}:
    with DAG(dag_id, schedule=None) as dag:
        EmptyOperator(task_id="post")
    globals()[dag_id] = dag
"""


def answers(ledger: Ledger) -> list[tuple[str, float, float, str]]:
    """Return the median of each page in milliseconds, the slower of the two readers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "dags").mkdir()
        (folder / "dags" / "history.py").write_text(_DAG_FILE.format(dags=DAGS))
        connections = {"history": _connection(ledger.database.url)}
        settings = {
            "AIRFLOW__CORE__AUTH_MANAGER": "benchmarks.readers.TwoDagsAuthManager",
            "AIRFLOW__AIRFLOW_GUARD__PAGE_TIMEOUT_SECONDS": "60",
        }
        with AirflowWithPages(folder, connections, "history", dags=folder / "dags", **settings) as airflow:
            airflow.know_dags()
            slowest = dict.fromkeys(_addresses(ledger), 0.0)
            for reader, user in READERS.items():
                with airflow.client(user) as client:
                    for page, path in _addresses(ledger).items():
                        best, median = _best_and_median_ms(client, path)
                        print(f"| {page} | {reader} | {best:.0f} | {median:.0f} |", flush=True)
                        slowest[page] = max(slowest[page], median)
    return [(f"page: {page}", median, LIMIT_MS, "ms") for page, median in slowest.items()]


def _best_and_median_ms(client: httpx.Client, path: str) -> tuple[float, float]:
    times = []
    for number in range(_WARM_UP + CALLS):
        started = time.perf_counter()
        answer = client.get(path)
        took = (time.perf_counter() - started) * 1000
        if answer.status_code != 200:
            raise RuntimeError(f"{path} was answered with {answer.status_code}")
        if number >= _WARM_UP:
            times.append(took)
    return min(times), statistics.median(times)


def _addresses(ledger: Ledger) -> dict[str, str]:
    """Return every page that reads the ledger; what it is about is of a DAG that both readers may read."""
    monitor, dag = Monitor(ledger, limit_s=60), DAGS[0]
    readable = frozenset({dag})
    named = document(dag, LAST - timedelta(days=40), 5)
    (key,) = monitor.find(named, None).keys
    (open_key,) = monitor.keys(readable, limit=1).rows
    (break_,) = monitor.breaks(readable, limit=1).rows
    (check,) = monitor.checks(readable, limit=1).rows
    cut = f"dag_id={dag}&run_id=scheduled__{LAST}&task_id=post"
    return {
        "overview": "/",
        "overview, a date": f"/?until={LAST - timedelta(days=31)}&date={LAST - timedelta(days=40)}",
        "what needs a person": "/attention",
        "a date": f"/day?dag={dag}&date={LAST}",
        "to settle": "/open",
        "keys": "/keys",
        "keys, page 200": "/keys?page=200",
        "keys of a DAG, page 50": f"/keys?dag={dag}&page=50",
        "a key": f"/key?date={key.key_date}&key={key.key_hash}",
        "breaks": "/breaks",
        "breaks that are resolved": "/breaks?state=resolved",
        "a break": f"/break?id={break_.id}",
        "blocked": "/blocked",
        "checks": "/checks",
        "a check": f"/check?id={check.id}",
        "search for a document": f"/search?q={named}",
        "search by the beginning of a key": f"/search?q={key.key_hash[:8]}",
        "search by what the receiver was given": f"/search?q={'f' * 32}",
        "tab of a DAG": f"/tab/dag?{cut}",
        "tab of a run": f"/tab/run?{cut}",
        "tab of a task": f"/tab/task?{cut}",
        "tab of a try": f"/tab/task_instance?{cut}&map_index={{MAP_INDEX}}",
        "changes": "/changes",
        "form: settle a break": f"/forms/break?ledger=history&id={break_.id}",
        "form: execute again": f"/forms/rerun?ledger=history&pick={open_key.key_date}.{open_key.key_hash}",
    }


def _connection(url: sa.URL) -> str:
    """Return a database of the benchmark as an Airflow connection."""
    host = url.query.get("host") or url.host
    port = url.query.get("port") or url.port
    return json.dumps({
        "conn_type": "postgres", "host": host, "port": int(str(port)) if port else None, "login": url.username,
        "password": url.password, "schema": url.database,
    })  # fmt: skip
