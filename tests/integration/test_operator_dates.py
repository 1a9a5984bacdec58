"""The business date of a guarded task: found before the ledger is touched, and kept."""

from __future__ import annotations

import re
import shlex
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_guard import (
    BusinessDateError,
    ConfigurationError,
    DateChangedError,
    IdempotentOperator,
    KeyDrift,
    OtherRun,
    business_date_of,
    business_day,
    business_month_end,
    from_asset_extra,
    month_end,
    previous_business_day,
    previous_day,
)
from airflow_guard.commands.main import main
from airflow_guard.operators.endings import GuardFailure
from tests.airflow_runs import AirflowRun, start_run
from tests.databases import databases

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from tests.integration.conftest import Business

pytestmark = databases("sqlite")

JANUARY_10 = datetime(2025, 1, 10, 2, tzinfo=UTC)


def dag_of(business: Business, *, timezone: str = "UTC", schedule: Any = None, **parameters: Any) -> DAG:
    """A DAG with one guarded task, which may be triggered in any way."""
    import pendulum
    from airflow.sdk import DAG

    def post(connection: Any, business_date: date, document: str) -> str:
        business.post(connection, "post", document, business_date)
        return business_date.isoformat()

    defaults: dict[str, Any] = {
        "task_id": "post",
        "python_callable": post,
        "side_effect": "database",
        "document": "A",
    }
    start = pendulum.datetime(2025, 1, 1, tz=timezone)
    with DAG(business.dag_id, schedule=schedule, start_date=start) as dag:
        IdempotentOperator(**{**defaults, **parameters})
    return dag


def failure(run: AirflowRun) -> BaseException | None:
    """Return the error of this package that ended the task, after asserting that no retry follows."""
    ended = run.last("post")
    assert ended.state == "failed", ended
    assert isinstance(ended.error, GuardFailure), ended.error
    return ended.cause


def assert_untouched(business: Business) -> None:
    """Assert that neither the business nor the ledger saw anything."""
    assert business.rows() == []
    assert business.ledger_rows() == []
    assert business.task_runs() == []


# -- C07: asset-triggered runs have no date of their own -----------------------------------------------------


@pytest.mark.parametrize(
    "business_date", ["{{ ds }}", None, "{{ logical_date }}", "{{ dag_run.logical_date }}"]
)
def test_c07_i_without_a_date_nothing_starts(business: Business, business_date: str | None) -> None:
    run = start_run(dag_of(business, business_date=business_date), run_type="asset_triggered").go()
    error = failure(run)
    assert isinstance(error, BusinessDateError)
    assert run.run_id in str(error)
    assert "YYYY-MM-DD" in str(error)
    assert_untouched(business)


@pytest.mark.parametrize("business_date", ["{{ ds }}", None])
def test_c07_ii_a_date_in_conf_works(business: Business, business_date: str | None) -> None:
    dag = dag_of(business, business_date=business_date)
    run = start_run(dag, run_type="asset_triggered", conf={"business_date": "2025-03-31"}).go()
    assert run.states() == {"post": "success"}
    assert business.rows() == [("post", "A", "2025-03-31")]


def test_c07_iii_a_second_run_with_the_same_date_is_blocked(business: Business) -> None:
    conf = {"business_date": "2025-03-31"}
    first = start_run(dag_of(business), run_type="asset_triggered", conf=conf).go()
    second = start_run(dag_of(business), run_type="asset_triggered", conf=conf).go()
    assert first.run_id in str(failure(second))
    assert business.rows() == [("post", "A", "2025-03-31")]


@pytest.mark.parametrize("written", ["31/03/2025", "2025-3-31", 20250331, "2025-02-30", ""])
def test_c07_iv_a_date_that_is_none_is_refused(business: Business, written: Any) -> None:
    run = start_run(dag_of(business), run_type="asset_triggered", conf={"business_date": written}).go()
    assert isinstance(failure(run), BusinessDateError)
    assert_untouched(business)


