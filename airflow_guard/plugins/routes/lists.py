"""The lists: what is to be settled, keys, breaks, blocked duplicates, reconciliations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends
from starlette.responses import HTMLResponse

from airflow_guard.core.checks import BreakState, CheckOutcome
from airflow_guard.core.decisions import Situation
from airflow_guard.core.monitoring import AttentionKind
from airflow_guard.plugins.page import PAGE_SIZE, Page, page_of
from airflow_guard.plugins.queries import AGES, BREAK_TYPES, TO_SETTLE, Query
from airflow_guard.plugins.routes.asking import ask

if TYPE_CHECKING:
    from collections.abc import Iterable
    from enum import StrEnum

router = APIRouter()


@router.get("/attention")
def attention(page: Annotated[Page, Depends(page_of)]) -> HTMLResponse:
    """Show all that needs a person, the worst first."""
    query = Query(page)
    filters, readable = query.attention(), page.readable
    found = ask(page, lambda ledger: ledger.attention(readable, filters, limit=PAGE_SIZE, offset=page.offset))
    return page.render("attention.html", list=found, problems=query.problems, pairs=_pairs(AttentionKind))


@router.get("/open")
def to_settle(page: Annotated[Page, Depends(page_of)]) -> HTMLResponse:
    """Show the keys that wait for a person's word."""
    return _keys(page, "Keys to settle", TO_SETTLE)


@router.get("/keys")
def keys(page: Annotated[Page, Depends(page_of)]) -> HTMLResponse:
    """Show keys, whatever their state."""
    return _keys(page, "Keys", ())


def _keys(page: Page, title: str, default: tuple[Situation, ...]) -> HTMLResponse:
    query = Query(page)
    filters, readable = query.keys(default), page.readable
    found = ask(page, lambda ledger: ledger.keys(readable, filters, limit=PAGE_SIZE, offset=page.offset))
    return page.render(
        "keys.html", title=title, list=found, problems=query.problems, default=[each.value for each in default],
        pairs=_pairs(Situation),
    )  # fmt: skip


@router.get("/breaks")
def breaks(page: Annotated[Page, Depends(page_of)]) -> HTMLResponse:
    """Show breaks, the oldest first."""
    query = Query(page)
    filters, readable = query.breaks(), page.readable
    found = ask(page, lambda ledger: ledger.breaks(readable, filters, limit=PAGE_SIZE, offset=page.offset))
    return page.render(
        "breaks.html", list=found, problems=query.problems, pairs=_pairs(BreakState),
        types=[(each, each) for each in BREAK_TYPES], ages=list(AGES.items()),
    )  # fmt: skip


@router.get("/blocked")
def blocked(page: Annotated[Page, Depends(page_of)]) -> HTMLResponse:
    """Show the tries that found work done or were kept from it: who tried, and when."""
    query = Query(page)
    filters, readable = query.tries(), page.readable
    found = ask(page, lambda ledger: ledger.blocked(readable, filters, limit=PAGE_SIZE, offset=page.offset))
    return page.render("blocked.html", list=found, problems=query.problems)


@router.get("/checks")
def checks(page: Annotated[Page, Depends(page_of)]) -> HTMLResponse:
    """Show reconciliations, the newest date first."""
    query = Query(page)
    filters, readable = query.checks(), page.readable
    found = ask(page, lambda ledger: ledger.checks(readable, filters, limit=PAGE_SIZE, offset=page.offset))
    return page.render("checks.html", list=found, problems=query.problems, pairs=_pairs(CheckOutcome))


def _pairs(values: Iterable[StrEnum]) -> list[tuple[str, str]]:
    """Return what can be chosen: the value in the address, and the words."""
    return [(each.value, each.value) for each in values]
