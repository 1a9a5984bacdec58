"""Read the rows of some buckets, key by key, in the same order on both sides."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from queue import Full, Queue
from threading import Event
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.amounts import amount_of, total
from airflow_guard.core.errors import ReconciliationError
from airflow_guard.reconciling.columns import Kind
from airflow_guard.reconciling.expressions import MySqlExpressions, number
from airflow_guard.reconciling.rules import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from decimal import Decimal

    from airflow_guard.core.amounts import Group
    from airflow_guard.reconciling.rows import SideRows
    from airflow_guard.reconciling.session import SideSession

Raw = tuple[Any, ...]
"""A row of the result: bucket, key, groups, amounts, compared columns."""
Place = tuple[Any, ...]
"""Where a key is: its bucket, and the key as it is ordered."""
Ranges = list[tuple[int, int]]

MAX_ROWS_OF_A_KEY = 1_000
"""Rows of one key that are compared with each other; beyond it they are counted only."""
_PART = 2_000
_KEYS_IN_A_BATCH = 500
_MAX_RANGES = 40


class KeyRows:
    """The rows of one key, as the database gave them; most of them are equal and never read as anything else.

    :param place: where it is.
    :param first: its first row.
    :param read: turns a row into its values.
    """

    __slots__ = ("_read", "_records", "_totals", "place", "raw")

    def __init__(self, place: Place, first: Raw, read: Reader) -> None:
        self.place = place
        self.raw = [first]
        """At most ``MAX_ROWS_OF_A_KEY`` of them."""
        self._read = read
        self._records: Counter[Group] | None = None
        self._totals: dict[Group, Decimal | None] = {}

    def add(self, raw: Raw) -> None:
        """Add a row."""
        if len(self.raw) < MAX_ROWS_OF_A_KEY:
            self.raw.append(raw)
            return
        if self._records is None:
            self._records = Counter()
            for each in self.rows():
                self._count(self._records, each)
        self._count(self._records, self._read.row(raw))

    def rows(self) -> list[Row]:
        """Return what is kept of its rows.

        :raises AmountError: an amount that is none.
        """
        return [self._read.row(raw) for raw in self.raw]

    @property
    def whole(self) -> bool:
        """Whether all of its rows are kept."""
        return self._records is None

    def records(self) -> Mapping[Group, int]:
        """Return how many rows there are, by group."""
        return Counter(row.group for row in self.rows()) if self._records is None else self._records

    def total(self, group: Group) -> Decimal | None:
        """Return the total of the first amount in a group."""
        if self._records is None:
            return total(row.amount for row in self.rows() if row.group == group)
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
    read = Reader(rows)
    keys_end = 1 + len(rows.plan.keys)
    current: KeyRows | None = None
    streamed = statement.execution_options(stream_results=True, max_row_buffer=_PART)
    with connection.execute(streamed) as result:
        for part in result.partitions(_PART):
            for raw in read.decoded(part):
                place = raw[:keys_end]
                if current is not None:
                    if current.place == place:
                        current.add(raw)
                        continue
                    _check_order(current.place, place)
                    yield current
                current = KeyRows(place, raw, read)
    if current is not None:
        yield current


def _check_order(before: Place, after: Place) -> None:
    if after < before:
        raise ReconciliationError(
            f"The database does not order keys by their bytes: {before[1:]} came before {after[1:]}. Keys may be too long "
            "for it to compare them whole."
        )


class Reader:
    """Turns a row of the result into its values.

    :param rows: the side.
    """

    def __init__(self, rows: SideRows) -> None:
        plan = rows.plan
        keys = 1 + len(plan.keys)
        self._groups = slice(keys, keys + len(plan.groups))
        self._amounts = slice(self._groups.stop, self._groups.stop + len(plan.amounts))
        self._values = slice(self._amounts.stop, None)
        self._names = [str(column.key) for column in rows.readable.amounts]
        self._inexact = rows.expressions.inexact
        # MySQL gives texts as bytes, because they are ordered by their bytes.
        texts = [n for n, agreed in enumerate(plan.keys, 1) if agreed.kind is not Kind.INTEGER]
        texts += [*range(keys, self._amounts.start)]
        texts += [*range(self._amounts.stop, self._amounts.stop + len(plan.compared))]
        self._bytes = texts if isinstance(rows.expressions, MySqlExpressions) else []

    def decoded(self, part: Sequence[Any]) -> Iterator[Raw]:
        """Yield rows with texts that are texts."""
        if not self._bytes:
            yield from map(tuple, part)
            return
        for row in part:
            values = list(row)
            for n in self._bytes:
                values[n] = decoded(values[n])
            yield tuple(values)

    def row(self, raw: Raw) -> Row:
        """Return the values of a row.

        :raises AmountError: an amount that is none.
        """
        amounts = zip(self._names, raw[self._amounts], strict=True)
        return Row(
            raw[self._groups],
            tuple(
                None if value is None else amount_of(value, name, inexact=self._inexact)
                for name, value in amounts
            ),
            raw[self._values],
        )


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
