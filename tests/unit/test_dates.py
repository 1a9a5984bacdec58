"""The order in which a business date is found, and how strictly it is read."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pendulum
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_guard.core.dates import (
    DateSource,
    NoBusinessDate,
    ResolvedDate,
    RunFacts,
    business_day,
    date_warnings,
    from_asset_extra,
    month_end,
    own_date,
    parse_business_date,
    previous_business_day,
    previous_day,
    resolve_business_date,
    same_day,
)
from airflow_guard.core.errors import BusinessDateError

BERLIN = ZoneInfo("Europe/Berlin")
RUN_TYPES = [
    "scheduled",
    "backfill",
    "manual",
    "asset_triggered",
    "operator_triggered",
    "asset_materialization",
    "of_a_later_airflow",
]


def run(run_type="scheduled", **facts) -> RunFacts:
    return RunFacts(
        **{"dag_id": "statements", "run_id": "r1", "run_type": run_type, "timezone": BERLIN, **facts}
    )


def midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=BERLIN)


class OpenExcept:
    """A calendar that is closed on the days it is given."""

    def __init__(self, *closed: date) -> None:
        self.closed = closed

    def is_business_day(self, day: date, /) -> bool:
        return day not in self.closed


# --- reading -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        "31/03/2025",
        "2025-3-31",
        20250331,
        "2025-02-30",
        "",
        " ",
        "None",
        "20250331",
        "2025-W14-1",
        "2025-090",
        " 2025-03-31",
        "2025-03-31 ",
        "2025-03-31\n",
        "2025-03-31T00:00:00",
        "2025-03-31 00:00:00+00:00",
        "2025/03/31",
        "2023-02-29",
        "2025-00-10",
        "0000-01-01",
        "٢٠٢٥-٠٣-٣١",
        "{{ ds }}",
        "-2025-03-31",
        True,
        20250331.0,
        b"2025-03-31",
        ["2025-03-31"],
        {"date": "2025-03-31"},
        datetime(2025, 3, 31),  # noqa: DTZ001 - naive on purpose
        datetime(2025, 3, 31, tzinfo=UTC),
        pendulum.datetime(2025, 3, 31),
    ],
)
def test_c07_iv_conf_date_that_is_not_strict_iso_is_refused_and_named(value):
    facts = run("manual", conf={"business_date": value}, logical_at=midnight(date(2025, 3, 31)))
    with pytest.raises(BusinessDateError) as refused:
        resolve_business_date(facts, None)
    assert "conf['business_date'] of run 'r1'" in str(refused.value)
    assert not refused.value.retryable


def test_messages_say_what_is_wrong_and_what_to_give():
    def message(value):
        with pytest.raises(BusinessDateError) as refused:
            parse_business_date(value, source="business_date")
        return str(refused.value)

    assert "depends on the time zone" in message(datetime(2025, 3, 31, 12, tzinfo=UTC))
    assert "does not exist" in message("2025-02-30")
    assert "YYYY-MM-DD" in message("31/03/2025")
    assert "leading zeros" in message("2025-3-31")
    assert "type int" in message(20250331)
    assert "had no value" in message("")
    assert "had no value" in message("None")
    assert "not rendered" in message("{{ ds }}")
    assert len(message("9" * 10_000)) < 400


@given(st.dates())
def test_every_date_is_read_back_from_its_iso_text(day):
    assert parse_business_date(day.isoformat(), source="x") == day
    assert parse_business_date(day, source="x") == day


@given(st.text())
def test_text_is_either_the_iso_form_of_its_date_or_refused(text):
    try:
        day = parse_business_date(text, source="x")
    except BusinessDateError:
        return
    assert day.isoformat() == text


def test_a_pendulum_date_becomes_a_plain_date():
    day = parse_business_date(pendulum.date(2025, 3, 31), source="x")
    assert type(day) is date
    assert day == date(2025, 3, 31)


# --- the order -----------------------------------------------------------------------------------------

INTERVAL = {"interval_start_at": midnight(date(2025, 1, 3)), "interval_end_at": midnight(date(2025, 1, 4))}
EVERYTHING = {
    "conf": {"business_date": "2025-01-01"},
    "partition_date": midnight(date(2025, 1, 2)),
    **INTERVAL,
    "logical_at": midnight(date(2025, 1, 4)),
    "run_after_at": midnight(date(2025, 1, 5)),
}


def test_order_of_the_sources():
    facts = dict(EVERYTHING)
    assert resolve_business_date(run("manual", **facts), "2025-01-31").source is DateSource.CONF
    del facts["conf"]
    explicit = resolve_business_date(run("manual", **facts), "2025-01-31")
    assert (explicit.date, explicit.source) == (date(2025, 1, 31), DateSource.EXPLICIT)
    found = []
    for gone in ("partition_date", "interval_start_at", "logical_at"):
        found.append(resolve_business_date(run("manual", **facts), None))
        del facts[gone]
    assert [(each.date.day, each.source.value) for each in found] == [
        (2, "partition"),
        (3, "interval"),
        (4, "logical"),
    ]
    with pytest.raises(BusinessDateError, match="No business date"):
        resolve_business_date(run("manual", **facts), None)


@pytest.mark.parametrize("run_type", RUN_TYPES)
def test_conf_counts_except_where_one_conf_dates_many_runs(run_type):
    facts = run(run_type, **EVERYTHING)
    resolved = resolve_business_date(facts, None)
    if run_type in ("scheduled", "backfill"):
        assert resolved.source is DateSource.PARTITION
        [warning] = date_warnings(facts, None, resolved)
        assert "ignored" in warning
        assert "2025-01-01" in warning
        assert "2025-01-02" in warning
    else:
        assert (resolved.date, resolved.source) == (date(2025, 1, 1), DateSource.CONF)


def test_unreadable_conf_of_a_backfill_does_not_stop_it():
    facts = run("backfill", conf={"business_date": "all of March"}, logical_at=midnight(date(2025, 3, 1)))
    assert resolve_business_date(facts, None).date == date(2025, 3, 1)


def test_null_in_conf_is_absent():
    facts = run("manual", conf={"business_date": None}, logical_at=midnight(date(2025, 3, 31)))
    resolved = resolve_business_date(facts, None)
    assert (resolved.date, resolved.source) == (date(2025, 3, 31), DateSource.LOGICAL)
    assert date_warnings(facts, None, resolved) == []


def test_a_manual_run_of_an_interval_timetable_has_the_date_of_the_scheduled_run():
    scheduled = run("scheduled", **INTERVAL, logical_at=midnight(date(2025, 1, 3)))
    manual = run("manual", **INTERVAL, logical_at=midnight(date(2025, 1, 3)) + timedelta(hours=40))
    assert resolve_business_date(scheduled, None).date == resolve_business_date(manual, None).date


def test_r05_empty_interval_gives_way_to_the_logical_date_and_a_real_one_counts_from_its_start():
    def at(day, hour=6):
        return datetime(2025, 5, day, hour, tzinfo=UTC)

    a = run(timezone=UTC, interval_start_at=at(1), interval_end_at=at(2), logical_at=at(1))
    b = run(timezone=UTC, interval_start_at=at(5), interval_end_at=at(5), logical_at=at(5))
    assert resolve_business_date(a, None) == ResolvedDate(
        date(2025, 5, 1),
        DateSource.INTERVAL,
        "start of the data interval 2025-05-01T06:00:00+00:00 in UTC",
    )
    assert resolve_business_date(b, None) == ResolvedDate(
        date(2025, 5, 5), DateSource.LOGICAL, "logical date 2025-05-05T06:00:00+00:00 in UTC"
    )


def test_half_an_interval_is_none():
    facts = run(interval_start_at=midnight(date(2025, 1, 3)), logical_at=midnight(date(2025, 1, 4)))
    assert resolve_business_date(facts, None).date == date(2025, 1, 4)


# --- nothing there -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rendered", [None, "", "None"])
def test_c07_i_an_asset_run_without_a_date_is_refused_and_says_how_to_supply_one(rendered):
    facts = run("asset_triggered", run_id="asset__2025-04-01", run_after_at=datetime(2025, 4, 1, tzinfo=UTC))
    with pytest.raises(BusinessDateError) as refused:
        resolve_business_date(facts, rendered)
    assert "asset__2025-04-01" in str(refused.value)
    assert "YYYY-MM-DD" in str(refused.value)


def test_nothing_there_names_the_three_ways_out():
    with pytest.raises(BusinessDateError) as refused:
        resolve_business_date(run("asset_triggered"), None)
    text = str(refused.value)
    for way in ('conf {"business_date"', "business_date= on the operator", "logical date", "'statements'"):
        assert way in text


def test_c07_ii_conf_dates_an_asset_run():
    facts = run("asset_triggered", conf={"business_date": "2025-03-31"})
    assert resolve_business_date(facts, None).date == date(2025, 3, 31)
    assert resolve_business_date(facts, from_asset_extra()).date == date(2025, 3, 31)


@given(run_type=st.sampled_from(RUN_TYPES), due=st.datetimes(timezones=st.just(UTC)))
def test_when_a_run_was_due_is_never_its_business_date(run_type, due):
    with pytest.raises(BusinessDateError):
        resolve_business_date(run(run_type, run_after_at=due), None)


@pytest.mark.parametrize(
    "rule", [same_day(), previous_day(), month_end(), business_day(calendar=OpenExcept())], ids=str
)
def test_a_rule_about_the_own_date_is_refused_where_there_is_none(rule):
    with pytest.raises(BusinessDateError, match=r"own date, but run 'r1' \(asset_triggered\)"):
        resolve_business_date(run("asset_triggered"), rule)


# --- the operator's value ------------------------------------------------------------------------------


def test_a_date_object_and_its_text_are_the_same():
    as_text = resolve_business_date(run(), "2025-03-31")
    assert as_text == resolve_business_date(run(), date(2025, 3, 31))
    assert as_text.detail == "business_date=2025-03-31 of the operator"


def test_a_callable_gets_the_facts():
    def yesterday_by_file(facts: RunFacts):
        return facts.conf["file"][:10]

    resolved = resolve_business_date(run("manual", conf={"file": "2025-03-31.sta"}), yesterday_by_file)
    assert (resolved.date, resolved.source) == (date(2025, 3, 31), DateSource.RULE)
    assert "yesterday_by_file" in resolved.detail


def test_a_callable_may_say_that_there_is_nothing_to_do():
    assert resolve_business_date(run(), lambda _: NoBusinessDate("no file")) == NoBusinessDate("no file")


@pytest.mark.parametrize("value", [None, "", "31.03.2025", 5, datetime(2025, 3, 31, tzinfo=UTC)])
def test_a_callable_that_returns_no_date_is_refused_by_name(value):
    def broken(_facts):
        return value

    with pytest.raises(BusinessDateError, match="broken returned"):
        resolve_business_date(run(logical_at=midnight(date(2025, 3, 31))), broken)


# --- conf against a rule -------------------------------------------------------------------------------

HOLIDAY = date(2025, 12, 25)
CALENDAR = OpenExcept(HOLIDAY)


@pytest.mark.parametrize(
    ("rule", "refused"),
    [
        (previous_business_day(calendar=CALENDAR, otherwise="error"), True),
        (previous_business_day(calendar=CALENDAR, otherwise="skip"), True),
        (previous_business_day(calendar=CALENDAR), True),
        (business_day(calendar=CALENDAR), True),
        (business_day(calendar=CALENDAR, otherwise="skip"), True),
        (business_day(calendar=CALENDAR, otherwise="previous"), True),
        (month_end(), True),
        (month_end(otherwise="skip"), True),
        (month_end(otherwise="previous"), True),
        (previous_day(), False),
        (from_asset_extra(), False),
        (None, False),
    ],
    ids=str,
)
def test_c11_an_explicit_date_that_the_rule_gives_to_no_run_is_refused(rule, refused):
    facts = run("manual", conf={"business_date": str(HOLIDAY)})
    if not refused:
        assert resolve_business_date(facts, rule).date == HOLIDAY
        return
    with pytest.raises(BusinessDateError) as error:
        resolve_business_date(facts, rule)
    assert str(HOLIDAY) in str(error.value)
    assert str(rule) in str(error.value)


def test_an_explicit_date_that_the_rule_could_give_is_taken():
    facts = run("manual", conf={"business_date": "2025-12-31"})
    for rule in (month_end(), previous_business_day(calendar=CALENDAR, otherwise="error")):
        assert resolve_business_date(facts, rule).date == date(2025, 12, 31)


# --- facts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["logical_at", "interval_start_at", "interval_end_at", "run_after_at", "partition_date"]
)
def test_c09_a_naive_instant_is_refused_and_named(name):
    with pytest.raises(BusinessDateError, match=name):
        run(**{name: datetime(2025, 3, 31)})  # noqa: DTZ001 - naive on purpose


def test_a_zone_by_name_is_refused():
    with pytest.raises(BusinessDateError, match="Europe/Berlin"):
        run(timezone="Europe/Berlin")


def test_an_instant_at_the_end_of_time_is_refused_not_a_crash():
    last = datetime(9999, 12, 31, 23, 59, tzinfo=UTC)
    with pytest.raises(BusinessDateError, match="no date"):
        own_date(run(logical_at=last))
