"""Rename an operation, so that renamed code meets the keys of its past."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends
from starlette.responses import Response

from airflow_guard.acts.concerned import dags_of, dags_of_namespace
from airflow_guard.acts.renaming import Renamed, rename
from airflow_guard.core.decisions import check_words
from airflow_guard.core.errors import GuardError, LedgerError, ResolutionError
from airflow_guard.pages.forms.changing import change
from airflow_guard.pages.forms.permission import require_edit_of
from airflow_guard.pages.forms.posted import Posted, Refused, posted
from airflow_guard.pages.forms.steps import Form, is_as_seen
from airflow_guard.pages.page import NotThere, Page, page_of
from airflow_guard.reading.spaces import is_known
from airflow_guard.store import aliases
from airflow_guard.store.events import storable

if TYPE_CHECKING:
    from airflow_guard.store.aliases import Alias, Name
    from airflow_guard.store.ledger import Ledger

router = APIRouter(prefix="/forms")

FORM = Form("rename", ("old_namespace", "old_operation", "new_namespace", "new_operation", "reason"))


@router.get("/rename")
def ask(page: Annotated[Page, Depends(page_of)]) -> Response:
    """Show the form."""
    if not page.caller.editable:
        raise NotThere
    return FORM.ask(page, "form_rename.html")


@router.post("/rename")
def answer(sent: Annotated[Posted, Depends(posted)]) -> Response:
    """Preview, or do it."""
    FORM.check(sent)
    page = sent.page
    old = (sent.text("old_namespace"), sent.text("old_operation"))
    new = (sent.text("new_namespace"), sent.text("new_operation"))
    _require_edit(sent, old, new)
    try:
        actor, reason = check_words(page.caller.name, sent.text("reason"))
        change(page, sent.ledger, lambda ledger: _check_known(ledger, old))
        planned = change(
            page,
            sent.ledger,
            lambda ledger: rename(ledger, old, new, actor=actor, reason=reason, dry_run=True),
        )
        if not sent.confirmed:
            return _preview(sent, planned)
        mine = change(page, sent.ledger, lambda ledger: _is_mine(_alias(ledger, old), new, actor, reason))
        if not mine and not is_as_seen(sent, _plan(planned)):
            return _preview(sent, planned, changed="The ledger is not as it was shown. Nothing was changed.")
        change(page, sent.ledger, lambda ledger: rename(ledger, old, new, actor=actor, reason=reason))
    except LedgerError:
        raise
    except GuardError as error:
        if sent.confirmed:
            links = [
                ("The keys of the old name", _keys_url(sent, old)),
                ("of the new name", _keys_url(sent, new)),
            ]
            raise Refused(409, "This has changed meanwhile", str(error), links) from error
        return FORM.ask(page, "form_rename.html", sent=sent, problem=str(error))
    text = (
        f"{' / '.join(old)} is {' / '.join(new)} now. Tasks that still say the old name meet the same keys."
    )
    links = [("The keys", _keys_url(sent, new))]
    return page.render("form_done.html", title="Renamed", text=text, links=links)


def _require_edit(sent: Posted, old: Name, new: Name) -> None:
    if not all((*old, *new)):
        raise Refused(422, "A name is missing", "Say namespace and operation, the old ones and the new ones.")

    def concerned(ledger: Ledger) -> set[str]:
        used = dags_of(ledger.database, [old, new])
        return used | dags_of_namespace(ledger.database, new[0])

    # The namespaces as well, where they are DAGs: nobody may move keys into what others keep.
    require_edit_of(sent.page, change(sent.page, sent.ledger, concerned) | {old[0], new[0]})


def _check_known(ledger: Ledger, old: Name) -> None:
    """Refuse a name that was never used, without the names of others, which the ledger itself would offer."""
    if not ledger.database.read(lambda connection: is_known(connection, ledger.database.tables, old)):
        raise ResolutionError(
            f"This ledger knows no operation {' / '.join(old)}: is it spelt as it was used?"
        )


def _alias(ledger: Ledger, old: Name) -> Alias | None:
    return ledger.database.read(lambda connection: aliases.find(connection, ledger.database.tables, old))


def _is_mine(alias: Alias | None, new: Name, actor: str, reason: str) -> bool:
    """Return whether just this was done before: the second half of a double click."""
    mine = (new, storable(actor, 250), storable(reason))
    return alias is not None and (alias.new, alias.actor, alias.reason) == mine


def _plan(planned: Renamed) -> list[Any]:
    return [sorted((state.value, count) for state, count in planned.keys.items()), planned.alias_is_new]


def _preview(sent: Posted, planned: Renamed, *, changed: str = "") -> Response:
    return FORM.preview(sent, "form_rename_preview.html", _plan(planned), changed=changed, planned=planned)


def _keys_url(sent: Posted, name: Name) -> str:
    return sent.page.url("keys", ledger=sent.ledger, namespace=name[0], operation=name[1])
