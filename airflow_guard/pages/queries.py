"""From the query of an address to the filters of the read model. What cannot be read is said on the page, not guessed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_guard.core.checks import BOTH_EMPTY, TOTALS_MISMATCH, BreakState, CheckOutcome
from airflow_guard.core.decisions import Situation
from airflow_guard.core.errors import DocumentError
from airflow_guard.core.keys import normalise_document
from airflow_guard.pages.page import business_date
from airflow_guard.reading.lists import (
    AttentionFilters,
    AttentionKind,
    BreakFilters,
    CheckFilters,
    KeyFilters,
    TryFilters,
)
from airflow_guard.reconciling.rules import BreakType

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import date
    from enum import StrEnum

    from airflow_guard.pages.page import Page

_DAY_S = 86_400
AGES = {"1": "1 day", "3": "3 days", "7": "7 days", "30": "30 days"}
"""How old a break is at least, in days."""
TO_SETTLE = (Situation.IN_DOUBT, Situation.FOLLOW_UP_OPEN, Situation.REJECTED)
"""What waits for a person's word."""
BREAK_TYPES = (*(each.value for each in BreakType), TOTALS_MISMATCH, BOTH_EMPTY)


@dataclass
class Query:
    """The filters of a list, as they were given.

    :param problems: what could not be read, in words.
    """

    page: Page
    problems: list[str] = field(default_factory=list)

    def keys(self, default: Iterable[Situation] = ()) -> KeyFilters:
        """Return the filters of a list of keys.

        :param default: situations, where the query names none.
        """
        chosen = self._one_of("state", Situation)
        return KeyFilters(
            **self._of_task(),
            situations=frozenset({chosen} if chosen else default),
        )

    def tries(self, *, duplicates: bool = False) -> TryFilters:
        """Return the filters of a list of task tries."""
        return TryFilters(**self._of_task(), duplicates=duplicates)

    def checks(self) -> CheckFilters:
        """Return the filters of a list of reconciliations."""
        chosen = self._one_of("state", CheckOutcome)
        return CheckFilters(
            **self._of_task(),
            outcomes=frozenset({chosen} if chosen else ()),
            stale=self.page.text("stale") == "yes",
        )

    def breaks(self) -> BreakFilters:
        """Return the filters of a list of breaks."""
        chosen = self._one_of("state", BreakState)
        days = self.page.text("age")
        if days and days not in AGES:
            self.problems.append(f"Age {days!r} is none that can be chosen.")
        kind = self.page.text("type")
        if kind and kind not in BREAK_TYPES:
            self.problems.append(f"There is no type of break {kind!r}.")
        return BreakFilters(
            **self._of_task(),
            states=frozenset({chosen} if chosen else ()),
            break_type=kind or None,
            group=self._group(),
            document=self._document(),
            min_age_s=int(days) * _DAY_S if days in AGES else None,
        )

    def attention(self) -> AttentionFilters:
        """Return the filters of the list of what needs a person."""
        chosen = self._one_of("kind", AttentionKind)
        return AttentionFilters(
            dag_id=self.page.text("dag") or None,
            start=self.date("from"),
            end=self.date("to"),
            kinds=frozenset({chosen} if chosen else ()),
        )

    def date(self, name: str) -> date | None:
        """Return a business date of the query."""
        text = self.page.text(name)
        found = business_date(text)
        if text and found is None:
            self.problems.append(f"{text!r} is no date: write it as 2026-01-31.")
        return found

    def _of_task(self) -> dict[str, Any]:
        text = self.page.text
        return {
            "dag_id": text("dag") or None,
            "start": self.date("from"),
            "end": self.date("to"),
            "key_namespace": text("namespace") or None,
            "operation": text("operation") or None,
            "cycle": text("cycle") or None,
            "run_id": text("run") or None,
            "task_id": text("task") or None,
            "map_index": map_index(text("map_index")),
        }

    def _one_of(self, name: str, kind: type[StrEnum]) -> Any:
        text = self.page.text(name)
        if not text:
            return None
        try:
            return kind(text)
        except ValueError:
            self.problems.append(f"There is no {name} {text!r}.")
            return None

    def _document(self) -> str | None:
        text = self.page.text("document")
        if not text:
            return None
        try:
            return normalise_document(text)
        except DocumentError as error:
            self.problems.append(f"This cannot be a document: {error}")
            return None

    def _group(self) -> dict[str, str | None] | None:
        text = self.page.text("group")
        if not text:
            return None
        parts = [part.partition("=") for part in text.split(",")]
        if any(not equals or not name.strip() for name, equals, _ in parts):
            self.problems.append(f"{text!r} is no group: write it as currency=EUR.")
            return None
        return {name.strip(): None if value.strip() == "none" else value.strip() for name, _, value in parts}


def map_index(text: str) -> int | None:
    """Return the map index of an address; Airflow sends the literal ``{MAP_INDEX}`` for a task that is not mapped."""
    return int(text) if text.isascii() and text.removeprefix("-").isdigit() and len(text) <= 9 else None
