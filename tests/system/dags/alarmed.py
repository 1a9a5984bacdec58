"""A DAG for the tests of alerts under the real scheduler: its task fails, or its process is killed."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import pendulum
from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk import dag

from airflow_guard import External, IdempotentOperator, alert_on_dag_failure, guard_defaults

mail = SmtpNotifier(from_email="airflow@example.com", to="oncall@example.com")


def pay(dag_run):
    if dag_run.conf["how"] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ConnectionRefusedError("no route to postgresql://guard:hunter2@bank/x")


@dag(
    schedule=None,
    start_date=pendulum.datetime(2026, 3, 1),
    default_args=guard_defaults(
        alerts=[mail],
        retries=1,
        retry_delay=timedelta(seconds=1),
        ledger_conn_id="core_banking",
        lease=timedelta(seconds=4),
        poll_interval=timedelta(seconds=1),
    ),
    on_failure_callback=alert_on_dag_failure(mail, ledger_conn_id="core_banking"),
)
def alarmed():
    IdempotentOperator(
        task_id="pay",
        python_callable=pay,
        document="PAY-{{ dag_run.conf['how'] }}",
        cycle="{{ dag_run.conf['how'] }}",
        side_effect=External(safe_errors=[ConnectionRefusedError]),
    )


alarmed()
