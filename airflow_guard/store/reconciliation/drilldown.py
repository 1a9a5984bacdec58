"""Drill down to documents: read the buckets that differ, and compare them exactly."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_guard.core.reconciliation.breaks import Break, BreakType
from airflow_guard.core.reconciliation.matching import Matcher, sortable
from airflow_guard.store.reconciliation.columns import Kind
from airflow_guard.store.reconciliation.fetching import (
    KeyRows,
    Ranges,
    Stream,
    by_key,
    ranges_of,
    statement,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import sqlalchemy as sa

    from airflow_guard.store.reconciliation.plan import Plan
    from airflow_guard.store.reconciliation.rows import SideRows
    from airflow_guard.store.reconciliation.scan import Bucket, Scanned
    from airflow_guard.store.reconciliation.session import SideSession

_ROWS_AT_ONCE = 20_000
"""Rows that are held where both sides share a connection, and cannot be read side by side."""
_FEWEST = 100
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
        ranges = [] if buckets is None else self._ranges(buckets)
        reads = [partial(by_key, rows, statement(rows, buckets, ranges)) for rows in self.rows]
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
                full = one.rows != other.rows or len(one.rows) > 1 or not one.whole or not other.whole
                full = full and found.add(self._breaks(one, other))
                one, other = next(ours, None), next(theirs, None)
            if full:
                return

    def _breaks(self, source: KeyRows | None, target: KeyRows | None) -> Iterator[Break]:
        place = (source or target).place  # type: ignore[union-attr]
        key = shown_key(self.plan, place[1])
        if all(each is None or each.whole for each in (source, target)):
            yield from self.matcher.breaks(key, source.rows if source else (), target.rows if target else ())
            return
        yield from _counted(key, source, target)

    def _ranges(self, buckets: Sequence[int]) -> Ranges:
        """Return ranges of keys that hold these buckets, if that is much less than all keys."""
        if not self.plan.integer_key:
            return []
        everything = [bucket for scan in self.scans for bucket in scan.buckets.values()]
        wanted = [scan.buckets[bucket] for bucket in buckets for scan in self.scans if bucket in scan.buckets]
        lows_highs = [
            (each.low, each.high) for each in wanted if each.low is not None and each.high is not None
        ]
        ranges = ranges_of(lows_highs)
        span = max(each.high or 0 for each in everything) - min(each.low or 0 for each in everything)
        return ranges if sum(high - low for low, high in ranges) * _NARROW <= span else []


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
                    kind, key, group,
                    source_amount=source.total(group) if source else None,
                    target_amount=target.total(group) if target else None,
                    source_records=in_source, target_records=in_target,
                )  # fmt: skip
