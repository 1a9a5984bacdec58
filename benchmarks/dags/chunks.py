"""The same chunks by hand and guarded, for the measurement with Celery's workers."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pendulum
import psycopg
from airflow.sdk import Connection, dag, task
from sqlalchemy import text

from airflow_guard import External, IdempotentOperator

SIZE = json.loads(os.environ["CHUNKS"])
POST = "INSERT INTO posted (kind, run_id, document) VALUES (%s, %s, %s)"
GUARDED_POST = text("INSERT INTO posted (kind, run_id, document) VALUES (:kind, :run, :document)")
CALL_S = 0.02


def connect():
    bank = Connection.get("bank")
    return psycopg.connect(host=bank.host, port=bank.port, user=bank.login, dbname=bank.schema)


def documents_of(number, size):
    return [f"{number:03d}-{each:06d}" for each in range(size)]


def post_by_hand(number, run):
    documents = documents_of(number, SIZE["posted"])
    with connect() as connection, connection.cursor() as cursor:
        for start in range(0, len(documents), 500):
            rows = [("post_by_hand", run, each) for each in documents[start : start + 500]]
            cursor.executemany(POST, rows)
            connection.commit()


def post_batch(documents, connection, run_id):
    rows = [{"kind": "post", "run": run_id, "document": each["no"]} for each in documents]
    connection.execute(GUARDED_POST, rows)
    return len(documents)


def call_by_hand(number, run):
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: time.sleep(CALL_S), range(SIZE["called"])))
    with connect() as connection, connection.cursor() as cursor:
        cursor.executemany(
            POST, [("call_by_hand", run, each) for each in documents_of(number, SIZE["called"])]
        )


def call(payload):
    time.sleep(CALL_S)
    return payload["no"]


def listed(size):
    def documents(number):
        return [{"no": each} for each in documents_of(number, size)]

    return documents


NUMBERS = [{"number": number} for number in range(SIZE["chunks"])]
COMMON = {
    "schedule": None,
    "start_date": pendulum.datetime(2026, 1, 1),
    "max_active_tasks": 64,
    "default_args": {"retries": 0, "ledger_conn_id": "bank"},
}
GUARDED = {"document_key": "no", "cycle": "{{ run_id }}"}


@dag(**{**COMMON, "default_args": {"retries": 0}})
def by_hand_posts():
    task(task_id="post")(post_by_hand).partial(run="{{ run_id }}").expand(
        number=[each["number"] for each in NUMBERS]
    )


@dag(**{**COMMON, "default_args": {"retries": 0}})
def by_hand_calls():
    task(task_id="call")(call_by_hand).partial(run="{{ run_id }}").expand(
        number=[each["number"] for each in NUMBERS]
    )


@dag(**COMMON)
def guarded_posts():
    IdempotentOperator.partial(
        task_id="post",
        operation="post",
        python_callable=post_batch,
        documents=listed(SIZE["posted"]),
        call_per="batch",
        batch_size=500,
        side_effect="database",
        **GUARDED,
    ).expand(op_kwargs=NUMBERS)


@dag(**COMMON)
def guarded_calls():
    IdempotentOperator.partial(
        task_id="call",
        operation="call",
        python_callable=call,
        documents=listed(SIZE["called"]),
        max_workers=8,
        side_effect=External(),
        **GUARDED,
    ).expand(op_kwargs=NUMBERS)


by_hand_posts()
by_hand_calls()
guarded_posts()
guarded_calls()
