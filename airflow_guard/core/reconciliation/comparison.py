"""The outcome of a reconciliation, and the judgement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from airflow_guard.core.reconciliation.breaks import Break, BreakType
    from airflow_guard.core.reconciliation.rules import Rules
    from airflow_guard.core.reconciliation.totals import ControlTotals, Group


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
        raise NotImplementedError

    @property
    def counts(self) -> dict[BreakType, int]:
        """Named breaks by type, without those that are tolerated."""
        raise NotImplementedError

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it fails, one sentence each; empty if it passes."""
        raise NotImplementedError

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is worth saying although it fails nothing."""
        raise NotImplementedError

    @property
    def why(self) -> str:
        """The outcome in words, in a few lines: figures, reasons, first documents, cap, and "totals only"."""
        raise NotImplementedError

    @property
    def difference(self) -> str:
        """A digest of what differs, ``""`` if nothing does.

        Equal for two comparisons whose sides differ in the same way, also if rows that agree have been added to both
        meanwhile. For the question whether the same difference persists.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class DuplicateCheck:
    """The outcome of the one-sided check.

    :param reading: what the side said; its totals have no hash total.
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
    raise NotImplementedError


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
    raise NotImplementedError


SideName = Literal["source", "target"]
