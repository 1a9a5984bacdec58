"""What a callable with an effect outside can do: its window, errors before, inside and after it, results."""

from __future__ import annotations

from concurrent.futures import Future
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_guard.core.effects import External
from airflow_guard.core.errors import (
    ConfigurationError,
    DocumentsFailed,
    FollowUpFailed,
    InDoubt,
    NotExecuted,
    OwnershipLost,
    Rejected,
    TooManyRejected,
)
from airflow_guard.core.states import FollowUp, Phase, State
from tests.chaos import fixtures
from tests.chaos.books import counts, failure

if TYPE_CHECKING:
    from tests.chaos.books import Books

pytestmark = fixtures.ONE_OF_EACH
books = fixtures.books


class Timeout(BaseException):
    """As Airflow's task timeout: no ``Exception``."""


# -- the part after the effect --------------------------------------------------------------------------


def test_r03_a_failed_follow_up_never_repeats_the_effect(books: Books) -> None:
    """First business day of a year: the archive folder of the new year is missing."""
    new_year = date(2010, 1, 4)

    def approve(document: str, effect: Any) -> str:
        with effect:
            books.receiver.call(document)
        raise FileNotFoundError("archive/2010")

    def again(try_number: int = 2) -> Any:
        report = books.run(
            approve, ["ACH-1"], day=new_year, run_id="scheduled__2010-01-04", try_number=try_number
        )
        return failure(report)

    first = again(1)
    assert isinstance(first, FollowUpFailed)
    assert not first.retryable
    assert "archive/2010" in str(first)
    row = books.row("ACH-1")
    assert (row.state, row.phase, row.follow_up) == (State.COMPLETED, Phase.DONE, FollowUp.FAILED)

    second = again()
    assert isinstance(second, FollowUpFailed)
    for told in ("run scheduled__2010-01-04", "try 1", "archive/2010", f"--key {row.key_hash} --followed-up"):
        assert told in str(second), "the prompt shows by which run it was done, and what is open"
    assert books.receiver.documents() == ["ACH-1"]

    books.resolve("ACH-1", "followed_up", "moved the file by hand")
    report = books.run(approve, ["ACH-1"], day=new_year, run_id="scheduled__2010-01-04", try_number=3)
    assert counts(report) == {"replayed": 1}
    assert books.receiver.documents() == ["ACH-1"]


def test_a_timeout_after_the_window_is_a_failed_follow_up_and_ends_the_task(books: Books) -> None:
    def pay(document: str, effect: Any) -> None:
        with effect:
            books.receiver.call(document)
        raise Timeout

    with pytest.raises(Timeout):
        books.run(pay, ["A", "B"])
    assert (books.row("A").state, books.row("A").follow_up) == (State.COMPLETED, FollowUp.FAILED)
    assert books.states() == {"A": "completed", "B": "failed"}, "the rest is released"
    assert books.receiver.documents() == ["A"]


def test_rejected_after_the_window_cannot_undo_the_effect(books: Books) -> None:
    def pay(document: str, effect: Any) -> None:
        with effect:
            books.receiver.call(document)
        raise Rejected("too late")

    assert isinstance(failure(books.run(pay, ["A"])), FollowUpFailed)
    assert books.states() == {"A": "completed"}


def test_the_result_of_the_follow_up_is_stored_and_replayed(books: Books) -> None:
    def pay(document: str, effect: Any) -> dict[str, str]:
        with effect:
            books.receiver.call(document)
        assert (books.row("A").state, books.row("A").follow_up) == (State.COMPLETED, FollowUp.PENDING)
        return {"archived": document}

    assert books.run(pay, one="A").result == {"archived": "A"}
    assert books.row("A").follow_up is FollowUp.NONE
    assert books.run(pay, one="A", try_number=2).result == {"archived": "A"}
    assert books.receiver.documents() == ["A"]


# -- the window itself ----------------------------------------------------------------------------------


def test_a_window_entered_twice_is_one_effect_and_a_failed_follow_up(books: Books) -> None:
    def pay(document: str, effect: Any) -> None:
        with effect:
            books.receiver.call(document)
        with effect:
            books.receiver.call(document)

    error = failure(books.run(pay, ["A"]))
    assert isinstance(error, FollowUpFailed)
    assert "entered again" in str(error)
    assert books.receiver.documents() == ["A"]


def test_a_window_inside_itself_is_in_doubt(books: Books) -> None:
    def pay(document: str, effect: Any) -> None:
        with effect:
            books.receiver.call(document)
            with effect:
                books.receiver.call(document)

    assert isinstance(failure(books.run(pay, ["A"])), InDoubt)
    assert books.receiver.documents() == ["A"]
    assert books.states() == {"A": "in_doubt"}


