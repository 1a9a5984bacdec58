"""Mapped tasks: the key is the document's, whatever index it has today."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_guard import ConfigurationError, DocumentError, Forgotten, IdempotentOperator
from airflow_guard.commands.main import main
from airflow_guard.operators.endings import GuardFailure
from airflow_guard.reading.monitor import Monitor
from airflow_guard.reading.watching import Watch
from airflow_guard.store.ledger import Ledger
from tests.airflow_runs import start_run
from tests.databases import databases
from tests.docs.shell import commands_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.sdk import DAG

    from tests.airflow_runs import AirflowRun
    from tests.integration.conftest import Business

pytestmark = databases("sqlite", "postgres_embedded")

MARCH_31 = datetime(2025, 3, 31, tzinfo=UTC)
START = datetime(2025, 1, 1, tzinfo=UTC)


def effect_of(business: Business, fails: set[str] | None = None) -> Callable[..., Any]:
    """A function that posts its document, and fails for some."""

    def post(document: str, connection: Any, business_date: date) -> dict[str, str]:
        if fails is not None and document in fails:
            raise RuntimeError(f"no account for {document}")
        business.post(connection, "post", document, business_date)
        return {"posted": document}

    return post


def mapped_over(business: Business, listed: list[str], fails: set[str] | None = None) -> DAG:
    """A DAG that lists documents in one task and posts each in an instance of another."""
    from airflow.sdk import DAG, task

    with DAG(business.dag_id, schedule=None, start_date=START) as dag:

        @task
        def listing() -> list[str]:
            return listed

        IdempotentOperator.partial(
            task_id="post", python_callable=effect_of(business, fails), side_effect="database", retries=0
        ).expand(document=listing())
    return dag


def test_c13_an_item_keeps_its_own_result_when_the_list_shifts(business: Business) -> None:
    run = start_run(mapped_over(business, ["a", "b", "c"], fails={"b"}), logical_at=MARCH_31).go()
    assert run.states() == {
        "listing": "success",
        "post[0]": "success",
        "post[1]": "failed",
        "post[2]": "success",
    }

    run.clear().go(mapped_over(business, ["z", "a", "b", "c"]))
    assert set(run.states().values()) == {"success"}
    assert sorted(business.documents()) == ["a", "b", "c", "z"]
    assert [run.result("post", index) for index in range(4)] == [{"posted": document} for document in "zabc"]


def test_c13_a_document_that_is_listed_twice_is_executed_once(
    business: Business, caplog: pytest.LogCaptureFixture
) -> None:
    """The log of the second instance, which Airflow keeps by its index, names the index of the first."""
    caplog.set_level("INFO", logger="airflow_guard")
    run = start_run(mapped_over(business, ["a", "b", "a"]), logical_at=MARCH_31).go()
    (line,) = [line for line in caplog.messages if "replayed 1" in line]
    assert f"done before by run {run.run_id}, {business.dag_id}.post [0] try 1" in line
    assert set(run.states().values()) == {"success"}
    assert sorted(business.documents()) == ["a", "b"]
    assert run.result("post", 0) == run.result("post", 2) == {"posted": "a"}


def test_r07_clearing_one_item_of_a_stage_replays_the_next(business: Business) -> None:
    from airflow.sdk import DAG

    def dag() -> DAG:
        with DAG(business.dag_id, schedule=None, start_date=START) as dag:
            stages = [
                IdempotentOperator.partial(
                    task_id=stage,
                    python_callable=lambda document, stage=stage: (
                        business.act(stage, document) or f"{stage} {document}"
                    ),
                ).expand(document=["X", "Y"])
                for stage in ("submit", "report")
            ]
            stages[0] >> stages[1]
        return dag

    run = start_run(dag(), logical_at=MARCH_31).go()
    run.clear("submit", "report").go(dag())
    assert run.result("report", 1) == "report Y"
    assert business.documents("submit") == ["X", "Y"]
    assert business.documents("report") == ["X", "Y"]


def test_chunks_list_their_documents_by_a_callable(business: Business) -> None:
    from airflow.sdk import DAG, task

    def between(lo: int, hi: int, business_date: date) -> Any:
        yield from ({"id": n, "day": business_date.isoformat()} for n in range(lo, hi))

    def settle(documents: list[dict[str, Any]], connection: Any, business_date: date) -> int:
        for document in documents:
            business.post(connection, "settle", str(document["id"]), document["day"] and business_date)
        return len(documents)

    def dag() -> DAG:
        with DAG(business.dag_id, schedule=None, start_date=START) as dag:

            @task
            def chunks() -> list[dict[str, int]]:
                return [{"lo": 0, "hi": 5}, {"lo": 5, "hi": 7}]

            IdempotentOperator.partial(
                task_id="settle",
                python_callable=settle,
                documents=between,
                document_key="id",
                call_per="batch",
                batch_size=3,
                side_effect="database",
            ).expand(op_kwargs=chunks())
        return dag

    run = start_run(dag(), logical_at=MARCH_31).go()
    assert [run.result("settle", index)["executed"] for index in (0, 1)] == [5, 2]
    run.clear().go(dag())
    assert [run.result("settle", index)["replayed"] for index in (0, 1)] == [5, 2]
    assert sorted(business.documents()) == [str(n) for n in range(7)]


# -- D03: a mapping that is shorter, or gone, forgets nothing -------------------------------------------------


def forgotten(run: AirflowRun, business: Business) -> str:
    """Return the message of the instance that says what was forgotten, after asserting that nothing was done."""
    [message] = {str(ended.cause) for ended in run.ended if isinstance(ended.cause, Forgotten)}
    assert "failed" in run.states().values() or "up_for_retry" in run.states().values()
    assert "c" not in business.documents()
    return message


def test_d03_a_shorter_mapping_does_not_forget_what_its_last_instance_left(business: Business) -> None:
    run = start_run(mapped_over(business, ["a", "b", "c"], fails={"c"}), logical_at=MARCH_31).go()
    assert run.states()["post[2]"] == "failed"
    run.clear().go(mapped_over(business, ["a", "b"]))
    assert "c (failed: RuntimeError: no account for c)" in forgotten(run, business)
    # Listed again it is done.
    run.clear().go(mapped_over(business, ["a", "b", "c"]))
    assert set(run.states().values()) == {"success"}
    assert sorted(business.documents()) == ["a", "b", "c"]
    # And what is done is not missed.
    run.clear().go(mapped_over(business, ["a"]))
    assert {name: state for name, state in run.states().items() if state != "removed"} == {
        "listing": "success",
        "post[0]": "success",
    }


def test_d03_a_shorter_mapping_ends_well_once_a_person_has_dropped_it(business: Business) -> None:
    run = start_run(mapped_over(business, ["a", "b", "c"], fails={"c"}), logical_at=MARCH_31).go()
    run.clear().go(mapped_over(business, ["a", "b"]))
    words = forgotten(run, business)
    [command] = commands_of("airflow-guard drop" + words.partition("airflow-guard drop")[2])
    command[command.index("…")] = "withdrawn"
    assert main([*command[1:], "--ledger", business.database.url]) == 0
    run.clear().go(mapped_over(business, ["a", "b"]))
    assert {state for state in run.states().values() if state != "removed"} == {"success"}
    assert sorted(business.documents()) == ["a", "b"]


def test_d03_chunks_that_are_fewer_forget_none_of_their_documents(business: Business) -> None:
    """The last chunk stopped at its first document: the others of it were never begun."""
    from airflow.sdk import DAG, task

    def chunked(chunks: list[list[str]], fails: set[str] | None = None) -> DAG:
        with DAG(business.dag_id, schedule=None, start_date=START) as dag:

            @task
            def listing() -> list[dict[str, Any]]:
                return [{"names": chunk} for chunk in chunks]

            IdempotentOperator.partial(
                task_id="post", python_callable=effect_of(business, fails), side_effect="database", retries=0,
                documents=lambda names: names, stop_on_failure=True,
            ).expand(op_kwargs=listing())  # fmt: skip
        return dag

    run = start_run(chunked([["a"], ["c", "d", "e"]], fails={"c"}), logical_at=MARCH_31).go()
    assert run.states()["post[1]"] == "failed"
    run.clear().go(chunked([["a"]]))
    words = forgotten(run, business)
    assert "3 documents" in words
    run.clear().go(chunked([["a", "c", "d", "e"]]))
    assert {state for state in run.states().values() if state != "removed"} == {"success"}
    assert sorted(business.documents()) == ["a", "c", "d", "e"]


def test_d03_a_task_that_is_not_mapped_any_more_forgets_nothing(business: Business) -> None:
    from airflow.sdk import DAG

    def plain(listed: list[str]) -> DAG:
        with DAG(business.dag_id, schedule=None, start_date=START) as dag:
            IdempotentOperator(
                task_id="post",
                python_callable=effect_of(business),
                side_effect="database",
                retries=0,
                documents=listed,
            )
        return dag

    run = start_run(mapped_over(business, ["a", "b", "c"], fails={"c"}), logical_at=MARCH_31).go()
    run.clear().go(plain(["a", "b"]))
    assert "c (failed" in forgotten(run, business)
    run.clear().go(plain(["a", "b", "c"]))
    assert sorted(business.documents()) == ["a", "b", "c"]


def test_d03_a_mapping_over_nothing_is_told_by_the_day_and_by_the_watch(business: Business) -> None:
    """No instance is left that could fail: Airflow skips the task."""
    run = start_run(mapped_over(business, ["a", "c"], fails={"c"}), logical_at=MARCH_31).go()
    run.clear().go(mapped_over(business, []))
    assert "failed" not in run.states().values()
    ledger = Ledger(business.ledger)
    day = Monitor(ledger, limit_s=60).day(business.dag_id, MARCH_31.date(), None)
    assert day is not None
    assert (day.figures.failed, day.figures.done) == (1, 1)
    [told] = Watch(ledger, "default").left(timedelta(0))
    assert told.documents == ("c",)


def test_a_mapped_group_takes_its_document_from_the_groups_argument(business: Business) -> None:
    from airflow.sdk import DAG, task_group

    with DAG(business.dag_id, schedule=None, start_date=START) as dag:

        @task_group
        def one(document: str) -> None:
            IdempotentOperator(
                task_id="post", operation="post", python_callable=effect_of(business), document=document,
                side_effect="database",
            )  # fmt: skip

        one.expand(document=["a", "b"])
    run = start_run(dag, logical_at=MARCH_31).go()
    assert run.states() == {"one.post[0]": "success", "one.post[1]": "success"}
    assert sorted(business.documents()) == ["a", "b"]


def assert_nothing_happened(business: Business) -> None:
    """Assert that neither the business nor the ledger saw anything."""
    assert business.rows() == []
    assert business.task_runs() == []


def test_an_instance_without_document_fails_before_the_ledger(business: Business) -> None:
    from airflow.sdk import DAG, task_group

    with DAG(business.dag_id, schedule=None, start_date=START) as dag:

        @task_group
        def one(name: str) -> None:
            IdempotentOperator(task_id="post", operation="post", python_callable=lambda: business.act("post"))

        one.expand(name=["a", "b"])
    run = start_run(dag, logical_at=MARCH_31).go()
    assert run.states() == {"one.post[0]": "failed", "one.post[1]": "failed"}
    assert isinstance(run.last("one.post", 0).error, GuardFailure)
    assert isinstance(run.last("one.post", 0).cause, ConfigurationError)
    assert_nothing_happened(business)


def test_a_mapped_instance_without_document_fails_before_the_ledger(business: Business) -> None:
    from airflow.sdk import DAG, task

    with DAG(business.dag_id, schedule=None, start_date=START) as dag:

        @task
        def instances() -> list[dict[str, Any]]:
            return [{"cycle": "1"}]

        IdempotentOperator.partial(
            task_id="post", python_callable=lambda: business.act("post")
        ).expand_kwargs(instances())
    run = start_run(dag, logical_at=MARCH_31).go()
    ended = run.last("post", 0)
    assert (ended.state, type(ended.error), type(ended.cause)) == ("failed", GuardFailure, ConfigurationError)
    assert_nothing_happened(business)


@pytest.mark.parametrize("name", ["operation", "key_namespace"])
def test_a_mapped_instance_that_brings_a_key_of_its_own_fails_before_the_ledger(
    business: Business, name: str
) -> None:
    """Where the task's list only exists at run time, parsing cannot refuse it."""
    from airflow.sdk import DAG, task

    with DAG(business.dag_id, schedule=None, start_date=START) as dag:

        @task
        def instances() -> list[dict[str, Any]]:
            return [{"document": "A", name: "another"}]

        IdempotentOperator.partial(
            task_id="post", python_callable=lambda document: business.act("post", document)
        ).expand_kwargs(instances())
    ended = start_run(dag, logical_at=MARCH_31).go().last("post", 0)
    assert (ended.state, type(ended.error), type(ended.cause)) == ("failed", GuardFailure, ConfigurationError)
    assert f"{name}='another': a fixed text" in str(ended.error)
    assert_nothing_happened(business)


