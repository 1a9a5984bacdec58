"""The pages over an empty ledger of every kind, with two DAGs that Airflow knows."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from tests import airflow_environment
from tests.contract.attempts import new_ledger
from tests.ui.auth_manager import ONE_DAG
from tests.ui.forms.site import LEDGER, SECRET, Site

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.databases import DatabaseUnderTest

PAYMENTS = "payments"


@pytest.fixture(scope="session")
def airflow_users(airflow_home: Path) -> Iterator[None]:
    """Airflow's auth manager with its users, and the DAGs ``payments`` and ``balance_letters``."""
    from airflow.api_fastapi.app import init_auth_manager
    from airflow.providers.standard.operators.empty import EmptyOperator
    from airflow.sdk import DAG

    patched = pytest.MonkeyPatch()
    patched.setenv("AIRFLOW__CORE__AUTH_MANAGER", "tests.ui.auth_manager.OneDagAuthManager")
    patched.setenv("AIRFLOW__API__SECRET_KEY", SECRET)
    for dag_id in (PAYMENTS, ONE_DAG):
        with DAG(dag_id, schedule=None, start_date=datetime(2026, 1, 1)) as dag:  # noqa: DTZ001 - Airflow makes it UTC
            EmptyOperator(task_id="pay")
        airflow_environment.enter_dag(dag)
    init_auth_manager()
    yield
    patched.undo()


@pytest.fixture
def site(database: DatabaseUnderTest, airflow_users: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """The pages over a ledger that has nothing yet."""
    ledger = new_ledger(database.url)
    monkeypatch.setenv(f"AIRFLOW_CONN_{LEDGER.upper()}", database.airflow_connection())
    monkeypatch.setenv("AIRFLOW__AIRFLOW_GUARD__LEDGER_CONN_IDS", LEDGER)
    yield Site(ledger)
    ledger.database.dispose()
