"""Read the rows of some buckets, key by key, in the same order on both sides."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import partial
from queue import Full, Queue
from threading import Event
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.errors import ReconciliationError
from airflow_guard.core.reconciliation.amounts import amount_of, total
from airflow_guard.core.reconciliation.matching import Row
from airflow_guard.store.reconciliation.columns import Kind
from airflow_guard.store.reconciliation.expressions import number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from decimal import Decimal

    from airflow_guard.core.reconciliation.totals import Group
    from airflow_guard.store.reconciliation.rows import SideRows
    from airflow_guard.store.reconciliation.session import SideSession

Place = tuple[int, tuple[Any, ...]]
"""Where a key is: its bucket, and the key as it is ordered."""
Ranges = list[tuple[int, int]]

MAX_ROWS_OF_A_KEY = 1_000
"""Rows of one key that are compared with each other; beyond it they are counted only."""
_PART = 2_000
_KEYS_IN_A_BATCH = 500
_MAX_RANGES = 40


class KeyRows:
    """The rows of one key.

    :param place: where it is.
    :param first: its first row.
    """

    __slots__ = ("_records", "_totals", "place", "rows")

    def __init__(self, place: Place, first: Row) -> None:
        self.place = place
        self.rows = [first]
        """At most ``MAX_ROWS_OF_A_KEY`` of them."""
        self._records: Counter[Group] | None = None
        self._totals: dict[Group, Decimal | None] = {}

    def add(self, row: Row) -> None:
        """Add a row."""
        if len(self.rows) < MAX_ROWS_OF_A_KEY:
            self.rows.append(row)
            return
        if self._records is None:
            self._records = Counter()
            for each in self.rows:
                self._count(self._records, each)
        self._count(self._records, row)

    @property
    def whole(self) -> bool:
        """Whether all of its rows are kept."""
        return self._records is None

    def records(self) -> Mapping[Group, int]:
        """Return how many rows there are, by group."""
        return Counter(row.group for row in self.rows) if self._records is None else self._records

    def total(self, group: Group) -> Decimal | None:
        """Return the total of the first amount in a group."""
        if self._records is None:
            return total(row.amount for row in self.rows if row.group == group)
        return self._totals.get(group)

    def _count(self, records: Counter[Group], row: Row) -> None:
        records[row.group] += 1
        self._totals[row.group] = total((self._totals.get(row.group), row.amount))


def statement(rows: SideRows, buckets: Sequence[int] | None, ranges: Ranges) -> sa.Select[Any]:
    """Return the rows of some buckets, ordered by bucket and key.

    :param buckets: ``None`` means all.
    :param ranges: ranges of integer keys that hold all of these rows, so that an index can find them.
    """
    bucket, keys = rows.bucket(), rows.keys()
    # Amounts as they are stored: no form that was made for summing can change them.
    amounts = [column.label(f"a{index}") for index, column in enumerate(rows.readable.amounts)]
    groups = rows.groups()[: len(rows.readable.groups)]
    selected = rows.readable.select(bucket, *keys, *groups, *amounts, *rows.values())
    selected = selected.where(*(column.is_not(None) for column in rows.readable.keys))
    if buckets is not None:
        wanted = bucket.element if isinstance(bucket, sa.Label) else bucket
        selected = selected.where(wanted.in_([number(each) for each in buckets]))
    if ranges:
        key = rows.readable.keys[0]
        selected = selected.where(sa.or_(*(key.between(number(low), number(high)) for low, high in ranges)))
    return selected.order_by(
        sa.literal_column("1"), *(sa.literal_column(str(n + 2)) for n in range(len(keys)))
    )


def by_key(rows: SideRows, statement: sa.Select[Any], connection: sa.Connection) -> Iterator[KeyRows]:
    """Read a statement of :func:`statement` and yield the rows of each key.

    :raises ReconciliationError: the database does not keep the order that was asked for.
    """
    read = _Reader(rows)
    current: KeyRows | None = None
    streamed = statement.execution_options(stream_results=True, max_row_buffer=_PART)
    with connection.execute(streamed) as result:
        for part in result.partitions(_PART):
            for each in part:
                place, row = read(each)
                if current is not None and current.place == place:
                    current.add(row)
                    continue
                if current is not None:
                    _check_order(current.place, place)
                    yield current
                current = KeyRows(place, row)
    if current is not None:
        yield current


def _check_order(before: Place, after: Place) -> None:
    if after < before:
        raise ReconciliationError(
            f"The database does not order keys by their bytes: {before[1]} came before {after[1]}. Keys may be too long "
            "for it to compare them whole."
        )


class _Reader:
    """Turns a row of the result into its place and its values."""

    def __init__(self, rows: SideRows) -> None:
        plan = rows.plan
        names = [str(column.key) for column in rows.readable.amounts]
        inexact = rows.expressions.inexact
        keys = [int if agreed.kind is Kind.INTEGER else decoded for agreed in plan.keys]
        amounts = [partial(amount_or_null, name, inexact=inexact) for name in names]
        self._keys: list[Callable[[Any], Any]] = [*keys]
        self._groups: list[Callable[[Any], Any]] = [decoded] * len(plan.groups)
        self._amounts: list[Callable[[Any], Any]] = [*amounts]
        self._values: list[Callable[[Any], Any]] = [decoded] * len(plan.compared)

    def __call__(self, row: Any) -> tuple[Place, Row]:
        values = iter(row)
        bucket = next(values)
        key, group, amounts, compared = (
            tuple([read(next(values)) for read in reads])
            for reads in (self._keys, self._groups, self._amounts, self._values)
        )
        return (bucket, key), Row(group, amounts, compared)


def amount_or_null(column: str, value: Any, *, inexact: bool) -> Decimal | None:
    """Return an amount as a driver gave it, exactly."""
    return None if value is None else amount_of(value, column, inexact=inexact)


def decoded(value: Any) -> str | None:
    """Return a text that MySQL gave as bytes, because it was ordered by them."""
    if value is None or isinstance(value, str):
        return value
    return bytes(value).decode()


def ranges_of(intervals: Sequence[tuple[int, int]]) -> Ranges:
    """Return few ranges that cover all intervals, joined where the gaps are smallest."""
    merged: Ranges = []
    for low, high in sorted(intervals):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    if len(merged) <= _MAX_RANGES:
        return merged
    gaps = sorted(range(1, len(merged)), key=lambda n: merged[n - 1][1] - merged[n][0])  # the widest first
    cuts = sorted(gaps[: _MAX_RANGES - 1])
    parts = [merged[start:end] for start, end in zip([0, *cuts], [*cuts, len(merged)], strict=True)]
    return [(part[0][0], part[-1][1]) for part in parts]


class Stream:
    """Reads a side in its own thread, ahead of whoever consumes it, but not far.

    :param session: the side.
    :param read: what to read; it runs in the side's thread.
    """

    def __init__(self, session: SideSession, read: Callable[[sa.Connection], Iterator[KeyRows]]) -> None:
        self._queue: Queue[list[KeyRows] | None] = Queue(maxsize=4)
        self._stopped = Event()
        self._read = read
        self._future = session.start(self._fill)

    def __iter__(self) -> Iterator[KeyRows]:
        while (batch := self._queue.get()) is not None:
            yield from batch
        self._future.result()

    def stop(self) -> None:
        """Stop reading; what is left is not needed."""
        self._stopped.set()
        self._future.exception()

    def _fill(self, connection: sa.Connection) -> None:
        batch: list[KeyRows] = []
        try:
            for each in self._read(connection):
                batch.append(each)
                if len(batch) >= _KEYS_IN_A_BATCH:
                    self._put(batch)
                    batch = []
                if self._stopped.is_set():
                    return
            self._put(batch)
        finally:
            self._put(None)

    def _put(self, batch: list[KeyRows] | None) -> None:
        while not self._stopped.is_set():
            with suppress(Full):
                self._queue.put(batch, timeout=0.2)
                return
