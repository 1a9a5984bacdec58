"""One DAG on one business date."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.responses import HTMLResponse

from airflow_guard.core.monitoring import Day, KeyFilters, KeyRow
from airflow_guard.core.monitoring import Page as Part
from airflow_guard.plugins.page import NotThere, Page, business_date, page_of
from airflow_guard.plugins.routes.asking import ask_for_one
from airflow_guard.store.monitoring.monitor import Monitor

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
