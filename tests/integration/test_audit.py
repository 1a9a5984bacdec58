"""``audit`` of DAG files, imported as Airflow imports them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_guard.commands.main import main
from tests.databases import databases

if TYPE_CHECKING:
    import pytest

    from tests.integration.conftest import Business

EXAMPLES = Path(__file__).parents[2] / "dags_examples"
RISKY = """
from datetime import datetime, timedelta
from airflow.providers.standard.operators.python import PythonOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG

print("this must not get into the data")
with DAG("risky", schedule="@daily", start_date=datetime(2026, 1, 1), catchup=True):
    TriggerDagRunOperator(task_id="trigger", trigger_dag_id="pay", retries=2)
    PythonOperator(task_id="compute", python_callable=print)
"""


def audited(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert main(["audit", *arguments, "-o", "json"]) == code
    return json.loads(capsys.readouterr().out)


def test_the_examples_have_nothing_high(airflow_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del airflow_home
    said = audited(capsys, str(EXAMPLES), "--fail-on", "medium")
    tasks = {(each["dag"], each["task"]): each for each in said["tasks"]}
    post = tasks["bank_statements", "post"]
    assert (post["side_effect"], post["protection"], post["retries"]) == (
        "database",
        "ledger, once per date",
        3,
    )
    assert tasks["payment_file", "send"]["protection"] == "ledger, once per document"
    assert tasks["monthly_settlement", "settle"]["side_effect"] == "database"  # mapped
    assert tasks["rerun_month", "four_eyes"]["side_effect"] == "none"
    assert not any("no DAG watches" in each["problem"] for each in said["findings"]), "guard_watch.py does"
    alone = audited(capsys, str(EXAMPLES / "bank_statements.py"))
    assert any("no DAG watches" in each["problem"] for each in alone["findings"])


def test_a_risky_folder_fails_and_names_the_task(
    airflow_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del airflow_home
    (tmp_path / "risky.py").write_text(RISKY)
    (tmp_path / "broken.py").write_text("from airflow.sdk import DAG\nimport no_such_module_at_all\n")
    said = audited(capsys, str(tmp_path), code=1)
    high = [(each["task"], each["severity"]) for each in said["findings"] if each["severity"] == "high"]
    assert sorted(high, key=str) == [("trigger", "high"), (None, "high")]
    assert any("no_such_module_at_all" in each["problem"] for each in said["findings"])
    audited(capsys, str(tmp_path), "--fail-on", "never")
    (tmp_path / "broken.py").unlink()
    assert main(["audit", str(tmp_path / "risky.py")]) == 1  # a file, as a hook gives it; a table
    assert "catchup=True" in capsys.readouterr().out
    assert main(["audit", str(tmp_path / "nowhere")]) == 2


@databases("sqlite")
def test_timeouts_are_compared_with_the_history_of_the_ledger(
    business: Business, airflow_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del airflow_home
    from dataclasses import replace
    from datetime import timedelta

    import sqlalchemy as sa

    from airflow_guard.store.ledger import Ledger
    from tests.contract.attempts import SPACE, opened

    (tmp_path / "slow.py").write_text(
        "from datetime import datetime, timedelta\n"
        "from airflow.sdk import DAG\n"
        "from airflow_guard import IdempotentOperator\n"
        "with DAG('slow', schedule=None, start_date=datetime(2026, 1, 1)):\n"
        "    IdempotentOperator(task_id='post', python_callable=print, retries=1, ledger_conn_id='guard_ledger',\n"
        "                       execution_timeout=timedelta(minutes=10))\n"
    )
    ledger = Ledger(business.ledger)
    number = opened(ledger, replace(SPACE, key_namespace="slow"))
    ledger.runs.close(number, "success", {})
    run = business.ledger.tables.task_run
    with business.ledger.engine.begin() as connection:
        (ended,) = connection.execute(sa.select(run.c.ended_at)).scalars()
        connection.execute(sa.update(run).values(started_at=ended - timedelta(minutes=9)))
    said = audited(capsys, str(tmp_path), "--fail-on", "medium", "--ledger", business.database.url, code=1)
    assert [each["problem"] for each in said["findings"] if each["severity"] == "medium"] == [
        "it took 0:09:00 of an execution_timeout of 0:10:00"
    ]
