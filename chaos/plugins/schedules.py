"""Makes the rig's timetable known to Airflow."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from chaos.timetable import AsPlanned


class Schedules(AirflowPlugin):
    """One timetable."""

    name = "chaos_schedules"
    timetables = (AsPlanned,)
