"""The rules, as values and as functions of a run's own date."""

from __future__ import annotations

import doctest
import pickle
import subprocess
import sys
from calendar import monthrange
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import airflow_guard
from airflow_guard.core import calendar_rules, date_checks, date_rules, dates, run_facts
from airflow_guard.core.dates import (
    DateSource,
    HolidayCalendar,
    NoBusinessDate,
    OwnDateRule,
    RunFacts,
    business_day,
    business_month_end,
    from_asset_extra,
    month_end,
    previous_business_day,
    previous_day,
    resolve_business_date,
    same_day,
)
from airflow_guard.core.errors import BusinessDateError, CalendarError, ConfigurationError

PROJECT = Path(airflow_guard.__file__).parents[1]
DAYS = st.dates(date(1900, 2, 1), date(2200, 12, 31))


class Weekdays:
    """A calendar of Mondays to Fridays, less some holidays."""

    def __init__(self, *holidays: date) -> None:
        self.holidays = holidays

    def is_business_day(self, day: date, /) -> bool:
        return day.weekday() < 5 and day not in self.holidays


class Never:
    """A calendar without business days."""

    def is_business_day(self, day: date, /) -> bool:
        return False


WEEKDAYS = Weekdays()


def outcome(rule, own: date):
    """The date, None for a skip, or the error's class, for a run whose own date is ``own``."""
    facts = RunFacts(
        dag_id="d",
        run_id="r",
        run_type="scheduled",
        timezone=UTC,
        logical_at=datetime(own.year, own.month, own.day, tzinfo=UTC),
    )
    try:
        resolved = resolve_business_date(facts, rule)
    except BusinessDateError as error:
        return type(error)
    if isinstance(resolved, NoBusinessDate):
        return None
    assert resolved.source is DateSource.RULE
    return resolved.date


# --- same_day, previous_day ----------------------------------------------------------------------------


@given(DAYS)
def test_same_and_previous_day(own):
    assert outcome(same_day(), own) == own
    assert outcome(previous_day(), own) == own - timedelta(days=1)


@pytest.mark.parametrize(
    ("own", "before"),
    [
        (date(2024, 3, 1), date(2024, 2, 29)),
        (date(2025, 3, 1), date(2025, 2, 28)),
        (date(2000, 3, 1), date(2000, 2, 29)),
        (date(1900, 3, 1), date(1900, 2, 28)),
        (date(2025, 1, 1), date(2024, 12, 31)),
    ],
)
def test_previous_day_at_the_ends_of_months(own, before):
    assert outcome(previous_day(), own) == before


def test_there_is_no_day_before_the_first():
    assert outcome(previous_day(), date(1, 1, 1)) is BusinessDateError
    assert outcome(month_end(otherwise="previous"), date(1, 1, 5)) is BusinessDateError


# --- month_end -----------------------------------------------------------------------------------------


@given(DAYS)
def test_month_end(own):
    last = own.replace(day=monthrange(own.year, own.month)[1])
    if own == last:
        for otherwise in ("error", "skip", "previous", "next"):
            assert outcome(month_end(otherwise=otherwise), own) == own
        return
    assert outcome(month_end(), own) is None
    assert outcome(month_end(otherwise="error"), own) is BusinessDateError
    assert outcome(month_end(otherwise="skip"), own) is None
    assert outcome(month_end(otherwise="next"), own) == last
    assert outcome(month_end(otherwise="previous"), own) == own.replace(day=1) - timedelta(days=1)


@given(st.integers(1900, 2200), st.integers(1, 12))
def test_a_daily_schedule_with_month_end_or_skip_works_once_a_month(year, month):
    days = [date(year, month, day) for day in range(1, monthrange(year, month)[1] + 1)]
    assert [day for day in days if outcome(month_end(otherwise="skip"), day)] == [days[-1]]


def test_a_skip_says_why():
    facts = RunFacts(
        dag_id="d", run_id="r", run_type="manual", timezone=UTC, partition_date=date(2025, 3, 30)
    )
    assert resolve_business_date(facts, month_end(otherwise="skip")) == NoBusinessDate(
        "2025-03-30 is not the last day of its month, and business_date=month_end() skips such days."
    )


