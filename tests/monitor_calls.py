"""What people ask of a monitor about the history of :mod:`tests.history`, each question by name."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_guard.core.checks import BreakState
from airflow_guard.core.decisions import UNFINISHED, Situation
from airflow_guard.reading.lists import BreakFilters, KeyFilters, TryFilters
from tests.history import DAGS, LAST, document, newest

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_guard.reading.monitor import Monitor

READERS: dict[str, frozenset[str] | None] = {"reads all": None, "reads two of six DAGs": frozenset(DAGS[:2])}


def calls(m: Monitor) -> dict[str, Callable[[frozenset[str] | None], Any]]:
    """Return every question; each takes the DAGs that the reader may read."""
    dag, month, quarter = DAGS[0], newest(31), newest(90)
    named = document(dag, LAST - timedelta(days=40), 5)
    key = m.find(named, None).keys[0]
    break_id = m.breaks(None).rows[0].id
    some = frozenset({Situation.IN_DOUBT})
    today = KeyFilters(dag_id=dag, start=LAST, end=LAST)
    run = f"scheduled__{LAST}"
    return {
        "calendar of a month": lambda r: m.calendar(*month, r),
        "calendar of a quarter": lambda r: m.calendar(*quarter, r),
        "attention": m.attention,
        "day": lambda r: m.day(dag, LAST, r),
        "keys": m.keys,
        "keys, page 200": lambda r: m.keys(r, offset=9_950),
        "keys of a DAG": lambda r: m.keys(r, KeyFilters(dag_id=dag)),
        "keys of a DAG and date": lambda r: m.keys(r, today),
        "keys of a quarter": lambda r: m.keys(r, KeyFilters(start=quarter[0])),
        "keys in doubt": lambda r: m.keys(r, KeyFilters(situations=some)),
        "keys unfinished": lambda r: m.keys(r, KeyFilters(situations=UNFINISHED)),
        "keys done": lambda r: m.keys(r, KeyFilters(situations=frozenset({Situation.DONE}))),
        "keys of a run": lambda r: m.keys(r, KeyFilters(dag_id=dag, run_id=run)),
        "key": lambda r: m.key(key.key_date, key.key_hash, r),
        "find a document": lambda r: m.find(named, r),
        "find a document that is not there": lambda r: m.find("no such thing", r),
        "find the beginning of a key": lambda r: m.find(key.key_hash[:8], r),
        "find a receiver's key, with its date": lambda r: m.find(
            key.row.idempotency_key[::-1], r, business_date=key.business_date
        ),
        "find a receiver's key": lambda r: m.find("f" * 32, r),
        "tries": m.tries,
        "tries of a run": lambda r: m.tries(r, TryFilters(dag_id=dag, run_id=run)),
        "blocked": m.blocked,
        "breaks": m.breaks,
        "breaks, settled too": lambda r: m.breaks(r, BreakFilters(states=frozenset(BreakState))),
        "breaks of a DAG, aged": lambda r: m.breaks(r, BreakFilters(dag_id=dag, min_age_s=3600.0)),
        "break": lambda r: m.break_(break_id, r),
        "checks": m.checks,
        "variance over time": lambda r: m.variance_over_time(*quarter, r),
    }
