"""Breaks: a row of a list, and a whole life."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from airflow_guard.core.checks import BreakState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date, datetime

    from airflow_guard.core.checks import FoundBreak
    from airflow_guard.core.monitoring.checks import CheckRow
    from airflow_guard.core.monitoring.keys import AuditEntry


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