# --- business days -------------------------------------------------------------------------------------


@given(DAYS)
def test_previous_business_day_is_the_last_one_before(own):
    found = outcome(previous_business_day(calendar=WEEKDAYS, otherwise="run"), own)
    assert found < own
    assert WEEKDAYS.is_business_day(found)
    between = [found + timedelta(days=n) for n in range(1, (own - found).days)]
    assert not any(WEEKDAYS.is_business_day(day) for day in between)


@given(DAYS)
def test_previous_business_day_minds_the_own_date_only_if_told_to(own):
    plain = outcome(previous_business_day(calendar=WEEKDAYS, otherwise="run"), own)
    skip = outcome(previous_business_day(calendar=WEEKDAYS, otherwise="skip"), own)
    error = outcome(previous_business_day(calendar=WEEKDAYS, otherwise="error"), own)
    if WEEKDAYS.is_business_day(own):
        assert plain == skip == error
    else:
        assert (skip, error) == (None, BusinessDateError)


@given(DAYS, st.integers(5, 40))
def test_a_daily_schedule_with_previous_business_day_or_skip_gives_each_one_once(start, length):
    rule = previous_business_day(calendar=WEEKDAYS, otherwise="skip")
    given_ = [outcome(rule, start + timedelta(days=n)) for n in range(length)]
    found = [day for day in given_ if day is not None]
    expected = [found[0] + timedelta(days=n) for n in range((found[-1] - found[0]).days + 1)]
    assert found == [day for day in expected if WEEKDAYS.is_business_day(day)]


@given(DAYS)
def test_business_day(own):
    def by(otherwise):
        return outcome(business_day(calendar=WEEKDAYS, otherwise=otherwise), own)

    words = ("error", "skip", "previous", "next")
    if WEEKDAYS.is_business_day(own):
        assert {by(word) for word in words} == {own}
    else:
        friday = own - timedelta(days=own.weekday() - 4)
        assert [by(word) for word in words] == [BusinessDateError, None, friday, friday + timedelta(days=3)]


def test_c11_previous_business_day_of_two_releases_of_a_calendar():
    v1, v2 = Weekdays(), Weekdays(date(2025, 1, 9))
    assert outcome(previous_business_day(calendar=v1), date(2025, 1, 10)) == date(2025, 1, 9)
    assert outcome(previous_business_day(calendar=v2), date(2025, 1, 10)) == date(2025, 1, 8)


def test_a_calendar_without_business_days_is_an_error_not_an_endless_search():
    assert (
        outcome(previous_business_day(calendar=Never(), otherwise="run"), date(2025, 1, 10)) is CalendarError
    )
    assert outcome(business_day(calendar=Never(), otherwise="next"), date(2025, 1, 10)) is CalendarError


# --- the month's last business day -----------------------------------------------------------------------


def test_d13_the_last_business_day_of_a_month_that_ends_on_a_weekend():
    rule = business_month_end(calendar=WEEKDAYS)
    assert outcome(rule, date(2022, 4, 29)) == date(2022, 4, 29)  # a Friday, the 30th is a Saturday
    assert outcome(rule, date(2022, 4, 30)) is None
    assert (
        outcome(business_month_end(calendar=WEEKDAYS, otherwise="error"), date(2022, 4, 30))
        is BusinessDateError
    )
    before = business_month_end(calendar=WEEKDAYS, otherwise="previous")
    assert [outcome(before, date(2022, 4, 28 + n)) for n in range(3)] == [
        date(2022, 3, 31), date(2022, 4, 29), date(2022, 4, 29)
    ]  # fmt: skip
    assert outcome(before, date(2022, 5, 1)) == date(2022, 4, 29)
    after = business_month_end(calendar=WEEKDAYS, otherwise="next")
    assert outcome(after, date(2022, 4, 2)) == date(2022, 4, 29)
    assert outcome(after, date(2022, 4, 30)) == date(2022, 5, 31)
    assert rule.refusal(date(2022, 4, 30)) is not None
    assert rule.refusal(date(2022, 4, 29)) is None


