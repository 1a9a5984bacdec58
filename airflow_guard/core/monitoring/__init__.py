"""What people look at: the values that the query service (``store.monitoring``) gives to pages and commands.

Instants are aware UTC, business dates are dates, amounts are :class:`~decimal.Decimal`. Every text comes from the
ledger as it is stored, so whoever shows it has to escape it.
"""

from __future__ import annotations

from airflow_guard.core.monitoring.attention import AttentionItem, AttentionKind
from airflow_guard.core.monitoring.breaks import BreakLife, BreakRow
from airflow_guard.core.monitoring.calendar import Calendar, CellStatus, Day, DayCell, OperationOfDay
from airflow_guard.core.monitoring.checks import CheckRow, GroupTotals, SideTotals
from airflow_guard.core.monitoring.filters import (
    AttentionFilters,
    BreakFilters,
    CheckFilters,
    KeyFilters,
    TryFilters,
)
from airflow_guard.core.monitoring.keys import AuditEntry, KeyLife, KeyRow, Renaming, RerunRow, TimelineEntry
from airflow_guard.core.monitoring.pages import Found, Page
from airflow_guard.core.monitoring.series import VariancePoint, VolumePoint
from airflow_guard.core.monitoring.tries import TryRow

__all__ = [
    "AttentionFilters",
    "AttentionItem",
    "AttentionKind",
    "AuditEntry",
    "BreakFilters",
    "BreakLife",
    "BreakRow",
    "Calendar",
    "CellStatus",
    "CheckFilters",
    "CheckRow",
    "Day",
    "DayCell",
    "Found",
    "GroupTotals",
    "KeyFilters",
    "KeyLife",
    "KeyRow",
    "OperationOfDay",
    "Page",
    "Renaming",
    "RerunRow",
    "SideTotals",
    "TimelineEntry",
    "TryFilters",
    "TryRow",
    "VariancePoint",
    "VolumePoint",
]