def test_a_document_that_another_task_did_not_give_is_no_whole_run(business: Business) -> None:
    from airflow.sdk import DAG, task

    with DAG(business.dag_id, schedule=None, start_date=START) as dag:

        @task
        def nothing() -> None:
            return None

        IdempotentOperator(
            task_id="one", python_callable=lambda document: business.act("one", document), document=nothing()
        )
        IdempotentOperator(
            task_id="many",
            python_callable=lambda document: business.act("many", document),
            documents=nothing(),
        )
    run = start_run(dag, logical_at=MARCH_31).go()
    assert isinstance(run.last("one").cause, DocumentError)
    assert isinstance(run.last("many").cause, ConfigurationError)
    assert business.rows() == []


def test_documents_from_another_task_are_not_rendered_as_templates(business: Business) -> None:
    from airflow.sdk import DAG, task

    with DAG(business.dag_id, schedule=None, start_date=START) as dag:

        @task
        def listed() -> list[str]:
            return ["{{ 1 + 1 }}", "x'); DELETE FROM guard_execution;--"]

        IdempotentOperator(
            task_id="post", python_callable=effect_of(business), documents=listed(), side_effect="database"
        )
    run = start_run(dag, logical_at=MARCH_31).go()
    assert run.states()["post"] == "success"
    assert business.documents() == ["{{ 1 + 1 }}", "x'); DELETE FROM guard_execution;--"]
    assert {row.document for row in business.ledger_rows()} == set(business.documents())
