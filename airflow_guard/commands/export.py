"""``export``: the keys of a range of business dates, their figures, or the audit of a range of days, as CSV."""

from __future__ import annotations

import csv
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from airflow_guard.acts import keys
from airflow_guard.acts.arguments import UsageError
from airflow_guard.commands import output
from airflow_guard.commands.ledgers import open_ledger
from airflow_guard.core.errors import ResolutionError
from airflow_guard.core.texts import safe_cell
from airflow_guard.reading import listing
from airflow_guard.reading.listing import Selection
from airflow_guard.reading.monitor import Monitor

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence

    from airflow_guard.reading.key_records import KeyRow
    from airflow_guard.store.ledger import Ledger

_COLUMNS = (
    "business_date", "cycle", "key_namespace", "operation", "document", "situation", "state", "phase", "follow_up",
    "attempt", "generation", "claimed_at", "begun_at", "finished_at", "dag_id", "task_id", "run_id", "map_index",
    "try_number", "run_type", "host", "result", "error", "idempotency_key", "batch_id", "deployment", "once_per", "key",
)  # fmt: skip
_FIGURES = (
    "business_date", "key_namespace", "operation", "cycle", "listed", "done", "rejected", "waived", "dropped", "failed",
    "in_doubt", "in_progress", "not_begun", "asks", "executed", "replayed", "own_replays", "duplicates", "blocked",
    "repeated", "expected", "listed_total",
)  # fmt: skip
_LIMIT_S = 600.0
_RUN = ("dag_id", "task_id", "run_id", "map_index", "try_number", "run_type", "host")


def run(given: argparse.Namespace) -> None:
    """Write the rows, and say how many on standard error."""
    start, end = keys.date_of(given.start), keys.date_of(given.end or given.start)
    if end < start:
        raise UsageError(f"--end {end} lies before --start {start}")
    if given.events and given.figures:
        raise UsageError("give --events or --figures")
    if given.events and (given.dag or given.operation):
        raise UsageError("--events are those of the whole ledger: leave out DAG and --operation")
    with open_ledger(given) as opened, _target(given.file) as file:
        ledger = opened.ledger
        if given.events:
            count = _write(file, listing.EVENT_COLUMNS, listing.events(ledger, start, end))
        elif given.figures:
            found = Monitor(ledger, limit_s=_LIMIT_S).figures(
                given.dag, start, end, None, operation=given.operation
            )
            records = (each.record() for each in found)
            count = _write(file, _FIGURES, ([record[name] for name in _FIGURES] for record in records))
        else:
            selection = Selection(dag=given.dag, operation=given.operation, business_date=start, until=end)
            count = _write(file, _COLUMNS, map(_row, _views(ledger, selection)))
    what = "events" if given.events else "figures" if given.figures else "keys"
    output.note(f"{count:,} {what} of {start} to {end}{f' in {given.file}' if given.file else ''}")


@contextmanager
def _target(path: str | None) -> Iterator[TextIO]:
    if not path:
        yield sys.stdout
        return
    try:
        # The mark at the beginning is how spreadsheets tell UTF-8. An earlier export is not overwritten.
        with Path(path).open("x", encoding="utf-8-sig", newline="") as file:
            yield file
    except OSError as error:
        raise ResolutionError(f"{path} cannot be written: {error.strerror}. Nothing was exported.") from None


def _write(file: TextIO, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
    writer, count = csv.writer(file), 0
    writer.writerow(columns)
    for row in rows:
        writer.writerow([safe_cell(value) for value in row])
        count += 1
    return count


def _views(ledger: Ledger, selection: Selection) -> Iterator[KeyRow]:
    """Yield keys, one business date in memory at a time."""
    for day in listing.dates(ledger, selection):
        yield from listing.keys(ledger, listing.of_day(selection, day)).keys


def _row(view: KeyRow) -> list[Any]:
    facts = keys.full(view)
    run: dict[str, Any] = facts["last_run"] or {}
    facts |= {name: run.get(name) for name in _RUN}
    facts["result"] = view.row.result
    return [facts[name] for name in _COLUMNS]
