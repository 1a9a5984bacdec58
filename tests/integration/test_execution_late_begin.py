"""The ledger's answer to "begun" comes late: meanwhile the lease is over, and another attempt has had the key."""

from __future__ import annotations

import time
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_guard.core.effects import External
from airflow_guard.core.errors import NotExecuted
from airflow_guard.core.states import State
from airflow_guard.execution import attempt
from airflow_guard.execution.writer import GroupWriter, InlineWriter
from airflow_guard.store.ledger import Ledger
from tests.chaos import fixtures
from tests.chaos.books import Books, counts, failure

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = fixtures.ONE_OF_EACH
books = fixtures.books
SAYS_NO = External(verify=lambda: False, settle_after=timedelta(0))


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Let something happen, and more than a lease go by, between the first begin mark and its answer."""

    def arrange(meanwhile: Callable[[], Any]) -> None:
        left = [meanwhile]
        clock = SimpleNamespace(monotonic=time.monotonic)
        monkeypatch.setattr(attempt, "time", clock)

        def delayed(original: Callable[..., Any]) -> Callable[..., Any]:
            def begin(*arguments: Any) -> Any:
                answer = original(*arguments)
                if left:
                    clock.monotonic = lambda: time.monotonic() + 100
                    left.pop()()
                return answer

            return begin

        for owner, name in ((InlineWriter, "begin"), (GroupWriter, "begin"), (Ledger, "begin_together")):
            monkeypatch.setattr(owner, name, delayed(getattr(owner, name)))

    return arrange


def pay(books: Books) -> Callable[..., Any]:
    return books.pay


def in_a_window(books: Books) -> Callable[..., Any]:
    def window(document: str, idempotency_key: str, effect: Any) -> None:
        with effect:
            books.pay(document, idempotency_key)

    return window


def in_a_batch(books: Books) -> Callable[..., Any]:
    def send(documents: list[str], batch_id: str) -> None:
        for document in documents:
            books.receiver.call(document, key=batch_id)

    return send


WAYS = {
    "one by one": (pay, {}),
    "on threads": (pay, {"max_workers": 4}),
    "in a window": (in_a_window, {}),
    "in a batch": (in_a_batch, {"call_per": "batch"}),
}


@pytest.mark.parametrize("way", WAYS)
def test_who_has_lost_the_key_meanwhile_does_not_call(
    books: Books, late: Callable[[Callable[[], Any]], None], way: str
) -> None:
    make, parameters = WAYS[way]
    other = []

    def meanwhile() -> None:
        books.forget_signs()
        other.append(books.run(make(books), ["A"], try_number=2, side_effect=SAYS_NO, **parameters))

    late(meanwhile)
    report = books.run(make(books), ["A"], side_effect=SAYS_NO, **parameters)
    assert counts(other[0]) == {"executed": 1}
    assert books.receiver.documents() == ["A"], "once"
    assert counts(report) == {"failed": 1}
    assert failure(report).retryable
    assert books.row("A").state == State.COMPLETED
    again = books.run(make(books), ["A"], try_number=3, side_effect=SAYS_NO, **parameters)
    assert counts(again) == {"replayed": 1}


@pytest.mark.parametrize("way", WAYS)
def test_who_still_has_it_gives_it_back_unused(
    books: Books, late: Callable[[Callable[[], Any]], None], way: str
) -> None:
    make, parameters = WAYS[way]
    late(lambda: None)
    report = books.run(make(books), ["A"], side_effect=SAYS_NO, **parameters)
    assert counts(report) == {"failed": 1}
    assert isinstance(report.errors[0][1], NotExecuted)
    assert failure(report).retryable
    assert books.row("A").state == State.FAILED
    assert books.receiver.documents() == []
    again = books.run(make(books), ["A"], try_number=2, side_effect=SAYS_NO, **parameters)
    assert counts(again) == {"executed": 1}
    assert books.receiver.documents() == ["A"]
