"""The door of the app: nothing behind it is reached without a user, whatever route or mount is added later.

It stands before routing, so a page, a static file, a path that does not exist and a method that is not allowed are all
refused alike. Also the place of the headers that every answer carries.
"""

from __future__ import annotations

import base64
import hashlib
import html
import logging
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import HTMLResponse

from airflow_guard.plugins.access import CALLER, Denied, caller_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
