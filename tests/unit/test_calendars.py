"""The calendar over the holidays library. Skipped, visibly, where the extra is not installed."""

from __future__ import annotations

import doctest
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import airflow_guard
from airflow_guard.core import calendar_rules
from airflow_guard.core.calendar_rules import BusinessCalendar, HolidayCalendar
from airflow_guard.core.dates import (
    NoBusinessDate,
    RunFacts,
    business_day,
    previous_business_day,
    resolve_business_date,
)
from airflow_guard.core.errors import BusinessDateError, CalendarError

PROJECT = Path(airflow_guard.__file__).parents[1]
holidays = pytest.importorskip("holidays", reason="needs the extra 'calendars'")


def run(own: date) -> RunFacts:
    return RunFacts(
        dag_id="d",
        run_id="r",
        run_type="scheduled",
        timezone=UTC,
        logical_at=datetime(own.year, own.month, own.day, tzinfo=UTC),
    )


@pytest.mark.parametrize(
    ("country", "subdivision", "day", "is_open"),
    [
        ("DE", None, "2025-01-06", True),
        ("DE", "BY", "2025-01-06", False),  # Epiphany, in Bavaria only
        ("DE", None, "2025-10-03", False),
        ("DE", None, "2025-10-04", False),  # Saturday
        ("DE", None, "2025-10-06", True),
        ("EG", None, "2025-06-13", False),  # Friday
        ("EG", None, "2025-06-14", False),  # Saturday
        ("EG", None, "2025-06-15", True),  # Sunday
        ("US", None, "2021-12-31", False),  # New Year's Day 2022, observed in the year before
        ("HU", None, "2024-12-07", True),  # a working Saturday
        ("GB", "SCT", "2025-01-02", False),
        ("GB", "ENG", "2025-01-02", True),
        ("ECB", None, "2025-05-01", False),  # TARGET2
        ("ECB", None, "2025-10-03", True),
        ("XNYS", None, "2025-07-04", False),
    ],
)
def test_business_days_of_countries_and_markets(country, subdivision, day, is_open):
    assert HolidayCalendar(country, subdivision).is_business_day(date.fromisoformat(day)) is is_open


@pytest.mark.parametrize("day", [date(2025, 7, 3), date(2025, 11, 28), date(2025, 12, 24)])
def test_c11_a_day_that_closes_early_is_a_business_day(day):
    assert HolidayCalendar("XNYS").is_business_day(day)
    after = day + timedelta(days=1)
    assert resolve_business_date(run(after), previous_business_day("XNYS", otherwise="run")).date == day


def test_c11_previous_business_day_over_easter_and_the_turn_of_the_year():
    rule = previous_business_day("DE")
    assert resolve_business_date(run(date(2025, 4, 22)), rule).date == date(2025, 4, 17)
    assert resolve_business_date(run(date(2025, 1, 2)), rule).date == date(2024, 12, 31)
    assert resolve_business_date(run(date(2025, 1, 7)), rule).date == date(2025, 1, 6)
    bavaria = previous_business_day("DE", subdivision="BY")
    assert resolve_business_date(run(date(2025, 1, 7)), bavaria).date == date(2025, 1, 3)


def test_a_holiday_is_skipped_or_refused_as_the_rule_says():
    unity = run(date(2025, 10, 3))
    skipped = resolve_business_date(unity, previous_business_day("DE", otherwise="skip"))
    assert skipped == NoBusinessDate(
        "2025-10-03 is not a business day (DE), and "
        "business_date=previous_business_day('DE') skips such days."
    )
    with pytest.raises(BusinessDateError, match=r"2025-10-03 is not a business day \(DE\)"):
        resolve_business_date(unity, previous_business_day("DE", otherwise="error"))
    assert resolve_business_date(unity, previous_business_day("DE", otherwise="run")).date == date(
        2025, 10, 2
    )
    assert resolve_business_date(unity, business_day("DE", otherwise="next")).date == date(2025, 10, 6)


