"""Every quarter of an hour the ledger is looked at for what no callback can say, and each team is told what is new.

A process that was killed calls nobody back. A run that was never started has nothing that could fail. The watch finds
both, and doubts, breaks that stay open, days that changed after they had passed, and alerts that were not delivered.

It needs the connections ``core_banking`` (with the ledger in it) and ``smtp_default``, and a Python with the extra
``calendars``.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk import dag

from airflow_guard import ExpectedOperation, GuardWatchOperator, alert_on_failure


def mail(to):
    return SmtpNotifier(from_email="airflow@example.com", to=to)


@dag(
    schedule=timedelta(minutes=15),
    start_date=pendulum.datetime(2026, 1, 1, tz="Europe/Berlin"),
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(minutes=10),
)
def guard_watch():
    GuardWatchOperator(
        task_id="watch",
        ledger_conn_id="core_banking",
        transports={"payments": [mail("payments@example.com")], "*": [mail("oncall@example.com")]},
        teams={"payments": ["payment_*"]},
        expected=[
            ExpectedOperation(
                key_namespace="bank_statements",
                operation="post_statement",
                since="2026-01-01",
                calendar="ECB",
                due="32h",  # the run at 02:00 has until 08:00
                timezone="Europe/Berlin",
            ),
        ],
        break_age=timedelta(hours=4),
        # Who watches the watch: a failure of its own, and beside it whatever watches Airflow itself.
        on_failure_callback=alert_on_failure(mail("oncall@example.com"), ledger_conn_id="core_banking"),
    )


guard_watch()
