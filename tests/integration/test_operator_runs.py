"""A guarded task run again: by a clear, a person, a backfill, another schedule, under another name."""

from __future__ import annotations

import re
import shlex
from datetime import UTC, date, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard import IdempotentOperator, KeyDrift, NotGuardedThen, OtherDeployment, OtherRun
from airflow_guard.commands.main import main
from airflow_guard.operators.endings import GuardFailure
from tests.airflow_runs import AirflowRun, start_run
from tests.databases import databases
from tests.integration.conftest import LEDGER

if TYPE_CHECKING:
    from pathlib import Path

    from airflow.sdk import DAG

    from tests.integration.conftest import Business

pytestmark = databases("sqlite", "postgres_embedded")

MARCH_31 = datetime(2025, 3, 31, tzinfo=UTC)
APRIL_1 = datetime(2025, 4, 1, tzinfo=UTC)
A_AND_B = [("post", "A", "2025-03-31"), ("post", "B", "2025-03-31")]


def dag_of(business: Business, **parameters: Any) -> DAG:
    """A DAG with one guarded task that posts a row for each document."""
    from airflow.sdk import DAG

    def post(connection: Any, business_date: date, document: str | None = None) -> dict[str, Any]:
        business.post(connection, "post", document, business_date)
        return {"posted": document}

    defaults: dict[str, Any] = {
        "task_id": "post", "operation": "post", "python_callable": post, "side_effect": "database",
        "documents": ["A", "B"],
    }  # fmt: skip
    with DAG(business.dag_id, schedule="@daily", start_date=datetime(2025, 1, 1, tzinfo=UTC)) as dag:
        IdempotentOperator(**{**defaults, **parameters})
    return dag


def failure(run: AirflowRun, task_id: str = "post") -> BaseException | None:
    """Return the error of this package that ended a task, after asserting that no retry follows."""
    ended = run.last(task_id)
    assert ended.state == "failed", ended
    assert isinstance(ended.error, GuardFailure), ended.error
    return ended.cause


def test_each_document_is_executed_once_and_a_clear_replays(business: Business) -> None:
    run = start_run(dag_of(business), logical_at=MARCH_31).go()
    assert run.states() == {"post": "success"}
    assert run.result("post") == {
        "key_namespace": business.dag_id,
        "operation": "post",
        "business_date": "2025-03-31",
        "documents": 2,
        "executed": 2,
        "figures": {"listed": 2, "done": 2},
    }
    run.clear().go(dag_of(business))
    assert run.states() == {"post": "success"}
    assert run.result("post")["replayed"] == 2
    assert business.rows() == A_AND_B


def test_a_replayed_single_document_returns_what_the_first_run_returned(business: Business) -> None:
    def parameters() -> DAG:
        return dag_of(business, documents=None, document="A")

    run = start_run(parameters(), logical_at=MARCH_31).go()
    assert run.result("post") == {"posted": "A"}
    run.clear().go(parameters())
    assert run.result("post") == {"posted": "A"}
    assert business.documents() == ["A"]


def test_a_manual_run_for_a_done_date_replays(business: Business) -> None:
    start_run(dag_of(business), logical_at=MARCH_31).go()
    manual = start_run(
        dag_of(business), run_type="manual", logical_at=APRIL_1, conf={"business_date": "2025-03-31"}
    ).go()
    assert manual.result("post")["replayed"] == 2
    assert business.rows() == A_AND_B


def test_a_backfill_that_clears_the_run_replays(business: Business) -> None:
    run = start_run(dag_of(business), logical_at=MARCH_31).go()
    run.clear().rewrite_run_type("backfill").go(dag_of(business))
    assert run.states() == {"post": "success"}
    assert business.rows() == A_AND_B


def test_the_next_date_is_new_work(business: Business) -> None:
    start_run(dag_of(business), logical_at=MARCH_31).go()
    start_run(dag_of(business), logical_at=APRIL_1).go()
    assert business.documents() == ["A", "B", "A", "B"]


def test_another_automatic_run_with_the_key_fails_and_says_how_to_tell_them_apart(business: Business) -> None:
    first = start_run(dag_of(business), logical_at=MARCH_31).go()
    other = start_run(dag_of(business), logical_at=MARCH_31.replace(hour=18)).go()
    error = failure(other)
    assert first.run_id in str(error)
    assert "cycle" in str(error)
    assert 'on_other_run="replay"' in str(error)
    assert business.rows() == A_AND_B


