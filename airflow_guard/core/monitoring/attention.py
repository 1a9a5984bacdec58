"""What needs a person first."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date, datetime


class AttentionKind(StrEnum):
    """Why somebody has to look, the worst first."""

    IN_DOUBT = "in_doubt"
    BREAK = "break"
    FOLLOW_UP = "follow_up"
    REJECTED = "rejected"
    STALE = "stale"
    """Reconciled, and changed since."""
    DIED = "died"
    """A process is gone, and no other try has come after it."""
    FAILED = "failed"
    """Nothing has happened; the next run executes it."""


@dataclass(frozen=True, slots=True)
class AttentionItem:
    """One operation and date where something waits for a person.

    :param count: keys, breaks or tries.
    :param samples: a few documents, or breaks in words.
    :param since: since when, as far as it is known.
    :param age_s: the same in seconds (database clock).
    :param key: ``key_date`` and ``key_hash``, if it is about one key.
    :param ref: id of the break, check or try, if it is about one.
    """

    kind: AttentionKind
    dag_id: str
    key_namespace: str
    operation: str
    business_date: date
    cycle: str
    count: int
    samples: Sequence[str] = ()
    since: datetime | None = None
    age_s: float | None = None
    key: tuple[date, str] | None = None
    ref: int | None = None


def break_words(break_type: str, count: int, documents: Sequence[str]) -> str:
    """Return several breaks of one type in words.

    :param documents: the first, and the last if there is another; empty if none could be named.

    >>> break_words("amount_mismatch", 12, ["INV-1", "INV-9"]), break_words("totals_mismatch", 1, [])
    ('12 amount mismatch: INV-1 and 11 more', '1 totals mismatch')
    """
    words = f"{count:,} {break_type.replace('_', ' ')}"
    if not documents:
        return words
    named = documents if count <= len(documents) else documents[:1]
    more = f" and {count - len(named):,} more" if count > len(named) else ""
    return f"{words}: {', '.join(named)}{more}"
