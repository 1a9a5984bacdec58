"""A key that another process is at work on: the task waits for it, in its process or in the triggerer."""

from __future__ import annotations

import json
import threading
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_guard import (
    DocumentsFailed,
    External,
    IdempotentOperator,
    InDoubtUnsettled,
    InProgressElsewhere,
    LedgerUnavailable,
)
from airflow_guard.core.keys import KeySpace
from airflow_guard.core.report import Report
from airflow_guard.execution.listed import Listed
from airflow_guard.operators.endings import GuardRetry
from airflow_guard.operators.task_try import GuardedTry
from airflow_guard.operators.waiting import Wait
from airflow_guard.triggers import SHORTEST_DEFERRAL_S
from airflow_guard.triggers.ledger import LedgerTrigger
from tests.airflow_runs import start_run
from tests.databases import databases
from tests.integration.holding import claim_only, hold

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.sdk import DAG

    from tests.integration.conftest import Business
    from tests.processes import Worker

pytestmark = [databases("sqlite", "postgres_embedded"), pytest.mark.usefixtures("short_deferrals")]

MARCH_31 = datetime(2025, 3, 31, tzinfo=UTC)


@pytest.fixture
def holder(business: Business, start_worker: Callable[..., Worker]) -> Worker:
    """Another process that is at work on document A."""
    worker = start_worker(hold, url=business.database.url, dag_id=business.dag_id, documents=["A"])
    worker.wait_for("at work")
    return worker


def dag_of(business: Business, **parameters: Any) -> DAG:
    """A DAG with one guarded task that looks every moment."""
    from airflow.sdk import DAG

    defaults: dict[str, Any] = {
        "task_id": "act", "python_callable": lambda document: business.act("act", document),
        "poll_interval": 0.05, "retries": 1, "retry_delay": timedelta(0),
    }  # fmt: skip
    with DAG(business.dag_id, schedule=None, start_date=datetime(2025, 1, 1, tzinfo=UTC)) as dag:
        IdempotentOperator(**{**defaults, **parameters})
    return dag


def released_when(worker: Worker, condition: Callable[[], bool]) -> threading.Thread:
    """Let the other process go on as soon as a condition holds."""

    def wait() -> None:
        while not condition():
            threading.Event().wait(0.01)
        worker.release("at work")

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def is_waiting(business: Business) -> Callable[[], bool]:
    """Return whether the task has found the key held: the ledger has an event of it."""
    return lambda: any(event.kind == "blocked" for event in business.events())


@pytest.mark.parametrize("deferrable", [False, True], ids=["in process", "deferred"])
def test_the_task_waits_and_returns_the_result_of_the_other(
    business: Business, holder: Worker, deferrable: bool
) -> None:
    released = released_when(holder, is_waiting(business))
    run = start_run(dag_of(business, document="A", deferrable=deferrable), logical_at=MARCH_31).go()
    released.join()
    assert run.states() == {"act": "success"}
    assert run.result("act") == "A done elsewhere"
    assert business.documents() == [], "nothing was executed here"
    assert holder.result()["executed"] == 1


def test_a_try_that_waits_is_recorded_as_waiting_and_not_as_failed(
    business: Business, holder: Worker
) -> None:
    seen: list[tuple[str | None, bool, int]] = []

    def look() -> tuple[str | None, bool, int]:
        (each,) = [each for each in business.task_runs() if each.run_id != "manual__elsewhere"]
        return each.outcome, each.ended_at is not None, each.waiting

    def recorded() -> bool:
        if is_waiting(business)() and look()[0] is not None:
            seen.append(look())
        return bool(seen)

    def list_documents() -> list[str]:
        # The first time before the wait, the second time after it: the try runs then, and has not ended.
        if seen:
            seen.append(look())
        return ["A"]

    released = released_when(holder, recorded)
    run = start_run(dag_of(business, documents=list_documents, deferrable=True), logical_at=MARCH_31).go()
    released.join()
    assert run.states() == {"act": "success"}
    assert seen == [("waiting", True, 1), (None, False, 1)]
    (ended,) = [each for each in business.task_runs() if each.run_id == run.run_id]
    assert (ended.outcome, ended.ended_at is not None, ended.waiting) == ("success", True, 0)


