"""Purge: what is done and old goes, and a horizon stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends
from starlette.responses import Response

from airflow_guard.acts.concerned import dags_of
from airflow_guard.acts.purging import Purge, Purged
from airflow_guard.core.dates import parse_business_date
from airflow_guard.core.decisions import check_words
from airflow_guard.core.errors import BusinessDateError, ResolutionError
from airflow_guard.pages.forms.changing import change
from airflow_guard.pages.forms.permission import require_edit_everywhere, require_edit_of
from airflow_guard.pages.forms.posted import Posted, posted
from airflow_guard.pages.forms.steps import Form, is_as_seen
from airflow_guard.pages.page import NotThere, Page, page_of

if TYPE_CHECKING:
    from datetime import date

    from airflow_guard.store.ledger import Ledger

router = APIRouter(prefix="/forms")

FORM = Form("purge", ("namespace", "operation", "until", "reason"))


@router.get("/purge")
def ask(page: Annotated[Page, Depends(page_of)]) -> Response:
    """Show the form."""
    if not page.caller.editable:
        raise NotThere
    return FORM.ask(page, "form_purge.html")


@router.post("/purge")
def answer(sent: Annotated[Posted, Depends(posted)]) -> Response:
    """Preview, or do it."""
    FORM.check(sent)
    page = sent.page
    _require_edit(sent)
    try:
        actor, reason = check_words(page.caller.name, sent.text("reason"))
        until = parse_business_date(sent.text("until"), source="the form")
        return _purge(sent, until, actor, reason)
    except (ResolutionError, BusinessDateError) as error:
        return FORM.ask(page, "form_purge.html", sent=sent, problem=str(error))


def _purge(sent: Posted, until: date, actor: str, reason: str) -> Response:
    page = sent.page

    def purge(ledger: Ledger) -> Purge:
        namespace, operation = sent.text("namespace") or None, sent.text("operation") or None
        return Purge(ledger, until, actor, reason, namespace, operation)

    planned, begun = change(
        page, sent.ledger, lambda ledger: (purge(ledger).plan(), purge(ledger).was_begun())
    )
    if not sent.confirmed:
        if not any(each.found for each in planned):
            raise ResolutionError(f"There is nothing to remove up to {until}.")
        return _preview(sent, planned, until)
    if not begun and not is_as_seen(sent, _plan(planned)):
        return _preview(
            sent, planned, until, changed="The ledger is not as it was shown. Nothing was removed."
        )
    change(page, sent.ledger, lambda ledger: list(purge(ledger).run()))
    text = f"What was done and old is gone, up to {until}. Claims of these operations for {until} and before are refused."
    links = [("The overview", page.url("", ledger=sent.ledger))]
    return page.render("form_done.html", title="Removed", text=text, links=links)


def _require_edit(sent: Posted) -> None:
    """Refuse who may not edit all DAGs whose keys would go; without an operation that is every DAG."""
    namespace, operation = sent.text("namespace"), sent.text("operation")
    if not namespace or not operation:
        require_edit_everywhere(sent.page)
        return
    used = change(sent.page, sent.ledger, lambda ledger: dags_of(ledger.database, [(namespace, operation)]))
    require_edit_of(sent.page, used | {namespace})


def _plan(planned: list[Purged]) -> list[Any]:
    return [
        [*each.name, each.keys, each.task_runs, each.checks, each.breaks, each.kept, each.once_per_document]
        for each in planned
    ]


def _preview(sent: Posted, planned: list[Purged], until: date, *, changed: str = "") -> Response:
    return FORM.preview(
        sent, "form_purge_preview.html", _plan(planned), changed=changed, planned=planned, until=until,
        nothing=not any(each.found for each in planned),
    )  # fmt: skip
