"""What the ledger knows about a task that failed: for alerts, whose context may say next to nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.checks import BreakState
from airflow_guard.core.decisions import Situation
from airflow_guard.reading.listing import Selection, keys
from airflow_guard.store.breaks import Breaks
from airflow_guard.store.columns import COUNTS
from airflow_guard.store.dialects import utc_now
from airflow_guard.store.task_runs import aware

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date, datetime

    from airflow_guard.reading.key_records import KeyRow
    from airflow_guard.store.break_rows import StoredBreak
    from airflow_guard.store.ledger import Ledger

_NAMED = 4
_NEEDS_SOMEBODY = (Situation.IN_DOUBT, Situation.FOLLOW_UP_OPEN, Situation.REJECTED, Situation.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which task try an alert is about, as far as its context says.

    :param task_id: ``None``: the run as a whole.
    :param try_number: ``None``: the last one.
    """

    dag_id: str
    run_id: str
    task_id: str | None = None
    map_index: int | None = None
    try_number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What the ledger has about it.

    :param is_check: whether it is a reconciliation, and no guarded task.
    :param same_try: whether the row is of the try that was asked for; an earlier one has the same date.
    :param outcome: ``None``: it goes on, or its process is gone.
    :param lease_over: whether the last sign of life is older than the lease.
    :param keys: the first keys that want somebody's attention, the most urgent first.
    :param totals: the control totals of both sides by group, as JSON values.
    :param breaks: the first open breaks; ``open_breaks`` counts all.
    """

    task_id: str
    map_index: int
    try_number: int
    business_date: date
    cycle: str
    key_namespace: str
    operation: str
    is_check: bool
    same_try: bool
    outcome: str | None
    error: str | None
    lease_over: bool = False
    last_sign_at: datetime | None = None
    started_at: datetime | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    keys: Sequence[KeyRow] = ()
    totals: Sequence[Mapping[str, Any]] = ()
    breaks: Sequence[StoredBreak] = ()
    open_breaks: int = 0


def recorded(ledger: Ledger, asked: Asked) -> Recorded | None:
    """Return what the ledger knows about a task try, ``None`` if it has not seen it.

    Of a run as a whole it is the last try that did not succeed.

    :raises LedgerError: the ledger does not answer.
    """
    found = [each for each in (_task_run(ledger, asked), _check(ledger, asked)) if each is not None]
    return max(found, key=lambda each: (each.same_try, _began(each)), default=None)


def _began(each: Recorded) -> float:
    return each.started_at.timestamp() if each.started_at else 0.0


def _task_run(ledger: Ledger, asked: Asked) -> Recorded | None:
    tables = ledger.database.tables
    run, lease = tables.task_run, tables.lease
    over = sa.case((lease.c.expires_at < utc_now(), 1), else_=0).label("lease_over")
    columns = (run, over, lease.c.renewed_at)
    joined = run.outerjoin(lease, lease.c.task_run_id == run.c.id)
    row = _last(ledger, sa.select(*columns).select_from(joined), run, asked, done="success")
    if row is None:
        return None
    return Recorded(
        task_id=row.task_id,
        map_index=row.map_index,
        try_number=row.try_number,
        business_date=row.business_date,
        cycle=row.cycle,
        key_namespace=row.key_namespace,
        operation=row.operation,
        is_check=False,
        same_try=asked.try_number in (None, row.try_number),
        outcome=row.outcome,
        error=row.error,
        lease_over=bool(row.lease_over),
        last_sign_at=aware(row.renewed_at),
        started_at=aware(row.started_at),
        counts={name: getattr(row, name) for name in COUNTS},
        keys=_keys(ledger, row),
    )


def _check(ledger: Ledger, asked: Asked) -> Recorded | None:
    r = ledger.database.tables.reconciliation
    row = _last(ledger, sa.select(r).where(r.c.business_date == r.c.run_date), r, asked, done="passed")
    if row is None:
        return None
    of_date = Breaks(ledger.database).unsettled(
        key_namespace=row.key_namespace,
        operation=row.operation,
        business_date=row.business_date,
        state=BreakState.OPEN,
    )
    breaks = [each for each in of_date if each.cycle == row.cycle]
    return Recorded(
        task_id=row.task_id,
        map_index=row.map_index,
        try_number=row.try_number,
        business_date=row.business_date,
        cycle=row.cycle,
        key_namespace=row.key_namespace,
        operation=row.operation,
        is_check=True,
        same_try=asked.try_number in (None, row.try_number),
        outcome=row.outcome,
        error=row.reason or row.last_error,
        started_at=aware(row.started_at),
        totals=json.loads(row.totals) if row.totals is not None else (),
        breaks=breaks[:_NAMED],
        open_breaks=len(breaks),
    )


def _last(ledger: Ledger, found: sa.Select[Any], table: sa.Table, asked: Asked, *, done: str) -> Any:
    found = found.where(table.c.run_id == asked.run_id, table.c.dag_id == asked.dag_id)
    if asked.task_id is None:
        found = found.where(sa.func.coalesce(table.c.outcome, "") != done)
    else:
        found = found.where(table.c.task_id == asked.task_id)
    if asked.map_index is not None:
        found = found.where(table.c.map_index == asked.map_index)
    this_try = sa.case((table.c.try_number == (asked.try_number or 0), 0), else_=1)
    newest = found.order_by(this_try, table.c.id.desc()).limit(1)
    return ledger.database.read(lambda connection: connection.execute(newest).first())


def _keys(ledger: Ledger, row: Any) -> list[KeyRow]:
    selection = Selection(
        dag=row.key_namespace,
        operation=row.operation,
        business_date=row.business_date,
        situations=frozenset(_NEEDS_SOMEBODY),
        limit=_NAMED,
    )
    return [each for each in keys(ledger, selection).keys if each.cycle == row.cycle]