@pytest.mark.parametrize("deferrable", [False, True], ids=["in process", "deferred"])
def test_the_task_first_does_all_that_it_can(business: Business, holder: Worker, deferrable: bool) -> None:
    released = released_when(holder, lambda: business.documents() == ["B", "C"])
    dag = dag_of(business, documents=["A", "B", "C"], deferrable=deferrable)
    run = start_run(dag, logical_at=MARCH_31).go()
    released.join()
    assert run.states() == {"act": "success"}
    assert (run.result("act")["executed"], run.result("act")["replayed"]) == (2, 1)
    assert business.documents() == ["B", "C"]
    tries = [each for each in business.task_runs() if each.run_id == run.run_id]
    assert [(each.try_number, each.outcome, each.executed, each.replayed) for each in tries] == [
        (1, "success", 2, 1)
    ]


@pytest.mark.parametrize("deferrable", [False, True], ids=["in process", "deferred"])
def test_the_other_is_killed_before_its_effect_and_the_task_takes_over(
    business: Business, start_worker: Callable[..., Worker], deferrable: bool
) -> None:
    worker = start_worker(claim_only, url=business.database.url, dag_id=business.dag_id)
    worker.wait_for("claimed")

    def lease_ends() -> None:
        while not is_waiting(business)():
            threading.Event().wait(0.01)
        worker.kill()
        with business.ledger.engine.begin() as connection:
            connection.execute(business.ledger.tables.lease.delete())  # what time would do

    thread = threading.Thread(target=lease_ends, daemon=True)
    thread.start()
    run = start_run(dag_of(business, document="A", deferrable=deferrable), logical_at=MARCH_31).go()
    thread.join()
    assert run.states() == {"act": "success"}
    assert business.documents() == ["A"]


@pytest.mark.parametrize("deferrable", [False, True], ids=["in process", "deferred"])
def test_a_wait_that_times_out_names_the_holder_and_is_retried(
    business: Business, holder: Worker, deferrable: bool
) -> None:
    dag = dag_of(business, document="A", deferrable=deferrable, wait_timeout=0.3)
    run = start_run(dag, logical_at=MARCH_31).go()
    ended = run.last("act")
    assert (ended.state, type(ended.error), type(ended.cause)) == (
        "up_for_retry",
        GuardRetry,
        InProgressElsewhere,
    )
    assert f"on elsewhere pid {holder.pid}" in str(ended.error)
    assert "wait_timeout" in str(ended.error)
    (waited,) = [each for each in business.task_runs() if each.run_id == run.run_id]
    assert (waited.outcome, waited.waiting) == ("failed", 1)
    assert "wait_timeout" in waited.error

    holder.release("at work")
    holder.result()
    run.go()
    assert run.states() == {"act": "success"}
    assert run.result("act") == "A done elsewhere"
    assert business.documents() == []


def test_without_waiting_it_fails_at_once_and_is_retried(business: Business, holder: Worker) -> None:
    dag = dag_of(business, document="A", on_concurrent="fail", deferrable=True)
    ended = start_run(dag, logical_at=MARCH_31).go().last("act")
    assert (ended.state, type(ended.cause)) == ("up_for_retry", InProgressElsewhere)
    assert "elsewhere" in str(ended.error)
    assert business.rows() == []


def test_what_fails_beside_the_wait_fails_at_once(business: Business, holder: Worker) -> None:
    def act(document: str, connection: Any) -> None:
        raise RuntimeError("no account")

    dag = dag_of(business, python_callable=act, documents=["A", "B"], side_effect="database", deferrable=True)
    ended = start_run(dag, logical_at=MARCH_31).go().last("act")
    assert (ended.state, type(ended.cause)) == ("up_for_retry", DocumentsFailed)


