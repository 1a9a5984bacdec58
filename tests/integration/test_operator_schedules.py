"""Schedules and rules for business dates together: what is refused when a DAG is parsed, and what daily runs do."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_guard import (
    BusinessDateError,
    ConfigurationError,
    IdempotentOperator,
    ReconciliationSensor,
    Side,
    business_day,
    business_month_end,
    from_asset_extra,
    month_end,
    previous_business_day,
    previous_day,
    same_day,
)
from tests.airflow_runs import start_run
from tests.databases import databases
from tests.integration.test_operator_dates import dag_of, failure

if TYPE_CHECKING:
    from tests.integration.conftest import Business

pytestmark = databases("sqlite")


@pytest.fixture(autouse=True)
def _ledger_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__AIRFLOW_GUARD__LEDGER_CONN_ID", "ledger")


def send(document: str, effect: Any) -> None:
    """A function for an external effect."""


def guarded(**parameters: Any) -> IdempotentOperator:
    """Return a task that works, but for what a test changes."""
    defaults: dict[str, Any] = {"task_id": "send", "python_callable": send, "documents": ["A"]}
    return IdempotentOperator(**{**defaults, **parameters})


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (previous_business_day("DE"), ["06", "07", "08", "09", "10", "13", "14", "15", "16", "17"]),
        (business_day("DE"), ["07", "08", "09", "10", "13", "14", "15", "16", "17", "20"]),
        (previous_day(), [f"{day:02d}" for day in range(6, 20)]),
    ],
    ids=str,
)
def test_d13_fourteen_daily_runs_work_on_each_business_date_once(
    business: Business, rule: Any, expected: list[str]
) -> None:
    dag = dag_of(business, business_date=rule, schedule="0 2 * * *")
    states = []
    for day in range(7, 21):  # Tuesday, 7 January 2025, to Monday, the 20th
        run = start_run(dag, logical_at=datetime(2025, 1, day, 2, tzinfo=UTC)).go()
        states.append(run.last("post").state)
    assert business.rows() == [("post", "A", f"2025-01-{day}") for day in expected]
    assert states.count("success") == len(expected)
    assert states.count("skipped") == 14 - len(expected)


def test_d13_a_manual_run_for_a_date_in_the_future_says_so(
    business: Business, capsys: pytest.CaptureFixture[str]
) -> None:
    ahead = datetime.now(UTC).date() + timedelta(days=40)
    run = start_run(dag_of(business), run_type="manual", conf={"business_date": str(ahead)}).go()
    assert run.last("post").state == "success"
    said = capsys.readouterr().out
    assert f"Business date {ahead}" in said
    assert "lies in the future" in said

    much = date(ahead.year + 36, 1, 30)
    run = start_run(dag_of(business), run_type="manual", conf={"business_date": str(much)}).go()
    error = failure(run)
    assert isinstance(error, BusinessDateError)
    assert "days in the future" in str(error)
    assert business.rows() == [("post", "A", str(ahead))]


# -- D13: rules and schedules --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (previous_day, "previous_day()"),
        (month_end, "month_end()"),
        (same_day, "same_day()"),
        (from_asset_extra, "from_asset_extra()"),
        (business_day, 'business_day("DE")'),
        (previous_business_day, 'previous_business_day("DE")'),
        (business_month_end, 'business_month_end("DE")'),
        (type(previous_day()), "previous_day()"),
    ],
)
def test_d13_the_function_of_a_rule_is_refused_where_it_is_written(function: Any, advice: str) -> None:
    from airflow.sdk import DAG

    sentence = f"is the function, not the rule that it returns. Write business_date={advice}."
    with DAG("parsed", schedule=None):
        for make in (
            lambda: guarded(business_date=function),
            lambda: guarded_mapped(business_date=function),
            lambda: ReconciliationSensor(
                task_id="compare",
                source=Side("a", table="t"),
                target=Side("b", table="t"),
                business_date=function,
            ),
        ):
            with pytest.raises(ConfigurationError, match=re.escape(sentence)):
                make()


def guarded_mapped(task_id: str = "mapped", **parameters: Any) -> Any:
    return IdempotentOperator.partial(
        task_id=task_id, operation=task_id, python_callable=send, **parameters
    ).expand(document=["A"])


def test_d13_a_continuous_schedule_is_refused_unless_the_task_says_what_a_run_is_about() -> None:
    from airflow.sdk import DAG

    with DAG(
        "parsed", schedule="@continuous", start_date=datetime(2026, 1, 1, tzinfo=UTC), max_active_runs=1
    ):
        for number, parameters in enumerate(({}, {"business_date": previous_day()})):
            with pytest.raises(ConfigurationError, match="@continuous"):
                guarded(task_id=f"a{number}", **parameters)
            with pytest.raises(ConfigurationError, match="@continuous"):
                guarded_mapped(f"b{number}", **parameters)
        guarded(task_id="dated", business_date=lambda facts: facts.local_date(facts.run_after_at))


@pytest.mark.parametrize(
    ("schedule", "rule", "refused"),
    [
        ("0 2 * * *", previous_business_day("DE"), None),
        ("@daily", previous_business_day("DE"), None),
        ("0 2 * * 1-5", previous_business_day("DE"), None),
        ("0 2 * * 2-6", previous_business_day("DE"), "otherwise='run'"),
        ("0 2 * * 2-6", previous_business_day("DE", otherwise="run"), None),
        ("0 4 1 * *", month_end(), "otherwise='previous'"),
        ("0 4 1 * *", month_end(otherwise="previous"), None),
        ("0 22 L * *", month_end(), None),
        ("0 22 L * *", business_month_end("DE"), "otherwise='previous'"),
        ("0 * * * *", business_day("DE"), None),
        (CronDataIntervalTimetable("0 4 * * *", timezone="UTC"), month_end(), None),
        (CronDataIntervalTimetable("0 4 1 * *", timezone="UTC"), month_end(), "otherwise='previous'"),
        (timedelta(days=1), month_end(), None),
    ],
    ids=lambda value: getattr(value, "expression", None) or getattr(value, "_expression", None) or str(value),
)
def test_d13_a_schedule_that_leaves_a_date_to_no_run_is_refused(
    schedule: Any, rule: Any, refused: str | None
) -> None:
    from airflow.sdk import DAG

    with DAG("parsed", schedule=schedule, start_date=datetime(2026, 1, 1, tzinfo=UTC)):
        if refused is None:
            guarded(business_date=rule)
            return
        with pytest.raises(ConfigurationError, match="it would never be done") as error:
            guarded(business_date=rule)
        assert refused in str(error.value)