def test_a_single_key_of_another_run_fails_with_its_own_error(business: Business) -> None:
    def dag() -> DAG:
        return dag_of(business, documents=None, document="A")

    start_run(dag(), logical_at=MARCH_31).go()
    assert isinstance(failure(start_run(dag(), logical_at=MARCH_31.replace(hour=18)).go()), OtherRun)


def test_cycles_of_one_day_are_work_of_their_own(business: Business) -> None:
    def dag() -> DAG:
        return dag_of(business, cycle="{{ logical_date.strftime('%H') }}")

    for hour in (6, 18):
        run = start_run(dag(), logical_at=MARCH_31.replace(hour=hour)).go()
        assert run.states() == {"post": "success"}
    assert business.rows() == A_AND_B * 2
    assert {row.cycle for row in business.ledger_rows()} == {"06", "18"}


def test_relisting_is_replayed_where_the_task_says_so(business: Business) -> None:
    start_run(dag_of(business), logical_at=MARCH_31).go()
    again = dag_of(business, on_other_run="replay", documents=["A", "B", "C"])
    run = start_run(again, logical_at=MARCH_31.replace(hour=18)).go()
    assert (run.result("post")["replayed"], run.result("post")["executed"]) == (2, 1)
    assert business.documents() == ["A", "B", "C"]


def test_once_per_document_pays_once_on_whatever_date(business: Business) -> None:
    def dag() -> DAG:
        return dag_of(business, once_per="document")

    start_run(dag(), logical_at=MARCH_31).go()
    run = start_run(dag(), logical_at=APRIL_1).go()
    assert run.result("post")["replayed"] == 2
    assert business.rows() == A_AND_B


# -- key drift -----------------------------------------------------------------------------------------------


def test_r07_a_renamed_task_fails_and_names_the_old_operation(business: Business) -> None:
    start_run(dag_of(business, operation=None), logical_at=MARCH_31).go()
    renamed = start_run(
        dag_of(business, task_id="book", operation=None),
        run_type="manual",
        logical_at=MARCH_31.replace(hour=1),
    )
    error = failure(renamed.go(), "book")
    assert isinstance(error, KeyDrift)
    assert "operation='post'" in str(error)
    names = f"{business.dag_id} post {business.dag_id} book"
    assert f'airflow-guard rename {names} --reason "…"' in str(error)
    with_ledger = dag_of(business, task_id="book", operation=None, ledger_conn_id=LEDGER)
    assert f"airflow-guard rename --ledger {LEDGER} {names}" in str(
        failure(renamed.clear().go(with_ledger), "book")
    )
    assert business.rows() == A_AND_B


def test_d04_another_document_key_is_drift_and_each_advice_works(
    business: Business, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = [{"no": f"N{n}", "msg": f"M{n}"} for n in range(3)]
    run = start_run(dag_of(business, documents=listed, document_key="no"), logical_at=MARCH_31).go()
    by_msg = dag_of(business, documents=listed, document_key="msg", ledger_conn_id=LEDGER)
    told = failure(run.clear().go(by_msg))
    assert isinstance(told, KeyDrift)
    done = business.rows()
    assert business.documents() == ["N0", "N1", "N2"]

    assert "Put document_key='no' back" in str(told)
    back = dag_of(business, documents=listed, document_key="no")
    assert run.clear().go(back).result("post")["replayed"] == 3

    # The new identity stays: what was done is recorded under it, by the command of the message.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "done.csv").write_text(
        "business_date,document\n" + "".join(f"2025-03-31,M{n}\n" for n in range(3))
    )
    [command] = re.findall(r"airflow-guard (adopt .*? --reason \"…\")", str(told))
    assert main(shlex.split(command)) == 0
    assert run.clear().go(by_msg).result("post")["replayed"] == 3
    assert business.rows() == done


def test_r07_a_renamed_task_with_a_fixed_operation_keeps_its_keys(business: Business) -> None:
    start_run(dag_of(business), logical_at=MARCH_31).go()
    renamed = start_run(
        dag_of(business, task_id="book"), run_type="manual", logical_at=MARCH_31.replace(hour=1)
    ).go()
    assert renamed.result("book")["replayed"] == 2
    assert business.rows() == A_AND_B


