"""Each case of the page has a test that carries its number, and the tests that the page names are there."""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.docs.pages import ROOT, page

PAGE = "docs/cases.md"
_COMPLETE = "C01 C03 C05 C07 C09 C11 C13 C15 C17 C19 C21 C23 C25 C27 C29 C31 C33 C34 C37 C38"
_REDUCED = "R01 R03 R05 R07 R09 R11 R13 R15 R17 R19"
NUMBERS = f"{_COMPLETE} {_REDUCED}".split(" ")
_LINE = re.compile(r"^\| (?P<number>[CR]\d\d) \| (?P<what>[^|]+) \| (?P<tests>[^|]+) \|$", re.MULTILINE)


def listed() -> dict[str, str]:
    """Return what the page says shows each case."""
    lines = list(_LINE.finditer(page(PAGE).text))
    assert len({line["number"] for line in lines}) == len(lines), "a case is listed twice"
    return {line["number"]: line["tests"].strip() for line in lines}


@cache
def names_in_the_suite() -> frozenset[str]:
    """Return the names of all test functions."""
    files = (ROOT / "tests").rglob("test_*.py")
    return frozenset(
        name
        for file in files
        for name in re.findall(
            r"^\s*(?:async )?def (test_\w+)\(", file.read_text(encoding="utf-8"), re.MULTILINE
        )
    )


def carries(test: str, number: str) -> bool:
    """Whether a test has the number of a case in its name."""
    return f"_{number.lower()}_" in test


def test_every_case_is_listed_once() -> None:
    assert sorted(listed()) == sorted(NUMBERS)


@pytest.mark.parametrize("number", NUMBERS)
def test_each_case_has_a_test_of_its_number(number: str) -> None:
    said = listed()[number]
    of_the_case = {test for test in names_in_the_suite() if carries(test, number)}
    named = set(re.findall(r"`(test_\w+)`", said))
    assert named, f"{PAGE} names no test for {number}"
    assert named <= names_in_the_suite(), f"{number}: {sorted(named - names_in_the_suite())} are not there"
    assert named & of_the_case, f"no test of {number} has the number in its name"


def test_a_number_in_the_name_of_a_test_is_one_of_the_page() -> None:
    found = {
        number.upper() for test in names_in_the_suite() for number in re.findall(r"(?<=_)[cr]\d\d(?=_)", test)
    }
    assert found <= set(NUMBERS)
