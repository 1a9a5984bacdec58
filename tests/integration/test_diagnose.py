"""``diagnose`` on what a real Airflow and a real business table hold."""

from __future__ import annotations

import json
import socket
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG

from airflow_guard import IdempotentOperator
from airflow_guard.commands.main import main
from airflow_guard.core.errors import ResolutionError
from demo.waiting import QUIET_S
from tests.airflow_runs import start_run
from tests.databases import databases

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.conftest import Business

pytestmark = databases("sqlite")
DAY = datetime(2026, 1, 30, tzinfo=UTC)


def diagnosed(business: Business, dag_id: str, capsys: pytest.CaptureFixture[str]) -> Any:
    capsys.readouterr()
    asked = [
        "diagnose",
        dag_id,
        "2026-01-30",
        "--table",
        "booked",
        "--table-key",
        "document",
        "--date-column",
        "day",
    ]
    assert main([*asked, "--ledger", business.database.url, "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("guarded", [True, False])
def test_a_date_that_was_triggered_twice(
    business: Business, airflow_home: Path, capsys: pytest.CaptureFixture[str], guarded: bool
) -> None:
    """Without the guard the rows are doubled; with it they are not, and both are said."""
    del airflow_home
    engine = business.ledger.engine
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE booked (document varchar(20), day date)"))

    def book(document: str, logical_date: datetime) -> None:
        with engine.begin() as connection:
            connection.execute(
                sa.text("INSERT INTO booked VALUES (:it, :day)"),
                {"it": document, "day": str(logical_date.date())},
            )

    with DAG(
        f"{business.dag_id}_{guarded}", schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=UTC)
    ) as dag:
        if guarded:
            IdempotentOperator(
                task_id="post", python_callable=book, document="S-1", ledger_conn_id="guard_ledger",
                execution_timeout=timedelta(hours=1),
            )  # fmt: skip
        else:
            PythonOperator(task_id="post", python_callable=book, op_args=["S-1"])
    start_run(dag, run_type="scheduled", logical_at=DAY).go()
    second = start_run(dag, run_type="manual", logical_at=DAY + timedelta(hours=5)).go()
    second.clear().go()
    start_run(dag, run_type="scheduled", logical_at=DAY + timedelta(days=1)).go()
    said = diagnosed(business, dag.dag_id, capsys)
    causes = [finding["cause"] for finding in said["findings"]]
    assert causes[:2] == ["duplicate triggering", "a batch rerun whole"]
    if guarded:
        assert causes[2:] == ["held back by the ledger"]
        assert "did no harm" in said["conclusion"]
    else:
        assert causes[2:] == ["doubled in the business table"]
        assert "Business rows are doubled" in said["conclusion"]


@pytest.fixture
def api(airflow_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Airflow's own API server on a free port, with a token in the environment."""
    import httpx
    import uvicorn

    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS", "True")
    from airflow.api_fastapi.app import create_app

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(create_app("all"), log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [free]})
        free.listen()
        thread.start()
        token = httpx.get(f"{url}/auth/token", timeout=QUIET_S).json()["access_token"]
        monkeypatch.setenv("AIRFLOW_GUARD_API_TOKEN", token)
        yield url
        server.should_exit = True
        thread.join()


def test_the_scheduling_log_is_read_where_it_can_be_reached(
    business: Business, api: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with DAG(
        f"{business.dag_id}_both", schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=UTC)
    ) as dag:
        PythonOperator(task_id="post", python_callable=str)
    start_run(dag, run_type="scheduled", logical_at=DAY).go().clear().go()
    asked = ["diagnose", dag.dag_id, "2026-01-30", "--ledger", business.database.url, "-o", "json"]

    def told(*options: str) -> tuple[Any, str]:
        capsys.readouterr()
        assert main([*asked, *options]) == 0
        printed = capsys.readouterr()
        # The server logs to the same output.
        return json.JSONDecoder().raw_decode(printed.out[printed.out.index("{\n") :])[0], printed.err

    said, note = told("--airflow-url", api)
    assert f"read through Airflow's API at {api}" in note
    assert said["scheduling_log"] == f"Airflow's API at {api}"
    stored, note = told()
    assert "read from Airflow's metadata database" in note
    assert [each["cause"] for each in said["findings"]] == ["duplicate execution"]
    assert len(stored["findings"]) == 1
    said, note = told("--airflow-url", "http://127.0.0.1:1")
    assert "does not answer" in note
    assert "read from Airflow's metadata database" in note
    assert said == stored
    monkeypatch.setenv("AIRFLOW_GUARD_API_TOKEN", "expired")
    said, note = told("--airflow-url", api)
    assert (
        "; AIRFLOW_GUARD_API_TOKEN must hold a token that it takes. The scheduling log is read from" in note
    )
    assert said == stored
    nowhere = [
        "--airflow-url",
        "http://127.0.0.1:1",
        "--airflow-db",
        "postgresql://airflow:s3cret@127.0.0.1:1/airflow",
    ]
    assert main([*asked, *nowhere]) == 1
    refused = capsys.readouterr().err
    assert "does not answer" in refused
    assert "cannot be reached" in refused
    assert "s3cret" not in refused


def test_a_misspelt_business_table_or_column_is_named_with_near_ones(
    business: Business, airflow_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with business.ledger.engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE booked (document varchar(20), day date)"))
    for table, key, says in (
        ("boked", "document", "There is no table boked. Did you mean booked?"),
        ("booked", "documents", "booked has no column documents. Did you mean document?"),
    ):
        asked = ["diagnose", "statements", "2026-01-30", "--table", table, "--table-key", key]
        assert main([*asked, "--ledger", business.database.url]) == 1
        assert says in capsys.readouterr().err


def test_the_rest_api_and_the_metadata_database_say_the_same(
    business: Business, airflow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow's own API, in this process."""
    del airflow_home
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS", "True")
    from airflow.api_fastapi.app import create_app
    from airflow.configuration import conf
    from starlette.testclient import TestClient

    from airflow_guard.commands.airflow_rest import RestLog
    from airflow_guard.store.scheduling_log import SchedulingLog

    with DAG(
        f"{business.dag_id}_rest", schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=UTC)
    ) as dag:
        PythonOperator(task_id="post", python_callable=str, execution_timeout=timedelta(minutes=10))
    start_run(dag, run_type="scheduled", logical_at=DAY).go().clear().go()
    by_hand = {"business_date": "2026-01-30"}
    start_run(dag, run_type="manual", logical_at=DAY + timedelta(days=3), conf=by_hand).go()
    start_run(dag, run_type="scheduled", logical_at=DAY + timedelta(days=1)).go()
    engine = sa.create_engine(conf.get("database", "sql_alchemy_conn"))
    stored = SchedulingLog(engine)
    with TestClient(create_app("all")) as client:
        token = client.get("/auth/token").json()["access_token"]
        client.headers["Authorization"] = f"Bearer {token}"
        rest = RestLog(client)
        told = rest.runs(dag.dag_id, DAY.date())
        known = [replace(run, cleared=0) for run in stored.runs(dag.dag_id, DAY.date())]
        assert [(run.run_type, len(run.tries)) for run in told] == [("manual", 1), ("scheduled", 2)]
        assert [replace(run, tries=sorted(run.tries, key=str)) for run in told] == [
            replace(run, tries=sorted(run.tries, key=str)) for run in known
        ]
        limits = {"post": timedelta(minutes=10)}
        assert rest.execution_timeouts(dag.dag_id) == stored.execution_timeouts(dag.dag_id) == limits
        with pytest.raises(ResolutionError, match="404"):
            rest.runs("no_such_dag", DAY.date())
    engine.dispose()
