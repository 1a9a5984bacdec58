"""D05: what a partition key says, in every spelling of Airflow's mappers."""

from __future__ import annotations

import doctest
from datetime import UTC, date, datetime
from itertools import combinations
from zoneinfo import ZoneInfo

import pytest

from airflow_guard.core import run_facts
from airflow_guard.core.dates import RunFacts, previous_day, resolve_business_date
from airflow_guard.core.errors import BusinessDateError, ConfigurationError
from airflow_guard.core.keys import KeySpace
from airflow_guard.core.run_facts import cycle_of_run

mappers = pytest.importorskip("airflow.partition_mappers.temporal", reason="Airflow 3.2 and later")
AT = "2024-03-13T10:42:15"


def run(key: str, **more) -> RunFacts:
    facts = {"timezone": UTC, "logical_at": datetime(2026, 12, 1, 4, tzinfo=UTC), **more}
    return RunFacts(dag_id="d", run_id="r", run_type="manual", partition_key=key, **facts)


def key_of(mapper) -> str:
    return mapper.to_downstream(AT)


def date_of(mapper) -> date:
    return mapper.to_partition_date(key_of(mapper)).date()


def made_by_airflow() -> dict[str, date]:
    """Keys that Airflow's own mappers make of one instant, and the dates that Airflow gives them."""
    from airflow.partition_mappers.chain import ChainMapper
    from airflow.partition_mappers.identity import IdentityMapper
    from airflow.partition_mappers.product import ProductMapper

    periods = ("Hour", "Day", "Week", "Month", "Quarter", "Year")
    temporal = [getattr(mappers, f"StartOf{period}Mapper")() for period in periods]
    found = {key_of(mapper): date_of(mapper) for mapper in temporal}
    for mapper in temporal[:-1]:
        for delimiter in ("|", "::", "/", " ", "_"):
            product = ProductMapper(IdentityMapper(), mapper, delimiter=delimiter)
            found[product.to_downstream(f"DE{delimiter}{AT}")] = date_of(mapper)
        found[f"DE-{key_of(mapper)}"] = date_of(mapper)
    found[ChainMapper(IdentityMapper(), temporal[1]).to_downstream(AT)] = date_of(temporal[1])
    found[AT] = date(2024, 3, 13)
    return found


def test_d05_every_spelling_of_airflows_mappers_dates_its_run():
    keys = made_by_airflow()
    assert len(keys) > 25
    assert "2024-03-11 (W11)" in keys
    assert "DE|2024-Q1" in keys
    for key, day in keys.items():
        assert resolve_business_date(run(key), None).date == day, key


def test_d05_no_two_partitions_have_one_key():
    keys = [
        *made_by_airflow(),
        "FR|2024-03-13",
        "2024-03-13T11",
        "2024-03-13T00",
        "2024-03-13T00:00:00",
        "DE|FR|2024-03-13",
    ]
    hashes = {}
    for key in keys:
        day = resolve_business_date(run(key), None).date
        space = KeySpace("n", "o", day, cycle_of_run(key, day, ""))
        hashes[key] = space.hasher().key_hash(None)
    assert len(set(hashes.values())) == len(set(keys))


def test_d05_no_two_partitions_have_one_key_under_one_date():
    """Whatever the rule gives, also where it gives several partitions one date."""
    day = date(2026, 1, 30)
    keys = ["2026-01-30", "2026-01-31", "2026-02-01", "2026-01-30T05", "x" * 300, "x" * 301, " DE ", "DE"]
    cycles = [cycle_of_run(key, day, "") for key in keys]
    assert len(set(cycles)) == len(keys)
    for cycle in cycles:
        KeySpace("n", "o", day, cycle)


def test_d05_a_cycle_of_the_tasks_own_must_name_the_partition():
    day = date(2026, 1, 30)
    for key, cycle in (("DE|2026-01-30", "DE"), ("DE|2026-01-30", "DE|2026-01-30"), ("2026-01-30T05", "05:00"),
                       ("2026-01-30", "evening"), (None, "evening"), ("", "evening")):  # fmt: skip
        assert cycle_of_run(key, day, cycle) == cycle
    for one, other in combinations(["DE|2026-01-30", "FR|2026-01-30", "2026-01-30T05", "2026-01-31"], 2):
        for key in (one, other):
            with pytest.raises(ConfigurationError, match="two partitions would have one key"):
                cycle_of_run(key, day, "evening")


@pytest.mark.parametrize(
    "key", ["DE", "emea", "20260130", "2025-W14", "4711", "DE|2024", "30.01.2026", "2026-1-30"]
)
@pytest.mark.parametrize("rule", [None, previous_day()], ids=str)
def test_d05_a_partition_that_names_no_date_is_never_dated_by_the_logical_date(key, rule):
    with pytest.raises(BusinessDateError, match=r"names no date.*business_date="):
        resolve_business_date(run(key), rule)


@pytest.mark.parametrize("key", ["2026-01-30|2026-01-31", "2026-01|2026-02", "2026-01-30T23:30:00-05:00"])
def test_d05_a_partition_that_names_several_dates_is_refused(key):
    with pytest.raises(BusinessDateError, match=r"several dates.*business_date="):
        resolve_business_date(run(key), None)


def test_d05_an_instant_with_an_offset_is_a_date_where_the_zone_agrees():
    assert resolve_business_date(run("2026-01-30T00:00:00Z"), None).date == date(2026, 1, 30)
    berlin = run("2026-01-30T00:30:00+01:00", timezone=ZoneInfo("Europe/Berlin"))
    assert resolve_business_date(berlin, None).date == date(2026, 1, 30)


def test_d05_the_advice_of_each_message_dates_the_run():
    for advised in (lambda facts: facts.partition_key[-10:], "2026-01-30"):
        assert resolve_business_date(run("x|2026-01-29|2026-01-30"), advised).date == date(2026, 1, 30)


def test_d05_a_date_that_airflow_carries_dates_a_key_that_names_none():
    facts = run("DE", partition_date=datetime(2026, 1, 30, tzinfo=UTC))
    assert resolve_business_date(facts, None).date == date(2026, 1, 30)


def test_examples_in_docstrings():
    assert doctest.testmod(run_facts).failed == 0
