"""What Airflow is told about the pages, through the entry point ``airflow.plugins``.

Every service imports this module: scheduler, workers, triggerer. So it imports nothing but Airflow's plugin class,
and the app is built when the first page is asked for.
"""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from airflow_guard.plugins.lazy_app import LazyApp

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
            "app": LazyApp("airflow_guard.plugins.app:build_app"),
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
