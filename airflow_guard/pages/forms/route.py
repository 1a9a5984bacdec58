"""The one route of all forms: filled in, previewed, confirmed.

The token of a confirmation is about all that was filled in and about the preview: who confirms something else, or
something that nobody was shown, is refused. A preview that is no longer true is shown anew.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import APIRouter, Depends
from starlette.responses import RedirectResponse, Response

from airflow_guard.acts.act import Act, Asked, Late, Opened, Words
from airflow_guard.acts.registry import acts
from airflow_guard.core.decisions import check_words
from airflow_guard.core.errors import GuardError, LedgerBusy, LedgerError, ResolutionError, UnknownCommit
from airflow_guard.hooks.settings import GuardSettings
from airflow_guard.pages.forms.person import PagePerson
from airflow_guard.pages.forms.posted import Posted, Refused, posted, posted_with_file
from airflow_guard.pages.forms.sealing import TokenRefused, Tokens, digest
from airflow_guard.pages.ledgers import LedgerTrouble
from airflow_guard.pages.page import Page, page_of
from airflow_guard.pages.routes.asking import limit_s
from airflow_guard.store.dialects import is_denied

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_guard.acts.act import Plan
    from airflow_guard.store.ledger import Ledger

log = logging.getLogger(__name__)
T = TypeVar("T")
AnyAct = Act[Any, Any]

PATIENCE_S = 20.0
"""A change may wait for locks, and a preview counts many rows."""
PACKED = "packed"
"""The field of what a plan gives its confirmation to carry."""


def forms() -> APIRouter:
    """Return the routes of the forms of all acts, and of the files beside them."""
    router = APIRouter(prefix="/forms")
    for act in acts():
        path = f"/{act.path}"
        for address, (name, kind, text) in act.files().items():
            router.add_api_route(f"{path}/{address}", _downloading(name, kind, text), methods=["GET"])
        router.add_api_route(path, _opening(act), methods=["GET"])
        router.add_api_route(path, _sending(act), methods=["POST"])
    return router


def _opening(act: AnyAct) -> Callable[..., Response]:
    def ask(page: Annotated[Page, Depends(page_of)]) -> Response:
        query = page.request.query_params
        values = {name: [each.strip() for each in query.getlist(name)] for name in query}
        return _ask(act, page, page.ledger, Asked(PagePerson(page.caller), values))

    return ask


def _sending(act: AnyAct) -> Callable[..., Response]:
    reading = posted_with_file if act.carries else posted

    # Not annotated: FastAPI reads annotations where it sees no local name.
    def answer(sent: Posted = Depends(reading)) -> Response:  # noqa: B008
        return Sending(act, sent).answer()

    return answer


def _downloading(name: str, kind: str, text: str) -> Callable[..., Response]:
    def download(_: Annotated[Page, Depends(page_of)]) -> Response:
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(text, media_type=f"{kind}; charset=utf-8", headers=headers)

    return download


def _ask(act: AnyAct, page: Page, ledger: str, asked: Asked, *, problem: str = "") -> Response:
    """Return the form; after a problem with what was filled in."""

    def work(at: Opened) -> Any:
        if not problem:
            act.opens(asked, at)
        return act.form(asked, at)

    shown = page.ledgers.ask(ledger, lambda opened: work(_opened(opened, ledger)))
    return page.render(
        "form.html", status=422 if problem else 200, shown=shown, given=asked.text, problem=problem,
        ledger=ledger, path=f"forms/{act.path}", token=_tokens(page).issue(page.caller.id, act.name, ""),
    )  # fmt: skip


class Sending:
    """One form that was sent."""

    def __init__(self, act: AnyAct, sent: Posted) -> None:
        self._act, self._sent, self._page = act, sent, sent.page
        self._ledger = sent.ledger
        self._filled = {name: list(sent.values.get(name, ())) for name in act.fields}
        if act.carries:
            self._filled[PACKED] = list(sent.values.get(PACKED, ()))

    def answer(self) -> Response:
        """Preview, or do it."""
        act, sent = self._act, self._sent
        self._check_token()
        asked = Asked(PagePerson(self._page.caller), sent.values, sent.confirmed, upload=sent.upload)
        self._change(lambda at: act.may(asked, at))
        try:
            words = Words(*check_words(asked.person.name, asked.text("reason")))
            if act.carries and sent.confirmed:
                asked = replace(asked, carried=_tokens(self._page).unpack(sent.text(PACKED)))
            request = self._change(lambda at: act.request(asked, at, words))
        except LedgerError:
            raise
        except GuardError as error:
            return self._problem(asked, error)
        try:
            return self._planned(asked, request, words)
        except LedgerError:
            raise
        except GuardError as error:
            return self._late(asked, request, words, error)

    def _planned(self, asked: Asked, request: Any, words: Words) -> Response:
        act = self._act
        plan = self._change(lambda at: act.plan(at, request))
        if not asked.confirmed:
            if plan.nothing:
                raise ResolutionError(plan.nothing)
            return self._preview(asked, request, plan)
        if not plan.sure and self._sent.text("seen") != digest(plan.seen):
            return self._again(asked, words, act.changed)
        return self._done(request, self._change(lambda at: act.run(at, request, dry_run=False)))

    def _late(self, asked: Asked, request: Any, words: Words, error: GuardError) -> Response:
        act = self._act
        late = act.late(request, error, confirmed=asked.confirmed)
        if late is Late.AGAIN:
            return self._again(asked, words, str(error))
        if late is Late.ASK:
            return self._problem(asked, error)
        said, links = self._change(lambda at: act.stands(asked, at))
        raise Refused(
            409,
            "This has changed meanwhile",
            f"{error}{said}",
            [(link.words, self._page.url(link.path, ledger=self._ledger, **link.query)) for link in links],
        ) from error

    def _problem(self, asked: Asked, error: GuardError) -> Response:
        return _ask(self._act, self._page, self._ledger, asked, problem=str(error))

    def _again(self, asked: Asked, words: Words, changed: str) -> Response:
        """Return the preview of what there is now."""
        act, now = self._act, replace(asked, again=True)
        try:
            request = self._change(lambda at: act.request(now, at, words))
            plan = self._change(lambda at: act.plan(at, request))
        except LedgerError:
            raise
        except GuardError as error:
            return self._problem(asked, error)
        return self._preview(now, request, plan, changed=changed)

    def _preview(self, asked: Asked, request: Any, plan: Plan[Any], *, changed: str = "") -> Response:
        page, act, seen = self._page, self._act, digest(plan.seen)
        every = {**self._filled, **plan.fields}
        if act.carries:
            every[PACKED] = [_tokens(page).pack(plan.carried)]
        token = _tokens(page).issue(page.caller.id, f"{act.name} confirmed", self._sealed(every, seen))
        hidden = [(name, value) for name, some in every.items() for value in some]
        hidden += [("ledger", self._ledger), ("seen", seen), ("token", token), ("step", "confirm")]
        return page.render(
            "form_preview.html", status=409 if changed else 200, shown=act.preview(request, plan), changed=changed,
            hidden_fields=hidden, uploads=act.carries, ledger=self._ledger, reason=asked.text("reason"),
        )  # fmt: skip

    def _done(self, request: Any, what: Any) -> Response:
        done = self._act.done(request, what)
        if done.go_to is not None:
            url = self._page.url(done.go_to.path, ledger=self._ledger, **done.go_to.query)
            return RedirectResponse(url, status_code=303)
        return self._page.render("form_done.html", shown=done, ledger=self._ledger)

    def _check_token(self) -> None:
        """Do nothing if this user was shown this form, or the preview of just this.

        :raises Refused: 403.
        """
        name, version = self._act.name, ""
        if self._sent.confirmed:
            name, version = f"{name} confirmed", self._sealed(self._filled, self._sent.text("seen"))
        try:
            _tokens(self._page).check(self._sent.text("token"), self._page.caller.id, name, version)
        except TokenRefused as error:
            raise Refused(
                403,
                "This form is not valid any more",
                "It was open for too long, or was not made for you. Nothing was changed. Open the page again.",
            ) from error

    def _sealed(self, filled: dict[str, list[str]], seen: str) -> str:
        return digest(self._ledger, sorted(filled.items()), seen)

    def _change(self, work: Callable[[Opened], T]) -> T:
        return change(self._page, self._ledger, work)


def _tokens(page: Page) -> Tokens:
    tokens: Tokens = page.request.app.state.tokens()
    return tokens


def _opened(ledger: Ledger, name: str) -> Opened:
    return Opened(ledger, name, GuardSettings.read().deployment, limit_s=limit_s())


def change(page: Page, ledger: str, work: Callable[[Opened], T]) -> T:
    """Return what a change, or its dry run, comes to; who gives it up early does not know whether it was made.

    :raises Refused: 503; the message says whether anything was changed.
    :raises LedgerTrouble: the ledger cannot be reached, or is not migrated; nothing was changed.
    """
    try:
        return page.ledgers.ask(ledger, lambda opened: work(_opened(opened, ledger)), patience_s=PATIENCE_S)
    except UnknownCommit as error:
        raise Refused(
            503,
            "Not known",
            "The connection to the ledger broke in the last moment: it is not known whether this was recorded. Send the "
            "same form again: what is done is left alone.",
        ) from error
    except LedgerTrouble as trouble:
        cause = trouble.__cause__
        if isinstance(cause, LedgerBusy):
            raise Refused(
                503,
                "The ledger is busy",
                "A task holds what this would change. Nothing was changed. Try again in a minute.",
            ) from trouble
        if isinstance(cause, TimeoutError):
            raise Refused(
                503,
                "It takes longer than this page waits",
                "It goes on, and may still be recorded. Look in a minute, then send the same form again: what is done is "
                "left alone.",
            ) from trouble
        raise
    except Exception as error:
        if not is_denied(error):
            raise
        log.warning("Ledger %s does not allow a change: %s", ledger, error)
        raise Refused(
            403,
            "The ledger does not allow it",
            "The account with which Airflow's API server reaches this ledger may not change that. Nothing was changed. An "
            "administrator can grant it, or use the command line with another account.",
        ) from error
