"""What a guarded task costs beside a PythonOperator in dag.test(), and what the import costs."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap

DAG_TEST = textwrap.dedent(
    """
    import json, logging, os, statistics, sys, time
    logging.disable(logging.CRITICAL)
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.providers.standard.operators.python import PythonOperator
    from airflow.sdk import DAG
    import pendulum
    from airflow_guard import IdempotentOperator
    from tests.airflow_environment import enter_dag, migrate

    migrate()

    def nothing():
        return 1

    def dag(name, operator, **more):
        with DAG(name, schedule=None, start_date=pendulum.datetime(2026, 1, 1)) as made:
            operator(task_id="work", python_callable=nothing, **more)
        return made

    plain = dag("plain", PythonOperator)
    guarded = dag("guarded", IdempotentOperator, ledger_conn_id="ledger")
    for one in (plain, guarded):
        enter_dag(one)
    times = {"plain": [], "guarded": []}
    for day in range(1, 23):
        for one in (plain, guarded):
            started = time.perf_counter()
            run = one.test(logical_date=pendulum.datetime(2026, 1, day), use_executor=False)
            times[one.dag_id].append(time.perf_counter() - started)
            assert str(run.state) == "success", run.state
    print(json.dumps({name: statistics.median(values[2:]) * 1000 for name, values in times.items()}))
    """
)
IMPORT = "import time; s=time.perf_counter(); import {module}; print((time.perf_counter()-s)*1000)"


def _python(code: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **env}, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return done.stdout.strip().splitlines()[-1]


def task_overhead_ms(ledger_url: str) -> tuple[float, float]:
    """Return milliseconds of a dag.test() with a PythonOperator and with a guarded task."""
    with tempfile.TemporaryDirectory() as home:
        connection = json.dumps(_connection(ledger_url))
        found = json.loads(_python(DAG_TEST, AIRFLOW_HOME=home, AIRFLOW_CONN_LEDGER=connection))
    return found["plain"], found["guarded"]


def import_ms() -> tuple[float, float]:
    """Return milliseconds to import airflow.sdk, and airflow_guard's operator after it."""
    with tempfile.TemporaryDirectory() as home:
        sdk = [float(_python(IMPORT.format(module="airflow.sdk"), AIRFLOW_HOME=home)) for _ in range(5)]
        both = IMPORT.replace("{module}", "airflow.sdk, airflow_guard")
        ours = [float(_python(both, AIRFLOW_HOME=home)) for _ in range(5)]
    return statistics.median(sdk), statistics.median(ours)


def _connection(url: str) -> dict[str, object]:
    import sqlalchemy as sa

    parsed = sa.make_url(url)
    host = parsed.host or str(parsed.query.get("host", ""))
    return {
        "conn_type": "postgres", "host": host, "login": parsed.username, "password": parsed.password,
        "schema": parsed.database, "port": parsed.port,
    }  # fmt: skip
