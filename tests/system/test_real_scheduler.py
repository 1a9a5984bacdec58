"""Under the real scheduler: whatever asks again, each document is posted once and sent once."""

from __future__ import annotations

import os
import signal
import time
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

import psutil
import pytest
import sqlalchemy as sa

from airflow_guard.store.tables import Tables

if TYPE_CHECKING:
    from demo.airflow_client import DagRun
    from tests.system.conftest import RealAirflow

DAG = "deliveries"
HEARTBEAT_TIMEOUT_S = 15


@pytest.fixture(scope="module")
def deliveries(real_airflow: RealAirflow) -> RealAirflow:
    with real_airflow.bank.begin() as connection:
        connection.execute(sa.text("CREATE TABLE IF NOT EXISTS delivery_posting (no varchar(50) NOT NULL)"))
        for side in ("source", "target"):
            connection.execute(
                sa.text(f"CREATE TABLE IF NOT EXISTS day_{side} (no text, amount numeric(12, 2), day date)")
            )
    real_airflow.airflow.wait_for_dag(DAG, "patience", "reconcile", "announce")
    return real_airflow


def numbers(day: date) -> list[str]:
    return [f"{day}-{letter}" for letter in "ABC"]


def calls(world: RealAirflow, *names: str) -> dict[str, int]:
    """How often the receiver was called for each document, whatever the key."""
    found = world.receiver.calls()
    return {name: found.by_statement.get(name, 0) for name in names}


def posted(world: RealAirflow, *names: str) -> dict[str, int]:
    """How many rows the business table has for each document."""
    with world.bank.connect() as connection:
        found = connection.execute(
            sa.text("SELECT no, count(*) FROM delivery_posting WHERE no = ANY(:numbers) GROUP BY no"),
            {"numbers": list(names)},
        )
        return dict(tuple(row) for row in found)


def tries(world: RealAirflow, run_id: str) -> list[tuple[int, str | None, int, int]]:
    """What the ledger says about the tries of a run: number, outcome, executed, replayed."""
    run = Tables().task_run
    found = sa.select(run.c.try_number, run.c.outcome, run.c.executed, run.c.replayed)
    with world.bank.connect() as connection:
        return [
            tuple(row) for row in connection.execute(found.where(run.c.run_id == run_id).order_by(run.c.id))
        ]


def assert_once(world: RealAirflow, *days: date) -> None:
    """Rows in the business table and calls at the receiver: one for each document."""
    wanted = [number for day in days for number in numbers(day)]
    assert posted(world, *wanted) == dict.fromkeys(wanted, 1)
    assert calls(world, *wanted) == dict.fromkeys(wanted, 1)


def by_hand(world: RealAirflow, day: date) -> str:
    return world.airflow.client.trigger(DAG, conf={"business_date": day.isoformat()})


def succeeded(world: RealAirflow, run_id: str, dag_id: str = DAG) -> None:
    run = world.airflow.client.wait_for_run(dag_id, run_id)
    assert run.state == "success", run


def held_run(world: RealAirflow, day: date, point: str) -> tuple[str, int]:
    """Start a run and wait until its send task hangs in the call for its first document."""
    world.receiver.hold(numbers(day)[0], point)
    run_id = by_hand(world, day)
    world.receiver.wait_until_held(numbers(day)[0], world.airflow.signs_of_life)
    return run_id, world.airflow.task_pid(DAG, run_id, "send")


def test_a_task_killed_inside_the_call_asks_and_does_not_call_again(deliveries: RealAirflow) -> None:
    day = date(2026, 3, 2)
    run_id, pid = held_run(deliveries, day, "after")
    os.kill(pid, signal.SIGKILL)
    deliveries.receiver.release(deliver=False)
    succeeded(deliveries, run_id)
    assert deliveries.airflow.client.task(DAG, run_id, "send").try_number > 1
    assert_once(deliveries, day)


