"""``External(in_doubt="ask")``: a person says in the Airflow UI what became of a document, and the task goes on."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_guard import DocumentsFailed, External, IdempotentOperator, InDoubt
from airflow_guard.core.doubts import AskedKey
from airflow_guard.store.ledger import Ledger
from airflow_guard.store.resolution import resolve
from demo.waiting import Patience
from tests.airflow_runs import AirflowRun, give_answer, start_run
from tests.databases import databases

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.models.dagrun import DagRun
    from airflow.sdk import DAG

    from tests.integration.conftest import Business

pytestmark = databases("postgres_embedded")

MARCH_31 = datetime(2025, 3, 31, tzinfo=UTC)
WAITING = {"awaiting_input", "deferred"}
HOUR = timedelta(hours=1)


class Bank:
    """A receiver whose answer is lost for some documents, as often as it is told."""

    def __init__(self, business: Business, **lost: int) -> None:
        self.business = business
        self.lost = dict(lost)

    def pay(self, document: str) -> str:
        if self.lost.get(document, 0) > 0:
            self.lost[document] -= 1
            raise TimeoutError("no answer from https://guard:hunter2@bank/pay")
        self.business.act("pay", document)
        return f"paid {document}"


def dag_of(business: Business, function: Callable[..., Any], **parameters: Any) -> DAG:
    from airflow.sdk import DAG

    effect = {"in_doubt": "ask", **parameters.pop("effect", {})}
    defaults: dict[str, Any] = {
        "task_id": "pay", "python_callable": function, "side_effect": External(**effect),
        "retry_delay": timedelta(0), "lease": timedelta(seconds=3),
    }  # fmt: skip
    with DAG(business.dag_id, schedule=None, start_date=datetime(2025, 1, 1, tzinfo=UTC)) as dag:
        IdempotentOperator(**{**defaults, **parameters})
    return dag


def asked(business: Business, bank: Bank, **parameters: Any) -> AirflowRun:
    """Run such a DAG until its task asks."""
    run = start_run(dag_of(business, bank.pay, **parameters), logical_at=MARCH_31).go(run_triggers=False)
    assert run.states()["pay"] in WAITING, run.ended
    return run


def row_of(business: Business, document: str | None) -> Any:
    (row,) = [row for row in business.ledger_rows() if row.document == document]
    return row


def field_of(business: Business, document: str | None) -> str:
    row = row_of(business, document)
    return AskedKey("", row.key_date, row.key_hash, row.owner_token).field_name


def said(business: Business, reason: str = "seen in their report", **answers: str) -> dict[str, str]:
    """The form, filled in."""
    return {**{field_of(business, name): answer for name, answer in answers.items()}, "reason": reason}


def kinds(business: Business, *kinds: str) -> list[tuple[str, str, str]]:
    return [(event.kind, event.actor, event.reason) for event in business.events() if event.kind in kinds]


# -- the question -----------------------------------------------------------------------------------------


def test_the_question_says_what_a_person_needs_to_know(business: Business) -> None:
    bank = Bank(business, B=1)
    run = asked(
        business,
        bank,
        documents=[{"no": name, "amount": "10.00", "currency": "EUR", "iban": "DE00"} for name in "AB"],
        document_key="no",
    )
    row, question = row_of(business, "B"), run.question("pay")
    assert business.documents() == ["A"], "everything else is done first"
    assert question.subject == f"In doubt: B ({business.dag_id} / pay of 2025-03-31)"
    for fact in (
        "amount: 10.00", "currency: EUR", f"idempotency key: {row.idempotency_key}", f"{row.key_hash}",
        f"{row.begun_at:%Y-%m-%d %H:%M:}", "attempt 1, run ", "verify: there is none", "TimeoutError: no answer",
    ):  # fmt: skip
        assert fact in question.body.replace("\\", ""), fact
    assert "hunter2" not in question.body
    assert "DE00" not in question.body, "only the fields that were named"
    assert question.options == ["Settle", "Leave all in doubt"]
    form = question.params[field_of(business, "B")]
    assert form["schema"]["enum"] == ["leave", "happened", "did not happen"]
    assert (form["schema"]["title"], form["value"]) == ("1. B", "leave")
    assert set(question.params) == {field_of(business, "B"), "reason"}


def test_a_try_that_waits_for_a_person_holds_no_lease_and_is_seen_as_waiting(business: Business) -> None:
    run = asked(business, Bank(business, A=1), document="A")
    (task_run,) = business.task_runs()
    assert task_run.outcome == "waiting"
    assert "a person" in task_run.error
    with business.ledger.engine.connect() as connection:
        assert connection.execute(business.ledger.tables.lease.select()).all() == []
    run.answer("pay", "Settle", said(business, A="happened"))
    (task_run,) = business.task_runs()
    assert (task_run.outcome, task_run.error, task_run.try_number) == ("success", None, 1)


# -- the answers ------------------------------------------------------------------------------------------


def test_each_answer_does_what_it_says_and_is_recorded_with_the_name(business: Business) -> None:
    run = asked(business, Bank(business, A=1, B=1, C=1), documents=["A", "B", "C", "D"], retries=3)
    assert business.documents() == ["D"]
    run.answer("pay", "Settle", said(business, A="happened", B="did not happen", C="leave"))
    assert run.states() == {"pay": "failed"}, "C is in doubt still; no retry"
    assert isinstance(run.last("pay").cause, InDoubt | DocumentsFailed)
    assert " / C is in doubt" in str(run.last("pay").error)
    assert business.documents() == ["D", "B"], "B was executed once more, A was not"
    states = {row.document: row.state for row in business.ledger_rows()}
    assert states == {"A": "completed", "B": "completed", "C": "in_doubt", "D": "completed"}
    assert kinds(business, "resolve_happened", "resolve_not_happened", "answer_left") == [
        ("answer_left", "jane", "seen in their report"),
        ("resolve_happened", "jane", "seen in their report"),
        ("resolve_not_happened", "jane", "seen in their report"),
    ]


@pytest.mark.parametrize(
    ("answer", "effects", "result"),
    [("happened", [], None), ("did not happen", ["A"], "paid A")],
)
def test_the_task_goes_on_by_itself(
    business: Business, answer: str, effects: list[str], result: str | None
) -> None:
    run = asked(business, Bank(business, A=1), document="A")
    run.answer("pay", "Settle", said(business, A=answer))
    assert run.states() == {"pay": "success"}
    assert business.documents() == effects
    assert run.result("pay") == result
    assert row_of(business, "A").idempotency_key, "the same key for both attempts"


@pytest.mark.parametrize("how", ["leave all", "leave one", "time over"])
def test_what_nobody_settles_stays_in_doubt_and_fails_as_hold_does(business: Business, how: str) -> None:
    run = asked(business, Bank(business, A=1), document="A", retries=3)
    option = {"leave all": "Leave all in doubt", "leave one": "Settle", "time over": None}[how]
    run.answer("pay", option, said(business, "asked the bank, no answer yet", A="leave"))
    assert run.states() == {"pay": "failed"}
    error = run.last("pay").cause
    assert isinstance(error, InDoubt)
    assert f"airflow-guard resolve --key {row_of(business, 'A').key_hash}" in str(error)
    assert business.documents() == []
    assert row_of(business, "A").state == "in_doubt"
    assert business.task_runs()[-1].outcome == "failed"
    expected = "ask_timeout" if how == "time over" else "answer_left"
    assert [kind for kind, _, _ in kinds(business, "ask_timeout", "answer_left")] == [expected]


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ({}, "a reason is missing"),
        ({"reason": "   "}, "a reason is missing"),
        ({"reason": "x" * 2001}, "2000 characters"),
        ({"reason": 7}, "a reason is missing"),
        ({"A": "perhaps", "reason": "x"}, "is no answer"),
        ({"A": ["happened"], "reason": "x"}, "is no answer"),
    ],
    ids=["no reason", "blank", "too long", "a number", "another word", "a list"],
)
def test_an_answer_that_is_none_changes_nothing_and_the_question_opens_again(
    business: Business, inputs: dict[str, Any], why: str
) -> None:
    run = asked(business, Bank(business, A=1), document="A")
    field = field_of(business, "A")
    form = {field: "happened"} | {field if name == "A" else name: value for name, value in inputs.items()}
    run.answer("pay", "Settle", form)
    assert run.states()["pay"] in WAITING
    assert row_of(business, "A").state == "in_doubt"
    assert run.question("pay").responded_at is None, "it can be answered once more"
    (refused,) = kinds(business, "answer_refused")
    assert refused[1] == "jane"
    assert why in refused[2]
    run.answer("pay", "Settle", said(business, A="happened"), user="joe")
    assert run.states() == {"pay": "success"}
    assert kinds(business, "resolve_happened") == [("resolve_happened", "joe", "seen in their report")]


def test_an_answer_after_somebody_settled_it_elsewhere_changes_nothing(business: Business) -> None:
    run = asked(business, Bank(business, A=1), document="A")
    form, row = said(business, A="did not happen"), row_of(business, "A")
    resolve(
        Ledger(business.ledger),
        row.key_date,
        row.key_hash,
        row.owner_token,
        "happened",
        actor="ann",
        reason="bank said so",
    )
    run.answer("pay", "Settle", form)
    assert run.states() == {"pay": "success"}, "the ledger knows it: done"
    assert business.documents() == [], "and it is not executed again"
    (refused,) = kinds(business, "answer_refused")
    assert "did not happen: seen in their report. Changes nothing" in refused[2]
    assert "settled already" in refused[2]


def test_an_answer_about_an_attempt_that_is_no_longer_the_last_changes_nothing(business: Business) -> None:
    bank = Bank(business, A=2)
    run = asked(business, bank, document="A")
    form, row = said(business, A="happened"), row_of(business, "A")
    ledger = Ledger(business.ledger)
    resolve(ledger, row.key_date, row.key_hash, row.owner_token, "did_not_happen", actor="ann", reason="x")
    other = start_run(dag_of(business, bank.pay, document="A", effect={"in_doubt": "hold"}), run_type="manual",
                      logical_at=datetime(2025, 3, 31, 1, tzinfo=UTC)).go()  # fmt: skip
    assert other.states() == {"pay": "failed"}
    assert row_of(business, "A").attempt == 2
    run.answer("pay", "Settle", form)
    assert run.states() == {"pay": "failed"}
    assert row_of(business, "A").state == "in_doubt", "attempt 2 is in doubt, whatever was said of attempt 1"
    (refused,) = kinds(business, "answer_refused")
    assert "earlier attempt" in refused[2]


# -- when it asks, and when not ---------------------------------------------------------------------------


def test_verify_is_asked_first_also_about_what_broke_in_this_try(business: Business) -> None:
    answers: dict[str, bool | None] = {"A": True, "B": None}
    run = asked(
        business,
        Bank(business, A=1, B=1),
        documents=["A", "B"],
        effect={"verify": lambda document: answers[document], "settle_after": HOUR},
    )
    assert row_of(business, "A").state == "completed"
    assert set(run.question("pay").params) == {field_of(business, "B"), "reason"}
    assert "verify: could not tell" in run.question("pay").body


def test_nobody_is_asked_as_long_as_a_retry_can_help(business: Business) -> None:
    """``verify`` finds no trace, but too early: the next try asks it again. Only the last try asks a person."""
    effect = {"verify": lambda: False, "settle_after": HOUR}
    bank = Bank(business, A=1)
    run = start_run(dag_of(business, bank.pay, document="A", effect=effect, retries=1), logical_at=MARCH_31)
    assert run.go(run_triggers=False).states() == {"pay": "up_for_retry"}
    assert run.question("pay") is None
    assert run.go(run_triggers=False).states()["pay"] in WAITING
    assert "verify: found no trace of it, which counts only in" in run.question("pay").body.replace("\\", "")


def test_more_than_twenty_are_left_to_the_command_line(business: Business) -> None:
    names = [f"D{number}" for number in range(21)]
    bank = Bank(business, **dict.fromkeys(names, 1))
    run = start_run(dag_of(business, bank.pay, documents=names), logical_at=MARCH_31).go(run_triggers=False)
    assert run.states() == {"pay": "failed"}
    assert run.question("pay") is None
    assert f"airflow-guard resolve {business.dag_id} 2025-03-31 pay --all" in str(run.last("pay").error)


@pytest.mark.parametrize("workers", [1, 4])
def test_twenty_are_one_question(business: Business, workers: int) -> None:
    names = [f"D{number}" for number in range(20)]
    bank = Bank(business, **dict.fromkeys(names, 1))
    run = asked(business, bank, documents=names, max_workers=workers)
    run.answer("pay", "Settle", said(business, **dict.fromkeys(names, "did not happen")))
    assert run.states() == {"pay": "success"}
    assert sorted(business.documents()) == sorted(names)


def test_a_batch_is_one_effect_and_has_one_answer(business: Business) -> None:
    lost = [True]

    def send(documents: list[str], batch_id: str) -> str:
        if lost.pop() if lost else False:
            raise TimeoutError("the line broke")
        for document in documents:
            business.act("send", document)
        return batch_id

    dag = dag_of(business, send, documents=["A", "B", "C"], call_per="batch")
    run = start_run(dag, logical_at=MARCH_31).go(run_triggers=False)
    rows = business.ledger_rows()
    question = run.question("pay")
    assert len(question.params) == 2, "the batch, and the reason"
    assert f"batch id: {rows[0].batch_id}" in question.body
    assert "documents: A, B, C" in question.body
    (field,) = set(question.params) - {"reason"}
    run.answer("pay", "Settle", {field: "did not happen", "reason": "no such file"})
    assert run.states() == {"pay": "success"}
    assert sorted(business.documents()) == ["A", "B", "C"]
    assert {row.batch_id for row in business.ledger_rows()} == {rows[0].batch_id}, "repeated as it was"


def test_mapped_tasks_ask_each_about_its_own(business: Business) -> None:
    from airflow.sdk import DAG

    bank = Bank(business, A=1, B=1)
    with DAG(business.dag_id, schedule=None, start_date=datetime(2025, 1, 1, tzinfo=UTC)) as dag:
        IdempotentOperator.partial(
            task_id="pay", python_callable=bank.pay, side_effect=External(in_doubt="ask")
        ).expand(document=["A", "B"])
    run = start_run(dag, logical_at=MARCH_31).go(run_triggers=False)
    assert set(run.states().values()) <= WAITING
    run.answer("pay", "Settle", said(business, A="happened"), map_index=0)
    run.answer("pay", "Settle", said(business, B="did not happen"), map_index=1)
    assert set(run.states().values()) == {"success"}
    assert business.documents() == ["B"]


# -- another question of the same task --------------------------------------------------------------------


def test_after_a_clear_it_asks_once_more_about_what_was_left(business: Business) -> None:
    run = asked(business, Bank(business, A=1, B=1), documents=["A", "B"])
    run.answer("pay", "Settle", said(business, A="happened", B="leave"))
    assert run.states() == {"pay": "failed"}
    old = said(business, A="did not happen", B="happened")
    assert run.clear().go(run_triggers=False).states()["pay"] in WAITING
    run.answer("pay", "Settle", old)
    assert run.states() == {"pay": "success"}
    assert business.documents() == [], (
        "A was settled: Airflow shows it still, and what is said of it counts no more"
    )
    assert row_of(business, "A").state == row_of(business, "B").state == "completed"


def test_a_question_that_airflow_cannot_show_is_not_taken_for_another(business: Business) -> None:
    """Airflow keeps the first question of a task of a run: a second one, about another attempt, is told instead."""
    run = asked(business, Bank(business, A=2), document="A")
    old = field_of(business, "A")
    run.answer("pay", "Settle", said(business, A="did not happen"))
    assert run.states() == {"pay": "failed"}, "executed, and in doubt again: nobody is asked twice in one try"
    assert row_of(business, "A").attempt == 2
    run.clear().go(run_triggers=False)
    assert run.states() == {"pay": "failed"}
    assert list(run.question("pay").params) == [old, "reason"], "the old one"
    assert "airflow-guard resolve" in str(run.last("pay").error)
    assert "one question for a task of a run" in str(run.last("pay").error)
    assert row_of(business, "A").state == "in_doubt"


def test_what_stopped_the_rest_is_asked_about_first(business: Business) -> None:
    """With ``stop_on_failure`` a doubt keeps the others from beginning, until a person has settled it."""
    run = asked(business, Bank(business, A=1), documents=["A", "B"], stop_on_failure=True)
    assert business.documents() == []
    run.answer("pay", "Settle", said(business, A="happened"))
    assert run.states() == {"pay": "success"}
    assert business.documents() == ["B"]


def test_a_timeout_of_the_task_ends_it_and_the_next_try_asks(business: Business) -> None:
    def slow(document: str) -> None:
        time.sleep(30)

    dag = dag_of(business, slow, document="A", execution_timeout=timedelta(seconds=1), retries=1)
    run = start_run(dag, logical_at=MARCH_31).go(run_triggers=False)
    assert run.states() == {"pay": "up_for_retry"}
    assert run.question("pay") is None
    assert run.go(run_triggers=False).states()["pay"] in WAITING
    run.answer("pay", "Settle", said(business, A="happened"))
    assert run.states() == {"pay": "success"}


def test_a_killed_attempt_is_asked_about_by_the_next_try(business: Business) -> None:
    """Whoever left it: the try that finds it in doubt asks."""
    bank = Bank(business, A=1)
    hold = dag_of(business, bank.pay, document="A", effect={"in_doubt": "hold"})
    start_run(hold, run_type="manual", logical_at=datetime(2025, 3, 31, 1, tzinfo=UTC)).go()
    run = asked(business, bank, document="A")
    run.answer("pay", "Settle", said(business, A="did not happen"))
    assert run.states() == {"pay": "success"}
    assert business.documents() == ["A"]


def test_dag_test_waits_until_somebody_answers(
    business: Business, run_dag_test: Callable[..., DagRun]
) -> None:
    from airflow import __version__

    if tuple(map(int, __version__.split(".")[:2])) < (3, 3):
        pytest.skip("dag.test() of Airflow before 3.3 cannot go on with an answer")
    dag = dag_of(business, Bank(business, A=1).pay, document="A")
    answering = threading.Thread(target=answer_from_outside, args=(business,), daemon=True)
    answering.start()
    assert run_dag_test(dag, logical_date=MARCH_31).state == "success"
    answering.join()
    assert business.documents() == ["A"]
    assert kinds(business, "resolve_not_happened") == [
        ("resolve_not_happened", "jane", "seen in their report")
    ]


def answer_from_outside(business: Business) -> None:
    """As an API server does that shares the metadata database."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    states: list[str] = []
    patience = Patience("the question", lambda: states)
    while True:
        patience.check()
        # Airflow fails a task that is answered in the second in which it asked: nobody is as quick as that.
        time.sleep(2)
        with create_session() as session:
            found = session.scalars(select(DagRun).where(DagRun.dag_id == business.dag_id)).first()
            states = [str(ti.state) for ti in found.get_task_instances(session=session)] if found else []
            run_id = found.run_id if found else ""
        if states == ["awaiting_input"]:
            time.sleep(2)
            give_answer(business.dag_id, run_id, "pay", "Settle", said(business, A="did not happen"))
            return
