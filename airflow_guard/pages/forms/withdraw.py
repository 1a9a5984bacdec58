"""Take back what was authorised to be executed again, and is not used yet."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from datetime import date
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends
from starlette.responses import Response

from airflow_guard.acts.withdraw import Granted, Scope, granted, withdraw
from airflow_guard.core.dates import parse_business_date
from airflow_guard.core.decisions import check_words
from airflow_guard.core.errors import BusinessDateError, ResolutionError
from airflow_guard.pages.forms.changing import change
from airflow_guard.pages.forms.packing import packed, unpacked
from airflow_guard.pages.forms.posted import Posted, posted, require_edit
from airflow_guard.pages.forms.settle import judged_of
from airflow_guard.pages.forms.steps import Form
from airflow_guard.pages.page import NotThere, Page, page_of
from airflow_guard.pages.routes.asking import monitor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_guard.store.ledger import Ledger

router = APIRouter(prefix="/forms")

FORM = Form("withdraw", ("pick", "namespace", "operation", "start", "end", "packed", "reason"))
_AT_ONCE = 500


@router.get("/withdraw")
def ask(page: Annotated[Page, Depends(page_of)]) -> Response:
    """Show the form, for a key or for an operation."""
    if not page.caller.editable:
        raise NotThere
    return _ask(page)


@router.post("/withdraw")
def answer(sent: Annotated[Posted, Depends(posted)]) -> Response:
    """Preview, or do it."""
    FORM.check(sent)
    page = sent.page
    try:
        actor, reason = check_words(page.caller.name, sent.text("reason"))
        found = _shown(sent.text("packed")) if sent.confirmed else _found(sent)
        mine = _readable(page, sent.ledger, found)
    except (ResolutionError, BusinessDateError) as error:
        return _ask(page, sent=sent, problem=str(error))
    if not sent.confirmed:
        return _preview(sent, mine)
    try:
        change(page, sent.ledger, lambda ledger: withdraw(ledger, mine, actor=actor, reason=reason))
    except ResolutionError as error:
        return _changed(sent, str(error))
    count = "1 authorisation is" if len(mine) == 1 else f"{len(mine):,} authorisations are"
    links = [
        (each.key_text, page.url("key", ledger=sent.ledger, date=each.key_date, key=each.key_hash))
        for each in mine[:20]
    ]
    text = f"{count} taken back. The keys stay done."
    return page.render("form_done.html", title="Withdrawn", text=text, links=links)


def _changed(sent: Posted, why: str) -> Response:
    try:
        found = _readable(sent.page, sent.ledger, _found(sent))
    except ResolutionError:
        found = []
    return _preview(sent, found, changed=why)


def _found(sent: Posted) -> list[Granted]:
    if sent.text("pick"):
        judged = [judged_of(pick) for pick in sent.all("pick")]
        scope, keys = (
            Scope(hashes={each.key_hash for each in judged}),
            {(j.key_date, j.key_hash) for j in judged},
        )
    else:
        if not (sent.text("namespace") and sent.text("operation")):
            raise ResolutionError("Say which operation.")
        start, end = _date(sent, "start"), _date(sent, "end")
        scope, keys = Scope(sent.text("namespace"), sent.text("operation"), start, end), None

    def work(ledger: Ledger) -> list[Granted]:
        return [
            each for each in granted(ledger, scope) if keys is None or (each.key_date, each.key_hash) in keys
        ]

    return change(sent.page, sent.ledger, work)


def _date(sent: Posted, name: str) -> date | None:
    return parse_business_date(sent.text(name), source="the form") if sent.text(name) else None


def _readable(page: Page, ledger: str, found: Sequence[Granted]) -> list[Granted]:
    """Return what the caller may read of it, all of which must be the caller's to edit."""
    readable = page.readable
    dags: dict[tuple[date, str], str] = {}
    for start in range(0, len(found), _AT_ONCE):
        some = [(each.key_date, each.key_hash) for each in found[start : start + _AT_ONCE]]
        rows = change(page, ledger, lambda opened, some=some: monitor(opened).picked_keys(some, readable))  # type: ignore[misc]
        dags |= {(row.key_date, row.key_hash): row.dag_id for row in rows}
    for dag_id in sorted(set(dags.values())):
        require_edit(page, dag_id)
    mine = [each for each in found if (each.key_date, each.key_hash) in dags]
    if not mine:
        raise ResolutionError("Nothing of that is authorised, or it is used, or over. Nothing was withdrawn.")
    return mine


def _preview(sent: Posted, found: list[Granted], *, changed: str = "") -> Response:
    content = packed([json.dumps([asdict(each) for each in found], default=str).encode()])
    return FORM.preview(
        sent, "form_withdraw_preview.html", "", changed=changed, filled={"packed": [content]}, found=found
    )


def _shown(content: str) -> list[Granted]:
    """Return the authorisations that the preview showed."""
    found = [Granted(**values) for values in json.loads(unpacked(content))]
    return [replace(each, key_date=date.fromisoformat(str(each.key_date)), expires_at=None) for each in found]


def _ask(page: Page, *, sent: Posted | None = None, problem: str = "") -> Response:
    picks = sent.all("pick") if sent else page.request.query_params.getlist("pick")
    return FORM.ask(page, "form_withdraw.html", sent=sent, problem=problem, picks=picks)
