"""Keys that may not run, or not yet: other runs, deployments, shapes and times; observing first."""

from __future__ import annotations

import os
import socket
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_guard.core.errors import (
    InProgressElsewhere,
    KeyDrift,
    NotGuardedThen,
    OtherDeployment,
    OtherRun,
)
from tests.chaos import fixtures
from tests.chaos.books import DATABASE, DAY, counts, failure, mapped, numbered

if TYPE_CHECKING:
    from tests.chaos.books import Books

pytestmark = fixtures.ONE_OF_EACH
books = fixtures.books
OTHER_RUN = "scheduled__2026-02-01"


# -- in progress elsewhere ------------------------------------------------------------------------------


def test_a_held_document_is_waited_for_and_names_its_holder(books: Books) -> None:
    seen: list[Any] = []

    def pay(document: str) -> None:
        books.receiver.call(document)
        if document == "B":
            seen.append(books.run(books.pay, ["A", "B", "C", "D"], try_number=2, host="worker-2"))

    books.run(pay, ["A", "B", "C"], host="worker-1")
    report = seen[0]
    assert counts(report)["executed"] == 1, "first it does all it can"
    assert counts(report)["waiting"] >= 1
    error = next(error for _, error in report.errors if isinstance(error, InProgressElsewhere))
    row = books.row("B")
    assert row.last_run is not None
    for told in (
        "worker-1",
        f"pid {os.getpid()}",
        f"{row.last_run.started_at:%Y-%m-%d %H:%M:%S} UTC",
        "try 1",
    ):
        assert told in str(error)
        assert told in report.waiting[-1].holder
    assert {held.document for held in report.waiting} <= {"A", "B", "C"}
    assert all(held.key_hash == books.row(held.document).key_hash for held in report.waiting)
    assert failure(report).retryable
    assert sorted(books.receiver.documents()) == ["A", "B", "C", "D"]
    assert socket.gethostname() not in str(error)


def test_a_try_that_goes_on_after_a_wait_counts_what_it_did_before(books: Books) -> None:
    seen: list[Any] = []
    waits = books.task(books.pay, try_number=2)

    def pay(document: str) -> None:
        books.receiver.call(document)
        seen.append(waits.run(lambda: ["A", "B"]))

    books.run(pay, ["A"])
    assert counts(seen[0]) == {"waiting": 1, "executed": 1}
    resumed = books.task(books.pay, try_number=2, resumed=waits.task_run_id)
    report = resumed.run(lambda: ["A", "B"])
    assert counts(report) == {"executed": 1, "replayed": 1}
    assert failure(report) is None
    assert len(books.events("blocked")) == 1
    tries = books.database.tables.task_run
    with books.database.engine.connect() as connection:
        found = connection.execute(
            tries.select().where(tries.c.dag_id == books.dag_id).order_by(tries.c.id)
        ).all()
    assert [(row.try_number, row.outcome) for row in found] == [(1, "success"), (2, "success")]


# -- whose key it is ------------------------------------------------------------------------------------


def test_another_automatic_run_fails_whatever_the_state(books: Books) -> None:
    def pay(document: str, effect: Any) -> None:
        if document == "failed":
            raise ValueError("no rate")
        with effect:
            if document == "doubt":
                raise TimeoutError
            books.receiver.call(document)

    books.run(pay, ["done", "failed", "doubt"])
    report = books.run(books.pay, ["done", "failed", "doubt", "new"], run_id=OTHER_RUN)
    assert counts(report) == {"blocked": 3, "executed": 1}
    assert all(isinstance(error, OtherRun) for _, error in report.errors)
    for told in ("run scheduled__2026-01-31", "cycle", "business_date", 'on_other_run="replay"'):
        assert told in str(report.errors[0][1])
    assert not failure(report).retryable
    assert books.receiver.documents() == ["done", "new"]
    backfill = books.run(books.pay, ["done"], run_id="backfill__2026-01-31", run_type="backfill")
    assert counts(backfill) == {"blocked": 1}


