"""Say what became of a key: it happened, it did not, waive it, send it again, it is followed up, it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends
from starlette.responses import RedirectResponse, Response

from airflow_guard.core.decisions import Decision
from airflow_guard.core.errors import ResolutionError, StaleResolution
from airflow_guard.pages.forms.changing import change
from airflow_guard.pages.forms.posted import Posted, Refused, posted, require_edit
from airflow_guard.pages.forms.steps import Form
from airflow_guard.pages.page import NotThere, Page, business_date, page_of
from airflow_guard.pages.routes.asking import monitor
from airflow_guard.store import resolution
from airflow_guard.store.resolution import Judged

if TYPE_CHECKING:
    from datetime import date

    from airflow_guard.reading.key_records import KeyLife, KeyRow
    from airflow_guard.store.ledger import Ledger
    from airflow_guard.store.resolution import Settled

router = APIRouter(prefix="/forms")

FORM = Form("resolve", ("date", "key", "version", "decision", "reason"))
_KEY_HEX = 32
_TOLD = frozenset({"doubt", "late_report", "conflict", "take_over", "fail_over_key"})


@router.get("/resolve")
def ask(page: Annotated[Page, Depends(page_of)]) -> Response:
    """Show the form."""
    life = _life(page, page.ledger, page.text("date"), page.text("key"))
    require_edit(page, life.key.dag_id)
    return _form(page, life)


@router.post("/resolve")
def answer(sent: Annotated[Posted, Depends(posted)]) -> Response:
    """Preview, or do it."""
    FORM.check(sent)
    page, ledger, version = sent.page, sent.ledger, sent.text("version")
    life = _life(page, ledger, sent.text("date"), sent.text("key"))
    key = life.key
    require_edit(page, key.dag_id)
    try:
        decision = Decision.of(sent.text("decision"))
        settled = _resolve(
            page, ledger, key, version, decision, sent.text("reason"), dry_run=not sent.confirmed
        )
    except StaleResolution as error:
        now = page.url("key", ledger=ledger, date=key.key_date, key=key.key_hash)
        raise Refused(
            409, "This has changed meanwhile", str(error), [("The key as it stands now", now)]
        ) from error
    except ResolutionError as error:
        return _form(page, life, sent=sent, problem=str(error))
    if sent.confirmed:
        return _done(page, ledger, key)
    hashes = [each.key_hash for each in settled]
    return FORM.preview(
        sent, "form_resolve_preview.html", hashes, key=key, decision=decision, settled=settled
    )


def _life(page: Page, ledger: str, date_text: str, key_hash: str) -> KeyLife:
    key_date = business_date(date_text)
    if key_date is None or len(key_hash) != _KEY_HEX:
        raise NotThere
    readable = page.readable
    found = page.ledgers.ask(ledger, lambda opened: monitor(opened).key(key_date, key_hash, readable))
    if found is None:
        raise NotThere
    return found


def _resolve(
    page: Page, ledger: str, key: KeyRow, version: str, decision: Decision, reason: str, *, dry_run: bool
) -> list[Settled]:
    key_date: date = key.key_date
    judged = Judged.of(key_date, key.key_hash, version)

    def work(opened: Ledger) -> list[Settled]:
        return resolution.resolve(
            opened, key_date, key.key_hash, judged.owner_token, decision, actor=page.caller.name, reason=reason,
            dry_run=dry_run, ledger_name=ledger, content=judged.content,
        )  # fmt: skip

    return change(page, ledger, work)


def _form(page: Page, life: KeyLife, *, sent: Posted | None = None, problem: str = "") -> Response:
    return FORM.ask(
        page, "form_resolve.html", sent=sent, problem=problem, life=life, key=life.key, said=_said(life)
    )


def _done(page: Page, ledger: str, key: KeyRow) -> Response:
    url = page.url("key", ledger=ledger, date=key.key_date, key=key.key_hash, done=FORM.name)
    return RedirectResponse(url, status_code=303)


def _said(life: KeyLife) -> list[str]:
    """Return what is known of the doubt: what ``verify`` answered, what the last tries reported, newest first."""
    events = [
        f"{each.actor}: {each.reason}"
        for each in life.timeline
        if each.reason and (each.kind in _TOLD or each.actor == "verify")
    ]
    tries = [f"{each.identity.describe()}: {each.error}" for each in life.tries if each.error]
    return list(dict.fromkeys([*reversed(events[-3:]), *tries[:2]]))
