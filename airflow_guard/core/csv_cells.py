"""Cells of a CSV file that a spreadsheet opens: text, never a formula."""

from __future__ import annotations

import re

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