def test_r01_a_killed_supervisor_leaves_two_tries_beside_each_other(deliveries: RealAirflow) -> None:
    """The orphaned try goes on; the second try waits for it, and returns what it did."""
    day, client = date(2026, 3, 3), deliveries.airflow.client
    run_id, pid = held_run(deliveries, day, "before")
    os.kill(psutil.Process(pid).ppid(), signal.SIGKILL)
    wait_for_block(deliveries, day)
    assert client.task(DAG, run_id, "send").try_number == 2
    assert psutil.pid_exists(pid)
    assert calls(deliveries, *numbers(day)) == dict.fromkeys(numbers(day), 0)
    deliveries.receiver.release()
    succeeded(deliveries, run_id)
    assert_once(deliveries, day)


def test_an_api_server_frozen_past_the_heartbeat_timeout_does_not_repeat_the_work(
    deliveries: RealAirflow,
) -> None:
    day = date(2026, 3, 4)
    run_id, _ = held_run(deliveries, day, "before")
    server = deliveries.airflow.components["api-server"]
    server.freeze()
    try:
        deliveries.receiver.release()
        # The scheduler must see the heartbeat missing; nothing that could be watched answers meanwhile.
        time.sleep(HEARTBEAT_TIMEOUT_S + 8)
    finally:
        server.thaw()
    succeeded(deliveries, run_id)
    assert_once(deliveries, day)


def test_a_cleared_run_and_a_manual_run_replay(deliveries: RealAirflow) -> None:
    day, client = date(2026, 3, 5), deliveries.airflow.client
    run_id = by_hand(deliveries, day)
    succeeded(deliveries, run_id)
    client.clear_run(DAG, run_id)
    client.wait_for_run(DAG, run_id, {"queued", "running"})
    succeeded(deliveries, run_id)
    again = by_hand(deliveries, day)
    succeeded(deliveries, again)
    assert client.xcom(DAG, again, "send")["replayed"] == 3
    assert_once(deliveries, day)


def test_a_backfill_with_each_reprocess_behaviour(deliveries: RealAirflow) -> None:
    days = [date(2026, 3, 10), date(2026, 3, 11)]
    client = deliveries.airflow.client
    first, last = (datetime(day.year, day.month, day.day, tzinfo=UTC) for day in days)

    def backfills() -> list[DagRun]:
        found = [run for run in client.runs(DAG) if run.run_id.startswith("backfill__")]
        return sorted(found, key=lambda run: run.run_id)

    def ended(tries_of_days: list[int]) -> bool:
        runs = backfills()
        return [run.state for run in runs] == ["success"] * 2 and tries_of_days == [
            client.task(DAG, run.run_id, "send").try_number for run in runs
        ]

    number = 0
    for reprocess, tries_of_days in (("none", [1, 1]), ("failed", [1, 2]), ("completed", [2, 3])):
        if number:  # Airflow takes no other backfill before it has marked the last as completed
            client.wait(lambda: client.backfill_completed(number), "the last backfill")  # noqa: B023
        number = client.backfill(DAG, first, last, reprocess=reprocess)
        client.wait(lambda: ended(tries_of_days), f"backfill {reprocess}")  # noqa: B023
        for run, tries_of_day in zip(backfills(), tries_of_days, strict=True):
            done = {"executed": 3} if tries_of_day == 1 else {"replayed": 3}
            assert done.items() <= client.xcom(DAG, run.run_id, "send").items()
        assert_once(deliveries, *days)
        if reprocess == "none":
            client.mark_run(DAG, backfills()[1].run_id, "failed")


def test_two_runs_of_one_day_at_the_same_moment(deliveries: RealAirflow) -> None:
    day = date(2026, 3, 6)
    deliveries.receiver.hold(numbers(day)[0], "before")
    runs = [by_hand(deliveries, day), by_hand(deliveries, day)]
    deliveries.receiver.wait_until_held(numbers(day)[0], deliveries.airflow.signs_of_life)
    wait_for_block(deliveries, day)
    deliveries.receiver.release()
    for run_id in runs:
        succeeded(deliveries, run_id)
    assert_once(deliveries, day)


