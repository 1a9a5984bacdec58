"""Questions under the real scheduler: asked, answered through the REST API by a user, and the task ends by itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard.store.tables import Tables
from demo.airflow_client import AirflowClient, AirflowRefused
from tests.system.test_real_alerts import mails_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.system.conftest import RealAirflow

# Whichever test comes first starts Airflow.
DAY = "2026-03-27"
WAITING = {"awaiting_input", "deferred"}


class Person:
    """Somebody at the REST API of Airflow."""

    def __init__(self, world: RealAirflow, name: str) -> None:
        passwords = json.loads((world.airflow.home / "passwords.json").read_text())
        self.client = AirflowClient(world.airflow.address, name, passwords[name])

    def question(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.client.request("GET", _path(dag_id, run_id, task_id))
        return found

    def answer(self, dag_id: str, run_id: str, task_id: str, option: str, **inputs: str) -> Any:
        body = {"chosen_options": [option], "params_input": inputs}
        return self.client.request("PATCH", _path(dag_id, run_id, task_id), json=body)


def _path(dag_id: str, run_id: str, task_id: str) -> str:
    return f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/-1/hitlDetails"


@pytest.fixture
def people(real_airflow: RealAirflow) -> Iterator[dict[str, Person]]:
    people = {name: Person(real_airflow, name) for name in ("jane", "visitor")}
    yield people
    for person in people.values():
        person.client.close()


def wait_until_asked(world: RealAirflow, dag_id: str, run_id: str, task_id: str, *, times: int = 1) -> None:
    """Wait until a task waits for a person, and its executor has told that its process ended.

    Airflow itself fails a task that is queued again before: no person is as quick.
    """
    client = world.airflow.client
    told = f"Received executor event with state success for task instance TaskInstanceKey(dag_id='{dag_id}', task_id='{task_id}'"

    def parked() -> bool:
        log = world.airflow.components["scheduler"].log.read_text(errors="replace")
        ended = [line for line in log.splitlines() if told in line and run_id in line]
        return len(ended) >= times and client.task(dag_id, run_id, task_id).state in WAITING

    client.wait(parked, f"the question {times} of {dag_id}")


def events(world: RealAirflow, *kinds: str) -> list[tuple[str, str, str]]:
    event = Tables().event
    found = sa.select(event.c.kind, event.c.actor, event.c.reason).where(
        event.c.kind.in_(kinds), event.c.key_text.like("asking%")
    )
    with world.bank.connect() as connection:
        return [tuple(row) for row in connection.execute(found.order_by(event.c.id))]


def named(question: dict[str, Any]) -> dict[str, str]:
    """By the document's last letter, the name of its field."""
    return {
        each["schema"]["title"][-1]: name for name, each in question["params"].items() if name != "reason"
    }


def test_tasks_ask_people_and_go_on_with_their_answers(
    real_airflow: RealAirflow, people: dict[str, Person]
) -> None:
    client, jane, visitor = real_airflow.airflow.client, people["jane"], people["visitor"]
    real_airflow.airflow.wait_for_dag("asking", "asking_briefly", "asking_about_breaks")
    with real_airflow.bank.begin() as connection:
        for side in ("source", "target"):
            table = f"CREATE TABLE IF NOT EXISTS day_{side} (no text, amount numeric(12, 2), day date)"
            connection.execute(sa.text(table))
        connection.execute(sa.text("INSERT INTO day_source VALUES ('X', 10, :day)"), {"day": DAY})
    run_id, brief, check = (
        client.trigger(dag_id, conf={"business_date": DAY})
        for dag_id in ("asking", "asking_briefly", "asking_about_breaks")
    )

    # A payment whose answer is lost, and one that was never sent.
    wait_until_asked(real_airflow, "asking", run_id, "pay")
    question = visitor.question("asking", run_id, "pay")
    fields = named(question)
    assert set(fields) == {"A", "B"}, "C was done before anybody was asked"
    assert f"In doubt: {DAY}-A, {DAY}-B" in question["subject"]
    settled = {fields["A"]: "happened", fields["B"]: "did not happen"}
    with pytest.raises(AirflowRefused, match="answered 403"):
        visitor.answer("asking", run_id, "pay", "Settle", **settled, reason="I may only look")
    jane.answer("asking", run_id, "pay", "Settle", **settled)
    wait_until_asked(real_airflow, "asking", run_id, "pay", times=2)
    assert jane.question("asking", run_id, "pay")["responded_at"] is None, "it is open again"
    jane.answer("asking", run_id, "pay", "Settle", **settled, reason="seen in their portal")
    with pytest.raises(AirflowRefused, match="answered 409"):
        jane.answer("asking", run_id, "pay", "Leave all in doubt", reason="a second thought")
    assert client.wait_for_run("asking", run_id).state == "success"
    calls = real_airflow.receiver.calls().by_statement
    assert {letter: calls.get(f"{DAY}-{letter}", 0) for letter in "ABC"} == {"A": 1, "B": 1, "C": 1}
    assert client.xcom("asking", run_id, "pay")["executed"] == 3, "by this try, whoever has confirmed it"
    assert client.task("asking", run_id, "pay").try_number == 1
    assert events(real_airflow, "resolve_happened", "resolve_not_happened", "answer_refused") == [
        *[("answer_refused", "jane", "not accepted: a reason is missing")] * 2,  # of A and of B
        ("resolve_happened", "jane", "seen in their portal"),
        ("resolve_not_happened", "jane", "seen in their portal"),
    ]
    assert "The answer of jane is none: a reason is missing" in client.task_log("asking", run_id, "pay", 1)

    # Breaks that a person accepts.
    wait_until_asked(real_airflow, "asking_about_breaks", check, "check")
    jane.answer("asking_about_breaks", check, "check", "Accept the breaks", reason="booked by hand")
    assert client.wait_for_run("asking_about_breaks", check).state == "success"
    with real_airflow.bank.connect() as connection:
        found = sa.text(
            "SELECT state, actor, reason FROM guard_break WHERE document = 'X' AND business_date = :day"
        )
        assert connection.execute(found, {"day": DAY}).all() == [("explained", "jane", "booked by hand")]

    # Nobody answers: it stays in doubt, the task fails, and somebody is told.
    assert client.wait_for_run("asking_briefly", brief).state == "failed"
    failed = "FAILED, final (1/1)"
    client.wait(lambda: failed in mails_of(real_airflow, brief), "the alert of the failure")
    mails = mails_of(real_airflow, brief)
    assert set(mails) == {"ANSWER NEEDED", failed}
    assert "airflow-guard resolve" in mails[failed]
    assert [kind for kind, _, _ in events(real_airflow, "ask_timeout")] == ["ask_timeout"]
