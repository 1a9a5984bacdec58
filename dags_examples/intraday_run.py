"""Four times a day the net positions of the participants are booked: four cycles, one business date.

Without ``cycle`` the run of 12:00 would have the keys of the run of 09:00, and fail: it would not be clear
whether it is new work or the same work again. With it, each participant is booked once per cycle.

It needs the connection ``core_banking`` (PostgreSQL, with the ledger in it) and the tables ``net_position``
and ``booking``.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.providers.postgres.hooks.postgres import PostgresHook
from airflow.sdk import dag
from sqlalchemy import text

from airflow_guard import IdempotentOperator

# The cycle is the local time at which the run was due, not the time at which it runs: a retry at 12:40 and a
# backfill next week belong to the cycle of 12:00. A run by hand has no such time, and must say which cycle it
# means: conf {"business_date": "2026-01-30", "cycle": "12:00"}. Without it the template fails, and nothing is
# booked.
CYCLE = (
    "{{ logical_date.in_timezone(dag.timezone).strftime('%H:%M') "
    "if dag_run.run_type in ('scheduled', 'backfill') else dag_run.conf['cycle'] }}"
)

POSITIONS = """
    SELECT participant, CAST(net AS text) FROM net_position
    WHERE business_date = %s AND cycle = %s ORDER BY participant
"""
BOOK = text(
    "INSERT INTO booking (participant, business_date, cycle, amount) "
    "VALUES (:participant, :business_date, :cycle, CAST(:net AS numeric))"
)


def positions_of(business_date, cycle):
    for participant, net in PostgresHook("core_banking").get_records(POSITIONS, (business_date, cycle)):
        yield {"participant": participant, "net": net}


def book(payload, business_date, cycle, connection):
    connection.execute(BOOK, {**payload, "business_date": business_date, "cycle": cycle})
    return payload["net"]


@dag(
    schedule="0 9,12,15,18 * * MON-FRI",
    start_date=pendulum.datetime(2026, 1, 1, tz="Europe/Berlin"),
    catchup=True,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
)
def intraday_run():
    IdempotentOperator(
        task_id="book",
        operation="book_position",
        cycle=CYCLE,  # the two functions get it as well
        python_callable=book,
        documents=positions_of,
        document_key="participant",
        side_effect="database",
        guarded_from="2026-01-01",
        ledger_conn_id="core_banking",
    )


intraday_run()
