"""What the context of a callback says, whatever is missing of it.

=============================  ==============================================================
called                         with
=============================  ==============================================================
in the worker                  everything, and the exception
in the DAG processor           no exception; perhaps no run and no dates
for a run as a whole           perhaps only ``dag``, ``run_id`` and ``reason``
by a ``DeadlineAlert``         ``dag_run`` and ``deadline``, as mappings
=============================  ==============================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow_guard.airflow_compat import AirflowFailException, AirflowSensorTimeout, conf
from airflow_guard.core.alerts.facts import AlertKind
from airflow_guard.notifications.words import exception_in_words, reason_in_words, tolerances_in_words
from airflow_guard.operators.run_context import business_date_of
from airflow_guard.reading.alert_facts import Asked

if TYPE_CHECKING:
    from datetime import date


@dataclass(frozen=True)
class CallbackContext:
    """A callback's context, read so that nothing in it can fail.

    :param context: Airflow's, or what there is of it.
    :param kind: what the callback is for; ``None``: the context says it.
    """

    context: Mapping[str, Any]
    asked_kind: AlertKind | None = None

    @property
    def kind(self) -> AlertKind:
        """What is wrong. A failure that is tried again is a retry, whoever calls it a failure."""
        kind = self.asked_kind
        if kind is None:
            kind = AlertKind.DEADLINE if "deadline" in self.context else AlertKind.FAILED
            kind = AlertKind.DAG_FAILED if kind is AlertKind.FAILED and self._looks_dag_level else kind
        if kind is AlertKind.FAILED and self._tried_again:
            return AlertKind.RETRY
        return kind

    @property
    def is_dag_level(self) -> bool:
        """Whether it is about a run as a whole."""
        asked = self.asked_kind in (AlertKind.DAG_FAILED, AlertKind.DEADLINE)
        return asked or "deadline" in self.context or self._looks_dag_level

    @property
    def _looks_dag_level(self) -> bool:
        if "reason" in self.context:
            return True
        return self._ti is None and self.task is None and self.dag_id is not None

    # -- who ------------------------------------------------------------------------------------------------

    @property
    def _ti(self) -> Any:
        return self.context.get("ti") or self.context.get("task_instance")

    @property
    def task(self) -> Any:
        """The task, if it is there."""
        return self.context.get("task") or value_of(self._ti, "task")

    @property
    def dag(self) -> Any:
        """The DAG, if it is there."""
        return self.context.get("dag") or value_of(self.task, "dag")

    @property
    def dag_id(self) -> str | None:
        """The DAG's id."""
        places = (self._ti, self.context.get("dag_run"), self.dag, self.context)
        return _text(next(filter(None, (value_of(place, "dag_id") for place in places)), None))

    @property
    def run_id(self) -> str | None:
        """The run's id."""
        places = (self._ti, self.context.get("dag_run"), self.context)
        return _text(next(filter(None, (value_of(place, "run_id") for place in places)), None))

    @property
    def task_id(self) -> str | None:
        """The task's id, ``None`` of a run as a whole."""
        if self.is_dag_level:
            return None
        return _text(value_of(self._ti, "task_id") or value_of(self.task, "task_id"))

    @property
    def map_index(self) -> int | None:
        """-1: not mapped."""
        return None if self.is_dag_level else _int(value_of(self._ti, "map_index"))

    @property
    def try_number(self) -> int | None:
        """From 1."""
        return None if self.is_dag_level else _int(value_of(self._ti, "try_number"))

    @property
    def max_tries(self) -> int | None:
        """How many tries there are in all. Airflow counts those after the first."""
        retries = None if self.is_dag_level else _int(value_of(self._ti, "max_tries"))
        return None if retries is None else retries + 1

    @property
    def will_retry(self) -> bool | None:
        """Whether Airflow tries again by itself, ``None`` if that is not known."""
        if (
            self.asked_kind in (AlertKind.SKIPPED, AlertKind.DAG_FAILED, AlertKind.QUESTION)
            or self.is_dag_level
        ):
            return False
        return self._tried_again

    @property
    def _tried_again(self) -> bool | None:
        if self.asked_kind is AlertKind.RETRY:
            return True
        state = value_of(self._ti, "state")
        state = _text(value_of(state, "value") or state)
        if state in ("up_for_retry", "failed"):
            return state == "up_for_retry"
        if isinstance(self.context.get("exception"), (AirflowFailException, AirflowSensorTimeout)):
            return False
        if self.try_number is None or self.max_tries is None:
            return None
        return self.try_number < self.max_tries

    @property
    def asked(self) -> Asked | None:
        """What to ask the ledger, ``None`` if it cannot be asked."""
        if self.dag_id is None or self.run_id is None:
            return None
        return Asked(
            dag_id=self.dag_id,
            run_id=self.run_id,
            task_id=self.task_id,
            map_index=self.map_index,
            try_number=self.try_number,
        )

    @property
    def ledger_conn_id(self) -> str | None:
        """The ledger that the task names, or the first task of the DAG that names one."""
        tasks = [self.task, *(value_of(self.dag, "tasks") or ())]
        return _text(next(filter(None, (value_of(task, "ledger_conn_id") for task in tasks)), None))

    @property
    def team(self) -> str | None:
        """What the tag ``team:…`` of the DAG names."""
        for tag in value_of(self.dag, "tags") or ():
            name, colon, team = str(tag).partition(":")
            if colon and name == "team" and team:
                return team
        return None

    # -- what -----------------------------------------------------------------------------------------------

    @property
    def happened(self) -> str | None:
        """What happened in words, as far as the context says it."""
        if self.kind is AlertKind.DEADLINE:
            due = value_of(self.context.get("deadline"), "deadline_time")
            return f"The run was not done by {due}." if due else "The run was not done by its deadline."
        return exception_in_words(self.context.get("exception")) or reason_in_words(
            self.context.get("reason")
        )

    @property
    def started_at(self) -> datetime | None:
        """When the try, or the run, began."""
        places = (value_of(self._ti, "start_date"), value_of(self.context.get("dag_run"), "start_date"))
        for value in places:
            if isinstance(value, datetime) and value.tzinfo is not None:
                return value
        return None

    @property
    def allowed(self) -> str | None:
        """The tolerances of a reconciliation in words."""
        rules = value_of(value_of(self.task, "sensor_spec"), "rules")
        with suppress(AttributeError, TypeError):
            return tolerances_in_words(rules)
        return None

    def derived_date(self) -> date | None:
        """Return the business date by the rules of the task, if the run offers one. Never today's."""
        rule = value_of(self.task, "business_date")
        if self.is_dag_level or callable(rule):
            return None
        with suppress(Exception):  # whatever a reduced context lacks
            return business_date_of(self.context, rule)
        return None

    @property
    def link(self) -> str | None:
        """The address of the task, or of the run, in the Airflow UI."""
        if self.dag_id is None:
            return None
        base = (conf.get("api", "base_url", fallback=None) or "http://localhost:8080").rstrip("/")
        link = f"{base}/dags/{quote(self.dag_id, safe='')}"
        if self.run_id is None:
            return link
        link += f"/runs/{quote(self.run_id, safe='')}"
        if self.task_id is None:
            return link
        mapped = f"/mapped/{self.map_index}" if self.map_index is not None and self.map_index >= 0 else ""
        return f"{link}/tasks/{quote(self.task_id, safe='')}{mapped}"


def value_of(place: Any, name: str) -> Any:
    """Return a value of a mapping or an object, ``None`` if it is not there or cannot be had."""
    with suppress(Exception):  # properties of a context's objects may ask Airflow, which may not answer
        return place.get(name) if isinstance(place, Mapping) else getattr(place, name, None)
    return None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
