"""The tabs on a DAG, a run, a task and a task instance: the same data, cut to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends
from starlette.responses import HTMLResponse

from airflow_guard.pages.page import Page, page_of
from airflow_guard.pages.queries import Query, map_index
from airflow_guard.pages.routes.asking import monitor
from airflow_guard.pages.routes.start import overview
from airflow_guard.reading.lists import BreakFilters, CheckFilters, KeyFilters, TryFilters
from airflow_guard.reading.scope import NotThere

if TYPE_CHECKING:
    from airflow_guard.reading.check_records import BreakRow, CheckRow
    from airflow_guard.reading.key_records import KeyRow, TryRow
    from airflow_guard.reading.lists import Page as Part
    from airflow_guard.store.ledger import Ledger

router = APIRouter(prefix="/tab")

_AT_ONCE = 25


@dataclass(frozen=True)
class Cut:
    """What a ledger knows of a run, task or task instance."""

    tries: Part[TryRow]
    keys: Part[KeyRow]
    breaks: Part[BreakRow]
    checks: Part[CheckRow]


@router.get("/dag")
def dag(page: Annotated[Page, Depends(page_of)]) -> HTMLResponse:
    """Show a DAG: its calendar, what needs a person, its charts."""
    dag_id = _dag(page)
    readable = page.readable
    query = Query(page)
    until, at = query.date("until"), query.date("date")
    answers = page.ledgers.ask_all(
        page.wanted, lambda ledger: overview(monitor(ledger), readable, until, at, dag_id)
    )
    return page.render("tab_dag.html", dag_id=dag_id, answers=answers)


@router.get("/run")
def run(page: Annotated[Page, Depends(page_of)]) -> HTMLResponse:
    """Show a DAG run."""
    return _cut(page, run_id=_wanted(page, "run_id"))


@router.get("/task")
def task(page: Annotated[Page, Depends(page_of)]) -> HTMLResponse:
    """Show a task, over all runs."""
    return _cut(page, task_id=_wanted(page, "task_id"))


@router.get("/task_instance")
def task_instance(page: Annotated[Page, Depends(page_of)]) -> HTMLResponse:
    """Show a task instance; what is not mapped has the literal ``{MAP_INDEX}`` in its address."""
    return _cut(
        page,
        run_id=_wanted(page, "run_id"),
        task_id=_wanted(page, "task_id"),
        map_index=map_index(page.text("map_index")),
    )


def _cut(page: Page, **cut: Any) -> HTMLResponse:
    dag_id, readable = _dag(page), page.readable
    cut = {"dag_id": dag_id, **cut}

    def question(ledger: Ledger) -> Cut:
        look = monitor(ledger)
        return Cut(
            look.tries(readable, TryFilters(**cut), limit=_AT_ONCE),
            look.keys(readable, KeyFilters(**cut), limit=_AT_ONCE),
            look.breaks(readable, BreakFilters(**cut), limit=_AT_ONCE),
            look.checks(readable, CheckFilters(**cut), limit=_AT_ONCE),
        )

    answers = page.ledgers.ask_all(page.wanted, question)
    return page.render("tab_cut.html", cut=cut, answers=answers)


def _dag(page: Page) -> str:
    dag_id = _wanted(page, "dag_id")
    if dag_id not in page.readable:
        raise NotThere
    return dag_id


def _wanted(page: Page, name: str) -> str:
    text = page.text(name)
    if not text:
        raise NotThere
    return text
