"""The rules of a reconciliation, and what they find in the rows of one key: groups, columns, tolerances, breaks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from airflow_guard.core.amounts import EXACT, total, variance
from airflow_guard.core.errors import ConfigurationError
from airflow_guard.reconciling.sides import column_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_guard.core.amounts import Group


# -- The rules of a reconciliation: groups, compared columns, tolerances, caps -------------------------------

DecimalLike = Decimal | int | str

MAX_BREAKS = 10_000
"""The most breaks that one comparison can name; their number bounds its memory."""
MAX_GROUPS = 10_000
"""The most groups of one comparison. Groups are for currencies and branches; what identifies a document is a key."""


@dataclass(frozen=True)
class Rules:
    """What counts as equal.

    :param group_by: columns that totals are kept apart by, usually the currency.
    :param compare: more columns that must be equal, document by document; needs keys.
    :param count_tolerance: records by which a group may differ; so many documents may be missing, and surplus, without
        failing it. They are named all the same, as tolerated.
    :param absolute_tolerance: amount by which a group's total, and each document's amount, may differ. A ``Decimal``,
        an ``int`` or a string; a float is refused, because it is not the number that was written.
    :param relative_tolerance: the same as a fraction of the absolute source amount (``"0.001"`` is one per mille). The
        larger of the two counts.
    :param allow_empty: whether no record on either side is a pass.
    :param allow_missing_amounts: whether rows without an amount (NULL) pass, with a warning, if there are as many on
        both sides. They never count as zero.
    :param max_breaks: how many breaks are named, 1 to 10,000. If there are more, the comparison says so.
    :raises ConfigurationError: a value that cannot work.
    """

    group_by: Sequence[str] = ()
    compare: Sequence[str] = ()
    count_tolerance: int = 0
    absolute_tolerance: DecimalLike = Decimal(0)
    relative_tolerance: DecimalLike = Decimal(0)
    allow_empty: bool = False
    allow_missing_amounts: bool = False
    max_breaks: int = 1_000

    def __post_init__(self) -> None:
        for name in ("group_by", "compare"):
            given = getattr(self, name)
            names = (given,) if isinstance(given, str) else tuple(given)
            for each in names:
                column_name(each, f"{name}=…")
            if len(set(names)) < len(names):
                raise ConfigurationError(f"{name}={list(names)} names a column twice.")
            object.__setattr__(self, name, names)
        for name in ("absolute_tolerance", "relative_tolerance"):
            object.__setattr__(self, name, _tolerance(name, getattr(self, name)))
        _whole("count_tolerance", self.count_tolerance, 0, None)
        _whole("max_breaks", self.max_breaks, 1, MAX_BREAKS)

    @property
    def inexact(self) -> bool:
        """Whether amounts may differ at all; only then may they be floats."""
        return bool(self.absolute_tolerance or self.relative_tolerance)

    def allowance(self, source: Decimal) -> Decimal:
        """Return by how much an amount may differ from a source amount."""
        absolute, relative = Decimal(self.absolute_tolerance), Decimal(self.relative_tolerance)
        return max(absolute, EXACT.multiply(relative, abs(source)))


def _tolerance(name: str, value: object) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, (Decimal, int, str)):
        raise ConfigurationError(
            f'{name}={value!r}: write it as a string or a Decimal ("0.01"). A float is not the number that was written.'
        )
    try:
        number = Decimal(value)
    except InvalidOperation:
        raise ConfigurationError(f'{name}={value!r} is not a number; write "0.01".') from None
    if not number.is_finite() or number < 0:
        raise ConfigurationError(f"{name}={value!r} must be zero or more.")
    return number


def _whole(name: str, value: object, low: int, high: int | None) -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or value < low
        or (high is not None and value > high)
    ):
        limits = f"from {low}" + (f" to {high:,}" if high is not None else "")
        raise ConfigurationError(f"{name}={value!r} must be a whole number {limits}.")


# -- Breaks: the documents in which two sides differ ---------------------------------------------------------


class BreakType(StrEnum):
    """What is wrong with a document."""

    MISSING_IN_TARGET = "missing_in_target"
    """The source has it, the target does not."""
    MISSING_IN_SOURCE = "missing_in_source"
    """The target has it, the source does not."""
    DUPLICATE_IN_SOURCE = "duplicate_in_source"
    """The source has its key more than once in a group, whatever the target has."""
    DUPLICATE_IN_TARGET = "duplicate_in_target"
    """The target has its key more than once in a group, whatever the source has."""
    AMOUNT_MISMATCH = "amount_mismatch"
    """Both have it, with another amount; or one of them with none."""
    ATTRIBUTE_MISMATCH = "attribute_mismatch"
    """Both have it, with another value in a compared column, or in another group."""
    NULL_KEY = "null_key"
    """Rows of one side and group whose key is NULL, or partly: no document can be named. One break for all of them."""


@dataclass(frozen=True, slots=True)
class Break:
    """One difference.

    :param type: what is wrong.
    :param key: the document's key as text, one element a key column; empty for ``null_key``.
    :param group: its group; the source's if the sides put it into two.
    :param field: the column that differs (``amount_mismatch``, ``attribute_mismatch``), by its logical name.
    :param source_amount: its amount in the source, of the column in ``field`` or else of the first amount column; the
        sum over all its rows for duplicates and ``null_key``. ``None``: not there, or NULL.
    :param target_amount: the same in the target.
    :param source_value: the source's value of a compared or group column, as text.
    :param target_value: the target's value.
    :param source_records: how many rows of the source have this key.
    :param target_records: how many rows of the target have it.
    :param tolerated: whether a tolerance of the rules covers it, so that it fails nothing.
    """

    type: BreakType
    key: tuple[str, ...]
    group: Group = ()
    field: str | None = None
    source_amount: Decimal | None = None
    target_amount: Decimal | None = None
    source_value: str | None = None
    target_value: str | None = None
    source_records: int = 0
    target_records: int = 0
    tolerated: bool = False

    @property
    def document(self) -> str:
        """The key in one piece, for people."""
        return " / ".join(self.key)

    @property
    def variance(self) -> Decimal | None:
        """Target minus source amount; what a side does not have counts as zero. ``None`` if both have none."""
        return variance(self.source_amount, self.target_amount)


# -- Compare the rows of one key on both sides ---------------------------------------------------------------


class Row(NamedTuple):
    """A row of a side, its values in one form whatever the database.

    :param group: values of ``group_by``.
    :param amounts: one for each amount column; ``None`` is NULL.
    :param values: one for each column of ``compare``.
    """

    group: Group
    amounts: tuple[Decimal | None, ...]
    values: tuple[str | None, ...]

    @property
    def amount(self) -> Decimal | None:
        """The first amount, which breaks of no certain column show."""
        return self.amounts[0] if self.amounts else None


@dataclass(frozen=True)
class Matcher:
    """Finds the breaks of one key.

    :param rules: tolerances, and the names of group and compared columns.
    :param amount_names: names of the amount columns.
    """

    rules: Rules
    amount_names: tuple[str, ...]

    def breaks(self, key: tuple[str, ...], source: Sequence[Row], target: Sequence[Row]) -> Iterator[Break]:
        """Yield the breaks of a key, given all its rows on both sides.

        A key belongs to a group. If it has one row in one group of the source and one in another group of the target,
        it was moved: an attribute mismatch of the group column, not two missing documents.
        """
        if len(source) == len(target) == 1:
            yield from self._pair(key, source[0], target[0])
            return
        moved = _moved(source, target)
        if moved is not None:
            yield from self._pair(key, *moved)
        for group in sorted({row.group for row in (*source, *target)}, key=sortable):
            if moved is None or group not in (moved[0].group, moved[1].group):
                ours = [row for row in source if row.group == group]
                yield from self._in_group(key, group, ours, [row for row in target if row.group == group])

    def _in_group(
        self, key: tuple[str, ...], group: Group, source: list[Row], target: list[Row]
    ) -> Iterator[Break]:
        types = [BreakType.DUPLICATE_IN_SOURCE] if len(source) > 1 else []
        types += [BreakType.DUPLICATE_IN_TARGET] if len(target) > 1 else []
        types += [BreakType.MISSING_IN_TARGET] if not target else []
        types += [BreakType.MISSING_IN_SOURCE] if not source else []
        for kind in types:
            yield Break(
                kind,
                key,
                group,
                source_amount=total(row.amount for row in source),
                target_amount=total(row.amount for row in target),
                source_records=len(source),
                target_records=len(target),
            )
        # What is the same on both sides explains itself; what is left over on both is a changed document.
        ours, theirs = Counter(source), Counter(target)
        left, right = (
            sorted((a - b).elements(), key=_by_amounts) for a, b in ((ours, theirs), (theirs, ours))
        )
        for one, other in zip(left, right, strict=False):
            yield from self._pair(key, one, other, len(source), len(target))

    def _pair(
        self, key: tuple[str, ...], source: Row, target: Row, in_source: int = 1, in_target: int = 1
    ) -> Iterator[Break]:
        for name, ours, theirs in zip(self.amount_names, source.amounts, target.amounts, strict=True):
            if not self._equal(ours, theirs):
                yield Break(
                    BreakType.AMOUNT_MISMATCH,
                    key,
                    source.group,
                    name,
                    ours,
                    theirs,
                    source_records=in_source,
                    target_records=in_target,
                )
        names = (*self.rules.group_by, *self.rules.compare)
        pairs = zip((*source.group, *source.values), (*target.group, *target.values), strict=True)
        for name, (one, other) in zip(names, pairs, strict=True):
            if one != other:
                yield Break(
                    BreakType.ATTRIBUTE_MISMATCH,
                    key,
                    source.group,
                    name,
                    source.amount,
                    target.amount,
                    one,
                    other,
                    in_source,
                    in_target,
                )

    def _equal(self, source: Decimal | None, target: Decimal | None) -> bool:
        if source is None or target is None:
            return source is target
        difference = variance(source, target)
        return difference is not None and abs(difference) <= self.rules.allowance(source)


def _moved(source: Sequence[Row], target: Sequence[Row]) -> tuple[Row, Row] | None:
    """Return the row that the source has in one group and the target in another, if there is one such pair."""
    there, here = {row.group for row in target}, {row.group for row in source}
    only_source = [row for row in source if row.group not in there]
    only_target = [row for row in target if row.group not in here]
    return (only_source[0], only_target[0]) if len(only_source) == len(only_target) == 1 else None


def sortable(values: tuple[str | None, ...]) -> tuple[tuple[bool, str], ...]:
    """Return a sort key for values of which some are ``None``: those come first."""
    return tuple((value is not None, value or "") for value in values)


def _by_amounts(row: Row) -> tuple[object, ...]:
    amounts = tuple((amount is not None, amount or 0) for amount in row.amounts)
    return amounts, sortable(row.values)
