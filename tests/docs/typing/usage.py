"""The DAGs of the design as their authors write them, fully annotated: a type checker accepts each line."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pendulum
import sqlalchemy as sa
from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Asset, Param, dag
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_guard import (
    Database,
    Expected,
    External,
    GuardRerunOperator,
    IdempotentOperator,
    ReconciliationSensor,
    Rejected,
    Side,
    from_asset_extra,
    guard_defaults,
    month_end,
    task,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import date

mail = SmtpNotifier(from_email="airflow@example.com", to="oncall@example.com")
postings = sa.table("posting", sa.column("no"))
SRC = Side("core_banking", table="booked", key="no", where="business_date = :business_date")
TGT = Side("warehouse", table="posted", key="no", where="business_date = :business_date")


def load_mt940(business_date: date) -> Iterator[dict[str, Any]]:
    """List statements."""
    yield {"statement_no": "1", "lines": [{"no": "1"}]}


def reverse_posting(previous_result: Any, connection: sa.Connection) -> None:
    """Take a posting back."""


@dag(
    schedule=CronDataIntervalTimetable("0 2 * * *", "Europe/Berlin"),
    start_date=pendulum.datetime(2026, 1, 1),
    catchup=True,
    default_args=guard_defaults(alerts=[mail]),
)
def statements() -> None:
    """1: daily posting."""

    def post(payload: Mapping[str, Any], connection: sa.Connection) -> dict[str, int]:
        connection.execute(sa.insert(postings), payload["lines"])
        return {"lines": len(payload["lines"])}

    IdempotentOperator(
        task_id="post",
        operation="post_statement",
        python_callable=post,
        documents=load_mt940,
        document_key="statement_no",
        guarded_from="2026-01-01",
        side_effect=Database(on_rerun=reverse_posting),
        ledger_conn_id="core_banking",
    ) >> ReconciliationSensor(task_id="reconcile", source=SRC, target=TGT, group_by=["currency"])


def contracts_between(lo: int, hi: int) -> Iterator[dict[str, Any]]:
    """List contracts."""
    yield {"contract_id": lo, "amount": Decimal(hi)}


def settle_batch(documents: Sequence[Mapping[str, Any]], connection: sa.Connection) -> None:
    """Settle a batch."""


@dag(schedule="0 4 * * *", start_date=pendulum.datetime(2026, 1, 1))
def settlement() -> None:
    """2: monthly settlement, mapped."""

    @task
    def chunks() -> list[dict[str, int]]:
        return [{"lo": i, "hi": i + 2000} for i in range(0, 100_000, 2000)]

    IdempotentOperator.partial(
        task_id="settle",
        operation="settle",
        business_date=month_end(otherwise="skip"),
        python_callable=settle_batch,
        documents=contracts_between,
        document_key="contract_id",
        call_per="batch",
        batch_size=500,
        side_effect="database",
        ledger_conn_id="core_banking",
        max_rejected=100,
        pool="settlement",
    ).expand(op_kwargs=chunks())


def send(documents: Sequence[Any], batch_id: str, effect: AbstractContextManager[None]) -> None:
    """Send a file."""
    with effect:
        pass


def arrived(batch_id: str) -> bool | None:
    """Say whether a file arrived."""
    return True if batch_id else None


def due_payments() -> list[dict[str, str]]:
    """List payments."""
    return [{"end_to_end_id": "1"}]


@dag(schedule="@daily", start_date=pendulum.datetime(2026, 1, 1))
def payments() -> None:
    """3: a payment file."""
    IdempotentOperator(
        task_id="send",
        operation="send",
        python_callable=send,
        documents=due_payments,
        document_key="end_to_end_id",
        once_per="document",
        call_per="batch",
        side_effect=External(verify=arrived, settle_after=timedelta(hours=2), in_doubt="ask"),
    )


def asked_mailer(idempotency_key: str) -> bool:
    """Ask whether a mail was sent."""
    return bool(idempotency_key)


@dag(schedule=[Asset("statements_reconciled")], start_date=pendulum.datetime(2026, 1, 1))
def notify_customers() -> None:
    """4: a decorated function."""

    @task.idempotent(
        operation="notify",
        document_key="statement_no",
        max_workers=8,
        business_date=from_asset_extra(),
        retries=3,
        side_effect=External(
            safe_errors=[ConnectionRefusedError], verify=asked_mailer, settle_after=timedelta(minutes=5)
        ),
    )
    def notify(payload: Mapping[str, Any], idempotency_key: str) -> str:
        if not payload:
            raise Rejected("empty")
        return idempotency_key

    @task.idempotent
    def bare(document: str) -> str:
        return document

    @task
    def plain(number: int) -> int:
        return number

    first = notify(documents=load_mt940)
    again = notify.override(task_id="remind", operation="remind", on_duplicate="skip")(documents=load_mt940)
    first >> again >> bare(document="A") >> plain(1)
    notify.partial(document_key="no").expand(documents=[[{"no": 1}]])
    bare.expand(document=["A", "B"])


@dag(
    schedule=None,
    params={
        "start": Param(type="string", format="date"),
        "end": Param(type="string", format="date"),
        "reason": Param(type="string", minLength=10),
    },
)
def rerun_statements() -> None:
    """5: a rerun."""
    what: dict[str, Any] = {
        "key_namespace": "statements",
        "operation": "post_statement",
        "ledger_conn_id": "core_banking",
        "start": "{{ params.start }}",
        "end": "{{ params.end }}",
        "reason": "{{ params.reason }}",
    }
    preview = GuardRerunOperator(task_id="preview", dry_run=True, **what)
    ok = ApprovalOperator(task_id="four_eyes", subject="Rerun?", body="{{ ti.xcom_pull('preview') }}")
    preview >> ok >> GuardRerunOperator(task_id="authorise", expires=timedelta(hours=24), **what)


def card_payments(business_date: date) -> Iterator[dict[str, Any]]:
    """List the payments of the card file."""
    yield {"end_to_end_id": "1", "amount": Decimal("1.00"), "currency": "EUR", "counterparty": "A"}


def trailer_total(business_date: date) -> Decimal:
    """Read the total that the file's trailer says."""
    return Decimal("1.00")