@pytest.mark.parametrize("deferrable", [False, True], ids=["in process", "deferred"])
@pytest.mark.parametrize(
    ("where", "moment"),
    [(Listed, "finish"), (GuardedTry, "run"), (Wait, "_pause")],
    ids=["in its try", "after it", "in the wait"],
)
def test_a_task_that_is_killed_before_or_while_it_waits_ends_and_says_so(
    business: Business,
    holder: Worker,
    monkeypatch: pytest.MonkeyPatch,
    deferrable: bool,
    where: type,
    moment: str,
) -> None:
    tasks: list[Any] = []
    real = getattr(where, moment)

    def killed(*args: Any, **kwargs: Any) -> Any:
        returned = real(*args, **kwargs)
        tasks[0].on_kill()
        return returned

    monkeypatch.setattr(where, moment, killed)
    if where is Wait:
        deferrable = False  # a task that is deferred has no process to kill

    def seen(context: Any) -> None:
        tasks.append(context["task"])

    dag = dag_of(business, document="A", pre_execute=seen, deferrable=deferrable)
    ended = start_run(dag, logical_at=MARCH_31).go().last("act")
    assert (ended.state, type(ended.cause)) == ("up_for_retry", InProgressElsewhere)
    assert "asked to stop" in str(ended.error)
    assert f"pid {holder.pid}" in str(ended.error)
    (stopped,) = [each for each in business.task_runs() if each.run_id != "manual__elsewhere"]
    assert (stopped.outcome, stopped.waiting) == ("failed", 1)
    assert "asked to stop" in stopped.error


# -- the trigger by itself -----------------------------------------------------------------------------------


def trigger_of(business: Business, **changes: Any) -> LedgerTrigger:
    """A trigger that watches document A."""
    key_hash = KeySpace(business.dag_id, "act", date(2025, 3, 31)).hasher().key_hash("A")
    arguments: dict[str, Any] = {
        "ledger_conn_id": "guard_ledger", "key_date": "2025-03-31", "hashes": [key_hash], "task_run_id": 7,
        "deadline_at": (datetime.now(UTC) + timedelta(minutes=1)).isoformat(), "poll_interval_s": 0.05,
    }  # fmt: skip
    return LedgerTrigger(**{**arguments, **changes})


def test_the_trigger_is_made_again_from_what_it_serialises(business: Business) -> None:
    trigger = trigger_of(business)
    path, arguments = trigger.serialize()
    assert path == "airflow_guard.triggers.ledger.LedgerTrigger"
    again = LedgerTrigger(**json.loads(json.dumps(arguments)))
    assert again.serialize() == trigger.serialize()


