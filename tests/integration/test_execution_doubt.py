"""Keys in doubt: what ``verify``, a person and a late report make of them, in a whole run."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard.core.effects import External
from airflow_guard.core.errors import InDoubt, InDoubtUnsettled, OwnershipLost, Rejected
from airflow_guard.core.states import State
from airflow_guard.store.changes import Ownership
from airflow_guard.store.ledger import Ledger
from tests.chaos import fixtures
from tests.chaos.books import Books, counts, failure

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = fixtures.ONE_OF_EACH
books = fixtures.books
MINUTES = timedelta(minutes=10)


def breaks(books: Books, *, sent: bool) -> Callable[..., Any]:
    """A callable that breaks in its window, after or before the receiver has it."""

    def pay(document: str, idempotency_key: str) -> None:
        if sent:
            books.pay(document, idempotency_key)
        raise TimeoutError("no answer")

    return pay


def in_doubt(books: Books, *documents: str, sent: bool = False, **parameters: Any) -> None:
    """Leave documents in doubt, their attempt over long ago."""
    report = books.run(breaks(books, sent=sent), list(documents), **parameters)
    assert counts(report) == {"in_doubt": len(documents)}
    books.forget_signs()


def verify(answer: Any, asked: list[Any] | None = None) -> External:
    def ask(**given: Any) -> Any:
        if asked is not None:
            asked.append(given)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return External(verify=ask, settle_after=MINUTES)


# -- verify ---------------------------------------------------------------------------------------------


def test_verify_yes_completes_without_an_effect(books: Books) -> None:
    in_doubt(books, "A", sent=True)
    asked: list[Any] = []
    report = books.run(books.pay, ["A"], try_number=2, side_effect=verify(True, asked))
    assert counts(report) == {"replayed": 1}
    assert failure(report) is None
    assert books.receiver.documents() == ["A"]
    [question] = asked
    assert question["document"] == "A"
    assert question["idempotency_key"] == books.receiver.calls()[0]["key"]
    assert question["attempt"] == 1
    assert [event.actor for event in books.events("resolve_happened")] == ["verify"]


def test_verify_no_executes_again_under_the_same_key(books: Books) -> None:
    in_doubt(books, "A")
    key = books.row("A").idempotency_key
    report = books.run(books.pay, ["A"], try_number=2, side_effect=verify(False))
    assert counts(report) == {"executed": 1}
    assert books.receiver.calls() == [{"document": "A", "key": key}]
    assert books.row("A").attempt == 2


@pytest.mark.parametrize("answer", [None, "yes", 1], ids=repr)
def test_what_is_no_answer_leaves_it_to_a_person(books: Books, answer: Any) -> None:
    in_doubt(books, "A", "B")
    report = books.run(books.pay, ["A", "B", "C"], try_number=2, side_effect=verify(answer))
    assert counts(report) == {"in_doubt": 2, "executed": 1}, "the others go on"
    error = failure(report)
    assert not error.retryable
    assert f"resolve --key {books.row('A').key_hash}" in str(error)
    assert books.receiver.documents() == ["C"]
    books.resolve("A", "happened")
    books.resolve("B", "did_not_happen")
    again = books.run(books.pay, ["A", "B", "C"], try_number=3, side_effect=verify(answer))
    assert counts(again) == {"replayed": 2, "executed": 1}
    assert books.receiver.documents() == ["C", "B"]


@pytest.mark.parametrize("more_tries", [True, False])
@pytest.mark.parametrize("call_per", ["document", "batch"])
def test_d08_verify_that_raises_is_said_and_asked_again(
    books: Books, call_per: str, more_tries: bool
) -> None:
    books.run(lambda: 1 / 0, ["A"], call_per=call_per)
    books.forget_signs()
    parameters: dict[str, Any] = {"call_per": call_per, "more_tries": more_tries}
    broken = verify(RuntimeError("receiver down"))
    report = books.run(lambda: None, ["A"], try_number=2, side_effect=broken, **parameters)
    error = failure(report)
    assert isinstance(error, InDoubtUnsettled)
    assert error.retryable
    assert "verify raised RuntimeError: receiver down" in str(error)
    assert "could not tell" not in str(error)
    assert f"resolve --key {books.row('A').key_hash}" in str(error)
    answered = books.run(lambda: None, ["A"], try_number=3, side_effect=verify(True), **parameters)
    assert counts(answered) == {"replayed": 1}


@pytest.mark.parametrize("call_per", ["document", "batch"])
@pytest.mark.parametrize("sent", [True, False])
def test_d08_an_exception_in_the_window_is_asked_about_by_the_next_try(
    books: Books, call_per: str, sent: bool
) -> None:
    effect = External(verify=lambda: sent, settle_after=600)

    def breaks_in_it() -> None:
        if sent:
            books.receiver.call("A")
        raise TimeoutError("no answer")

    def pay() -> str:
        books.receiver.call("A")
        return "paid"

    parameters: dict[str, Any] = {"side_effect": effect, "call_per": call_per}
    first = books.run(breaks_in_it, ["A"], more_tries=True, **parameters)
    error = failure(first)
    assert isinstance(error, InDoubtUnsettled)
    assert "The next try asks verify" in str(error)
    assert isinstance(error.__cause__, TimeoutError)
    assert first.settling == 0, "the try that failed does not wait itself"
    books.forget_signs()
    assert failure(books.run(pay, ["A"], try_number=2, **parameters)) is None
    assert books.receiver.documents() == ["A"]


@pytest.mark.parametrize(
    ("effect", "more_tries", "retryable"),
    [
        (External(in_doubt="retry", receiver_remembers=3600), True, True),
        (External(in_doubt="retry", receiver_remembers=3600), False, False),
        (External(verify=lambda: None, settle_after=0), True, True),
        (External(verify=lambda: None, settle_after=0), False, False),
        (External(), True, False),
    ],
    ids=["retry", "retry_on_the_last_try", "verify", "verify_on_the_last_try", "hold"],
)
def test_d08_a_doubt_is_retryable_where_another_try_settles_it(
    books: Books, effect: External, more_tries: bool, retryable: bool
) -> None:
    for pay in (breaks(books, sent=False), in_window):
        for workers in (1, 2):
            documents = [f"{pay.__name__}-{workers}-{n}" for n in range(2)]
            report = books.run(
                pay,
                documents,
                side_effect=effect,
                more_tries=more_tries,
                max_workers=workers,
                run_id=f"run of {documents[0]}",
                run_type="manual",
            )
            assert counts(report) == {"in_doubt": 2}
            assert failure(report).retryable is retryable
            assert "resolve --key" in str(failure(report))


def in_window(document: str, effect: Any) -> None:
    with effect:
        raise TimeoutError("no answer")


@pytest.mark.parametrize("call_per", ["document", "batch"])
def test_d08_a_repetition_that_the_receiver_recognises_is_the_next_try(books: Books, call_per: str) -> None:
    effect, keys = External(in_doubt="retry", receiver_remembers=3600), []

    def pay(idempotency_key: str, attempt: int) -> None:
        keys.append(idempotency_key)
        if attempt == 1:
            raise TimeoutError("no answer")

    parameters: dict[str, Any] = {"side_effect": effect, "call_per": call_per}
    first = books.run(pay, ["A"], more_tries=True, **parameters)
    assert failure(first).retryable
    assert "The next try repeats it with the same idempotency key" in str(failure(first))
    assert failure(books.run(pay, ["A"], try_number=2, **parameters)) is None
    assert len(keys) == 2
    assert len(set(keys)) == 1


@pytest.mark.parametrize("answer", [None, False])
@pytest.mark.parametrize("call_per", ["document", "batch"])
def test_d08_too_early_says_how_long_and_is_waited_for(
    books: Books, answer: bool | None, call_per: str
) -> None:
    effect = External(verify=lambda: answer, settle_after=600)
    parameters: dict[str, Any] = {"side_effect": effect, "call_per": call_per}
    books.run(lambda: 1 / 0, ["A", "B"], **parameters)
    early = books.run(lambda: None, ["A", "B"], try_number=2, **parameters)
    assert early.settling == 2
    assert 0 < early.settles_in_s <= 600
    assert early.only_waits()
    assert early.only_waits(for_others=False)
    assert failure(early).retryable
    books.forget_signs()
    late = books.run(lambda: None, ["A", "B"], try_number=2, **parameters)
    assert (late.settling, late.only_waits()) == (0, False)
    assert counts(late) == ({"executed": 2} if answer is False else {"in_doubt": 2})


def test_a_no_counts_only_after_settle_after(books: Books) -> None:
    report = books.run(breaks(books, sent=False), ["A"])
    assert counts(report) == {"in_doubt": 1}
    early = books.run(books.pay, ["A"], try_number=2, side_effect=verify(False))
    error = failure(early)
    assert isinstance(error, InDoubtUnsettled)
    assert error.retryable
    assert books.receiver.documents() == []
    books.forget_signs()
    assert counts(books.run(books.pay, ["A"], try_number=3, side_effect=verify(False))) == {"executed": 1}
    assert books.receiver.documents() == ["A"]


def test_a_yes_counts_at_once(books: Books) -> None:
    books.run(breaks(books, sent=True), ["A"])
    assert counts(books.run(books.pay, ["A"], try_number=2, side_effect=verify(True))) == {"replayed": 1}


def test_a_single_document_without_result_is_no_none(books: Books, caplog: pytest.LogCaptureFixture) -> None:
    books.run(breaks(books, sent=True), one="A")
    report = books.run(books.pay, one="A", try_number=2, side_effect=verify(True))
    assert counts(report) == {"replayed": 1}
    assert not report.has_result
    assert "no result is stored" in caplog.text


# -- while the question is asked ------------------------------------------------------------------------


def test_a_late_report_beats_the_answer_of_verify(books: Books) -> None:
    in_doubt(books, "A", sent=True)
    row = books.row("A")

    def late(document: str) -> bool:
        [stored] = books.rows()
        own = Ownership(stored.key_date, row.owner_token, row.task_run_id or 0, "the first attempt")
        assert books.ledger.complete(own, [row.key_hash], '"late"') == set()
        return False

    effect = External(verify=late, settle_after=timedelta(0))
    report = books.run(books.pay, ["A"], try_number=2, side_effect=effect)
    assert counts(report) == {"replayed": 1}
    assert books.row("A").result == '"late"'
    assert books.receiver.documents() == ["A"]


@pytest.mark.parametrize("answer", [True, False])
def test_an_attempt_that_comes_back_to_life_while_verify_is_asked_is_waited_for(
    books: Books, answer: bool
) -> None:
    """Its lease was over when the row was read; then its process went on and renewed it."""

    def revives(document: str) -> bool:
        books.set_lease(60)
        return answer

    effect = External(verify=revives, settle_after=timedelta(0))
    seen: list[Any] = []

    def pay(document: str) -> str:
        books.receiver.call(document)
        books.expire_leases()
        books.forget_signs()
        seen.append(books.run(books.pay, [document], try_number=2, side_effect=effect))
        return "first"

    report = books.run(pay, ["A"], side_effect=effect)
    assert counts(seen[0]) == {"waiting": 1}
    assert failure(seen[0]).retryable
    assert counts(report) == {"executed": 1}
    assert books.row("A").result == '"first"'
    assert books.receiver.documents() == ["A"]


# -- while a key is claimed -----------------------------------------------------------------------------


class Overtaken(Ledger):
    """A ledger in which another attempt is faster: it comes between the look at a key and its claim."""

    def __init__(self, books: Books, other: Callable[[], Any]) -> None:
        super().__init__(books.database)
        self._other: Callable[[], Any] | None = other

    def claim(self, *args: Any, **kwargs: Any) -> Any:
        other, self._other = self._other, None
        if other is not None:
            other()
        return super().claim(*args, **kwargs)


def overtaken(books: Books, other: Callable[[], Any]) -> Books:
    slower = Books(books.url, books.dag_id, books.receiver)
    slower.ledger = Overtaken(slower, other)
    return slower


@pytest.mark.parametrize("answer", [True, False, None])
@pytest.mark.parametrize("call_per", ["document", "batch"])
def test_a_key_that_fell_into_doubt_just_before_the_claim_is_not_lost(
    books: Books, answer: bool | None, call_per: str
) -> None:
    """It is executed, replayed, held or waited for: never left out of the report."""
    parameters: dict[str, Any] = {"call_per": call_per, "side_effect": External(
        verify=lambda: answer, settle_after=timedelta(0)
    )}  # fmt: skip

    def fails() -> None:
        raise TimeoutError

    def pay() -> None:
        books.receiver.call("A")

    slow = overtaken(books, lambda: books.run(fails, ["A"], **parameters))
    report = slow.run(pay, ["A"], **parameters)
    slow.close()
    assert report.documents == 1
    if failure(report) is not None and failure(report).retryable:
        report = books.run(pay, ["A"], try_number=2, **parameters)
    if answer is None:
        assert type(failure(report)) is InDoubt
        assert books.receiver.documents() == []
        assert books.row("A").state is State.IN_DOUBT
    else:
        assert failure(report) is None
        assert len(books.receiver.documents()) == (0 if answer else 1)
        assert books.row("A").state is State.COMPLETED


def test_a_key_that_another_attempt_completed_just_before_the_claim_is_replayed(books: Books) -> None:
    slow = overtaken(books, lambda: books.run(books.pay, ["A"]))
    report = slow.run(books.pay, ["A", "B"])
    slow.close()
    assert counts(report) == {"executed": 1, "replayed": 1}
    assert books.receiver.documents() == ["A", "B"]


def test_a_key_that_another_attempt_holds_just_before_the_claim_is_waited_for(books: Books) -> None:
    seen: list[Any] = []

    def pay(document: str) -> None:
        books.receiver.call(document)
        if not seen:
            seen.append(None)
            slow = overtaken(books, lambda: None)
            seen.append(slow.run(books.pay, ["A"], try_number=2))
            slow.close()

    assert counts(books.run(pay, ["A"])) == {"executed": 1}
    assert counts(seen[1]) == {"waiting": 1}
    assert books.receiver.documents() == ["A"]


def test_an_effect_that_happened_after_a_no_is_told_as_possibly_twice(books: Books) -> None:
    """What the ledger cannot prevent: the receiver's "no" was wrong. It is said, and kept as a conflict."""
    wrong = External(verify=lambda: False, settle_after=timedelta(0))

    def pay(document: str) -> None:
        books.receiver.call(document, by="first")
        books.expire_leases()
        books.forget_signs()
        assert counts(books.run(books.pay, [document], try_number=2, side_effect=wrong)) == {"executed": 1}

    report = books.run(pay, ["A"], side_effect=wrong)
    error = failure(report)
    assert error is not None
    assert "may have happened twice" in str(report.errors[0][1])
    assert [event.kind for event in books.events("conflict")] == ["conflict"]


