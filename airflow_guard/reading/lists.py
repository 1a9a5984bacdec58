"""Lists: what narrows them down, a part of one, what needs a person first, and those of several ledgers as one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from airflow_guard.core.checks import BreakState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import date, datetime

    from airflow_guard.core.checks import CheckOutcome
    from airflow_guard.core.decisions import Situation
    from airflow_guard.reading.check_records import BreakRow, CheckRow
    from airflow_guard.reading.key_records import KeyRow, TryRow


# -- What needs a person first -------------------------------------------------------------------------------


class AttentionKind(StrEnum):
    """Why somebody has to look, the worst first."""

    IN_DOUBT = "in_doubt"
    BREAK = "break"
    FOLLOW_UP = "follow_up"
    REJECTED = "rejected"
    STALE = "stale"
    """Reconciled, and changed since."""
    DIED = "died"
    """A process is gone, and no other try has come after it."""
    FAILED = "failed"
    """Nothing has happened; the next run executes it."""


@dataclass(frozen=True, slots=True)
class AttentionItem:
    """One operation and date where something waits for a person.

    :param count: keys, breaks or tries.
    :param samples: a few documents, or breaks in words.
    :param since: since when, as far as it is known.
    :param age_s: the same in seconds (database clock).
    :param key: ``key_date`` and ``key_hash``, if it is about one key.
    :param ref: id of the break, check or try, if it is about one.
    """

    kind: AttentionKind
    dag_id: str
    key_namespace: str
    operation: str
    business_date: date
    cycle: str
    count: int
    samples: Sequence[str] = ()
    since: datetime | None = None
    age_s: float | None = None
    key: tuple[date, str] | None = None
    ref: int | None = None


def break_words(break_type: str, count: int, documents: Sequence[str]) -> str:
    """Return several breaks of one type in words.

    :param documents: the first, and the last if there is another; empty if none could be named.

    >>> break_words("amount_mismatch", 12, ["INV-1", "INV-9"]), break_words("totals_mismatch", 1, [])
    ('12 amount mismatch: INV-1 and 11 more', '1 totals mismatch')
    """
    words = f"{count:,} {break_type.replace('_', ' ')}"
    if not documents:
        return words
    named = documents if count <= len(documents) else documents[:1]
    more = f" and {count - len(named):,} more" if count > len(named) else ""
    return f"{words}: {', '.join(named)}{more}"


# -- What narrows a list down. Every part that is given must hold; what a caller may read is no part of it ---


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfTask:
    """What lists have in common.

    :param start: first business date; without dates, a list that may be long takes the newest 31 dates that there are.
    :param end: last business date, inclusive.
    :param cycle: ``""``: those without; ``None``: all.
    :param run_id: of an Airflow run, with ``dag_id``.
    :param map_index: of a mapped task; ``None``: all.
    """

    dag_id: str | None = None
    start: date | None = None
    end: date | None = None
    key_namespace: str | None = None
    operation: str | None = None
    cycle: str | None = None
    run_id: str | None = None
    task_id: str | None = None
    map_index: int | None = None
    try_number: int | None = None
    deployment: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFilters(_OfTask):
    """Which keys. With a run, task or try: the keys whose last attempt it was.

    :param situations: empty: all. With only unfinished ones and no dates, those of all dates.
    """

    situations: frozenset[Situation] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class TryFilters(_OfTask):
    """Which task tries.

    :param duplicates: only those that found work done, or were kept from it.
    """

    duplicates: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFilters(_OfTask):
    """Which reconciliations.

    :param outcomes: empty: all, also those that go on.
    :param stale: only those that found their date changed after it had passed.
    """

    outcomes: frozenset[CheckOutcome] = frozenset()
    stale: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakFilters(_OfTask):
    """Which breaks. With a run, task or try: those that it saw last.

    :param states: empty: open and explained.
    :param group: exactly this group; ``None``: all.
    :param document: exactly this one.
    :param min_age_s: first seen at least so long ago.
    """

    states: frozenset[BreakState] = frozenset()
    break_type: str | None = None
    group: Mapping[str, str | None] | None = None
    document: str | None = None
    min_age_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionFilters:
    """What of the list of what needs a person.

    :param kinds: empty: all.
    """

    dag_id: str | None = None
    start: date | None = None
    end: date | None = None
    deployment: str | None = None
    kinds: frozenset[AttentionKind] = frozenset()


# -- A part of a list, and what a search found ---------------------------------------------------------------

T = TypeVar("T")

DEFAULT_LIMIT = 50
LARGEST_LIMIT = 10_000
"""Rows that one call gives at most."""
COUNTED = 10_000
"""Rows of a list that are counted, and that can be paged through. Who needs more narrows the list down."""


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list that keeps its order from call to call.

    :param total: rows of the whole list that the caller may read; ``None``: more than ``COUNTED``.
    :param offset: where this part begins, from 0.
    :param start: first business date that was looked at, where the list has a range of dates.
    :param end: last business date that was looked at.
    """

    rows: Sequence[T]
    total: int | None
    limit: int
    offset: int
    start: date | None = None
    end: date | None = None

    @property
    def more(self) -> bool:
        """Whether rows follow."""
        return self.total is None or self.offset + len(self.rows) < self.total


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found.

    :param keys: newest business date first.
    :param more: whether there are more than these.
    :param since: idempotency keys were looked for from this business date on only, since no index has them: with a
        business date, all of that date is searched. ``None``: the search was complete.
    """

    keys: Sequence[KeyRow]
    more: bool = False
    since: date | None = None


# -- The same list of several ledgers as one list, whose order and parts do not change from call to call -----

OfLedger = tuple[str, T]
"""A row, and the ledger that it is from."""

_RANK = {kind: rank for rank, kind in enumerate(AttentionKind)}


def first_rows(limit: int, offset: int) -> int:
    """Return how many rows of each ledger, from its first, a part of the merged list can need."""
    return min(max(limit, 1) + max(offset, 0), LARGEST_LIMIT)


def merged(
    parts: Mapping[str, Page[T]], place: Callable[[T], Any], limit: int, offset: int
) -> Page[OfLedger[T]]:
    """Return a part of the lists of several ledgers as of one list.

    Only the rows that come next in each list are compared, and of equal ones that of the first ledger comes first. So the
    rows of each ledger stay in its order, and a part depends on nothing that comes after it.

    :param parts: the first rows of each ledger's list, as many as :func:`first_rows` says.
    :param place: where a row stands in its list.
    """
    offset = min(max(offset, 0), LARGEST_LIMIT - limit)
    tagged = ([(ledger, row) for row in page.rows] for ledger, page in parts.items())
    rows = list(islice(merge(*tagged, key=lambda pair: place(pair[1])), offset, offset + limit))
    counts = [page.total for page in parts.values()]
    total = None if None in counts else sum(count or 0 for count in counts)
    if total is not None and total > COUNTED:
        total = None
    starts, ends = ({getattr(page, name) for page in parts.values()} for name in ("start", "end"))
    same: dict[str, date | None] = {}
    if len(starts) == len(ends) == 1:
        same = {"start": starts.pop(), "end": ends.pop()}
    return Page(rows, total, limit, offset, **same)


def merged_finds(parts: Mapping[str, Found]) -> tuple[list[OfLedger[KeyRow]], bool, date | None]:
    """Return what a search found in several ledgers: the keys, whether there are more, and since when all was searched."""
    tagged = ([(ledger, key) for key in found.keys] for ledger, found in parts.items())
    keys = list(merge(*tagged, key=lambda pair: -pair[1].business_date.toordinal()))
    since = max((found.since for found in parts.values() if found.since is not None), default=None)
    return keys, any(found.more for found in parts.values()), since


def place_of_item(item: AttentionItem) -> tuple[Any, ...]:
    """Return where an item stands among what needs a person: the worst kind first, then the oldest."""
    names = (item.dag_id, item.key_namespace, item.operation, item.business_date, item.cycle, item.ref or 0)
    return (_RANK[item.kind], item.since is None, item.since, *names)


def place_of_key(key: KeyRow) -> tuple[Any, ...]:
    """Return where a key stands in a list: the newest business date first."""
    return (-key.business_date.toordinal(),)


def place_of_run(row: TryRow | CheckRow) -> tuple[Any, ...]:
    """Return where a task try or a check stands in a list: the newest business date first, then the newest."""
    return (-row.business_date.toordinal(), -row.started_at.timestamp())


def place_of_break(filters: BreakFilters) -> Callable[[BreakRow], tuple[Any, ...]]:
    """Return where a break stands in a list: the oldest first; with settled ones, the newest business date first."""

    def place(row: BreakRow) -> tuple[Any, ...]:
        seen = row.first_seen_at.timestamp()
        settled = BreakState.RESOLVED in filters.states
        return (-row.business_date.toordinal(), -seen) if settled else (seen,)

    return place
