"""Reconciliations: what a check of two sides saw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_guard.core.reconciliation.amounts import variance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date, datetime
    from decimal import Decimal

    from airflow_guard.core.checks import CheckOutcome

CHANGED = "Changed since it passed"
"""How the reason of a check begins that found a date changed after it had passed."""


@dataclass(frozen=True, slots=True)
class SideTotals:
    """The control totals of one side and group.

    :param amounts: exact; ``None``: no row has an amount.
    :param missing: rows without an amount.
    """

    records: int
    amounts: Mapping[str, Decimal | None]
    missing: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class GroupTotals:
    """Both sides of one group; a side that does not have it is ``None``.

    :param reasons: why it does not pass; empty if it does.
    """

    group: Mapping[str, str | None]
    source: SideTotals | None
    target: SideTotals | None
    reasons: Sequence[str] = ()

    def variances(self) -> dict[str, Decimal | None]:
        """Return target minus source by amount column; what a side does not have counts as zero."""
        source = self.source.amounts if self.source else {}
        target = self.target.amounts if self.target else {}
        return {name: variance(source.get(name), target.get(name)) for name in {**source, **target}}


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One check of two sides, for one business date.

    :param run_date: the business date of its run; another than ``business_date`` if that was looked at again.
    :param outcome: ``None``: it goes on.
    :param with_keys: whether documents were compared; ``None``: nothing was compared.
    :param capped: whether there are more breaks than were named.
    :param difference_persisted: how many looks in a row saw the same difference.
    """

    id: int
    dag_id: str
    task_id: str
    run_id: str
    map_index: int
    try_number: int
    run_type: str
    deployment: str
    key_namespace: str
    operation: str
    business_date: date
    cycle: str
    run_date: date
    outcome: CheckOutcome | None
    reason: str | None
    with_keys: bool | None
    source_count: int | None
    target_count: int | None
    totals: Sequence[GroupTotals]
    source_read_at: datetime | None
    target_read_at: datetime | None
    break_count: int | None
    capped: bool
    pokes: int
    difference_persisted: int
    settled: bool
    errors: int
    last_error: str | None
    started_at: datetime
    ended_at: datetime | None

    @property
    def stale(self) -> bool:
        """Whether it found that its date had changed after it had passed."""
        return (self.reason or "").startswith(CHANGED)
