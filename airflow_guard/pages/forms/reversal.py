"""Say what became of the reversal of a first effect, which a rerun began and nobody saw the end of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends
from starlette.responses import RedirectResponse, Response

from airflow_guard.acts.reruns import settle_reversal
from airflow_guard.core.decisions import check_words
from airflow_guard.core.errors import ResolutionError
from airflow_guard.pages.forms.changing import change
from airflow_guard.pages.forms.posted import Posted, Refused, posted, require_edit
from airflow_guard.pages.forms.steps import Form
from airflow_guard.pages.page import NotThere, Page, business_date, page_of
from airflow_guard.pages.routes.asking import monitor

if TYPE_CHECKING:
    from airflow_guard.reading.key_records import KeyLife

router = APIRouter(prefix="/forms")

FORM = Form("reversal", ("date", "key", "version", "happened", "reason"))
_KEY_HEX = 32


@router.get("/reversal")
def ask(page: Annotated[Page, Depends(page_of)]) -> Response:
    """Show the form."""
    life = _life(page, page.ledger, page.text("date"), page.text("key"))
    return FORM.ask(page, "form_reversal.html", life=life, key=life.key)


@router.post("/reversal")
def answer(sent: Annotated[Posted, Depends(posted)]) -> Response:
    """Preview, or do it."""
    FORM.check(sent)
    page = sent.page
    life = _life(page, sent.ledger, sent.text("date"), sent.text("key"))
    key, happened = life.key, sent.text("happened")
    now = page.url("key", ledger=sent.ledger, date=key.key_date, key=key.key_hash)
    try:
        actor, reason = check_words(page.caller.name, sent.text("reason"))
        _check_answer(happened)
    except ResolutionError as error:
        return FORM.ask(page, "form_reversal.html", sent=sent, problem=str(error), life=life, key=key)
    try:
        count = change(
            page,
            sent.ledger,
            lambda ledger: settle_reversal(
                ledger, key.key_date, key.key_hash, happened=happened == "yes", actor=actor, reason=reason,
                owner_token=sent.text("version"), dry_run=not sent.confirmed,
            ),
        )  # fmt: skip
    except ResolutionError as error:
        links = [("The key as it stands now", now)]
        raise Refused(409, "This has changed meanwhile", str(error), links) from error
    if not sent.confirmed:
        return FORM.preview(sent, "form_reversal_preview.html", count, key=key, count=count)
    return RedirectResponse(f"{now}&done=reversal", status_code=303)


def _check_answer(happened: str) -> None:
    if happened not in ("yes", "no"):
        raise ResolutionError("Say whether the reversal happened.")


def _life(page: Page, ledger: str, day: str, key_hash: str) -> KeyLife:
    at, readable = business_date(day), page.readable
    if at is None or len(key_hash) != _KEY_HEX:
        raise NotThere
    life = page.ledgers.ask(ledger, lambda opened: monitor(opened).key(at, key_hash, readable))
    if life is None:
        raise NotThere
    require_edit(page, life.key.dag_id)
    return life
