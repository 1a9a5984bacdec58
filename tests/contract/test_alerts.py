"""What was told of a problem: once by each transport, again only if it was not delivered, whoever asks."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from airflow_guard.core.alerts.facts import AlertKind, Problem, Stage
from airflow_guard.core.errors import LedgerError
from airflow_guard.store.alerts import Alerts
from airflow_guard.store.database import LedgerDatabase
from airflow_guard.store.dialects import utc_after

if TYPE_CHECKING:
    from airflow_guard.core.keys import KeySpace
    from airflow_guard.store.ledger import Ledger

MAIL, CHAT = "mail", "chat"


@pytest.fixture
def problem(space: KeySpace) -> Problem:
    """A problem that no other test has."""
    return Problem(
        deployment="production",
        dag_id=f"dag_{space.operation}",
        task_id="post",
        kind=AlertKind.FAILED,
        what="run try 1",
        run_id="run",
        business_date=date(2026, 1, 30),
        team="payments",
    )


@pytest.fixture
def alerts(shared_ledger: Ledger) -> Alerts:
    return Alerts(shared_ledger.database)


def tell(
    alerts: Alerts, problem: Problem, transport: str = MAIL, after_s: float | None = None
) -> Stage | None:
    """Do as a notifier does whose transport works."""
    claim = alerts.claim(problem, transport, "subject", escalate_after_s=after_s)
    if claim is None:
        return None
    assert alerts.delivered(claim)
    return claim.stage


def make_older(ledger: Ledger, problem: Problem, column: str, seconds: float) -> None:
    a = ledger.database.tables.alert
    change = (
        sa.update(a).where(a.c.dag_id == problem.dag_id).values({column: utc_after(sa.literal(-seconds))})
    )
    ledger.database.write(lambda connection: connection.execute(change))


def test_a_problem_is_told_once_by_each_transport(alerts: Alerts, problem: Problem) -> None:
    assert tell(alerts, problem) is Stage.FIRST
    assert tell(alerts, problem) is None
    assert tell(alerts, problem, CHAT) is Stage.FIRST
    assert tell(alerts, problem, CHAT) is None


@pytest.mark.parametrize(
    "other",
    [
        {"what": "run try 2"},
        {"map_index": 3},
        {"task_id": "send"},
        {"kind": AlertKind.RETRY},
        {"deployment": "test"},
    ],
    ids=str,
)
def test_another_problem_is_another_alert(alerts: Alerts, problem: Problem, other: dict[str, object]) -> None:
    assert tell(alerts, problem) is Stage.FIRST
    assert tell(alerts, replace(problem, **other)) is Stage.FIRST


def test_what_was_not_delivered_is_sent_by_the_next_who_asks(alerts: Alerts, problem: Problem) -> None:
    claim = alerts.claim(problem, MAIL, "subject")
    assert claim is not None
    assert alerts.claim(problem, MAIL, "subject") is None  # it is being sent
    assert alerts.failed(claim, "connection refused")
    assert [each.error for each in alerts.undelivered("production", -1) if each.problem == problem] == [
        "connection refused"
    ]
    assert tell(alerts, problem) is Stage.FIRST
    assert [each for each in alerts.undelivered("production", -1) if each.problem == problem] == []


def test_a_sender_that_died_leaves_it_to_the_next(
    shared_ledger: Ledger, alerts: Alerts, problem: Problem
) -> None:
    dead = alerts.claim(problem, MAIL, "subject")
    assert dead is not None
    make_older(shared_ledger, problem, "claimed_until_at", 1)
    assert tell(alerts, problem) is Stage.FIRST
    assert not alerts.delivered(dead), "the dead one's late word changes nothing"


def test_of_many_who_ask_at_the_same_moment_one_sends(alerts: Alerts, problem: Problem) -> None:
    together, won = threading.Barrier(6), []

    def ask() -> None:
        together.wait()
        won.append(alerts.claim(problem, MAIL, "subject"))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([claim for claim in won if claim is not None]) == 1
    assert len(won) == 6


def test_it_escalates_once_when_the_time_is_over(
    shared_ledger: Ledger, alerts: Alerts, problem: Problem
) -> None:
    assert tell(alerts, problem, after_s=3600) is Stage.FIRST
    assert tell(alerts, problem, after_s=3600) is None
    make_older(shared_ledger, problem, "sent_at", 3601)
    assert tell(alerts, problem) is None, "nobody asked for an escalation"
    assert tell(alerts, problem, after_s=3600) is Stage.ESCALATION
    assert tell(alerts, problem, after_s=3600) is None


def test_resolved_is_said_once_and_a_problem_that_comes_back_is_new(alerts: Alerts, problem: Problem) -> None:
    def open_ones() -> list[object]:
        found = alerts.open_of_task("production", problem.dag_id, "post", -1, "run")
        assert found == [
            each for each in alerts.open_of_kinds("production", [problem.kind], "payments") if each in found
        ]
        return found

    tell(alerts, problem)
    (stored,) = alerts.open_of_task("production", problem.dag_id, "post", -1, "run")
    assert (stored.problem, stored.transport, stored.subject) == (problem, MAIL, "subject")
    claim = alerts.claim_resolved(stored)
    assert claim is not None
    assert claim.stage is Stage.RESOLVED
    assert alerts.delivered(claim)
    assert alerts.claim_resolved(stored) is None
    assert open_ones() == []
    assert tell(alerts, problem) is Stage.FIRST
    assert len(open_ones()) == 1


def test_a_problem_that_nobody_was_told_of_is_resolved_without_a_word(
    alerts: Alerts, problem: Problem
) -> None:
    claim = alerts.claim(problem, MAIL, "subject")
    assert claim is not None
    alerts.failed(claim, "down")
    (stored,) = alerts.open_of_task("production", problem.dag_id, "post", -1, "run")
    assert alerts.claim_resolved(stored) is None
    assert alerts.open_of_task("production", problem.dag_id, "post", -1, "run") == []


def test_texts_that_a_database_refuses_are_stored(alerts: Alerts, problem: Problem) -> None:
    claim = alerts.claim(replace(problem, what="\x00 \ud800"), MAIL, "subject \x00\ud800 " + "x" * 10_000)
    assert claim is not None
    assert alerts.failed(claim, "\x00\ud800")


def test_a_ledger_that_is_down_says_so() -> None:
    down = LedgerDatabase("postgresql+psycopg://nobody@127.0.0.1:9/nowhere")
    problem = Problem(deployment="d", dag_id="d", kind=AlertKind.FAILED, what="w")
    with pytest.raises(LedgerError):
        Alerts(down).claim(problem, MAIL, "subject")
    down.dispose()
