"""Who asks, and what that person may read and edit; the door of the app, behind which nothing is reached without a user.

Airflow mounts the app of a plugin without any authentication, so everything here is asked for by the app itself (see
:mod:`airflow_guard.pages.access`).

It stands before routing, so a page, a static file, a path that does not exist and a method that is not allowed are all
refused alike. Also the place of the headers that every answer carries.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import logging
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import HTMLResponse

from airflow_guard.airflow_compat import user_of_request

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


# -- Who asks, and which DAGs that person may read and edit: Airflow's own auth manager decides --------------

CALLER = "airflow_guard.caller"
"""Where the gate leaves the caller in the scope of a request."""


class Denied(Exception):
    """The request is refused, before anything of it was looked at.

    :param status: 401 if nobody is logged in, else 403.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Caller:
    """The user who asks.

    :param user: Airflow's user object.
    """

    def __init__(self, user: Any) -> None:
        self._user = user

    @property
    def name(self) -> str:
        """The name that the ledger stores as the actor."""
        return str(self._user.get_name())

    @property
    def id(self) -> str:
        """What tells this user from every other one."""
        return str(self._user.get_id())

    @functools.cached_property
    def readable(self) -> frozenset[str]:
        """The ids of the DAGs that the user may read."""
        return self._authorized("GET")

    @functools.cached_property
    def editable(self) -> frozenset[str]:
        """The ids of the DAGs that the user may edit."""
        return self._authorized("PUT")

    def _authorized(self, method: Any) -> frozenset[str]:
        from airflow.api_fastapi.app import get_auth_manager

        return frozenset(get_auth_manager().get_authorized_dag_ids(user=self._user, method=method))

    def may_see_plugins(self) -> bool:
        """Whether Airflow shows plugins to this user at all."""
        from airflow.api_fastapi.app import get_auth_manager
        from airflow.api_fastapi.auth.managers.models.resource_details import AccessView

        return bool(get_auth_manager().is_authorized_view(access_view=AccessView.PLUGINS, user=self._user))


async def caller_of(request: Request) -> Caller:
    """Return who asks.

    :raises Denied: nobody is logged in, the token is no good, or the user may not see plugins.
    """
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException

    try:
        user = await user_of_request(request)
    except HTTPException as error:
        status = 401 if error.status_code == 401 else 403
        raise Denied(status, "Log in to Airflow to see this page.") from error
    if user is None:
        raise Denied(401, "Log in to Airflow to see this page.")
    caller = Caller(user)
    if not await run_in_threadpool(caller.may_see_plugins):
        raise Denied(
            403,
            "You have no access to this page: in Airflow you may not see plugins. An administrator of Airflow can change "
            "that.",
        )
    return caller


def known_dags() -> frozenset[str]:
    """Return the ids of all DAGs of this Airflow, whoever may see them."""
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        return frozenset(session.scalars(select(DagModel.dag_id)))


# -- The door of the app: nothing behind it is reached without a user, whatever route or mount is added later --

log = logging.getLogger(__name__)

_STYLE = "body{font:16px/1.5 system-ui,sans-serif;margin:3rem auto;max-width:38rem;padding:0 1rem;color-scheme:light dark}"
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'{extra}; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
)
HEADERS = {
    "content-security-policy": _POLICY.format(extra=""),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "SAMEORIGIN",
    "cache-control": "no-store",
}
"""On every answer that does not say otherwise."""
_WEBSOCKET_REFUSED = 1008


class Gate:
    """Lets only users of Airflow in; denies when it is not known who asks.

    :param app: what it guards.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _WEBSOCKET_REFUSED})
            return
        if scope["type"] != "http":
            return
        sending = _with_headers(send)
        try:
            scope[CALLER] = await caller_of(Request(scope, receive))
        except Denied as denied:
            await _refusal(denied)(scope, receive, sending)
        except Exception:
            # Whatever keeps us from knowing who asks: an import that fails, a database that is down.
            log.exception("Nobody can be let in")
            unknown = Denied(
                403, "Who you are could not be checked. The log of Airflow's API server says why."
            )
            await _refusal(unknown)(scope, receive, sending)
        else:
            await self._app(scope, receive, sending)


def _refusal(denied: Denied) -> HTMLResponse:
    body = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Airflow Guard: no access</title>'
        f"<style>{_STYLE}</style></head><body><main><h1>No access</h1><p>{html.escape(denied.message)}</p></main>"
        "</body></html>"
    )
    headers = {"content-security-policy": _POLICY.format(extra=f" 'sha256-{_STYLE_HASH}'")}
    if denied.status == 401:
        headers["www-authenticate"] = "Bearer"
    return HTMLResponse(body, status_code=denied.status, headers=headers)


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers: list[Any] = list(message.get("headers", []))
            present = {name.lower() for name, _ in headers}
            headers += [
                (name.encode(), value.encode())
                for name, value in HEADERS.items()
                if name.encode() not in present
            ]
            message = {**message, "headers": headers}
        await send(message)

    return sending
