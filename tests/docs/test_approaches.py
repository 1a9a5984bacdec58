"""The tables of the comparison are what the tests of the approaches find."""

from __future__ import annotations

import pytest

from tests.approaches.findings import ASKS, LOST, MISSING, ONCE, TWICE, WHAT_WAS_DONE, WHO_MAY_START, lines
from tests.docs.pages import page

PAGE = "docs/approaches.md"


@pytest.mark.parametrize("approaches", [WHO_MAY_START, WHAT_WAS_DONE], ids=["who may start", "what was done"])
def test_a_table_shows_what_the_tests_find(approaches: dict[str, str]) -> None:
    assert "\n".join(lines(approaches)) in page(PAGE).text


def test_the_page_has_no_other_finding() -> None:
    known = {line for each in (WHO_MAY_START, WHAT_WAS_DONE) for line in lines(each)}
    cells = {ONCE, TWICE, LOST, ASKS, MISSING}
    for line in page(PAGE).text.splitlines():
        words = [cell.strip(" *") for cell in line.split("|")[2:-1]]
        if line.startswith("|") and words and set(words) <= cells:
            assert line in known, line
