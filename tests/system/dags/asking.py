"""DAGs for the tests under the real scheduler: tasks that ask a person."""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk import Connection, dag

from airflow_guard import External, IdempotentOperator, ReconciliationSensor, Side, guard_defaults
from demo.receiver import ReceiverClient

QUICK = {"ledger_conn_id": "core_banking", "lease": timedelta(seconds=6), "retries": 0}
mail = SmtpNotifier(from_email="airflow@example.com", to="oncall@example.com")


def documents_of(business_date):
    return [{"no": f"{business_date}-{letter}", "amount": "10.00"} for letter in "ABC"]


def pay(document, idempotency_key, attempt):
    """The answer about A is lost, and the line breaks before B is sent."""
    gateway = Connection.get("mailer")
    if document.endswith("-B") and attempt == 1:
        raise TimeoutError("the line broke")
    ReceiverClient(f"http://{gateway.host}:{gateway.port}").notify(
        {"statement_no": document}, idempotency_key
    )
    if document.endswith("-A") and attempt == 1:
        raise TimeoutError("no answer within 30 s")
    return "paid"


@dag(schedule=None, start_date=pendulum.datetime(2026, 3, 1), default_args=QUICK)
def asking():
    IdempotentOperator(
        task_id="pay",
        python_callable=pay,
        documents=documents_of,
        document_key="no",
        side_effect=External(in_doubt="ask"),
    )


@dag(
    schedule=None, start_date=pendulum.datetime(2026, 3, 1), default_args=guard_defaults(QUICK, alerts=[mail])
)
def asking_briefly():
    IdempotentOperator(
        task_id="pay",
        python_callable=pay,
        document="{{ dag_run.conf['business_date'] }}-B",
        side_effect=External(in_doubt="ask", ask_timeout=timedelta(seconds=10)),
    )


@dag(schedule=None, start_date=pendulum.datetime(2026, 3, 1))
def asking_about_breaks():
    sides = {
        name: Side("core_banking", table=f"day_{name}", key="no", where="day = :business_date")
        for name in ("source", "target")
    }
    ReconciliationSensor(
        task_id="check",
        mode="reschedule",
        settle_pokes=1,
        recheck_days=0,
        on_break="ask",
        ledger_conn_id="core_banking",
        **sides,
    )


asking()
asking_briefly()
asking_about_breaks()