def test_a_manual_run_replays_and_listing_again_may_be_normal(books: Books) -> None:
    books.run(books.pay, ["A"])
    assert counts(books.run(books.pay, ["A"], run_id="manual__1", run_type="manual")) == {"replayed": 1}
    assert counts(books.run(books.pay, ["A"], run_id=OTHER_RUN, on_other_run="replay")) == {"replayed": 1}
    assert books.receiver.documents() == ["A"]


def test_once_per_document_holds_on_any_date_and_for_any_run(books: Books) -> None:
    rules: dict[str, Any] = {"once_per": "document"}
    books.run(books.pay, ["A"], **rules)
    later = books.run(books.pay, ["A", "B"], day=date(2026, 2, 1), run_id=OTHER_RUN, **rules)
    assert counts(later) == {"replayed": 1, "executed": 1}
    assert books.receiver.documents() == ["A", "B"]


def test_cycles_of_one_date_are_several_keys(books: Books) -> None:
    for cycle in ("morning", "evening", "morning"):
        books.run(books.pay, ["A"], cycle=cycle, run_id=f"scheduled__{cycle}")
    assert books.receiver.documents() == ["A", "A"]


def test_another_deployment_neither_replays_nor_executes(books: Books) -> None:
    books.run(books.pay, ["A"], deployment="laptop")
    report = books.run(books.pay, ["A", "B"], deployment="production")
    assert counts(report) == {"blocked": 1, "executed": 1}
    error = report.errors[0][1]
    assert isinstance(error, OtherDeployment)
    assert "'laptop'" in str(error)
    assert not failure(report).retryable
    assert books.receiver.documents() == ["A", "B"]
    first, second = books.receiver.calls()
    assert first["key"] != second["key"]


def test_two_deployments_never_share_a_key_at_the_receiver(books: Books) -> None:
    books.run(books.pay, ["A"], deployment="laptop", operation="one")
    other = books.task(books.pay, deployment="production", operation="one")
    space = other._try.space
    assert books.receiver.calls()[0]["key"] != space.hasher().idempotency_key(books.row("A").key_hash)


# -- before the ledger kept watch -----------------------------------------------------------------------


def test_dates_before_guarded_from_fail_before_the_callable(books: Books) -> None:
    report = books.run(books.pay, ["A"], guarded_from=date(2026, 2, 1))
    assert counts(report) == {"blocked": 1}
    assert isinstance(failure(report), NotGuardedThen)
    assert "guarded_from=2026-02-01" in str(failure(report))
    assert not failure(report).retryable
    assert books.receiver.calls() == []
    assert books.rows() == [], "nothing was claimed"
    assert counts(books.run(books.pay, ["A"], guarded_from=DAY, try_number=2)) == {"executed": 1}
    # What the ledger does know is replayed, whatever guarded_from says.
    assert counts(books.run(books.pay, ["A"], guarded_from=date(2026, 2, 1), try_number=3)) == {"replayed": 1}


def test_a_later_try_of_a_run_that_ran_unguarded_does_not_run(books: Books) -> None:
    """The first try ran before the package was installed: what it did, the ledger cannot know."""
    report = books.run(books.pay, ["A"], try_number=2, run_after_at=datetime.now(UTC) - timedelta(hours=1))
    assert isinstance(failure(report), NotGuardedThen)
    command = f'airflow-guard adopt --namespace {books.dag_id} --operation post --csv done.csv --reason "…"'
    assert command in str(failure(report))
    assert books.receiver.calls() == []


def test_a_later_try_is_fine_where_the_ledger_saw_the_run_or_its_time(books: Books) -> None:
    now = datetime.now(UTC)
    assert counts(books.run(books.pay, ["A"], try_number=1, run_after_at=now - timedelta(hours=1))) == {
        "executed": 1
    }
    assert counts(books.run(books.pay, ["A", "B"], try_number=2, run_after_at=now - timedelta(hours=1))) == {
        "replayed": 1, "executed": 1,
    }  # fmt: skip
    due = now + timedelta(hours=1)
    later = books.run(
        books.pay, ["C"], run_id=OTHER_RUN, try_number=2, day=date(2026, 2, 1), run_after_at=due
    )
    assert counts(later) == {"executed": 1}
    earlier = books.run(
        books.pay,
        ["C"],
        run_id="scheduled__old",
        try_number=2,
        day=date(2026, 1, 1),
        run_after_at=now - timedelta(days=2),
    )
    assert isinstance(failure(earlier), NotGuardedThen)


