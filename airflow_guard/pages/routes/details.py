"""One DAG on one date; one key, one break, one reconciliation, and what a search finds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends
from starlette.responses import HTMLResponse

from airflow_guard.core.results import decode_result, has_result
from airflow_guard.pages.page import Page, business_date, page_of
from airflow_guard.pages.routes.asking import ask_each, ask_for_one
from airflow_guard.reading.calendar_records import Day
from airflow_guard.reading.key_records import KeyRow
from airflow_guard.reading.lists import KeyFilters, merged_finds
from airflow_guard.reading.lists import Page as Part
from airflow_guard.reading.monitor import Monitor
from airflow_guard.reading.scope import NotThere

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_guard.pages.ledgers import LedgerTrouble
    from airflow_guard.reading.lists import OfLedger


# -- One DAG on one business date ----------------------------------------------------------------------------

router = APIRouter()


@router.get("/day")
def day(page: Annotated[Page, Depends(page_of)]) -> HTMLResponse:
    """Show operations, documents, tries, duplicates, checks and breaks of a date."""
    dag_id, at = page.text("dag"), business_date(page.text("date"))
    readable = page.readable
    if at is None or dag_id not in readable:
        raise NotThere

    def question(ledger: Monitor) -> tuple[Day, Part[KeyRow]] | None:
        found = ledger.day(dag_id, at, readable)
        if found is None:
            return None
        return found, ledger.keys(readable, KeyFilters(dag_id=dag_id, start=at, end=at))

    found, keys = ask_for_one(page, question)
    return page.render("day.html", dag_id=dag_id, at=at, day=found, keys_of_day=keys)


# -- One key, one break, one reconciliation, and what a search finds -----------------------------------------

_KEY_HEX = 32
_LARGEST_ID = 2**63 - 1


@router.get("/key")
def key(page: Annotated[Page, Depends(page_of)]) -> HTMLResponse:
    """Show the life of a key."""
    key_date, key_hash = business_date(page.text("date")), page.text("key")
    if key_date is None or len(key_hash) != _KEY_HEX:
        raise NotThere
    readable = page.readable
    life = ask_for_one(page, lambda ledger: ledger.key(key_date, key_hash, readable))
    return page.render(
        "key.html", life=life, key=life.key, result=_result(life.key.row.result), actor=page.caller.name,
        editable=life.key.dag_id in page.caller.editable,
    )  # fmt: skip


@router.get("/break")
def break_(page: Annotated[Page, Depends(page_of)]) -> HTMLResponse:
    """Show the life of a break."""
    number = _id(page)
    found = ask_for_one(page, lambda ledger: ledger.break_(number, page.readable))
    return page.render(
        "break.html", life=found, row=found.row, editable=found.row.dag_id in page.caller.editable
    )


@router.get("/check")
def check(page: Annotated[Page, Depends(page_of)]) -> HTMLResponse:
    """Show one reconciliation with its control totals."""
    number = _id(page)
    found = ask_for_one(page, lambda ledger: ledger.check(number, page.readable))
    return page.render("check.html", check=found)


@router.get("/search")
def search(page: Annotated[Page, Depends(page_of)]) -> HTMLResponse:
    """Show the keys of a document, a key or an idempotency key; a business date alone leads to its keys."""
    text = page.text("q")
    at = business_date(page.text("date")) or None
    named = business_date(text)
    readable = page.readable
    keys: Sequence[OfLedger[KeyRow]] = ()
    more, since = False, None
    troubles: list[LedgerTrouble] = []
    if text and named is None:
        found, troubles = ask_each(page, lambda look: look.find(text, readable, business_date=at))
        keys, more, since = merged_finds(found)
    return page.render(
        "search.html",
        text=text,
        named=named,
        at=at,
        keys_found=keys,
        more=more,
        since=since,
        troubles=troubles,
    )


def _id(page: Page) -> int:
    text = page.text("id")
    if not (text.isascii() and text.isdigit()) or int(text) > _LARGEST_ID:
        raise NotThere
    return int(text)


def _result(stored: str | None) -> str | None:
    """Return a stored result as a person reads it; ``None`` if none is stored."""
    if not has_result(stored):
        return None
    value: Any = decode_result(stored)
    return json.dumps(value, ensure_ascii=False, indent=2)
