"""Content that changed between two tries of a task, in Airflow: what the operator's task comes to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_guard import ContentChanged, External, IdempotentOperator, Rejected
from airflow_guard.commands.main import main
from airflow_guard.core.errors import DocumentError
from airflow_guard.operators.endings import GuardFailure
from tests.airflow_runs import AirflowRun, start_run
from tests.databases import databases
from tests.integration.conftest import LEDGER

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from tests.integration.conftest import Business

pytestmark = databases("sqlite", "postgres_embedded")
MARCH_31 = datetime(2025, 3, 31, tzinfo=UTC)


def dag_of(
    business: Business, listed: list[dict[str, Any]], breaks: Exception | None = None, **more: Any
) -> DAG:
    """A DAG with one guarded task that pays each document outside of the ledger."""
    from airflow.sdk import DAG

    def pay(document: str, payload: dict[str, Any]) -> str:
        if not isinstance(breaks, Rejected):
            business.act("pay", f"{document} {payload['amount']}")
        if breaks is not None:
            raise breaks
        return str(payload["amount"])

    with DAG(business.dag_id, schedule="@daily", start_date=datetime(2025, 1, 1, tzinfo=UTC)) as dag:
        IdempotentOperator(
            task_id="pay", operation="pay", python_callable=pay, documents=listed, document_key="no", **more
        )
    return dag


def cause(run: AirflowRun) -> BaseException | None:
    ended = run.last("pay")
    assert ended.state == "failed"
    assert isinstance(ended.error, GuardFailure), "no retry follows"
    return ended.cause


def payment(amount: object, **more: Any) -> list[dict[str, Any]]:
    return [{"no": "A", "amount": amount, **more}]


def test_d02_a_doubt_is_settled_for_what_was_sent_then_the_task_fails_and_names_the_field(
    business: Business,
) -> None:
    effect = External(verify=lambda document: True, settle_after=timedelta(minutes=10))
    run = start_run(
        dag_of(business, payment("100"), TimeoutError("no answer"), side_effect=effect), logical_at=MARCH_31
    )
    run.go()
    assert run.last("pay").state in ("failed", "up_for_retry")
    run.clear().go(dag_of(business, payment("200"), side_effect=effect))
    error = cause(run)
    assert isinstance(error, ContentChanged)
    assert "changed: amount" in str(error)
    assert business.documents("pay") == ["A 100"]
    [row] = business.ledger_rows()
    assert row.state == "completed"
    run.clear().go(dag_of(business, payment("100"), side_effect=effect))
    assert run.states() == {"pay": "success"}
    assert business.documents("pay") == ["A 100"]


def test_d09_the_field_that_is_left_out_lets_the_cleared_task_replay(business: Business) -> None:
    run = start_run(dag_of(business, payment("1", loaded_at="06:00")), logical_at=MARCH_31).go()
    run.clear().go(dag_of(business, payment("1", loaded_at="07:00")))
    assert "changed: loaded_at" in str(cause(run))
    run.clear().go(dag_of(business, payment("1", loaded_at="08:00"), fingerprint_fields=["amount"]))
    assert run.states() == {"pay": "success"}
    assert run.result("pay")["replayed"] == 1
    run.clear().go(dag_of(business, payment("2", loaded_at="08:00"), fingerprint_fields=["amount"]))
    assert "changed: amount" in str(cause(run))
    assert business.documents("pay") == ["A 1"]


@pytest.mark.parametrize("max_rejected", [0, 100])
def test_d10_a_corrected_document_is_not_rejected_before(business: Business, max_rejected: int) -> None:
    rules: dict[str, Any] = {"max_rejected": max_rejected}
    first = dag_of(business, payment("100", iban="OLD"), Rejected("account closed"), **rules)
    run = start_run(first, logical_at=MARCH_31).go()
    corrected = payment("100", iban="NEW")
    run.clear().go(dag_of(business, corrected, **rules))
    error = cause(run)
    assert isinstance(error, ContentChanged)
    assert "its content is new" in str(error)
    [row] = business.ledger_rows()
    command = [
        "resolve",
        "--key",
        row.key_hash,
        "--send-again",
        "--yes",
        "--reason",
        "corrected",
        "--ledger",
        LEDGER,
    ]
    assert main(command) == 0
    run.clear().go(dag_of(business, corrected, **rules))
    assert run.states() == {"pay": "success"}
    assert business.documents("pay") == ["A 100"]


def test_d01_a_field_that_nobody_can_compare_fails_the_task_before_anything_is_claimed(
    business: Business,
) -> None:
    class Frame:
        def __repr__(self) -> str:
            return "1.00 ... 1.00"

    # Not through the DAG file, which Airflow would have to serialise: from the callable that lists.
    def listing() -> list[dict[str, Any]]:
        return payment("1", rates=Frame())

    run = start_run(dag_of(business, listing), logical_at=MARCH_31).go()  # type: ignore[arg-type]
    error = cause(run)
    assert isinstance(error, DocumentError)
    assert "'rates' holds a" in str(error)
    assert "fingerprint_fields" in str(error)
    assert business.ledger_rows() == []
    assert business.documents() == []
    run.clear().go(dag_of(business, listing, fingerprint_fields=["amount"]))  # type: ignore[arg-type]
    assert run.states() == {"pay": "success"}
