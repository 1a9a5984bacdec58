"""Results of callables with an effect outside: stored, replayed, or impossible to store."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from airflow_guard.core.errors import ResultError
from airflow_guard.core.states import State
from tests.chaos import fixtures
from tests.chaos.books import counts, failure

if TYPE_CHECKING:
    from tests.chaos.books import Books

pytestmark = fixtures.ONE_OF_EACH
books = fixtures.books


@pytest.mark.parametrize("value", [object(), "x" * 40_000, float("nan")], ids=["no_json", "too_large", "nan"])
@pytest.mark.parametrize("windowed", [True, False])
def test_a_result_that_cannot_be_stored_is_completed_and_said(
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
    row = books.row("A")
    assert (row.state, row.result) == (State.COMPLETED, None)
    assert "cannot be stored" in (row.error or "") or "bytes as JSON" in (row.error or "")

    with caplog.at_level(logging.WARNING):
        again = books.run(pay, one="A", try_number=2)
    assert counts(again) == {"replayed": 1}
    assert failure(again) is None
    assert not again.has_result, "nothing stored is not the same as None"
    assert "no result is stored" in caplog.text
    assert books.receiver.documents() == ["A"]


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
