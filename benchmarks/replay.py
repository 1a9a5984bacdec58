"""Replaying documents that are done."""

from __future__ import annotations

import itertools

import psycopg

from airflow_guard.core.effects import Database
from airflow_guard.core.report import Outcome
from airflow_guard.execution.spec import GuardSpec
from benchmarks.setting import Measured, Setting, compare


def replay(setting: Setting, count: int = 10_000) -> Measured:
    """A second run over done documents, against one lookup of all their keys."""
    documents = [f"S-{i:08d}" for i in range(count)]
    keys = [f"benchmark/op/2026-01-31/{document}" for document in documents]
    with psycopg.connect(setting.dsn) as connection:
        connection.execute(
            "INSERT INTO hand (k, state, result) SELECT unnest(%s::text[]), 'completed', '1'", (keys,)
        )
        connection.execute("ANALYZE hand")
    spec = GuardSpec(side_effect=Database(), call_per="batch")

    def nothing(documents: list[str], connection: object) -> int:
        return 1

    first = setting.task(nothing, spec).run(lambda: documents)
    assert first.counts[Outcome.EXECUTED] == count
    tries = itertools.count(2)

    def ours() -> None:
        report = setting.task(nothing, spec, same_day=True, try_number=next(tries)).run(lambda: documents)
        assert report.counts[Outcome.REPLAYED] == count

    def hand() -> None:
        with psycopg.connect(setting.dsn) as connection:
            wanted = [f"benchmark/op/2026-01-31/{document}" for document in documents]
            rows = connection.execute(
                "SELECT k, result FROM hand WHERE k = ANY(%s) AND state = 'completed'", (wanted,)
            ).fetchall()
            assert len(dict(rows)) == count

    return compare("replay of 10,000 done documents", "one batched lookup", 0.7, count, hand, ours)
