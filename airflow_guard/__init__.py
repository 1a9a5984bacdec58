"""Scheduled jobs on Apache Airflow that post, pay or notify once, however often they run."""

from __future__ import annotations

from airflow_guard.version import __version__

__all__ = ["__version__"]