NOW = datetime.now(UTC)


@pytest.mark.parametrize(
    ("code_since_at", "run_began_at", "says"),
    [
        (NOW - timedelta(hours=2), NOW - timedelta(hours=1), None),
        (NOW - timedelta(minutes=59), NOW - timedelta(hours=1), "its code may be newer"),
        (NOW - timedelta(hours=1, seconds=30), NOW - timedelta(hours=1), "its code may be newer"),
        (NOW - timedelta(hours=2), None, "was cleared"),
        (None, NOW - timedelta(hours=1), "does not tell"),
    ],
    ids=["older_code", "newer_code", "clocks_may_differ", "cleared", "unknown"],
)
def test_d08_a_run_whose_first_try_died_before_its_first_commit(
    books: Books, code_since_at: datetime | None, run_began_at: datetime | None, says: str | None
) -> None:
    """It left nothing in the ledger: it goes on by itself where it cannot have run unguarded."""
    report = books.run(
        books.pay, ["A"], try_number=2, run_after_at=NOW - timedelta(hours=1),
        code_since_at=code_since_at, run_began_at=run_began_at,
    )  # fmt: skip
    if says is None:
        assert (counts(report), books.receiver.documents()) == ({"executed": 1}, ["A"])
        return
    assert isinstance(failure(report), NotGuardedThen)
    assert says in str(failure(report))
    assert books.receiver.calls() == []


# -- another shape --------------------------------------------------------------------------------------


def test_a_renamed_operation_does_not_make_history_look_undone(books: Books) -> None:
    books.run(books.pay, ["A", "B"], operation="post", task_id="post")
    with pytest.raises(KeyDrift) as caught:
        books.run(books.pay, ["A", "C"], operation="post_statement", task_id="post_statement", try_number=1)
    for told in ("'post'", "operation='post'", "airflow-guard rename", "retired_operations=['post']"):
        assert told in str(caught.value)
    assert not caught.value.retryable
    assert books.receiver.documents() == ["A", "B"]
    mapped_back = books.run(books.pay, ["A", "C"], operation="post", task_id="post_statement")
    assert counts(mapped_back) == {"replayed": 1, "executed": 1}


def test_a_retired_operation_was_other_work(books: Books) -> None:
    books.run(books.pay, ["A"], operation="post", task_id="post")
    report = books.run(books.pay, ["A"], operation="notify", task_id="notify", retired_operations=("post",))
    assert counts(report) == {"executed": 1}
    assert books.receiver.documents() == ["A", "A"]


def test_another_task_of_the_dag_is_no_drift(books: Books) -> None:
    books.run(books.pay, ["A"], operation="post", task_id="post")
    assert counts(
        books.run(books.pay, ["A"], operation="notify", task_id="notify", dag_task_ids={"post"})
    ) == {"executed": 1}


def test_other_documents_of_the_renamed_task_are_no_drift(books: Books) -> None:
    books.run(books.pay, ["A"], operation="post", task_id="post")
    assert counts(books.run(books.pay, ["B"], operation="post2", task_id="post2")) == {"executed": 1}


@pytest.mark.parametrize("change", ["cycle", "documents", "whole run", "once_per"])
def test_a_new_cycle_documents_or_once_per_is_drift(books: Books, change: str) -> None:
    before: dict[str, Any] = {"documents": ["A"]}
    after: dict[str, Any] = {"documents": ["A"]}
    if change == "cycle":
        after["cycle"] = "evening"
    elif change == "documents":
        before = {"documents": None}
    elif change == "whole run":
        after = {"documents": None}
    else:
        after["once_per"] = "document"
    books.run(books.pay, before.pop("documents"), **before)
    with pytest.raises(KeyDrift):
        books.run(books.pay, after.pop("documents"), try_number=2, **after)
    assert len(books.receiver.calls()) == 1


# -- observe, then enforce ------------------------------------------------------------------------------


