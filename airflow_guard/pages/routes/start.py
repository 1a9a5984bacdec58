"""The start page: the calendar, the figures of the day, and what needs a person first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends
from starlette.responses import HTMLResponse

from airflow_guard.pages import charts
from airflow_guard.pages.page import Page, page_of
from airflow_guard.pages.queries import Query
from airflow_guard.pages.routes.asking import monitor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_guard.pages.charts import Chart
    from airflow_guard.reading import lists
    from airflow_guard.reading.calendar_records import Calendar, DayCell
    from airflow_guard.reading.lists import AttentionItem
    from airflow_guard.reading.monitor import Monitor
    from airflow_guard.store.ledger import Ledger

router = APIRouter()

SHOWN_DAYS = 31
_FIRST_ITEMS = 6
_DAGS_AT_ONCE = 100


@dataclass(frozen=True)
class Figures:
    """What a business date comes to, over all DAGs."""

    at: date
    dags: int
    documents: int
    executed: int
    held_off: int
    in_doubt: int
    rejected: int
    failed: int
    breaks_open: int

    @staticmethod
    def of(at: date, cells: Sequence[DayCell]) -> Figures:
        """Add up the cells of a date."""

        def total(name: str) -> int:
            return sum(getattr(cell, name) for cell in cells)

        names = (
            "documents",
            "executed",
            "in_doubt",
            "rejected",
            "failed",
            "breaks_open",
        )
        held_off = sum(cell.asks.held_off for cell in cells)
        return Figures(at, len(cells), held_off=held_off, **{name: total(name) for name in names})


@dataclass(frozen=True)
class Overview:
    """What the start page shows of one ledger.

    :param newest: the newest business date that has anything; ``None``: the ledger is empty, or nothing of it may
        be read.
    """

    newest: date | None
    calendar: Calendar | None = None
    days: Sequence[date] = ()
    dag_ids: Sequence[str] = ()
    more_dags: int = 0
    figures: Figures | None = None
    attention: lists.Page[AttentionItem] | None = None
    charts: Sequence[Chart] = ()

    @property
    def earlier(self) -> date:
        """The last date of the calendar before this one."""
        return self.days[0] - timedelta(days=1)

    @property
    def later(self) -> date:
        """The last date of the calendar after this one."""
        return self.days[-1] + timedelta(days=len(self.days))


@router.get("/")
def start(page: Annotated[Page, Depends(page_of)]) -> HTMLResponse:
    """Show every ledger, or the one that is chosen."""
    query = Query(page)
    until, at = query.date("until"), query.date("date")
    readable = page.readable

    def question(ledger: Ledger) -> Overview:
        return overview(monitor(ledger), readable, until, at)

    wanted = page.wanted
    answers = page.ledgers.ask_all(wanted, question) if readable else {}
    return page.render("start.html", answers=answers, problems=query.problems, readable=readable)


def overview(
    ledger: Monitor, readable: frozenset[str], until: date | None, at: date | None, dag_id: str | None = None
) -> Overview:
    """Read what the start page, or the tab of a DAG, shows.

    :param until: the last date of the calendar; ``None``: the newest that has anything.
    :param at: the date of the figures; ``None``: the last of the calendar.
    :param dag_id: only this DAG.
    """
    from airflow_guard.reading.lists import AttentionFilters

    if dag_id is not None:
        readable &= {dag_id}
    newest = newest_date(ledger, readable)
    if newest is None:
        return Overview(None)
    end = until or newest
    begin = end - timedelta(days=SHOWN_DAYS - 1)
    calendar = ledger.calendar(begin, end, readable)
    shown = calendar.dag_ids[:_DAGS_AT_ONCE]
    figures_at = at if at and begin <= at <= end else end
    drawn = [charts.volume(calendar.volumes)]
    drawn += charts.variances(ledger.variance_over_time(begin, end, readable), at_most=3)
    return Overview(
        newest,
        calendar,
        [begin + timedelta(days=each) for each in range(SHOWN_DAYS)],
        shown,
        len(calendar.dag_ids) - len(shown),
        Figures.of(figures_at, calendar.of_date(figures_at)),
        ledger.attention(readable, AttentionFilters(), limit=_FIRST_ITEMS),
        [chart for chart in drawn if chart is not None],
    )


def newest_date(ledger: Monitor, readable: frozenset[str]) -> date | None:
    """Return the newest business date that has a try, a check or a key."""
    from airflow_guard.reading.lists import CheckFilters, KeyFilters, TryFilters

    parts = (
        ledger.tries(readable, TryFilters(), limit=1).rows,
        ledger.checks(readable, CheckFilters(), limit=1).rows,
    )
    dates = [row.business_date for rows in parts for row in rows]
    if not dates:
        dates = [row.business_date for row in ledger.keys(readable, KeyFilters(), limit=1).rows]
    return max(dates, default=None)