def test_c07_the_date_of_the_asset_event_is_taken(business: Business) -> None:
    run = start_run(
        dag_of(business, business_date=from_asset_extra()),
        run_type="asset_triggered",
        asset_extras=[{"business_date": "2025-03-31"}, {"rows": 3}],
    ).go()
    assert run.result("post") == "2025-03-31"


# -- C11: what a rule gave once, stays -----------------------------------------------------------------------


class Calendar:
    """A calendar in which 2025-01-09 is open or closed."""

    def __init__(self, *closed: date) -> None:
        self._closed = closed

    def is_business_day(self, day: date) -> bool:
        return day.weekday() < 5 and day not in self._closed


def test_c11_a_calendar_that_changed_fails_the_cleared_run(business: Business) -> None:
    before = previous_business_day(calendar=Calendar())
    run = start_run(dag_of(business, business_date=before), logical_at=JANUARY_10).go()
    assert business.rows() == [("post", "A", "2025-01-09")]

    after = previous_business_day(calendar=Calendar(date(2025, 1, 9)))
    run.clear().go(dag_of(business, business_date=after))
    error = failure(run)
    assert isinstance(error, DateChangedError)
    assert "2025-01-09 → 2025-01-08" in str(error)
    assert business.rows() == [("post", "A", "2025-01-09")]

    run.clear().go(dag_of(business, business_date=before))
    assert run.result("post") == "2025-01-09"
    assert business.rows() == [("post", "A", "2025-01-09")]


def test_c11_a_rule_that_now_skips_the_run_is_refused_as_well(business: Business) -> None:
    run = start_run(dag_of(business), logical_at=JANUARY_10).go()
    run.clear().go(dag_of(business, business_date=month_end(otherwise="skip")))
    assert isinstance(failure(run), DateChangedError)


def test_c11_a_holiday_that_the_rule_refuses_fails_before_the_callable(business: Business) -> None:
    closed = Calendar(date(2025, 1, 9))
    for rule, conf in (
        (previous_business_day(calendar=closed, otherwise="error"), {"business_date": "2025-01-09"}),
        (business_day(calendar=closed, otherwise="error"), {"business_date": "2025-01-09"}),
    ):
        run = start_run(dag_of(business, business_date=rule), run_type="manual", conf=conf).go()
        error = failure(run)
        assert isinstance(error, BusinessDateError)
        assert "2025-01-09" in str(error)
        assert "not a business day" in str(error)
    assert_untouched(business)


def test_a_rule_that_has_no_date_skips_the_task(business: Business) -> None:
    def dag() -> DAG:
        return dag_of(business, business_date=month_end(otherwise="skip"))

    run = start_run(dag(), logical_at=JANUARY_10).go()
    assert run.states() == {"post": "skipped"}
    assert_untouched(business)
    run = start_run(dag(), logical_at=datetime(2025, 1, 31, tzinfo=UTC)).go()
    assert run.result("post") == "2025-01-31"


# -- where a date comes from ---------------------------------------------------------------------------------


def test_the_dates_zone_is_the_dags(business: Business) -> None:
    late = datetime(2025, 3, 31, 22, tzinfo=UTC)
    run = start_run(dag_of(business, timezone="Europe/Amsterdam"), logical_at=late).go()
    assert run.result("post") == "2025-04-01"


def test_the_interval_comes_before_the_logical_date(business: Business) -> None:
    start = datetime(2025, 3, 30, 2, tzinfo=UTC)
    run = start_run(
        dag_of(business), logical_at=start + timedelta(days=1), interval=(start, start + timedelta(days=1))
    ).go()
    assert run.result("post") == "2025-03-30"


def test_conf_dates_no_backfill(business: Business) -> None:
    run = start_run(
        dag_of(business), run_type="backfill", logical_at=JANUARY_10, conf={"business_date": "2025-03-31"}
    ).go()
    assert run.result("post") == "2025-01-10"


