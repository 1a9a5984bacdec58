"""Under CeleryExecutor: a broker that forgets, is told again, and gives a task to a second worker."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from datetime import date
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from redis import Redis

from airflow_guard.store.database import LedgerDatabase
from airflow_guard.store.migrate import migrate
from chaos.broker import WORKERS, Broker
from demo.books import create_books
from demo.receiver import Receiver
from demo.stack import COMPONENTS, AirflowStack
from tests.alerting import MailServer, Webhook
from tests.system.conftest import DAGS, RealAirflow, connections
from tests.system.test_real_scheduler import DAG, assert_once, held_run, succeeded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demo.postgres import EmbeddedPostgres

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("redis-server") is None and not os.environ.get("GUARD_REQUIRE_DATABASES"),
        reason="not run: redis-server is not installed",
    ),
]
RECEIVED = "execute_workload["


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("redis")) as started:
        yield started


@pytest.fixture(scope="module")
def celery(
    postgres_server: EmbeddedPostgres, broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealAirflow]:
    """An Airflow with two Celery workers, over databases of its own."""
    server, folder = postgres_server, tmp_path_factory.mktemp("celery")
    for name in ("celery_bank", "celery_airflow"):
        server.create_database(name)
    bank = sa.create_engine(server.url("celery_bank"))
    create_books(bank)
    with bank.begin() as connection:
        connection.execute(sa.text("CREATE TABLE delivery_posting (no varchar(50) NOT NULL)"))
    ledger = LedgerDatabase(server.url("celery_bank"))
    migrate(ledger)
    ledger.dispose()
    with (
        Receiver(folder / "journal") as receiver,
        MailServer() as mailbox,
        contextlib.closing(Webhook()) as chat,
    ):
        stack = AirflowStack(
            folder / "home",
            DAGS,
            server.url("celery_airflow"),
            connections=connections(server, "celery_bank", receiver, mailbox),
            settings=broker.settings(server.url("celery_airflow")),
            components={**COMPONENTS, **broker.components(folder)},
        )
        with stack:
            stack.wait_for_dag(DAG)
            yield RealAirflow(stack, bank, receiver, mailbox, chat)
    bank.dispose()


def deliveries(world: RealAirflow) -> int:
    """How many times a worker has been given a task."""
    logs = (world.airflow.components[name].log.read_text(errors="replace") for name in WORKERS)
    return sum(line.count("received") for log in logs for line in log.splitlines() if RECEIVED in line)


def wait_for_delivery(world: RealAirflow, more_than: int) -> None:
    world.airflow.client.wait(
        lambda: deliveries(world) > more_than,
        "the task to be delivered again",
        signs=lambda: deliveries(world),
    )
    time.sleep(2)  # what the second worker does with it, it does now


def test_r13_a_broker_that_forgets_and_is_told_again(celery: RealAirflow, broker: Broker) -> None:
    """The lock of a scheduler is gone with what Redis knew; another sends the same message once more."""
    day = date(2026, 3, 3)
    run_id, _ = held_run(celery, day, "before")
    redis = Redis(port=broker.port)
    messages = [json.loads(each) for each in redis.hvals("unacked")]
    assert messages
    before = deliveries(celery)
    assert broker.flush()
    for message, _, queue in messages:
        redis.lpush(queue, json.dumps(message))
    wait_for_delivery(celery, before)
    celery.receiver.release()
    succeeded(celery, run_id)
    assert_once(celery, day)
