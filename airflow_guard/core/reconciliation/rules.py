"""The rules of a reconciliation: groups, compared columns, tolerances, caps."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from airflow_guard.core.errors import ConfigurationError
from airflow_guard.core.reconciliation.amounts import EXACT
from airflow_guard.core.reconciliation.names import column_name

if TYPE_CHECKING:
    from collections.abc import Sequence

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
