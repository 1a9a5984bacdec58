"""Texts of others: secrets in them, names that somebody may have meant, cells that a spreadsheet opens; and times in words."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime


# -- Secrets in texts of others, such as an exception that quotes a connection string ------------------------

HIDDEN = "***"
MAX_CHARACTERS = 10_000
"""What comes after it is never shown: an exception may quote a whole file."""
_NAMES = (
    r"(?:password|passwd|passphrase|pwd|secret|token|api[_-]?key|access[_-]?key|account[_-]?key|"
    r"private[_-]?key|signature|credential)[\w.-]{0,40}"
)
# What a pattern keeps is its first group; what follows it is hidden.
_PATTERNS = (
    re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    # Up to the last @, since a password that was not encoded may hold one.
    re.compile(r"(\b[a-z][\w+.-]{0,40}://[^:/@\s]{0,200}:)[^\s]*(?=@)", re.IGNORECASE),
    re.compile(r"(\b(?:authorization|proxy-authorization)\b[\"']?\s*[:=]\s*)[^\r\n,;]+", re.IGNORECASE),
    re.compile(r"(\b(?:bearer|basic)\s+)[A-Za-z0-9+/_.~-]{6,}=*", re.IGNORECASE),
    re.compile(rf"({_NAMES}[\"']?\s*[:=]\s*)\"(?:[^\"\\]|\\.)*(?:\"|\Z)", re.IGNORECASE),
    re.compile(rf"({_NAMES}[\"']?\s*[:=]\s*)'(?:[^'\\]|\\.)*(?:'|\Z)", re.IGNORECASE),
    re.compile(rf"({_NAMES}\s*[:=]\s*)(?![\"'\s]|\*\*\*)[^\s&;,)}}\]]+", re.IGNORECASE),
)


def described(error: BaseException) -> str:
    """Return an error with the name of its type, without secrets.

    >>> described(TimeoutError("no answer from ftp://guard:s3cret@bank"))
    'TimeoutError: no answer from ftp://guard:***@bank'
    """
    return without_secrets(f"{type(error).__name__}: {error}")


def without_secrets(text: str) -> str:
    """Return a text without what looks like a secret. Idempotent; no longer than 10,000 characters.

    >>> without_secrets("no route to postgresql://guard:s3cret@db/ledger (password=s3cret)")
    'no route to postgresql://guard:***@db/ledger (password=***)'

    It works by form. Values that Airflow knows to be secret are hidden by Airflow's own masker, before this.
    """
    text = text[:MAX_CHARACTERS]
    for pattern in _PATTERNS:
        text = pattern.sub(rf"\1{HIDDEN}", text)
    return text


# -- What somebody may have meant by a name that is not known ------------------------------------------------

_MOST = 3
_LISTED = 8


def near(name: str, known: Iterable[str]) -> list[str]:
    """Return the known names that are like this one, the likest first.

    >>> near("alert", ["alerts", "team", "retries"])
    ['alerts']
    >>> near("Statement", ["statements", "payments"])
    ['statements']
    """
    # Names that differ in their case only are the likest of all.
    by_folded = {each.casefold(): each for each in sorted(known)}
    found = difflib.get_close_matches(name.casefold(), by_folded, n=_MOST, cutoff=0.7)
    return [by_folded[each] for each in found]


def meant(name: str, known: Iterable[str], *, all_if_none: bool = False) -> str:
    """Return a sentence that offers what may have been meant, with a space before it; nothing to offer: ``""``.

    >>> meant("alert", ["alerts", "team"])
    ' Did you mean alerts?'
    >>> meant("zzz", ["alerts", "team"], all_if_none=True)
    ' Known: alerts, team.'
    >>> meant("zzz", ["alerts", "team"])
    ''

    :param all_if_none: whether the first known names are named where none is near.
    """
    names = sorted(set(known))
    found = near(name, names)
    if found:
        return f" Did you mean {' or '.join(found)}?"
    if not all_if_none or not names:
        return ""
    more = f", … ({len(names):,} in all)" if len(names) > _LISTED else ""
    return f" Known: {', '.join(names[:_LISTED])}{more}."


# -- Cells of a CSV file that a spreadsheet opens: text, never a formula -------------------------------------

# OWASP, "CSV Injection": a cell that begins so is a formula to a spreadsheet. The full-width forms are taken for the
# same by some.
_FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?")


def safe_cell(value: object) -> str | int:
    """Return a value as a cell that no spreadsheet executes.

    What would be a formula gets an apostrophe before it, which spreadsheets do not show. Numbers stay numbers.

    >>> safe_cell("=HYPERLINK(1)"), safe_cell("-12.50"), safe_cell("-12.50+cmd"), safe_cell(None), safe_cell(7)
    ("'=HYPERLINK(1)", '-12.50', "'-12.50+cmd", '', 7)
    """
    if value is None:
        return ""
    if isinstance(value, int):
        return int(value)
    text = str(value).replace("\x00", "\\x00")
    if text.lstrip(" \u00a0").startswith(_FORMULA) and not _NUMBER.fullmatch(text):
        return f"'{text}"
    return text


def cell_meant(text: str) -> str:
    """Return what a cell of an export was, without the apostrophe of :func:`safe_cell`.

    >>> cell_meant("'=HYPERLINK(1)"), cell_meant("'quoted'"), cell_meant("-12.50")
    ('=HYPERLINK(1)', "'quoted'", '-12.50')
    """
    return text[1:] if text.startswith("'") and safe_cell(text[1:]) == text else text


# -- Times and lengths of time as people read them at a terminal ---------------------------------------------


def instant(at: datetime | None) -> str | None:
    """Return an instant as people read it."""
    return None if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def age(seconds: float) -> str:
    """Return a length of time in its two largest units."""
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if minutes < 1:
        return f"{int(seconds)} s"
    if hours < 1:
        return f"{minutes} min"
    if days < 1:
        return f"{hours} h {minutes % 60} min"
    return f"{days} d {hours % 24} h"
