"""Executing documents: database one by one and in batches, external with one and with sixteen workers."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import psycopg

from airflow_guard.core.effects import Database
from airflow_guard.core.report import Outcome
from airflow_guard.execution.spec import GuardSpec
from benchmarks.setting import Measured, Setting, compare, payloads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CLAIM = "INSERT INTO hand (k, state) VALUES (%s, 'in_progress') ON CONFLICT DO NOTHING"
COMPLETE = (
    "UPDATE hand SET state = 'completed', result = %s, done_at = now() WHERE k = %s AND state = 'in_progress'"
)
POST = "INSERT INTO posting VALUES (%s, %s)"
_rounds = itertools.count()


def one(cursor: Any, statement: str, parameters: tuple[Any, ...]) -> None:
    """Execute a statement that must change one row."""
    cursor.execute(statement, parameters)
    assert cursor.rowcount == 1


def executed(
    setting: Setting, function: Callable[..., Any], spec: GuardSpec, documents: list[dict[str, str]]
) -> None:
    """Run a guarded task and check that it executed everything."""
    report = setting.task(function, spec).run(lambda: documents)
    assert report.counts[Outcome.EXECUTED] == len(documents), list(report.log_lines())


def database_one_by_one(setting: Setting, count: int = 1_000) -> Measured:
    """Claim, one business insert, complete: a transaction a document."""
    documents = payloads(count)

    def hand() -> None:
        prefix = f"{next(_rounds)}/"
        with psycopg.connect(setting.dsn) as connection, connection.cursor() as cursor:
            for document in documents:
                key = prefix + document["no"]
                one(cursor, CLAIM, (key,))
                one(cursor, POST, (document["no"], document["amount"]))
                one(cursor, COMPLETE, ("1", key))
                connection.commit()

    def post(payload: dict[str, str], connection: Any) -> int:
        connection.connection.cursor().execute(POST, (payload["no"], payload["amount"]))
        return 1

    before = setting.count("posting")
    spec = GuardSpec(document_key="no", side_effect=Database())
    measured = compare(
        "database, one by one", "claim + insert + complete in one transaction", 0.7, count, hand,
        lambda: executed(setting, post, spec, documents),
    )  # fmt: skip
    assert setting.count("posting") - before == 2 * 6 * count
    return measured


def database_batches(setting: Setting, count: int = 20_000, size: int = 500) -> Measured:
    """The same, a transaction a batch."""
    documents = payloads(count)

    def hand() -> None:
        prefix = f"{next(_rounds)}/"
        with psycopg.connect(setting.dsn) as connection, connection.cursor() as cursor:
            for batch in _batches(documents, size):
                keys = [prefix + document["no"] for document in batch]
                cursor.execute(
                    "INSERT INTO hand (k, state) SELECT unnest(%s::text[]), 'in_progress' ON CONFLICT DO NOTHING",
                    (keys,),
                )
                assert cursor.rowcount == len(batch)
                cursor.executemany(POST, [(document["no"], document["amount"]) for document in batch])
                cursor.execute(
                    "UPDATE hand SET state = 'completed', result = %s, done_at = now() "
                    "WHERE k = ANY(%s) AND state = 'in_progress'",
                    ("1", keys),
                )
                assert cursor.rowcount == len(batch)
                connection.commit()

    def post(documents: list[dict[str, str]], connection: Any) -> int:
        rows = [(document["no"], document["amount"]) for document in documents]
        connection.connection.cursor().executemany(POST, rows)
        return 1

    before = setting.count("posting")
    spec = GuardSpec(document_key="no", side_effect=Database(), call_per="batch", batch_size=size)
    measured = compare(
        f"database, batches of {size}", "the same three statements a batch", 0.7, count, hand,
        lambda: executed(setting, post, spec, documents),
    )  # fmt: skip
    assert setting.count("posting") - before == 2 * 6 * count
    return measured


def external(setting: Setting, workers: int, wanted: float, count: int) -> Measured:
    """Claim in one transaction, complete in another, the call between them; calls are counted."""
    documents = payloads(count)
    calls: SimpleQueue[str] = SimpleQueue()

    def hand() -> None:
        prefix, work = f"{next(_rounds)}/", SimpleQueue[dict[str, str]]()
        for document in documents:
            work.put(document)

        def worker() -> None:
            with psycopg.connect(setting.dsn) as connection, connection.cursor() as cursor:
                while True:
                    try:
                        document = work.get_nowait()
                    except Empty:
                        return
                    one(cursor, CLAIM, (prefix + document["no"],))
                    connection.commit()
                    calls.put(document["no"])
                    one(cursor, COMPLETE, ("1", prefix + document["no"]))
                    connection.commit()

        with ThreadPoolExecutor(workers) as pool:
            for future in [pool.submit(worker) for _ in range(workers)]:
                future.result()

    def call(payload: dict[str, str]) -> int:
        calls.put(payload["no"])
        return 1

    spec = GuardSpec(document_key="no", max_workers=workers)
    measured = compare(
        f"external, {workers} worker{'s' if workers > 1 else ''}", "two transactions a document", wanted, count, hand,
        lambda: executed(setting, call, spec, documents),
    )  # fmt: skip
    assert calls.qsize() == 2 * 6 * count
    return measured


def _batches(documents: list[dict[str, str]], size: int) -> Iterator[list[dict[str, str]]]:
    for start in range(0, len(documents), size):
        yield documents[start : start + size]
