"""Drill down to documents: read the buckets that differ and compare them exactly; find keys that occur more than once."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.amounts import amount_of
from airflow_guard.core.errors import ConfigurationError
from airflow_guard.reconciling.canonical import BLOCK, BUCKETS, keys_of
from airflow_guard.reconciling.columns import Kind
from airflow_guard.reconciling.comparison import DuplicateCheck, Reading
from airflow_guard.reconciling.expressions import expressions_for
from airflow_guard.reconciling.fetching import KeyRows, Ranges, Stream, by_key, decoded, ranges_of, statement
from airflow_guard.reconciling.plan import is_unique, plan, readable
from airflow_guard.reconciling.rows import SideRows
from airflow_guard.reconciling.rules import Break, BreakType, Matcher, sortable
from airflow_guard.reconciling.scan import Scanned, scan
from airflow_guard.reconciling.session import LOCK_TIMEOUT_S, SideSession
from airflow_guard.reconciling.spooling import spooled
from airflow_guard.store import dialects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from airflow_guard.reconciling.plan import Plan
    from airflow_guard.reconciling.rules import Rules
    from airflow_guard.reconciling.scan import Bucket
    from airflow_guard.reconciling.sides import Side


# -- Drill down to documents: read the buckets that differ, and compare them exactly -------------------------

_ROWS_AT_ONCE = 20_000
"""Rows that are held where both sides share a connection, and cannot be read side by side."""
_FEWEST = 100
_MOST_INTERVALS = 5_000
_NARROW = 8
"""Ranges are used if they are together at most a fraction, one over this, of all keys."""


@dataclass
class Found:
    """The breaks so far.

    :param cap: how many are wanted.
    """

    cap: int
    breaks: list[Break] = field(default_factory=list)
    capped: bool = False

    def add(self, breaks: Iterable[Break]) -> bool:
        """Add breaks; return whether there are more than wanted now."""
        self.breaks.extend(breaks)
        if len(self.breaks) > self.cap:
            self.capped = True
        return self.capped


@dataclass
class DrillDown:
    """Finds the documents of the buckets that differ.

    :param sessions: source and target.
    :param rows: source and target.
    :param scans: source and target.
    :param matcher: compares the rows of one key.
    :param read_everything: whether every row of both sides has been compared.
    """

    sessions: tuple[SideSession, SideSession]
    rows: tuple[SideRows, SideRows]
    scans: tuple[Scanned, Scanned]
    matcher: Matcher
    read_everything: bool = False

    @property
    def plan(self) -> Plan:
        """How the sides are compared."""
        return self.rows[0].plan

    def differing(self) -> list[int]:
        """Return the buckets that differ; all of them if amounts are floats."""
        source, target = (scan.buckets for scan in self.scans)
        return sorted(
            bucket
            for bucket in source.keys() | target.keys()
            if self.plan.floats or not _equal(source.get(bucket), target.get(bucket))
        )

    def run(self, found: Found) -> None:
        """Add the breaks of the buckets that differ, until there are more than wanted."""
        left = self.differing()
        everything = len(left) == len(self.scans[0].buckets.keys() | self.scans[1].buckets.keys())
        while left and not found.capped:
            some = self._some(left, found)
            self._compare(None if everything and len(some) == len(left) else some, found)
            left, everything = left[len(some) :], everything and len(some) == len(left)
        found.capped = found.capped or bool(left)
        self.read_everything = everything and not found.capped

    def _some(self, left: Sequence[int], found: Found) -> Sequence[int]:
        """Return so many buckets that the next read probably gives what is missing, and fits into memory."""
        # A bucket that differs holds a break, unless a tolerance covers it.
        inexact = self.matcher.rules.inexact
        some = left if inexact else left[: max(found.cap - len(found.breaks) + 1, _FEWEST)]
        if not self.sessions[0].shared:
            return some
        rows = 0
        for count, bucket in enumerate(some):
            rows += sum(scan.buckets[bucket].records for scan in self.scans if bucket in scan.buckets)
            if rows > _ROWS_AT_ONCE and count:
                return some[:count]
        return some

    def _compare(self, buckets: Sequence[int] | None, found: Found) -> None:
        reads = [
            partial(by_key, rows, statement(rows, buckets, self._ranges(session, rows, buckets)))
            for session, rows in zip(self.sessions, self.rows, strict=True)
        ]
        if self.sessions[0].shared:
            ours, theirs = (
                session.run(partial(_listed, read))
                for session, read in zip(self.sessions, reads, strict=True)
            )
            self._merge(ours, theirs, found)
            return
        with ExitStack() as stack:
            streams = [Stream(session, read) for session, read in zip(self.sessions, reads, strict=True)]
            for stream in streams:
                stack.callback(stream.stop)
            self._merge(streams[0], streams[1], found)

    def _merge(self, source: Iterable[KeyRows], target: Iterable[KeyRows], found: Found) -> None:
        ours, theirs = iter(source), iter(target)
        one, other = next(ours, None), next(theirs, None)
        while one is not None or other is not None:
            if other is None or (one is not None and one.place < other.place):
                full = found.add(self._breaks(one, None))
                one = next(ours, None)
            elif one is None or other.place < one.place:
                full = found.add(self._breaks(None, other))
                other = next(theirs, None)
            else:
                same = one.raw == other.raw and len(one.raw) == 1
                full = not same and found.add(self._breaks(one, other))
                one, other = next(ours, None), next(theirs, None)
            if full:
                return

    def _breaks(self, source: KeyRows | None, target: KeyRows | None) -> Iterator[Break]:
        place = (source or target).place  # type: ignore[union-attr]
        key = shown_key(self.plan, place[1:])
        if all(each is None or each.whole for each in (source, target)):
            ours, theirs = (each.rows() if each else [] for each in (source, target))
            yield from self.matcher.breaks(key, ours, theirs)
            return
        yield from _counted(key, source, target)

    def _ranges(self, session: SideSession, rows: SideRows, buckets: Sequence[int] | None) -> Ranges:
        """Return ranges of keys that hold these buckets, if an index can find them and they are a small part."""
        if buckets is None or not self.plan.integer_key or rows.readable.where is not None:
            return []
        if not session.run(partial(is_unique, rows.readable, session.dialect)):
            return []
        low, high = session.run(partial(_span, rows))
        # SQLite sorts a key that is a text after all integers.
        if not (isinstance(low, int) and isinstance(high, int)):
            return []
        if (high - low) // BLOCK // BUCKETS * len(buckets) > _MOST_INTERVALS:
            return []
        ranges = ranges_of([each for bucket in buckets for each in keys_of(bucket, low, high)])
        return ranges if sum(end - start for start, end in ranges) * _NARROW <= high - low else []


def _span(rows: SideRows, connection: sa.Connection) -> tuple[Any, Any]:
    """Return the smallest and the largest key, by the index that keeps them unique."""
    key = rows.readable.keys[0]
    low, high = connection.execute(rows.readable.select(sa.func.min(key), sa.func.max(key))).one()
    return low, high


def null_keys(scans: tuple[Scanned, Scanned]) -> Iterator[Break]:
    """Yield a break for each group of a side that has rows without key."""
    source, target = scans
    for group in source.null_keys:
        records, amount = source.null_keys[group]
        yield Break(BreakType.NULL_KEY, (), group, source_amount=amount, source_records=records)
    for group in target.null_keys:
        records, amount = target.null_keys[group]
        yield Break(BreakType.NULL_KEY, (), group, target_amount=amount, target_records=records)


def shown_key(plan: Plan, key: tuple[Any, ...]) -> tuple[str, ...]:
    """Return a key for people."""
    return tuple(
        str(uuid.UUID(each)) if agreed.kind is Kind.UUID and _is_uuid(each) else str(each)
        for each, agreed in zip(key, plan.keys, strict=True)
    )


def _is_uuid(text: str) -> bool:
    return len(text) == 32 and all(each in "0123456789abcdef" for each in text)


def _listed(read: Callable[[sa.Connection], Iterator[KeyRows]], connection: sa.Connection) -> list[KeyRows]:
    return list(read(connection))


def _equal(source: Bucket | None, target: Bucket | None) -> bool:
    return (
        source is not None
        and target is not None
        and (source.records, source.digest) == (target.records, target.digest)
    )


def _counted(key: tuple[str, ...], source: KeyRows | None, target: KeyRows | None) -> Iterator[Break]:
    """Yield the breaks of a key that has too many rows to compare them one by one: by their number."""
    ours, theirs = (each.records() if each else {} for each in (source, target))
    for group in sorted({*ours, *theirs}, key=sortable):
        in_source, in_target = ours.get(group, 0), theirs.get(group, 0)
        kinds = {
            BreakType.DUPLICATE_IN_SOURCE: in_source > 1,
            BreakType.DUPLICATE_IN_TARGET: in_target > 1,
            BreakType.MISSING_IN_TARGET: not in_target,
            BreakType.MISSING_IN_SOURCE: not in_source,
        }
        for kind, holds in kinds.items():
            if holds:
                yield Break(
                    kind,
                    key,
                    group,
                    source_amount=source.total(group) if source else None,
                    target_amount=target.total(group) if target else None,
                    source_records=in_source,
                    target_records=in_target,
                )


# -- Find keys that occur more than once on one side ---------------------------------------------------------


def duplicates_in(rows: SideRows, limit: int, connection: sa.Connection) -> list[Break]:
    """Return ``duplicate_in_source`` for keys that occur more than once in a group, at most ``limit``."""
    one, expressions = rows.readable, rows.expressions
    groups, keys, amounts = rows.groups()[: len(one.groups)], rows.keys(), rows.amounts()[:1]
    inner = one.select(*groups, *keys, *amounts).where(*(column.is_not(None) for column in one.keys))
    each = inner.subquery("r")
    by = [column for column in each.c if str(column.key)[0] in "gk"]
    total = expressions.total(each.c.a0) if amounts else sa.null()
    statement = (
        sa.select(*by, sa.func.count(), total)
        .group_by(*by)
        .having(sa.func.count() > sa.literal_column("1"))
        .limit(limit)
    )
    name = str(one.amounts[0].key) if amounts else ""
    found = []
    for row in connection.execute(statement):
        group, key, (records, sum_of_it) = row[: len(groups)], row[len(groups) : -2], row[-2:]
        texts = tuple(
            decoded(value) if agreed.kind is not Kind.INTEGER else int(value)
            for value, agreed in zip(key, rows.plan.keys, strict=True)
        )
        amount = None if sum_of_it is None else amount_of(sum_of_it, name, inexact=expressions.inexact)
        found.append(
            Break(
                BreakType.DUPLICATE_IN_SOURCE,
                shown_key(rows.plan, texts),
                tuple(map(decoded, group)),
                source_amount=amount,
                source_records=int(records),
            )
        )
    return found


def find_duplicates(
    side: Side,
    rules: Rules,
    *,
    engine: sa.Engine,
    parameters: Mapping[str, Any] | None = None,
    lock_timeout_s: int = LOCK_TIMEOUT_S,
) -> DuplicateCheck:
    """Name the keys that occur more than once in a group, and count the rows without key.

    :param side: needs ``key``.
    :param rules: of which ``group_by`` and ``max_breaks`` count.
    :param engine: SQLAlchemy engine of the side's database.
    :param parameters: as for :func:`reconcile`.
    :raises ConfigurationError: no key, or names that are none.
    :raises SideInvalid: as for :func:`reconcile`; no retry helps.
    :raises AmountError: as for :func:`reconcile`; no retry helps.
    :raises SideUnavailable: a retry helps.
    """
    if not side.keys:
        raise ConfigurationError("Duplicates are found by key=: name the column that identifies a document.")
    opened = SideSession(side.describe(), engine, lock_timeout_s)
    with ExitStack() as stack:
        stack.callback(opened.close)
        read_at = opened.open()
        session, side = stack.enter_context(spooled(opened, side, rules, parameters or {}, lock_timeout_s))
        one = readable(session, side, rules, parameters or {})
        agreed = plan(one, one, rules, native=session.dialect == dialects.POSTGRES)
        rows = SideRows(one, agreed, expressions_for(session.dialect, inexact=rules.inexact))
        scanned = session.run(partial(scan, rows))
        breaks = [
            *null_keys((scanned, Scanned())),
            *session.run(partial(duplicates_in, rows, rules.max_breaks + 1)),
        ]
    named = sorted(breaks, key=lambda each: (sortable(each.group), each.key))
    reading = Reading(side.describe(), read_at, scanned.totals)
    return DuplicateCheck(reading, tuple(named[: rules.max_breaks]), capped=len(named) > rules.max_breaks)
