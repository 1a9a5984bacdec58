"""Compare the rows of one key on both sides."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from airflow_guard.core.reconciliation.amounts import total, variance
from airflow_guard.core.reconciliation.breaks import Break, BreakType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from decimal import Decimal

    from airflow_guard.core.reconciliation.rules import Rules
    from airflow_guard.core.reconciliation.totals import Group


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
                    BreakType.AMOUNT_MISMATCH, key, source.group, name, ours, theirs,
                    source_records=in_source, target_records=in_target,
                )  # fmt: skip
        names = (*self.rules.group_by, *self.rules.compare)
        pairs = zip((*source.group, *source.values), (*target.group, *target.values), strict=True)
        for name, (one, other) in zip(names, pairs, strict=True):
            if one != other:
                yield Break(
                    BreakType.ATTRIBUTE_MISMATCH, key, source.group, name, source.amount, target.amount,
                    one, other, in_source, in_target,
                )  # fmt: skip

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