def test_c11_an_explicit_holiday_is_rejected_where_the_policy_is_error():
    facts = RunFacts(
        dag_id="d", run_id="r", run_type="manual", timezone=UTC, conf={"business_date": "2025-10-03"}
    )
    with pytest.raises(BusinessDateError, match="not a business day"):
        resolve_business_date(facts, previous_business_day("DE", otherwise="error"))


def test_c11_the_release_of_the_library_is_noted_with_the_date():
    resolved = resolve_business_date(run(date(2025, 1, 10)), previous_business_day("DE"))
    assert resolved.detail.startswith(
        f"previous_business_day('DE') [holidays {holidays.__version__}] of 2025-01-10, the logical date"
    )


@settings(max_examples=30, deadline=None)
@given(day=st.dates(date(2000, 1, 1), date(2040, 12, 31)), country=st.sampled_from(["DE", "US", "GB", "JP"]))
def test_a_year_alone_knows_the_days_that_many_years_together_know(day, country):
    together = holidays.country_holidays(country, years=range(day.year - 1, day.year + 2))
    assert HolidayCalendar(country).is_business_day(day) is together.is_working_day(day)


def test_threads_get_one_answer():
    days = [date(2031, 1, 1) + timedelta(days=n) for n in range(365)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda _: [HolidayCalendar("FR").is_business_day(day) for day in days], range(8))
        )
    assert all(answer == answers[0] for answer in answers)
    assert 240 < sum(answers[0]) < 262


def test_an_unknown_country_names_those_nearby():
    with pytest.raises(CalendarError, match=r"no calendar 'DEX'.*\bDE\b"):
        HolidayCalendar("DEX").is_business_day(date(2025, 1, 6))
    # A constant of the library, not a country.
    with pytest.raises(CalendarError, match="no calendar 'JAN'"):
        HolidayCalendar("JAN").is_business_day(date(2025, 1, 6))


def test_an_unknown_subdivision_names_the_known_ones():
    with pytest.raises(CalendarError, match=r"no subdivision 'XX' of DE.*\bBY\b"):
        HolidayCalendar("DE", "XX").is_business_day(date(2025, 1, 6))


def test_a_year_that_the_library_does_not_know_is_refused_not_taken_as_free_of_holidays():
    with pytest.raises(CalendarError, match=r"from 1991 to \d{4}, not 1950"):
        HolidayCalendar("DE").is_business_day(date(1950, 1, 6))
    with pytest.raises(CalendarError, match="not 3000"):
        HolidayCalendar("DE").is_business_day(date(3000, 1, 6))


WITHOUT_LIBRARY = """
import sys
sys.modules["holidays"] = None
from datetime import date
from airflow_guard.core.dates import previous_business_day
from airflow_guard.core.errors import CalendarError
rule = previous_business_day("DE", otherwise="run")
print(rule)
try:
    rule.date_for(date(2025, 1, 10))
except CalendarError as error:
    print(error)
"""


def test_without_the_library_a_dag_parses_and_its_task_says_what_to_install():
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_LIBRARY], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert "previous_business_day('DE', otherwise='run')" in ran.stdout
    assert "pip install 'airflow-guard[calendars]'" in ran.stdout


def test_writing_a_rule_does_not_import_the_library():
    code = (
        "import sys\n"
        "from airflow_guard.core.dates import previous_business_day\n"
        "previous_business_day('DE')\n"
        "print('holidays' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "False\n"


def test_a_calendar_is_a_value():
    assert HolidayCalendar("DE", "BY") == HolidayCalendar("DE", "BY")
    assert repr(HolidayCalendar("DE", "BY")) == "HolidayCalendar('DE', 'BY')"
    assert repr(HolidayCalendar("DE")) == "HolidayCalendar('DE')"
    assert str(HolidayCalendar("DE", "BY")) == "DE-BY"
    assert isinstance(HolidayCalendar("DE"), BusinessCalendar)


def test_examples_in_docstrings():
    assert doctest.testmod(calendar_rules).failed == 0
