"""DAGs for the tests under the real scheduler: three documents a day, posted and sent, and a chain by asset."""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import Asset, Connection, dag, task
from airflow.timetables.interval import CronDataIntervalTimetable
from sqlalchemy import text

from airflow_guard import External, IdempotentOperator, ReconciliationSensor, Side, from_asset_extra
from demo.receiver import ReceiverClient

RECONCILED = Asset("day_reconciled")
QUICK = {
    "retries": 2,
    "retry_delay": timedelta(seconds=1),
    "ledger_conn_id": "core_banking",
    "guarded_from": "2026-01-01",
    "lease": timedelta(seconds=6),
    "poll_interval": timedelta(seconds=1),
    "wait_timeout": timedelta(minutes=3),
}


def mailer():
    gateway = Connection.get("mailer")
    return ReceiverClient(f"http://{gateway.host}:{gateway.port}")


def documents_of(business_date):
    return [{"no": f"{business_date}-{letter}", "amount": "10.00"} for letter in "ABC"]


def post(payload, connection):
    connection.execute(text("INSERT INTO delivery_posting VALUES (:no)"), payload)


def send(document, idempotency_key):
    return mailer().notify({"statement_no": document}, idempotency_key)


@dag(
    schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"),
    start_date=pendulum.datetime(2026, 3, 1),
    end_date=pendulum.datetime(2026, 3, 31),
    catchup=False,
    default_args=QUICK,
)
def deliveries():
    posting = IdempotentOperator(
        task_id="post",
        python_callable=post,
        documents=documents_of,
        document_key="no",
        side_effect="database",
    )
    sending = IdempotentOperator(
        task_id="send",
        python_callable=send,
        documents=documents_of,
        document_key="no",
        side_effect=External(
            verify=lambda idempotency_key: mailer().notified(idempotency_key),
            settle_after=timedelta(seconds=2),
        ),
    )
    posting >> sending


def post_and_send(payload, connection, idempotency_key):
    """Hangs at the receiver for as long as that likes, with the key held."""
    mailer().notify({"statement_no": payload["no"]}, idempotency_key)
    post(payload, connection)
    return f"posted {payload['no']}"


@dag(schedule=None, start_date=pendulum.datetime(2026, 3, 1), default_args=QUICK)
def patience():
    IdempotentOperator(
        task_id="deliver",
        python_callable=post_and_send,
        document={"no": "{{ dag_run.conf['business_date'] }}-A"},
        document_key="no",
        side_effect="database",
        deferrable=True,
    )


@dag(schedule=None, start_date=pendulum.datetime(2026, 3, 1))
def reconcile():
    sides = {
        name: Side("core_banking", table=f"day_{name}", key="no", where="day = :business_date")
        for name in ("source", "target")
    }
    ReconciliationSensor(
        task_id="check",
        mode="reschedule",
        # Not less: Airflow itself fails a task that is queued again before its executor has told of the last time.
        poke_interval=timedelta(seconds=5),
        settle_pokes=1000,
        timeout=timedelta(minutes=3),
        ledger_conn_id="core_banking",
        outlets=[RECONCILED],
        **sides,
    )


@dag(schedule=[RECONCILED], start_date=pendulum.datetime(2026, 3, 1), default_args=QUICK)
def announce():
    @task.idempotent(operation="announce", business_date=from_asset_extra(), document="announcement")
    def say(business_date, idempotency_key):
        mailer().notify({"statement_no": f"announcement of {business_date}"}, idempotency_key)

    say()


deliveries()
patience()
reconcile()
announce()
