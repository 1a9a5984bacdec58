"""Airflow's simple auth manager, with a user who may read two of the six DAGs of the history."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

from tests.history import DAGS

READERS = {"reads all": "op", "reads two of six DAGs": "limited"}


class TwoDagsAuthManager(SimpleAuthManager):
    """Asks for more than a role."""

    def is_authorized_dag(self, *, user: Any, details: Any = None, **rest: Any) -> bool:
        if user.username == "limited" and (details is None or details.id not in DAGS[:2]):
            return False
        return super().is_authorized_dag(user=user, details=details, **rest)
