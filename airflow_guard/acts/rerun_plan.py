"""What a person reads before authorising a rerun, and which command executes it then."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_guard.core.commands import backfill_command
from airflow_guard.core.results import has_result

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from airflow_guard.reading.key_records import KeyRow

SHOWN = 20
_BY_BACKFILL = frozenset({"scheduled", "backfill"})
_RESULT = 120


@dataclass(frozen=True)
class RerunPlan:
    """A set of keys that may be executed once more.

    :param others: how many keys of the range stand elsewhere, by situation; they are no part of it.
    :param until: until when it holds; ``None`` as long as nothing is authorised.
    """

    keys: Sequence[KeyRow]
    without_reversal: bool
    others: Mapping[str, int] = field(default_factory=dict)
    until: datetime | None = None

    def lines(self) -> list[str]:
        """Return what it is about, what becomes of the first effects, and how it is executed."""
        dates = sorted({key.business_date for key in self.keys})
        span = f"{dates[0]}" if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
        one = len(self.keys) == 1
        lines = [f"{len(self.keys):,} {'key' if one else 'keys'} of {span}"]
        lines += [_line(key) for key in self.keys[:SHOWN]]
        if len(self.keys) > SHOWN:
            lines.append(f"… and {len(self.keys) - SHOWN:,} more")
        if self.others:
            named = ", ".join(f"{count:,} {situation}" for situation, count in self.others.items())
            lines.append(f"Not part of it, since they are not done: {named}.")
        lines.append(
            "The first effects stay: the second ones come on top of them."
            if self.without_reversal
            else "Before each is executed again, on_rerun of the task reverses the first effect."
        )
        if self.until is not None:
            lines.append(f"Authorised until {self.until:%Y-%m-%d %H:%M} UTC, once for each key.")
        return lines

    def commands(self) -> dict[str, str]:
        """Return the command lines that execute it, by what each does."""
        found: dict[str, str] = {}
        for dag_id, keys in self._by_dag().items():
            first = min(key.business_date for key in keys)
            last = max(key.business_date for key in keys)
            runs = sorted({key.row.last_run.run_id for key in keys if key.row.last_run})
            span = runs[0] if len(runs) == 1 else f"{runs[0]} … {runs[-1]}"
            found[
                f"to execute it: clear the runs {span} (Airflow takes logical dates: see them with --dry-run first)"
            ] = backfill_command(dag_id, first.isoformat(), f"{last.isoformat()}T23:59:59")
        return found

    def by_hand(self) -> list[str]:
        """Return the runs that no backfill reaches, with what to do."""
        said = set()
        for key in self.keys:
            run = key.row.last_run
            if run is None:
                said.add(f"{key.text} was adopted: trigger a run for {key.business_date}.")
            elif run.run_type not in _BY_BACKFILL:
                said.add(f"Clear task {run.task_id} in run {run.run_id} of {run.dag_id} ({run.run_type}).")
        return sorted(said)

    def _by_dag(self) -> dict[str, list[KeyRow]]:
        dags: dict[str, list[KeyRow]] = {}
        for key in self.keys:
            run = key.row.last_run
            if run is not None and run.run_type in _BY_BACKFILL:
                dags.setdefault(run.dag_id, []).append(key)
        return dags


def _line(key: KeyRow) -> str:
    """Return when, by which run and with what result a key was done."""
    row, at = key.row, key.finished_at
    when = f"{at:%Y-%m-%d %H:%M:%S} UTC" if at else "at an unknown time"
    result = row.result if has_result(row.result) and row.result is not None else "no result stored"
    short = result if len(result) <= _RESULT else f"{result[:_RESULT]}…"
    return f"{key.text}: done {when} by {row.done_by}: {short}"