def test_a_window_never_entered_fails_without_an_effect(books: Books) -> None:
    seen = []

    def pay(document: str, effect: Any) -> None:
        seen.append(document)

    error = failure(books.run(pay, ["A"]))
    assert isinstance(error, ConfigurationError)
    assert not error.retryable
    assert books.states() == {"A": "failed"}
    assert books.row("A").first_begun_age_s is None
    assert seen == ["A"]


def test_an_error_before_the_window_has_not_happened(books: Books) -> None:
    def pay(document: str, attempt: int, effect: Any) -> int:
        if attempt == 1:
            raise ValueError("no rate")
        with effect:
            books.receiver.call(document)
        return attempt

    report = books.run(pay, ["A"])
    assert counts(report) == {"failed": 1}
    assert failure(report).retryable
    assert books.states() == {"A": "failed"}
    assert counts(books.run(pay, ["A"], try_number=2)) == {"executed": 1}
    assert books.receiver.documents() == ["A"]


@pytest.mark.parametrize(
    "error", [ValueError("broken pipe"), Timeout(), SystemExit(1), KeyboardInterrupt()], ids=repr
)
@pytest.mark.parametrize("windowed", [True, False])
def test_any_exception_inside_is_in_doubt(books: Books, windowed: bool, error: BaseException) -> None:
    def narrow(document: str, effect: Any) -> None:
        with effect:
            books.receiver.call(document)
            raise error

    def wide(document: str) -> None:
        books.receiver.call(document)
        raise error

    pay = narrow if windowed else wide
    if isinstance(error, Exception):
        report = books.run(pay, ["A", "B"])
        assert counts(report) == {"in_doubt": 2}
        assert not failure(report).retryable
        assert books.states() == {"A": "in_doubt", "B": "in_doubt"}
    else:
        with pytest.raises(type(error)):
            books.run(pay, ["A", "B"])
        assert books.states() == {"A": "in_doubt", "B": "failed"}, "what was not begun is given back"
    [doubt, *_] = books.events("doubt")
    assert type(error).__name__ in doubt.reason
    again = books.run(pay, ["A"], run_id="manual__1", run_type="manual")
    assert counts(again) == {"in_doubt": 1}
    assert f"resolve --key {books.row('A').key_hash} --happened" in str(failure(again))
    assert books.receiver.twice() == []


# -- proofs that nothing happened -----------------------------------------------------------------------


class Refused(ConnectionError):
    """Nothing was sent."""


def refuse() -> None:
    raise Refused


SAFE = External(safe_errors=[Refused])


@pytest.mark.parametrize("where", ["before", "inside", "whole"])
def test_safe_errors_have_not_happened(books: Books, where: str) -> None:
    def narrow(document: str, attempt: int, effect: Any) -> None:
        if attempt == 1 and where == "before":
            raise Refused
        with effect:
            if attempt == 1:
                raise Refused
            books.receiver.call(document)

    def wide(document: str, attempt: int) -> None:
        if attempt == 1:
            raise Refused
        books.receiver.call(document)

    pay = wide if where == "whole" else narrow
    report = books.run(pay, ["A"], side_effect=SAFE)
    assert counts(report) == {"failed": 1}
    assert failure(report).retryable
    assert books.states() == {"A": "failed"}
    assert counts(books.run(pay, ["A"], try_number=2, side_effect=SAFE)) == {"executed": 1}
    assert books.receiver.documents() == ["A"]


def test_a_window_may_be_entered_again_after_a_safe_error(books: Books) -> None:
    def pay(document: str, effect: Any) -> int:
        for number in (1, 2, 3):
            try:
                with effect:
                    if number < 3:
                        refuse()
                    books.receiver.call(document)
                    return number
            except Refused:
                continue
        raise AssertionError

    assert books.run(pay, one="A", side_effect=SAFE).result == 3
    assert books.receiver.documents() == ["A"]
    assert books.states() == {"A": "completed"}