def fewest(business_date: date) -> Expected | None:
    """Say what a day should bring."""
    return Expected(least=100, otherwise="warn") if business_date.day > 1 else None


def pay(payload: Mapping[str, Any], idempotency_key: str) -> str:
    """Pay."""
    return idempotency_key


def bank_knows(idempotency_key: str) -> bool | None:
    """Ask the bank."""
    return None


@dag(schedule="@daily", start_date=pendulum.datetime(2026, 1, 1))
def card_file() -> None:
    """6: a night that brings nothing is no success."""
    IdempotentOperator(
        task_id="pay",
        operation="pay",
        python_callable=pay,
        documents=card_payments,
        document_key="end_to_end_id",
        expected=Expected(least=1, total=trailer_total, amount="amount", otherwise="fail"),
        on_empty="fail",
        on_repeated="fail",
        once_per="document",
        side_effect=External(
            verify=bank_knows,
            settle_after=timedelta(minutes=10),
            ask_fields=["amount", "currency", "counterparty"],
        ),
    )
    IdempotentOperator(
        task_id="a_number",
        python_callable=pay,
        documents=card_payments,
        document_key="end_to_end_id",
        expected=100,
    )
    IdempotentOperator(
        task_id="a_callable",
        python_callable=pay,
        documents=card_payments,
        document_key="end_to_end_id",
        expected=fewest,
    )

    @task.idempotent(expected=Expected(most=10), document_key="end_to_end_id")
    def remind(payload: Mapping[str, Any]) -> None:
        """Remind."""

    remind(documents=card_payments)
