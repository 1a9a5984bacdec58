"""A DAG of the demo: suppliers are paid through a bank, and the bank's bookings are compared with the orders.

What is wrong before the effect is begun fails, or is rejected, and nothing has happened. What is wrong after it is a
follow-up that failed: the payment is made, and is never repeated.
"""

from __future__ import annotations

import json
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import Connection, Variable, dag, task

from airflow_guard import ReconciliationSensor, Rejected, Side
from demo.receiver import ReceiverClient
from demo.suppliers import iban_is_right, payments_of

if TYPE_CHECKING:
    from demo.suppliers import Payment


def due_payments(business_date: date) -> list[Payment]:
    return payments_of(business_date)


def check_rate(folder: Path, payment: Payment) -> None:
    rates = folder / f"rates_{payment['business_date']}.json"
    if payment["currency"] != "EUR" and not rates.exists():
        raise LookupError(
            f"the exchange rates of {payment['business_date']} have not come yet ({rates.name})"
        )


@dag(schedule=None, start_date=datetime(2026, 1, 1))  # noqa: DTZ001 - Airflow gives it the DAG's zone
def supplier_payments() -> None:
    """Pay what is due on a date, started by hand."""

    @task.idempotent(
        operation="pay",
        document_key="end_to_end_id",
        ledger_conn_id="core_banking",
        guarded_from="2026-01-01",
        retries=0,
    )
    def pay(payload: Payment, idempotency_key: str, effect: Any) -> None:
        folder, bank = Path(Variable.get("supplier_folder")), Connection.get("payment_bank")
        if not iban_is_right(payload["account"]):
            raise Rejected(f"{payload['account']} is no IBAN: its check digits are wrong")
        check_rate(folder, payload)
        with effect:
            receipt = ReceiverClient(f"http://{bank.host}:{bank.port}").notify(
                {**payload, "statement_no": payload["end_to_end_id"]}, idempotency_key
            )
        filed = folder / "receipts" / payload["supplier"] / f"{payload['end_to_end_id']}.json"
        filed.write_text(json.dumps({"receipt": receipt}))

    columns: dict[str, Any] = {"key": "end_to_end_id", "where": "business_date = :business_date"}
    compare = ReconciliationSensor(
        task_id="compare_with_bank",
        operation="compare_with_bank",
        source=Side(conn_id="core_banking", table="payment_order", **columns),
        target=Side(conn_id="bank_lines", table="booked_payment", **columns),
        group_by=["currency"],
        settle_pokes=1,
        recheck_days=0,
        ledger_conn_id="core_banking",
    )
    pay(documents=due_payments) >> compare  # type: ignore[call-arg]


supplier_payments()
