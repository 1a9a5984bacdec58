"""Cost per document with a large ledger, against a small one; memory of a million documents."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from typing import Any

import psycopg

from airflow_guard.core.effects import Database
from airflow_guard.execution.spec import GuardSpec
from benchmarks.effects import POST, executed
from benchmarks.setting import Measured, Setting, payloads

FILL = """
INSERT INTO guard_execution (key_date, key_hash, normaliser, key_namespace, operation, business_date, cycle, document,
  deployment, state, phase, follow_up, attempt, generation, owner_token, idempotency_key, task_run_id,
  first_task_run_id, fingerprint, result, claimed_at, begun_at, finished_at)
SELECT day, md5(n || '/' || day), 1, 'history', 'op', day, '', 'H-' || n, 'default', 'completed', 'done', 'none', 1, 1,
  md5('owner'), md5('key' || n || day), 1, 1, md5('content' || n) || ' amount=00000000 currency=00000000', '1',
  now(), now(), now()
FROM generate_series(1, %(rows)s) AS n, (SELECT date '2020-01-01' + %(day)s AS day) AS d
"""


def fill(setting: Setting, rows: int, days: int) -> None:
    """Fill the ledger with history, spread over business dates."""
    with psycopg.connect(setting.dsn, autocommit=True) as connection:
        for day in range(days):
            connection.execute(FILL, {"rows": rows // days, "day": day})
        connection.execute("VACUUM ANALYZE guard_execution")


def cost(setting: Setting, count: int = 10_000, rounds: int = 5) -> float:
    """Return microseconds a document for batches of 500, median."""
    documents = payloads(count)

    def post(documents: list[dict[str, str]], connection: Any) -> int:
        rows = [(document["no"], document["amount"]) for document in documents]
        connection.connection.cursor().executemany(POST, rows)
        return 1

    spec = GuardSpec(document_key="no", side_effect=Database(), call_per="batch")
    times = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        executed(setting, post, spec, documents)
        times.append((time.perf_counter() - started) * 1e6 / count)
    return statistics.median(times[1:])


def large_ledger(setting: Setting, rows: int) -> Measured:
    """Cost with a large ledger over cost with 50,000 rows."""
    fill(setting, 50_000, 10)
    small = cost(setting)
    fill_more = rows - 50_000
    with psycopg.connect(setting.dsn, autocommit=True) as connection:
        connection.execute("DELETE FROM guard_execution WHERE key_namespace = 'history'")
    fill(setting, fill_more, 365)
    large = cost(setting)
    return Measured(f"{rows:,} rows in the ledger", "50,000 rows", small, large, "µs/document", 1 / 1.2)


def memory() -> float:
    """Return the peak memory in MB of a process that works through 1,000,000 documents from a generator."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.size"], check=True, capture_output=True, text=True
    )
    return float(done.stdout.split()[-1])


def _million() -> None:
    from airflow_guard.testing import TestLedger

    def documents() -> Any:
        return ({"no": f"S-{i:08d}", "amount": "1.00"} for i in range(1_000_000))

    def nothing(documents: list[dict[str, str]], connection: Any) -> int:
        return len(documents)

    with TestLedger() as ledger:
        run = ledger.run(
            nothing, documents=documents, document_key="no", operation="op", business_date="2026-01-31",
            side_effect="database", call_per="batch", batch_size=500,
        )  # fmt: skip
        assert run.executed == 1_000_000, run.summary
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(peak / (1024 if sys.platform != "darwin" else 1024 * 1024))


if __name__ == "__main__":
    _million()
