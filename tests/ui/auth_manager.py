"""Airflow's simple auth manager, with a user who is limited to one DAG and one who may not see plugins."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

ONE_DAG = "balance_letters"
LIMITED = "limited"
NO_PLUGINS = "no_plugins"
NO_DAGS = "no_dags"
USERS = {
    "admin": "admin",
    "op": "op",
    "viewer": "viewer",
    LIMITED: "user",
    NO_PLUGINS: "viewer",
    NO_DAGS: "viewer",
}


class OneDagAuthManager(SimpleAuthManager):
    """Asks for more than a role."""

    def is_authorized_dag(self, *, user: Any, details: Any = None, **rest: Any) -> bool:
        if user.username == NO_DAGS:
            return False
        if user.username == LIMITED and (details is None or details.id != ONE_DAG):
            return False
        return super().is_authorized_dag(user=user, details=details, **rest)

    def is_authorized_view(self, *, access_view: AccessView, user: Any) -> bool:
        if user.username == NO_PLUGINS and access_view is AccessView.PLUGINS:
            return False
        return super().is_authorized_view(access_view=access_view, user=user)
