"""A DAG of the demo: the month as the bank delivered it, compared with the postings, document by document.

The two sides are in different databases: the bank's lines in a file of SQLite, the postings in PostgreSQL.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import dag

from airflow_guard import ReconciliationSensor, Side

_MONTH = "business_date BETWEEN '2026-01-01' AND :business_date"
_LINE = ["statement_no", "reference"]


@dag(schedule=None, start_date=datetime(2026, 1, 1))  # noqa: DTZ001 - Airflow gives it the DAG's zone
def month_reconciliation() -> None:
    """Reconcile the month up to a date, started by hand."""
    ReconciliationSensor(
        task_id="reconcile",
        operation="reconcile_month",
        source=Side(conn_id="bank_lines", table="statement_line", key=_LINE, where=_MONTH),
        target=Side(conn_id="core_banking", table="statement_posting", key=_LINE, where=_MONTH),
        group_by=["currency"],
        compare=["account"],
        poke_interval=timedelta(seconds=1),
        settle_pokes=2,
        timeout=timedelta(hours=2),
        recheck_days=0,
        ledger_conn_id="core_banking",
    )


month_reconciliation()
