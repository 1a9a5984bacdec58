"""The lists: what is to be settled, keys, breaks, blocked duplicates, reconciliations; what can be changed here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends
from starlette.responses import HTMLResponse

from airflow_guard.acts.registry import acts
from airflow_guard.core.checks import BreakState, CheckOutcome
from airflow_guard.core.decisions import Situation
from airflow_guard.pages.forms.person import PagePerson
from airflow_guard.pages.page import Page, page_of
from airflow_guard.pages.queries import AGES, BREAK_TYPES, TO_SETTLE, Query
from airflow_guard.pages.routes.asking import Listing, list_of
from airflow_guard.reading.check_records import BreakRow
from airflow_guard.reading.key_records import KeyRow
from airflow_guard.reading.lists import (
    AttentionKind,
    place_of_break,
    place_of_item,
    place_of_key,
    place_of_run,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from enum import StrEnum


# -- The lists: what is to be settled, keys, breaks, blocked duplicates, reconciliations ---------------------

router = APIRouter()


@router.get("/attention")
def attention(page: Annotated[Page, Depends(page_of)]) -> HTMLResponse:
    """Show all that needs a person, the worst first."""
    query = Query(page)
    filters, readable = query.attention(), page.readable
    found = list_of(
        page,
        lambda look, limit, offset: look.attention(readable, filters, limit=limit, offset=offset),
        place_of_item,
    )
    return _render(page, "attention.html", found, query, pairs=_pairs(AttentionKind))


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
    found: Listing[KeyRow] = list_of(
        page,
        lambda look, limit, offset: look.keys(readable, filters, limit=limit, offset=offset),
        place_of_key,
    )
    editable = page.caller.editable
    choosable = found.ledgers_where(lambda key: key.decisions and key.dag_id in editable) if default else []
    return _render(
        page, "keys.html", found, query, title=title, default=[each.value for each in default],
        pairs=_pairs(Situation), choosable=choosable,
    )  # fmt: skip


@router.get("/breaks")
def breaks(page: Annotated[Page, Depends(page_of)]) -> HTMLResponse:
    """Show breaks, the oldest first."""
    query = Query(page)
    filters, readable = query.breaks(), page.readable
    found: Listing[BreakRow] = list_of(
        page,
        lambda look, limit, offset: look.breaks(readable, filters, limit=limit, offset=offset),
        place_of_break(filters),
    )
    editable = page.caller.editable
    return _render(
        page, "breaks.html", found, query, pairs=_pairs(BreakState), types=[(each, each) for each in BREAK_TYPES],
        ages=list(AGES.items()),
        choosable=found.ledgers_where(lambda row: row.may_resolve and row.dag_id in editable),
    )  # fmt: skip


@router.get("/blocked")
def blocked(page: Annotated[Page, Depends(page_of)]) -> HTMLResponse:
    """Show the tries that found work done or were kept from it: who tried, and when."""
    query = Query(page)
    filters, readable = query.tries(), page.readable
    found = list_of(
        page,
        lambda look, limit, offset: look.blocked(readable, filters, limit=limit, offset=offset),
        place_of_run,
    )
    return _render(page, "blocked.html", found, query)


@router.get("/checks")
def checks(page: Annotated[Page, Depends(page_of)]) -> HTMLResponse:
    """Show reconciliations, the newest date first."""
    query = Query(page)
    filters, readable = query.checks(), page.readable
    found = list_of(
        page,
        lambda look, limit, offset: look.checks(readable, filters, limit=limit, offset=offset),
        place_of_run,
    )
    return _render(page, "checks.html", found, query, pairs=_pairs(CheckOutcome))


def _render(page: Page, template: str, found: Listing[Any], query: Query, **more: Any) -> HTMLResponse:
    return page.render(template, listing=found, list=found.part, problems=query.problems, **more)


def _pairs(values: Iterable[StrEnum]) -> list[tuple[str, str]]:
    """Return what can be chosen: the value in the address, and the words."""
    return [(each.value, each.value) for each in values]


# -- What can be changed here, for who may -------------------------------------------------------------------


@router.get("/changes")
def changes(page: Annotated[Page, Depends(page_of)]) -> HTMLResponse:
    """Show the forms."""
    person = PagePerson(page.caller)
    everywhere = person.edits_everywhere()
    offered = [act for act in acts() if act.entry and (everywhere or not act.everywhere)]
    return page.render("changes.html", some=bool(person.dags), acts=offered, ledgers=page.wanted)
