"""An ASGI app that is imported and built at its first request."""

from __future__ import annotations

import asyncio
import logging
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
    Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]

log = logging.getLogger(__name__)

_BROKEN = b"The pages of Airflow Guard could not start. The log of Airflow's API server says why."


class LazyApp:
    """Builds the app at its first request; what fails then is logged, and tried again at the next one.

    A plugin whose app does not start must not keep Airflow's API server from starting.

    :param factory: ``module:function``, which returns the app.
    """

    def __init__(self, factory: str) -> None:
        self._factory = factory
        self._app: App | None = None
        self._building = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        try:
            app = await asyncio.to_thread(self._build) if self._app is None else self._app
        except Exception:
            log.exception("The pages of Airflow Guard cannot be built")
            await _answer_broken(scope, send)
            return
        await app(scope, receive, send)

    def _build(self) -> App:
        with self._building:
            if self._app is not None:
                return self._app
            module, _, function = self._factory.partition(":")
            app: App = getattr(import_module(module), function)()
            self._app = app
            return app


async def _answer_broken(scope: Scope, send: Send) -> None:
    if scope["type"] != "http":
        return
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": _BROKEN})
