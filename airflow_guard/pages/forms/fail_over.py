"""Record a fail-over that may have lost commits, see which are open, and close them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends
from starlette.responses import Response

from airflow_guard.acts import fail_over
from airflow_guard.core.decisions import check_words
from airflow_guard.core.errors import ResolutionError
from airflow_guard.pages.forms.changing import change
from airflow_guard.pages.forms.permission import require_edit_everywhere
from airflow_guard.pages.forms.posted import Posted, posted
from airflow_guard.pages.forms.steps import Form, is_as_seen
from airflow_guard.pages.page import Page, page_of
from airflow_guard.store import fail_overs
from airflow_guard.store.events import storable

if TYPE_CHECKING:
    from airflow_guard.acts.fail_over import ClosedFailOver, Recorded
    from airflow_guard.store.fail_overs import OpenFailOver
    from airflow_guard.store.ledger import Ledger

router = APIRouter(prefix="/forms")

FORM = Form("fail_over", ("action", "lost_since", "reason"))
_CLOSE = "close"


@router.get("/fail-over")
def ask(page: Annotated[Page, Depends(page_of)]) -> Response:
    """Show what is open and what was closed, and the forms."""
    require_edit_everywhere(page)
    return _ask(page)


@router.post("/fail-over")
def answer(sent: Annotated[Posted, Depends(posted)]) -> Response:
    """Preview, or do it."""
    FORM.check(sent)
    page = sent.page
    require_edit_everywhere(page)
    try:
        actor, reason = check_words(page.caller.name, sent.text("reason"))
        if sent.text("action") == _CLOSE:
            return _close(sent, actor, reason)
        return _record(sent, _instant(sent.text("lost_since")), actor, reason)
    except ResolutionError as error:
        return _ask(page, sent=sent, problem=str(error))


def _record(sent: Posted, lost_since: datetime, actor: str, reason: str) -> Response:
    def work(ledger: Ledger, *, dry_run: bool) -> Recorded:
        return fail_over.record(ledger, lost_since, actor=actor, reason=reason, dry_run=dry_run)

    open_ = _open(sent)
    mine = (lost_since, storable(actor, 250), storable(reason))
    done = any((each.lost_since, each.actor, each.reason) == mine for each in open_)
    if sent.confirmed and (done or is_as_seen(sent, _plan(open_))):
        change(sent.page, sent.ledger, lambda ledger: work(ledger, dry_run=False))
        text = (
            f"Commits since {lost_since:%Y-%m-%d %H:%M:%S} UTC may be lost. Effects that had begun are in doubt. What the "
            "ledger does not know is in doubt when a task asks for it, until the fail-over is closed."
        )
        return _done(sent, "Recorded", text)
    recorded = change(sent.page, sent.ledger, lambda ledger: work(ledger, dry_run=True))
    changed = "Another fail-over was recorded, or one was closed, meanwhile. Nothing was changed."
    return FORM.preview(
        sent, "form_fail_over_preview.html", _plan(open_), changed=changed if sent.confirmed else "", open=open_,
        recorded=recorded, lost_since=lost_since,
    )  # fmt: skip


def _close(sent: Posted, actor: str, reason: str) -> Response:
    open_ = _open(sent)
    if sent.confirmed and not is_as_seen(sent, _plan(open_)):
        if not open_ and _closed_by(sent, actor, reason):
            return _closed(sent)
        return _preview_of_closing(sent, open_, changed=True)
    if not open_:
        raise ResolutionError("No fail-over is open.")
    if not sent.confirmed:
        return _preview_of_closing(sent, open_)
    try:
        change(sent.page, sent.ledger, lambda ledger: fail_over.close(ledger, actor=actor, reason=reason))
    except ResolutionError:
        # The second half of a double click, which came while the first one was at it?
        if not _closed_by(sent, actor, reason):
            return _preview_of_closing(sent, _open(sent), changed=True)
    return _closed(sent)


def _preview_of_closing(sent: Posted, open_: list[OpenFailOver], *, changed: bool = False) -> Response:
    why = "Another fail-over was recorded, or one was closed, meanwhile. Nothing was changed."
    return FORM.preview(
        sent, "form_fail_over_preview.html", _plan(open_), changed=why if changed else "", open=open_, recorded=None
    )  # fmt: skip


def _closed_by(sent: Posted, actor: str, reason: str) -> bool:
    last = change(sent.page, sent.ledger, lambda ledger: fail_over.closed(ledger.database, 1))
    return any(
        (each.closed_by, each.close_reason) == (storable(actor, 250), storable(reason)) for each in last
    )


def _closed(sent: Posted) -> Response:
    return _done(sent, "Closed", "What the ledger does not know counts as new again.")


def _open(sent: Posted) -> list[OpenFailOver]:
    return change(sent.page, sent.ledger, lambda ledger: fail_overs.listed(ledger.database))


def _plan(open_: list[OpenFailOver]) -> list[Any]:
    return [each.id for each in open_]


def _instant(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ResolutionError("Say since when commits may be lost: 2026-01-31 02:10:00, in UTC.") from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _done(sent: Posted, title: str, text: str) -> Response:
    page = sent.page
    links = [
        ("Fail-overs", page.url("forms/fail-over", ledger=sent.ledger)),
        ("What is to be settled", page.url("open", ledger=sent.ledger)),
    ]
    return page.render("form_done.html", title=title, text=text, links=links)


def _ask(page: Page, *, sent: Posted | None = None, problem: str = "") -> Response:
    def work(ledger: Ledger) -> tuple[list[OpenFailOver], list[ClosedFailOver]]:
        return fail_overs.listed(ledger.database), fail_over.closed(ledger.database)

    open_, closed = page.ledgers.ask(sent.ledger if sent else page.ledger, work)
    return FORM.ask(page, "form_fail_over.html", sent=sent, problem=problem, open=open_, closed=closed)
