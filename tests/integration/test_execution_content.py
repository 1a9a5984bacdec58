"""Content that changed: never replayed, verified, repeated or passed over as if it had not, whatever the state."""

from __future__ import annotations

from array import array
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard.acts import reruns
from airflow_guard.core.effects import Database, External
from airflow_guard.core.errors import (
    ContentChanged,
    DocumentError,
    FollowUpFailed,
    InDoubt,
    NotExecuted,
    Rejected,
    ResolutionError,
    StaleResolution,
)
from airflow_guard.core.report import Outcome
from airflow_guard.store import resolution
from tests.chaos import fixtures
from tests.chaos.books import counts, failure, mapped, numbered

if TYPE_CHECKING:
    from airflow_guard.core.report import Report
    from tests.chaos.books import Books

pytestmark = fixtures.ONE_OF_EACH
books = fixtures.books
KEY: dict[str, Any] = {"document_key": "no"}
BATCHES: dict[str, Any] = {"call_per": "batch", "batch_size": 3, **KEY}
REMEMBERS = External(in_doubt="retry", receiver_remembers=timedelta(hours=24))


def paying(books: Books, breaks: Exception | None = None, *, sent: bool = True) -> Any:
    """Return a callable that pays an amount, and may break before or after the receiver has it."""

    def pay(document: str, payload: dict[str, Any], idempotency_key: str) -> str:
        if sent or breaks is None:
            books.receiver.call(document, amount=payload["amount"], key=idempotency_key)
        if breaks is not None:
            raise breaks
        return str(payload["amount"])

    return pay


def saying(answer: bool | None, asked: list[dict[str, Any]] | None = None) -> External:
    def verify(document: str, payload: dict[str, Any], idempotency_key: str) -> bool | None:
        if asked is not None:
            asked.append({"document": document, "payload": payload, "key": idempotency_key})
        return answer

    return External(verify=verify, settle_after=timedelta(0))


def amounts(books: Books) -> list[tuple[str, str]]:
    return [(call["document"], call["amount"]) for call in books.receiver.calls()]


def change_of(report: Report) -> str:
    """Return the message of the only document that was held back for its content."""
    [(_, error)] = report.errors
    assert isinstance(error, ContentChanged)
    return str(error)


def let_it_be(books: Books, **values: Any) -> None:
    """Leave this test's rows as a killed process would have."""
    e = books.database.tables.execution
    with books.database.engine.begin() as connection:
        connection.execute(sa.update(e).where(e.c.key_namespace == books.dag_id).values(values))
    books.forget_signs()


# -- in doubt -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("killed", [False, True])
def test_d02_a_changed_document_in_doubt_is_settled_for_what_was_sent_and_then_fails(
    books: Books, killed: bool
) -> None:
    books.run(paying(books, TimeoutError()), mapped(["A"], "100"), **KEY)
    if killed:
        let_it_be(books, state="in_progress", error=None)
    asked: list[dict[str, Any]] = []
    effect = saying(True, asked)
    report = books.run(paying(books), mapped(["A"], "200"), try_number=2, side_effect=effect, **KEY)
    assert counts(report) == {"blocked": 1}
    assert "changed: amount" in change_of(report)
    assert not failure(report).retryable
    assert amounts(books) == [("A", "100")], "the new content is not executed"
    [sent] = books.receiver.calls()
    assert asked == [{"document": "A", "payload": {"no": "A"}, "key": sent["key"]}], "about what was sent"
    assert books.row("A").state == "completed"
    # The ledger has the old content for the old effect: that one is replayed, the new one is not, ever.
    assert counts(books.run(paying(books), mapped(["A"], "100"), try_number=3, **KEY)) == {"replayed": 1}
    again = books.run(paying(books), mapped(["A"], "200"), try_number=4, **KEY)
    assert "changed: amount" in change_of(again)
    assert amounts(books) == [("A", "100")]


