"""The link from a task to its rows in the ledger, on the task's page in Airflow's UI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from airflow.sdk import BaseOperatorLink

from airflow_guard.airflow_compat import conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

PAGES_AT = "/airflow-guard"
"""Where the pages are mounted in Airflow's API server."""


class GuardLink(BaseOperatorLink):
    """Leads to what the ledger knows of one task instance. Airflow stores it when the task instance ends."""

    name = "Guard"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:  # noqa: ARG002 - Airflow's signature
        """Return the address of the page."""
        base = (conf.get("api", "base_url", fallback="") or "").rstrip("/")
        where = {
            "dag_id": ti_key.dag_id,
            "run_id": ti_key.run_id,
            "task_id": ti_key.task_id,
            "map_index": ti_key.map_index,
        }
        return f"{base}{PAGES_AT}/tab/task_instance?{urlencode(where)}"