@pytest.mark.parametrize("let_go", ["verify", "a person"])
def test_an_attempt_that_fails_late_inside_its_effect_leaves_its_conflict(books: Books, let_go: str) -> None:
    """It may have sent something, and the next one certainly has. The message names what let the next one begin."""
    wrong = External(verify=lambda: False, settle_after=timedelta(0))

    def pay(document: str) -> None:
        books.receiver.call(document, by="first")
        books.expire_leases()
        books.forget_signs()
        if let_go == "a person":
            assert counts(books.run(books.pay, [document], try_number=2)) == {"in_doubt": 1}
            books.resolve(document, "did_not_happen", "nothing at the bank")
        effect = {"side_effect": wrong} if let_go == "verify" else {}
        assert counts(books.run(books.pay, [document], try_number=3, **effect)) == {"executed": 1}
        raise TimeoutError("no answer")

    report = books.run(pay, ["A"])
    (event,) = books.events("conflict")
    said = {"verify": "resolved as not happened, by verify", "a person": "nothing at the bank"}[let_go]
    for text in (str(report.errors[0][1]), event.reason):
        assert said in text
        assert "compare with the receiver" in text
    assert "may have happened twice" in str(report.errors[0][1])
    assert isinstance(report.errors[0][1].__cause__, TimeoutError)
    assert len(books.receiver.calls()) == 2
    assert books.states() == {"A": "completed"}, "what the second attempt did stands"


