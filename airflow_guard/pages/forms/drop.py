"""Drop documents that were listed and are not done: they are not to be done any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends
from starlette.responses import Response

from airflow_guard.acts import drops
from airflow_guard.acts.concerned import dags_of_namespace
from airflow_guard.core.decisions import check_words
from airflow_guard.core.errors import DocumentError, ResolutionError
from airflow_guard.core.keys import normalise_document
from airflow_guard.pages.forms.changing import change
from airflow_guard.pages.forms.permission import require_edit_of
from airflow_guard.pages.forms.posted import Posted, posted
from airflow_guard.pages.forms.steps import Form, is_as_seen
from airflow_guard.pages.page import NotThere, Page, business_date, page_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_guard.store.ledger import Ledger

router = APIRouter(prefix="/forms")

FORM = Form("drop", ("namespace", "operation", "date", "cycle", "which", "documents", "reason"))
_EVERY, _NAMED, _WHOLE = "all", "named", "whole"


@router.get("/drop")
def ask(page: Annotated[Page, Depends(page_of)]) -> Response:
    """Show the form."""
    if not page.caller.editable:
        raise NotThere
    return _ask(page)


@router.post("/drop")
def answer(sent: Annotated[Posted, Depends(posted)]) -> Response:
    """Preview, or do it."""
    FORM.check(sent)
    page = sent.page
    _require_edit(sent)
    try:
        actor, reason = check_words(page.caller.name, sent.text("reason"))
        place, documents = _place(sent), _documents(sent)
        seen = change(
            page, sent.ledger, lambda ledger: _drop(ledger, place, documents, actor, reason, dry_run=True)
        )
        plan = [(each.key_hash, each.before) for each in seen if not each.repeated]
        if not sent.confirmed:
            return FORM.preview(sent, "form_drop_preview.html", plan, dropped=seen, place=place)
        if plan and not is_as_seen(sent, plan):
            return FORM.preview(
                sent,
                "form_drop_preview.html",
                plan,
                changed="The ledger has changed meanwhile.",
                dropped=seen,
                place=place,
            )
        change(
            page, sent.ledger, lambda ledger: _drop(ledger, place, documents, actor, reason, dry_run=False)
        )
    except ResolutionError as error:
        return _ask(page, sent=sent, problem=str(error))
    text = f"{len(seen):,} document{'' if len(seen) == 1 else 's'} of {place.describe()} dropped."
    where = {
        "namespace": place.key_namespace,
        "operation": place.operation,
        "from": place.business_date,
        "to": place.business_date,
    }
    links = [("The keys of this date", page.url("keys", ledger=sent.ledger, **where))]
    return page.render("form_done.html", title="Dropped", text=text, links=links)


def _require_edit(sent: Posted) -> None:
    namespace = sent.text("namespace")
    if not namespace:
        raise NotThere
    used = change(sent.page, sent.ledger, lambda ledger: dags_of_namespace(ledger.database, namespace))
    require_edit_of(sent.page, used | {namespace})


def _place(sent: Posted) -> drops.Place:
    day = business_date(sent.text("date"))
    if day is None:
        raise ResolutionError("Say which business date, as YYYY-MM-DD.")
    if not sent.text("operation"):
        raise ResolutionError("Say which operation.")
    return drops.Place(sent.text("namespace"), sent.text("operation"), day, sent.text("cycle"))


def _documents(sent: Posted) -> list[str | None] | None:
    which = sent.text("which")
    if which == _EVERY:
        return None
    if which == _WHOLE:
        return [None]
    named = [line.strip() for line in sent.text("documents").splitlines() if line.strip()]
    if which != _NAMED or not named:
        raise ResolutionError("Name the documents, one in each line, or choose all.")
    return [_as_listed(each) for each in dict.fromkeys(named)]


def _as_listed(document: str) -> str:
    try:
        return normalise_document(document)
    except DocumentError:
        return document


def _drop(
    ledger: Ledger,
    place: drops.Place,
    documents: Sequence[str | None] | None,
    actor: str,
    reason: str,
    *,
    dry_run: bool,
) -> list[drops.Dropped]:
    return drops.drop(ledger, place, documents, actor=actor, reason=reason, dry_run=dry_run)


def _ask(page: Page, *, sent: Posted | None = None, problem: str = "") -> Response:
    return FORM.ask(
        page, "form_drop.html", sent=sent, problem=problem, dags=sorted(page.caller.editable & page.readable)
    )
