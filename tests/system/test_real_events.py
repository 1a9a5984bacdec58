"""Under the real scheduler: asset events that are emitted again, and runs of partitions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

if TYPE_CHECKING:
    from demo.airflow_client import DagRun
    from tests.system.conftest import RealAirflow

PRODUCER, CONSUMER, COUNTRIES = "slips_producer", "slips_consumer", "countries"


@pytest.fixture(scope="module")
def world(real_airflow: RealAirflow) -> RealAirflow:
    with real_airflow.bank.begin() as connection:
        connection.execute(
            sa.text(
                "CREATE TABLE IF NOT EXISTS event_posting (day date NOT NULL, cycle varchar(100) NOT NULL)"
            )
        )
    real_airflow.airflow.wait_for_dag(PRODUCER, CONSUMER)
    return real_airflow


def booked(world: RealAirflow, day: str) -> list[str]:
    """The cycles under which the business table has rows of a day."""
    with world.bank.connect() as connection:
        found = connection.execute(
            sa.text("SELECT cycle FROM event_posting WHERE day = :day ORDER BY cycle"), {"day": day}
        )
        return [row.cycle for row in found]


def ended(world: RealAirflow, dag_id: str, number: int) -> list[DagRun]:
    """Wait until a DAG has so many runs and all have ended; in the order in which they began."""
    client = world.airflow.client

    def there() -> bool:
        runs = client.runs(dag_id)
        return len(runs) == number and all(run.state in {"success", "failed"} for run in runs)

    client.wait(there, f"{number} runs of {dag_id}")
    return sorted(client.runs(dag_id), key=lambda run: run.run_id)


def test_d06_an_event_that_a_cleared_producer_emits_again_is_the_same_work(world: RealAirflow) -> None:
    client, day = world.airflow.client, "2026-05-04"
    producer = client.trigger(PRODUCER, conf={"business_date": day})
    assert client.wait_for_run(PRODUCER, producer).state == "success"
    [first] = ended(world, CONSUMER, 1)
    assert (first.state, booked(world, day)) == ("success", [""])

    client.clear_run(PRODUCER, producer)
    again = ended(world, CONSUMER, 2)
    assert [run.state for run in again] == ["success", "success"]
    assert booked(world, day) == [""]
    for run in again:
        assert client.xcom(CONSUMER, run.run_id, "book") == f"{day} "

    # Another run of the producer is other work, or the same: nobody can know.
    other = client.trigger(PRODUCER, conf={"business_date": day})
    assert client.wait_for_run(PRODUCER, other).state == "success"
    runs = ended(world, CONSUMER, 3)
    assert sorted(run.state for run in runs) == ["failed", "success", "success"]
    [failed] = [run for run in runs if run.state == "failed"]
    log = client.task_log(CONSUMER, failed.run_id, "book", 1)
    assert "OtherRun" in log
    assert "from_asset_extra()" in log
    assert booked(world, day) == [""]


def of_partition(world: RealAirflow, key: str) -> str:
    """Trigger a run as the trigger form does: its logical date is now."""
    body = {"partition_key": key, "logical_date": datetime.now(UTC).isoformat(), "conf": {}}
    answer = world.airflow.client.request("POST", f"/api/v2/dags/{COUNTRIES}/dagRuns", json=body)
    return world.airflow.client.wait_for_run(COUNTRIES, answer["dag_run_id"]).state


def test_d05_each_partition_has_its_own_date_and_key(world: RealAirflow) -> None:
    pytest.importorskip("airflow.partition_mappers")  # from Airflow 3.2 on
    world.airflow.wait_for_dag(COUNTRIES)
    keys = ["DE|2026-01-30", "FR|2026-01-30", "2026-01-30T05", "2026-01-30T06", "2026-01-30"]
    assert [of_partition(world, key) for key in keys] == ["success"] * len(keys)
    assert booked(world, "2026-01-30") == sorted(["", *keys[:-1]])
    assert of_partition(world, keys[0]) == "success"  # asked for again: it replays
    assert of_partition(world, "DE") == "failed"
    assert booked(world, str(datetime.now(UTC).date())) == []
    assert len(booked(world, "2026-01-30")) == len(keys)
