"""What Airflow is told about the pages, through the entry point ``airflow.plugins``; they are imported at their first request.

Every service imports this module: scheduler, workers, triggerer. So it imports nothing but Airflow's plugin class,
and the app is built when the first page is asked for.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow.plugins_manager import AirflowPlugin

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
    Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]


# -- An ASGI app that is imported and built at its first request ---------------------------------------------

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


# -- What Airflow is told about the pages, through the entry point ``airflow.plugins`` -----------------------

__all__ = ["GuardPlugin"]

MOUNTED_AT = "/airflow-guard"
# Without a leading slash: Airflow may be served below a path, which its pages have as their base.
_HREF = MOUNTED_AT.removeprefix("/")
_ICON = f"{_HREF}/static/icon.svg"
_DAG = "dag_id={DAG_ID}"
_RUN = f"{_DAG}&run_id={{RUN_ID}}"


def _view(destination: str, route: str, query: str) -> dict[str, Any]:
    return {
        "name": "Guard",
        "href": f"{_HREF}/{query}",
        "destination": destination,
        "url_route": route,
        "icon": _ICON,
    }


class GuardPlugin(AirflowPlugin):
    """The pages, the entry in the navigation, and the tabs of DAG, run, task and task instance."""

    name = "airflow_guard"
    fastapi_apps: list[Any] = [  # noqa: RUF012 - Airflow declares it so
        {
            "app": LazyApp("airflow_guard.pages.app:build_app"),
            "url_prefix": MOUNTED_AT,
            "name": "Airflow Guard",
        }
    ]
    external_views: list[Any] = [  # noqa: RUF012
        {**_view("nav", "guard", ""), "nav_top_level": True},
        _view("dag", "guard-dag", f"tab/dag?{_DAG}"),
        _view("dag_run", "guard-run", f"tab/run?{_RUN}"),
        _view("task", "guard-task", f"tab/task?{_DAG}&task_id={{TASK_ID}}"),
        _view(
            "task_instance",
            "guard-try",
            f"tab/task_instance?{_RUN}&task_id={{TASK_ID}}&map_index={{MAP_INDEX}}",
        ),
    ]
