"""Explain or resolve breaks, one or several: all of them, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends
from starlette.responses import Response

from airflow_guard.core.checks import BreakState
from airflow_guard.core.decisions import check_words
from airflow_guard.core.errors import ResolutionError, StaleResolution
from airflow_guard.pages.forms.changing import change
from airflow_guard.pages.forms.posted import Posted, posted, require_edit
from airflow_guard.pages.forms.steps import Form
from airflow_guard.pages.page import NotThere, Page, page_of
from airflow_guard.pages.routes.asking import monitor
from airflow_guard.store.breaks import Breaks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_guard.reading.check_records import BreakRow
    from airflow_guard.store.ledger import Ledger

router = APIRouter(prefix="/forms")

FORM = Form("break", ("id", "decision", "reason"))
_AT_ONCE = 50
_LARGEST_ID = 2**63 - 1
_TARGETS = {"explain": BreakState.EXPLAINED, "resolve": BreakState.RESOLVED}


@router.get("/break")
def ask(page: Annotated[Page, Depends(page_of)]) -> Response:
    """Show the form about the breaks that were chosen."""
    return _ask(page, _rows(page, page.ledger, page.request.query_params.getlist("id")))


@router.post("/break")
def answer(sent: Annotated[Posted, Depends(posted)]) -> Response:
    """Preview, or do it."""
    FORM.check(sent)
    page, ledger = sent.page, sent.ledger
    seen = dict(_seen(each) for each in sent.all("id"))
    rows = _rows(page, ledger, list(seen))
    target = _TARGETS.get(sent.text("decision"))
    if target is None:
        return _ask(page, rows, sent=sent, problem="Say what became of it: explained, or resolved.")
    try:
        actor, reason = check_words(page.caller.name, sent.text("reason"))
    except ResolutionError as error:
        return _ask(page, rows, sent=sent, problem=str(error))

    def work(opened: Ledger) -> None:
        breaks = Breaks(opened.database)
        write = breaks.explain if target is BreakState.EXPLAINED else breaks.resolve
        write([int(each) for each in seen], actor=actor, reason=reason, dry_run=not sent.confirmed,
              seen={int(each): version for each, version in seen.items()})  # fmt: skip

    try:
        change(page, ledger, work)
    except ResolutionError as error:
        if not (sent.confirmed or isinstance(error, StaleResolution)):
            return _ask(page, rows, sent=sent, problem=str(error))
        return _preview(sent, _rows(page, ledger, list(seen)), target, changed=str(error))
    return _done(page, ledger, rows, target) if sent.confirmed else _preview(sent, rows, target)


def _seen(text: str) -> tuple[str, str]:
    """Return the id that a field names, and the version of the break as it was shown."""
    break_id, _, version = text.partition(".")
    return break_id, version


def _may(row: BreakRow, target: BreakState) -> bool:
    return row.may_explain if target is BreakState.EXPLAINED else row.may_resolve


def _rows(page: Page, ledger: str, texts: Sequence[str]) -> list[BreakRow]:
    if not texts or not all(each.isascii() and each.isdigit() and int(each) <= _LARGEST_ID for each in texts):
        raise NotThere
    wanted, readable = sorted({int(each) for each in texts}), page.readable
    if len(wanted) > _AT_ONCE:
        raise NotThere
    rows = list(page.ledgers.ask(ledger, lambda opened: monitor(opened).picked_breaks(wanted, readable)))
    if len(rows) < len(wanted):
        raise NotThere
    for dag_id in sorted({row.dag_id for row in rows}):
        require_edit(page, dag_id)
    return rows


def _preview(sent: Posted, rows: Sequence[BreakRow], target: BreakState, *, changed: str = "") -> Response:
    fits = all(_may(row, target) for row in rows)
    now = {"id": [f"{row.id}.{row.version}" for row in rows]}
    return FORM.preview(
        sent, "form_break_preview.html", "", changed=changed, filled=now, rows=rows, target=target, fits=fits
    )  # fmt: skip


def _ask(page: Page, rows: Sequence[BreakRow], *, sent: Posted | None = None, problem: str = "") -> Response:
    decisions = [name for name, target in _TARGETS.items() if all(_may(row, target) for row in rows)]
    return FORM.ask(page, "form_break.html", sent=sent, problem=problem, rows=rows, decisions=decisions)


def _done(page: Page, ledger: str, rows: Sequence[BreakRow], target: BreakState) -> Response:
    links = [("The list of breaks", page.url("breaks", ledger=ledger))]
    if len(rows) == 1:
        links.insert(0, ("The break as it stands now", page.url("break", ledger=ledger, id=rows[0].id)))
    count = "1 break is" if len(rows) == 1 else f"{len(rows):,} breaks are"
    return page.render("form_done.html", title="Recorded", text=f"{count} {target.value}.", links=links)
