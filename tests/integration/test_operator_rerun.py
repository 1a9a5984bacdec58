"""A rerun on purpose in Airflow: authorised on the command line, executed by clearing the run."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, chain

from airflow_guard import Database, GuardFailure, GuardRerunOperator, IdempotentOperator
from airflow_guard.commands.main import main
from airflow_guard.core.keys import KeySpace
from airflow_guard.store.ledger import Ledger
from tests.airflow_runs import start_run
from tests.contract.attempts import attempt
from tests.databases import databases

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest
    import sqlalchemy as sa

    from tests.integration.conftest import Business

pytestmark = databases("sqlite")
DAY = datetime(2026, 1, 30, tzinfo=UTC)


def posting(business: Business, dag_id: str, amount: int) -> DAG:
    def post(document: str, connection: sa.Connection, business_date: Any) -> dict[str, int]:
        business.post(connection, f"post {amount}", document, business_date)
        return {"amount": amount}

    def reverse(
        previous_result: Any, document: str, connection: sa.Connection, run_id: str, business_date: Any
    ) -> None:
        assert run_id.startswith("scheduled__")  # Airflow's context, as in the callable
        business.post(connection, f"reverse {previous_result['amount']}", document, business_date)

    with DAG(dag_id, schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        IdempotentOperator(
            task_id="post", operation="post_statement", python_callable=post, documents=["S-1", "S-2"],
            side_effect=Database(on_rerun=reverse),
        )  # fmt: skip
    return dag


def test_clearing_executes_what_was_authorised_and_only_that(
    business: Business, capsys: pytest.CaptureFixture[str]
) -> None:
    dag_id = business.dag_id
    run = start_run(posting(business, dag_id, 100), run_type="scheduled", logical_at=DAY).go()
    corrected = posting(business, dag_id, 90)
    run.clear().go(corrected)
    assert business.rows("post 90") == []
    capsys.readouterr()
    ask = [
        "rerun",
        dag_id,
        "post_statement",
        "--start",
        "2026-01-30",
        "--document",
        "S-1",
        "--reason",
        "wrong rate",
    ]
    assert main([*ask, "--yes", "--ledger", business.database.url, "-o", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["commands"] == [
        (
            f"airflow backfill create --dag-id {dag_id} --from-date 2026-01-30 --to-date 2026-01-30T23:59:59 "
            "--reprocess-behavior completed --run-on-latest-version"
        )
    ]
    run.clear().go(corrected)
    run.clear().go(corrected)
    assert [(task, document) for task, document, _ in business.rows()] == [
        ("post 100", "S-1"), ("post 100", "S-2"), ("reverse 100", "S-1"), ("post 90", "S-1"),
    ]  # fmt: skip


def test_only_what_was_previewed_is_authorised(business: Business) -> None:
    start_run(posting(business, business.dag_id, 100), run_type="scheduled", logical_at=DAY).go()
    rerun = business.ledger.tables.rerun
    what: Any = {
        "key_namespace": business.dag_id, "operation": "post_statement", "start": "2026-01-30",
        "end": "2026-01-31", "reason": "wrong rate", "actor": "ada",
    }  # fmt: skip

    def asking(dag_id: str, between: Callable[[], None]) -> DAG:
        with DAG(dag_id, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
            previewed = "{{ ti.xcom_pull('preview', key='digest') }}"
            chain(
                GuardRerunOperator(task_id="preview", dry_run=True, **what),
                PythonOperator(task_id="between", python_callable=between),
                GuardRerunOperator(task_id="authorise", previewed=previewed, **what),
            )
        return dag

    def one_more_is_done() -> None:
        space = KeySpace(business.dag_id, "post_statement", DAY.date() + timedelta(days=1))
        attempt(Ledger(business.ledger), "S-3", space=space).begin().complete()

    changed = start_run(
        asking(f"{business.dag_id}_a", one_more_is_done), run_type="manual", logical_at=DAY
    ).go()
    assert isinstance(changed.last("authorise").error, GuardFailure)
    assert "What was previewed is not what would be authorised now" in str(changed.last("authorise").error)
    with business.ledger.engine.connect() as connection:
        assert connection.execute(rerun.select()).all() == []
    same = start_run(asking(f"{business.dag_id}_b", lambda: None), run_type="manual", logical_at=DAY).go()
    assert same.states()["authorise"] == "success"
    with business.ledger.engine.connect() as connection:
        assert len(connection.execute(rerun.select()).all()) == 3


def test_nobody_asks_for_a_rerun_that_a_schedule_triggered(business: Business) -> None:
    start_run(posting(business, business.dag_id, 100), run_type="scheduled", logical_at=DAY).go()
    with DAG(f"{business.dag_id}_again", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        what: Any = {"key_namespace": business.dag_id, "operation": "post_statement", "start": "2026-01-30"}
        GuardRerunOperator(task_id="anonymous", reason="wrong rate", **what)
        GuardRerunOperator(task_id="no_reason", reason=" ", actor="ada", **what)
        GuardRerunOperator(
            task_id="other_date", reason="wrong rate", actor="ada", **{**what, "start": "2026-01-29"}
        )
        GuardRerunOperator(task_id="only_tells", reason="wrong rate", actor="ada", dry_run=True, **what)
    run = start_run(dag, run_type="manual", logical_at=DAY).go()
    for task, says in (
        ("anonymous", "Give actor"),
        ("no_reason", "reason is missing"),
        ("other_date", "No key of"),
    ):
        assert isinstance(run.last(task).error, GuardFailure)
        assert says in str(run.last(task).error)
    assert run.states()["only_tells"] == "success"
    rerun = business.ledger.tables.rerun
    with business.ledger.engine.connect() as connection:
        assert connection.execute(rerun.select()).all() == []
