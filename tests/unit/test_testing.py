"""``airflow_guard.testing``: what a user's own tests do with it."""

from __future__ import annotations

import asyncio
import doctest
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

import airflow_guard.testing
from airflow_guard.core.effects import External
from airflow_guard.core.errors import (
    ConfigurationError,
    ContentChanged,
    FollowUpFailed,
    InDoubt,
    InDoubtUnsettled,
    NotExecuted,
    OtherRun,
    Rejected,
    ResolutionError,
    TooManyRejected,
)
from airflow_guard.core.states import FollowUp, Phase, State
from airflow_guard.testing import TestLedger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_guard.testing import Moment

DAY = "2026-01-31"


@pytest.fixture
def ledger() -> Iterator[TestLedger]:
    with TestLedger() as ledger:
        yield ledger


@pytest.fixture
def bank() -> list[str]:
    """The documents that the bank has."""
    return []


@pytest.fixture
def pay(bank: list[str]) -> Any:
    def pay(document: str, idempotency_key: str) -> dict[str, str]:
        assert len(idempotency_key) == 32
        bank.append(document)
        return {"paid": document}

    return pay


def test_the_examples_run() -> None:
    assert doctest.testmod(airflow_guard.testing).failed == 0


def test_it_needs_no_airflow_and_leaves_pytest_alone() -> None:
    assert TestLedger.__test__ is False, "pytest does not take it for a test class"
    code = "import sys, airflow_guard.testing; sys.exit('airflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- runs -----------------------------------------------------------------------------------------------


def test_a_second_run_does_not_pay_again(ledger: TestLedger, pay: Any, bank: list[str]) -> None:
    first = ledger.run(pay, documents=["A", "B"], business_date=DAY)
    assert (first.executed, first.replayed, first.error) == (2, 0, None)
    figures = {"listed": 2, "done": 2}
    assert first.summary == {"business_date": DAY, "documents": 2, "executed": 2, "figures": figures}
    assert first.result == first.summary
    second = ledger.run(pay, documents=lambda: iter(["A", "B", "C"]), business_date=DAY)
    assert (second.executed, second.replayed) == (1, 2)
    assert bank == ["A", "B", "C"]
    assert any("done before by run manual__test, test.pay try 1" in line for line in second.lines)
    assert ledger.run(pay, documents=["A"], business_date="2026-02-01").executed == 1
    assert ledger.run(pay, documents=["A"], operation="other").executed == 1


def test_one_document_and_the_whole_run_return_their_result(ledger: TestLedger, pay: Any) -> None:
    assert ledger.run(pay, document="A").result == {"paid": "A"}
    assert ledger.run(pay, document="A").result == {"paid": "A"}

    def close(business_date: Any) -> str:
        return business_date.isoformat()

    assert ledger.run(close).result == DAY
    again = ledger.run(close)
    assert (again.result, again.replayed) == (DAY, 1)


def test_errors_are_told_and_not_raised(ledger: TestLedger, bank: list[str]) -> None:
    def pay(document: str, effect: Any) -> None:
        if document == "rejected":
            raise Rejected("account closed")
        if document == "failed":
            raise NotExecuted("receiver closed")
        with effect:
            bank.append(document)
            if document == "doubt":
                raise TimeoutError("no answer")

    run = ledger.run(pay, documents=["ok", "rejected", "failed", "doubt"], max_rejected=1)
    assert (run.executed, run.rejected, run.failed, run.in_doubt, run.blocked, run.waiting) == (
        1,
        1,
        1,
        1,
        0,
        0,
    )
    assert run.retryable
    assert [name for name, _ in run.errors] == ["failed", "doubt"]
    assert isinstance(dict(run.errors)["doubt"].__cause__, TimeoutError)
    row = ledger.row("rejected")
    assert row is not None
    assert (row.state, row.error) == (State.REJECTED, "account closed")
    assert ledger.row("nobody") is None
    only_rejected = ledger.run(pay, documents=["ok", "rejected"], run_id="manual__another")
    assert isinstance(only_rejected.error, TooManyRejected)