def test_d02_what_did_not_happen_is_executed_with_the_new_content_under_a_key_of_its_own(
    books: Books,
) -> None:
    books.run(paying(books, TimeoutError(), sent=False), mapped(["A"], "100"), **KEY)
    old = books.row("A").idempotency_key
    report = books.run(paying(books), mapped(["A"], "200"), try_number=2, side_effect=saying(False), **KEY)
    assert counts(report) == {"executed": 1}
    [call] = books.receiver.calls()
    assert call["amount"] == "200"
    assert call["key"] == books.row("A").idempotency_key != old, "an old key never travels with new content"
    [event] = books.events("new_content")
    assert "changed: amount" in event.reason
    assert old in event.reason
    assert call["key"] in event.reason
    assert counts(books.run(paying(books), mapped(["A"], "200"), try_number=3, **KEY)) == {"replayed": 1}
    assert "amount" in change_of(books.run(paying(books), mapped(["A"], "100"), try_number=4, **KEY))


@pytest.mark.parametrize("happened", [True, False])
def test_d02_without_an_answer_it_stays_in_doubt_and_says_that_the_content_is_new(
    books: Books, happened: bool
) -> None:
    books.run(paying(books, TimeoutError()), mapped(["A"], "100"), **KEY)
    old = books.row("A")
    report = books.run(paying(books), mapped(["A"], "200"), try_number=2, side_effect=saying(None), **KEY)
    assert counts(report) == {"in_doubt": 1}
    error = failure(report)
    assert isinstance(error, InDoubt)
    assert "changed: amount" in str(error)
    assert books.row("A").fingerprint == old.fingerprint
    books.resolve("A", "happened" if happened else "did_not_happen")
    after = books.run(paying(books), mapped(["A"], "200"), try_number=3, **KEY)
    if happened:
        assert "changed: amount" in change_of(after)
        assert amounts(books) == [("A", "100")]
    else:
        assert counts(after) == {"executed": 1}
        assert amounts(books) == [("A", "100"), ("A", "200")]
        first, second = books.receiver.calls()
        assert first["key"] == old.idempotency_key != second["key"]


def test_a_doubt_that_a_person_is_asked_about_shows_what_was_sent(books: Books) -> None:
    books.run(paying(books, TimeoutError()), [{"no": "A", "amount": "100", "iban": "DE1"}], **KEY)
    later = [{"no": "A", "amount": "200", "iban": "DE1"}]
    report = books.run(paying(books), later, try_number=2, side_effect=External(in_doubt="ask"), **KEY)
    [doubt] = report.doubts
    assert [document.payload for document in doubt.documents] == [{"no": "A", "iban": "DE1"}]
    assert "changed: amount" in str(report.errors[0][1])


def test_d02_a_repetition_within_the_memory_of_the_receiver_has_the_old_content_or_is_none(
    books: Books,
) -> None:
    books.run(paying(books, TimeoutError()), mapped(["A", "B"], "100"), side_effect=REMEMBERS, **KEY)
    listed = [*mapped(["A"], "200"), *mapped(["B"], "100")]
    report = books.run(paying(books), listed, try_number=2, side_effect=REMEMBERS, **KEY)
    assert counts(report) == {"in_doubt": 1, "executed": 1}
    assert "changed: amount" in str(report.errors[0][1])
    assert amounts(books) == [("A", "100"), ("B", "100"), ("B", "100")]


def test_what_only_the_memory_has_freed_is_in_doubt_again_if_its_content_is_new(books: Books) -> None:
    """That the receiver recognises a repetition is no proof that the first call did nothing."""
    books.run(paying(books, TimeoutError()), mapped(["A"], "100"), side_effect=REMEMBERS, **KEY)
    old = books.row("A")
    closed = paying(books, NotExecuted("closed"), sent=False)
    books.run(closed, mapped(["A"], "100"), try_number=2, side_effect=REMEMBERS, **KEY)
    assert books.states() == {"A": "failed"}
    report = books.run(paying(books), mapped(["A"], "200"), try_number=3, side_effect=REMEMBERS, **KEY)
    assert counts(report) == {"in_doubt": 1}
    assert "changed: amount" in str(report.errors[0][1])
    assert amounts(books) == [("A", "100")]
    row = books.row("A")
    assert (row.fingerprint, row.idempotency_key) == (old.fingerprint, old.idempotency_key)
    assert books.states() == {"A": "in_doubt"}
    last = books.run(paying(books), mapped(["A"], "100"), try_number=4, side_effect=REMEMBERS, **KEY)
    assert counts(last) == {"executed": 1}
    assert {call["key"] for call in books.receiver.calls()} == {old.idempotency_key}


