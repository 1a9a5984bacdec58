"""Counters reach a real StatsD server as Airflow's own statistics do."""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from airflow.sdk import DAG

from airflow_guard import External, IdempotentOperator, ReconciliationSensor, Rejected, Side
from airflow_guard.airflow_compat import _stats, count_stat
from airflow_guard.operators.endings import COUNTERS, count
from tests.airflow_runs import start_run
from tests.databases import databases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Business

pytestmark = databases("sqlite")
JANUARY_30 = datetime(2026, 1, 30, tzinfo=UTC)


class StatsD:
    """A StatsD backend of Airflow's form that sends over UDP to a socket of this test."""

    def __init__(self) -> None:
        self._server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._server.bind(("127.0.0.1", 0))
        self._server.settimeout(5)

    def incr(self, stat: str, count: int = 1, rate: float = 1, *, tags: dict[str, str] | None = None) -> None:
        tagged = ",".join(f"{name}={value}" for name, value in sorted((tags or {}).items()))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.sendto(f"{stat},{tagged}:{count}|c".encode(), self._server.getsockname())

    def __getattr__(self, name: str) -> object:
        return lambda *args, **kwargs: None

    def received(self) -> dict[str, int]:
        """Return our counters so far: name to sum."""
        self.incr("end")
        found: dict[str, int] = {}
        while not (line := self._server.recv(4096).decode()).startswith("end"):
            name, _, rest = line.partition(",")
            if name.startswith("airflow_guard."):
                short = name.removeprefix("airflow_guard.")
                found[short] = found.get(short, 0) + int(rest.rpartition(":")[2].removesuffix("|c"))
        return found

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def statsd(monkeypatch: pytest.MonkeyPatch) -> Iterator[StatsD]:
    server = StatsD()
    monkeypatch.setattr(_stats(), "incr", staticmethod(server.incr))
    yield server
    server.close()


def test_what_became_of_documents_is_counted(business: Business, statsd: StatsD) -> None:
    def pay(document: str) -> None:
        if document == "doubtful":
            raise TimeoutError
        if document == "refused":
            raise Rejected("no such account")

    with DAG(business.dag_id, schedule=None) as dag:
        IdempotentOperator(
            task_id="pay", python_callable=pay, documents=["a", "b", "doubtful", "refused"], max_rejected=9
        )
    run = start_run(dag, logical_at=JANUARY_30).go()
    assert statsd.received() == {"executed": 2, "in_doubt": 1, "rejected": 1}
    run.clear().go(dag)
    assert statsd.received() == {"replayed": 2, "in_doubt": 1, "rejected": 1}


def test_open_breaks_are_counted(business: Business, statsd: StatsD) -> None:
    with business.ledger.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE a (no TEXT, amount INTEGER)")
        connection.exec_driver_sql("CREATE TABLE b (no TEXT, amount INTEGER)")
        connection.exec_driver_sql("INSERT INTO a VALUES ('P-1', 1), ('P-2', 2)")
    sides = {
        name: Side(conn_id="guard_ledger", table=table, key="no")
        for name, table in (("source", "a"), ("target", "b"))
    }
    with DAG(business.dag_id, schedule=None) as dag:
        ReconciliationSensor(task_id="reconcile", poke_interval=0.01, settle_pokes=1, **sides)
    start_run(dag, logical_at=JANUARY_30).go()
    assert statsd.received() == {"breaks": 2}


def test_what_was_done_before_a_question_is_counted_once(business: Business, statsd: StatsD) -> None:
    def pay(document: str, attempt: int) -> None:
        if document == "B" and attempt == 1:
            raise TimeoutError

    with DAG(business.dag_id, schedule=None, start_date=datetime(2025, 1, 1, tzinfo=UTC)) as dag:
        IdempotentOperator(
            task_id="pay", python_callable=pay, documents=["A", "B"], side_effect=External(in_doubt="ask")
        )
    run = start_run(dag, logical_at=JANUARY_30).go(run_triggers=False)
    assert statsd.received() == {"executed": 1, "in_doubt": 1}
    (field,) = set(run.question("pay").params) - {"reason"}
    run.answer("pay", "Settle", {field: "did not happen", "reason": "never seen"})
    assert statsd.received() == {"executed": 1}


def test_every_counter_arrives_with_its_tags(statsd: StatsD) -> None:
    count(dict.fromkeys(COUNTERS, 3) | {"documents": 9}, {"dag_id": "d", "task_id": "t", "operation": "o"})
    assert statsd.received() == dict.fromkeys(COUNTERS, 3)
    count_stat("airflow_guard.executed", 1, {"dag_id": "d"})
    assert statsd._server.recv(4096) == b"airflow_guard.executed,dag_id=d:1|c"


def test_a_statistics_server_that_is_down_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*args: object, **kwargs: object) -> None:
        raise ConnectionError("statsd is down")

    monkeypatch.setattr(_stats(), "incr", staticmethod(down))
    count({"executed": 1}, {})
