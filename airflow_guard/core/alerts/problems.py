"""What makes two alerts the same: the problem that they tell of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_guard.core.checks import digest

if TYPE_CHECKING:
    from datetime import date

    from airflow_guard.core.alerts.facts import AlertKind

NO_TASK = ""
"""``task_id`` of a problem of a whole run."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One problem. Another date, task, map index, kind or ``what`` is another problem.

    :param what: what tells it from others of its kind. For a callback the run and the try, so that the second
        callback of one try is the same problem and the next try is another; for a finding of the watch the business
        date, so that it stays the same problem from watch to watch.
    :param run_id: recorded, for people.
    :param business_date: recorded, for people; ``None``: unknown.
    :param team: who is told.
    """

    deployment: str
    dag_id: str
    kind: AlertKind
    what: str
    task_id: str = NO_TASK
    map_index: int = -1
    run_id: str = ""
    business_date: date | None = None
    team: str = ""

    def hash_for(self, transport: str) -> str:
        """Return the 32 hex characters by which it is found again, for each transport on its own."""
        return digest(
            self.deployment, self.dag_id, self.task_id, str(self.map_index), self.kind, self.what, transport
        )