@given(DAYS, st.sampled_from(["previous", "next"]))
def test_d13_a_substitute_for_the_last_business_day_is_one_and_the_nearest(own, otherwise):
    strict = business_month_end(calendar=WEEKDAYS, otherwise="error")
    assume(outcome(strict, own) is BusinessDateError)
    found = outcome(business_month_end(calendar=WEEKDAYS, otherwise=otherwise), own)
    assert strict.refusal(found) is None
    first, last = sorted((own, found))
    between = [first + timedelta(days=n) for n in range(1, (last - first).days)]
    assert all(strict.refusal(day) for day in between)


# --- rules as values -----------------------------------------------------------------------------------

RULES = [
    same_day(),
    previous_day(),
    month_end(),
    month_end("error"),
    month_end(otherwise="previous"),
    business_day("DE"),
    business_day("DE", subdivision="BY", otherwise="next"),
    previous_business_day("DE"),
    previous_business_day("DE", otherwise="run"),
    business_month_end("DE"),
    business_month_end("DE", otherwise="previous"),
    previous_business_day("US", subdivision="NY", otherwise="error"),
    previous_business_day(calendar=HolidayCalendar("DE", "BY")),
    from_asset_extra(),
    from_asset_extra('it\'s "the" day'),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_rule_can_be_pasted_pickled_compared_and_hashed(rule):
    assert eval(repr(rule), vars(dates).copy()) == rule
    assert str(rule) == repr(rule)
    assert pickle.loads(pickle.dumps(rule)) == rule
    assert {rule: 1}[rule] == 1
    assert [other for other in RULES if other == rule] == [rule]
    with pytest.raises(AttributeError):
        rule.otherwise = "skip"
    # Airflow would call these, with its context, on what stands in a templated field.
    assert not callable(rule)
    assert not hasattr(rule, "resolve")


def test_the_text_of_a_rule_is_the_same_in_every_process():
    # A memory address in it would make a new version of the DAG at each parse.
    code = (
        "from airflow_guard.core.dates import previous_business_day\n"
        "class Bank:\n"
        "    def is_business_day(self, day, /): return True\n"
        "print(previous_business_day(calendar=Bank(), otherwise='run'))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    }
    assert printed == {"previous_business_day(otherwise='run', calendar=Bank())\n"}


@pytest.mark.parametrize(
    "make",
    [
        lambda: month_end("sometimes"),
        lambda: month_end(None),
        lambda: month_end("run"),
        lambda: previous_business_day("DE", otherwise="previous"),
        lambda: business_day("DE", otherwise="run"),
        previous_business_day,
        lambda: business_day(calendar=object()),
        lambda: business_day(calendar=Weekdays),
    ],
)
def test_a_rule_that_cannot_work_is_refused_where_it_is_written(make):
    with pytest.raises(ConfigurationError):
        make()


@pytest.mark.parametrize("country", ["Germany", "de", "D", "", "DE-BY", 49, "DE "])
def test_a_country_of_the_wrong_shape_is_refused_where_it_is_written(country):
    with pytest.raises(CalendarError, match="ISO 3166-1"):
        previous_business_day(country)


def test_a_rule_of_ones_own():
    class EndOfQuarter(OwnDateRule):
        def date_for(self, own):
            return own if (own.month % 3, outcome(month_end(), own)) == (0, own) else NoBusinessDate("no")

    rule = EndOfQuarter()
    assert str(rule) == "EndOfQuarter()"
    assert outcome(rule, date(2025, 3, 31)) == date(2025, 3, 31)
    assert outcome(rule, date(2025, 4, 30)) is None


def test_a_rule_of_ones_own_that_returns_an_instant_is_refused():
    class Broken(OwnDateRule):
        def date_for(self, own):
            return datetime(own.year, own.month, own.day, tzinfo=UTC)

    assert outcome(Broken(), date(2025, 3, 31)) is BusinessDateError


@given(DAYS, st.sampled_from(["previous", "next"]))
def test_a_substitute_is_a_date_that_the_rule_itself_accepts(own, otherwise):
    strict = month_end("error")
    assume(outcome(strict, own) is BusinessDateError)
    assert strict.refusal(outcome(month_end(otherwise), own)) is None


@pytest.mark.parametrize("module", [calendar_rules, date_checks, date_rules, dates, run_facts])
def test_examples_in_docstrings(module):
    assert doctest.testmod(module).failed == 0
