"""DAGs for the tests under the real scheduler: a doubt that settles itself, a replay, and a first try that is killed."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import pendulum
from airflow.sdk import Asset, Connection, dag, task
from sqlalchemy import text

from airflow_guard import External, IdempotentOperator
from demo.receiver import ReceiverClient

BOOK = Asset("book_of_replays")
QUICK = {
    "retries": 1,
    "retry_delay": timedelta(seconds=1),
    "ledger_conn_id": "core_banking",
    "lease": timedelta(seconds=6),
}


def mailer():
    gateway = Connection.get("mailer")
    return ReceiverClient(f"http://{gateway.host}:{gateway.port}")


def pay(document, idempotency_key, attempt, ti, outlet_events):
    """The answer about A is lost; the line breaks before B is sent. Only the receiver knows."""
    if document.endswith("-B") and attempt == 1:
        raise TimeoutError("the line broke")
    mailer().notify({"statement_no": document}, idempotency_key)
    if document.endswith("-A") and attempt == 1:
        raise TimeoutError("no answer within 30 s")
    ti.xcom_push("file_name", f"{document}.csv")
    outlet_events[BOOK].extra["file_name"] = f"{document}.csv"
    return "paid"


def documents_of(business_date):
    return [f"{business_date}-{letter}" for letter in "ABC"]


@dag(schedule=None, start_date=pendulum.datetime(2026, 3, 1), default_args=QUICK)
def settling():
    paid = IdempotentOperator(
        task_id="pay",
        python_callable=pay,
        documents=documents_of,
        max_workers=3,
        outlets=[BOOK],
        side_effect=External(
            verify=lambda idempotency_key: mailer().notified(idempotency_key), settle_after=20
        ),
    )

    @task
    def pull(ti=None):
        return ti.xcom_pull(task_ids="pay", key="file_name")

    paid >> pull()


def killed_once(context):
    """Die like a process that is killed, before the ledger has been asked for anything."""
    if context["ti"].try_number == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def post(document, connection):
    connection.execute(text("INSERT INTO delivery_posting VALUES (:no)"), {"no": document})


@dag(schedule=None, start_date=pendulum.datetime(2026, 3, 1), default_args=QUICK)
def killed_early():
    IdempotentOperator(
        task_id="post",
        python_callable=post,
        documents=documents_of,
        side_effect="database",
        pre_execute=killed_once,
    )


settling()
killed_early()