# -- failed, and taken over -----------------------------------------------------------------------------


def test_corrected_content_after_a_failure_travels_under_a_new_key_if_the_old_one_may_have_travelled(
    books: Books,
) -> None:
    books.run(paying(books, NotExecuted("refused"), sent=False), mapped(["A", "B"], "100"), **KEY)
    old = {row.document: row.idempotency_key for row in books.rows()}
    corrected = [*mapped(["A"], "200"), *mapped(["B"], "100")]
    assert counts(books.run(paying(books), corrected, try_number=2, **KEY)) == {"executed": 2}
    new = {call["document"]: call["key"] for call in books.receiver.calls()}
    assert new["A"] != old["A"]
    assert new["B"] == old["B"]
    assert len(new["A"]) == 32


def test_corrected_content_keeps_the_key_that_no_receiver_has_been_given(books: Books) -> None:
    def pay(document: str, payload: dict[str, Any], idempotency_key: str, attempt: int, effect: Any) -> None:
        if attempt == 1:
            raise ValueError("no template")
        with effect:
            books.receiver.call(document, amount=payload["amount"], key=idempotency_key)

    books.run(pay, mapped(["A"], "100"), **KEY)
    old = books.row("A").idempotency_key
    books.run(pay, mapped(["A"], "200"), try_number=2, **KEY)
    assert books.receiver.calls() == [{"document": "A", "amount": "200", "key": old}]
    assert len(books.events("new_content")) == 1


def test_content_that_changes_twice_has_three_keys(books: Books) -> None:
    for attempt, amount in enumerate(("100", "200", "100", "300"), 1):
        breaks = NotExecuted("refused") if attempt < 4 else None
        books.run(paying(books, breaks), mapped(["A"], amount), try_number=attempt, **KEY)
    calls = books.receiver.calls()
    by_key: dict[str, set[str]] = {}
    for call in calls:
        by_key.setdefault(call["key"], set()).add(call["amount"])
    assert all(len(of_key) == 1 for of_key in by_key.values()), "one key, one content"
    assert len(calls) == 4


def test_rows_that_were_rolled_back_are_written_with_the_new_content(books: Books) -> None:
    def post(document: str, payload: dict[str, Any], connection: Any, attempt: int) -> None:
        books.post(f"{document} {payload['amount']}", connection)
        if attempt == 1:
            raise ValueError

    rules: dict[str, Any] = {"side_effect": Database(), **KEY}
    books.run(post, mapped(["A"], "100"), **rules)
    assert counts(books.run(post, mapped(["A"], "200"), try_number=2, **rules)) == {"executed": 1}
    assert books.posted() == ["A 200"]


@pytest.mark.parametrize("begun_before", [False, True])
def test_a_key_that_is_taken_over_before_its_effect_began_takes_the_new_content(
    books: Books, begun_before: bool
) -> None:
    books.run(paying(books, NotExecuted("refused"), sent=False), mapped(["A"], "100"), **KEY)
    old = books.row("A").idempotency_key
    killed: dict[str, Any] = {"state": "in_progress", "phase": "none", "finished_at": None, "begun_at": None}
    let_it_be(books, **killed, **({} if begun_before else {"first_begun_at": None}))
    report = books.run(paying(books), mapped(["A"], "200"), try_number=2, **KEY)
    assert counts(report) == {"executed": 1}
    [call] = books.receiver.calls()
    assert call["amount"] == "200"
    assert (call["key"] == old) is not begun_before


