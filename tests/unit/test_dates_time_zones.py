"""Instants become dates in the DAG's zone, whatever the zone of the process."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pendulum
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import airflow_guard
from airflow_guard.core.dates import RunFacts, resolve_business_date

ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",  # half an hour of summer time
    "Asia/Tokyo",
    "Pacific/Kiritimati",  # UTC+14
    "Pacific/Pago_Pago",  # UTC-11
    "UTC",
]
KINDS = ["logical_at", "interval_start_at", "partition_date"]


def dated(at: datetime, zone, kind: str = "logical_at") -> date:
    facts = {kind: at}
    if kind == "interval_start_at":
        facts["interval_end_at"] = at + timedelta(hours=1)
    run = RunFacts(dag_id="d", run_id="r", run_type="scheduled", timezone=zone, **facts)
    return resolve_business_date(run, None).date


C09 = [
    ("Europe/Amsterdam", "2020-09-28T22:00Z", "2020-09-29"),
    ("Asia/Tokyo", "2025-03-31T15:00Z", "2025-04-01"),
    ("America/New_York", "2025-04-01T03:30Z", "2025-03-31"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("zone", "at", "expected"), C09)
@pytest.mark.parametrize("make_zone", [ZoneInfo, pendulum.timezone])
def test_c09_instant_in_the_business_zone(zone, at, expected, kind, make_zone):
    instant = datetime.fromisoformat(at)
    for each in (instant, pendulum.instance(instant), instant.astimezone(ZoneInfo("Pacific/Auckland"))):
        found = dated(each, make_zone(zone), kind)
        assert str(found) == expected
        assert type(found) is date


IN_A_PROCESS = """
import sys, time
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo
time.tzset()
import airflow_guard
from airflow_guard.core.dates import RunFacts, previous_day, resolve_business_date
print(time.tzname[0])
for line in sys.stdin:
    zone, at = line.split()
    facts = RunFacts(dag_id="d", run_id="r", run_type="scheduled", timezone=ZoneInfo(zone),
                     logical_at=datetime.fromisoformat(at))
    print(resolve_business_date(facts, None).date, resolve_business_date(facts, previous_day()).date)
"""


@pytest.mark.parametrize("process_zone", ["Pacific/Auckland", "America/Los_Angeles", "UTC", "XYZ-13"])
def test_c09_zone_of_the_process_plays_no_part(process_zone):
    ran = subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS],
        input="\n".join(f"{zone} {at}" for zone, at, _ in C09),
        cwd=Path(airflow_guard.__file__).parents[1],
        env={**os.environ, "TZ": process_zone},
        capture_output=True,
        text=True,
        check=True,
    )
    name, *found = ran.stdout.splitlines()
    if process_zone == "XYZ-13":  # needs no zone files of the system: the setting did reach the process
        assert name == "XYZ"
    days = [date.fromisoformat(expected) for _, _, expected in C09]
    assert found == [f"{day} {day - timedelta(days=1)}" for day in days]


@given(
    day=st.dates(date(1990, 1, 1), date(2060, 12, 31)),
    clock=st.times(),
    zone=st.sampled_from(ZONES),
    kind=st.sampled_from(KINDS),
    fold=st.integers(0, 1),
)
# The days on which clocks change, and the minutes around midnight on them.
@example(date(2025, 3, 30), time(2, 30), "Europe/Berlin", "logical_at", 0)
@example(date(2025, 10, 26), time(2, 30), "Europe/Berlin", "logical_at", 1)
@example(date(2025, 3, 9), time(2, 30), "America/New_York", "logical_at", 0)
@example(date(2025, 11, 2), time(1, 30), "America/New_York", "interval_start_at", 1)
@example(date(2025, 4, 6), time(1, 45), "Australia/Lord_Howe", "logical_at", 1)
@example(date(2025, 10, 5), time(2, 15), "Australia/Lord_Howe", "logical_at", 0)
@example(date(2024, 2, 29), time(0), "Pacific/Kiritimati", "partition_date", 0)
@example(date(2025, 12, 31), time(23, 59, 59), "Pacific/Pago_Pago", "logical_at", 0)
def test_a_local_time_has_its_local_date(day, clock, zone, kind, fold):
    local = datetime.combine(day, clock.replace(fold=fold), tzinfo=ZoneInfo(zone))
    assert dated(local.astimezone(UTC), ZoneInfo(zone), kind) == day
    assert dated(local.astimezone(UTC), pendulum.timezone(zone), kind) == day


@pytest.mark.parametrize(
    ("zone", "before", "after"),
    [
        ("Europe/Berlin", "2025-03-30", "2025-03-31"),
        ("Europe/Berlin", "2025-10-26", "2025-10-27"),
        ("America/New_York", "2025-03-09", "2025-03-10"),
        ("America/New_York", "2025-11-02", "2025-11-03"),
        ("Australia/Lord_Howe", "2025-04-06", "2025-04-07"),
        ("Australia/Lord_Howe", "2025-10-05", "2025-10-06"),
    ],
)
def test_a_day_on_which_clocks_change_ends_at_its_own_midnight(zone, before, after):
    info = ZoneInfo(zone)
    midnight = datetime.combine(date.fromisoformat(after), time(0), tzinfo=info).astimezone(UTC)
    start = datetime.combine(date.fromisoformat(before), time(0), tzinfo=info).astimezone(UTC)
    assert midnight - start != timedelta(hours=24)
    assert str(dated(midnight, info)) == after
    assert str(dated(midnight - timedelta(microseconds=1), info)) == before
    assert str(dated(start, info)) == before


@given(
    at=st.datetimes(datetime(1990, 1, 1), datetime(2060, 12, 31), timezones=st.just(UTC)),  # noqa: DTZ001
    offset=st.integers(-14 * 60, 14 * 60),
    zone=st.sampled_from(ZONES),
)
def test_how_an_instant_is_written_plays_no_part(at, offset, zone):
    written = at.astimezone(timezone(timedelta(minutes=offset)))
    assert dated(written, ZoneInfo(zone)) == dated(at, ZoneInfo(zone))
