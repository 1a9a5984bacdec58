"""How values read on a page: figures, amounts, instants, words of states, and the moments of a key's life."""

from __future__ import annotations

import re
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

if TYPE_CHECKING:
    from airflow_guard.reading.key_records import TimelineEntry


# -- How values read on a page: figures, amounts, instants, lengths of time, and the words of states ---------

# Control characters, and those that turn the direction of what follows: stored text must not disguise itself.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_PLAIN_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?")

NOTHING = "\u2013"


def shown(text: Any) -> str:
    r"""Return stored text as it may stand on a page: what cannot be seen is spelt out.

    >>> shown("D-1\u202e")
    'D-1\\u202e'
    """
    return _UNSEEN.sub(
        lambda each: each.group().encode("unicode_escape", "surrogatepass").decode(), str(text)
    )


def number(value: int | None) -> str:
    """Return a count with thousands separators.

    >>> number(1234567)
    '1,234,567'
    """
    return NOTHING if value is None else f"{value:,}"


def amount(value: Any, *, signed: bool = False) -> str:
    """Return an amount with thousands separators and every digit that is stored; what is no number stays as it is.

    >>> amount("1234.50"), amount("0.1000"), amount("Ada"), amount("-7", signed=True), amount("7", signed=True)
    ('1,234.50', '0.1000', 'Ada', '-7', '+7')
    """
    if value is None:
        return NOTHING
    text = str(value)
    if not _PLAIN_NUMBER.fullmatch(text):
        return shown(text)
    try:
        exact = Decimal(text)
    except InvalidOperation:
        return shown(text)
    sign = "+" if signed else "-"
    return format(exact, f"{sign},f")


def age(seconds: float | None) -> str:
    """Return a length of time in its two largest units.

    >>> age(59), age(3720), age(90000)
    ('59 s', '1 h 2 min', '1 d 1 h')
    """
    if seconds is None:
        return NOTHING
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if minutes < 1:
        return f"{max(0, int(seconds))} s"
    if hours < 1:
        return f"{minutes} min"
    if days < 1:
        return f"{hours} h {minutes % 60} min"
    return f"{days} d {hours % 24} h"


def instant(at: datetime | None) -> str | Markup:
    """Return an instant in UTC; the page's script shows it in the user's zone, and UTC when pointed at."""
    if at is None:
        return NOTHING
    text = f"{at:%Y-%m-%d %H:%M:%S}"
    return Markup('<time datetime="{}Z" data-instant>{} UTC</time>').format(text.replace(" ", "T"), text)


def day(value: date | None) -> str:
    """Return a business date: never shifted, whatever the user's zone."""
    return NOTHING if value is None else value.isoformat()


def said(value: Any) -> str | Markup:
    """Return a value of an act as it may stand on a page: by its type."""
    if isinstance(value, datetime):
        return instant(value)
    if isinstance(value, date):
        return day(value)
    if isinstance(value, int):
        return number(value)
    return "" if value is None else shown(value)


# -- The moments of a key's life in words --------------------------------------------------------------------

_WORDS = {
    "first_claimed": "Claimed for the first time",
    "claimed": "Claimed",
    "begun": "The effect began",
    "finished": "Finished",
    "renamed": "The operation was renamed",
    "asked_again": "Asked for again, and held off",
    "doubt": "In doubt: the effect may or may not have happened",
    "take_over": "Taken over by another attempt",
    "late_report": "Its attempt reported late",
    "resolve_happened": "Resolved: it happened",
    "resolve_not_happened": "Resolved: it did not happen",
    "waive": "Waived: settled another way",
    "send_again": "To be sent again",
    "drop": "Dropped: not done, and not to be",
    "follow_up_settled": "What follows the effect is settled",
    "follow_up_failed": "The effect is done, what follows it failed",
    "content_accepted": "Accepted: it stands for other content too",
    "new_content": "Claimed with new content",
    "adopt": "Adopted: recorded as done by a person",
    "rerun": "A person authorised that it is executed again",
    "rename": "The operation was renamed",
    "purge": "Purged",
    "namesake": "Done under another key namespace as well",
}
_BY_PEOPLE = {"resolve_happened", "resolve_not_happened", "waive", "send_again", "drop", "follow_up_settled",
              "content_accepted", "adopt", "rerun",
              "rename", "renamed"}  # fmt: skip


def words(entry: TimelineEntry) -> str:
    """Return what happened."""
    return _WORDS.get(entry.kind, entry.kind.replace("_", " ").capitalize())


def kind_of(entry: TimelineEntry) -> str:
    """Return how a moment is drawn: ``person``, ``bad``, ``held``, ``good`` or nothing special."""
    if entry.kind in _BY_PEOPLE:
        return "person"
    if entry.kind in ("doubt", "follow_up_failed", "namesake") or entry.to_state in (
        "in_doubt",
        "rejected",
        "failed",
    ):
        return "bad"
    if entry.kind in ("asked_again", "take_over"):
        return "held"
    return "good" if entry.kind in ("finished", "late_report") else ""