def test_rules_are_those_of_the_operator(ledger: TestLedger, pay: Any) -> None:
    def listing(folder: str, business_date: Any) -> list[dict[str, str]]:
        return [{"no": f"{folder}-{business_date:%d}", "amount": "1.00"}]

    def post(payload: dict[str, str], factor: int) -> str:
        return payload["amount"] * factor

    parameters: dict[str, Any] = {
        "documents": listing,
        "document_key": "no",
        "op_kwargs": {"folder": "in", "factor": 2},
        "max_workers": 4,
        "ledger_conn_id": "core_banking",
        "wait_timeout": timedelta(hours=2),
        "fingerprint_fields": ["amount"],
        "guarded_from": "2026-01-01",
        "retired_operations": ["old"],
        "deferrable": True,
    }
    assert ledger.run(post, **parameters).executed == 1
    row = ledger.row("in-31")
    assert row is not None
    assert row.result == '"1.001.00"'
    changed = ledger.run(post, **parameters | {"documents": [{"no": "in-31", "amount": "2.00"}]})
    assert isinstance(changed.errors[0][1], ContentChanged)
    assert changed.blocked == 1
    with pytest.raises(TypeError, match="documets"):
        ledger.run(pay, documets=["A"])
    with pytest.raises(ConfigurationError, match="connection"):
        ledger.run(pay, documents=["A"], side_effect="database")
    with pytest.raises(ConfigurationError, match="on_duplicate"):
        ledger.run(pay, documents=["A"], on_duplicate="never")


def test_runs_of_a_schedule_meet_as_in_airflow(ledger: TestLedger, pay: Any, bank: list[str]) -> None:
    for number in (1, 2):
        run = ledger.run(pay, documents=["A"], run_type="scheduled", run_id=f"scheduled__{number}")
    assert isinstance(run.error, OtherRun)
    assert (
        ledger.run(pay, documents=["A"], on_other_run="replay", run_type="scheduled", run_id="s3").replayed
        == 1
    )
    assert bank == ["A"]


def test_coroutines_are_run(ledger: TestLedger, bank: list[str]) -> None:
    async def pay(document: str) -> str:
        await asyncio.sleep(0)
        bank.append(document)
        return document

    async def knows(document: str) -> bool:
        await asyncio.sleep(0)
        return document in bank

    effect = External(verify=knows, settle_after=timedelta(0))
    assert ledger.run(pay, document="A").result == "A"
    ledger.crash(pay, at="after", document="B", side_effect=effect)
    ledger.expire_leases()
    assert ledger.run(pay, document="B", side_effect=effect).replayed == 1
    assert bank == ["A", "B"]


def test_business_rows_are_written_and_looked_at(ledger: TestLedger) -> None:
    with ledger.connection() as connection:
        connection.execute(sa.text("CREATE TABLE posting (no TEXT, amount TEXT)"))

    def post(payload: dict[str, str], connection: sa.Connection) -> None:
        connection.execute(sa.text("INSERT INTO posting VALUES (:no, :amount)"), payload)
        if payload["amount"] == "bad":
            raise ValueError(payload["amount"])

    listed = [{"no": "A", "amount": "1"}, {"no": "B", "amount": "bad"}]
    run = ledger.run(post, documents=listed, document_key="no", side_effect="database")
    assert (run.executed, run.failed) == (1, 1)
    with ledger.connection() as connection:
        assert connection.execute(sa.text("SELECT no FROM posting")).scalars().all() == ["A"]


def test_a_callable_that_runs_beside_itself_waits(ledger: TestLedger, bank: list[str]) -> None:
    seen = []

    def pay(document: str) -> None:
        bank.append(document)
        if not seen:
            seen.append(None)
            seen.append(ledger.run(pay, document="A", operation="pay"))

    ledger.run(pay, document="A")
    assert seen[1].waiting == 1
    assert seen[1].retryable
    assert bank == ["A"]