def test_a_deferred_task_resumes_when_the_triggerer_sees_the_other_attempt_end(
    deliveries: RealAirflow,
) -> None:
    day, client = date(2026, 3, 7), deliveries.airflow.client
    number = numbers(day)[0]
    deliveries.receiver.hold(number, "after")
    holder = client.trigger("patience", conf={"business_date": day.isoformat()})
    deliveries.receiver.wait_until_held(number, deliveries.airflow.signs_of_life)
    waiting = client.trigger("patience", conf={"business_date": day.isoformat()})
    client.wait_for_task("patience", waiting, "deliver", {"deferred"})
    assert tries(deliveries, waiting) == [(1, "waiting", 0, 0)]
    assert client.task("patience", holder, "deliver").state == "running"
    deliveries.receiver.release()
    for run_id in (holder, waiting):
        succeeded(deliveries, run_id, "patience")
        assert client.xcom("patience", run_id, "deliver") == f"posted {number}"
    assert tries(deliveries, holder) == [(1, "success", 1, 0)]
    assert tries(deliveries, waiting) == [(1, "success", 0, 1)]
    assert posted(deliveries, number) == {number: 1}
    assert calls(deliveries, number) == {number: 1}


def test_asset_runs_take_the_date_of_the_event_and_a_second_one_is_told(deliveries: RealAirflow) -> None:
    """Two automatic runs with one key are not obviously the same work: the second fails and says so."""
    client, name = deliveries.airflow.client, "announcement of 2026-03-20"
    for side in ("source", "target"):
        add(deliveries, side, "A", "2026-03-20")
    for wanted in ("success", "failed"):
        known = {run.run_id for run in client.runs("announce")}
        succeeded(deliveries, client.trigger("reconcile", conf={"business_date": "2026-03-20"}), "reconcile")
        client.wait(lambda: len(client.runs("announce")) > len(known), "the asset's run")  # noqa: B023
        (run_id,) = {run.run_id for run in client.runs("announce")} - known
        assert client.wait_for_run("announce", run_id).state == wanted
        assert calls(deliveries, name) == {name: 1}
    assert "another automatic run" in client.task_log("announce", run_id, "say", 1)


def add(world: RealAirflow, side: str, number: str, day: str) -> None:
    """Commit a row on one side of what the DAG ``reconcile`` compares."""
    with world.bank.begin() as connection:
        connection.execute(
            sa.text(f"INSERT INTO day_{side} VALUES (:no, 10, :day)"), {"no": number, "day": day}
        )


def test_a_reconciliation_goes_on_where_it_was_each_time_that_it_is_rescheduled(
    deliveries: RealAirflow,
) -> None:
    client, check = deliveries.airflow.client, Tables().reconciliation
    for side, number in (("source", "A"), ("source", "B"), ("target", "A")):
        add(deliveries, side, number, "2026-03-23")
    run_id = client.trigger("reconcile", conf={"business_date": "2026-03-23"})
    mine = sa.select(check).where(check.c.run_id == run_id, check.c.business_date == date(2026, 3, 23))

    def rows() -> list[sa.Row]:
        with deliveries.bank.connect() as connection:
            return list(connection.execute(mine).all())

    client.wait(lambda: any(row.poke_count >= 2 for row in rows()), "the second look")
    (row,) = rows()
    assert (row.same_pokes, row.outcome, row.try_number) == (row.poke_count, None, 1)
    add(deliveries, "target", "B", "2026-03-23")
    run = client.wait_for_run("reconcile", run_id)
    assert run.state == "success", client.task_log("reconcile", run_id, "check", 1)
    (row,) = rows()
    assert (row.outcome, row.source_count, row.target_count, row.try_number) == ("passed", 2, 2, 1)
    assert client.xcom("reconcile", run_id, "check")["pokes"] == row.poke_count >= 3


def wait_for_block(world: RealAirflow, day: date) -> None:
    """Wait until a second attempt at the day's first document stands in the ledger as blocked."""
    event = Tables().event
    found = sa.select(event.c.id).where(
        event.c.kind == "blocked", event.c.key_text.like(f"%{numbers(day)[0]}")
    )

    def blocked() -> bool:
        with world.bank.connect() as connection:
            return connection.execute(found).first() is not None

    world.airflow.client.wait(blocked, "the second attempt to be blocked")
