"""The work that is disturbed: daily and hourly, in the database and outside, one by one, in batches and mapped.

The rig copies this file into the folder of its DAGs, and edits the copy while it runs. How far the schedules reach
stands in the plan, a file that the rig writes.
"""

from __future__ import annotations

import time
from datetime import timedelta

from airflow.sdk import Connection, dag, task
from sqlalchemy import text

from airflow_guard import (
    External,
    GuardWatchOperator,
    IdempotentOperator,
    alert_on_dag_failure,
    alert_on_failure,
    business_date_of,
    guard_defaults,
)
from chaos import clock, sabotage
from chaos.paper import Paper
from chaos.plan import Plan
from chaos.timetable import DAILY, HOURLY, AsPlanned
from demo.receiver import ReceiverClient

EDITION = 1
PLAN = Plan.read()
sabotage.carry_out()


def told():
    return Paper()


def wrong_clock(context):
    run = context["dag_run"].run_id
    clock.leave_the_right_time(f"{context['ti'].task_id} {run} {context['ti'].try_number}")


WORK = guard_defaults(
    alerts=[told()],
    retries=4,
    retry_delay=timedelta(seconds=6),
    ledger_conn_id="ledger",
    guarded_from=PLAN.start,
    lease=timedelta(seconds=6),
    poll_interval=timedelta(seconds=1),
    wait_timeout=timedelta(minutes=2),
    pre_execute=wrong_clock,
)
# The longest that a call can be on its way: the rig lets nothing stand still for longer than 20 seconds.
SETTLES = timedelta(seconds=30)


def receiver(name):
    gateway = Connection.get(name)
    return ReceiverClient(f"http://{gateway.host}:{gateway.port}", timeout_s=3)


def documents_for(operation):
    def documents(business_date, cycle):
        return PLAN.payloads(operation, business_date, cycle)

    return documents


def post(payload, connection, business_date):
    connection.execute(
        text(
            "INSERT INTO posting (operation, business_date, document, amount, edition) VALUES (:o, :d, :n, :a, :e)"
        ),
        {
            "o": payload["operation"],
            "d": business_date,
            "n": payload["no"],
            "a": payload["amount"],
            "e": EDITION,
        },
    )
    time.sleep(PLAN.pause_s)
    return payload["no"]


def post_all(documents, connection, business_date):
    for payload in documents:
        post(payload, connection, business_date)
    return len(documents)


def notify(payload, idempotency_key):
    time.sleep(PLAN.pause_s)
    return receiver("mailer").notify({"statement_no": payload["no"]}, idempotency_key)


def pay(payload, idempotency_key, effect):
    time.sleep(PLAN.pause_s)
    with effect:
        return receiver("bank").notify({"statement_no": payload["no"]}, idempotency_key)


def print_letter(document, idempotency_key, effect):
    gateway = receiver("printer")
    time.sleep(PLAN.pause_s)
    with effect:
        receipt = gateway.notify({"statement_no": document}, idempotency_key)
        time.sleep(PLAN.pause_s)
    return receipt


def send_file(documents, batch_id):
    time.sleep(PLAN.pause_s)
    receipt = receiver("filer").notify({"statement_no": " ".join(each["no"] for each in documents)}, batch_id)
    time.sleep(PLAN.pause_s)
    return receipt


def verify_at(name):
    return lambda idempotency_key: receiver(name).notified(idempotency_key)


ALL = {
    "start_date": PLAN.start_at,
    "catchup": True,
    "max_active_runs": 3,
    "default_args": WORK,
    "on_failure_callback": alert_on_dag_failure(told(), ledger_conn_id="ledger"),
}


@dag(schedule=AsPlanned(DAILY, timezone="UTC"), **ALL)
def books():
    IdempotentOperator(
        task_id="post",
        python_callable=post,
        documents=documents_for("post"),
        document_key="no",
        side_effect="database",
    )
    IdempotentOperator(
        task_id="notify",
        python_callable=notify,
        documents=documents_for("notify"),
        document_key="no",
        max_workers=8,
        side_effect=External(verify=verify_at("mailer"), settle_after=SETTLES),
        deferrable=True,
    )


CYCLE = "{{ (dag_run.conf or {}).get('cycle') or data_interval_start.strftime('%H') }}"


@dag(schedule=AsPlanned(HOURLY, timezone="UTC"), **ALL)
def payments():
    IdempotentOperator(
        task_id="book",
        python_callable=post,
        documents=documents_for("book"),
        document_key="no",
        cycle=CYCLE,
        max_workers=8,
        side_effect="database",
    )
    IdempotentOperator(
        task_id="pay",
        python_callable=pay,
        documents=documents_for("pay"),
        document_key="no",
        cycle=CYCLE,
        max_workers=8,
        side_effect=External(in_doubt="retry", receiver_remembers=timedelta(days=1)),
    )


@dag(schedule=AsPlanned(DAILY, timezone="UTC"), **ALL)
def files():
    IdempotentOperator(
        task_id="post_batch",
        python_callable=post_all,
        documents=documents_for("post_batch"),
        document_key="no",
        call_per="batch",
        batch_size=5,
        side_effect="database",
    )
    IdempotentOperator(
        task_id="send_file",
        python_callable=send_file,
        documents=documents_for("send_file"),
        document_key="no",
        call_per="batch",
        batch_size=5,
        side_effect=External(verify=verify_at("filer"), settle_after=SETTLES),
    )


@dag(schedule=AsPlanned(DAILY, timezone="UTC"), **ALL)
def letters():
    @task(retries=4, retry_delay=timedelta(seconds=2))
    def list_letters(**context):
        return [payload["no"] for payload in PLAN.payloads("print", business_date_of(context), "")]

    IdempotentOperator.partial(
        task_id="print",
        operation="print",
        python_callable=print_letter,
        side_effect=External(),
        deferrable=True,
    ).expand(document=list_letters())


@dag(schedule=AsPlanned(DAILY, timezone="UTC"), **ALL)
def standing():
    IdempotentOperator(
        task_id="standing",
        python_callable=post,
        documents=documents_for("standing"),
        document_key="no",
        once_per="document",
        side_effect="database",
    )


@dag(
    schedule=timedelta(seconds=20),
    start_date=PLAN.watch_from,
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(seconds=90),
    default_args={"retries": 1, "retry_delay": timedelta(seconds=2)},
)
def watch():
    GuardWatchOperator(
        task_id="watch",
        priority_weight=1000,  # what people must be told does not wait behind the work
        ledger_conn_id="ledger",
        transports=[told()],
        on_failure_callback=alert_on_failure(told(), ledger_conn_id="ledger"),
    )


books()
payments()
files()
letters()
standing()
watch()
