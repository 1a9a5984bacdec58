"""Under the real scheduler: what Airflow knows to be secret is in no log, event, XCom or alert of a failing task."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from airflow_guard.store.tables import Tables
from tests.system.conftest import VAULT_PASSWORD, VAULT_TOKEN

if TYPE_CHECKING:
    from tests.system.conftest import RealAirflow

DAG = "secretive"


def task_logs(world: RealAirflow) -> str:
    """Return the logs of the tasks. (The scheduler's own output repeats them, and Airflow hides nothing there.)"""
    files = (world.airflow.log_folder / "tasks").rglob("*.log")
    return "\n".join(each.read_text(encoding="utf-8", errors="replace") for each in files)


def audit_and_tries(world: RealAirflow) -> str:
    """Return the events and tries of the DAG, every column."""
    tables = Tables()
    of_dag = (
        sa.select(tables.event).where(tables.event.c.key_text.contains(DAG)),
        sa.select(tables.task_run).where(tables.task_run.c.dag_id == DAG),
        sa.select(tables.execution).where(tables.execution.c.key_namespace == DAG),
    )
    with world.bank.connect() as connection:
        return "\n".join(str(row) for query in of_dag for row in connection.execute(query))


def test_no_secret_that_airflow_knows_is_in_a_log_or_an_alert(real_airflow: RealAirflow) -> None:
    client = real_airflow.airflow.client
    real_airflow.airflow.wait_for_dag(DAG)
    run_id = client.trigger(DAG, conf={"business_date": "2026-03-26"})
    assert client.wait_for_run(DAG, run_id).state == "failed"

    def mails() -> list[str]:
        bodies = enumerate(real_airflow.mailbox.subjects())
        return [f"{subject} {real_airflow.mailbox.body(n)}" for n, subject in bodies if DAG in subject]

    client.wait(lambda: len(mails()) >= 2, "alerts")
    produced = {"log": task_logs(real_airflow), "alerts": "\n".join(mails())}
    assert produced["log"].count("trying DOUBT with *** and ***") >= 1
    assert "says no to password=***" in produced["log"]
    assert "says no" in produced["alerts"]
    leaks = [
        f"{secret} in {name}"
        for secret in (VAULT_PASSWORD, VAULT_TOKEN)
        for name, text in produced.items()
        if secret in text
    ]
    assert not leaks
    assert "DOUBT" in audit_and_tries(real_airflow)
