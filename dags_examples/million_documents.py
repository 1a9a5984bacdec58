"""A million invoices are posted every night, in mapped chunks on as many workers as there are: one ledger for all.

It runs as it is under LocalExecutor, CeleryExecutor and KubernetesExecutor; nothing in it names a machine. The documents
never pass through XCom: a chunk is two numbers, and the task that gets them reads its own invoices. A batch of 500 is
one transaction and one call. A worker that dies, or a message that a broker delivers twice, costs a retry of one chunk,
and the retry posts what is missing.

The pool ``ledger`` bounds how many chunks work at the same moment, whatever the number of workers: chunks times
connections of each is what the database must bear, see ``docs/how-to/distribute.md``.

It needs the connection ``core_banking`` (PostgreSQL, with the ledger in it), the tables ``invoice`` and ``posted``, and the
pool ``ledger``.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.providers.postgres.hooks.postgres import PostgresHook
from airflow.sdk import dag, task
from airflow.timetables.interval import CronDataIntervalTimetable
from sqlalchemy import text

from airflow_guard import IdempotentOperator

# 50 chunks. A task costs some seconds whatever it does, and Airflow maps one at most 1,024 times ([core] max_map_length).
CHUNK = 20_000

INVOICES = """
    SELECT invoice_no, CAST(amount AS text) AS amount FROM invoice
    WHERE invoice_id >= %s AND invoice_id < %s AND business_date = %s ORDER BY invoice_id
"""
POST = text(
    "INSERT INTO posted (invoice_no, business_date, amount) VALUES (:no, :day, CAST(:amount AS numeric))"
)


def invoices_between(lo, hi, business_date):
    for no, amount in PostgresHook("core_banking").get_records(INVOICES, (lo, hi, business_date)):
        yield {"no": no, "amount": amount}


def post(documents, business_date, connection):
    connection.execute(POST, [{**each, "day": business_date} for each in documents])
    return len(documents)


@dag(
    schedule=CronDataIntervalTimetable("0 1 * * *", "Europe/Berlin"),
    start_date=pendulum.datetime(2026, 1, 1, tz="Europe/Berlin"),
    catchup=True,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
)
def million_documents():
    @task
    def chunks():
        (last,) = PostgresHook("core_banking").get_first("SELECT max(invoice_id) FROM invoice")
        return [{"lo": lo, "hi": lo + CHUNK} for lo in range(0, (last or 0) + 1, CHUNK)]

    IdempotentOperator.partial(
        task_id="post",
        operation="post_invoice",
        python_callable=post,
        documents=invoices_between,  # called with the lo and hi of its chunk
        document_key="no",
        call_per="batch",
        batch_size=500,
        side_effect="database",
        pool="ledger",
        ledger_conn_id="core_banking",
    ).expand(op_kwargs=chunks())


million_documents()
