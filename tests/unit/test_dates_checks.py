"""Second looks: a date that differs from the run's, from the stored one, or from the run before's."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_guard.core.dates import (
    DatedRun,
    DateSource,
    NoBusinessDate,
    ResolvedDate,
    RunFacts,
    business_day,
    check_stored_date,
    date_warnings,
    disagreement,
    from_asset_extra,
    month_end,
    previous_business_day,
    previous_day,
    repeated_or_jumped,
    resolve_business_date,
    same_day,
)
from airflow_guard.core.errors import DateChangedError

BERLIN = ZoneInfo("Europe/Berlin")
NAMES = {"dag_id": "statements", "run_id": "scheduled__2025-01-10", "task_id": "post"}


class Weekdays:
    """A calendar of Mondays to Fridays, less some holidays."""

    def __init__(self, *holidays: date) -> None:
        self.holidays = holidays

    def is_business_day(self, day: date, /) -> bool:
        return day.weekday() < 5 and day not in self.holidays


def run(run_type="manual", **facts) -> RunFacts:
    return RunFacts(
        **{"dag_id": "statements", "run_id": "r", "run_type": run_type, "timezone": BERLIN, **facts}
    )


def warnings(facts, business_date):
    resolved = resolve_business_date(facts, business_date)
    return resolved.date, date_warnings(facts, business_date, resolved)


# --- explicit against derived --------------------------------------------------------------------------
# C09 asks for a strict mode that fails and a lenient one that warns. The design decides: what somebody wrote
# wins over what the run says, so there is only the warning.

UTC_MIDNIGHT_IN_BERLIN = datetime(2020, 9, 28, 22, tzinfo=UTC)


def test_c09_explicit_date_that_differs_is_used_with_one_warning_of_both():
    day, [line] = warnings(run("scheduled", logical_at=UTC_MIDNIGHT_IN_BERLIN), "2020-09-28")
    assert day == date(2020, 9, 28)
    assert "2020-09-28" in line
    assert "2020-09-29" in line
    assert "\n" not in line


def test_c09_conf_that_differs_is_used_with_one_warning_of_both():
    facts = run(conf={"business_date": "2020-09-28"}, logical_at=UTC_MIDNIGHT_IN_BERLIN)
    day, [line] = warnings(facts, None)
    assert day == date(2020, 9, 28)
    assert "conf" in line
    assert "2020-09-29" in line


def test_dates_that_agree_are_not_warned_of():
    facts = run(conf={"business_date": "2020-09-29"}, logical_at=UTC_MIDNIGHT_IN_BERLIN)
    assert warnings(facts, None)[1] == []
    assert warnings(run(logical_at=UTC_MIDNIGHT_IN_BERLIN), "2020-09-29")[1] == []


def test_conf_is_compared_with_what_the_rule_would_have_given():
    facts = run(conf={"business_date": "2020-09-28"}, logical_at=UTC_MIDNIGHT_IN_BERLIN)
    assert warnings(facts, previous_day())[1] == []
    assert len(warnings(facts, same_day())[1]) == 1


@pytest.mark.parametrize(
    "rule", [month_end(otherwise="previous"), previous_day(), from_asset_extra(), lambda _: "2020-01-01"]
)
def test_a_rule_is_there_to_differ_and_is_not_warned_of(rule):
    facts = run(
        "asset_triggered",
        logical_at=UTC_MIDNIGHT_IN_BERLIN,
        asset_extras=[{"business_date": "2020-01-02"}],
    )
    assert warnings(facts, rule)[1] == []


@pytest.mark.parametrize("rule", [None, from_asset_extra(), previous_day(), lambda _: 1 / 0, "", "nonsense"])
def test_what_cannot_be_derived_is_not_warned_of_and_does_not_fail(rule):
    assert warnings(run("asset_triggered", conf={"business_date": "2025-03-31"}), rule)[1] == []


def test_no_warning_where_the_rule_would_have_skipped():
    facts = run(conf={"business_date": "2020-09-30"}, logical_at=UTC_MIDNIGHT_IN_BERLIN)
    assert warnings(facts, month_end(otherwise="skip"))[1] == []


def test_nothing_derived_is_no_disagreement():
    assert disagreement(ResolvedDate(date(2025, 3, 31), DateSource.CONF, "conf"), None) is None


# --- stored --------------------------------------------------------------------------------------------


def friday_run_with(calendar):
    facts = run("scheduled", logical_at=datetime(2025, 1, 10, tzinfo=UTC))
    return resolve_business_date(facts, previous_business_day(calendar=calendar))


def test_c11_cleared_run_under_a_changed_calendar_fails_and_names_both_dates():
    stored = friday_run_with(Weekdays())
    assert stored.date == date(2025, 1, 9)
    with pytest.raises(DateChangedError) as refused:
        check_stored_date(friday_run_with(Weekdays(date(2025, 1, 9))), stored, **NAMES)
    text = str(refused.value)
    assert "Calendar or rule changed 2025-01-09 → 2025-01-08" in text
    assert all(name in text for name in NAMES.values())
    assert text.count("previous_business_day(") == 2
    assert '{"business_date": "2025-01-08"}' in text
    assert not refused.value.retryable


def test_c11_the_same_date_passes_wherever_it_came_from():
    stored = friday_run_with(Weekdays())
    check_stored_date(friday_run_with(Weekdays()), stored, **NAMES)
    check_stored_date(ResolvedDate(stored.date, DateSource.CONF, "conf"), stored, **NAMES)


def test_c11_a_run_that_would_now_be_skipped_fails():
    stored = friday_run_with(Weekdays())
    with pytest.raises(DateChangedError, match="2025-01-09 → none"):
        check_stored_date(NoBusinessDate("2025-01-10 is not a business day"), stored, **NAMES)


def test_first_try_has_nothing_to_compare():
    check_stored_date(friday_run_with(Weekdays()), None, **NAMES)
    check_stored_date(NoBusinessDate("holiday"), None, **NAMES)


def test_another_explicit_date_for_the_same_run_fails_too():
    old, new = (ResolvedDate(date(2025, 1, day), DateSource.EXPLICIT, f"day {day}") for day in (9, 8))
    with pytest.raises(DateChangedError, match=r"^Business date changed 2025-01-09 → 2025-01-08"):
        check_stored_date(new, old, **NAMES)


# --- the run before ------------------------------------------------------------------------------------


def scheduled(start: datetime, end: datetime, due: datetime | None = None, zone=UTC) -> RunFacts:
    """A scheduled run; one whose interval is empty has its logical date there."""
    due = due or end
    return RunFacts(
        dag_id="statements",
        run_id=f"scheduled__{due.isoformat()}",
        run_type="scheduled",
        timezone=zone,
        logical_at=start,
        interval_start_at=start,
        interval_end_at=end,
        run_after_at=due,
    )


def warn(runs: list[RunFacts], rule=None) -> list[str]:
    """What is said over a series of runs, those without a date left out."""
    lines, previous = [], None
    for facts in runs:
        resolved = resolve_business_date(facts, rule)
        if isinstance(resolved, NoBusinessDate):
            continue
        line = repeated_or_jumped(previous, facts, resolved, rule)
        if line is not None:
            lines.append(line)
        previous = DatedRun(facts.run_id, resolved.date, facts.run_after_at)
    return lines


def at(day: date, hour: int = 6, zone=UTC) -> datetime:
    return datetime(day.year, day.month, day.day, hour, tzinfo=zone)


def triggers(days, zone=UTC) -> list[RunFacts]:
    """Runs of a cron string: due on each day, without a data interval."""
    return [scheduled(at(day, zone=zone), at(day, zone=zone), zone=zone) for day in days]


def intervals(days, zone=UTC) -> list[RunFacts]:
    """Runs of an interval timetable: due at each day but the first, about what is since the one before."""
    return [scheduled(at(a, zone=zone), at(b, zone=zone), zone=zone) for a, b in pairwise(days)]


def days_from(start: date, length: int, only=lambda _: True) -> list[date]:
    return [day for n in range(length) if only(day := start + timedelta(days=n))]


def test_r05_upgrade_from_intervals_to_none_jumps_a_date_and_says_so_once():
    a = scheduled(at(date(2025, 5, 1)), at(date(2025, 5, 2)))
    b = scheduled(at(date(2025, 5, 5)), at(date(2025, 5, 5)))
    c = scheduled(at(date(2025, 5, 6)), at(date(2025, 5, 6)))
    [line] = warn([a, b, c])
    assert "2025-05-02 is jumped" in line
    assert a.run_id in line
    assert b.run_id in line
    assert "\n" not in line


def test_r05_change_from_none_to_intervals_repeats_a_date_and_says_so_once():
    before = triggers([date(2025, 5, 1), date(2025, 5, 2)])
    seven = [at(date(2025, 5, day), hour=7) for day in (2, 5, 6)]
    [line] = warn([*before, scheduled(seven[0], seven[1]), scheduled(seven[1], seven[2])])
    assert "repeated" in line
    assert before[1].run_id in line


def test_r05_upgrade_under_a_rule():
    series = [
        *intervals([date(2025, 5, 5), date(2025, 5, 6), date(2025, 5, 7)]),
        *triggers([date(2025, 5, 8), date(2025, 5, 9)]),
    ]
    for rule, jumped in ((previous_day(), "05-06"), (previous_business_day(calendar=Weekdays()), "05-06")):
        [line] = warn(series, rule)
        assert f"2025-{jumped} is jumped" in line


@pytest.mark.parametrize("timetable", [triggers, intervals])
@pytest.mark.parametrize(
    "rule",
    [
        None,
        same_day(),
        previous_day(),
        month_end(otherwise="skip"),
        business_day(calendar=Weekdays(), otherwise="skip"),
        previous_business_day(calendar=Weekdays(), otherwise="skip"),
    ],
    ids=str,
)
@given(
    start=st.dates(date(2020, 1, 1), date(2030, 1, 1)),
    weekdays=st.sets(st.integers(0, 6), min_size=1),
    zone=st.sampled_from([UTC, BERLIN, ZoneInfo("Australia/Lord_Howe"), ZoneInfo("America/New_York")]),
)
def test_r05_a_steady_schedule_is_never_warned_of_a_jump(timetable, rule, start, weekdays, zone):
    days = days_from(start, 60, lambda day: day.weekday() in weekdays)
    lines = warn(timetable(days, zone), rule)
    assert not [line for line in lines if "repeated" not in line]
    assert lines == []


def test_r05_weekend_runs_that_repeat_friday_are_said():
    series = triggers(days_from(date(2025, 5, 2), 4))
    lines = warn(series, previous_business_day(calendar=Weekdays(), otherwise="run"))
    assert len(lines) == 2
    assert all("2025-05-02" in line and "repeated" in line for line in lines)
    assert warn(series, previous_business_day(calendar=Weekdays(), otherwise="skip")) == []


def test_r05_runs_within_a_day_share_their_date_without_a_word():
    for step in (1, 6, 12):
        hours = range(0, 24, step)
        assert warn(triggers_at([at(date(2025, 5, 1), hour) for hour in hours])) == []


def triggers_at(instants) -> list[RunFacts]:
    return [scheduled(instant, instant) for instant in instants]


def test_r05_a_template_that_repeats_is_said_and_its_jumps_are_its_own():
    monday, tuesday, friday = triggers([date(2025, 5, 5), date(2025, 5, 6), date(2025, 5, 9)])
    previous = DatedRun(monday.run_id, date(2025, 5, 1), monday.run_after_at)
    same = resolve_business_date(tuesday, "2025-05-01")
    later = resolve_business_date(friday, "2025-05-08")
    assert "repeated" in repeated_or_jumped(previous, tuesday, same, "2025-05-01")
    assert repeated_or_jumped(previous, friday, later, "2025-05-08") is None


def test_r05_a_date_that_goes_back_is_said():
    monday, tuesday = triggers([date(2025, 5, 5), date(2025, 5, 6)])
    previous = DatedRun(monday.run_id, date(2025, 5, 7), monday.run_after_at)
    assert "goes back" in repeated_or_jumped(previous, tuesday, resolve_business_date(tuesday, None))


def test_r05_only_consecutive_scheduled_runs_are_compared():
    facts = triggers([date(2025, 5, 6)])[0]
    resolved = resolve_business_date(facts, None)
    again = DatedRun(facts.run_id, resolved.date, facts.run_after_at - timedelta(days=1))
    later = DatedRun("later", resolved.date, facts.run_after_at + timedelta(days=1))
    earlier = DatedRun("earlier", resolved.date, facts.run_after_at - timedelta(days=1))
    assert repeated_or_jumped(None, facts, resolved) is None
    assert repeated_or_jumped(again, facts, resolved) is None
    assert repeated_or_jumped(later, facts, resolved) is None
    assert repeated_or_jumped(earlier, facts, resolved) is not None
    manual = run("manual", logical_at=facts.logical_at, run_after_at=facts.run_after_at)
    assert repeated_or_jumped(earlier, manual, resolved) is None


def test_r05_a_rule_that_refuses_the_day_between_is_no_jump():
    first, second = triggers([date(2025, 5, 1), date(2025, 5, 31)])
    previous = DatedRun(first.run_id, date(2025, 4, 30), first.run_after_at)
    resolved = resolve_business_date(second, month_end())
    assert repeated_or_jumped(previous, second, resolved, month_end()) is None
