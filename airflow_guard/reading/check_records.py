"""Reconciliations and breaks as people read them: what a check saw, a row, a whole life, and series for charts."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from airflow_guard.core.amounts import variance
from airflow_guard.core.checks import BreakState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date, datetime

    from airflow_guard.core.checks import CheckOutcome, FoundBreak
    from airflow_guard.reading.key_records import AuditEntry


# -- Reconciliations: what a check of two sides saw ----------------------------------------------------------

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


# -- Breaks: a row of a list, and a whole life ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BreakRow:
    """One break.

    :param dag_id: the DAG of the check that saw it last.
    :param found: type, group, document, field and both values, as exact texts.
    :param age_s: seconds since it was first seen (database clock).
    :param actor: who changed its state last, and ``reason`` why.
    """

    id: int
    dag_id: str
    deployment: str
    key_namespace: str
    operation: str
    business_date: date
    cycle: str
    found: FoundBreak
    state: BreakState
    opened_by_id: int
    seen_by_id: int
    closed_by_id: int | None
    first_seen_at: datetime
    last_seen_at: datetime
    closed_at: datetime | None
    age_s: float
    actor: str | None
    reason: str | None

    @property
    def source_amount(self) -> Decimal | None:
        """The source's value where it is a number."""
        return _amount(self.found.source_value)

    @property
    def target_amount(self) -> Decimal | None:
        """The target's value where it is a number."""
        return _amount(self.found.target_value)

    @property
    def variance(self) -> Decimal | None:
        """Target minus source amount, where that means something."""
        return _amount(self.found.variance)

    @property
    def version(self) -> str:
        """What a form has to send back with a decision, so that a page that is out of date is refused."""
        return self.found.version(self.state)

    @property
    def may_explain(self) -> bool:
        """Whether a person may accept it as it is."""
        return self.state is BreakState.OPEN

    @property
    def may_resolve(self) -> bool:
        """Whether a person may say that it is settled."""
        return self.state is not BreakState.RESOLVED


@dataclass(frozen=True, slots=True)
class BreakLife:
    """The whole life of one break.

    :param events: what people and checks did with it, oldest first.
    :param opened_by: the check that opened it (again); ``None``: it is purged.
    """

    row: BreakRow
    events: Sequence[AuditEntry]
    opened_by: CheckRow | None
    seen_by: CheckRow | None
    closed_by: CheckRow | None


def _amount(text: str | None) -> Decimal | None:
    if text is None:
        return None
    try:
        found = Decimal(text)
    except InvalidOperation:
        return None
    return found if found.is_finite() else None


# -- Series for charts: a point for each business date that has one ------------------------------------------


@dataclass(frozen=True, slots=True)
class VariancePoint:
    """What the last reconciliation of a date found for one group and amount column.

    :param group: the values of ``group_by``, such as the currency.
    :param amount: name of the amount column.
    :param source: total of the source, ``None``: no row has an amount.
    :param variance: target minus source.
    """

    business_date: date
    dag_id: str
    key_namespace: str
    operation: str
    cycle: str
    group: Mapping[str, str | None]
    amount: str
    source: Decimal | None
    target: Decimal | None
    variance: Decimal | None
    outcome: CheckOutcome


@dataclass(frozen=True, slots=True)
class VolumePoint:
    """What a DAG did for a date; see :class:`~airflow_guard.reading.calendar_records.DayCell`."""

    business_date: date
    dag_id: str
    documents: int
    executed: int
    replayed: int
    blocked: int
