"""A schedule that reaches as far as the plan does at the moment.

Not an ``end_date`` of the DAG that moves: Airflow gives the tasks no date after the end that it knows, and a scheduler
knows an older one for some time. It makes a run of the new date without a task, and calls it a success.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.timetables.interval import CronDataIntervalTimetable

from chaos.plan import Plan

if TYPE_CHECKING:
    from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction

DAILY, HOURLY = "0 0 * * *", "0 * * * *"


class AsPlanned(CronDataIntervalTimetable):
    """Daily or hourly runs. After the last one that is planned there is none, until the plan reaches further."""

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        """Return the next run, if it is planned."""
        found = super().next_dagrun_info(
            last_automated_data_interval=last_automated_data_interval, restriction=restriction
        )
        plan = Plan.read()
        last = plan.last_hour if self._expression == HOURLY else plan.last_day
        return None if found is None or found.logical_date is None or found.logical_date > last else found