def test_rules_templates_dates_and_callables(business: Business) -> None:
    def day_of(facts: Any) -> str:
        return facts.conf["day"]

    cases = {
        "rule": (previous_day(), "2025-01-09"),
        "template": ("{{ macros.ds_add(ds, -2) }}", "2025-01-08"),
        "date": (date(2025, 1, 7), "2025-01-07"),
        "callable": (day_of, "2025-01-06"),
    }
    for number, (business_date, expected) in enumerate(cases.values()):
        dag = dag_of(business, business_date=business_date, cycle=str(number))
        run = start_run(
            dag,
            run_type="manual",
            logical_at=JANUARY_10 + timedelta(minutes=number),
            conf={"day": "2025-01-06"},
        ).go()
        assert run.result("post") == expected


def test_a_template_that_gives_nothing_is_no_date(business: Business) -> None:
    run = start_run(
        dag_of(business, business_date="{{ dag_run.conf.get('day') }}"), logical_at=JANUARY_10
    ).go()
    assert isinstance(failure(run), BusinessDateError)
    assert_untouched(business)


def test_another_task_that_gives_no_date_is_no_date(business: Business) -> None:
    from airflow.sdk import DAG, task

    with DAG(business.dag_id, schedule=None, start_date=datetime(2025, 1, 1, tzinfo=UTC)) as dag:

        @task
        def day() -> None:
            return None

        IdempotentOperator(task_id="post", python_callable=lambda: business.act("post"), business_date=day())
    run = start_run(dag, logical_at=JANUARY_10).go()
    assert isinstance(failure(run), BusinessDateError)
    assert_untouched(business)


def test_a_partition_dates_its_run(business: Business) -> None:
    try:
        from airflow.sdk import CronPartitionTimetable
    except ImportError:
        pytest.skip("runs have partitions from Airflow 3.2 on")
    dag = dag_of(business, schedule=CronPartitionTimetable("0 0 * * *", timezone="UTC"))
    run = start_run(dag, run_type="manual", partition_key="2025-03-31").go()
    assert run.result("post") == "2025-03-31"


def test_other_tasks_get_the_same_date(business: Business) -> None:
    from airflow.sdk import DAG, task

    with DAG(business.dag_id, schedule=None, start_date=datetime(2025, 1, 1, tzinfo=UTC)) as dag:

        @task
        def report(**context: Any) -> list[str]:
            rules: list[Any] = [None, previous_day(), "{{ ds }}"]
            return [business_date_of(context, rule).isoformat() for rule in rules]

        @task
        def skipped(**context: Any) -> str:
            return business_date_of(context, month_end(otherwise="skip")).isoformat()

        report()
        skipped()
    run = start_run(dag, logical_at=JANUARY_10).go()
    assert run.result("report") == ["2025-01-10", "2025-01-09", "2025-01-10"]
    assert run.states()["skipped"] == "skipped"


# -- D05: partitions -----------------------------------------------------------------------------------------


@pytest.fixture
def of_partition(business: Business) -> Any:
    """Run the DAG for a partition, as the trigger form does: the logical date is now."""
    try:
        from airflow.sdk import PartitionedAtRuntime
    except ImportError:
        pytest.skip("runs have partitions from Airflow 3.2 on")

    def run_of(key: str, **parameters: Any) -> AirflowRun:
        dag = dag_of(business, schedule=PartitionedAtRuntime(), **parameters)
        return start_run(dag, run_type="manual", logical_at=datetime.now(UTC), partition_key=key).go()

    return run_of


def test_d05_runs_of_partitions_have_their_own_date_and_key(business: Business, of_partition: Any) -> None:
    keys = ["DE|2026-01-30", "FR|2026-01-30", "2026-01-30T05", "2026-01-30T06", "2026-01-30", "DE|2026-01-29"]
    for key in keys:
        assert of_partition(key).last("post").state == "success"
    assert sorted(row[2] for row in business.rows()) == ["2026-01-29", *["2026-01-30"] * 5]
    assert of_partition("DE|2026-01-30").last("post").state == "success"  # asked for again: it replays
    assert len(business.rows()) == len(keys)


