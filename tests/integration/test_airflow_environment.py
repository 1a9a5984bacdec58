"""The session's own Airflow runs DAGs, and knows this package as one of its providers."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pendulum

from airflow_guard.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_dag_runs_and_its_run_tells_how_it_ended(run_dag_test: Callable[..., object]) -> None:
    from airflow.sdk import DAG, task

    with DAG("environment_check", schedule=None) as dag:

        @task
        def divide(dag_run: object = None) -> float:
            return 1 / dag_run.conf["by"]

        divide()

    before = signal.getsignal(signal.SIGTERM)
    day = pendulum.datetime(2025, 3, 31)
    assert run_dag_test(dag, logical_date=day, run_conf={"by": 1}).state == "success"
    assert run_dag_test(dag, logical_date=day.add(days=1), run_conf={"by": 0}).state == "failed"
    assert signal.getsignal(signal.SIGTERM) is before


def test_nothing_of_a_real_airflow_is_touched(airflow_home: Path) -> None:
    from airflow.configuration import conf

    assert (airflow_home / "airflow.db").exists()
    assert str(airflow_home) in conf.get("database", "sql_alchemy_conn")
    assert airflow_home != Path("~/airflow").expanduser()
    assert os.environ["AIRFLOW_HOME"] == str(airflow_home)


def test_airflow_knows_the_provider(airflow_home: Path) -> None:
    from airflow.configuration import conf
    from airflow.providers_manager import ProvidersManager

    manager = ProvidersManager()
    assert manager.providers["airflow-guard"].version == __version__
    assert "airflow_guard" in dict(manager.provider_configs)["airflow-guard"]
    conf.load_providers_configuration()
    assert conf.get("airflow_guard", "table_prefix") == "guard_"
