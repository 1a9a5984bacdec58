"""How a task of this package ends in Airflow: with or without retry, counted, its asset events dated, and linked to its
rows in the ledger."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from airflow.sdk import BaseOperatorLink

from airflow_guard.airflow_compat import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    conf,
    count_stat,
)
from airflow_guard.airflow_pushes import outlet_events_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from airflow.sdk import BaseOperator, Context

    from airflow_guard.core.errors import GuardError

log = logging.getLogger(__name__)

PREFIX = "airflow_guard."
COUNTERS = ("executed", "replayed", "blocked", "rejected", "in_doubt", "breaks", "lease_renewals_failed")
"""Counters, through Airflow's own statistics. ``docs/reference/alerts.md`` lists them."""
PAGES_AT = "/airflow-guard"
"""Where the pages are mounted in Airflow's API server."""


class GuardFailure(AirflowFailException):
    """The task fails, and no retry: only a person, another configuration or another document helps.

    The error that says what happened is its ``__cause__``, of a class in ``airflow_guard.core.errors``.
    """


class GuardRetry(AirflowException):
    """The task fails, and a retry can help by itself. Its ``__cause__`` says what happened."""


class GuardTimeout(AirflowSensorTimeout):
    """The ``timeout`` of a sensor is over, and no retry: it has looked again and again already.

    The error that says what it saw is its ``__cause__``.
    """


def as_airflow(error: GuardError) -> GuardFailure | GuardRetry:
    """Return what to raise ``from`` an error of this package, with the same message."""
    return GuardRetry(str(error)) if error.retryable else GuardFailure(str(error))


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


def extras_of_assets(context: Context, outlets: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield what the event of each asset of a task will carry, to be changed."""
    from airflow.sdk import Asset

    events = outlet_events_of(context)
    for outlet in outlets:
        if isinstance(outlet, Asset):
            yield events[outlet].extra


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