def test_observe_always_calls_and_records_what_it_would_have_blocked(
    books: Books, caplog: pytest.LogCaptureFixture
) -> None:
    observe: dict[str, Any] = {"mode": "observe", "document_key": "no"}

    def pay(document: str, payload: dict[str, str]) -> None:
        books.receiver.call(document, amount=payload["amount"])

    assert counts(books.run(pay, mapped(["A", "B"]), **observe)) == {"executed": 2}
    again = books.run(pay, [*mapped(["A"]), *mapped(["B"], "11.00"), *mapped(["C"])], try_number=2, **observe)
    assert counts(again) == {"observed": 2, "executed": 1}
    assert failure(again) is None
    assert books.receiver.documents() == ["A", "B", "C", "A", "B"], "as if the guard were not there"
    assert len(books.events("would_block")) == 2
    assert caplog.text.count("observe: would have blocked") == 2
    assert "changed: amount" in caplog.text
    other = books.run(pay, mapped(["A"]), run_id=OTHER_RUN, **observe)
    assert counts(other) == {"observed": 1}

    enforced = books.run(pay, mapped(["A", "B", "C", "D"]), try_number=3, document_key="no")
    assert counts(enforced) == {"replayed": 3, "executed": 1}
    assert books.receiver.documents()[-1] == "D"


def test_observe_calls_what_is_in_doubt_held_or_unguarded(
    books: Books, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(document: str) -> None:
        raise TimeoutError

    seen: list[Any] = []

    def holding(document: str) -> None:
        seen.append(books.run(books.pay, ["B"], try_number=2, mode="observe"))

    books.run(breaks, ["A"])
    books.run(holding, ["B"])
    assert counts(books.run(books.pay, ["A"], try_number=2, mode="observe")) == {"observed": 1}
    assert counts(seen[0]) == {"observed": 1}
    late = {"run_id": "scheduled__late", "day": date(2026, 1, 2), "try_number": 2}
    assert counts(books.run(books.pay, ["C"], mode="observe", **late)) == {"executed": 1}
    assert "would have blocked unknown keys" in caplog.text
    assert sorted(books.receiver.documents()) == ["A", "B", "C"]


def test_observe_in_the_database_commits_what_the_callable_writes(books: Books) -> None:
    rules: dict[str, Any] = {"mode": "observe", "side_effect": DATABASE}
    books.run(books.post, ["A"], **rules)
    assert counts(books.run(books.post, ["A", "B"], try_number=2, **rules)) == {"observed": 1, "executed": 1}
    assert sorted(books.posted()) == ["A", "A", "B"]
    assert counts(books.run(books.post, ["A", "B"], try_number=3, side_effect=DATABASE)) == {"replayed": 2}


@pytest.mark.parametrize("database", [True, False])
def test_observe_calls_batches_too(books: Books, database: bool) -> None:
    def send(documents: list[str]) -> None:
        for document in documents:
            books.receiver.call(document, of=len(documents))

    def post(documents: list[str], connection: Any) -> None:
        for document in documents:
            books.post(document, connection)

    rules: dict[str, Any] = {"mode": "observe", "call_per": "batch", "batch_size": 3}
    if database:
        rules["side_effect"] = DATABASE
    act = post if database else send
    assert counts(books.run(act, numbered(4), **rules)) == {"executed": 4}
    assert counts(books.run(act, numbered(5), try_number=2, **rules)) == {"observed": 4, "executed": 1}
    assert len(books.posted() if database else books.receiver.calls()) == 9


def test_observe_repeats_what_failed_in_batches(books: Books) -> None:
    """Nothing is held back, also where a member of an earlier batch is not listed any more."""
    from airflow_guard.core.errors import NotExecuted

    def send(documents: list[str], attempt: int) -> None:
        if attempt == 1:
            raise NotExecuted("closed")
        for document in documents:
            books.receiver.call(document)

    rules: dict[str, Any] = {"mode": "observe", "call_per": "batch", "batch_size": 3}
    assert counts(books.run(send, numbered(3), **rules)) == {"failed": 3}
    report = books.run(send, numbered(2), try_number=2, **rules)
    assert failure(report) is None
    assert sorted(books.receiver.documents()) == numbered(2)
    enforced = books.run(send, numbered(3), try_number=3, call_per="batch", batch_size=3)
    assert counts(enforced) == {"replayed": 2, "executed": 1}
    assert books.receiver.twice() == []
