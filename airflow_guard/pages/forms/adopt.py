"""Adopt history from a CSV file: what was done before the ledger kept watch."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends
from starlette.responses import Response

from airflow_guard.acts import adoption, history
from airflow_guard.acts.adoption import COLUMNS, Adopted, HistoryRow, Operation
from airflow_guard.acts.concerned import dags_of_namespace
from airflow_guard.core.decisions import check_words
from airflow_guard.core.errors import ConfigurationError, ResolutionError
from airflow_guard.hooks.settings import GuardSettings
from airflow_guard.pages.forms.changing import change
from airflow_guard.pages.forms.packing import packed, unpacked
from airflow_guard.pages.forms.permission import require_edit_of
from airflow_guard.pages.forms.posted import MAX_UPLOAD_BYTES, Posted, posted_with_file
from airflow_guard.pages.forms.steps import Form, is_as_seen
from airflow_guard.pages.page import NotThere, Page, page_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_guard.store.ledger import Ledger

router = APIRouter(prefix="/forms")

FORM = Form(
    "adopt", ("namespace", "operation", "once_per", "cycle", "deployment", "delimiter", "reason", "packed")
)
DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t"}
_SHOWN = 10
_CHUNK = 65_536


@dataclass(frozen=True)
class _Looked:
    """What an adoption comes to, with the first rows of the file."""

    adopted: Adopted
    first: list[HistoryRow]

    @property
    def plan(self) -> list[Any]:
        """What the preview was about."""
        each = self.adopted
        return [each.rows, each.adopted, each.known, each.repeated, each.first_date, each.last_date]


@router.get("/adopt/template.csv")
def template(page: Annotated[Page, Depends(page_of)]) -> Response:  # noqa: ARG001 - the gate's proof of a caller
    """Return a file with the header that a history needs, and nothing that could be adopted by mistake."""
    headers = {"content-disposition": 'attachment; filename="history.csv"'}
    return Response(f"{','.join(COLUMNS)}\r\n", media_type="text/csv; charset=utf-8", headers=headers)


@router.get("/adopt")
def ask(page: Annotated[Page, Depends(page_of)]) -> Response:
    """Show the form."""
    if not page.caller.editable:
        raise NotThere
    return _ask(page)


@router.post("/adopt")
def answer(sent: Annotated[Posted, Depends(posted_with_file)]) -> Response:
    """Preview, or do it."""
    FORM.check(sent)
    page = sent.page
    _require_edit(sent)
    try:
        actor, reason = check_words(page.caller.name, sent.text("reason"))
        content = sent.text("packed") if sent.confirmed else _pack(sent)
        operation = change(page, sent.ledger, lambda ledger: _operation(ledger, sent))
        delimiter = DELIMITERS.get(sent.text("delimiter"), ",")
        look = change(
            page,
            sent.ledger,
            lambda ledger: _adopt(ledger, operation, content, delimiter, actor, reason, dry_run=True),
        )
        if not sent.confirmed:
            return _preview(sent, look, content)
        if look.adopted.adopted and not is_as_seen(sent, look.plan):
            return _preview(sent, look, content, changed="The ledger has changed meanwhile.")
        change(
            page,
            sent.ledger,
            lambda ledger: _adopt(ledger, operation, content, delimiter, actor, reason, dry_run=False),
        )
    except ResolutionError as error:
        return _ask(page, sent=sent, problem=str(error))
    text = (
        f"All {look.adopted.rows:,} rows of the file are in the ledger: {operation.key_namespace} / "
        f"{operation.operation}, {look.adopted.first_date} to {look.adopted.last_date}."
    )
    where = {"namespace": operation.key_namespace, "operation": operation.operation}
    span = {"from": look.adopted.first_date, "to": look.adopted.last_date}
    links = [("The keys of these dates", page.url("keys", ledger=sent.ledger, **where, **span))]
    return page.render("form_done.html", title="Adopted", text=text, links=links)


def _require_edit(sent: Posted) -> None:
    """Refuse who may not edit the DAGs of the key namespace: an adopted key is never executed."""
    namespace = sent.text("namespace")
    if not namespace:
        raise NotThere
    used = change(sent.page, sent.ledger, lambda ledger: dags_of_namespace(ledger.database, namespace))
    require_edit_of(sent.page, used | {namespace})


def _operation(ledger: Ledger, sent: Posted) -> Operation:
    if not sent.text("operation"):
        raise ResolutionError("Say which operation.")
    if sent.text("once_per") not in ("date", "document"):
        raise ResolutionError("Say whether it is done once per date or once per document.")
    deployment = sent.text("deployment")
    if not deployment:
        try:
            deployment = adoption.deployment_of(ledger, GuardSettings.read().deployment)
        except ConfigurationError as error:
            raise ResolutionError(str(error)) from error
    return Operation(
        sent.text("namespace"), sent.text("operation"), sent.text("once_per"), sent.text("cycle"), deployment
    )


def _adopt(
    ledger: Ledger,
    operation: Operation,
    content: str,
    delimiter: str,
    actor: str,
    reason: str,
    *,
    dry_run: bool,
) -> _Looked:
    first: list[HistoryRow] = []

    def rows() -> Iterator[HistoryRow]:
        for row in history.uploaded_rows(unpacked(content), delimiter):
            if len(first) < _SHOWN:
                first.append(row)
            yield row

    done = adoption.adopt(ledger, operation, rows(), actor=actor, reason=reason, dry_run=dry_run)
    return _Looked(done, first)


def _pack(sent: Posted) -> str:
    """Return the uploaded file as the confirmation carries it, so that no server has to keep it."""
    upload = sent.files.get("csv")
    if upload is None or not upload.filename:
        raise ResolutionError("Choose a CSV file.")
    return packed(iter(lambda: upload.file.read(_CHUNK), b""))


def _preview(sent: Posted, look: _Looked, content: str, *, changed: str = "") -> Response:
    columns = list(dict.fromkeys(itertools.chain.from_iterable(row.values for row in look.first)))
    return FORM.preview(
        sent, "form_adopt_preview.html", look.plan, changed=changed, filled={"packed": [content]},
        adopted=look.adopted, first=look.first, columns=columns,
    )  # fmt: skip


def _ask(page: Page, *, sent: Posted | None = None, problem: str = "") -> Response:
    return FORM.ask(
        page, "form_adopt.html", sent=sent, problem=problem, limit=MAX_UPLOAD_BYTES, delimiters=DELIMITERS,
        columns=COLUMNS, dags=sorted(page.caller.editable & page.readable),
    )  # fmt: skip