def test_r07_two_stages_over_the_same_documents_are_two_operations(business: Business) -> None:
    from airflow.sdk import DAG

    def dag() -> DAG:
        def effect(stage: str) -> Any:
            return lambda document, connection, business_date: business.post(
                connection, stage, document, business_date
            )

        with DAG(business.dag_id, schedule="@daily", start_date=datetime(2025, 1, 1, tzinfo=UTC)) as dag:
            stages = [
                IdempotentOperator.partial(
                    task_id=stage, python_callable=effect(stage), side_effect="database"
                ).expand(document=["X", "Y"])
                for stage in ("submit", "report")
            ]
            stages[0] >> stages[1]
        return dag

    run = start_run(dag(), logical_at=MARCH_31).go()
    run.clear().go(dag())
    assert set(run.states().values()) == {"success"}
    assert business.documents("submit") == ["X", "Y"]
    assert business.documents("report") == ["X", "Y"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"cycle": "evening"}),
        ({"documents": None}, {"documents": ["A"]}),
        ({"documents": ["A"]}, {"documents": None}),
        ({}, {"once_per": "document"}),
    ],
    ids=["new cycle", "new documents", "documents gone", "once per document"],
)
def test_keys_of_another_shape_do_not_make_history_look_undone(
    business: Business, before: dict[str, Any], after: dict[str, Any]
) -> None:
    start_run(dag_of(business, **before), logical_at=MARCH_31).go()
    done = business.rows()
    run = start_run(dag_of(business, **after), run_type="manual", logical_at=MARCH_31.replace(hour=1)).go()
    assert isinstance(failure(run), KeyDrift)
    assert business.rows() == done


# -- whose history it is -------------------------------------------------------------------------------------


