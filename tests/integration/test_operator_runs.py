"""A guarded task run again: by a clear, a person, a backfill, another schedule."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_guard import BusinessDateError, DateChangedError, IdempotentOperator, OtherRun, month_end
from airflow_guard import previous_business_day
from tests.airflow_runs import AirflowRun, start_run
from tests.databases import databases

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from tests.integration.conftest import Business

pytestmark = databases("sqlite", "postgres_embedded")

MARCH_31 = datetime(2025, 3, 31, tzinfo=UTC)
APRIL_1 = datetime(2025, 4, 1, tzinfo=UTC)


def dag_of(business: Business, dag_id: str = "statements", **parameters: Any) -> DAG:
    """A DAG with one guarded task that posts a row for each document."""
    from airflow.sdk import DAG

    def post(document: str, connection: Any, business_date: date) -> dict[str, Any]:
        business.post(connection, "post", document, business_date)
        return {"posted": document}

    defaults: dict[str, Any] = {
        "task_id": "post", "operation": "post", "python_callable": post, "side_effect": "database",
        "documents": ["A", "B"],
    }  # fmt: skip
    with DAG(dag_id, schedule="@daily", start_date=datetime(2025, 1, 1, tzinfo=UTC)) as dag:
        IdempotentOperator(**{**defaults, **parameters})
    return dag


def test_a_run_executes_each_document_once_and_a_clear_replays(business: Business) -> None:
    run = start_run(dag_of(business), logical_at=MARCH_31).go()
    assert run.states() == {"post": "success"}
    assert run.result("post") == {
        "key_namespace": "statements", "operation": "post", "business_date": "2025-03-31", "documents": 2, "executed": 2,
    }  # fmt: skip

    run.clear().go(dag_of(business))
    assert run.states() == {"post": "success"}
    assert run.result("post")["replayed"] == 2
    assert business.rows() == [("post", "A", "2025-03-31"), ("post", "B", "2025-03-31")]
