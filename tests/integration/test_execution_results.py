"""Results of callables with an effect outside: stored, replayed, or impossible to store."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from airflow_guard.core.errors import ResultError
from airflow_guard.core.states import FollowUp, State
from tests.chaos import fixtures
from tests.chaos.books import counts, failure

if TYPE_CHECKING:
    from tests.chaos.books import Books

pytestmark = fixtures.ONE_OF_EACH
books = fixtures.books


@pytest.mark.parametrize("value", [object(), "x" * 40_000, float("nan")], ids=["no_json", "too_large", "nan"])
@pytest.mark.parametrize("windowed", [True, False])
def test_d08_a_result_that_cannot_be_stored_is_done_and_stays_so(
    books: Books, windowed: bool, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def narrow(document: str, effect: Any) -> Any:
        with effect:
            books.receiver.call(document)
        return value

    def wide(document: str) -> Any:
        books.receiver.call(document)
        return value

    pay = narrow if windowed else wide
    report = books.run(pay, one="A")
    error = failure(report)
    assert isinstance(error, ResultError)
    assert not error.retryable
    assert not report.has_result
    assert "the effect is done, its result cannot be stored" in str(error)
    row = books.row("A")
    assert (row.state, row.follow_up, row.result) == (State.COMPLETED, FollowUp.FAILED, None)

    for try_number in (2, 3):
        again = books.run(pay, one="A", try_number=try_number)
        assert counts(again) == {"blocked": 1}, "it stays so, whoever clears the task"
        assert not failure(again).retryable
        assert "the effect is done" in str(failure(again))
        assert "its result cannot be stored" in str(failure(again))
        assert f"resolve --key {row.key_hash} --followed-up" in str(failure(again))
    books.resolve("A", "followed_up", reason="nobody needs it")
    with caplog.at_level(logging.WARNING):
        settled = books.run(pay, one="A", try_number=4)
    assert (counts(settled), failure(settled)) == ({"replayed": 1}, None)
    assert not settled.has_result, "nothing stored is not the same as None"
    assert "no result is stored" in caplog.text
    assert books.receiver.documents() == ["A"]


def test_d08_a_batch_whose_result_cannot_be_stored_stays_so(books: Books) -> None:
    def pay(documents: list[str]) -> Any:
        books.receiver.call(",".join(documents))
        return {1, 2}

    first = books.run(pay, ["A", "B"], call_per="batch")
    assert "the effect is done, its result cannot be stored" in str(failure(first))
    again = books.run(pay, ["A", "B"], call_per="batch", try_number=2)
    assert counts(again) == {"blocked": 2}
    assert books.receiver.documents() == ["A,B"]


def test_a_result_that_cannot_be_stored_stops_the_task_before_it_happens_again(books: Books) -> None:
    def pay(document: str) -> Any:
        books.receiver.call(document)
        return object()

    report = books.run(pay, ["A", "B", "C"])
    assert counts(report) == {"executed": 1, "released": 2}
    assert isinstance(failure(report), ResultError)
    assert books.receiver.documents() == ["A"]
    assert books.states() == {"A": "completed", "B": "failed", "C": "failed"}


def test_none_is_a_result(books: Books) -> None:
    def pay(document: str) -> None:
        books.receiver.call(document)

    assert books.run(pay, one="A").has_result
    again = books.run(pay, one="A", try_number=2)
    assert again.has_result
    assert again.result is None
