"""What the benchmarks share: a database, a ledger, a hand-written ledger, and pairs of timings."""

from __future__ import annotations

import os
import statistics
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import sqlalchemy as sa

from airflow_guard.core.guard import TaskIdentity
from airflow_guard.core.keys import KeyShape, KeySpace
from airflow_guard.execution.run import GuardedTask
from airflow_guard.execution.spec import Callee, GuardSpec
from airflow_guard.store.database import LedgerDatabase
from airflow_guard.store.ledger import Ledger
from airflow_guard.store.migrate import migrate
from airflow_guard.store.task_runs import TaskTry
from demo.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROUNDS = 5
HAND = """
CREATE TABLE hand (k text PRIMARY KEY, state text NOT NULL, result text,
                   claimed_at timestamptz DEFAULT now(), done_at timestamptz);
CREATE TABLE posting (document text NOT NULL, amount numeric NOT NULL);
"""


@dataclass
class Setting:
    """One PostgreSQL with both ledgers."""

    dsn: str
    ledger: Ledger
    _day: date = field(default=date(2026, 1, 1))

    def task(
        self, function: Callable[..., Any], spec: GuardSpec, *, same_day: bool = False, try_number: int = 1
    ) -> GuardedTask:
        """Return a guarded task, by default on a business date of its own."""
        if not same_day:
            self._day += timedelta(days=1)
        space = KeySpace("benchmark", "op", self._day)
        identity = TaskIdentity(
            "benchmark",
            "op",
            f"run-{self._day}",
            -1,
            try_number,
            "scheduled",
            datetime.now(UTC),
            "host",
            os.getpid(),
        )
        task_try = TaskTry(identity, space, KeyShape.of(space, documents=True).text)
        return GuardedTask(self.ledger, spec, task_try, Callee.of(function), dag_task_ids={"op"})

    def other_database(self, name: str) -> LedgerDatabase:
        """Return another, empty database on the same server."""
        url = self.ledger.database.url
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name}")
            connection.execute(f"CREATE DATABASE {name}")
        return LedgerDatabase(url.set(database=name))

    def count(self, table: str) -> int:
        """Return the rows of a business or hand-written table."""
        with psycopg.connect(self.dsn) as connection:
            (rows,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone() or (0,)
            return int(rows)


@dataclass(frozen=True)
class Measured:
    """One line of the table: microseconds a document (or another unit), medians, and their ratio."""

    name: str
    limit: str
    hand: float
    ours: float
    unit: str
    wanted: float
    higher_is_better: bool = True

    @property
    def ratio(self) -> float:
        """Throughput of ours over the hand-written form."""
        return self.hand / self.ours

    @property
    def met(self) -> bool:
        """Whether the wanted ratio is reached."""
        return self.ratio >= self.wanted if self.higher_is_better else self.ratio <= self.wanted


def compare(
    name: str, limit: str, wanted: float, documents: int, hand: Callable[[], None], ours: Callable[[], None],
    *, rounds: int = ROUNDS,
) -> Measured:  # fmt: skip
    """Time both in turn after one warm-up each, so that the machine's drift hits both."""
    hand()
    ours()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for run, kept in zip((hand, ours), times, strict=True):
            started = time.perf_counter()
            run()
            kept.append((time.perf_counter() - started) * 1e6 / documents)
    return Measured(
        name, limit, statistics.median(times[0]), statistics.median(times[1]), "µs/document", wanted
    )


def payloads(count: int) -> list[dict[str, str]]:
    """Return documents as a settlement has them."""
    return [
        {"no": f"S-{i:08d}", "amount": f"{i % 900 + 1}.50", "currency": "EUR", "due": "2026-01-31"}
        for i in range(count)
    ]


@contextmanager
def setting() -> Iterator[Setting]:
    """Start a fresh PostgreSQL from the wheel (or use GUARD_BENCH_POSTGRES_URL) with its default, durable settings."""
    given = os.environ.get("GUARD_BENCH_POSTGRES_URL")
    if given:
        yield _prepared(sa.make_url(given))
        return
    with EmbeddedPostgres() as server:
        server.create_database("benchmark")
        yield _prepared(sa.make_url(server.url("benchmark")))


def _prepared(url: sa.URL) -> Setting:
    database = LedgerDatabase(url, max_connections=24)
    migrate(database)
    with database.engine.begin() as connection:
        for statement in HAND.strip().split(";"):
            if statement.strip():
                connection.execute(sa.text(statement))
    dsn = url.set(drivername="postgresql").render_as_string(hide_password=False)
    return Setting(dsn, Ledger(database))
