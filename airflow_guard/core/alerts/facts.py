"""What an alert knows, and which problem it tells of. Every fact may be missing; nothing is guessed."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from airflow_guard.core.checks import digest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import date, datetime


# -- What an alert knows. Every fact may be missing; nothing is guessed --------------------------------------

UNKNOWN = "unknown"


class AlertKind(StrEnum):
    """What is wrong.

    The first group is said by a callback of Airflow, or by the task that asks a question; the second by
    ``GuardWatchOperator``, which also finds what no callback can say.
    """

    FAILED = "failed"
    RETRY = "retry"
    SKIPPED = "skipped"
    DAG_FAILED = "dag_failed"
    DEADLINE = "deadline"
    QUESTION = "question"

    LEASE_EXPIRED = "lease_expired"
    IN_DOUBT = "in_doubt"
    BREAKS = "breaks"
    CHANGED = "changed"
    UNDELIVERED = "undelivered"
    MISSING = "missing"
    EMPTY = "empty"
    LEFT = "left"
    FAIL_OVER = "fail_over"
    PARTITIONS = "partitions"

    @property
    def is_of_the_ledger(self) -> bool:
        """Whether it is about the ledger itself, and no DAG."""
        return self in (AlertKind.FAIL_OVER, AlertKind.PARTITIONS)


class Stage(StrEnum):
    """Which message about one problem; each is sent once."""

    FIRST = "first"
    ESCALATION = "escalation"
    RESOLVED = "resolved"


class Severity(StrEnum):
    """How urgent it is: ``LOW`` may wait for the morning."""

    LOW = "low"
    HIGH = "high"


@dataclass(frozen=True, slots=True)
class Step:
    """What a person does next.

    :param words: one sentence.
    :param command: the exact command line, if there is one.
    """

    words: str
    command: str | None = None


@dataclass(frozen=True, kw_only=True)
class AlertFacts:
    """The facts of one alert. ``None``: unknown.

    :param task_id: ``None`` with ``is_dag_level``: it is about the run as a whole.
    :param map_index: -1: not mapped.
    :param max_tries: how many tries there are in all, from 1.
    :param will_retry: whether Airflow tries again by itself.
    :param happened: what happened, in one sentence.
    :param counts: documents by outcome; ``documents`` is all of them.
    :param figures: lines with the totals of both sides, variance and threshold.
    :param documents: the first documents that want somebody's attention.
    :param more_documents: how many others there are.
    :param since: since when, aware.
    :param steps: what to do next, in that order.
    :param link: to the task, or to the run, in the Airflow UI.
    :param team: who gets it.
    """

    kind: AlertKind = AlertKind.FAILED
    stage: Stage = Stage.FIRST
    is_dag_level: bool = False
    dag_id: str | None = None
    task_id: str | None = None
    map_index: int | None = None
    business_date: date | None = None
    cycle: str | None = None
    run_id: str | None = None
    try_number: int | None = None
    max_tries: int | None = None
    will_retry: bool | None = None
    happened: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    figures: Sequence[str] = ()
    documents: Sequence[str] = ()
    more_documents: int = 0
    since: datetime | None = None
    steps: Sequence[Step] = ()
    link: str | None = None
    team: str | None = None

    @property
    def severity(self) -> Severity:
        """``LOW`` where nobody has to get up: it is tried again, was skipped, is resolved, or wants upkeep."""
        calm = (
            self.kind in (AlertKind.RETRY, AlertKind.SKIPPED, AlertKind.PARTITIONS)
            or self.stage is Stage.RESOLVED
        )
        return Severity.LOW if calm or self.will_retry else Severity.HIGH

    def redacted(self, redact: Callable[[str], str]) -> AlertFacts:
        """Return the facts with every text redacted."""
        return replace(
            self, **{each.name: _redacted(getattr(self, each.name), redact) for each in fields(self)}
        )


def _redacted(value: Any, redact: Callable[[str], str]) -> Any:
    if isinstance(value, StrEnum):
        return value
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Step):
        return Step(redact(value.words), value.command and redact(value.command))
    if isinstance(value, (tuple, list)):
        return tuple(_redacted(each, redact) for each in value)
    return value


# -- What makes two alerts the same: the problem that they tell of -------------------------------------------

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
