"""A business date as people read it: the calendar, and one date of it. What its figures mean: ``core/figures.py``."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from airflow_guard.core.figures import Asks, Figures
from airflow_guard.reading.check_records import VolumePoint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date, datetime

    from airflow_guard.core.checks import CheckOutcome
    from airflow_guard.core.decisions import Situation
    from airflow_guard.reading.check_records import BreakRow, CheckRow
    from airflow_guard.reading.key_records import TryRow
    from airflow_guard.reading.lists import Page


# -- The calendar of business dates and DAGs, and one date of it ---------------------------------------------


class CellStatus(StrEnum):
    """Where a DAG stands about a date, the worst that is so; the worst comes first."""

    BREAK = "break"
    IN_DOUBT = "in_doubt"
    REJECTED = "rejected"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class DayCell:
    """One DAG and one business date. A DAG that never ran for a date has none.

    :param documents: listed for it, each once: see :class:`~airflow_guard.core.figures.Figures`.
    :param executed: how often an effect was executed.
    :param replayed: asks that found their work done, in all tries.
    :param own_replays: those of them by a later try of the task and run that had done it.
    :param not_begun: listed, and nobody has claimed it.
    :param empty: operations that ended well without a document, where nobody has said that this is normal.
    :param blocked: duplicates that were kept from executing, in all tries.
    :param in_doubt: keys, whether or not anybody has marked them.
    :param failed: keys whose effect has not happened.
    :param follow_up: keys whose effect is done, and what follows it is not.
    :param in_progress: keys that a live try holds.
    :param running: tries at work.
    :param died: tries that neither ended nor live, and after which no other came.
    :param unsuccessful: tasks whose last try failed.
    :param adopted: keys that a person recorded as done, and that no try has met.
    :param breaks_open: breaks that nobody has explained.
    :param oldest_break_age_s: of the open ones, seconds since it was first seen.
    :param check: outcome of the last reconciliation, the worst if there are several; ``None``: none has ended.
    :param stale: reconciled, and changed since: a check found it, or a task has executed something later.
    """

    dag_id: str
    business_date: date
    documents: int = 0
    executed: int = 0
    replayed: int = 0
    blocked: int = 0
    in_doubt: int = 0
    rejected: int = 0
    failed: int = 0
    follow_up: int = 0
    in_progress: int = 0
    running: int = 0
    died: int = 0
    unsuccessful: int = 0
    adopted: int = 0
    own_replays: int = 0
    not_begun: int = 0
    empty: int = 0
    breaks_open: int = 0
    breaks_explained: int = 0
    oldest_break_age_s: float | None = None
    check: CheckOutcome | None = None
    stale: bool = False
    last_at: datetime | None = None

    @property
    def asks(self) -> Asks:
        """How often tries asked for its documents, and what they got."""
        return Asks.of(self.executed, self.replayed, self.own_replays, self.blocked)

    @property
    def status(self) -> CellStatus:
        """The worst that is so."""
        if self.breaks_open:
            return CellStatus.BREAK
        if self.in_doubt:
            return CellStatus.IN_DOUBT
        if self.rejected:
            return CellStatus.REJECTED
        if self.failed or self.follow_up or self.unsuccessful or self.died:
            return CellStatus.FAILED
        if self.in_progress or self.running:
            return CellStatus.IN_PROGRESS
        return CellStatus.DONE


@dataclass(frozen=True, slots=True)
class Calendar:
    """Business dates and DAGs.

    :param dag_ids: those with anything in the range, sorted.
    :param cells: by DAG and date; what is missing never ran, or was purged.
    :param purged: up to which date the keys of a DAG were purged, by DAG.
    """

    start: date
    end: date
    dag_ids: Sequence[str]
    cells: Mapping[tuple[str, date], DayCell] = field(default_factory=dict)
    purged: Mapping[str, date] = field(default_factory=dict)

    def is_purged(self, dag_id: str, business_date: date) -> bool:
        """Return whether keys of a DAG for a date were purged, so that nobody can say that it never ran."""
        return dag_id in self.purged and business_date <= self.purged[dag_id]

    @property
    def volumes(self) -> Sequence[VolumePoint]:
        """What each DAG did for each date that lists documents, also those that a person recorded as done."""
        return [
            VolumePoint(
                cell.business_date, cell.dag_id, cell.documents, cell.executed, cell.replayed, cell.blocked
            )
            for cell in self.cells.values()
            if cell.documents
        ]

    def of_date(self, business_date: date) -> Sequence[DayCell]:
        """Return the cells of a date, by DAG."""
        found = (self.cells.get((dag_id, business_date)) for dag_id in self.dag_ids)
        return [cell for cell in found if cell is not None]


@dataclass(frozen=True, slots=True)
class OperationOfDay:
    """One operation of a DAG on a date.

    :param counts: keys by where they stand; zero is left out.
    :param figures: of its documents, with those that were listed and have no key.
    :param asks: how often its tries asked for them, and what they got.
    :param repeated: mentions of documents that a listing had already, in the last try of each instance.
    :param expected: what those listings should bring, in words; empty: nothing was said.
    :param listed_total: what their amounts came to.
    """

    business_date: date
    key_namespace: str
    operation: str
    cycle: str
    counts: Mapping[Situation, int]
    last_finished_at: datetime | None
    figures: Figures = field(default_factory=Figures)
    asks: Asks = field(default_factory=Asks)
    repeated: int = 0
    expected: str = ""
    listed_total: str | None = None

    @property
    def documents(self) -> int:
        """All that were listed."""
        return self.figures.listed

    def describe(self) -> str:
        """Return it as one line."""
        said = [self.figures.describe(), self.asks.describe()]
        said += [f"{self.repeated:,} repeated"] if self.repeated else []
        said += [f"{self.expected} expected"] if self.expected else []
        said += [f"{self.listed_total} listed in all"] if self.listed_total is not None else []
        return f"{self.operation}{f' / {self.cycle}' if self.cycle else ''}: {'; '.join(said)}"

    def record(self) -> dict[str, Any]:
        """Return it for commands: one name and value each."""
        return {
            "business_date": self.business_date.isoformat(),
            "key_namespace": self.key_namespace,
            "operation": self.operation,
            "cycle": self.cycle,
            "listed": self.figures.listed,
            **self.figures.parts(),
            "asks": self.asks.asks,
            **self.asks.parts(),
            "repeated": self.repeated,
            "expected": self.expected,
            "listed_total": self.listed_total,
        }


@dataclass(frozen=True, slots=True)
class Day:
    """One DAG on one business date.

    :param tries: newest first, the first page of them.
    :param duplicates: the tries among all of them that found work done, or were kept from it, newest first.
    :param checks: newest first.
    :param breaks: open and explained ones, oldest first.
    """

    cell: DayCell
    operations: Sequence[OperationOfDay]
    tries: Page[TryRow]
    duplicates: Page[TryRow]
    checks: Page[CheckRow]
    breaks: Page[BreakRow]

    @property
    def figures(self) -> Figures:
        """Where the documents of all operations stand."""
        return Figures.total(each.figures for each in self.operations)