def test_failing_after_the_key_was_lost_is_no_doubt_about_the_effect(books: Books) -> None:
    """The error comes before the window: nothing was sent here, so nobody is to be told that it may be twice."""

    def slow(document: str, effect: Any) -> None:
        books.expire_leases()
        assert counts(books.run(books.pay, [document], try_number=2)) == {"executed": 1}
        raise ValueError("no rate")

    report = books.run(slow, ["A"])
    assert counts(report) == {"failed": 1}
    assert "nothing was executed here" in str(failure(report))
    assert "twice" not in str(failure(report))
    assert isinstance(failure(report).__cause__, ValueError)
    assert failure(report).retryable
    assert len(books.receiver.calls()) == 1


def test_losing_the_key_before_the_effect_executes_nothing(books: Books) -> None:
    """Another attempt takes over what was claimed and not begun."""

    def slow(document: str, effect: Any) -> None:
        books.expire_leases()
        assert counts(books.run(books.pay, [document], try_number=2)) == {"executed": 1}
        with effect:
            books.receiver.call(document, by="first")

    report = books.run(slow, ["A"])
    assert isinstance(failure(report), OwnershipLost)
    assert failure(report).retryable
    assert len(books.receiver.calls()) == 1
    assert counts(books.run(books.pay, ["A"], try_number=3)) == {"replayed": 1}


