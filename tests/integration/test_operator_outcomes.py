"""How a guarded task ends: its state in Airflow, its error, its result, and what the ledger keeps."""

from __future__ import annotations

import os
import signal
import threading
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_guard import (
    ConfigurationError,
    DocumentsFailed,
    DuplicateRefused,
    External,
    FollowUpFailed,
    IdempotentOperator,
    InDoubt,
    LedgerNotMigrated,
    LedgerUnavailable,
    NotExecuted,
    Rejected,
    ResultError,
    Stopped,
    TooManyRejected,
)
from airflow_guard.airflow_compat import AirflowSkipException
from airflow_guard.operators.endings import GuardFailure, GuardRetry
from demo.waiting import QUIET_S
from tests.airflow_runs import AirflowRun, start_run
from tests.databases import databases

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.sdk import DAG

    from tests.integration.conftest import Business

pytestmark = databases("postgres_embedded")

MARCH_31 = datetime(2025, 3, 31, tzinfo=UTC)


def dag_of(business: Business, function: Callable[..., Any], **parameters: Any) -> DAG:
    """A DAG with one guarded task."""
    from airflow.sdk import DAG

    defaults: dict[str, Any] = {"task_id": "act", "python_callable": function, "retry_delay": timedelta(0)}
    with DAG(business.dag_id, schedule=None, start_date=datetime(2025, 1, 1, tzinfo=UTC)) as dag:
        IdempotentOperator(**{**defaults, **parameters})
    return dag


def run_of(business: Business, function: Callable[..., Any], **parameters: Any) -> AirflowRun:
    """Run such a DAG, its task for one try."""
    return start_run(dag_of(business, function, **parameters), logical_at=MARCH_31).go()


def states(business: Business) -> dict[str | None, str]:
    """Return the state of each document in the ledger."""
    return {row.document: row.state for row in business.ledger_rows()}


# -- results -------------------------------------------------------------------------------------------------


def test_the_function_gets_what_its_signature_names(business: Business) -> None:
    seen: dict[str, Any] = {}

    def act(
        document: str,
        payload: Any,
        business_date: date,
        idempotency_key: str,
        attempt: int,
        generation: int,
        ds: str,
        region: str,
        templates_dict: dict[str, str],
        **rest: Any,
    ) -> None:
        seen.update(locals())

    run = run_of(
        business,
        act,
        documents=[{"no": "A", "amount": 1}],
        document_key="no",
        op_kwargs={"region": "{{ ds_nodash }}"},
        templates_dict={"day": "{{ ds }}"},
    )
    assert run.states() == {"act": "success"}
    assert (seen["document"], seen["payload"]) == ("A", {"no": "A", "amount": 1})
    assert seen["business_date"] == date(2025, 3, 31)
    assert type(seen["business_date"]) is date
    assert seen["idempotency_key"] == business.ledger_rows()[0].idempotency_key
    assert (seen["attempt"], seen["generation"], seen["ds"]) == (1, 1, "2025-03-31")
    assert seen["rest"]["cycle"] == ""
    assert (seen["region"], seen["templates_dict"]) == ("20250331", {"day": "2025-03-31"})
    assert {"ti", "dag_run"} <= set(seen["rest"])
    assert not {"connection", "effect"} & set(seen["rest"])


def test_every_function_of_a_task_gets_the_cycle(business: Business) -> None:
    seen: list[tuple[str, Any]] = []

    def listed(business_date: date, cycle: str) -> list[str]:
        seen.append(("documents", cycle))
        return ["A"]

    def happened(cycle: str) -> bool:
        seen.append(("verify", cycle))
        return True

    def act(document: str, cycle: str) -> None:
        seen.append(("act", cycle))
        raise RuntimeError("timed out")

    dag = dag_of(
        business, act, documents=listed, retries=1, cycle="{{ '12:00' }}",
        side_effect=External(verify=happened, settle_after=timedelta(microseconds=1)),
    )  # fmt: skip
    run = start_run(dag, logical_at=MARCH_31).go()
    run.clear().go()
    assert run.states() == {"act": "success"}
    assert seen == [(name, "12:00") for name in ("documents", "act", "documents", "verify")]


