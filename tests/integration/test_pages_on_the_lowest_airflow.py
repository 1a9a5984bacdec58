"""The pages under a real API server of the lowest Airflow; on the highest, all of ``tests/ui`` looks at them."""

from __future__ import annotations

import json
from datetime import date
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest

from airflow_guard.core.keys import KeySpace
from airflow_guard.core.states import State
from demo.postgres import EmbeddedPostgres
from tests.contract.attempts import attempt, new_ledger
from tests.ui.airflow_with_pages import AirflowWithPages
from tests.ui.forms.site import SAME, hidden
from tests.ui.visiting import links, visit, words

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.skipif(
        not version("apache-airflow").startswith("3.1."), reason="tests/ui looks at the pages on this Airflow"
    ),
]
SPACE = KeySpace("payments", "pay", date(2026, 1, 30))
TABS = {
    "dag": "tab/dag?dag_id=payments",
    "dag_run": "tab/run?dag_id=payments&run_id=r",
    "task": "tab/task?dag_id=payments&task_id=pay",
    "task_instance": "tab/task_instance?dag_id=payments&run_id=r&task_id=pay&map_index={MAP_INDEX}",
}


def test_the_pages_are_there_closed_to_strangers_and_can_be_used(tmp_path: Path) -> None:
    # One test, since an API server takes a quarter of a minute to start.
    with EmbeddedPostgres() as postgres:
        postgres.create_database("bank")
        ledger = new_ledger(postgres.url("bank"))
        own = attempt(ledger, "E2E-1", space=SPACE, run_id="r", task_id="pay").begin().doubt("no answer")
        connection = {"conn_type": "postgres", "host": str(postgres.socket_dir), "port": postgres.port,
                      "login": "postgres", "schema": "bank"}  # fmt: skip
        patient = {"AIRFLOW__AIRFLOW_GUARD__PAGE_TIMEOUT_SECONDS": "60"}
        with AirflowWithPages(
            tmp_path, {"core_banking": json.dumps(connection)}, "core_banking", **patient
        ) as airflow:
            airflow.know_dags()
            nobody_gets_in(airflow)
            the_tabs_are_known_to_airflow(airflow)
            a_viewer_reads(airflow)
            a_doubt_is_settled(airflow)
        row = ledger.read(SPACE.key_date, own.hashes)[own.hashes[0]]
        assert row.state is State.COMPLETED
        ledger.database.dispose()


def nobody_gets_in(airflow: AirflowWithPages) -> None:
    with airflow.client(None) as client:
        for path in ("/", "/keys", "/docs", "/openapi.json", "/static/guard.css", "/forms/settle"):
            assert client.get(path).status_code in (401, 403), path
            assert client.post(path).status_code in (401, 403), path
        client.cookies.set("_token", "x.y.z")
        assert client.get("/keys").status_code in (401, 403)


def the_tabs_are_known_to_airflow(airflow: AirflowWithPages) -> None:
    with airflow.client("admin") as client:
        client.headers["Authorization"] = f"Bearer {airflow.token('admin')}"
        answer = client.get(f"{airflow.address}/api/v2/plugins").json()
    (plugin,) = [each for each in answer["plugins"] if each["name"] == "airflow_guard"]
    views = {view["destination"]: view for view in plugin["external_views"]}
    assert set(views) == {"nav", *TABS}
    assert views["dag"]["href"].startswith("airflow-guard/tab/dag?")


def a_viewer_reads(airflow: AirflowWithPages) -> None:
    with airflow.client("viewer") as client:
        assert "1 matter needs a person" in words(visit(client, "/"))
        page = visit(client, "/open")
        assert "E2E-1" in page
        key = links(page, "/key?")[0].partition("/airflow-guard")[2]
        text = words(visit(client, key))
        assert "Its life" in text
        assert "Who may edit this DAG in Airflow can settle it here." in text
        for tab in TABS.values():
            assert "payments" in words(visit(client, f"/{tab}"))
        assert "E2E-1" in visit(client, "/csv/open")


def a_doubt_is_settled(airflow: AirflowWithPages) -> None:
    with airflow.client("op") as client:
        opened = links(visit(client, "/open"), "/key?")[0].partition("/airflow-guard")[2]
        form = visit(client, opened.replace("/key?", "/forms/resolve?"))
        filled = {**hidden(form), "decision": "happened", "reason": "the bank has it, ticket 4711"}
        shown = client.post("/forms/resolve", data=filled, headers=SAME)
        assert "Nothing is changed yet" in words(shown.text)
        done = client.post("/forms/resolve", data=hidden(shown.text), headers=SAME, follow_redirects=True)
        assert "Recorded. This is how the key stands now." in words(done.text)
