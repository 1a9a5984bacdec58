"""A guarded task as part of a serialised DAG: it parses to the same thing in every process, and tells no
secret."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

_DAG_FILE = """
from datetime import datetime, timedelta
from functools import partial

from airflow.sdk import DAG, TaskGroup, task

from airflow_guard import Database, External, IdempotentOperator
from airflow_guard import from_asset_extra, month_end, previous_business_day


class Calendar:
    def is_business_day(self, day):
        return True


class Listing:
    def __call__(self, lo=0):
        return []


class Client:
    password = "hunter2"

    def verify(self, document):
        return None


def post(payload, connection):
    pass


def send(document):
    pass


def listed(lo=0, *, hi=1):
    return []


def day_of(facts):
    return "2025-03-31"


CLIENT = Client()
EFFECT = External(verify=CLIENT.verify, settle_after=timedelta(hours=1), safe_errors=[ZeroDivisionError])

START = datetime(2025, 1, 1)
with DAG("stable", schedule=None, start_date=START, default_args={"side_effect": EFFECT}) as dag:
    IdempotentOperator(
        task_id="post", python_callable=post, documents=listed, document_key="no", side_effect=Database(),
        business_date=previous_business_day(calendar=Calendar()),
    )
    IdempotentOperator(
        task_id="rule", python_callable=send, documents=Listing(), business_date=month_end()
    )
    IdempotentOperator(
        task_id="callable", python_callable=send, documents=partial(listed, hi=3), business_date=day_of
    )
    IdempotentOperator(
        task_id="mapping", python_callable=send, document={"b": 1, "a": {1, 2, 3}}, document_key="b"
    )
    IdempotentOperator.partial(
        task_id="mapped", python_callable=send, documents=listed, business_date=from_asset_extra(),
        side_effect=EFFECT, lease=timedelta(seconds=30),
    ).expand(op_kwargs=[{"lo": 1}])
    over = IdempotentOperator.partial(task_id="over", python_callable=send, side_effect=EFFECT)
    over.expand(document=["A"])

    @task.idempotent(business_date=month_end(otherwise="skip"))
    def notify(payload, idempotency_key, region):
        pass

    notify("eu", documents=listed)
    notify.override(task_id="each", operation="each").partial(region="eu").expand(document=["A", "B"])
    chunk = notify.override(task_id="chunk", operation="chunk")
    chunk.partial(region="eu", documents=Listing()).expand_kwargs([{}])
"""

_PARSE = """
import json, runpy, sys
from airflow.serialization import serialized_objects
from airflow.models.serialized_dag import SerializedDagModel

serialization = getattr(serialized_objects, "DagSerialization", None) or serialized_objects.SerializedDAG
dag = runpy.run_path(sys.argv[1])["dag"]
data = serialization.to_dict(dag)
print(json.dumps({"hash": SerializedDagModel.hash(data), "data": data}, default=str))
"""


@pytest.fixture(scope="module")
def twice(airflow_home: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """One DAG file, parsed by two processes: its hash and its serialised form."""
    file = tmp_path_factory.mktemp("dags") / "stable.py"
    file.write_text(_DAG_FILE)
    environment = {**os.environ, "AIRFLOW__AIRFLOW_GUARD__LEDGER_CONN_ID": "ledger"}
    parsing = [
        subprocess.Popen(
            [sys.executable, "-c", _PARSE, str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment, "PYTHONHASHSEED": seed},
        )
        for seed in ("1", "2")
    ]
    parsed = [(*process.communicate(), process.returncode) for process in parsing]
    assert [code for _, _, code in parsed] == [0, 0], [errors for _, errors, _ in parsed]
    return [json.loads(output.splitlines()[-1]) for output, _, _ in parsed]


def test_two_processes_parse_one_version(twice: list[dict[str, Any]]) -> None:
    first, second = twice
    assert first["hash"] == second["hash"]
    assert first["data"] == second["data"]


def test_nothing_in_it_is_a_memory_address_or_a_secret(twice: list[dict[str, Any]]) -> None:
    text = json.dumps(twice[0]["data"])
    assert " at 0x" not in text
    assert "hunter2" not in text


def test_people_can_read_what_the_task_is(twice: list[dict[str, Any]]) -> None:
    tasks = {each["__var"]["task_id"]: each["__var"] for each in twice[0]["data"]["dag"]["tasks"]}
    assert tasks["post"]["business_date"] == "previous_business_day(calendar=Calendar())"
    assert tasks["rule"]["business_date"] == "month_end()"
    assert "day_of" in tasks["callable"]["business_date"]
    assert "listed" in tasks["post"]["documents"]
    assert tasks["mapped"]["partial_kwargs"]["side_effect"].startswith(
        "External(verify=Client.verify, settle_after="
    )
    assert (
        tasks["post"]["_operator_name" if "_operator_name" in tasks["post"] else "task_type"]
        == "IdempotentOperator"
    )
    assert tasks["notify"]["_operator_name"] == "@task.idempotent"
