"""On the last day of a month 100,000 contracts are settled, in mapped chunks on as many workers as there are.

The contracts never pass through XCom: each chunk is two numbers, and its task reads its own contracts. A
batch of 500 is one transaction and one call. If a worker dies, the other chunks go on; a retry settles what
is missing.

It needs the connection ``core_banking`` (PostgreSQL, with the ledger in it) and the tables ``contract`` and
``settlement``.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.providers.postgres.hooks.postgres import PostgresHook
from airflow.sdk import dag, task
from sqlalchemy import text

from airflow_guard import IdempotentOperator, month_end

# Airflow maps a task at most 1,024 times ([core] max_map_length).
CHUNK = 2_000

CONTRACTS = """
    SELECT contract_id, holder, CAST(monthly_fee AS text) AS fee FROM contract
    WHERE contract_no >= %s AND contract_no < %s ORDER BY contract_no
"""
SETTLE = text(
    "INSERT INTO settlement (contract_id, month_end, amount) "
    "VALUES (:contract_id, :month_end, CAST(:fee AS numeric))"
)


def contracts_between(lo, hi):
    for contract_id, holder, fee in PostgresHook("core_banking").get_records(CONTRACTS, (lo, hi)):
        yield {"contract_id": contract_id, "holder": holder, "fee": fee}


def settle_batch(documents, business_date, connection):
    connection.execute(SETTLE, [{**each, "month_end": business_date} for each in documents])
    return {"settled": len(documents)}


@dag(
    schedule="0 22 L * *",  # the last day of the month
    start_date=pendulum.datetime(2026, 1, 1, tz="Europe/Berlin"),
    catchup=True,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
)
def monthly_settlement():
    @task
    def chunks():
        (last,) = PostgresHook("core_banking").get_first("SELECT max(contract_no) FROM contract")
        return [{"lo": lo, "hi": lo + CHUNK} for lo in range(0, last + 1, CHUNK)]

    IdempotentOperator.partial(
        task_id="settle",
        operation="settle",
        python_callable=settle_batch,
        documents=contracts_between,  # called with the lo and hi of its chunk
        document_key="contract_id",
        # Whoever changes the holder's name in between has not changed what is owed.
        fingerprint_fields=["fee"],
        # A run by hand says which month it means, in conf: {"business_date": "2026-01-31"}. On another day
        # it is skipped.
        business_date=month_end(),
        call_per="batch",
        side_effect="database",
        max_rejected=100,
        guarded_from="2026-01-01",
        ledger_conn_id="core_banking",
    ).expand(op_kwargs=chunks())


monthly_settlement()
