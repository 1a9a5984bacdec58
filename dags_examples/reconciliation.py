"""Every morning the postings are compared with their copies in the warehouse, and at month end the whole month.

If a document is missing, doubled or has another amount on one side, the task fails and names it. Rows that are on
their way are waited for. A date that changes after it has passed is noticed by the next run.

It needs the connections ``core_banking`` (with the ledger in it) and ``warehouse``, and the tables ``posting`` and
``posting_copy``.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import Asset, dag
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_guard import DuplicateCheckOperator, ReconciliationSensor, Side, month_end

DAY = "business_date = :business_date"
MONTH = "business_date BETWEEN date_trunc('month', CAST(:business_date AS date)) AND :business_date"


def postings(where):
    return Side(conn_id="core_banking", table="posting", key="document_no", where=where)


def copies(where):
    # The warehouse has names of its own.
    columns = {"document_no": "doc_ref", "amount": "amt"}
    return Side(conn_id="warehouse", table="posting_copy", key="document_no", columns=columns, where=where)


@dag(
    schedule=CronDataIntervalTimetable("0 6 * * *", timezone="Europe/Berlin"),
    start_date=pendulum.datetime(2026, 1, 1, tz="Europe/Berlin"),
    catchup=True,
    max_active_runs=1,
    default_args={"ledger_conn_id": "core_banking", "poke_interval": timedelta(minutes=1)},
)
def reconciliation():
    once = DuplicateCheckOperator(task_id="nothing_twice", side=postings(DAY))

    day = ReconciliationSensor(
        task_id="reconcile_day",
        source=postings(DAY),
        target=copies(DAY),
        group_by=["currency"],
        compare=["account"],
        timeout=timedelta(hours=2),  # people come in at 08:00
        deferrable=True,
        outlets=[Asset("postings_reconciled")],  # other DAGs can be scheduled on it, with the business date
    )

    month = ReconciliationSensor(
        task_id="reconcile_month",
        business_date=month_end(otherwise="skip"),
        source=postings(MONTH),
        target=copies(MONTH),
        group_by=["currency"],
        recheck_days=0,
    )

    once >> day >> month


reconciliation()