def test_d05_a_partition_without_a_date_fails_and_its_advice_works(
    business: Business, of_partition: Any
) -> None:
    error = failure(of_partition("DE"))
    assert isinstance(error, BusinessDateError)
    assert 'business_date="{{ partition_key[-10:] }}"' in str(error)
    assert "facts.partition_key[-10:]" in str(error)
    assert_untouched(business)

    key = "2025-12-31..2026-01-30"
    assert isinstance(failure(of_partition(key)), BusinessDateError)
    for advice in ("{{ partition_key[-10:] }}", lambda facts: facts.partition_key[-10:]):
        of_partition(key, business_date=advice)
    assert business.rows() == [("post", "A", "2026-01-30")]


def test_d05_a_cycle_that_does_not_tell_partitions_apart_is_refused(
    business: Business, of_partition: Any
) -> None:
    error = failure(of_partition("DE|2026-01-30", cycle="evening"))
    assert isinstance(error, ConfigurationError)
    assert 'cycle="{{ partition_key }}"' in str(error)
    assert of_partition("DE|2026-01-30", cycle="{{ partition_key }}").last("post").state == "success"
    assert of_partition("FR|2026-01-30", cycle="{{ partition_key }}").last("post").state == "success"
    assert len(business.rows()) == 2


# -- D06: asset events that are emitted again ----------------------------------------------------------------


def test_d06_events_that_the_same_runs_emit_again_are_the_same_work(business: Business) -> None:
    dag = dag_of(business, business_date=from_asset_extra())
    day = {"business_date": "2025-03-31"}

    def consumed(emitted_by: str | None, *extras: dict[str, Any]) -> AirflowRun:
        run = start_run(
            dag, run_type="asset_triggered", asset_extras=extras or (day, day), emitted_by=emitted_by
        )
        return run.go()

    assert consumed("run_1").result("post") == "2025-03-31"
    assert consumed("run_1").result("post") == "2025-03-31"
    assert business.rows() == [("post", "A", "2025-03-31")]
    # Other work, or the same: of another run, with another extra, of fewer assets, or of nobody knows whom.
    for other in (("run_2",), ("run_1", day, {**day, "file": 2}), ("run_1", day), (None,)):
        error = failure(consumed(*other))
        assert isinstance(error, OtherRun), other
        assert "business_date=from_asset_extra()" in str(error)
    assert business.rows() == [("post", "A", "2025-03-31")]


def test_d06_events_of_nobody_knows_whom_are_never_the_same_work(business: Business) -> None:
    dag = dag_of(business, business_date=from_asset_extra())
    runs = [
        start_run(dag, run_type="asset_triggered", asset_extras=[{"business_date": "2025-03-31"}]).go()
        for _ in "12"
    ]
    assert runs[0].last("post").state == "success"
    assert isinstance(failure(runs[1]), OtherRun)


# -- D04: another rule, or another zone, makes no new work ---------------------------------------------------


def test_d04_another_rule_does_not_settle_the_month_again(business: Business) -> None:
    """31 January 2026 is a Saturday: by the new rule the same month has another end."""
    old = dag_of(business, business_date=month_end(otherwise="previous"))
    assert start_run(old, logical_at=datetime(2026, 2, 1, 4, tzinfo=UTC)).go().states() == {"post": "success"}
    new = dag_of(business, business_date=business_month_end("DE", otherwise="previous"))
    run = start_run(new, run_type="manual", logical_at=datetime(2026, 2, 2, 9, tzinfo=UTC)).go()
    drift = failure(run)
    assert isinstance(drift, KeyDrift)
    for told in ("2026-01-30", "dated 2026-01-31 (month_end(otherwise='previous') of 2026-02-01", "(A)"):
        assert told in str(drift)
    assert len(business.rows()) == 1
    # Its first advice.
    run.clear().go(old)
    assert isinstance(failure(run), DateChangedError) or run.states() == {"post": "success"}
    again = start_run(old, run_type="manual", logical_at=datetime(2026, 2, 2, 10, tzinfo=UTC)).go()
    assert again.states() == {"post": "success"}
    assert len(business.rows()) == 1
    # The next month has the same documents, and is its own work.
    march = start_run(new, logical_at=datetime(2026, 3, 1, 4, tzinfo=UTC)).go()
    assert march.states() == {"post": "success"}
    assert [day for _, _, day in business.rows()] == ["2026-01-31", "2026-02-27"]


