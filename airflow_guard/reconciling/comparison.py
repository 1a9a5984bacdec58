"""The outcome of a reconciliation, and the judgement."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING

from airflow_guard.core.amounts import EXACT, ControlTotals, shown, variance
from airflow_guard.reconciling.rules import BreakType, sortable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from airflow_guard.core.amounts import Group
    from airflow_guard.reconciling.rules import Break, Rules

_FIRST = 10


@dataclass(frozen=True)
class Reading:
    """What one side said.

    :param name: the side, for people (``Side.describe()``).
    :param read_at: when its snapshot was taken, by its database's clock, UTC.
    :param totals: control totals by group. Empty means that it was asked and has no row.
    """

    name: str
    read_at: datetime
    totals: Mapping[Group, ControlTotals]

    @property
    def records(self) -> int:
        """All rows of the side."""
        return sum(each.records for each in self.totals.values())


@dataclass(frozen=True)
class GroupResult:
    """The totals of one group side by side.

    :param group: the values of ``group_by``.
    :param source: ``None`` if the source has no such group.
    :param target: ``None`` if the target has no such group.
    :param reasons: why it fails, in words; empty if its totals agree within the tolerances.
    :param warnings: what is worth saying although it passes.
    """

    group: Group
    source: ControlTotals | None
    target: ControlTotals | None
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether its totals agree."""
        return not self.reasons


@dataclass(frozen=True)
class Comparison:
    """The outcome. It exists only if both sides were read to the end.

    :param source: what the source said.
    :param target: what the target said.
    :param rules: what counted as equal.
    :param amount_names: the amount columns, by their logical names, in the order of ``ControlTotals.amounts``.
    :param with_keys: whether documents were compared; if not, offsetting errors are unseen, and ``why`` says so.
    :param groups: every group of either side, sorted.
    :param breaks: sorted by group, key and type; at most ``rules.max_breaks``.
    :param capped: whether there are more breaks than these, or may be: places that differ were left unread.
    """

    source: Reading
    target: Reading
    rules: Rules
    amount_names: tuple[str, ...]
    with_keys: bool
    groups: tuple[GroupResult, ...]
    breaks: tuple[Break, ...] = ()
    capped: bool = False

    @property
    def passed(self) -> bool:
        """Whether the sides agree: every group's totals, and no break that a tolerance does not cover."""
        return not self.reasons

    @property
    def counts(self) -> dict[BreakType, int]:
        """Named breaks by type, without those that are tolerated."""
        return dict(Counter(each.type for each in self.breaks if not each.tolerated))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it fails, one sentence each; empty if it passes."""
        reasons = [f"{self._named(each.group)}{reason}" for each in self.groups for reason in each.reasons]
        if not self.groups and not self.rules.allow_empty:
            reasons.append("Both sides are empty. If that is normal on this date, set allow_empty.")
        if self.counts:
            counted = ", ".join(f"{number} {kind}" for kind, number in sorted(self.counts.items()))
            more = ", and more that are not named (max_breaks)" if self.capped else ""
            reasons.append(f"Breaks: {counted}{more}.")
        return tuple(reasons)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is worth saying although it fails nothing."""
        warnings = [
            f"{self._named(each.group)}{warning}" for each in self.groups for warning in each.warnings
        ]
        tolerated = sum(each.tolerated for each in self.breaks)
        if tolerated:
            warnings.append(f"{tolerated} breaks are within the tolerances.")
        if not self.with_keys:
            warnings.append("Totals only: without a key, errors that cancel each other out are not seen.")
        return tuple(warnings)

    @property
    def why(self) -> str:
        """The outcome in words, in a few lines: figures, reasons, first documents, cap, and "totals only"."""
        outcome = "Reconciled" if self.passed else "Not reconciled"
        read = [f"{each.records:,} records in {each.name}" for each in (self.source, self.target)]
        lines = [f"{outcome}: {', '.join(read)}."]
        lines += [*self.reasons, *self.warnings]
        first = [each for each in self.breaks if not each.tolerated][:_FIRST]
        lines += [f"- {describe_break(each)}" for each in first]
        if len(first) < sum(self.counts.values()):
            lines.append(f"- … {sum(self.counts.values()) - len(first):,} more")
        return "\n".join(lines)

    @property
    def difference(self) -> str:
        """A digest of what differs, ``""`` if nothing does.

        Equal for two comparisons whose sides differ in the same way, also if rows that agree have been added to both
        meanwhile. For the question whether the same difference persists.
        """
        found: list[object] = [each for each in map(_delta, self.groups) if each is not None]
        found += [
            (
                each.type.value,
                each.key,
                each.group,
                each.field,
                each.source_value,
                each.target_value,
                shown(each.source_amount),
                shown(each.target_amount),
                each.source_records,
                each.target_records,
            )
            for each in self.breaks
        ]
        return hashlib.sha256(repr(found).encode()).hexdigest()[:32] if found else ""

    def _named(self, group: Group) -> str:
        return f"{describe_group(self.rules, group)}: " if self.rules.group_by else ""