# -- what people read of it -----------------------------------------------------------------------------


def test_a_replay_says_who_has_settled_the_doubt(books: Books, caplog: pytest.LogCaptureFixture) -> None:
    in_doubt(books, "A", sent=True)
    books.resolve("A", "happened", reason="in the report of 14:40")
    caplog.set_level("INFO")
    report = books.run(books.pay, ["A", "B"], try_number=2)
    assert counts(report) == {"replayed": 1, "executed": 1}
    assert "resolved as happened by ada: in the report of 14:40" in caplog.text
    assert report.summary()["settled"]["A"].startswith("resolved as happened by ada")
    assert "settled" not in books.run(books.pay, ["B"], try_number=3).summary()


def test_what_needs_somebody_is_logged_as_a_warning(books: Books, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="airflow_guard.execution.run")
    in_doubt(books, "A")
    books.run(refusing, ["A", "B"], try_number=2)
    books.run(failing, ["C"], try_number=2)
    levels = {(record.levelname, record.getMessage().split()[1]) for record in caplog.records}
    assert {("WARNING", "in_doubt"), ("WARNING", "rejected"), ("WARNING", "failed")} <= levels
    books.run(books.pay, ["D"], run_id="manual__1")
    assert caplog.records[-1].levelname == "INFO"


def test_a_password_in_an_exception_is_not_stored(books: Books) -> None:
    secret = "s3cret-of-the-bank"

    def pay(document: str) -> None:
        raise TimeoutError(f"no answer from https://guard:{secret}@bank/pay (password={secret})")

    report = books.run(pay, ["A"])
    books.run(pay, ["A"], try_number=2)
    stored = [str(row) for row in (*books.rows(), *books.events(), *tries(books))]
    assert "no answer from https://guard:***@bank/pay" in " ".join(stored)
    assert secret not in " ".join(stored)
    assert secret not in "".join(report.log_lines())
    assert secret not in str(failure(report))


def test_a_task_with_too_many_rejected_documents_stores_why_and_says_how_to_settle_one(books: Books) -> None:
    report = books.run(refusing, ["A", "B"])
    error = str(failure(report))
    command = f'airflow-guard resolve {books.dag_id} 2026-01-31 post A --waive --reason "…"'
    assert command in error
    (stored,) = tries(books)
    assert command in stored.error
    assert "account closed" in stored.error


def refusing(document: str) -> None:
    raise Rejected("account closed")


def failing(document: str, effect: Any) -> None:
    raise ValueError("not prepared")


def tries(books: Books) -> list[Any]:
    """Return what the ledger has of the tries of this test."""
    run = books.database.tables.task_run
    with books.database.engine.connect() as connection:
        return list(connection.execute(sa.select(run).where(run.c.dag_id == books.dag_id)))
