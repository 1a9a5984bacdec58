"""A large ledger, plain and partitioned: its size, what a batch costs, how long it is locked, what a purge takes."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import psycopg

from airflow_guard.acts.purging import Purge
from airflow_guard.store.migrate import partition
from airflow_guard.store.partitions import HISTORY_SUFFIX, partitions_of
from benchmarks.size import FILL, cost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_guard.store.partitions import Partition
    from benchmarks.setting import Setting

DAYS = 360
FILL_2025 = FILL.replace("date '2020-01-01'", "date '2025-01-01'")
SIZES = """
SELECT pg_table_size(c), pg_relation_size(c || '_pk'), pg_indexes_size(c), pg_total_relation_size(c)
FROM (SELECT 'guard_execution'::text AS c) AS t
"""

Line = tuple[str, str]


def large(setting: Setting, rows: int, *, filled: bool = False) -> Iterator[Line]:
    """Yield what was measured, each with its words.

    :param filled: the rows are there already.
    """
    with psycopg.connect(setting.dsn, autocommit=True) as connection:
        if not filled:
            yield f"insert {rows:,} rows", _timed(lambda: fill(connection, rows, range(DAYS)))
        vacuum = "VACUUM (FREEZE, ANALYZE) guard_execution"
        yield "VACUUM (FREEZE, ANALYZE) of all of them", _timed(lambda: connection.execute(vacuum))
        sizes = connection.execute(SIZES).fetchone() or (0, 0, 0, 0)
        names = ("table", "primary key", "all indexes", "table and indexes")
        for name, size in zip(names, sizes, strict=True):
            yield name, _size(size, rows)
    yield "batches of 500, plain", f"{cost(setting):,.1f} µs/document"
    locked = _timed(lambda: partition(setting.ledger.database, ahead=3))
    yield "`airflow-guard migrate --partition`: the lock", locked
    after = _history(setting).after
    assert after is not None
    later = replace(setting, _day=after)
    yield "batches of 500, 6 partitions", f"{cost(later):,.1f} µs/document"
    partition(setting.ledger.database, ahead=60)
    yield "batches of 500, 63 partitions", f"{cost(later):,.1f} µs/document"
    yield from _purges(setting, date(2026, 1, 31))


def fill(connection: psycopg.Connection, rows: int, days: range) -> None:
    """Insert what some of the days of the year hold."""
    for day in days:
        connection.execute(FILL_2025, {"rows": rows // DAYS, "day": day})


def _purges(setting: Setting, until: date) -> Iterator[Line]:
    """Purge some days row by row, and the rest with its partition, which is packed before."""
    yield "purge row by row, of five days", _purge(setting, date(2025, 1, 5))
    with psycopg.connect(setting.dsn, autocommit=True) as connection:
        vacuum = "VACUUM guard_execution_history"
        yield "VACUUM after that", _timed(lambda: connection.execute(vacuum))
        yield "VACUUM of a partition that nobody changed since", _timed(lambda: connection.execute(vacuum))
        connection.execute("ALTER TABLE guard_execution_history SET (fillfactor = 100)")
        full = "VACUUM (FULL, ANALYZE) guard_execution_history"
        yield "VACUUM FULL of it, with fillfactor 100", _timed(lambda: connection.execute(full))
        size, rows = connection.execute(
            "SELECT pg_total_relation_size('guard_execution_history'), count(*) FROM guard_execution_history"
        ).fetchone() or (0, 1)
        yield "table and indexes, packed", _size(size, rows)
        # As on the day after the last date that the partition is for.
        connection.execute("ALTER TABLE guard_execution DETACH PARTITION guard_execution_history")
        connection.execute(
            "ALTER TABLE guard_execution ATTACH PARTITION guard_execution_history "
            f"FOR VALUES FROM ('1900-01-02') TO ('{until + timedelta(days=1)}')"
        )
    yield "purge with its partition, of the rest", _purge(setting, until)


def _purge(setting: Setting, until: date) -> str:
    started = time.perf_counter()
    gone = sum(each.keys for each in Purge(setting.ledger, until, "bench", "bench").run())
    return f"{gone:,} keys in {time.perf_counter() - started:,.1f} s"


def _history(setting: Setting) -> Partition:
    database = setting.ledger.database
    parts = database.read(lambda c: partitions_of(c, database.tables.execution))
    return next(each for each in parts if each.name.endswith(HISTORY_SUFFIX))


def _timed(work: Callable[[], Any]) -> str:
    started = time.perf_counter()
    work()
    return f"{time.perf_counter() - started:,.1f} s"


def _size(size: int, rows: int) -> str:
    return f"{size / 2**20:,.0f} MB, {size / rows:,.0f} bytes a row"