def test_a_task_is_not_back_at_once(business: Business, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow may take it for lost before the scheduler has read that it went."""
    import asyncio

    from airflow_guard.triggers import ledger as module

    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    monkeypatch.setattr("airflow_guard.operators.waiting.SHORTEST_DEFERRAL_S", SHORTEST_DEFERRAL_S)
    wait = Wait.of(timedelta(minutes=1), timedelta(seconds=2))
    trigger = wait.trigger("guard_ledger", date(2025, 3, 31), Report(), 7)
    again = LedgerTrigger(**trigger.serialize()[1])
    asyncio.run(_first(again))
    assert slept == [SHORTEST_DEFERRAL_S]


def test_a_wait_that_is_soon_over_stays_with_its_worker(
    business: Business, holder: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_guard.operators.waiting.SHORTEST_DEFERRAL_S", SHORTEST_DEFERRAL_S)
    began: list[Any] = []
    dag = dag_of(
        business, document="A", deferrable=True, wait_timeout=timedelta(seconds=1), pre_execute=began.append
    )
    ended = start_run(dag, logical_at=MARCH_31).go().last("act")
    assert (ended.state, type(ended.cause), len(began)) == ("up_for_retry", InProgressElsewhere, 1)
    assert business.documents() == []


def test_the_trigger_says_nothing_to_airflow_on_a_thread(
    business: Business, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    from airflow.sdk import log

    said: list[str] = []
    monkeypatch.setattr(log, "mask_secret", lambda *_: said.append(threading.current_thread().name))
    content = json.loads(business.database.airflow_connection())
    content["extra"] = {**content.get("extra", {}), "application_name": "a trigger"}
    monkeypatch.setenv("AIRFLOW_CONN_WITH_EXTRA", json.dumps(content))
    event = asyncio.run(_first(trigger_of(business, ledger_conn_id="with_extra")))
    assert (event["held"], event["error"]) == (0, None)
    # A word to the supervisor from a thread ends the triggerer of Airflow 3.1, and all that waits in it.
    assert said == []


async def _first(trigger: LedgerTrigger) -> dict[str, Any]:
    return (await anext(trigger.run())).payload


def test_other_triggers_go_on_while_this_one_asks(
    business: Business, holder: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    from airflow_guard.triggers import ledger as module

    asked, answer = threading.Event(), threading.Event()
    real = module.still_held

    def slow(*args: Any) -> dict[str, str]:
        asked.set()
        assert answer.wait(30)
        return real(*args)

    monkeypatch.setattr(module, "still_held", slow)

    async def beside() -> dict[str, Any]:
        waiting = asyncio.ensure_future(_first(trigger_of(business)))
        assert await asyncio.to_thread(asked.wait, 30)
        holder.release("at work")
        await asyncio.to_thread(holder.result)
        answer.set()  # reached only because the loop was free while the query hung
        return await waiting

    assert asyncio.run(beside())["held"] == 0


def test_a_ledger_that_does_not_answer_is_asked_again(
    business: Business, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    from airflow_guard.triggers import ledger as module

    errors = [LedgerUnavailable("down"), LedgerUnavailable("still down")]
    real = module.still_held

    def flaky(*args: Any) -> dict[str, str]:
        if errors:
            raise errors.pop()
        return real(*args)

    monkeypatch.setattr(module, "still_held", flaky)
    assert asyncio.run(_first(trigger_of(business)))["held"] == 0


def test_a_ledger_that_is_gone_ends_the_wait(business: Business) -> None:
    import asyncio

    event = asyncio.run(_first(trigger_of(business, ledger_conn_id="nowhere")))
    assert event["task_run_id"] == 7
    assert "'nowhere'" in event["error"]


@pytest.mark.parametrize("deferrable", [False, True], ids=["in process", "deferred"])
@pytest.mark.parametrize("documents", [{"document": "A"}, {"documents": ["A", "B"]}], ids=["one", "several"])
def test_d08_the_only_retry_waits_until_a_no_counts_and_executes(
    business: Business, deferrable: bool, documents: dict[str, Any]
) -> None:
    """The retry comes long before settle_after is over, and there is no other: it is not burned."""

    def pay(document: str, attempt: int) -> Any:
        if attempt == 1 and document == "A":
            raise TimeoutError("no answer")
        return business.act("act", document)

    effect = External(verify=lambda document: document in business.documents(), settle_after=3)
    dag = dag_of(
        business,
        python_callable=pay,
        deferrable=deferrable,
        side_effect=effect,
        wait_timeout=0.5,
        **documents,
    )
    run = start_run(dag, logical_at=MARCH_31).go()
    assert run.states() == {"act": "up_for_retry"}
    assert isinstance(run.ended[0].cause, (InDoubtUnsettled, DocumentsFailed))
    run.go()
    assert run.states() == {"act": "success"}
    assert sorted(business.documents()) == (["A"] if "document" in documents else ["A", "B"])
    assert [(each.try_number, each.outcome) for each in business.task_runs()] == [
        (1, "failed"),
        (2, "success"),
    ]
