"""What somebody may have meant by a name that is not known."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

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
