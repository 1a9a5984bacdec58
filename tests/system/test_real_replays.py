"""Under the real scheduler: a doubt settles itself, a replay is the first run again, a try that died early is repeated."""

from __future__ import annotations

import time
from datetime import date
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from airflow_guard.core.guard import CLOCKS_DIFFER
from airflow_guard.store.tables import Tables

if TYPE_CHECKING:
    from tests.system.conftest import RealAirflow


@pytest.fixture(scope="module")
def replaying(real_airflow: RealAirflow) -> RealAirflow:
    with real_airflow.bank.begin() as connection:
        connection.execute(sa.text("CREATE TABLE IF NOT EXISTS delivery_posting (no varchar(50) NOT NULL)"))
    real_airflow.airflow.wait_for_dag("settling", "killed_early")
    return real_airflow


def numbers(day: date) -> list[str]:
    return [f"{day}-{letter}" for letter in "ABC"]


def by_hand(world: RealAirflow, dag_id: str, day: date) -> str:
    return world.airflow.client.trigger(dag_id, conf={"business_date": day.isoformat()})


def succeeded(world: RealAirflow, dag_id: str, run_id: str) -> None:
    run = world.airflow.client.wait_for_run(dag_id, run_id)
    assert run.state == "success", run


def test_d08_the_only_retry_settles_what_the_first_try_left_in_doubt_and_d07_a_replay_pushes_again(
    replaying: RealAirflow,
) -> None:
    """A was sent, B was not: one retry, a second later, waits until a "no" counts, and sends B."""
    day, client = date(2026, 3, 24), replaying.airflow.client
    run_id = by_hand(replaying, "settling", day)
    succeeded(replaying, "settling", run_id)
    assert client.task("settling", run_id, "pay").try_number == 2
    assert {no: replaying.receiver.calls().by_statement.get(no, 0) for no in numbers(day)} == dict.fromkeys(
        numbers(day), 1
    )
    pulled = client.xcom("settling", run_id, "pull")
    assert pulled == f"{day}-C.csv", "the last of the listing, which the first try had done"
    client.clear_run("settling", run_id)
    client.wait_for_run("settling", run_id, {"queued", "running"})
    succeeded(replaying, "settling", run_id)
    assert client.xcom("settling", run_id, "pull") == pulled
    assert sum(replaying.receiver.calls().by_statement.get(no, 0) for no in numbers(day)) == 3


def test_d08_the_very_first_try_is_killed_before_its_first_commit_and_the_next_does_the_work(
    replaying: RealAirflow,
) -> None:
    client, day = replaying.airflow.client, date(2026, 3, 25)
    # A run must be clearly younger than its code, whatever the clocks of an Airflow say.
    until = time.monotonic() + CLOCKS_DIFFER.total_seconds()
    client.wait(lambda: time.monotonic() > until, "a run that is younger than its code")
    run_id = by_hand(replaying, "killed_early", day)
    succeeded(replaying, "killed_early", run_id)
    assert client.task("killed_early", run_id, "post").try_number == 2
    run = Tables().task_run
    with replaying.bank.connect() as connection:
        posted = connection.execute(
            sa.text("SELECT no, count(*) FROM delivery_posting WHERE no LIKE :day GROUP BY no"),
            {"day": f"{day}-%"},
        ).all()
        tries = connection.execute(sa.select(run.c.try_number).where(run.c.run_id == run_id)).scalars().all()
    assert {tuple(row) for row in posted} == {(no, 1) for no in numbers(day)}
    assert list(tries) == [2], "the first has left nothing in the ledger"