# -- crashes --------------------------------------------------------------------------------------------


def takes_effect(bank: list[str]) -> Any:
    def pay(document: str, effect: Any) -> str:
        with effect:
            bank.append(document)
        return document

    return pay


@pytest.mark.parametrize("windowed", [True, False])
@pytest.mark.parametrize(
    ("at", "paid", "phase"),
    [("before", 0, Phase.NONE), ("inside", 0, Phase.BEGUN), ("after", 1, Phase.BEGUN)],
)  # fmt: skip
def test_what_a_crash_leaves(
    ledger: TestLedger, pay: Any, bank: list[str], windowed: bool, at: Moment, paid: int, phase: Phase
) -> None:
    act = takes_effect(bank) if windowed else pay
    ledger.crash(act, at=at, document="A")
    row = ledger.row("A")
    assert row is not None
    assert (row.state, row.phase, row.lease_over) == (State.IN_PROGRESS, phase, False)
    assert len(bank) == paid
    assert ledger.run(act, document="A").waiting == 1
    ledger.expire_leases()
    after = ledger.run(act, document="A")
    if at == "before":
        assert (after.executed, bank) == (1, ["A"])
    else:
        assert isinstance(after.error, InDoubt)
        assert len(bank) == paid


def test_a_crash_in_the_follow_up(ledger: TestLedger, pay: Any, bank: list[str]) -> None:
    ledger.crash(takes_effect(bank), at="follow_up", document="A")
    row = ledger.row("A")
    assert row is not None
    assert (row.state, row.follow_up) == (State.COMPLETED, FollowUp.PENDING)
    ledger.expire_leases()
    assert isinstance(ledger.run(takes_effect(bank), document="A").error, FollowUpFailed)
    ledger.resolve("A", "followed_up")
    assert ledger.run(takes_effect(bank), document="A").replayed == 1
    assert bank == ["A"]
    with pytest.raises(ConfigurationError, match="follow_up"):
        ledger.crash(pay, at="follow_up", document="B")


@pytest.mark.parametrize("at", ["before", "inside", "after"])
def test_a_crash_in_a_transaction_leaves_no_rows(ledger: TestLedger, at: Moment) -> None:
    with ledger.connection() as connection:
        connection.execute(sa.text("CREATE TABLE posting (no TEXT)"))

    def post(document: str, connection: sa.Connection) -> None:
        connection.execute(sa.text("INSERT INTO posting VALUES (:no)"), {"no": document})

    ledger.crash(post, at=at, of="B", documents=["A", "B", "C"], side_effect="database")
    with ledger.connection() as connection:
        assert connection.execute(sa.text("SELECT no FROM posting")).scalars().all() == ["A"]
    ledger.expire_leases()
    after = ledger.run(post, documents=["A", "B", "C"], side_effect="database")
    assert (after.replayed, after.executed) == (1, 2)


def test_a_crash_at_one_of_many_documents(ledger: TestLedger, pay: Any, bank: list[str]) -> None:
    ledger.crash(pay, of="C", documents=["A", "B", "C", "D"])
    assert bank == ["A", "B"]
    ledger.expire_leases()
    after = ledger.run(pay, documents=["A", "B", "C", "D"])
    assert (after.replayed, after.in_doubt, after.executed) == (2, 1, 1)


def test_a_crash_in_a_batch(ledger: TestLedger, bank: list[str]) -> None:
    def send(documents: list[dict[str, str]], batch_id: str) -> None:
        bank.extend(document["no"] for document in documents)

    batches: dict[str, Any] = {
        "documents": [{"no": name} for name in "ABCD"],
        "document_key": "no",
        "call_per": "batch",
        "batch_size": 2,
    }
    ledger.crash(send, at="inside", of="C", **batches)
    ledger.expire_leases()
    assert ledger.run(send, **batches).in_doubt == 2
    ledger.resolve("D", "did_not_happen")
    assert ledger.run(send, **batches).executed == 2
    assert bank == ["A", "B", "C", "D"]


