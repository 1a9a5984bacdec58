"""Dates that come with a partition or with the events of assets."""

from __future__ import annotations

from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import pendulum
import pytest

from airflow_guard.core.dates import (
    DateSource,
    ResolvedDate,
    RunFacts,
    from_asset_extra,
    resolve_business_date,
)
from airflow_guard.core.errors import BusinessDateError, ConfigurationError

BERLIN = ZoneInfo("Europe/Berlin")


def run(run_type="scheduled", **facts) -> RunFacts:
    return RunFacts(
        **{"dag_id": "statements", "run_id": "r1", "run_type": run_type, "timezone": BERLIN, **facts}
    )


def midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=BERLIN)


# --- partitions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "partition",
    [date(2025, 3, 31), "2025-03-31", datetime(2025, 3, 30, 22, 30, tzinfo=UTC), pendulum.date(2025, 3, 31)],
    ids=repr,
)
def test_a_partition_is_a_date_in_the_zone_of_the_dag(partition):
    resolved = resolve_business_date(
        run(partition_date=partition, logical_at=midnight(date(2025, 1, 1))), None
    )
    assert (resolved.date, resolved.source) == (date(2025, 3, 31), DateSource.PARTITION)
    assert type(resolved.date) is date


@pytest.mark.parametrize("key", ["2025-03-31", "2025-03-31T00:00:00", "2025-03-31 06:00"])
def test_a_partition_key_that_is_a_date_dates_the_run(key):
    assert resolve_business_date(run(partition_key=key), None).date == date(2025, 3, 31)


def test_no_partition_key_leaves_the_run_to_its_logical_date():
    for key in (None, ""):
        facts = run(partition_key=key, logical_at=midnight(date(2025, 1, 1)))
        assert resolve_business_date(facts, None).source is DateSource.LOGICAL


def test_a_partition_whose_key_and_date_differ_is_refused():
    # A timetable in Taipei inside a DAG in UTC: local midnight is the evening before.
    facts = run(
        timezone=UTC,
        partition_key="2025-03-31T00:00:00",
        partition_date=datetime(2025, 3, 30, 16, tzinfo=UTC),
    )
    with pytest.raises(BusinessDateError, match=r"(?s)2025-03-31.*2025-03-30.*time zone"):
        resolve_business_date(facts, None)
    taipei = run(
        timezone=ZoneInfo("Asia/Taipei"),
        partition_key=facts.partition_key,
        partition_date=facts.partition_date,
    )
    assert resolve_business_date(taipei, None).date == date(2025, 3, 31)


def test_an_impossible_partition_key_is_refused():
    with pytest.raises(BusinessDateError, match="partition key"):
        resolve_business_date(run(partition_key="2025-02-30"), None)


# --- assets --------------------------------------------------------------------------------------------


def test_the_date_of_the_asset_events():
    extras = [{"business_date": "2025-03-31"}, {"rows": 5}, {}, {"business_date": "2025-03-31"}]
    resolved = resolve_business_date(run("asset_triggered", asset_extras=extras), from_asset_extra())
    assert resolved == ResolvedDate(
        date(2025, 3, 31), DateSource.ASSET, "from_asset_extra() of 4 asset events"
    )


def test_asset_events_of_another_key():
    facts = run("asset_triggered", asset_extras=[{"day": "2025-03-31"}])
    assert resolve_business_date(facts, from_asset_extra("day")).date == date(2025, 3, 31)
    with pytest.raises(BusinessDateError, match="'business_date'"):
        resolve_business_date(facts, from_asset_extra())


def test_asset_events_of_several_dates_are_refused_and_named():
    extras = [{"business_date": "2025-04-01"}, {"business_date": "2025-03-31"}]
    with pytest.raises(BusinessDateError, match="2025-03-31, 2025-04-01") as refused:
        resolve_business_date(run("asset_triggered", asset_extras=extras), from_asset_extra())
    assert "once for each" in str(refused.value)


@pytest.mark.parametrize("extras", [[], [{}], [{"business_date": None}]])
def test_asset_events_without_a_date_do_not_fall_back_to_the_logical_date(extras):
    facts = run("asset_triggered", asset_extras=extras, logical_at=midnight(date(2025, 3, 31)))
    with pytest.raises(BusinessDateError, match="business_date"):
        resolve_business_date(facts, from_asset_extra())


def test_asset_events_are_read_strictly():
    facts = run("asset_triggered", asset_extras=[{}, {"business_date": "31/03/2025"}])
    with pytest.raises(BusinessDateError, match="asset event 2"):
        resolve_business_date(facts, from_asset_extra())


def test_from_asset_extra_needs_a_key():
    with pytest.raises(ConfigurationError):
        from_asset_extra("")