def test_op_args_fill_parameters_by_position(business: Business) -> None:
    run = run_of(
        business, lambda region, document: f"{region} {document}", document="A", op_args=["{{ ds_nodash }}"]
    )
    assert run.result("act") == "20250331 A"


def test_the_result_is_the_same_json_in_the_first_run_and_in_the_replay(business: Business) -> None:
    def dag() -> DAG:
        return dag_of(business, lambda: {"pair": (1, 2), 3: None})

    run = start_run(dag(), logical_at=MARCH_31).go()
    assert run.result("act") == {"pair": [1, 2], "3": None}
    run.clear().go(dag())
    assert run.result("act") == {"pair": [1, 2], "3": None}


def test_coroutines_are_awaited(business: Business) -> None:
    async def act(document: str) -> str:
        business.act("act", document)
        return document.lower()

    async def listed(business_date: date) -> list[str]:
        return [f"A{business_date:%d}"]

    run = run_of(business, act, documents=listed)
    assert run.states() == {"act": "success"}
    assert business.documents() == ["A31"]
    assert business.ledger_rows()[0].result == '"a31"'


def test_documents_on_threads(business: Business) -> None:
    both = threading.Barrier(2, timeout=QUIET_S)

    def act(document: str) -> None:
        both.wait()  # passes only if two are at work at once
        business.act("act", document)

    run = run_of(business, act, documents=["A", "B", "C", "D"], max_workers=2)
    assert run.states() == {"act": "success"}
    assert sorted(map(str, business.documents())) == ["A", "B", "C", "D"]


def test_outlet_events_carry_the_business_date_and_what_the_function_adds(business: Business) -> None:
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.sdk import Asset, Metadata
    from airflow.utils.session import create_session
    from sqlalchemy import select

    statements, reports = Asset(f"statements_{business.dag_id}"), Asset(f"reports_{business.dag_id}")

    def act(outlet_events: Any) -> Any:
        outlet_events[statements].extra["rows"] = 3
        yield Metadata(reports, {"business_date": "2025-01-01"})
        return "done"

    def dag() -> DAG:
        return dag_of(business, act, outlets=[statements, reports])

    run = start_run(dag(), logical_at=MARCH_31).go()
    assert run.result("act") == "done"
    run.clear().go(dag())
    with create_session() as session:
        query = (
            select(AssetModel.name, AssetEvent.extra)
            .join(AssetModel, AssetModel.id == AssetEvent.asset_id)
            .where(AssetEvent.source_dag_id == business.dag_id)
            .order_by(AssetEvent.id)
        )
        found = [(name, extra) for name, extra in session.execute(query)]
    first = {
        statements.name: {"rows": 3, "business_date": "2025-03-31"},
        reports.name: {"business_date": "2025-01-01"},
    }
    assert dict(found[:2]) == first
    assert dict(found[2:]) == first, "a replay gives them again"


# -- failures ------------------------------------------------------------------------------------------------


def test_one_failure_does_not_stop_the_rest_and_a_retry_calls_only_what_is_not_done(
    business: Business,
) -> None:
    calls: list[str] = []
    broken = {"B"}

    def act(document: str, connection: Any) -> None:
        calls.append(document)
        if document in broken:
            raise RuntimeError("no account")
        business.post(connection, "act", document, None)

    def dag() -> DAG:
        return dag_of(business, act, documents=["A", "B", "C"], side_effect="database", retries=1)

    run = start_run(dag(), logical_at=MARCH_31).go()
    ended = run.last("act")
    assert (ended.state, type(ended.error)) == ("up_for_retry", GuardRetry)
    assert isinstance(ended.cause, DocumentsFailed)
    assert "no account" in str(ended.error)
    assert isinstance(ended.cause.__cause__, RuntimeError), "the function's own traceback is in the log"

    broken.clear()
    run.go(dag())
    assert run.states() == {"act": "success"}
    assert calls == ["A", "B", "C", "B"]
    assert business.documents() == ["A", "C", "B"]