# -- rejected, and waived -------------------------------------------------------------------------------


@pytest.mark.parametrize("max_rejected", [0, 100])
def test_d10_a_rejected_document_with_new_content_says_that_it_is_new(
    books: Books, max_rejected: int
) -> None:
    rules: dict[str, Any] = {"max_rejected": max_rejected, **KEY}
    books.run(paying(books, Rejected("account closed"), sent=False), mapped(["A"], "100"), **rules)
    old = books.row("A")
    report = books.run(paying(books), mapped(["A"], "200"), try_number=2, **rules)
    assert counts(report) == {"blocked": 1}
    message = change_of(report)
    assert "account closed" in message
    assert "its content is new" in message
    assert "changed: amount" in message
    assert f"--key {old.key_hash} --send-again" in message
    assert f"--key {old.key_hash} --content-stands" in message
    assert failure(report, max_rejected) is not None, "never green"
    assert books.receiver.calls() == []
    # The way out that the message names.
    books.resolve("A", "send_again")
    assert counts(books.run(paying(books), mapped(["A"], "200"), try_number=3, **rules)) == {"executed": 1}
    [call] = books.receiver.calls()
    assert call["amount"] == "200"
    assert call["key"] != old.idempotency_key


def test_d10_a_rejection_can_be_said_to_stand_for_the_new_content_too(books: Books) -> None:
    books.run(paying(books, Rejected("account closed")), mapped(["A"], "100"), **KEY)
    books.run(paying(books), mapped(["A"], "200"), try_number=2, **KEY)
    books.resolve("A", "content_stands", "the account is closed still")
    after = books.run(paying(books), mapped(["A"], "200"), try_number=3, max_rejected=1, **KEY)
    assert counts(after) == {"rejected": 1}
    assert failure(after, 1) is None
    yet_another = books.run(paying(books), mapped(["A"], "300"), try_number=4, max_rejected=1, **KEY)
    assert "changed: amount" in change_of(yet_another)
    assert len(books.receiver.calls()) == 1


def test_d10_a_waived_document_is_not_passed_over_with_new_content(books: Books) -> None:
    books.run(paying(books, Rejected("account closed"), sent=False), mapped(["A"], "100"), **KEY)
    books.resolve("A", "waive", "paid by card")
    assert counts(books.run(paying(books), mapped(["A"], "100"), try_number=2, **KEY)) == {"replayed": 1}
    message = change_of(books.run(paying(books), mapped(["A"], "200"), try_number=3, **KEY))
    assert "settled without an effect" in message
    assert "paid by card" in message
    books.resolve("A", "content_stands", "paid by card as well")
    assert counts(books.run(paying(books), mapped(["A"], "200"), try_number=4, **KEY)) == {"replayed": 1}
    assert books.receiver.calls() == []


# -- done -----------------------------------------------------------------------------------------------


