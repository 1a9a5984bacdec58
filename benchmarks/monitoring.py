"""How long pages and their questions take, with a long history in the ledger."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from airflow_guard.reading.monitor import Monitor
from airflow_guard.store.ledger import Ledger
from airflow_guard.store.migrate import migrate
from benchmarks import pages
from tests import history
from tests.monitor_calls import READERS, calls

if TYPE_CHECKING:
    from benchmarks.setting import Setting

LIMIT_MS = 150.0
CALLS = 9


def questions_and_pages(where: Setting, rows: int) -> list[tuple[str, float, float, str]]:
    """Return the median of each question, and of each page, in milliseconds, the slower of the two readers."""
    database = where.other_database("monitoring")
    migrate(database)
    ledger = Ledger(database)
    history.fill(ledger, rows)
    figures = [*_questions(ledger, rows), *pages.answers(ledger)]
    database.dispose()
    return figures


def _questions(ledger: Ledger, rows: int) -> list[tuple[str, float, float, str]]:
    figures = []
    for question, ask in calls(Monitor(ledger, limit_s=60)).items():
        medians = []
        for readable in READERS.values():
            times = []
            for _ in range(CALLS):
                started = time.perf_counter()
                ask(readable)
                times.append((time.perf_counter() - started) * 1000)
            medians.append(statistics.median(times))
        figures.append((f"{question}, {rows:,} rows", max(medians), LIMIT_MS, "ms"))
    return figures
