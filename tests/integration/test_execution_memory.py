"""``in_doubt="retry"``: a call is repeated under its key as long as the receiver remembers it, no longer."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_guard.core.effects import External
from airflow_guard.core.errors import InDoubt, InDoubtUnsettled, NotExecuted, OwnershipLost
from tests.chaos import fixtures
from tests.chaos.books import counts, failure

if TYPE_CHECKING:
    from tests.chaos.books import Books

pytestmark = fixtures.ONE_OF_EACH
books = fixtures.books
REMEMBERS = External(in_doubt="retry", receiver_remembers=timedelta(hours=24))


def sent_without_answer(books: Books) -> Any:
    """A callable that breaks after the receiver has its call."""

    def pay(document: str, idempotency_key: str) -> None:
        books.pay(document, idempotency_key)
        raise TimeoutError("no answer")

    return pay


def test_retry_repeats_under_the_same_key_while_the_receiver_remembers(books: Books) -> None:
    books.run(sent_without_answer(books), ["A"], side_effect=REMEMBERS)
    report = books.run(books.pay, ["A"], try_number=2, side_effect=REMEMBERS)
    assert counts(report) == {"executed": 1}
    first, second = books.receiver.calls()
    assert first == second, "the same document under the same key, which the receiver recognises"
    assert [event.actor for event in books.events("resolve_not_happened")] == ["receiver_remembers"]


def test_retry_counts_from_the_first_call_and_then_holds(books: Books) -> None:
    books.run(sent_without_answer(books), ["A"], side_effect=REMEMBERS)
    books.shift(23 * 3600, "first_begun_at")
    books.run(sent_without_answer(books), ["A"], try_number=2, side_effect=REMEMBERS)
    assert len(books.receiver.calls()) == 2
    books.shift(25 * 3600, "first_begun_at")
    report = books.run(books.pay, ["A"], try_number=3, side_effect=REMEMBERS)
    assert type(failure(report)) is InDoubt
    assert len(books.receiver.calls()) == 2


def test_retry_does_not_overrule_a_no_that_is_too_early(books: Books) -> None:
    effect = External(
        verify=lambda: False,
        settle_after=timedelta(minutes=10),
        in_doubt="retry",
        receiver_remembers=timedelta(hours=24),
    )
    books.run(sent_without_answer(books), ["A"])
    report = books.run(books.pay, ["A"], try_number=2, side_effect=effect)
    assert isinstance(failure(report), InDoubtUnsettled)
    assert len(books.receiver.calls()) == 1


@pytest.mark.parametrize("before", ["document", "batch"])
def test_retry_holds_where_the_receiver_would_get_another_key(books: Books, before: str) -> None:
    """A batch has a key of its own: after a change of ``call_per`` the receiver would not recognise it."""

    def breaks(idempotency_key: str) -> None:
        books.receiver.call("A", key=idempotency_key)
        raise TimeoutError

    after = "batch" if before == "document" else "document"
    books.run(breaks, ["A"], side_effect=REMEMBERS, call_per=before)
    report = books.run(breaks, ["A"], try_number=2, side_effect=REMEMBERS, call_per=after)
    assert type(failure(report)) is InDoubt
    assert len(books.receiver.calls()) == 1
    books.run(breaks, ["A"], try_number=3, side_effect=REMEMBERS, call_per=before)
    first, second = books.receiver.calls()
    assert first == second


@pytest.mark.parametrize("call_per", ["document", "batch"])
@pytest.mark.parametrize("later", ["too late", "hold"])
def test_a_repetition_that_did_nothing_leaves_the_first_call_in_doubt(
    books: Books, call_per: str, later: str
) -> None:
    """Nothing was sent the second time. What the first call did is as unknown as before, and so it stays."""
    rules: dict[str, Any] = {"side_effect": REMEMBERS, "call_per": call_per, "batch_size": 2}

    def breaks(idempotency_key: str) -> None:
        books.receiver.call(None, key=idempotency_key)
        raise TimeoutError

    def closed() -> None:
        raise NotExecuted("receiver closed")

    def pay(idempotency_key: str) -> None:
        books.receiver.call(None, key=idempotency_key)

    books.run(breaks, ["A", "B"], **rules)
    sent = len(books.receiver.calls())
    repeated = books.run(closed, ["A", "B"], try_number=2, **rules)
    assert counts(repeated) == {"failed": 2}
    assert failure(repeated).retryable, "another try may repeat it, as long as the receiver remembers"
    if later == "hold":
        rules["side_effect"] = External()
    else:
        books.shift(25 * 3600, "first_begun_at")
    report = books.run(pay, ["A", "B"], try_number=3, **rules)
    assert counts(report) == {"in_doubt": 2}
    assert type(report.errors[0][1]) is InDoubt
    assert len(books.receiver.calls()) == sent
    assert books.states() == {"A": "in_doubt", "B": "in_doubt"}
    for document in "AB" if call_per == "document" else "A":
        books.resolve(document, "did_not_happen", "the bank knows nothing of it")
    assert counts(books.run(pay, ["A", "B"], try_number=4, **rules)) == {"executed": 2}


def test_a_repetition_within_the_memory_goes_on_after_it_did_nothing(books: Books) -> None:
    def closed() -> None:
        raise NotExecuted("receiver closed")

    books.run(sent_without_answer(books), ["A"], side_effect=REMEMBERS)
    books.run(closed, ["A"], try_number=2, side_effect=REMEMBERS)
    assert counts(books.run(books.pay, ["A"], try_number=3, side_effect=REMEMBERS)) == {"executed": 1}
    first, second = books.receiver.calls()
    assert first == second


def test_a_repetition_that_died_before_it_began_is_not_taken_over_too_late(books: Books) -> None:
    seen: list[Any] = []

    def repeats(document: str, idempotency_key: str, effect: Any) -> None:
        books.expire_leases()
        books.shift(25 * 3600, "first_begun_at")
        seen.append(books.run(books.pay, [document], try_number=3, side_effect=REMEMBERS))
        with effect:
            books.pay(document, idempotency_key)

    books.run(sent_without_answer(books), ["A"], side_effect=REMEMBERS)
    report = books.run(repeats, ["A"], try_number=2, side_effect=REMEMBERS)
    assert counts(seen[0]) == {"in_doubt": 1}
    assert isinstance(failure(report), OwnershipLost)
    assert len(books.receiver.calls()) == 1


def test_a_definite_no_ends_the_doubt_about_the_first_call(books: Books) -> None:
    """A person or ``verify`` has said so: what follows are attempts like any other, however late."""

    def closed() -> None:
        raise NotExecuted("receiver closed")

    books.run(sent_without_answer(books), ["A"])
    books.resolve("A", "did_not_happen", "the bank knows nothing of it")
    books.run(closed, ["A"], try_number=2)
    books.shift(25 * 3600, "first_begun_at")
    assert counts(books.run(books.pay, ["A"], try_number=3)) == {"executed": 1}