def test_rejected_documents_fail_the_task_without_retry(business: Business) -> None:
    def act(document: str) -> None:
        if document == "B":
            raise Rejected("account closed")
        business.act("act", document)

    run = run_of(business, act, documents=["A", "B"], retries=3)
    ended = run.last("act")
    assert (ended.state, type(ended.cause)) == ("failed", TooManyRejected)
    assert "account closed" in str(ended.error)
    assert states(business) == {"A": "completed", "B": "rejected"}


def test_as_many_as_max_rejected_are_tolerated(business: Business) -> None:
    def act(document: str) -> None:
        if document == "B":
            raise Rejected("account closed")

    run = run_of(business, act, documents=["A", "B"], max_rejected=1)
    assert run.states() == {"act": "success"}
    assert (run.result("act")["executed"], run.result("act")["rejected"]) == (1, 1)


def test_an_exception_inside_the_effect_is_a_doubt_that_no_retry_repeats(business: Business) -> None:
    def act(document: str) -> None:
        business.act("act", document)
        raise ConnectionResetError("the answer was lost")

    def dag() -> DAG:
        return dag_of(business, act, document="A", retries=2)

    run = start_run(dag(), logical_at=MARCH_31).go()
    ended = run.last("act")
    assert (ended.state, type(ended.error), type(ended.cause)) == ("failed", GuardFailure, InDoubt)
    assert "airflow-guard resolve" in str(ended.error)
    run.clear().go(dag())
    assert isinstance(run.last("act").cause, InDoubt)
    assert business.documents() == ["A"]
    assert states(business) == {"A": "in_doubt"}


def test_not_executed_and_safe_errors_are_retried(business: Business) -> None:
    errors: list[Exception] = [NotExecuted("no line"), ConnectionRefusedError("no server")]

    def act(document: str) -> None:
        if errors:
            raise errors.pop()
        business.act("act", document)

    run = run_of(
        business, act, document="A", retries=2, side_effect=External(safe_errors=[ConnectionRefusedError])
    )
    for _ in range(2):
        assert run.last("act").state == "up_for_retry"
        run.go()
    assert run.states() == {"act": "success"}
    assert business.documents() == ["A"]


def test_a_skip_inside_the_window_is_a_doubt_and_says_how_to_skip(business: Business) -> None:
    def act(document: str) -> None:
        business.act("act", document)
        raise AirflowSkipException("nothing to do")

    ended = run_of(business, act, document="A", retries=1).last("act")
    assert (ended.state, type(ended.cause)) == ("failed", InDoubt)
    assert "before the effect window" in str(ended.error)
    assert "NotExecuted" in str(ended.error)
    assert states(business) == {"A": "in_doubt"}


@pytest.mark.parametrize("side_effect", ["external", "database"])
def test_a_skip_where_nothing_can_have_happened_skips_the_task_and_frees_the_key(
    business: Business, side_effect: str
) -> None:
    due = [False, True]

    def narrowed(document: str, effect: Any) -> None:
        if not due.pop(0):
            raise AirflowSkipException("not due yet")
        with effect:
            business.act("act", document)

    def in_database(document: str, connection: Any) -> None:
        business.post(connection, "act", document, None)
        if not due.pop(0):
            raise AirflowSkipException("not due yet")

    act = narrowed if side_effect == "external" else in_database
    run = run_of(business, act, document="A", side_effect=side_effect, retries=1)
    assert run.states() == {"act": "skipped"}
    assert business.documents() == []
    assert states(business) == {"A": "failed"}
    (skipped,) = business.task_runs()
    assert (skipped.outcome, skipped.error) == ("skipped", "not due yet")
    assert run.clear().go().states() == {"act": "success"}
    assert business.documents() == ["A"]