def test_a_person_accepts_the_content_that_was_listed_and_no_later_one(books: Books) -> None:
    books.run(paying(books), mapped(["A"], "100"), **KEY)
    message = change_of(books.run(paying(books), mapped(["A"], "200"), try_number=2, **KEY))
    seen = books.row("A")
    assert f"--key {seen.key_hash} --content-stands" in message
    assert seen.offered_fields == ["amount"]
    # Listed with yet another content before the person acts: what was seen is not what would be accepted.
    books.run(paying(books), mapped(["A"], "300"), try_number=3, **KEY)
    [stored] = books.rows()

    def accept(content: str | None, actor: str = "ada") -> Any:
        return resolution.resolve(
            books.ledger, stored.key_date, seen.key_hash, seen.owner_token, "content_stands", actor=actor,
            reason="a correction of the text only", content=content,
        )  # fmt: skip

    with pytest.raises(StaleResolution, match="yet another content"):
        accept(seen.content)
    assert books.events("content_accepted") == []
    now = books.row("A").content
    [settled] = accept(now)
    assert (settled.before, settled.after) == ("completed", "completed")
    [second_click] = accept(now)
    assert second_click.repeated
    with pytest.raises(StaleResolution, match="accepted already"):
        accept(now, actor="bob")
    [event] = books.events("content_accepted")
    assert (event.actor, event.reason) == ("ada", "a correction of the text only")
    for try_number, amount in enumerate(("300", "100"), 4):
        report = books.run(paying(books), one=mapped(["A"], amount)[0], try_number=try_number, **KEY)
        assert counts(report) == {"replayed": 1}
        assert report.result == "100", "what is stored stands"
    assert "changed: amount" in change_of(books.run(paying(books), mapped(["A"], "200"), try_number=6, **KEY))
    assert amounts(books) == [("A", "100")]
    # A second content is accepted beside the first.
    books.resolve("A", "content_stands", "this one, too")
    for try_number, amount in enumerate(("200", "300", "100"), 7):
        report = books.run(paying(books), mapped(["A"], amount), try_number=try_number, **KEY)
        assert counts(report) == {"replayed": 1}


def test_nothing_can_be_accepted_where_nothing_was_listed(books: Books) -> None:
    books.run(paying(books), mapped(["A"], "100"), **KEY)
    with pytest.raises(ResolutionError, match="no other content"):
        books.resolve("A", "content_stands")


def test_a_dry_run_accepts_nothing(books: Books) -> None:
    books.run(paying(books), mapped(["A"], "100"), **KEY)
    books.run(paying(books), mapped(["A"], "200"), try_number=2, **KEY)
    row, [stored] = books.row("A"), books.rows()
    resolution.resolve(
        books.ledger, stored.key_date, row.key_hash, row.owner_token, "content_stands", actor="ada", reason="x",
        content=row.content, dry_run=True,
    )  # fmt: skip
    assert books.row("A").accepted == ()
    assert books.events("content_accepted") == []


@pytest.mark.parametrize("fields", [1, 60])
def test_d09_leaving_a_field_out_of_what_decides_works_for_what_is_done(books: Books, fields: int) -> None:
    def listed(loaded_at: str, amount: str = "100") -> list[dict[str, Any]]:
        more = {f"note_{number}": number for number in range(fields)}
        return [{"no": "A", "amount": amount, "loaded_at": loaded_at, **more}]

    books.run(paying(books), listed("06:00"), **KEY)
    message = change_of(books.run(paying(books), listed("07:00"), try_number=2, **KEY))
    assert "changed: loaded_at" in message
    assert "fingerprint_fields" in message
    rules: dict[str, Any] = {"fingerprint_fields": ("amount",), **KEY}
    assert counts(books.run(paying(books), listed("08:00"), try_number=3, **rules)) == {"replayed": 1}
    other = books.run(paying(books), listed("08:00", "200"), try_number=4, **rules)
    assert "changed: amount" in change_of(other)
    assert amounts(books) == [("A", "100")]


def test_a_rerun_executes_the_new_content_under_a_key_of_its_own(books: Books) -> None:
    books.run(paying(books), mapped(["A"], "100"), **KEY)
    books.run(paying(books), mapped(["A"], "200"), try_number=2, **KEY)
    row, [stored] = books.row("A"), books.rows()
    judged = [resolution.Judged(stored.key_date, row.key_hash, row.owner_token)]
    reruns.authorise(
        books.ledger,
        judged,
        actor="ada",
        reason="corrected",
        expires=timedelta(hours=1),
        without_reversal=True,
    )
    assert counts(books.run(paying(books), mapped(["A"], "200"), try_number=3, **KEY)) == {"executed": 1}
    first, second = books.receiver.calls()
    assert (first["amount"], second["amount"]) == ("100", "200")
    assert first["key"] != second["key"]
    assert books.row("A").offered is None
    assert counts(books.run(paying(books), mapped(["A"], "200"), try_number=4, **KEY)) == {"replayed": 1}


