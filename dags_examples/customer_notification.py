"""When the statements of a day are posted, each customer is notified once, however often that is said.

The run has no date of its own: the business date comes with the asset event. A guarded task that has the
asset among its ``outlets`` puts it there, any other task does it by
``yield Metadata(asset, {"business_date": "2026-01-30"})``.

It needs the connections ``core_banking`` (PostgreSQL, with the ledger in it) and ``mailer`` (HTTP), and the
table ``statement``.
"""

from __future__ import annotations

from datetime import timedelta

import httpx
import pendulum
from airflow.providers.postgres.hooks.postgres import PostgresHook
from airflow.sdk import Asset, Connection, dag

from airflow_guard import External, Rejected, from_asset_extra, task

STATEMENTS = (
    "SELECT statement_no, email, closing FROM statement WHERE business_date = %s ORDER BY statement_no"
)


def posted_statements(business_date):
    for statement_no, email, closing in PostgresHook("core_banking").get_records(
        STATEMENTS, (business_date,)
    ):
        yield {"statement_no": statement_no, "email": email, "closing": str(closing)}


def mailer(path):
    gateway = Connection.get("mailer")
    return f"http://{gateway.host}:{gateway.port}/{path}"


def asked_mailer(idempotency_key):
    """Was this notification sent? Asked when nobody knows, for example after a timeout."""
    answer = httpx.get(mailer("notified"), params={"key": idempotency_key}, timeout=10)
    return answer.raise_for_status().json()["notified"]


@dag(
    schedule=[Asset("statements_posted")],
    start_date=pendulum.datetime(2026, 1, 1, tz="Europe/Berlin"),
    default_args={"retries": 3, "retry_delay": timedelta(minutes=2)},
)
def customer_notification():
    @task.idempotent(
        operation="notify",
        document_key="statement_no",
        business_date=from_asset_extra(),
        # A second event for a day is normal: late statements. Those that are done are replayed.
        on_other_run="replay",
        max_workers=8,
        max_rejected=50,  # addresses that do not exist are not worth waking somebody up
        side_effect=External(
            verify=asked_mailer,
            # The mailer gives up a request after one minute. Before that, its "no" may become a "yes".
            settle_after=timedelta(minutes=2),
            # Without a connection nothing was sent. A ReadTimeout is not among them: the request was out.
            safe_errors=[httpx.ConnectError, httpx.ConnectTimeout],
        ),
        ledger_conn_id="core_banking",
    )
    def notify(payload, idempotency_key):
        answer = httpx.post(
            mailer("notify"), json=payload, headers={"Idempotency-Key": idempotency_key}, timeout=30
        )
        if answer.status_code == 422:
            raise Rejected(answer.text)
        return answer.raise_for_status().json()["id"]

    notify(documents=posted_statements)


customer_notification()