def test_a_crash_with_several_workers(ledger: TestLedger, pay: Any, bank: list[str]) -> None:
    ledger.crash(pay, at="after", of="A", documents=["A", "B", "C"], max_workers=3)
    ledger.expire_leases()
    ledger.run(pay, documents=["A", "B", "C"], max_workers=3)
    assert bank.count("A") == 1
    row = ledger.row("A")
    assert row is not None
    assert row.state is State.IN_DOUBT


def test_a_crash_that_does_not_come_is_a_failed_test(ledger: TestLedger, pay: Any) -> None:
    ledger.run(pay, document="A")
    with pytest.raises(AssertionError, match="replayed 1"):
        ledger.crash(pay, document="A")
    with pytest.raises(AssertionError, match="executed 1"):
        ledger.crash(pay, of="C", documents=["B"])
    with pytest.raises(ConfigurationError, match="sometime"):
        ledger.crash(pay, at="sometime", document="B")  # type: ignore[arg-type]


# -- time and people ------------------------------------------------------------------------------------


def test_time_passes_for_settle_after_and_the_receivers_memory(
    ledger: TestLedger, pay: Any, bank: list[str]
) -> None:
    asks = External(verify=lambda document: document in bank, settle_after=timedelta(hours=1))
    ledger.crash(pay, at="inside", document="A", side_effect=asks)
    ledger.expire_leases()
    assert isinstance(ledger.run(pay, document="A", side_effect=asks).error, InDoubtUnsettled)
    ledger.let_time_pass(timedelta(hours=1))
    assert ledger.run(pay, document="A", side_effect=asks).executed == 1

    remembers = External(in_doubt="retry", receiver_remembers=timedelta(hours=24))
    ledger.crash(pay, at="after", document="B", side_effect=remembers)
    ledger.let_time_pass(timedelta(hours=23))
    assert ledger.run(pay, document="B", side_effect=remembers).executed == 1
    ledger.crash(pay, at="after", document="C", side_effect=remembers)
    ledger.let_time_pass(timedelta(hours=25))
    assert ledger.run(pay, document="C", side_effect=remembers).in_doubt == 1
    assert bank == ["A", "B", "B", "C"]


def test_a_person_resolves(ledger: TestLedger, pay: Any, bank: list[str]) -> None:
    ledger.crash(pay, at="inside", document="A")
    with pytest.raises(ResolutionError):
        ledger.resolve("A", "happened")
    ledger.expire_leases()
    ledger.resolve("A", "happened", actor="ada", reason="found at the bank")
    row = ledger.row("A")
    assert row is not None
    assert "ada: found at the bank" in (row.error or "")
    assert ledger.run(pay, document="A").replayed == 1
    assert bank == []
    with pytest.raises(ResolutionError, match="does not know"):
        ledger.resolve("B", "happened")


def test_rows_of_another_operation_and_date(ledger: TestLedger, pay: Any) -> None:
    ledger.run(pay, document="A", operation="post", business_date="2026-01-30")
    ledger.run(pay, document="B")
    assert ledger.row("A") is None
    assert ledger.row("A", operation="post", business_date="2026-01-30") is not None


def test_nothing_was_run_yet(ledger: TestLedger) -> None:
    with pytest.raises(ConfigurationError, match="Nothing was run"):
        ledger.row("A")


def test_two_ledgers_in_one_database_do_not_meet(tmp_path: Path, pay: Any, bank: list[str]) -> None:
    url = f"sqlite:///{tmp_path}/shared.db"
    for _ in range(2):
        with TestLedger(url) as ledger:
            assert ledger.run(pay, document="A").executed == 1
    assert bank == ["A", "A"]


def test_the_temporary_file_is_gone_afterwards(pay: Any) -> None:
    with TestLedger() as ledger:
        ledger.run(pay, document="A")
        with ledger.connection() as connection:
            file = connection.exec_driver_sql("PRAGMA database_list").first()
    assert file is not None
    assert not Path(file[2]).exists()
