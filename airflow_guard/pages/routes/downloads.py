"""The lists as CSV files. What a spreadsheet would execute is text in them."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import APIRouter, Depends
from starlette.responses import Response

from airflow_guard.core.texts import safe_cell
from airflow_guard.pages.page import Page, page_of
from airflow_guard.pages.queries import TO_SETTLE, Query
from airflow_guard.pages.routes.asking import complete
from airflow_guard.reading.lists import (
    LARGEST_LIMIT,
    merged,
    place_of_break,
    place_of_item,
    place_of_key,
    place_of_run,
)
from airflow_guard.reading.monitor import Monitor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_guard.reading.check_records import BreakRow, CheckRow
    from airflow_guard.reading.key_records import KeyRow, TryRow
    from airflow_guard.reading.lists import AttentionItem
    from airflow_guard.reading.lists import Page as Part

router = APIRouter(prefix="/csv")
T = TypeVar("T")

PATIENCE_S = 20.0
"""A download may take longer than a page."""


@router.get("/attention")
def attention(page: Annotated[Page, Depends(page_of)]) -> Response:
    """All that needs a person."""
    filters = Query(page).attention()
    return _file(
        page,
        "attention",
        lambda m: m.attention(page.readable, filters, limit=LARGEST_LIMIT),
        place_of_item,
        _item,
    )


@router.get("/open")
def to_settle(page: Annotated[Page, Depends(page_of)]) -> Response:
    """Keys that wait for a person's word."""
    filters = Query(page).keys(TO_SETTLE)
    return _file(
        page, "to-settle", lambda m: m.keys(page.readable, filters, limit=LARGEST_LIMIT), place_of_key, _key
    )


@router.get("/keys")
def keys(page: Annotated[Page, Depends(page_of)]) -> Response:
    """Keys."""
    filters = Query(page).keys()
    return _file(
        page, "keys", lambda m: m.keys(page.readable, filters, limit=LARGEST_LIMIT), place_of_key, _key
    )


@router.get("/breaks")
def breaks(page: Annotated[Page, Depends(page_of)]) -> Response:
    """Breaks."""
    filters = Query(page).breaks()
    return _file(
        page,
        "breaks",
        lambda m: m.breaks(page.readable, filters, limit=LARGEST_LIMIT),
        place_of_break(filters),
        _break,
    )


@router.get("/blocked")
def blocked(page: Annotated[Page, Depends(page_of)]) -> Response:
    """Tries that found work done or were kept from it."""
    filters = Query(page).tries()
    return _file(
        page, "blocked", lambda m: m.blocked(page.readable, filters, limit=LARGEST_LIMIT), place_of_run, _try
    )


@router.get("/checks")
def checks(page: Annotated[Page, Depends(page_of)]) -> Response:
    """Reconciliations."""
    filters = Query(page).checks()
    return _file(
        page, "checks", lambda m: m.checks(page.readable, filters, limit=LARGEST_LIMIT), place_of_run, _check
    )


def _file(
    page: Page,
    name: str,
    question: Callable[[Monitor], Part[T]],
    place: Callable[[T], Any],
    cells: Callable[[T], Mapping[str, Any]],
) -> Response:
    found = complete(
        page, lambda ledger: question(Monitor(ledger, limit_s=PATIENCE_S)), patience_s=PATIENCE_S
    )
    rows = merged(found, place, LARGEST_LIMIT, 0).rows
    out = io.StringIO()
    writer = csv.writer(out)
    for index, (ledger, row) in enumerate(rows):
        line = {"ledger": ledger, **cells(row)}
        if index == 0:
            writer.writerow(line)
        writer.writerow([safe_cell(value) for value in line.values()])
    headers = {"content-disposition": f'attachment; filename="guard-{name}.csv"'}
    # With the mark that tells spreadsheets that it is UTF-8.
    return Response("\ufeff" + out.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)


def _item(item: AttentionItem) -> dict[str, Any]:
    return {
        "kind": item.kind.value, "dag_id": item.dag_id, "key_namespace": item.key_namespace,
        "operation": item.operation, "business_date": item.business_date, "cycle": item.cycle, "count": item.count,
        "since_utc": _utc(item.since), "samples": "; ".join(item.samples),
    }  # fmt: skip


def _key(key: KeyRow) -> dict[str, Any]:
    row = key.row
    run = row.last_run
    return {
        "state": key.situation.value, "dag_id": key.dag_id, "key_namespace": key.key_namespace,
        "operation": key.operation, "business_date": key.business_date, "cycle": key.cycle,
        "document": row.document, "attempt": row.attempt, "generation": row.generation,
        "claimed_at_utc": _utc(key.claimed_at), "begun_at_utc": _utc(key.begun_at),
        "finished_at_utc": _utc(key.finished_at), "run_id": run.run_id if run else None,
        "task_id": run.task_id if run else None, "error": row.error, "key_date": key.key_date, "key": key.key_hash,
        "idempotency_key": row.idempotency_key, "batch_id": row.batch_id,
    }  # fmt: skip


def _break(row: BreakRow) -> dict[str, Any]:
    found = row.found
    return {
        "id": row.id, "state": row.state.value, "type": found.break_type, "dag_id": row.dag_id,
        "operation": row.operation, "business_date": row.business_date, "cycle": row.cycle,
        "group": ", ".join(f"{name}={value}" for name, value in found.group.items()), "document": found.document,
        "field": found.field, "source_value": found.source_value, "target_value": found.target_value,
        "variance": found.variance, "age_days": f"{row.age_s / 86_400:.1f}",
        "first_seen_at_utc": _utc(row.first_seen_at), "last_seen_at_utc": _utc(row.last_seen_at),
        "actor": row.actor, "reason": row.reason,
    }  # fmt: skip


def _try(row: TryRow) -> dict[str, Any]:
    who = row.identity
    return {
        "dag_id": who.dag_id, "task_id": who.task_id, "run_id": who.run_id, "map_index": who.map_index,
        "try_number": who.try_number, "run_type": who.run_type, "operation": row.operation,
        "business_date": row.business_date, "cycle": row.cycle, "started_at_utc": _utc(row.started_at),
        "outcome": row.outcome, "documents": row.documents, "executed": row.executed, "replayed": row.replayed,
        "blocked": row.blocked, "host": who.host,
    }  # fmt: skip


def _check(row: CheckRow) -> dict[str, Any]:
    return {
        "id": row.id, "outcome": row.outcome.value if row.outcome else "going on", "dag_id": row.dag_id,
        "task_id": row.task_id, "run_id": row.run_id, "operation": row.operation, "business_date": row.business_date,
        "cycle": row.cycle, "source_count": row.source_count, "target_count": row.target_count,
        "breaks": row.break_count, "reason": row.reason, "started_at_utc": _utc(row.started_at),
        "ended_at_utc": _utc(row.ended_at),
    }  # fmt: skip


def _utc(at: Any) -> str | None:
    return None if at is None else f"{at:%Y-%m-%d %H:%M:%S}"
