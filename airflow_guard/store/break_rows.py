"""Rows of ``guard_break``: how a difference is stored, and how it is read again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_guard.core.checks import BreakState, FoundBreak
from airflow_guard.store.events import storable
from airflow_guard.store.task_runs import aware

if TYPE_CHECKING:
    from datetime import date, datetime

    from airflow_guard.core.keys import KeySpace


@dataclass(frozen=True, slots=True)
class StoredBreak:
    """One break as the ledger has it.

    :param opened_in: id of the Airflow run that opened it, or opened it again.
    :param age_s: seconds since it was first seen (database clock).
    :param actor: who changed its state last.
    """

    id: int
    key_namespace: str
    operation: str
    business_date: date
    cycle: str
    found: FoundBreak
    state: BreakState
    opened_by_id: int
    seen_by_id: int
    closed_by_id: int | None
    opened_in: str | None
    first_seen_at: datetime | None
    last_seen_at: datetime | None
    closed_at: datetime | None
    age_s: float
    actor: str | None
    reason: str | None


def row_of(found: FoundBreak, break_hash: str, check_id: int, space: KeySpace) -> dict[str, Any]:
    """Return the row of a difference that a check has found for the first time."""
    return {
        "break_hash": break_hash,
        "deployment": space.deployment,
        "key_namespace": space.key_namespace,
        "operation": space.operation,
        "business_date": space.business_date,
        "cycle": space.cycle,
        "break_type": found.break_type,
        "group_values": json.dumps(dict(found.group)),
        "document": storable(found.document),
        "field": found.field,
        **values_of(found),
        "state": BreakState.OPEN.value,
        "opened_by_id": check_id,
        "seen_by_id": check_id,
    }


def values_of(found: FoundBreak) -> dict[str, Any]:
    """Return what may change while it stays the same break."""
    return {
        "source_value": storable(found.source_value),
        "target_value": storable(found.target_value),
        "variance": storable(found.variance),
        "source_records": found.source_records,
        "target_records": found.target_records,
    }


def found_of(row: Any) -> FoundBreak:
    """Return the difference that a row of ``guard_break`` tells about."""
    return FoundBreak(
        break_type=row.break_type,
        group=json.loads(row.group_values),
        document=row.document,
        field=row.field,
        source_value=row.source_value,
        target_value=row.target_value,
        variance=row.variance,
        source_records=row.source_records,
        target_records=row.target_records,
    )


def stored_break(row: Any) -> StoredBreak:
    """Return a row of :attr:`Breaks.select`."""
    return StoredBreak(
        id=row.id,
        key_namespace=row.key_namespace,
        operation=row.operation,
        business_date=row.business_date,
        cycle=row.cycle,
        found=found_of(row),
        state=BreakState(row.state),
        opened_by_id=row.opened_by_id,
        seen_by_id=row.seen_by_id,
        closed_by_id=row.closed_by_id,
        opened_in=row.opened_in,
        first_seen_at=aware(row.first_seen_at),
        last_seen_at=aware(row.last_seen_at),
        closed_at=aware(row.closed_at),
        age_s=float(row.age),
        actor=row.actor,
        reason=row.reason,
    )


def describe(row: Any) -> str:
    """Return a row of ``guard_break`` as a person reads it."""
    parts = [row.key_namespace, row.operation, row.business_date.isoformat()]
    if row.cycle:
        parts.append(f"cycle {row.cycle}")
    return f"{' / '.join(parts)} / {found_of(row).describe()}"
