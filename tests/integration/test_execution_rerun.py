"""Reruns on purpose, executed: what a person has authorised happens once more, and nothing else does."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard.acts import reruns
from airflow_guard.core.effects import Database, External
from airflow_guard.core.errors import FollowUpFailed, InDoubt, NotExecuted, RerunRefused, ResolutionError
from airflow_guard.core.keys import reversal_key
from airflow_guard.core.states import State
from airflow_guard.testing import TestLedger
from tests.databases import databases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.databases import DatabaseUnderTest

pytestmark = databases("sqlite")
OF_EACH = databases("sqlite", "postgres_embedded", "mariadb")


@pytest.fixture
def ledger(database: DatabaseUnderTest) -> Iterator[TestLedger]:
    with TestLedger(database.url) as ledger:
        yield ledger


@dataclass
class Bank:
    """A receiver outside: what it was asked for, in order, as (what, key, first key)."""

    calls: list[tuple[str, str, Any]] = field(default_factory=list)
    breaks: dict[str, BaseException] = field(default_factory=dict)

    def _call(self, what: str, key: str, first: Any = None) -> None:
        if isinstance(self.breaks.get(what), NotExecuted):
            raise self.breaks.pop(what)
        self.calls.append((what, key, first))
        if what in self.breaks:
            raise self.breaks.pop(what)

    def pay(
        self, document: str, idempotency_key: str, generation: int, previous_result: Any
    ) -> dict[str, Any]:
        self._call("pay", idempotency_key, previous_result)
        return {"receipt": f"{document}/{generation}"}

    def reverse(self, previous_result: Any, idempotency_key: str, previous_idempotency_key: str) -> None:
        self._call("reverse", idempotency_key, previous_idempotency_key)

    @property
    def asked(self) -> list[str]:
        return [what for what, _, _ in self.calls]


def booked(ledger: TestLedger) -> list[tuple[str, int]]:
    with ledger.connection() as connection:
        return [
            (row[0], row[1])
            for row in connection.execute(sa.text("SELECT document, amount FROM booked ORDER BY number"))
        ]


def made(ledger: TestLedger) -> None:
    with ledger.connection() as connection:
        connection.execute(
            sa.text("CREATE TABLE booked (number integer, document varchar(20), amount integer)")
        )


def book(connection: sa.Connection, document: str, amount: int) -> None:
    count = connection.execute(sa.text("SELECT count(*) FROM booked")).scalar_one()
    connection.execute(
        sa.text("INSERT INTO booked VALUES (:number, :document, :amount)"),
        {"number": count, "document": document, "amount": amount},
    )


def posting(amount: int, breaks: BaseException | None = None) -> Callable[..., dict[str, Any]]:
    def post(document: str, connection: sa.Connection, generation: int) -> dict[str, Any]:
        book(connection, document, amount)
        if breaks is not None:
            raise breaks
        return {"amount": amount, "generation": generation}

    return post


def unpost(previous_result: dict[str, Any], document: str, connection: sa.Connection) -> None:
    book(connection, document, -previous_result["amount"])


REVERSED: dict[str, Any] = {"side_effect": Database(on_rerun=unpost), "operation": "post"}


@OF_EACH
def test_a_rerun_reverses_the_first_booking_before_the_second(ledger: TestLedger) -> None:
    """Wrong rate on the first run, corrected code on the second: one net booking, and it is the right one."""
    made(ledger)
    listed: dict[str, Any] = {"documents": ["S-1", "S-2", "S-3"], **REVERSED}
    assert ledger.run(posting(100), **listed).executed == 3
    first = ledger.row("S-1")
    ledger.authorise_rerun("S-1")
    again = ledger.run(posting(90), **listed)
    assert (again.executed, again.replayed, again.error) == (1, 2, None)
    assert booked(ledger) == [("S-1", 100), ("S-2", 100), ("S-3", 100), ("S-1", -100), ("S-1", 90)]
    row = ledger.row("S-1")
    assert first is not None
    assert row is not None
    assert (row.state, row.generation, row.attempt) == (State.COMPLETED, 2, 2)
    assert row.idempotency_key != first.idempotency_key
    # One shot: clearing the task again changes nothing, and what is replayed is the new result.
    assert ledger.run(posting(80), **listed).replayed == 3
    assert ledger.run(posting(80), document="S-1", **REVERSED).result == {"amount": 90, "generation": 2}
    assert len(booked(ledger)) == 5


@OF_EACH
def test_reversal_and_second_booking_commit_together_or_not_at_all(ledger: TestLedger) -> None:
    made(ledger)
    ledger.run(posting(100), document="S-1", **REVERSED)
    ledger.authorise_rerun("S-1")
    assert ledger.run(posting(90, ValueError("bad rate")), document="S-1", **REVERSED).failed == 1
    assert booked(ledger) == [("S-1", 100)]
    ledger.crash(posting(90), at="after", document="S-1", **REVERSED)
    ledger.expire_leases()
    assert booked(ledger) == [("S-1", 100)]
    # The authorisation is used, and belongs to the generation: its retries finish it, with the old result at hand.
    ledger.let_time_pass(timedelta(days=40))
    assert ledger.run(posting(90), document="S-1", **REVERSED).executed == 1
    assert booked(ledger) == [("S-1", 100), ("S-1", -100), ("S-1", 90)]


def test_clearing_alone_never_reruns_and_neither_does_what_is_over(ledger: TestLedger) -> None:
    made(ledger)
    ledger.run(posting(100), document="S-1", **REVERSED)
    for _ in range(2):
        assert ledger.run(posting(90), document="S-1", **REVERSED).replayed == 1
    ledger.authorise_rerun("S-1")
    ledger.let_time_pass(timedelta(hours=25))
    assert ledger.run(posting(90), document="S-1", **REVERSED).replayed == 1
    ledger.authorise_rerun("S-1")  # what is over can be authorised anew
    assert ledger.run(posting(90), document="S-1", **REVERSED).executed == 1


def test_without_on_rerun_somebody_must_say_that_the_first_effect_stays(ledger: TestLedger) -> None:
    bank = Bank()
    ledger.run(bank.pay, document="P-1")
    ledger.authorise_rerun("P-1")
    refused = ledger.run(bank.pay, document="P-1")
    assert refused.blocked == 1
    assert not refused.retryable
    assert isinstance(refused.errors[0][1], RerunRefused)
    assert "--without-reversal" in str(refused.error)
    row = ledger.row("P-1")
    assert row is not None
    assert row.state is State.COMPLETED
    assert bank.asked == ["pay"]
    ledger.let_time_pass(timedelta(hours=25))
    ledger.authorise_rerun("P-1", without_reversal=True)
    assert ledger.run(bank.pay, document="P-1").result == {"receipt": "P-1/2"}
    keys = {key for _, key, _ in bank.calls}
    assert len(keys) == 2
    assert bank.calls[1][2] == {"receipt": "P-1/1"}


def external(bank: Bank) -> dict[str, Any]:
    return {"document": "P-1", "side_effect": External(on_rerun=bank.reverse)}


@pytest.fixture
def bank(ledger: TestLedger) -> Bank:
    """A bank that has paid P-1, and a person who has authorised to pay it again."""
    bank = Bank()
    ledger.run(bank.pay, **external(bank))
    ledger.authorise_rerun("P-1")
    return bank


def test_an_effect_outside_is_reversed_under_a_key_of_its_own(ledger: TestLedger, bank: Bank) -> None:
    assert ledger.run(bank.pay, **external(bank)).executed == 1
    (_, first, _), (_, reversal, of), (_, second, previous) = bank.calls
    assert bank.asked == ["pay", "reverse", "pay"]
    assert of == first
    assert reversal == reversal_key(second)
    assert len({first, reversal, second}) == 3
    assert previous == {"receipt": "P-1/1"}
    assert ledger.run(bank.pay, **external(bank)).replayed == 1


@pytest.mark.parametrize("happened", [True, False])
def test_a_reversal_that_ended_inside_is_in_doubt_until_a_person_says_which(
    ledger: TestLedger, bank: Bank, happened: bool
) -> None:
    bank.breaks["reverse"] = TimeoutError("no answer")
    broken = ledger.run(bank.pay, **external(bank))
    assert broken.in_doubt == 1
    assert "--reversal-happened" in str(broken.errors[0][1])
    # The doubt about the payment is settled; that about the reversal is not, and nothing guesses.
    ledger.resolve("P-1", "did_not_happen")
    for _ in range(2):
        held = ledger.run(bank.pay, **external(bank))
        assert isinstance(held.errors[0][1], InDoubt)
        assert not held.retryable
        assert "--reversal-did-not-happen" in str(held.errors[0][1])
    assert bank.asked == ["pay", "reverse"]
    row = ledger.row("P-1")
    assert row is not None
    with pytest.raises(ResolutionError, match="reason"):
        reruns.settle_reversal(
            ledger._ledger, row_date(ledger), row.key_hash, happened=True, actor="ada", reason=""
        )
    reruns.settle_reversal(
        ledger._ledger, row_date(ledger), row.key_hash, happened=happened, actor="ada", reason="asked"
    )
    assert ledger.run(bank.pay, **external(bank)).executed == 1
    assert bank.asked == ["pay", "reverse", *([] if happened else ["reverse"]), "pay"]
    with pytest.raises(ResolutionError, match="No reversal"):
        reruns.settle_reversal(
            ledger._ledger, row_date(ledger), row.key_hash, happened=True, actor="ada", reason="asked"
        )


def row_date(ledger: TestLedger) -> Any:
    assert ledger._space is not None
    return ledger._space.key_date


def test_what_was_certainly_not_reversed_is_reversed_by_the_next_try(ledger: TestLedger, bank: Bank) -> None:
    bank.breaks["reverse"] = NotExecuted("refused")
    assert ledger.run(bank.pay, **external(bank)).failed == 1
    assert ledger.run(bank.pay, **external(bank)).executed == 1
    assert bank.asked == ["pay", "reverse", "pay"]


def test_what_was_reversed_is_not_reversed_again_when_the_second_effect_fails(
    ledger: TestLedger, bank: Bank
) -> None:
    bank.breaks["pay"] = NotExecuted("refused")
    assert ledger.run(bank.pay, **external(bank)).failed == 1
    assert ledger.run(bank.pay, **external(bank)).executed == 1
    assert bank.asked == ["pay", "reverse", "pay"]


def test_a_process_that_dies_after_the_reversal_leaves_a_doubt(ledger: TestLedger, bank: Bank) -> None:
    ledger.crash(bank.pay, at="before", **external(bank))
    ledger.expire_leases()
    assert ledger.run(bank.pay, **external(bank)).in_doubt == 1
    ledger.resolve("P-1", "did_not_happen")
    assert ledger.run(bank.pay, **external(bank)).executed == 1
    assert bank.asked == ["pay", "reverse", "pay"]


def test_changed_content_is_executed_where_a_rerun_is_authorised(ledger: TestLedger) -> None:
    bank = Bank()
    how: dict[str, Any] = {"document_key": "id", "side_effect": External(on_rerun=bank.reverse)}
    ledger.run(bank.pay, document={"id": "P-1", "amount": "10.00"}, **how)
    corrected = {"id": "P-1", "amount": "9.00"}
    assert ledger.run(bank.pay, document=corrected, **how).blocked == 1
    ledger.authorise_rerun("P-1")
    assert ledger.run(bank.pay, document=corrected, **how).executed == 1
    assert ledger.run(bank.pay, document=corrected, **how).replayed == 1


def test_documents_of_a_batch_are_rerun_in_a_batch_of_their_own(ledger: TestLedger) -> None:
    sent: list[tuple[str, tuple[str, ...], Any]] = []

    def send(documents: list[str], batch_id: str, previous_result: Any, generation: int) -> str:
        sent.append((f"send {generation}", tuple(documents), previous_result))
        return batch_id

    def recall(documents: list[str], previous_result: list[str], previous_idempotency_key: list[str]) -> None:
        sent.append(("recall", tuple(documents), previous_result))
        assert len(previous_idempotency_key) == len(documents)

    how: dict[str, Any] = {
        "call_per": "batch", "batch_size": 3, "side_effect": External(on_rerun=recall), "operation": "send",
    }  # fmt: skip
    ledger.run(send, documents=["a", "b", "c"], **how)
    row = ledger.row("a")
    assert row is not None
    ledger.authorise_rerun("b")
    ledger.authorise_rerun("c")
    again = ledger.run(send, documents=["a", "b", "c", "d"], **how)
    assert (again.executed, again.replayed) == (3, 1)
    assert sorted(sent[1:]) == [
        ("recall", ("b", "c"), [row.batch_id] * 2),
        ("send 1", ("d",), None),
        ("send 2", ("b", "c"), [row.batch_id] * 2),
    ]


def test_a_batch_reverses_only_what_is_to_be_reversed(ledger: TestLedger) -> None:
    recalled: list[str] = []

    def recall(documents: list[str]) -> None:
        recalled.extend(documents)

    def send(documents: list[str]) -> int:
        return len(documents)

    how: dict[str, Any] = {"call_per": "batch", "side_effect": External(on_rerun=recall), "operation": "send"}
    ledger.run(send, documents=["a", "b", "c"], **how)
    ledger.authorise_rerun("a")
    ledger.authorise_rerun("b", without_reversal=True)
    assert ledger.run(send, documents=["a", "b", "c"], **how).executed == 2
    assert recalled == ["a"]


def test_r03_a_failed_archive_repeats_nothing_and_a_forced_rerun_says_what_was_done(
    ledger: TestLedger,
) -> None:
    """cases.md R03: at new year the archive folder was missing, and processed files were sent again."""
    bank, archive = Bank(), {"2010": False}

    def send(document: str, idempotency_key: str, effect: Any) -> dict[str, str]:
        with effect:
            bank._call("pay", idempotency_key)
        if not archive["2010"]:
            raise FileNotFoundError("archive/2010")
        return {"file": document}

    how: dict[str, Any] = {
        "document": "ach-0104.txt", "business_date": "2010-01-04",
        "side_effect": External(on_rerun=bank.reverse),
    }  # fmt: skip
    first = ledger.run(send, **how)
    assert isinstance(first.errors[0][1], FollowUpFailed)
    assert "archive/2010" in str(first.error)
    archive["2010"] = True
    for _ in range(2):  # a clear, another run
        assert isinstance(ledger.run(send, **how).errors[0][1], FollowUpFailed)
    assert bank.asked == ["pay"]
    with pytest.raises(ResolutionError, match="--followed-up"):
        ledger.authorise_rerun("ach-0104.txt")
    ledger.resolve("ach-0104.txt", "followed_up")
    with pytest.raises(ResolutionError, match="A reason is missing"):
        ledger.authorise_rerun("ach-0104.txt", reason=" ")
    assert ledger.run(send, **how).replayed == 1
    ledger.authorise_rerun("ach-0104.txt", reason="the bank asked for the file again")
    assert ledger.run(send, **how).executed == 1
    assert bank.asked == ["pay", "reverse", "pay"]


def test_an_authorised_rerun_belongs_to_the_work_of_its_run(ledger: TestLedger) -> None:
    """Another automatic run with the same key stays unclear, authorised or not."""
    bank = Bank()
    how: dict[str, Any] = {"document": "P-1", "run_type": "scheduled"}
    ledger.run(bank.pay, run_id="scheduled__1", **how)
    ledger.authorise_rerun("P-1", without_reversal=True)
    assert ledger.run(bank.pay, run_id="scheduled__2", **how).blocked == 1
    # As a backfill with --reprocess-behavior completed does: the same run, its type rewritten.
    again = ledger.run(bank.pay, document="P-1", run_type="backfill", run_id="scheduled__1")
    assert again.executed == 1
    assert bank.asked == ["pay", "pay"]