def test_a_window_entered_again_belongs_to_the_attempt_still(books: Books) -> None:
    """Between two entries the process may have been stopped, and its key executed by another attempt."""
    knows = External(safe_errors=[Refused], verify=books.receiver.knows, settle_after=timedelta(0))

    def other(document: str) -> str:
        books.receiver.call(document, by="other")
        return "other"

    def pay(document: str, effect: Any) -> str:
        with pytest.raises(Refused), effect:
            raise Refused
        books.expire_leases()
        books.forget_signs()
        assert counts(books.run(other, [document], try_number=2, side_effect=knows)) == {"executed": 1}
        with effect:
            books.receiver.call(document, by="first")
        return "first"

    report = books.run(pay, ["A"], side_effect=knows)
    assert [call["by"] for call in books.receiver.calls()] == ["other"]
    assert isinstance(failure(report), OwnershipLost)
    assert books.row("A").result == '"other"'


@pytest.mark.parametrize("where", ["before", "inside", "whole"])
def test_not_executed_proves_that_nothing_happened(books: Books, where: str) -> None:
    def narrow(document: str, attempt: int, effect: Any) -> None:
        if attempt == 1 and where == "before":
            raise NotExecuted("receiver closed")
        with effect:
            if attempt == 1:
                raise NotExecuted("receiver closed")
            books.receiver.call(document)

    def wide(document: str, attempt: int) -> None:
        if attempt == 1:
            raise NotExecuted("receiver closed")
        books.receiver.call(document)

    pay = wide if where == "whole" else narrow
    report = books.run(pay, ["A"])
    assert isinstance(failure(report), NotExecuted)
    assert failure(report).retryable
    assert books.row("A").error == "NotExecuted: receiver closed"
    assert counts(books.run(pay, ["A"], try_number=2)) == {"executed": 1}
    assert books.receiver.documents() == ["A"]


@pytest.mark.parametrize("windowed", [True, False])
def test_rejected_is_terminal_until_a_person_decides(books: Books, windowed: bool) -> None:
    bad = {"B", "C"}

    def narrow(document: str, effect: Any) -> None:
        with effect:
            wide(document)

    def wide(document: str) -> None:
        if document in bad:
            raise Rejected(f"{document}: account closed")
        books.receiver.call(document)

    pay = narrow if windowed else wide
    report = books.run(pay, ["A", "B", "C"])
    assert counts(report) == {"executed": 1, "rejected": 2}
    error = failure(report)
    assert isinstance(error, TooManyRejected)
    assert not error.retryable
    assert "account closed" in str(error)
    assert failure(report, max_rejected=2) is None
    again = books.run(pay, ["A", "B", "C"], try_number=2)
    assert counts(again) == {"replayed": 1, "rejected": 2}
    assert isinstance(failure(again, max_rejected=1), TooManyRejected)

    bad.clear()
    books.resolve("B", "waive", "paid by cheque")
    books.resolve("C", "send_again", "account opened")
    assert counts(books.run(pay, ["A", "B", "C"], try_number=3)) == {"replayed": 2, "executed": 1}
    assert books.receiver.documents() == ["A", "C"]
    assert books.states() == dict.fromkeys("ABC", "completed")


def test_one_failure_does_not_stop_the_rest(books: Books) -> None:
    def pay(document: str, effect: Any) -> None:
        if document == "B":
            raise ValueError("no rate for B")
        with effect:
            books.receiver.call(document)

    report = books.run(pay, ["A", "B", "C"])
    assert counts(report) == {"executed": 2, "failed": 1}
    error = failure(report)
    assert isinstance(error, DocumentsFailed)
    assert error.retryable
    assert "B: ValueError: no rate for B" in str(error)
    assert report.summary()["failed_documents"] == ["B"]


class _Later:
    """What a client of some library gives for work that it will do."""

    def __await__(self) -> Any:
        yield


@pytest.mark.parametrize("kind", ["generator", "map", "future", "awaitable", "async generator"])
def test_what_stands_for_work_still_to_be_done_is_no_effect_that_is_done(books: Books, kind: str) -> None:
    """Nothing of it has run, or it may run still: "done" would be a lie, and so would "nothing happened"."""

    def pays(document: str) -> Any:
        books.receiver.call(document)
        yield document

    async def pays_later(document: str) -> Any:
        yield document

    def pay(document: str) -> Any:
        return {
            "generator": lambda: pays(document),
            "map": lambda: map(books.receiver.call, [document]),
            "future": Future,
            "awaitable": _Later,
            "async generator": lambda: pays_later(document),
        }[kind]()

    report = books.run(pay, ["A"])
    assert counts(report) == {"in_doubt": 1}
    assert books.states() == {"A": "in_doubt"}
    assert "nothing says that what is behind it has run. Let it return when it is done" in str(
        failure(report)
    )
    assert books.receiver.documents() == []
    books.resolve("A", "did_not_happen")
    assert counts(books.run(books.pay, ["A"], try_number=2)) == {"executed": 1}
