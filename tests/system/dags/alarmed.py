"""DAGs for the tests of alerts under the real scheduler: a task fails, is killed, loses Airflow, or takes too long."""

from __future__ import annotations

import json
import os
import signal
import time
from datetime import UTC, datetime, timedelta
from urllib.request import Request, urlopen

import pendulum
from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.providers.standard.triggers.temporal import DateTimeTrigger
from airflow.sdk import BaseNotifier, BaseOperator, dag

from airflow_guard import External, IdempotentOperator, alert_on_dag_failure, guard_defaults

mail = SmtpNotifier(from_email="airflow@example.com", to="oncall@example.com")


class ChatNotifier(BaseNotifier):
    """Posts to a web address, as the notifiers of chats do."""

    template_fields = ("text",)

    def __init__(self, text="{{ alert.text }}", **kwargs):
        super().__init__(**kwargs)
        self.text = text

    def notify(self, context):
        data = json.dumps({"text": self.text}).encode()
        with urlopen(Request(os.environ["CHAT_ADDRESS"], data), timeout=10):
            pass


QUICK = {
    "ledger_conn_id": "core_banking",
    "lease": timedelta(seconds=4),
    "poll_interval": timedelta(seconds=1),
}
ALARMED = guard_defaults(QUICK, alerts=[mail, ChatNotifier()], retries=0)


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
        **QUICK,
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


def lose_airflow():
    """Kill the supervisor, so that nobody sends heartbeats any more, and go on for a while."""
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(30)
    os._exit(0)


@dag(schedule=None, start_date=pendulum.datetime(2026, 3, 1), default_args=ALARMED)
def alarmed_lost():
    IdempotentOperator(task_id="pay", python_callable=lose_airflow, document="PAY-lost")


def outlast_the_timeout():
    """Let Airflow's time run out here and now: its alarm is the process's, and a slow claim must not meet it."""
    signal.setitimer(signal.ITIMER_REAL, 1)
    time.sleep(120)


@dag(schedule=None, start_date=pendulum.datetime(2026, 3, 1), default_args=ALARMED)
def alarmed_slow():
    IdempotentOperator(
        task_id="pay",
        python_callable=outlast_the_timeout,
        document="PAY-slow",
        execution_timeout=timedelta(seconds=100),
    )


class NeverWoken(BaseOperator):
    """Waits for a trigger that fires too late."""

    def execute(self, context):
        moment = datetime.now(UTC) + timedelta(hours=1)
        trigger = DateTimeTrigger(moment=moment)
        self.defer(trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=10))

    def execute_complete(self, context, event=None):
        raise AssertionError


@dag(
    schedule=None,
    start_date=pendulum.datetime(2026, 3, 1),
    default_args=guard_defaults(alerts=[mail, ChatNotifier()], retries=0),
)
def alarmed_deferred():
    NeverWoken(task_id="wait")


alarmed()
alarmed_lost()
alarmed_slow()
alarmed_deferred()
