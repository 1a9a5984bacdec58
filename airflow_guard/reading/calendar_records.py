"""A business date as people read it: its figures, each defined once, and the calendar that they stand in.

``listed`` counts documents, each once, however often they were asked for:

    listed = done + rejected + waived + dropped + failed + in doubt + in progress + not begun

``asks`` counts how often a try asked for one and got an answer:

    asks = executed + replayed + blocked

A document belongs to the date on which it was first listed, also with ``once_per="document"``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_guard.core.decisions import Situation
from airflow_guard.reading.check_records import VolumePoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import date, datetime

    from airflow_guard.core.checks import CheckOutcome
    from airflow_guard.reading.check_records import BreakRow, CheckRow
    from airflow_guard.reading.key_records import TryRow
    from airflow_guard.reading.lists import Page


# -- What the figures of a business date mean, once: for pages, commands and summaries alike -----------------

WAIVED = "waived"
"""Completed without an effect of ours, since a person has said that it is settled another way."""

FIGURE_OF: Mapping[str, str] = {
    Situation.DONE: "done",
    Situation.FOLLOW_UP_OPEN: "done",
    Situation.FOLLOW_UP_RUNNING: "done",
    WAIVED: "waived",
    Situation.REJECTED: "rejected",
    Situation.DROPPED: "dropped",
    Situation.FAILED: "failed",
    Situation.ABANDONED: "failed",
    Situation.IN_DOUBT: "in_doubt",
    Situation.RUNNING: "in_progress",
}
"""Which figure a key belongs to, by where it stands. Adopted history is done."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Where the documents of a date stand.

    :param done: the effect has happened, also where what follows it has not.
    :param failed: the effect has certainly not happened; the next try executes it.
    :param not_begun: listed, and nobody has claimed it: given back, held back, or its try ended before.
    """

    done: int = 0
    rejected: int = 0
    waived: int = 0
    dropped: int = 0
    failed: int = 0
    in_doubt: int = 0
    in_progress: int = 0
    not_begun: int = 0

    @property
    def listed(self) -> int:
        """All of them."""
        return sum(getattr(self, each.name) for each in fields(self))

    @staticmethod
    def of(keys: Mapping[str, int], not_begun: int = 0) -> Figures:
        """Return the figures of keys that are counted by where they stand."""
        counts: dict[str, int] = {"not_begun": not_begun}
        for situation, count in keys.items():
            name = FIGURE_OF[situation]
            counts[name] = counts.get(name, 0) + count
        return Figures(**counts)

    @staticmethod
    def total(several: Iterable[Figures]) -> Figures:
        """Return several figures added up."""
        found = list(several)
        return Figures(
            **{each.name: sum(getattr(one, each.name) for one in found) for each in fields(Figures)}
        )


@dataclass(frozen=True, slots=True)
class Asks:
    """How often tries asked for documents, and what they got.

    :param executed: the effect was executed.
    :param own_replays: done before by an earlier try of the same task and run: a retry that goes on.
    :param duplicates: done before by somebody else, who need not be asked again.
    :param blocked: held back.
    """

    executed: int = 0
    own_replays: int = 0
    duplicates: int = 0
    blocked: int = 0

    @property
    def replayed(self) -> int:
        """What was done before, by whomever."""
        return self.own_replays + self.duplicates

    @property
    def asks(self) -> int:
        """All of them."""
        return self.executed + self.replayed + self.blocked

    @property
    def held_off(self) -> int:
        """Duplicates that did no harm: others asked for what was done, or were kept from it."""
        return self.duplicates + self.blocked

    @staticmethod
    def of(executed: int, replayed: int, own_replays: int, blocked: int) -> Asks:
        """Return the asks of counts as tries have them."""
        return Asks(executed, own_replays, replayed - own_replays, blocked)


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

    :param documents: listed for it, each once: see :class:`~airflow_guard.reading.calendar_records.Figures`.
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
    """

    key_namespace: str
    operation: str
    cycle: str
    counts: Mapping[Situation, int]
    last_finished_at: datetime | None
    figures: Figures = field(default_factory=Figures)

    @property
    def documents(self) -> int:
        """All that were listed."""
        return self.figures.listed


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
