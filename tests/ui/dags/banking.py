"""DAGs that are looked at; nothing of them runs."""

from __future__ import annotations

from datetime import datetime

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

LONG = "a_dag_with_a_name_as_long_as_airflow_allows_" + "x" * 206

for dag_id, tasks in {
    "bank_statements": ("post", "reconcile"),
    "balance_letters": ("send",),
    "payments": ("pay",),
    "hostile": ("post",),
    "crowd": ("post",),
    LONG: ("post",),
}.items():
    with DAG(dag_id, schedule=None, start_date=datetime(2026, 1, 1)) as dag:  # noqa: DTZ001 - Airflow makes it UTC
        for task in tasks:
            EmptyOperator(task_id=task)
    globals()[dag_id] = dag
