"""Reconciling two tables: against reladiff, against a scan written by hand, and against plain SQL."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import sqlalchemy as sa

from airflow_guard.reconciling.reconciler import reconcile
from airflow_guard.reconciling.rules import Rules
from airflow_guard.reconciling.sides import Side
from benchmarks import with_reladiff
from benchmarks.setting import Measured, Setting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_guard.reconciling.comparison import Comparison

MYSQL_VARIABLE = "GUARD_BENCH_MYSQL_URL"
_MYSQL_DEFAULT = "mysql+pymysql://root@127.0.0.1:3306/"
_DATABASE = "guard_bench_reconcile"
AMOUNT = "CAST(({n} * 7919) % 10000000 AS DECIMAL(20,2)) / 100"
CHANGES = 10
"""Five amounts, three missing, two surplus."""


@dataclass
class Tables:
    """A source and a target with ten differences.

    :param text: whether keys are texts.
    :param every: besides, every n-th document has another amount (0: none).
    """

    source: sa.URL
    target: sa.URL
    rows: int
    text: bool = False
    every: int = 0

    def compared(self, *, keys: bool = True, **more: Any) -> Comparison:
        """Reconcile them."""
        engines = [sa.create_engine(url, poolclass=sa.NullPool) for url in (self.source, self.target)]
        key = "document_no" if keys else None
        sides = [Side(conn_id=name, table=name, key=key) for name in ("source_side", "target_side")]
        return reconcile(*sides, Rules(**more), source_engine=engines[0], target_engine=engines[1])

    def fill(self) -> None:
        """Make both tables, with a primary key, as reladiff wants them."""
        with ThreadPoolExecutor(2) as pool:
            sides = [(self.source, "source_side"), (self.target, "target_side")]
            for done in [pool.submit(self._fill, *side) for side in sides]:
                done.result()

    def _fill(self, url: sa.URL, table: str) -> None:
        mysql = url.get_backend_name() == "mysql"
        series = (
            f"seq_1_to_{self.rows}" if mysql else f"generate_series(1, CAST({self.rows} AS bigint)) AS seq"
        )
        key = "CONCAT('INV-', LPAD(seq, 12, '0'))" if mysql else "'INV-' || lpad(seq::text, 12, '0')"
        key, kind = (key, "varchar(20)") if self.text else ("seq", "bigint")
        amount = AMOUNT.format(n="seq")
        if self.every and table == "target_side":
            amount = f"{amount} + CASE WHEN seq % {self.every} = 0 THEN 0.01 ELSE 0 END"
        engine = sa.create_engine(url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            run = connection.exec_driver_sql
            run(f"DROP TABLE IF EXISTS {table}")
            run(f"CREATE TABLE {table} (document_no {kind} PRIMARY KEY, amount decimal(14,2) NOT NULL)")
            run(f"INSERT INTO {table} SELECT {key}, {amount} FROM {series}".replace("%", "%%"))
            if table == "target_side":
                for statement in self._changes():
                    run(statement)
            run(f"ANALYZE TABLE {table}" if mysql else f"VACUUM ANALYZE {table}")

    def _changes(self) -> Iterator[str]:
        def name(n: int) -> str:
            return f"'INV-{n:012d}'" if self.text else str(n)

        step = self.rows // 11
        for n in range(1, 6):
            by = "0.01" if n % 2 else "-0.01"  # they cancel each other out, but for one
            yield f"UPDATE target_side SET amount = amount + {by} WHERE document_no = {name(n * step)}"
        for n in range(6, 9):
            yield f"DELETE FROM target_side WHERE document_no = {name(n * step)}"
        for n in (1, 2):
            yield f"INSERT INTO target_side VALUES ({name(self.rows + n)}, 1.00)"


@contextmanager
def mysql_database() -> Iterator[sa.URL]:
    """Yield an empty MariaDB or MySQL database."""
    url = sa.make_url(os.environ.get(MYSQL_VARIABLE) or _MYSQL_DEFAULT)
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {_DATABASE} CHARACTER SET utf8mb4")
        try:
            yield url.set(database=_DATABASE, query={"charset": "utf8mb4"})
        finally:
            connection.exec_driver_sql(f"DROP DATABASE {_DATABASE}")


# -- the others --------------------------------------------------------------------------------------------


def reladiff(tables: Tables) -> float:
    """Return the seconds that reladiff needs with two threads; an amount is two differences there, less and more."""
    return with_reladiff.seconds(tables.source, tables.target, CHANGES + 5)


HAND = """
SELECT document_no / 512 % 16381 AS bucket, count(*), sum(amount),
       sum(hash_numeric_extended(amount, hashint8extended(document_no, 0))), min(document_no), max(document_no)
FROM {table} GROUP BY 1
"""


def by_hand(tables: Tables) -> None:
    """Scan both sides at once with PostgreSQL's own hash, then read the buckets that differ."""
    dsn = tables.source.set(drivername="postgresql").render_as_string(hide_password=False)

    def rows(statement: str) -> list[Any]:
        with psycopg.connect(dsn) as connection:
            # Without them it would sort all rows, as if each had a bucket of its own.
            connection.execute("SET work_mem = '64MB'")
            connection.execute("SET enable_sort = off")
            return connection.execute(statement).fetchall()

    with ThreadPoolExecutor(2) as pool:
        source, target = (
            {row[0]: row for row in found}
            for found in pool.map(
                rows, [HAND.format(table=table) for table in ("source_side", "target_side")]
            )
        )
        differing = [
            bucket for bucket in source.keys() | target.keys() if source.get(bucket) != target.get(bucket)
        ]
        wanted = " OR ".join(
            f"document_no BETWEEN {row[4]} AND {row[5]}"
            for bucket in differing
            for row in (source.get(bucket), target.get(bucket))
            if row is not None
        )
        read = "SELECT document_no, amount FROM {} WHERE " + wanted
        ours, theirs = (
            set(found) for found in pool.map(rows, [read.format("source_side"), read.format("target_side")])
        )
    assert len({key for key, _ in ours ^ theirs}) == CHANGES