@dataclass(frozen=True)
class DuplicateCheck:
    """The outcome of the one-sided check.

    :param reading: what the side said.
    :param breaks: keys that occur more than once (``duplicate_in_source``) and rows without key (``null_key``).
    :param capped: whether there are more.
    """

    reading: Reading
    breaks: tuple[Break, ...]
    capped: bool = False

    @property
    def passed(self) -> bool:
        """Whether every key occurs once."""
        return not self.breaks


def judge_group(
    rules: Rules,
    amount_names: Sequence[str],
    group: Group,
    source: ControlTotals | None,
    target: ControlTotals | None,
) -> GroupResult:
    """Compare the totals of one group.

    :param source: ``None`` if the source has no such group.
    """
    reasons: list[str] = []
    warnings: list[str] = []
    ours, theirs = (each or _nothing(amount_names) for each in (source, target))
    difference = theirs.records - ours.records
    if source is None or target is None:
        side = "source" if source is None else "target"
        said = f"the {side} has no such group, the other side has {ours.records or theirs.records:,} records."
        (reasons if abs(difference) > rules.count_tolerance else warnings).append(said)
    elif difference:
        said = f"{ours.records:,} records in the source, {theirs.records:,} in the target ({difference:+,})."
        (reasons if abs(difference) > rules.count_tolerance else warnings).append(said)
    for index, name in enumerate(amount_names):
        _judge_missing(
            rules, name, ours.amounts_missing[index], theirs.amounts_missing[index], reasons, warnings
        )
        one, other = ours.amounts[index], theirs.amounts[index]
        present = source is not None and target is not None
        if not _within(rules, one, other, both=present):
            by = variance(one, other)
            reasons.append(
                f"{name} is {shown(one)} in the source, {shown(other)} in the target (variance {by:+f})."
            )
        elif variance(one, other):
            warnings.append(f"{name} differs by {variance(one, other):+f}, within the tolerance.")
    return GroupResult(group, source, target, tuple(reasons), tuple(warnings))


def judge(
    rules: Rules,
    source: Reading,
    target: Reading,
    *,
    amount_names: Sequence[str],
    breaks: Sequence[Break] | None,
    capped: bool = False,
) -> Comparison:
    """Put two readings and the breaks of the drill-down together.

    :param breaks: ``None`` if there are no keys.
    """
    groups = sorted({*source.totals, *target.totals}, key=sortable)
    named = sorted(
        breaks or (), key=lambda each: (sortable(each.group), each.key, each.type, each.field or "")
    )
    capped = capped or len(named) > rules.max_breaks
    return Comparison(
        source,
        target,
        rules,
        tuple(amount_names),
        breaks is not None,
        tuple(
            judge_group(rules, amount_names, group, source.totals.get(group), target.totals.get(group))
            for group in groups
        ),
        tuple(named[: rules.max_breaks] if capped else _tolerate(rules, named)),
        capped,
    )