def test_an_open_follow_up_says_that_the_content_is_new(books: Books) -> None:
    def pay(document: str, payload: dict[str, Any], effect: Any) -> None:
        with effect:
            books.receiver.call(document, amount=payload["amount"], key="")
        raise ValueError("archive full")

    books.run(pay, mapped(["A"], "100"), **KEY)
    report = books.run(pay, mapped(["A"], "200"), try_number=2, **KEY)
    [(_, error)] = report.errors
    assert isinstance(error, FollowUpFailed)
    assert "changed: amount" in str(error)
    books.resolve("A", "followed_up")
    assert "changed: amount" in change_of(books.run(pay, mapped(["A"], "200"), try_number=3, **KEY))
    assert amounts(books) == [("A", "100")]


# -- batches --------------------------------------------------------------------------------------------


def sending(books: Books, breaks: Exception | None = None, *, sent: bool = True) -> Any:
    def send(documents: list[dict[str, Any]], batch_id: str) -> None:
        if sent or breaks is None:
            for each in documents:
                books.receiver.call(each["no"], amount=each["amount"], key=batch_id)
        if breaks is not None:
            raise breaks

    return send


def groups(books: Books) -> dict[str, dict[str, str]]:
    """Return what the receiver got under each batch id."""
    found: dict[str, dict[str, str]] = {}
    for call in books.receiver.calls():
        found.setdefault(call["key"], {})[call["document"]] = call["amount"]
    return found


def test_d02_a_batch_in_doubt_is_settled_for_what_was_sent(books: Books) -> None:
    asked: list[Any] = []

    def verify(documents: list[Any], batch_id: str) -> bool:
        asked.append((sorted(documents, key=lambda each: each["no"]), batch_id))
        return True

    effect = External(verify=verify, settle_after=timedelta(0))
    one, two, three = names = numbered(3)
    books.run(sending(books, TimeoutError()), mapped(names, "100"), **BATCHES)
    [batch_id] = {row.batch_id for row in books.rows()}
    later = [*mapped([one, three], "100"), *mapped([two], "200")]
    report = books.run(sending(books), later, try_number=2, side_effect=effect, **BATCHES)
    assert counts(report) == {"replayed": 2, "blocked": 1}
    assert two in change_of(report)
    assert asked == [([mapped([one], "100")[0], {"no": two}, mapped([three], "100")[0]], batch_id)]
    assert groups(books) == {batch_id: dict.fromkeys(names, "100")}
    books.resolve(two, "content_stands")
    again = books.run(sending(books), later, try_number=3, side_effect=effect, **BATCHES)
    assert counts(again) == {"replayed": 3}
    assert len(books.receiver.calls()) == 3


def test_a_batch_whose_new_content_was_claimed_and_not_sent_never_gets_the_old_id_back(books: Books) -> None:
    def send(documents: list[dict[str, Any]], batch_id: str, effect: Any, attempt: int) -> None:
        if attempt == 2:
            raise ValueError("no template")
        with effect:
            if attempt == 1:
                raise NotExecuted("closed")
            for each in documents:
                books.receiver.call(each["no"], amount=each["amount"], key=batch_id)

    names = numbered(3)
    books.run(send, mapped(names, "100"), **BATCHES)
    [old] = {row.batch_id for row in books.rows()}
    later = [*mapped(names[:1], "200"), *mapped(names[1:], "100")]
    assert counts(books.run(send, later, try_number=2, **BATCHES)) == {"failed": 3}
    assert counts(books.run(send, later, try_number=3, **BATCHES)) == {"executed": 3}
    [(new, sent)] = groups(books).items()
    assert new != old
    assert sent == {each["no"]: each["amount"] for each in later}


