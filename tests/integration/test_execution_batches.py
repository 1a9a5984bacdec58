"""One effect outside for many documents: begun, done or in doubt together, and repeated as the same batch."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_guard.core.effects import External
from airflow_guard.core.errors import DocumentError, InDoubt, NotExecuted, OwnershipLost, Rejected
from airflow_guard.core.states import State
from tests.chaos import fixtures
from tests.chaos.books import counts, failure, mapped, numbered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.chaos.books import Books

pytestmark = fixtures.ONE_OF_EACH
books = fixtures.books
BATCHES: dict[str, Any] = {"call_per": "batch", "batch_size": 3}


class Refused(ConnectionError):
    """Nothing was sent."""


def sending(books: Books, breaks: Exception | None = None, *, sent: bool = True, fails_with: str = "") -> Any:
    """Return a callable that sends a payment file; it breaks at the batch that holds one document."""

    def send(documents: list[str], batch_id: str, idempotency_key: str, attempt: int) -> dict[str, Any]:
        assert batch_id == idempotency_key
        broken = breaks is not None and (not fails_with or fails_with in documents)
        if sent or not broken:
            for document in documents:
                books.receiver.call(document, batch=batch_id, of=len(documents))
        if breaks is not None and broken:
            raise breaks
        return {"file": batch_id}

    return send


def batches(books: Books) -> dict[str, list[str | None]]:
    found: dict[str, list[str | None]] = {}
    for call in books.receiver.calls():
        found.setdefault(call["batch"], []).append(call["document"])
    return found


def test_documents_are_sent_in_batches_and_replayed_one_by_one(books: Books) -> None:
    assert counts(books.run(sending(books), numbered(7), **BATCHES)) == {"executed": 7}
    assert sorted(map(len, batches(books).values())) == [1, 3, 3]
    again = books.run(sending(books), [*reversed(numbered(7)), "new"], try_number=2, **BATCHES)
    assert counts(again) == {"replayed": 7, "executed": 1}
    assert books.receiver.twice() == []


@pytest.mark.parametrize("answer", [True, False])
def test_a_batch_in_doubt_is_verified_as_one_and_never_regrouped(books: Books, answer: bool) -> None:
    asked: list[dict[str, Any]] = []

    def verify(documents: list[str], batch_id: str, idempotency_key: str) -> bool:
        asked.append({"documents": documents, "batch": batch_id, "key": idempotency_key})
        return answer

    effect = External(verify=verify, settle_after=timedelta(0))
    first = books.run(
        sending(books, TimeoutError(), sent=answer, fails_with="D-0005"), numbered(7), **BATCHES
    )
    assert counts(first) == {"executed": 4, "in_doubt": 3}
    members = {row.document: row.batch_id for row in books.rows() if row.state == "in_doubt"}
    assert sorted(members) == ["D-0004", "D-0005", "D-0006"]
    [batch_id] = set(members.values())

    # The listing has another order now, and a new document beside each old one.
    listed = [
        "N-1",
        "D-0006",
        "N-2",
        "D-0001",
        "N-3",
        "D-0004",
        "N-4",
        "D-0002",
        "D-0005",
        "D-0003",
        "D-0007",
    ]
    second = books.run(sending(books), listed, try_number=2, side_effect=effect, **BATCHES)
    assert counts(second) == ({"replayed": 7, "executed": 4} if answer else {"replayed": 4, "executed": 7})
    assert [question["documents"] for question in asked] == [sorted(members)], (
        "in the order of the first time"
    )
    assert {question["batch"] for question in asked} == {question["key"] for question in asked} == {batch_id}
    assert batches(books)[batch_id] == sorted(members), "another order is another file"
    assert books.receiver.twice() == []
    assert set(books.states().values()) == {"completed"}


def test_a_batch_that_has_certainly_not_happened_is_repeated_as_it_was(books: Books) -> None:
    first = books.run(sending(books, NotExecuted("closed"), sent=False), numbered(6), **BATCHES)
    assert counts(first) == {"failed": 6}
    before = {row.document: row.batch_id for row in books.rows()}
    assert len(set(before.values())) == 2
    mixed = ["D-0006", "D-0001", "N-1", "D-0004", "D-0002", "N-2", "D-0005", "D-0003"]
    assert counts(books.run(sending(books), mixed, try_number=2, **BATCHES)) == {"executed": 8}
    for call in books.receiver.calls():
        assert before.get(call["document"], call["batch"]) == call["batch"]
    assert books.receiver.twice() == []
    assert {row.document: row.batch_id for row in books.rows() if row.document in before} == before


@pytest.mark.parametrize("again", [NotExecuted("closed"), None], ids=["a third time", "at once"])
def test_a_batch_that_is_repeated_has_the_order_of_the_first_time(
    books: Books, again: Exception | None
) -> None:
    """Keys are hashes, and lists come in any order: neither decides what stands first in the file."""
    first = ["D-0002", "D-0005", "D-0001", "D-0004", "D-0003"]
    tried: list[list[str]] = []

    def send(documents: list[str], batch_id: str) -> None:
        tried.append(documents)
        if len(tried) == 1:
            raise NotExecuted("closed")
        if len(tried) == 2 and again is not None:
            raise again
        for document in documents:
            books.receiver.call(document, batch=batch_id)

    sized = {**BATCHES, "batch_size": 5}
    books.run(send, first, **sized)
    books.run(send, sorted(first), try_number=2, **sized)
    if again is not None:
        books.run(send, [*reversed(first)], try_number=3, **sized)
    assert [call["document"] for call in books.receiver.calls()] == first
    assert set(books.states().values()) == {"completed"}
    assert {row.batch_id for row in books.rows()} == {call["batch"] for call in books.receiver.calls()}


def test_an_error_before_the_window_leaves_the_documents_to_be_grouped_anew(books: Books) -> None:
    def send(documents: list[str], attempt: int, effect: Any) -> None:
        if attempt == 1:
            raise ValueError("no template")
        with effect:
            for document in documents:
                books.receiver.call(document, batch="", of=len(documents))

    assert counts(books.run(send, numbered(3), **BATCHES)) == {"failed": 3}
    assert {row.batch_id for row in books.rows()} == {None}
    assert counts(books.run(send, ["N-1", *numbered(3)], try_number=2, **BATCHES)) == {"executed": 4}
    assert books.receiver.twice() == []


def test_safe_errors_count_before_the_window_only(books: Books) -> None:
    effect = External(safe_errors=[Refused])

    def send(documents: list[str], effect: Any) -> None:
        with effect:
            raise Refused

    first = books.run(send, numbered(3), side_effect=effect, **BATCHES)
    assert counts(first) == {"in_doubt": 3}
    assert isinstance(first.errors[0][1], InDoubt)
    other = books.run(
        sending(books, Refused(), sent=False), ["X"], run_id="manual__1", side_effect=effect, **BATCHES
    )
    assert counts(other) == {"in_doubt": 1}


def test_a_rejected_batch_is_rejected_together(books: Books) -> None:
    report = books.run(sending(books, Rejected("wrong format"), sent=False), numbered(3), **BATCHES)
    assert counts(report) == {"rejected": 3}
    assert books.receiver.calls() == []


def test_a_member_that_is_not_listed_any_more_holds_the_batch(books: Books) -> None:
    effect = External(verify=lambda: False, settle_after=timedelta(0))
    books.run(sending(books, TimeoutError(), sent=False), numbered(3), side_effect=effect, **BATCHES)
    report = books.run(
        sending(books), ["D-0001", "D-0003", "N-1"], try_number=2, side_effect=effect, **BATCHES
    )
    assert counts(report) == {"executed": 1, "blocked": 2, "forgotten": 1}
    error = report.errors[0][1]
    assert isinstance(error, DocumentError)
    assert "D-0002" in str(error)
    assert not failure(report).retryable
    assert books.receiver.documents() == ["N-1"]
    # Listed again, it is repeated as it was.
    again = books.run(sending(books), [*numbered(3), "N-1"], try_number=3, side_effect=effect, **BATCHES)
    assert counts(again) == {"executed": 3, "replayed": 1}
    assert len(batches(books)) == 2


def test_a_batch_held_for_a_person_is_settled_together(books: Books) -> None:
    books.run(sending(books, TimeoutError()), numbered(3), **BATCHES)
    held = books.run(sending(books), numbered(3), try_number=2, **BATCHES)
    assert counts(held) == {"in_doubt": 3}
    books.resolve("D-0002", "happened", "the bank shows the file")
    assert set(books.states().values()) == {"completed"}
    assert counts(books.run(sending(books), numbered(3), try_number=3, **BATCHES)) == {"replayed": 3}
    assert books.receiver.twice() == []


def test_a_batch_that_another_attempt_repeats_is_waited_for(books: Books) -> None:
    books.run(sending(books, NotExecuted("closed"), sent=False), numbered(3), **BATCHES)
    seen: list[Any] = []

    def holding(documents: list[str], batch_id: str) -> None:
        for document in documents:
            books.receiver.call(document, batch=batch_id)
        seen.append(books.run(sending(books), [*numbered(3), "N-1"], try_number=3, **BATCHES))

    assert counts(books.run(holding, numbered(3), try_number=2, **BATCHES)) == {"executed": 3}
    assert counts(seen[0]) == {"waiting": 3, "executed": 1}
    assert failure(seen[0]).retryable
    assert books.receiver.twice() == []


@pytest.mark.parametrize("ends", ["completed", "holding"])
def test_a_batch_claimed_between_two_looks_is_not_called_incomplete(books: Books, ends: str) -> None:
    """One member was read before the other attempt claimed the batch, the others after."""
    books.run(sending(books, NotExecuted("closed"), sent=False), numbered(3), **BATCHES)

    def listing() -> Iterator[str]:
        yield from ["D-0001", "N-1", "N-2"]
        if ends == "completed":
            assert counts(books.run(sending(books), numbered(3), try_number=2, **BATCHES)) == {"executed": 3}
        else:
            claim_batch(books)
        yield from ["D-0002", "D-0003"]

    slower = books.run(sending(books), listing, try_number=2, **BATCHES)
    if ends == "completed":
        assert counts(slower) == {"executed": 2, "replayed": 3}
    else:
        assert counts(slower) == {"executed": 2, "waiting": 3}
        assert failure(slower).retryable
    assert books.receiver.twice() == []


def claim_batch(books: Books) -> None:
    """Claim the batch as another attempt that is still at work."""
    from airflow_guard.core.keys import KeySpace
    from airflow_guard.store.changes import Ownership
    from tests.chaos.books import DAY
    from tests.contract.attempts import documents_of, opened

    space = KeySpace(books.dag_id, "post", DAY)
    own = Ownership.new(DAY, opened(books.ledger, space, run_id="scheduled__2026-01-31"), "other")
    assert len(books.ledger.claim(own, space, [], documents_of(space, *numbered(3)))) == 3


def test_a_batch_of_which_a_part_is_gone_begins_nothing(books: Books) -> None:
    def send(documents: list[str], effect: Any) -> None:
        if books.row("D-0002").state is State.IN_PROGRESS:
            books.expire_leases()
            # Another attempt takes one member over before the batch has begun.
            assert counts(books.run(sending(books), ["D-0002"], try_number=2, **BATCHES)) == {"executed": 1}
        with effect:
            for document in documents:
                books.receiver.call(document, batch="first")

    report = books.run(send, numbered(3), **BATCHES)
    assert isinstance(report.errors[0][1], OwnershipLost)
    assert failure(report).retryable
    assert books.receiver.documents() == ["D-0002"]
    assert counts(books.run(sending(books), numbered(3), try_number=3, **BATCHES)) == {
        "executed": 2,
        "replayed": 1,
    }
    assert books.receiver.twice() == []


def test_documents_with_content_keep_their_payload_when_the_batch_is_repeated(books: Books) -> None:
    def send(documents: list[dict[str, str]], batch_id: str, attempt: int) -> None:
        if attempt == 1:
            raise NotExecuted("closed")
        for document in documents:
            books.receiver.call(document["no"], amount=document["amount"], batch=batch_id)

    rules = {**BATCHES, "document_key": "no"}
    books.run(send, mapped(numbered(3)), **rules)
    assert counts(books.run(send, mapped(reversed(numbered(3)), "12.00"), try_number=2, **rules)) == {
        "executed": 3
    }
    assert {call["amount"] for call in books.receiver.calls()} == {"12.00"}
    changed = books.run(send, mapped(numbered(3), "13.00"), try_number=3, **rules)
    assert counts(changed) == {"blocked": 3}
    assert "changed: amount" in str(changed.errors[0][1])


def test_documents_of_a_former_batch_that_are_executed_alone_are_on_their_own(books: Books) -> None:
    """After ``call_per`` was changed: what the receiver got is each document's key, not the batch's."""
    books.run(sending(books, NotExecuted("closed"), sent=False), numbered(3), **BATCHES)
    asked: list[str] = []

    def verify(document: str, idempotency_key: str) -> bool | None:
        asked.append(idempotency_key)
        return None

    def pay(document: str, idempotency_key: str) -> None:
        books.receiver.call(document, key=idempotency_key)
        if document != "D-0001":
            raise TimeoutError

    effect = External(verify=verify, settle_after=timedelta(0))
    report = books.run(pay, numbered(3), try_number=2, side_effect=effect)
    assert counts(report) == {"executed": 1, "in_doubt": 2}
    sent = {call["document"]: call["key"] for call in books.receiver.calls()}
    assert {row.batch_id for row in books.rows()} == {None}

    again = books.run(pay, numbered(3), try_number=3, side_effect=effect)
    assert counts(again) == {"replayed": 1, "in_doubt": 2}
    assert sorted(asked) == sorted([sent["D-0002"], sent["D-0003"]])
    books.resolve("D-0002", "happened")
    assert books.states() == {"D-0001": "completed", "D-0002": "completed", "D-0003": "in_doubt"}