def test_a_row_of_another_deployment_is_neither_replayed_nor_repeated(
    business: Business, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dag() -> DAG:
        return dag_of(business, documents=None, document="A")

    monkeypatch.setenv("AIRFLOW__AIRFLOW_GUARD__DEPLOYMENT", "laptop")
    start_run(dag(), logical_at=MARCH_31).go()
    monkeypatch.setenv("AIRFLOW__AIRFLOW_GUARD__DEPLOYMENT", "production")
    run = start_run(dag(), run_type="manual", logical_at=MARCH_31.replace(hour=1)).go()
    error = failure(run)
    assert isinstance(error, OtherDeployment)
    assert "laptop" in str(error)
    assert business.documents() == ["A"]


def test_observing_executes_and_records_what_it_would_have_blocked_and_enforcing_blocks(
    business: Business,
) -> None:
    for _ in range(2):
        run = start_run(
            dag_of(business, mode="observe"),
            run_type="manual",
            logical_at=MARCH_31.replace(hour=len(business.rows())),
        ).go()
        assert run.states() == {"post": "success"}
    assert run.result("post")["observed"] == 2
    assert business.rows() == A_AND_B * 2
    assert [event.kind for event in business.events()] == ["would_block", "would_block"]

    run = start_run(dag_of(business), run_type="manual", logical_at=MARCH_31.replace(hour=5)).go()
    assert run.result("post")["replayed"] == 2
    assert business.rows() == A_AND_B * 2


def test_dates_before_guarded_from_fail_before_the_callable(business: Business) -> None:
    run = start_run(dag_of(business, documents=["A"], guarded_from="2025-04-01"), logical_at=MARCH_31).go()
    error = failure(run)
    assert isinstance(error, NotGuardedThen)
    assert "adopt" in str(error)
    run = start_run(dag_of(business, documents=["A"], guarded_from=date(2025, 4, 1)), logical_at=APRIL_1).go()
    assert run.states() == {"post": "success"}
    assert business.rows() == [("post", "A", "2025-04-01")]


def test_a_later_try_of_a_run_that_began_unguarded_fails(business: Business) -> None:
    from airflow.providers.standard.operators.python import PythonOperator
    from airflow.sdk import DAG

    with DAG(business.dag_id, schedule="@daily", start_date=datetime(2025, 1, 1, tzinfo=UTC)) as unguarded:
        PythonOperator(task_id="post", python_callable=lambda: business.act("post", "A"))
    run = start_run(unguarded, logical_at=MARCH_31).go()
    run.clear().go(dag_of(business, documents=["A"]))
    assert isinstance(failure(run), NotGuardedThen)
    assert len(business.rows()) == 1


def test_a_first_backfill_over_history_that_ran_unguarded_is_adopted_and_never_repeated(
    business: Business, tmp_path: Path
) -> None:
    from airflow.providers.standard.operators.python import PythonOperator
    from airflow.sdk import DAG

    with DAG(business.dag_id, schedule="@daily", start_date=datetime(2025, 1, 1, tzinfo=UTC)) as unguarded:
        PythonOperator(
            task_id="post", python_callable=lambda ds: business.act("post", "A", date.fromisoformat(ds))
        )
    days = [datetime(2025, 3, day, tzinfo=UTC) for day in (29, 30, 31)]
    history = [start_run(unguarded, logical_at=day).go() for day in days]
    done = business.rows()
    assert [day for _, _, day in done] == ["2025-03-29", "2025-03-30", "2025-03-31"]

    def guarded() -> DAG:
        return dag_of(business, documents=["A"])

    assert start_run(guarded(), logical_at=APRIL_1).go().states() == {"post": "success"}
    # Reprocess behaviour "completed"; and whoever clears a task that was refused gets the same answer.
    for run in history:
        for _ in range(2):
            run.rewrite_run_type("backfill").clear().go(guarded())
            assert isinstance(failure(run), NotGuardedThen)
    assert business.rows()[:-1] == done

    file = tmp_path / "done.csv"
    file.write_text("business_date,document\n2025-03-29,A\n2025-03-30,A\n", encoding="utf-8")
    sql = "SELECT business_date, document FROM posting WHERE business_date = '2025-03-31'"
    for source in (["--csv", str(file)], ["--sql", sql]):
        words = ["--dag", business.dag_id, "--operation", "post", "--reason", "posted before the ledger"]
        assert main(["adopt", *words, *source, "--ledger", business.database.url]) == 0
    for run in history:
        run.clear().go(guarded())
        assert run.result("post")["replayed"] == 1
    assert business.rows()[:-1] == done


def test_c05_a_day_end_of_five_steps_resumes_where_it_broke(business: Business) -> None:
    from airflow.sdk import DAG

    broken = [True]

    def step(number: int) -> Any:
        def run(connection: Any, business_date: date) -> dict[str, Any]:
            if number == 3 and broken.pop():
                broken.append(False)
                raise RuntimeError("the file system is full")
            if number == 2:
                connection.execute(
                    sa.text("UPDATE system_date SET day = '2025-04-01' WHERE day = '2025-03-31'")
                )
            business.post(connection, f"s{number}", None, business_date)
            return {"step": number}

        return run

    def dag() -> DAG:
        with DAG(business.dag_id, schedule="@daily", start_date=datetime(2025, 1, 1, tzinfo=UTC)) as dag:
            tasks = [
                IdempotentOperator(task_id=f"s{n}", python_callable=step(n), side_effect="database")
                for n in range(1, 6)
            ]
            for before, after in pairwise(tasks):
                before >> after
        return dag

    with business.ledger.engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE system_date (day VARCHAR(10))"))
        connection.execute(sa.text("INSERT INTO system_date VALUES ('2025-03-31')"))

    run = start_run(dag(), logical_at=MARCH_31).go()
    assert run.states()["s3"] == "failed"
    assert run.states()["s4"] == "upstream_failed"

    run.clear().go(dag())  # by now the system's date, and the machine's, are others
    assert run.states() == {f"s{n}": "success" for n in range(1, 6)}
    assert business.rows() == [(f"s{n}", None, "2025-03-31") for n in range(1, 6)]
    assert [run.result(f"s{n}") for n in range(1, 6)] == [{"step": n} for n in range(1, 6)]
    assert {str(row.business_date) for row in business.ledger_rows()} == {"2025-03-31"}
    with business.ledger.engine.connect() as connection:
        assert connection.execute(sa.text("SELECT day FROM system_date")).scalars().all() == ["2025-04-01"]