@databases("sqlite", "postgres_embedded", "mariadb")
@pytest.mark.parametrize("what", ["documents", "the run as a whole"])
def test_d04_another_zone_does_not_post_the_day_again(business: Business, what: str) -> None:
    """The run of 23:00 UTC belongs to the next day in Berlin."""

    def book(business_date: date) -> None:
        business.act("post", None, business_date)

    whole: dict[str, Any] = {"document": None, "python_callable": book, "side_effect": "external"}
    more = {} if what == "documents" else whole
    old, new = dag_of(business, **more), dag_of(business, timezone="Europe/Berlin", **more)
    start_run(old, logical_at=datetime(2026, 1, 30, 23, tzinfo=UTC)).go()
    assert len(business.rows()) == 1
    drift = failure(start_run(new, run_type="manual", logical_at=datetime(2026, 1, 31, 9, tzinfo=UTC)).go())
    assert isinstance(drift, KeyDrift)
    assert "time zone back" in str(drift)
    assert len(business.rows()) == 1
    tomorrow = start_run(new, logical_at=datetime(2026, 1, 31, 23, tzinfo=UTC)).go()
    assert tomorrow.states() == {"post": "success"}, (
        "the next day has the same documents, and is its own work"
    )


class Described:
    """A calendar that says much of itself: the words beside a date are cut, what it was made from is not."""

    def is_business_day(self, day: date) -> bool:
        return day.weekday() < 5

    def __repr__(self) -> str:
        return f"Described({'the branches of the north, ' * 12})"


def test_d04_another_zone_is_noticed_however_long_the_words_beside_the_date_are(business: Business) -> None:
    rule = business_day(calendar=Described(), otherwise="next")
    old = dag_of(business, business_date=rule)
    new = dag_of(business, timezone="Europe/Berlin", business_date=rule)
    start_run(old, logical_at=datetime(2026, 1, 29, 23, tzinfo=UTC)).go()
    drift = failure(start_run(new, run_type="manual", logical_at=datetime(2026, 1, 30, 9, tzinfo=UTC)).go())
    assert isinstance(drift, KeyDrift)
    assert len(business.rows()) == 1


def test_d04_a_new_date_that_is_to_stay(
    business: Business, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was done is recorded under the date that it has now, as the message says."""
    start_run(dag_of(business), logical_at=datetime(2026, 1, 30, 23, tzinfo=UTC)).go()
    new = dag_of(business, timezone="Europe/Berlin")
    run = start_run(new, run_type="manual", logical_at=datetime(2026, 1, 31, 9, tzinfo=UTC)).go()
    said = str(failure(run))
    assert "list what was done by it in done.csv (business_date,document)" in said
    monkeypatch.chdir(tmp_path)
    Path("done.csv").write_text("business_date,document\n2026-01-31,A\n", encoding="utf-8")
    [words] = re.findall(r"airflow-guard (adopt .*--reason) ", said)
    assert main([*shlex.split(words), "the zone was wrong", "--ledger", business.database.url]) == 0
    run.clear().go()
    assert run.states() == {"post": "success"}
    assert len(business.rows()) == 1


def test_d04_a_rule_that_gives_a_day_more_is_no_drift_for_the_next_run(business: Business) -> None:
    start_run(dag_of(business, business_date=previous_day()), logical_at=JANUARY_10).go()
    run = start_run(dag_of(business), logical_at=JANUARY_10 + timedelta(days=1)).go()
    assert run.states() == {"post": "success"}
    assert [day for _, _, day in business.rows()] == ["2025-01-09", "2025-01-11"]
