"""Every night the statements of the day before are posted and the customers notified. Each exactly once.

A retry, a clear, a backfill, a manual run or a second process for a date that is done finds the same keys in
the ledger: nothing is posted or sent again. A process that is killed in the middle of it loses nothing.

It needs the connections ``core_banking`` (the business database, with the ledger in it) and ``mailer``, and
the variable ``statement_folder``. ``make demo`` provides them, and tries to break it.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pendulum
from airflow.sdk import Connection, Variable, dag
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_guard import External, IdempotentOperator, task
from demo.books import post_statement  # (payload, connection): a few INSERTs, nothing special
from demo.receiver import ReceiverClient
from demo.statements import read_statements


def statements_of(business_date):
    """Give the bank's MT940 statements of one day, as dictionaries."""
    return read_statements(Path(Variable.get("statement_folder")), business_date)


def mailer():
    gateway = Connection.get("mailer")
    return ReceiverClient(f"http://{gateway.host}:{gateway.port}")


def asked_mailer(idempotency_key):
    """Was this notification sent? Asked when a process died while it was sending it."""
    return mailer().notified(idempotency_key)


@dag(
    schedule=CronDataIntervalTimetable("0 2 * * *", timezone="Europe/Berlin"),
    start_date=pendulum.datetime(2026, 1, 1, tz="Europe/Berlin"),
    end_date=pendulum.datetime(2026, 2, 1, tz="Europe/Berlin"),
    catchup=False,
    default_args={
        "retries": 3,
        "retry_delay": timedelta(seconds=5),
        "ledger_conn_id": "core_banking",
        "guarded_from": "2026-01-01",
    },
)
def bank_statements():
    post = IdempotentOperator(
        task_id="post",
        operation="post_statement",
        python_callable=post_statement,
        documents=statements_of,
        document_key="statement_no",
        side_effect="database",  # the postings and "done" commit together, or neither does
    )

    @task.idempotent(
        operation="notify",
        document_key="statement_no",
        max_workers=8,
        side_effect=External(verify=asked_mailer, settle_after=timedelta(seconds=10)),
    )
    def notify(payload, idempotency_key):
        mail = {"statement_no": payload["statement_no"], "closing": payload["closing"]}
        return mailer().notify(mail, idempotency_key)

    post >> notify(documents=statements_of)


bank_statements()
