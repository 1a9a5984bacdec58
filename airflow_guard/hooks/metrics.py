"""Counters, through Airflow's own statistics. ``docs/reference/alerts.md`` lists them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_guard.airflow_compat import count_stat

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)

PREFIX = "airflow_guard."
COUNTERS = ("executed", "replayed", "blocked", "rejected", "in_doubt", "breaks", "lease_renewals_failed")


def count(counts: Mapping[str, int], tags: Mapping[str, str]) -> None:
    """Add to counters. A statistics server that is down changes nothing.

    :param counts: by the names of :data:`COUNTERS`; other names, and zeros, are left out.
    :param tags: ``dag_id``, ``task_id``, ``operation``.
    """
    for name in COUNTERS:
        if counts.get(name):
            try:
                count_stat(PREFIX + name, counts[name], dict(tags))
            except Exception as error:  # noqa: BLE001 - whatever a backend raises
                log.warning("The counter %s%s is not told: %s", PREFIX, name, error)
