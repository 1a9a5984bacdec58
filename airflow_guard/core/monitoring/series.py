"""Series for charts: a point for each business date that has one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import date
    from decimal import Decimal

    from airflow_guard.core.checks import CheckOutcome


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
    """What a DAG did for a date; see :class:`~airflow_guard.core.monitoring.calendar.DayCell`."""

    business_date: date
    dag_id: str
    documents: int
    executed: int
    replayed: int
    blocked: int
