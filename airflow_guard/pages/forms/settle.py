"""Say what became of several keys at once: all of them, or none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends
from starlette.responses import Response

from airflow_guard.core.decisions import Decision, check_words
from airflow_guard.core.errors import ResolutionError, StaleResolution
from airflow_guard.pages.forms.changing import change
from airflow_guard.pages.forms.posted import Posted, Refused, posted, require_edit
from airflow_guard.pages.forms.steps import Form
from airflow_guard.pages.page import NotThere, Page, business_date, page_of
from airflow_guard.pages.routes.asking import monitor
from airflow_guard.store import resolution
from airflow_guard.store.resolution import Judged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_guard.reading.key_records import KeyRow
    from airflow_guard.store.ledger import Ledger

router = APIRouter(prefix="/forms")

FORM = Form("settle", ("pick", "decision", "reason"))
_AT_ONCE = 50
_KEY_HEX = 32


@dataclass(frozen=True)
class _Picked:
    keys: Sequence[KeyRow]

    @property
    def decisions(self) -> list[Decision]:
        """What may be decided about every one of them."""
        first = self.keys[0].decisions
        return [each for each in first if all(each in key.decisions for key in self.keys)]


@router.get("/settle")
def ask(page: Annotated[Page, Depends(page_of)]) -> Response:
    """Show the form about the keys that were chosen in a list."""
    return _ask(page, _keys(page, page.ledger, page.request.query_params.getlist("pick")))


@router.post("/settle")
def answer(sent: Annotated[Posted, Depends(posted)]) -> Response:
    """Preview, or do it."""
    FORM.check(sent)
    page, picks = sent.page, sent.all("pick")
    keys = _keys(page, sent.ledger, picks)
    try:
        actor, reason = check_words(page.caller.name, sent.text("reason"))
        decision = Decision.of(sent.text("decision"))
        settled = _resolve(sent, [judged_of(pick) for pick in picks], decision, actor, reason)
    except StaleResolution as error:
        raise _changed(sent, error) from error
    except ResolutionError as error:
        return _ask(page, keys, sent=sent, problem=str(error))
    if sent.confirmed:
        return _done(sent, keys)
    hashes = [each.key_hash for each in settled]
    return FORM.preview(sent, "form_settle_preview.html", hashes, settled=settled, decision=decision)


def _resolve(
    sent: Posted, judged: Sequence[Judged], decision: Decision, actor: str, reason: str
) -> Sequence[resolution.Settled]:
    def work(ledger: Ledger) -> Sequence[resolution.Settled]:
        return resolution.resolve_many(
            ledger, judged, decision, actor=actor, reason=reason, strict=True, dry_run=not sent.confirmed,
            ledger_name=sent.ledger,
        ).settled  # fmt: skip

    return change(sent.page, sent.ledger, work)


def _done(sent: Posted, keys: Sequence[KeyRow]) -> Response:
    links = [("What is left to settle", sent.page.url("open", ledger=sent.ledger))]
    text = f"{len(keys):,} keys are settled: {sent.text('decision').replace('_', ' ')}."
    return sent.page.render("form_done.html", title="Recorded", text=text, links=links)


def _keys(page: Page, ledger: str, picks: Sequence[str]) -> list[KeyRow]:
    wanted = [(judged.key_date, judged.key_hash) for judged in map(judged_of, picks)]
    if not wanted or len(wanted) > _AT_ONCE or len(set(wanted)) < len(wanted):
        raise NotThere
    readable = page.readable
    keys = list(page.ledgers.ask(ledger, lambda opened: monitor(opened).picked_keys(wanted, readable)))
    if len(keys) < len(wanted):
        raise NotThere
    for dag_id in sorted({key.dag_id for key in keys}):
        require_edit(page, dag_id)
    return keys


def judged_of(pick: str) -> Judged:
    """Return the key that a field names: its date, its hash and, once it was shown, its version."""
    day, _, rest = pick.partition(".")
    key_hash, _, token = rest.partition(".")
    at = business_date(day)
    if at is None or len(key_hash) != _KEY_HEX:
        raise NotThere
    return Judged.of(at, key_hash, token)


def _changed(sent: Posted, error: Exception) -> Refused:
    page, ledger = sent.page, sent.ledger
    keys = _keys(page, ledger, sent.all("pick"))  # as they stand now
    links = [
        (f"{key.text}: {key.situation.value}", page.url("key", ledger=ledger, date=key.key_date, key=key.key_hash))
        for key in keys
    ]  # fmt: skip
    links.append(("What is left to settle", page.url("open", ledger=ledger)))
    text = f"{error} None of the {len(keys):,} keys was changed. This is how they stand now:"
    return Refused(409, "This has changed meanwhile", text, links)


def _ask(page: Page, keys: Sequence[KeyRow], *, sent: Posted | None = None, problem: str = "") -> Response:
    return FORM.ask(
        page, "form_settle.html", sent=sent, problem=problem, keys=keys, decisions=_Picked(keys).decisions
    )  # fmt: skip
