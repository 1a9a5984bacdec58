"""Last month once more after a bug fix: seen before it happens, and approved by a second person.

Trigger it with the first and the last business date and a reason. ``preview`` tells which statements were posted when,
by which run and with what result. Somebody else approves that in the Airflow UI. Then ``authorise`` lets each of them
be posted once more, within 24 hours, if they still are what was approved; its log has the backfill command that does
it. ``on_rerun`` of the posting task reverses the first booking in the same transaction as the second.

It needs the connection ``core_banking`` (the business database, with the ledger in it).
"""

from __future__ import annotations

from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Param, dag

from airflow_guard import GuardRerunOperator


@dag(
    schedule=None,
    params={
        "start": Param(type="string", format="date", description="first business date"),
        "end": Param(type="string", format="date", description="last business date"),
        "reason": Param(type="string", minLength=10, description="why, for the auditor"),
    },
)
def rerun_month():
    what: dict[str, Any] = {
        "key_namespace": "statements",
        "operation": "post_statement",
        "ledger_conn_id": "core_banking",
        "start": "{{ params.start }}",
        "end": "{{ params.end }}",
        "reason": "{{ params.reason }}",
    }
    preview = GuardRerunOperator(task_id="preview", dry_run=True, **what)
    four_eyes = ApprovalOperator(
        task_id="four_eyes",
        subject="Post {{ params.start }} to {{ params.end }} once more?",
        body="{{ ti.xcom_pull('preview') }}",
    )
    authorise = GuardRerunOperator(
        task_id="authorise",
        approved_by="{{ ti.xcom_pull('four_eyes')['responded_by_user']['name'] }}",
        previewed="{{ ti.xcom_pull('preview', key='digest') }}",
        **what,
    )
    preview >> four_eyes >> authorise


rerun_month()
