"""A DAG for the tests of secrets: its task meets a password, a token and a DSN, and fails with all of them."""

from __future__ import annotations

import logging
from datetime import timedelta

import pendulum
from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk import BaseHook, Variable, dag

from airflow_guard import External, IdempotentOperator, guard_defaults


def pay(document):
    password = BaseHook.get_connection("vault").password
    token = Variable.get("vault_api_token")
    logging.getLogger(__name__).info("trying %s with %s and %s", document, password, token)
    msg = f"{document}: vault says no to password={password}, token={token}"
    raise (TimeoutError if document == "DOUBT" else ValueError)(msg)


@dag(
    schedule=None,
    start_date=pendulum.datetime(2026, 3, 1),
    default_args=guard_defaults(
        alerts=[SmtpNotifier(from_email="airflow@example.com", to="oncall@example.com")],
        retries=1,
        retry_delay=timedelta(seconds=1),
        ledger_conn_id="core_banking",
    ),
)
def secretive():
    IdempotentOperator(
        task_id="pay",
        python_callable=pay,
        documents=["DOUBT", "FAILS"],
        max_workers=2,
        side_effect=External(safe_errors=[ValueError]),
    )


secretive()
