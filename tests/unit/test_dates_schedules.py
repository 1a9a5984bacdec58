"""D13: the default of each rule gives every business date exactly one run of a daily schedule; schedules that
would lose a date are found when the DAG is parsed; dates that have not come."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from airflow_guard.core.calendar_rules import PreviousBusinessDay
from airflow_guard.core.date_checks import in_the_future, lost_date, skips
from airflow_guard.core.dates import (
    BusinessDateError,
    BusinessDateRule,
    DateSource,
    HolidayCalendar,
    NoBusinessDate,
    ResolvedDate,
    RunFacts,
    business_day,
    business_month_end,
    month_end,
    previous_business_day,
    previous_day,
    resolve_business_date,
    same_day,
)

FIRST, LAST = date(2024, 1, 1), date(2024, 12, 31)
DAYS = [FIRST + timedelta(days=n) for n in range((LAST - FIRST).days + 1)]
ZONES = ["UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/New_York"]
DEFAULTS = [
    None, same_day(), previous_day(), month_end(), business_day("DE"), business_day("US", subdivision="NY"),
    previous_business_day("DE"), previous_business_day("XNYS"), previous_business_day("EG"),
    business_month_end("DE"), business_month_end("EG"),
]  # fmt: skip


def instants(zone: str, hour: int, minute: int) -> list[datetime]:
    """A run each day at a time of the wall clock, also where the clock jumps over it or has it twice."""
    return [
        datetime(day.year, day.month, day.day, hour, minute, tzinfo=ZoneInfo(zone)).astimezone(UTC)
        for day in DAYS
    ]


def business_dates(rule: object, zone: str, hour: int, *, intervals: bool) -> list[date]:
    found = []
    due = instants(zone, hour, 30)
    for start, end in pairwise(due):
        facts = RunFacts(
            dag_id="d", run_id="r", run_type="scheduled", timezone=ZoneInfo(zone),
            logical_at=start if intervals else end,
            interval_start_at=start if intervals else end,
            interval_end_at=end,
        )  # fmt: skip
        resolved = resolve_business_date(facts, rule)
        if not isinstance(resolved, NoBusinessDate):
            found.append(resolved.date)
    return found


@pytest.mark.parametrize("intervals", [False, True])
@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("rule", DEFAULTS, ids=str)
def test_d13_each_business_date_has_exactly_one_run_of_a_daily_schedule(rule, zone, intervals):
    for hour in (0, 2):
        found = business_dates(rule, zone, hour, intervals=intervals)
        assert max(Counter(found).values()) == 1
        days = [min(found) + timedelta(days=n) for n in range((max(found) - min(found)).days + 1)]
        if isinstance(rule, PreviousBusinessDay):
            days = [day for day in days if HolidayCalendar(rule.country or "").is_business_day(day)]
        elif isinstance(rule, BusinessDateRule):
            days = [day for day in days if rule.refusal(day) is None]
        assert found == days


def own_dates(*weekdays: int) -> list[date]:
    return [day for day in DAYS if day.weekday() in weekdays]


@pytest.mark.parametrize(
    ("rule", "days", "lost"),
    [
        (previous_business_day("DE"), DAYS, None),
        (previous_business_day("DE"), own_dates(0, 1, 2, 3, 4), None),
        # Tuesday to Saturday: nobody would work on Fridays.
        (previous_business_day("DE"), own_dates(1, 2, 3, 4, 5), (date(2024, 1, 6), date(2024, 1, 5))),
        (previous_business_day("DE", otherwise="run"), own_dates(1, 2, 3, 4, 5), None),
        (business_day("DE"), own_dates(5), (date(2024, 1, 13), date(2024, 1, 12))),
        (business_day("DE"), DAYS, None),
        (business_day("DE", otherwise="previous"), own_dates(5), None),
        (month_end(), [day for day in DAYS if day.day == 1], (date(2024, 2, 1), date(2024, 1, 31))),
        (month_end(otherwise="previous"), [day for day in DAYS if day.day == 1], None),
        (month_end(), [day for day in DAYS if (day + timedelta(days=1)).day == 1], None),
        (business_month_end("DE"), DAYS, None),
        (
            business_month_end("DE"),
            [day for day in DAYS if (day + timedelta(days=1)).day == 1],
            (date(2024, 3, 31), date(2024, 3, 28)),
        ),
    ],
    ids=str,
)
def test_d13_a_date_that_the_schedule_leaves_to_nobody_is_found(rule, days, lost):
    assert (lost_date(rule, days) if skips(rule) else None) == lost


def test_d13_calendars_of_the_users_are_not_asked_when_a_dag_is_parsed():
    class Costly:
        def is_business_day(self, day: date, /) -> bool:
            raise AssertionError(day)

    assert not skips(previous_business_day(calendar=Costly()))


# -- dates that have not come ------------------------------------------------------------------------------


def facts(**more) -> RunFacts:
    return RunFacts(dag_id="d", run_id="r", run_type="manual", timezone=ZoneInfo("Europe/Berlin"), **more)


NOW = datetime(2026, 3, 31, 22, 30, tzinfo=UTC)  # already 1 April in Berlin


@pytest.mark.parametrize(
    ("day", "said"), [("2026-03-31", False), ("2026-04-01", False), ("2026-04-02", True)]
)
def test_d13_a_date_in_the_future_is_said(day, said):
    resolved = ResolvedDate(date.fromisoformat(day), DateSource.CONF, "conf")
    line = in_the_future(resolved, facts(), NOW)
    assert (line is not None) is said
    if line:
        assert day in line
        assert "today is 2026-04-01" in line


def test_d13_a_date_more_than_a_year_ahead_is_refused():
    with pytest.raises(BusinessDateError, match=r"2062-01-30 .* lies \d+ days in the future"):
        in_the_future(ResolvedDate(date(2062, 1, 30), DateSource.CONF, "conf"), facts(), NOW)


def test_d13_a_data_interval_that_is_not_over_is_said():
    start = datetime(2026, 3, 31, tzinfo=UTC)
    run = facts(interval_start_at=start, interval_end_at=start + timedelta(days=1))
    resolved = resolve_business_date(run, None)
    assert "ends in the future" in str(in_the_future(resolved, run, NOW))
    assert in_the_future(resolved, run, start + timedelta(days=2)) is None
