"""DAGs for the tests of asset events and partitions under the real scheduler: a chain, and runs of partitions."""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import Asset, dag
from sqlalchemy import text

from airflow_guard import IdempotentOperator, from_asset_extra

SLIPS = Asset("slips_delivered")
BOOK = {"ledger_conn_id": "core_banking", "side_effect": "database", "lease": timedelta(seconds=6)}
EARLY = pendulum.datetime(2026, 1, 1)


def book(connection, business_date, cycle):
    connection.execute(
        text("INSERT INTO event_posting VALUES (:day, :cycle)"), {"day": business_date, "cycle": cycle}
    )
    return f"{business_date} {cycle}"


@dag(schedule=None, start_date=EARLY, default_args=BOOK)
def slips_producer():
    IdempotentOperator(
        task_id="deliver",
        operation="deliver_slips",
        python_callable=lambda connection: "delivered",
        outlets=[SLIPS],
    )


@dag(schedule=[SLIPS], start_date=EARLY, default_args=BOOK)
def slips_consumer():
    IdempotentOperator(
        task_id="book", operation="book_slips", python_callable=book, business_date=from_asset_extra()
    )


slips_producer()
slips_consumer()

try:
    from airflow.sdk import PartitionedAtRuntime
except ImportError:  # runs have partitions from Airflow 3.2 on
    pass
else:

    @dag(schedule=PartitionedAtRuntime(), start_date=EARLY, default_args=BOOK)
    def countries():
        IdempotentOperator(task_id="book", operation="book_country", python_callable=book)

    countries()
