"""How a check of two sides ends, what a break is and what state it is in, and when a difference has settled.

A difference is no break yet: rows may arrive late. It settles when it was seen the same way so many times in a
row, or when the time is over.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_guard.core.keys import KeySpace


class CheckOutcome(StrEnum):
    """How a check ended.

    ``PASSED``: both sides were read and agree. ``BROKEN``: they differ. ``EMPTY``: neither has a row, and
    nobody said that this is right. ``FAILED``: they could not be compared.
    """

    PASSED = "passed"
    BROKEN = "broken"
    EMPTY = "empty"
    FAILED = "failed"


class BreakState(StrEnum):
    """State of a break.

    ``OPEN``: somebody has to look at it. ``EXPLAINED``: a person accepts it as it is, with a reason; another
    amount opens it again. ``RESOLVED``: it is gone, or a person has settled it; found again it is open again.
    """

    OPEN = "open"
    EXPLAINED = "explained"
    RESOLVED = "resolved"


TOTALS_MISMATCH = "totals_mismatch"
"""Type of a break of a whole group: its totals differ, and no document could be named."""


BOTH_EMPTY = "both_empty"
"""Type of a break of a whole date: neither side has a row."""


class Step(StrEnum):
    """What to do after one look at the two sides."""

    PASS = "pass"  # noqa: S105 - the two sides agree
    WAIT = "wait"
    SETTLED = "settled"
    TIME_OVER = "time_over"


@dataclass(frozen=True)
class Progress:
    """What the looks so far have seen. Kept between them, wherever the task waits.

    :param pokes: looks so far.
    :param same: how many of the last ones saw the same difference, 0 if the last one saw none.
    :param difference: digest of that difference.
    :param errors: looks that could not read a side.
    :param last_error: what the last of them said.
    """

    pokes: int = 0
    same: int = 0
    difference: str | None = None
    errors: int = 0
    last_error: str | None = None

    def saw(self, difference: str | None) -> Progress:
        """Return the progress after a look that read both sides.

        :param difference: digest of all that differs, ``None`` if nothing does.
        """
        same = 0 if difference is None else self.same + 1 if difference == self.difference else 1
        return replace(self, pokes=self.pokes + 1, same=same, difference=difference)

    def failed(self, error: str) -> Progress:
        """Return the progress after a look that could not read a side. It says nothing about the difference."""
        return replace(self, pokes=self.pokes + 1, errors=self.errors + 1, last_error=error)


def step_after(progress: Progress, *, compared: bool, settle_pokes: int, time_over: bool) -> Step:
    """Return what to do after a look.

    :param progress: with that look in it.
    :param compared: whether it read both sides.
    :param settle_pokes: how often in a row the same difference must be seen.
    :param time_over: whether ``timeout`` has passed since the first look.
    """
    if compared and progress.difference is None:
        return Step.PASS
    if compared and progress.same >= settle_pokes:
        return Step.SETTLED
    return Step.TIME_OVER if time_over else Step.WAIT


@dataclass(frozen=True)
class FoundBreak:
    """A difference as it is stored: every value as exact text, so that no database rounds it.

    :param break_type: what differs: ``missing_in_target``, ``amount_mismatch`` and so on.
    :param group: the values of ``group_by`` by column; ``None`` is NULL.
    :param document: the key, several columns as a JSON list; ``None``: the whole group, or a key that is NULL.
    :param field: the column that differs, ``None`` if none in particular.
    :param variance: target minus source, ``None`` where that means nothing.
    :param source_records: rows of the source with this key.
    :param target_records: rows of the target with it.
    """

    break_type: str
    group: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    document: str | None = None
    field: str | None = None
    source_value: str | None = None
    target_value: str | None = None
    variance: str | None = None
    source_records: int | None = None
    target_records: int | None = None

    @property
    def name(self) -> str | None:
        """The document for people: the columns of a key one after the other."""
        return None if self.document is None else name_of(self.document)

    @property
    def values(self) -> tuple[str | int | None, ...]:
        """What may change while it stays the same break."""
        texts = (self.source_value, self.target_value, self.variance)
        return (*texts, self.source_records, self.target_records)

    @property
    def values_digest(self) -> str:
        """The 32 hex characters that change with its values: a person accepts a break as it was shown."""
        return digest(*(None if value is None else str(value) for value in self.values))

    def version(self, state: BreakState) -> str:
        """Return what changes whenever it is another break to decide about: its state, or one of its values."""
        return digest(state.value, *(None if value is None else str(value) for value in self.values))

    def hash_in(self, space: KeySpace) -> str:
        """Return the 32 hex characters by which it is found again: all that it is, without its values."""
        group = json.dumps(sorted(self.group.items()))
        return digest(*scope_of(space), self.break_type, group, self.document, self.field)

    def describe(self) -> str:
        """Return it as a person reads it in a message."""
        where = printable(self.name) if self.name is not None else _group_text(self.group)
        what = f" {self.field}" if self.field else ""
        sides = f" {_shown(self.source_value)} / {_shown(self.target_value)}"
        values = "" if self.source_value is None and self.target_value is None else sides
        if max(self.source_records or 0, self.target_records or 0) > 1:
            values += f" ({self.source_records or 0} / {self.target_records or 0} rows)"
        variance = f" ({_signed(self.variance)})" if self.variance else ""
        return f"{self.break_type}{what} {where}{values}{variance}"


def name_of(document: str) -> str:
    """Return a stored document for people.

    >>> name_of("D-1"), name_of('["ACME", "2026-01"]')
    ('D-1', 'ACME / 2026-01')
    """
    try:
        parts = json.loads(document) if document.startswith("[") else None
    except ValueError:
        return document
    if isinstance(parts, list) and parts and all(isinstance(part, str) for part in parts):
        return " / ".join(parts)
    return document


def scope_of(space: KeySpace) -> tuple[str, ...]:
    """Return what says which two sides are checked, for which date."""
    return (
        space.deployment,
        space.key_namespace,
        space.operation,
        space.business_date.isoformat(),
        space.cycle,
    )


def digest(*parts: str | None) -> str:
    """Return 32 hex characters that depend on every part, and on where each ends.

    >>> digest("ab", "c") == digest("a", "bc")
    False
    >>> digest(None) == digest("")
    False
    """
    hashed = hashlib.sha256()
    for part in parts:
        data = b"" if part is None else part.encode("utf-8", "surrogatepass")
        hashed.update(b"-" if part is None else b"%d:%b" % (len(data), data))
    return hashed.hexdigest()[:32]


def printable(text: str) -> str:
    r"""Return text with control characters spelt out: stored text must not steer a terminal or forge a log line.

    >>> printable("D-1\x1b[2J")
    'D-1\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _group_text(group: Mapping[str, str | None]) -> str:
    named = ", ".join(f"{column}={_shown(value)}" for column, value in group.items())
    return named or "(all rows)"


def _shown(value: str | None) -> str:
    return "none" if value is None else printable(value)


def _signed(variance: str) -> str:
    return variance if variance.startswith("-") else f"+{variance}"
