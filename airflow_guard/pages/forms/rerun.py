"""Authorise that what is done is executed once more: keys, or the dates of an operation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends
from starlette.responses import Response

from airflow_guard.acts import rerun
from airflow_guard.acts.rerun import Request
from airflow_guard.core.dates import parse_business_date
from airflow_guard.core.decisions import check_words
from airflow_guard.core.errors import BusinessDateError, DocumentError, ResolutionError, StaleResolution
from airflow_guard.core.keys import normalise_document
from airflow_guard.core.reruns import expiry_of
from airflow_guard.pages.forms.changing import change
from airflow_guard.pages.forms.posted import Posted, posted, require_edit
from airflow_guard.pages.forms.settle import judged_of
from airflow_guard.pages.forms.steps import Form, is_as_seen
from airflow_guard.pages.page import NotThere, Page, page_of
from airflow_guard.pages.routes.asking import monitor
from airflow_guard.reading.listing import Selection

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from airflow_guard.core.rerun_plan import RerunPlan
    from airflow_guard.reading.key_records import KeyRow

router = APIRouter(prefix="/forms")

FORM = Form(
    "rerun",
    (
        "pick",
        "dag",
        "operation",
        "start",
        "end",
        "cycle",
        "documents",
        "expires",
        "without_reversal",
        "reason",
    ),
)
EXPIRIES = {"4h": "4 hours", "24h": "24 hours", "3d": "3 days", "7d": "7 days", "31d": "31 days"}


@dataclass(frozen=True)
class _Chosen:
    """What is to be executed once more.

    :param others: how many keys of the dates stand elsewhere.
    """

    keys: list[KeyRow]
    others: dict[str, int]

    @property
    def plan(self) -> list[str]:
        """What the preview was about: these attempts."""
        return sorted(f"{key.key_date} {key.key_hash} {key.row.owner_token}" for key in self.keys)


@router.get("/rerun")
def ask(page: Annotated[Page, Depends(page_of)]) -> Response:
    """Show the form, for a key or for dates."""
    if page.text("pick"):
        for key in _picked(page, page.ledger, [page.text("pick")]):
            require_edit(page, key.dag_id)
    elif page.text("dag"):
        require_edit(page, page.text("dag"))
    elif not page.caller.editable:
        raise NotThere
    return _ask(page)


@router.post("/rerun")
def answer(sent: Annotated[Posted, Depends(posted)]) -> Response:
    """Preview, or do it."""
    FORM.check(sent)
    page = sent.page
    if not sent.text("pick"):
        require_edit(page, sent.text("dag"))
    try:
        actor, reason = check_words(page.caller.name, sent.text("reason"))
        request = Request(
            actor, reason, expiry_of(sent.text("expires")), sent.text("without_reversal") == "yes", sent.ledger
        )  # fmt: skip
        chosen = _chosen(sent)
        for dag_id in sorted({key.dag_id for key in chosen.keys}):
            require_edit(page, dag_id)
        if sent.confirmed:
            return _authorise(sent, chosen, request)
        plan = _planned(sent, chosen, request)
    except (ResolutionError, BusinessDateError, DocumentError) as error:
        return _ask(page, sent=sent, problem=str(error))
    return FORM.preview(sent, "form_rerun_preview.html", chosen.plan, plan=plan)


def _planned(sent: Posted, chosen: _Chosen, request: Request) -> RerunPlan:
    return change(
        sent.page,
        sent.ledger,
        lambda ledger: rerun.authorise(ledger, chosen.keys, chosen.others, request, dry_run=True),
    )


def _authorise(sent: Posted, chosen: _Chosen, request: Request) -> Response:
    page = sent.page

    if not is_as_seen(sent, chosen.plan):
        return _changed(sent, request, "What is done is not what was shown.")
    try:
        plan = change(
            page,
            sent.ledger,
            lambda ledger: rerun.authorise(ledger, chosen.keys, chosen.others, request, dry_run=False),
        )
    except StaleResolution as error:
        return _changed(sent, request, str(error))
    return page.render("form_rerun_done.html", plan=plan, ledger=sent.ledger, keys=chosen.keys)


def _changed(sent: Posted, request: Request, why: str) -> Response:
    chosen = _chosen(sent)
    plan = _planned(sent, chosen, request)
    return FORM.preview(
        sent, "form_rerun_preview.html", chosen.plan, changed=f"{why} Nothing was authorised.", plan=plan
    )  # fmt: skip


def _chosen(sent: Posted) -> _Chosen:
    page, ledger = sent.page, sent.ledger
    if sent.text("pick"):
        return _Chosen(_picked(page, ledger, sent.all("pick")), {})
    selection = _selection(sent)
    readable = page.readable
    return _Chosen(*change(page, ledger, lambda opened: rerun.done_keys(opened, selection, readable)))


def _selection(sent: Posted) -> Selection:
    start, end = _date(sent, "start"), _date(sent, "end") if sent.text("end") else None
    if not sent.text("operation"):
        raise ResolutionError("Say which operation.")
    if end is not None and end < start:
        raise ResolutionError(f"The last date {end} lies before the first one, {start}.")
    named = [line for line in sent.text("documents").splitlines() if line.strip()]
    return Selection(
        dag=sent.text("dag"), business_date=start, until=end or start, operation=sent.text("operation"),
        cycle=sent.text("cycle") or None, documents=[normalise_document(each) for each in named],
    )  # fmt: skip


def _date(sent: Posted, name: str) -> date:
    return parse_business_date(sent.text(name), source="the form")


def _picked(page: Page, ledger: str, picks: Sequence[str]) -> list[KeyRow]:
    wanted, readable = [(each.key_date, each.key_hash) for each in map(judged_of, picks)], page.readable
    found = list(page.ledgers.ask(ledger, lambda opened: monitor(opened).picked_keys(wanted, readable)))
    if len(found) < len(wanted):
        raise NotThere
    return found


def _ask(page: Page, *, sent: Posted | None = None, problem: str = "") -> Response:
    ledger = sent.ledger if sent else page.ledger
    picks = sent.all("pick") if sent else page.request.query_params.getlist("pick")
    keys = _picked(page, ledger, picks) if picks else []
    return FORM.ask(
        page, "form_rerun.html", sent=sent, problem=problem, keys=keys, expiries=EXPIRIES,
        dags=sorted(page.caller.editable & page.readable),
    )  # fmt: skip