def test_a_skip_for_one_of_several_documents_is_the_failure_of_that_one(business: Business) -> None:
    def act(document: str, effect: Any) -> None:
        if document == "B":
            raise AirflowSkipException("not due yet")
        with effect:
            business.act("act", document)

    ended = run_of(business, act, documents=["A", "B", "C"], retries=1).last("act")
    assert (ended.state, type(ended.cause)) == ("up_for_retry", DocumentsFailed)
    assert "B: AirflowSkipException: not due yet" in str(ended.error)
    assert business.documents() == ["A", "C"]
    assert states(business) == {"A": "completed", "B": "failed", "C": "completed"}


def test_verify_is_called_like_the_function(business: Business) -> None:
    def act(document: str) -> None:
        business.act("act", document)
        raise ConnectionResetError("the answer was lost")

    async def verify(document: str, idempotency_key: str, ds: str, region: str) -> bool:
        assert (ds, region, len(idempotency_key)) == ("2025-03-31", "eu", 32)
        return document in business.documents()

    def dag() -> DAG:
        effect = External(verify=verify, settle_after=timedelta(minutes=5))
        return dag_of(business, act, documents=["A"], side_effect=effect, op_kwargs={"region": "eu"})

    run = start_run(dag(), logical_at=MARCH_31).go()
    assert run.states() == {"act": "failed"}
    run.clear().go(dag())
    assert run.states() == {"act": "success"}
    assert business.documents() == ["A"]
    assert states(business) == {"A": "completed"}


def test_r03_a_failed_follow_up_is_told_and_not_repeated(business: Business) -> None:
    def act(document: str, effect: Any) -> None:
        with effect:
            business.act("act", document)
        raise OSError("the archive is missing")

    def dag() -> DAG:
        return dag_of(business, act, document="A", retries=1)

    run = start_run(dag(), logical_at=MARCH_31).go()
    assert isinstance(run.last("act").cause, FollowUpFailed)
    run.clear().go(dag())
    assert isinstance(run.last("act").cause, FollowUpFailed)
    assert business.documents() == ["A"]


def test_airflows_word_for_no_retry_keeps_its_meaning(business: Business) -> None:
    from airflow_guard.airflow_compat import AirflowFailException

    def act(connection: Any) -> None:
        raise AirflowFailException("the account is gone")

    run = run_of(business, act, side_effect="database", retries=3)
    ended = run.last("act")
    assert (ended.state, type(ended.error)) == ("failed", GuardFailure)


def test_a_result_that_cannot_be_stored_fails_and_is_not_executed_again(business: Business) -> None:
    def act() -> Any:
        business.act("act")
        return object()

    run = run_of(business, act, retries=1)
    assert isinstance(run.last("act").cause, ResultError)
    assert len(business.rows()) == 1
    assert states(business) == {None: "completed"}


def test_what_is_done_is_skipped_where_the_task_says_so(business: Business) -> None:
    def dag(*documents: str) -> DAG:
        return dag_of(
            business, lambda document: business.act("act", document), documents=documents, on_duplicate="skip"
        )

    run = start_run(dag("A"), logical_at=MARCH_31).go()
    assert run.states() == {"act": "success"}
    run.clear().go(dag("A"))
    assert run.states() == {"act": "skipped"}
    run.clear().go(dag("A", "B"))
    assert run.states() == {"act": "success"}, "one document was new"
    assert business.documents() == ["A", "B"]


def test_what_is_done_fails_where_the_task_says_so(business: Business) -> None:
    def dag() -> DAG:
        return dag_of(
            business, lambda document: business.act("act", document), document="A", on_duplicate="fail"
        )

    run = start_run(dag(), logical_at=MARCH_31).go()
    run.clear().go(dag())
    assert isinstance(run.last("act").cause, DuplicateRefused)
    assert business.documents() == ["A"]


def test_a_parameter_that_this_run_does_not_have_fails_before_the_ledger(business: Business) -> None:
    dag = dag_of(business, lambda logical_date: business.act("act"))
    run = start_run(dag, run_type="manual", conf={"business_date": "2025-03-31"}).go()
    ended = run.last("act")
    assert (ended.state, type(ended.cause)) == ("failed", ConfigurationError)
    assert "logical_date" in str(ended.error)
    assert business.ledger_rows() == []


