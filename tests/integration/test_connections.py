"""How many connections a task holds at the ledger's database, counted by the database."""

from __future__ import annotations

import re
import threading
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

import pytest
import sqlalchemy as sa
from airflow.sdk import DAG

from airflow_guard import IdempotentOperator
from airflow_guard.hooks.ledger import open_ledger
from tests.airflow_runs import start_run
from tests.databases import databases
from tests.docs.pages import page
from tests.integration.conftest import LEDGER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.databases import DatabaseServer, DatabaseUnderTest
    from tests.integration.conftest import Business

pytestmark = databases("postgres_embedded")


@pytest.fixture
def database(database_server: DatabaseServer) -> Iterator[DatabaseUnderTest]:
    """A database of its own: what the server counts there is this task's."""
    fresh = database_server.fresh_database()
    yield fresh
    database_server.drop(fresh)


class Counter:
    """Counts the sessions of the database but its own, as often as it can, and when asked."""

    def __init__(self, database: DatabaseUnderTest) -> None:
        self._engine = database.engine(isolation_level="AUTOCOMMIT", pool_size=1)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on)
        self.seen: list[int] = []

    def look(self, *_: Any) -> None:
        query = sa.text(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        with self._lock, self._engine.connect() as connection:
            self.seen.append(connection.execute(query).scalar_one())

    def _go_on(self) -> None:
        while not self._over.wait(0.005):
            self.look()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


PAGE = "docs/how-to/distribute.md"
DOCUMENTS = 40
ROUNDS_S = 2.4
LEASE = timedelta(seconds=3)
"""So short that it is renewed several times meanwhile, over one more connection."""


def promised(how: str, workers: int) -> int:
    """Return the peak that the page promises."""
    (said,) = re.findall(rf"^\| {how} \| ([^|]+) \|", page(PAGE).text, re.MULTILINE)
    return sum(workers if part == "`max_workers`" else int(part) for part in said.strip().split(" + "))


def callable_of(how: str, pause_s: float, look: Callable[[], None]) -> Callable[..., None]:
    """Return a function that keeps its connections for a while."""

    def post(document: str, connection: sa.Connection) -> None:
        connection.execute(sa.text("SELECT pg_sleep(:s)"), {"s": pause_s})

    def post_all(documents: list[str], connection: sa.Connection) -> None:
        connection.execute(sa.text("SELECT pg_sleep(:s)"), {"s": pause_s * len(documents)})

    def send(document: str) -> None:
        look()
        time.sleep(pause_s)

    def send_all(documents: list[str]) -> None:
        time.sleep(pause_s * len(documents))

    def in_a_window(document: str, effect: Any) -> None:
        with effect:
            time.sleep(pause_s)

    return {
        "database": post, "database, batches": post_all, "external": send, "external, batches": send_all,
        "external, `with effect:`": in_a_window,
    }[how]  # fmt: skip


@pytest.mark.parametrize("workers", [1, 8])
@pytest.mark.parametrize(
    "how", ["database", "database, batches", "external", "external, batches", "external, `with effect:`"]
)
def test_a_task_holds_no_more_connections_than_the_page_says(
    business: Business, how: str, workers: int
) -> None:
    business.ledger.dispose()
    counter = Counter(business.database)
    batches = {"call_per": "batch", "batch_size": 10} if "batches" in how else {}
    with DAG(business.dag_id, schedule=None) as dag:
        IdempotentOperator(
            task_id="work",
            python_callable=callable_of(how, ROUNDS_S * workers / DOCUMENTS, counter.look),
            documents=[f"D-{number}" for number in range(DOCUMENTS)],
            max_workers=workers,
            lease=LEASE,
            side_effect=how.partition(",")[0],
            **batches,
        )
    with counter:
        run = start_run(dag, logical_at=datetime(2026, 1, 30, tzinfo=UTC)).go()
    assert run.states() == {"work": "success"}
    assert len(counter.seen) > 50
    assert max(counter.seen) <= promised(how, workers), sorted(set(counter.seen))
    # The page is no guess. The most is there for a moment only, which a look from outside may miss.
    assert max(counter.seen) >= promised(how, workers) // 2
    counter.look()
    assert counter.seen[-1] == 0, "nothing is left open"


@databases("sqlite", "postgres_embedded", "mariadb")
def test_the_pools_of_a_task_are_bounded(business: Business) -> None:
    """Whatever a task does, it never has more than twice ``max_workers`` + 7."""
    opened = open_ledger(LEDGER, max_connections=8)
    try:
        for engine in (opened.database.engine, opened.database.business_engine):
            with ExitStack() as stack:
                for _ in range(8):
                    stack.enter_context(engine.connect())
                assert engine.pool.checkedout() == 8
                assert engine.pool.overflow() <= 0
                assert engine.pool._max_overflow == 0
    finally:
        opened.database.dispose()
