"""The app of the pages: routes behind the gate, and what is shown when there is nothing to show."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import Depends, FastAPI, HTTPException, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.staticfiles import StaticFiles

from airflow_guard.hooks.ledger import ledger_to_look_at
from airflow_guard.hooks.settings import GuardSettings
from airflow_guard.pages.access import CALLER, Gate
from airflow_guard.pages.forms.posted import Refused
from airflow_guard.pages.forms.sealing import configured_tokens
from airflow_guard.pages.ledgers import Ledgers, LedgerTrouble
from airflow_guard.pages.page import ChooseLedger, Page
from airflow_guard.reading.scope import NotThere

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import ASGIApp, Scope

    from airflow_guard.store.ledger import Ledger

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 6
"""Of the API server to one ledger."""
_BROKEN = "The log of Airflow's API server says why."


def build_app() -> ASGIApp:
    """Return the app as it is mounted."""
    return Gate(ungated_app())


def ungated_app() -> FastAPI:
    """Return the app without its gate; its routes refuse whoever did not come through the gate."""
    from airflow_guard.pages import routes
    from airflow_guard.pages.forms.route import forms

    app = FastAPI(
        title="Airflow Guard",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        swagger_ui_oauth2_redirect_url=None,
        dependencies=[Depends(require_caller)],
    )
    app.state.ledgers = Ledgers(_ledger, patience_s=GuardSettings.read().page_timeout_s)
    app.state.ledger_names = configured_ledgers
    app.state.tokens = configured_tokens
    for router in (*routes.ROUTERS, forms()):
        app.include_router(router)
    app.mount("/static", _Static(directory=Path(__file__).with_name("static")), name="static")
    app.add_exception_handler(NotThere, _not_there)
    app.add_exception_handler(ChooseLedger, _choose)
    app.add_exception_handler(LedgerTrouble, _trouble)
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(404, _not_there)
    app.add_exception_handler(405, _http_error)
    app.add_exception_handler(Exception, _broken)
    return app


def configured_ledgers() -> tuple[str, ...]:
    """Return the ids of the connections whose ledgers are shown."""
    settings = GuardSettings.read()
    return settings.ledger_conn_ids or ((settings.ledger_conn_id,) if settings.ledger_conn_id else ())


def require_caller(request: Request) -> None:
    """Refuse a request that did not come through the gate.

    :raises HTTPException: 403.
    """
    if CALLER not in request.scope:
        raise HTTPException(403)


def _ledger(name: str) -> Ledger:
    return ledger_to_look_at(name, max_connections=MAX_CONNECTIONS)


class _Static(StaticFiles):
    """The page's own files: the browser may keep them for itself, since their address names the version."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["cache-control"] = "private, max-age=3600"
        return response


def _not_there(request: Request, _: Exception) -> Response:
    text = "There is nothing here, or you may not see it."
    return _message(request, 404, "Not found", text)


def _choose(request: Request, error: Exception) -> Response:
    if not isinstance(error, ChooseLedger):
        raise error
    page = Page(request)
    links = [(f"In the ledger {name}", page.here(ledger=name)) for name in error.ledgers]
    return _message(request, 300, "Which ledger?", "This address names none, and there are several.", links)


def _trouble(request: Request, error: Exception) -> Response:
    if not isinstance(error, LedgerTrouble):
        raise error
    return _message(request, 503, f"Ledger {error.ledger}: {error.title}", error.advice)


def _refused(request: Request, error: Exception) -> Response:
    if not isinstance(error, Refused):
        raise error
    return _message(request, error.status, error.title, error.text, error.links)


def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 405
    titles = {403: "No access", 405: "Not found"}
    return _message(
        request, status, titles.get(status, "Refused"), str(getattr(error, "detail", "")) or "Refused."
    )


def _broken(request: Request, error: Exception) -> Response:
    log.error("A page of Airflow Guard failed: %s", request.url.path, exc_info=error)
    return _message(request, 500, "This page failed", f"{_BROKEN} {_came_of(request)}")


def _came_of(request: Request) -> str:
    """Return whether a request that failed has changed anything, as far as that is known."""
    if request.method in ("GET", "HEAD"):
        return "Nothing was changed."
    return (
        "It is not known whether what you sent was recorded. The page of each key and each break says under “Its life” "
        "what was: look there before you send it again. What is recorded already is not recorded twice."
    )


def _message(
    request: Request, status: int, title: str, text: str, links: Sequence[tuple[str, str]] = ()
) -> Response:
    if CALLER not in request.scope:
        return PlainTextResponse("No access", status_code=403)
    page: HTMLResponse = Page(request).render(
        "message.html", status=status, title=title, text=text, links=links
    )
    return page