def bare_totals(tables: Tables) -> None:
    """Count and add up both sides at once."""
    dsn = tables.source.set(drivername="postgresql").render_as_string(hide_password=False)

    def one(table: str) -> Any:
        with psycopg.connect(dsn) as connection:
            return connection.execute(f"SELECT count(*), sum(amount), count(amount) FROM {table}").fetchone()

    with ThreadPoolExecutor(2) as pool:
        source, target = pool.map(one, ("source_side", "target_side"))
    assert source != target


# -- measurements ------------------------------------------------------------------------------------------


def ours(tables: Tables) -> None:
    """Find the ten differences."""
    comparison = tables.compared()
    assert (len(comparison.breaks), comparison.capped, comparison.passed) == (CHANGES, False, False)


def timed(*runs: Callable[[], Any], rounds: int = 3) -> list[float]:
    """Return the median seconds of each, in turn, after one warm-up of each."""
    times: list[list[float]] = [[] for _ in runs]
    for number in range(rounds + 1):
        for run, kept in zip(runs, times, strict=True):
            started = time.perf_counter()
            run()
            if number:
                kept.append(time.perf_counter() - started)
    return [statistics.median(each) for each in times]


def measured(name: str, limit: str, other: float, own: float, wanted: float) -> Measured:
    """Return a line of the table."""
    return Measured(name, limit, other, own, "s", wanted)


def postgres(where: Setting, rows: int) -> list[Measured]:
    """PostgreSQL and PostgreSQL, and totals alone."""
    url = where.ledger.database.url
    tables = Tables(url, url, rows)
    tables.fill()
    hand, own, bare, totals = timed(
        lambda: by_hand(tables), lambda: ours(tables), lambda: bare_totals(tables), lambda: tables.compared(keys=False)
    )  # fmt: skip
    other = reladiff(tables)
    name = f"reconcile {rows:,} rows, PostgreSQL twice"
    return [
        measured(name, "reladiff 0.6.0, two threads", other, own, 5.0),
        measured(name, "one bucket-and-hash scan", hand, own, 1 / 1.5),
        measured(f"control totals of {rows:,} rows", "the bare SQL", bare, totals, 1 / 1.1),
    ]


def mariadb(where: Setting, rows: int) -> list[Measured]:
    """PostgreSQL and MariaDB."""
    with mysql_database() as mysql:
        tables = Tables(where.ledger.database.url, mysql, rows)
        tables.fill()
        [own] = timed(lambda: ours(tables), rounds=2)
        other = reladiff(tables)
    name = f"reconcile {rows:,} rows, PostgreSQL and MariaDB"
    return [measured(name, "reladiff 0.6.0, two threads", other, own, 2.5)]


def text(where: Setting, rows: int) -> list[Measured]:
    """Text keys."""
    url = where.ledger.database.url
    tables = Tables(url, url, rows, text=True)
    tables.fill()
    scan, own = timed(lambda: _scan_only(tables), lambda: ours(tables), rounds=2)
    return [measured(f"reconcile {rows:,} rows, text keys", "its own scan", scan, own, 1 / 3)]


def changed(where: Setting, rows: int) -> list[Measured]:
    """One per cent, and a half, of all rows differ."""
    url = where.ledger.database.url
    lines = []
    for share, every in (("1 %", 100), ("50 %", 2)):
        tables = Tables(url, url, rows, every=every)
        tables.fill()

        def capped(tables: Tables = tables) -> None:
            comparison = tables.compared()
            assert (len(comparison.breaks), comparison.capped) == (1_000, True)

        scan, own = timed(lambda tables=tables: _scan_only(tables), capped, rounds=2)
        lines.append(measured(f"reconcile {rows:,} rows, {share} differ", "its own scan", scan, own, 1 / 3))
    return lines


def _scan_only(tables: Tables) -> None:
    from airflow_guard.reconciling.drilldown import DrillDown

    original = DrillDown.differing
    DrillDown.differing = lambda self: []
    try:
        tables.compared()
    finally:
        DrillDown.differing = original


def memory(where: Setting, rows: int) -> float:
    """Return the peak memory in MB of a process that reconciles tables of which half of the rows differ."""
    url = where.ledger.database.url
    Tables(url, url, rows, every=2).fill()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.reconcile", url.render_as_string(hide_password=False)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return float(done.stdout.split()[-1])


def _one_process(url: str) -> None:
    parsed = sa.make_url(url)
    comparison = Tables(parsed, parsed, 0).compared(max_breaks=5_000)
    assert comparison.capped
    assert {abs(each.variance or 0) for each in comparison.breaks} >= {Decimal("0.01")}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(peak / (1024 if sys.platform != "darwin" else 1024 * 1024))


if __name__ == "__main__":
    _one_process(sys.argv[1])