def test_an_error_while_listing_starts_nothing_and_is_retried(business: Business) -> None:
    def listed() -> Any:
        raise TimeoutError("the bank does not answer")

    run = run_of(business, lambda document: business.act("act", document), documents=listed, retries=1)
    ended = run.last("act")
    assert (ended.state, type(ended.error)) == ("up_for_retry", TimeoutError)
    assert business.ledger_rows() == []
    (told,) = business.task_runs()
    assert (told.outcome, told.error) == ("failed", "TimeoutError: the bank does not answer")


# -- being stopped -------------------------------------------------------------------------------------------


def time_is_over() -> None:
    """Let Airflow's timeout strike here: by the clock it could strike before, or in a callback that swallows it."""
    signal.raise_signal(signal.SIGALRM)


def test_a_timeout_inside_the_effect_is_a_doubt(business: Business) -> None:
    def act(document: str) -> None:
        business.act("act", document)
        time_is_over()

    run = run_of(business, act, documents=["A", "B"], execution_timeout=timedelta(minutes=1))
    assert run.states() == {"act": "failed"}
    assert type(run.last("act").error).__name__ == "AirflowTaskTimeout"
    assert business.documents() == ["A"]
    assert states(business) == {"A": "in_doubt", "B": "failed"}, "B is released: another try may have it"


def test_a_timeout_in_the_database_rolls_back(business: Business) -> None:
    def act(document: str, connection: Any) -> None:
        business.post(connection, "act", document, None)
        time_is_over()

    run = run_of(business, act, document="A", side_effect="database", execution_timeout=timedelta(minutes=1))
    assert run.states() == {"act": "failed"}
    assert business.documents() == []
    assert states(business) == {"A": "failed"}


def test_a_task_that_is_killed_finishes_its_document_and_begins_no_other(business: Business) -> None:
    def act(document: str, ti: Any) -> None:
        # What Airflow does in the task's process on SIGTERM, at a moment that the test knows.
        before = signal.signal(signal.SIGTERM, lambda *_: ti.task.on_kill())
        os.kill(os.getpid(), signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)
        business.act("act", document)

    run = run_of(business, act, documents=["A", "B", "C"], retries=1)
    ended = run.last("act")
    assert (ended.state, type(ended.error)) == ("up_for_retry", GuardRetry)
    assert business.documents() == ["A"]
    assert states(business) == {"A": "completed", "B": "failed", "C": "failed"}
    assert isinstance(ended.cause, (Stopped, DocumentsFailed))


# -- the ledger itself ---------------------------------------------------------------------------------------


def test_a_ledger_that_is_down_starts_nothing_and_is_retried(
    business: Business, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_GUARD_LEDGER",
        '{"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "schema": "x"}',
    )
    run = run_of(business, lambda: business.act("act"), retries=1)
    ended = run.last("act")
    assert (ended.state, type(ended.error), type(ended.cause)) == (
        "up_for_retry",
        GuardRetry,
        LedgerUnavailable,
    )
    assert business.rows() == []


def test_observing_works_on_where_the_ledger_is_down(
    business: Business, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_GUARD_LEDGER",
        '{"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "schema": "x"}',
    )
    run = run_of(business, lambda document: business.act("act", document), documents=["A"], mode="observe")
    assert run.states() == {"act": "success"}
    assert business.documents() == ["A"]


def test_a_ledger_that_was_never_migrated_names_the_command(
    business: Business, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__AIRFLOW_GUARD__TABLE_PREFIX", "other_")
    ended = run_of(business, lambda: business.act("act"), retries=1).last("act")
    assert (ended.state, type(ended.cause)) == ("failed", LedgerNotMigrated)
    assert "airflow-guard migrate --ledger guard_ledger" in str(ended.error)
    assert business.rows() == []


def test_a_connection_that_does_not_exist_is_named(business: Business) -> None:
    ended = run_of(business, lambda: business.act("act"), ledger_conn_id="nowhere").last("act")
    assert ended.state == "failed"
    assert isinstance(ended.cause, ConfigurationError)
    assert "'nowhere'" in str(ended.error)
    assert "ledger_conn_id" in str(ended.error)