def describe_group(rules: Rules, group: Group) -> str:
    """Return a group for people: ``currency EUR``; NULL is said to be none."""
    return ", ".join(
        f"no {name}" if value is None else f"{name} {value!r}"
        for name, value in zip(rules.group_by, group, strict=True)
    )


def describe_break(each: Break) -> str:
    """Return a break in one line."""
    where = (
        f" ({', '.join('none' if value is None else value for value in each.group)})" if each.group else ""
    )
    if each.type is BreakType.NULL_KEY:
        return (
            f"null_key{where}: {each.source_records} rows of the source, {each.target_records} of the target"
        )
    text = f"{each.type.value} {each.document}{where}"
    if each.type is BreakType.ATTRIBUTE_MISMATCH:
        return f"{text}: {each.field} is {each.source_value!r} in the source, {each.target_value!r} in the target"
    text += f": {each.field or 'amount'} {shown(each.source_amount)} in the source, {shown(each.target_amount)} in the target"
    if each.variance is not None:
        text += f", variance {each.variance:+f}"
    if max(each.source_records, each.target_records) > 1:
        text += f"; {each.source_records} and {each.target_records} rows"
    return text


def _judge_missing(
    rules: Rules, name: str, source: int, target: int, reasons: list[str], warnings: list[str]
) -> None:
    if not source and not target:
        return
    same = source == target
    counted = f"{source:,} rows" if same else f"{source:,} rows of the source and {target:,} of the target"
    allowed = rules.allow_missing_amounts and same
    (warnings if allowed else reasons).append(f"{counted} without {name} (NULL).")


def _within(rules: Rules, source: Decimal | None, target: Decimal | None, *, both: bool) -> bool:
    if source is None and target is None:
        return True
    if both and (source is None or target is None):
        return False
    return abs(variance(source, target) or Decimal(0)) <= rules.allowance(source or Decimal(0))


def _nothing(amount_names: Sequence[str]) -> ControlTotals:
    return ControlTotals(0, (None,) * len(amount_names), (0,) * len(amount_names))


def _delta(result: GroupResult) -> object:
    """Return target minus source, ``None`` if that is nothing."""
    names = result.source or result.target
    count = 0 if names is None else len(names.amounts)
    ours, theirs = (each or _nothing(("",) * count) for each in (result.source, result.target))
    amounts = [variance(*pair) or Decimal(0) for pair in zip(ours.amounts, theirs.amounts, strict=True)]
    missing = [b - a for a, b in zip(ours.amounts_missing, theirs.amounts_missing, strict=True)]
    records, hashed = theirs.records - ours.records, (theirs.hash_total or 0) - (ours.hash_total or 0)
    if not (records or hashed or any(amounts) or any(missing)):
        return None
    return result.group, records, [shown(each.normalize(EXACT)) for each in amounts], missing, hashed


def _tolerate(rules: Rules, breaks: list[Break]) -> list[Break]:
    """Mark missing and surplus documents of groups that have no more of them than ``count_tolerance``."""
    surplus: Counter[Group] = Counter()
    for each in breaks:
        surplus[each.group] += _surplus(each)
    return [
        replace(each, tolerated=True)
        if _surplus(each) and surplus[each.group] <= rules.count_tolerance
        else each
        for each in breaks
    ]


def _surplus(each: Break) -> int:
    """Return how many records too few or too many a break stands for."""
    if each.type is BreakType.DUPLICATE_IN_SOURCE:
        return each.source_records - 1
    if each.type is BreakType.DUPLICATE_IN_TARGET:
        return each.target_records - 1
    return int(each.type in (BreakType.MISSING_IN_SOURCE, BreakType.MISSING_IN_TARGET))