@pytest.mark.parametrize("proven", [True, False], ids=["failed", "refuted"])
def test_a_batch_with_new_content_is_repeated_as_it_was_under_an_id_of_its_own(
    books: Books, proven: bool
) -> None:
    breaks = NotExecuted("closed") if proven else TimeoutError()
    effect = External(verify=lambda: False, settle_after=timedelta(0))
    names = numbered(3)
    books.run(sending(books, breaks, sent=False), mapped(names, "100"), **BATCHES)
    [old] = {row.batch_id for row in books.rows()}
    later = [*mapped(["N-1"], "1"), *mapped(names[1:], "100"), *mapped(names[:1], "200")]
    report = books.run(sending(books), later, try_number=2, side_effect=effect, **BATCHES)
    assert counts(report) == {"executed": 4}
    assert old not in groups(books), "the receiver may know the old batch by the old id"
    assert {names[0]: "200", names[1]: "100", names[2]: "100"} in groups(books).values()


def test_a_batch_with_the_same_content_keeps_its_id(books: Books) -> None:
    books.run(sending(books, NotExecuted("closed"), sent=False), mapped(numbered(3), "100"), **BATCHES)
    [old] = {row.batch_id for row in books.rows()}
    books.run(sending(books), mapped(numbered(3), "100"), try_number=2, **BATCHES)
    assert {call["key"] for call in books.receiver.calls()} == {old}


# -- what has no content --------------------------------------------------------------------------------


class Frame:
    """A table whose text leaves its middle out."""

    __module__ = "pandas"

    def __str__(self) -> str:
        return "1.00 ... 1.00"

    __repr__ = __str__


@pytest.mark.parametrize(
    "value", [array("d", [1.0] * 2000), Frame(), iter([1]), {"deep": [Frame()]}], ids=type
)
def test_d01_what_nobody_can_compare_is_refused_before_anything_is_claimed(books: Books, value: Any) -> None:
    listed = [{"no": "A", "amount": "1", "rates": value}, *mapped(["B"], "2")]
    report = books.run(paying(books), listed, **KEY)
    assert counts(report) == {"failed": 1, "executed": 1}
    [(name, error)] = report.errors
    assert isinstance(error, DocumentError)
    assert "'A'" in f"{name}{error}"
    assert "rates" in str(error)
    assert "fingerprint_fields" in str(error)
    assert books.states() == {"B": "completed"}, "nothing was claimed for it"
    rules: dict[str, Any] = {"fingerprint_fields": ("amount",), **KEY}
    again = books.run(paying(books), listed, try_number=2, **rules)
    assert counts(again) == {"executed": 1, "replayed": 1}
    assert failure(again) is None, "what was refused is listed again"


def test_d01_two_mentions_with_different_lists_contradict_each_other(books: Books) -> None:
    rates = [1.0] * 2000
    corrected = [*rates[:1000], 9999.0, *rates[1001:]]
    listed = [{"no": "A", "amount": "1", "rates": each} for each in (rates, corrected)]
    report = books.run(paying(books), listed, **KEY)
    assert counts(report) == {"failed": 2}
    assert books.receiver.calls() == []
    books.run(paying(books), listed[:1], try_number=2, **KEY)
    assert "changed: rates" in change_of(books.run(paying(books), listed[1:], try_number=3, **KEY))


# -- observe --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["done", "in doubt", "rejected"])
def test_observe_mode_records_it_and_calls_under_a_key_of_its_own(books: Books, state: str) -> None:
    breaks = {"in doubt": TimeoutError(), "rejected": Rejected("closed")}.get(state)
    books.run(paying(books, breaks), mapped(["A"], "100"), **KEY)
    before = books.row("A")
    report = books.run(paying(books), mapped(["A"], "200"), try_number=2, mode="observe", **KEY)
    assert report.counts[Outcome.OBSERVED] == 1
    [event] = books.events("would_block")
    assert "changed: amount" in event.reason
    first, second = books.receiver.calls()
    assert first["key"] != second["key"]
    after = books.row("A")
    assert (after.state, after.fingerprint, after.idempotency_key) == (
        before.state, before.fingerprint, before.idempotency_key,
    )  # fmt: skip
