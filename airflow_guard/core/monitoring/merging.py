"""The same list of several ledgers as one list, whose order and parts do not change from call to call."""

from __future__ import annotations

from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_guard.core.checks import BreakState
from airflow_guard.core.monitoring.attention import AttentionItem, AttentionKind
from airflow_guard.core.monitoring.pages import COUNTED, LARGEST_LIMIT, Found, Page

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import date

    from airflow_guard.core.monitoring.breaks import BreakRow
    from airflow_guard.core.monitoring.checks import CheckRow
    from airflow_guard.core.monitoring.filters import BreakFilters
    from airflow_guard.core.monitoring.keys import KeyRow
    from airflow_guard.core.monitoring.tries import TryRow

T = TypeVar("T")
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
