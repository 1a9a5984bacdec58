"""What narrows a list down. Every part that is given must hold; what a caller may read is no part of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import date

    from airflow_guard.core.checks import BreakState, CheckOutcome
    from airflow_guard.core.decisions import Situation
    from airflow_guard.core.monitoring.attention import AttentionKind


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfTask:
    """What lists have in common.

    :param start: first business date; without dates, a list that may be long takes the newest 31 dates that there are.
    :param end: last business date, inclusive.
    :param cycle: ``""``: those without; ``None``: all.
    :param run_id: of an Airflow run, with ``dag_id``.
    :param map_index: of a mapped task; ``None``: all.
    """

    dag_id: str | None = None
    start: date | None = None
    end: date | None = None
    key_namespace: str | None = None
    operation: str | None = None
    cycle: str | None = None
    run_id: str | None = None
    task_id: str | None = None
    map_index: int | None = None
    try_number: int | None = None
    deployment: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFilters(_OfTask):
    """Which keys. With a run, task or try: the keys whose last attempt it was.

    :param situations: empty: all. With only unfinished ones and no dates, those of all dates.
    """

    situations: frozenset[Situation] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class TryFilters(_OfTask):
    """Which task tries.

    :param duplicates: only those that found work done, or were kept from it.
    """

    duplicates: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFilters(_OfTask):
    """Which reconciliations.

    :param outcomes: empty: all, also those that go on.
    :param stale: only those that found their date changed after it had passed.
    """

    outcomes: frozenset[CheckOutcome] = frozenset()
    stale: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakFilters(_OfTask):
    """Which breaks. With a run, task or try: those that it saw last.

    :param states: empty: open and explained.
    :param group: exactly this group; ``None``: all.
    :param document: exactly this one.
    :param min_age_s: first seen at least so long ago.
    """

    states: frozenset[BreakState] = frozenset()
    break_type: str | None = None
    group: Mapping[str, str | None] | None = None
    document: str | None = None
    min_age_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionFilters:
    """What of the list of what needs a person.

    :param kinds: empty: all.
    """

    dag_id: str | None = None
    start: date | None = None
    end: date | None = None
    deployment: str | None = None
    kinds: frozenset[AttentionKind] = frozenset()
