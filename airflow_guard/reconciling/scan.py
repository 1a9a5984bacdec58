"""One scan of a side: control totals by group, and the checksums of its buckets, in the same statement."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.amounts import EXACT, ControlTotals, Group, amount_of
from airflow_guard.core.errors import AmountError, ConfigurationError
from airflow_guard.reconciling.canonical import NULL_BUCKET
from airflow_guard.reconciling.columns import Kind
from airflow_guard.reconciling.rules import MAX_GROUPS
from airflow_guard.store import dialects

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from decimal import Decimal

    from airflow_guard.reconciling.rows import SideRows

_PART = 2_000
"""Rows that are fetched at a time where the result may be large."""


@dataclass(slots=True)
class Bucket:
    """What one side says about a bucket.

    :param records: its rows.
    :param digest: of everything that was summed, group by group: equal digests, equal rows.
    """

    records: int = 0
    digest: int = 0


@dataclass(slots=True)
class _Sums:
    records: int
    amounts: list[Decimal | None]
    present: list[int]
    hash_total: int = 0


@dataclass(slots=True)
class Scanned:
    """What one scan found.

    :param totals: control totals by group.
    :param buckets: by number; without those of NULL keys.
    :param null_keys: rows whose key is NULL, by group: how many, and the total of their first amount.
    :param currencies: values of the currency column that must have one value.
    """

    totals: dict[Group, ControlTotals] = field(default_factory=dict)
    buckets: dict[int, Bucket] = field(default_factory=dict)
    null_keys: dict[Group, tuple[int, Decimal | None]] = field(default_factory=dict)
    currencies: set[str | None] = field(default_factory=set)


def statement(rows: SideRows) -> sa.Select[Any]:
    """Return the scan: control totals, and with keys by bucket."""
    if not rows.plan.keys:
        return _totals(rows)
    scanned = rows.scanned()
    by = [column for column in scanned.c if str(column.key)[0] in "gb"]
    found: list[Any] = [*by, sa.func.count().label("records")]
    for index in range(len(rows.readable.amounts)):
        amount = scanned.c[f"a{index}"]
        found += [
            rows.expressions.total(amount).label(f"total{index}"),
            sa.func.count(amount).label(f"present{index}"),
        ]
    checksums = [column for column in scanned.c if str(column.key)[0] == "c"]
    found += [
        rows.expressions.total(column).label(f"checksum{index}") for index, column in enumerate(checksums)
    ]
    return sa.select(*found).select_from(scanned).group_by(*by)


def _totals(rows: SideRows) -> sa.Select[Any]:
    groups, amounts = rows.groups(), rows.amounts()
    inner = rows.readable.select(*groups, *amounts).subquery("r")
    found: list[Any] = [
        *(inner.c[f"g{index}"] for index in range(len(groups))),
        sa.func.count().label("records"),
    ]
    for index in range(len(amounts)):
        amount = inner.c[f"a{index}"]
        found += [
            rows.expressions.total(amount).label(f"total{index}"),
            sa.func.count(amount).label(f"present{index}"),
        ]
    return (
        sa.select(*found).select_from(inner).group_by(*(inner.c[f"g{index}"] for index in range(len(groups))))
    )


def scan(rows: SideRows, connection: sa.Connection) -> Scanned:
    """Read a side's control totals and buckets.

    :raises AmountError: a text that is no amount, or a total that is no number.
    :raises ConfigurationError: more groups than ``MAX_GROUPS``.
    """
    _check_texts(connection, rows)
    gathering = _Gathering(rows)
    # A cursor on the server keeps memory bounded, but PostgreSQL does not use parallel workers for one. Without
    # groups the result is at most one row a bucket.
    options = {"stream_results": True, "max_row_buffer": _PART} if gathering.group_count else {}
    with _hashing(connection), connection.execute(statement(rows).execution_options(**options)) as result:
        for row in result:
            gathering.add(row)
    return gathering.scanned()


@contextmanager
def _hashing(connection: sa.Connection) -> Iterator[None]:
    """Let PostgreSQL put the rows of a scan into buckets by hashing.

    It cannot know that there are few buckets: it expects one a row, and sorts all rows, which takes twice as long.
    """
    if connection.dialect.name != dialects.POSTGRES:
        yield
        return
    with connection.begin_nested() as savepoint:
        connection.execute(_SETTINGS)
        yield
        savepoint.rollback()  # and with it, the settings


_SETTINGS = sa.text(
    "SELECT set_config('enable_sort', 'off', true), (SELECT set_config('work_mem', '64MB', true) FROM pg_settings "
    "WHERE name = 'work_mem' AND CAST(setting AS integer) < 65536)"
)


class _Gathering:
    """Puts the rows of a scan together."""

    def __init__(self, rows: SideRows) -> None:
        readable = rows.readable
        self.group_count = len(rows.groups())
        self._rows = rows
        self._own_groups = len(readable.groups)
        self._amounts = [str(column.key) for column in readable.amounts]
        self._checksums = _checksum_count(rows)
        self._sums: dict[Group, _Sums] = {}
        self._scanned = Scanned()
        self._keyed = bool(rows.plan.keys)
        self._inexact = rows.expressions.inexact

    def add(self, row: Any) -> None:
        """Take one row of the result, in the order of :func:`statement`: a group, or a bucket of a group."""
        at = self.group_count
        texts = tuple(_decoded(value) for value in row[:at])
        group = texts[: self._own_groups]
        bucket = None
        if self._keyed:
            bucket, at = int(row[at]), at + 1
        records, at = int(row[at]), at + 1
        if not records:
            return  # without groups, an empty side has one row of zeros
        if len(texts) > self._own_groups:
            self._scanned.currencies.add(texts[-1])
        amounts = [
            None if total is None else amount_of(total, name, inexact=self._inexact)
            for name, total in zip(self._amounts, row[at::2], strict=False)
        ]
        end = at + 2 * len(amounts)
        present = [int(each) for each in row[at + 1 : end : 2]]
        checksums = [int(each or 0) for each in row[end : end + self._checksums]]
        countable = bucket is not None and bucket != NULL_BUCKET
        self._add_to_group(group, records, amounts, present, sum(checksums) if countable else 0)
        if bucket is None:
            return
        if bucket == NULL_BUCKET:
            self._add_null_keys(group, records, amounts[0] if amounts else None)
            return
        # The group is part of it: documents that swapped their groups leave each checksum as it is. Equal decimals
        # have equal hashes, whatever their scale.
        digest = hash((group, records, *amounts, *present, *checksums))
        whole = self._scanned.buckets.setdefault(bucket, Bucket())
        whole.records += records
        whole.digest += digest

    def scanned(self) -> Scanned:
        """Return the whole."""
        hashed = self._checksums > 0
        for group, sums in self._sums.items():
            missing = tuple(sums.records - present for present in sums.present)
            self._scanned.totals[group] = ControlTotals(
                sums.records, tuple(sums.amounts), missing, sums.hash_total if hashed else None
            )
        return self._scanned

    def _add_to_group(
        self,
        group: Group,
        records: int,
        amounts: Sequence[Decimal | None],
        present: list[int],
        hash_total: int,
    ) -> None:
        sums = self._sums.get(group)
        if sums is None:
            if len(self._sums) >= MAX_GROUPS:
                raise ConfigurationError(
                    f"group_by={list(self._rows.readable.groups)} has more than {MAX_GROUPS:,} groups. Groups are for "
                    "currencies and branches; what identifies a document belongs into key=."
                )
            self._sums[group] = _Sums(records, list(amounts), list(present), hash_total)
            return
        sums.records += records
        sums.hash_total += hash_total
        for index, amount in enumerate(amounts):
            sums.amounts[index] = _plus(sums.amounts[index], amount)
            sums.present[index] += present[index]

    def _add_null_keys(self, group: Group, records: int, amount: Decimal | None) -> None:
        before, known = self._scanned.null_keys.get(group, (0, None))
        self._scanned.null_keys[group] = (before + records, _plus(known, amount))


def _plus(one: Decimal | None, other: Decimal | None) -> Decimal | None:
    if one is None or other is None:
        return one if other is None else other
    return EXACT.add(one, other)


def _checksum_count(rows: SideRows) -> int:
    plan = rows.plan
    if not plan.keys or plan.floats:
        return 0
    return 1 if plan.native else max(1, len(plan.amounts) + bool(plan.compared))


def _decoded(value: Any) -> str | None:
    if value is None:
        return None
    return bytes(value).decode() if isinstance(value, (bytes, bytearray, memoryview)) else str(value)


def _check_texts(connection: sa.Connection, rows: SideRows) -> None:
    """Refuse texts that are no amounts, where reading them as numbers would not (MySQL) or would not name them."""
    for column in rows.readable.amounts:
        if rows.readable.own(column).kind is not Kind.TEXT:
            continue
        wrong = rows.expressions.not_an_amount(column)
        if wrong is None:
            continue
        found = connection.execute(rows.readable.select(column).where(wrong).limit(1)).first()
        if found is not None:
            raise AmountError(f"Column {column.key!r} holds {found[0]!r}, which is not an amount.")
