"""A part of a list, and what a search found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from airflow_guard.core.monitoring.keys import KeyRow

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
