"""How commands show a break."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_guard.core.texts import age, instant
from airflow_guard.reconciling.check_report import group_text

if TYPE_CHECKING:
    from airflow_guard.store.break_rows import StoredBreak


def text(each: StoredBreak) -> str:
    """Return a break in a line."""
    return f"{each.key_namespace} / {each.operation} / {each.business_date} / {each.found.describe()}"


def short(each: StoredBreak) -> dict[str, Any]:
    """Return a break as a row of a table for people."""
    found = each.found
    return {
        "state": each.state.value,
        "id": each.id,
        "date": each.business_date.isoformat(),
        "operation": each.operation,
        "type": found.break_type,
        "document": found.name if found.name is not None else group_text(found.group),
        "field": found.field,
        "source": found.source_value,
        "target": found.target_value,
        "variance": found.variance,
        "age": age(each.age_s),
        "reason": each.reason,
    }


def full(each: StoredBreak) -> dict[str, Any]:
    """Return a break as an object for programs: everything, nothing abbreviated."""
    found = each.found
    return {
        "id": each.id,
        "state": each.state.value,
        "key_namespace": each.key_namespace,
        "operation": each.operation,
        "business_date": each.business_date.isoformat(),
        "cycle": each.cycle,
        "type": found.break_type,
        "group": dict(found.group),
        "document": found.document,
        "field": found.field,
        "source_value": found.source_value,
        "target_value": found.target_value,
        "variance": found.variance,
        "source_records": found.source_records,
        "target_records": found.target_records,
        "opened_in": each.opened_in,
        "first_seen_at": instant(each.first_seen_at),
        "last_seen_at": instant(each.last_seen_at),
        "closed_at": instant(each.closed_at),
        "actor": each.actor,
        "reason": each.reason,
    }
