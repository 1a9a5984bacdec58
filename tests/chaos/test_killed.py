"""A process that is killed with ``kill -9``, wherever that strikes."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_guard.core.effects import External
from airflow_guard.core.errors import InDoubt, InProgressElsewhere, ResolutionError
from airflow_guard.core.states import FollowUp, Phase, State
from airflow_guard.reading.watching import Watch
from demo.waiting import Patience, cpu_used
from tests.chaos.books import DATABASE, counts, failure, numbered
from tests.chaos.fixtures import ONE_OF_EACH
from tests.chaos.jobs import work
from tests.databases import databases
from tests.processes import Worker, WorkerFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.books import Books

pytestmark = ONE_OF_EACH


@pytest.fixture
def start(start_worker: Callable[..., Worker], books: Books) -> Callable[..., Worker]:
    """``start(documents, …)`` starts a process that works on documents, see :func:`tests.chaos.jobs.work`."""

    def start(documents: Any, **more: Any) -> Worker:
        where = {"url": books.url, "dag_id": books.dag_id, "path": books.receiver.path}
        return start_worker(work, documents=documents, **where, **more)

    return start


def standing_at(workers: list[Worker], label: str) -> Worker:
    """Return the first process that comes to a checkpoint."""
    patience = Patience(label, lambda: [cpu_used(worker.pid) for worker in workers])
    while True:
        patience.check()
        for worker in workers:
            try:
                worker.wait_for(label, at_most_s=0.02)
            except (TimeoutError, WorkerFailed):
                continue
            return worker


def test_c03_four_processes_over_one_batch_one_of_them_killed_inside_a_document(
    books: Books, start: Callable[..., Worker]
) -> None:
    documents = numbered(100)
    workers = []
    for number in range(4):
        order = random.Random(number).sample(documents, 100)
        workers.append(
            start(
                order,
                host=f"{'old' if number < 2 else 'new'}-{number % 2}",
                chunk=10,
                waits=True,
                holds={"inside": ["D-0050"]},
            )
        )
    killed = standing_at(workers, "inside")
    killed.kill()
    others = [worker for worker in workers if worker is not killed]
    books.expire_leases(killed.pid)
    for worker in others:
        worker.run_on()
    ends = [worker.result() for worker in others]

    done = Counter(books.receiver.documents())
    assert set(done) == set(documents) - {"D-0050"}
    assert set(done.values()) == {1}, "no document has two side effects"
    states = books.states()
    assert len(states) == 100, "host and version are not part of the key"
    assert states.pop("D-0050") == "in_doubt"
    assert set(states.values()) == {"completed"}
    for end in ends:
        assert end["in_doubt"] == ["D-0050"], "listed, and not executed again"
        assert not end["retryable"]
        assert f"--key {books.row('D-0050').key_hash}" in end["message"]
    command = f"--key {books.row('D-0050').key_hash}"  # the ledger holds the doubts of other tests too
    (alert,) = (
        each for each in Watch(books.ledger, "default").doubts() if command in str(each.steps[0].command)
    )
    assert alert.documents == ("D-0050",), "one alert lists it"


def test_c15_a_worker_killed_at_one_document_of_a_thousand(
    books: Books, start: Callable[..., Worker]
) -> None:
    documents = numbered(1000)
    worker = start(documents, holds={"inside": ["D-0700"]})
    worker.wait_for("inside")
    worker.kill()
    books.expire_leases()
    report = books.run(books.pay, documents, try_number=2, max_workers=8)
    assert counts(report) == {"replayed": 699, "in_doubt": 1, "executed": 300}
    assert [name for name, _ in report.errors] == ["D-0700"]
    assert sorted(map(str, books.receiver.documents())) == [each for each in documents if each != "D-0700"]


def test_c27_killed_in_the_callable_and_resolved_by_a_person(
    books: Books, start: Callable[..., Worker]
) -> None:
    worker = start(["A", "B"], holds={"inside": ["B"], "after": ["A"]}, max_workers=2)
    worker.wait_for("inside")
    worker.wait_for("after")
    worker.kill()

    early = books.run(books.pay, ["A", "B"], try_number=2)
    assert counts(early) == {"waiting": 2}, "its lease is alive"
    assert isinstance(early.errors[0][1], InProgressElsewhere)
    assert failure(early).retryable
    with pytest.raises(ResolutionError, match=f"pid {worker.pid}"):
        books.resolve("A", "happened")

    books.expire_leases()
    held = books.run(books.pay, ["A", "B"], try_number=3)
    assert counts(held) == {"in_doubt": 2}
    error = held.errors[0][1]
    assert isinstance(error, InDoubt)
    assert f"airflow-guard resolve --key {books.row('A').key_hash} --happened" in str(error)
    assert "--did-not-happen" in str(error)
    with pytest.raises(ResolutionError, match="reason"):
        books.resolve("A", "happened", reason=" ")

    books.resolve("A", "happened", "found at the bank")
    books.resolve("B", "did_not_happen", "nothing at the bank")
    with pytest.raises(ResolutionError, match="settled already"):
        books.resolve("A", "did_not_happen")
    settled = {event.reason: event for event in books.events() if event.kind.startswith("resolve")}
    for reason, after in (("found at the bank", "completed"), ("nothing at the bank", "failed")):
        event = settled[reason]
        assert (event.actor, event.from_state, event.to_state) == ("ada", "in_doubt", after)
        assert event.at is not None

    assert counts(books.run(books.pay, ["A", "B"], try_number=4)) == {"replayed": 1, "executed": 1}
    assert books.receiver.documents() == ["A", "B"]
    assert counts(books.run(books.pay, ["A", "B"], try_number=5)) == {"replayed": 2}


def test_killed_inside_and_behind_the_window_at_once(books: Books, start: Callable[..., Worker]) -> None:
    worker = start(["A", "B"], act="window", holds={"inside": ["A"], "behind": ["B"]}, max_workers=2)
    worker.wait_for("inside")
    worker.wait_for("behind")
    worker.kill()
    books.expire_leases()
    assert (books.row("B").state, books.row("B").follow_up) == (State.COMPLETED, FollowUp.PENDING)
    report = books.run(books.pay, ["A", "B"], try_number=2)
    assert counts(report) == {"in_doubt": 1, "blocked": 1}
    follow_up = dict(report.errors)["B"]
    assert "the effect is done" in str(follow_up)
    assert "--followed-up" in str(follow_up)
    assert books.receiver.documents() == ["B"]
    books.resolve("B", "followed_up", "archived by hand")
    books.resolve("A", "did_not_happen")
    assert counts(books.run(books.pay, ["A", "B"], try_number=3)) == {"executed": 1, "replayed": 1}
    assert sorted(map(str, books.receiver.documents())) == ["A", "B"]


def test_a_batch_killed_in_its_window_is_repeated_as_the_same_batch(
    books: Books, start: Callable[..., Worker]
) -> None:
    """Of three batches the second is cut off after one of its documents; then the listing is another one."""
    rules: dict[str, Any] = {"call_per": "batch", "batch_size": 3}
    worker = start(numbered(9), act="send", holds={"inside": ["D-0005"]}, **rules)
    worker.wait_for("inside")
    worker.kill()
    books.expire_leases()
    torn = {row.document: row.batch_id for row in books.rows() if row.phase == "begun"}
    assert sorted(torn) == ["D-0004", "D-0005", "D-0006"]
    [batch_id] = set(torn.values())
    asked: list[Any] = []

    def verify(documents: list[str], batch_id: str) -> bool:
        asked.append((sorted(documents), batch_id))
        return False

    def send(documents: list[str], batch_id: str) -> None:
        for document in documents:
            books.receiver.call(document, key=batch_id, again=True)

    listed = [
        "N-1",
        "D-0009",
        "D-0006",
        "N-2",
        "D-0001",
        "D-0005",
        "D-0008",
        "D-0004",
        "D-0002",
        "D-0003",
        "D-0007",
    ]
    effect = External(verify=verify, settle_after=timedelta(0))
    without = [document for document in listed if document != "D-0005"]
    incomplete = books.run(send, without, try_number=2, side_effect=effect, **rules)
    assert counts(incomplete) == {"executed": 5, "replayed": 3, "blocked": 2, "forgotten": 1}
    assert "D-0005" in str(incomplete.errors[0][1])
    report = books.run(send, listed, try_number=3, side_effect=effect, **rules)
    assert counts(report) == {"executed": 3, "replayed": 8}
    assert asked == [(["D-0004", "D-0006"], batch_id)], "asked once, about the members that were listed"
    again = [call for call in books.receiver.calls() if call.get("again") and call["document"] in torn]
    assert sorted((call["document"], call["key"]) for call in again) == sorted(torn.items())
    executed = Counter(books.receiver.documents())
    assert executed.pop("D-0004") == 2, "once before the kill; verify said that this did not count"
    assert set(executed.values()) == {1}


def test_killed_in_its_transaction_leaves_no_rows_and_is_taken_over(
    books: Books, start: Callable[..., Worker]
) -> None:
    worker = start(["A", "B", "C"], act="post", holds={"inside": ["B"]}, side_effect=DATABASE)
    worker.wait_for("inside")
    worker.kill()
    books.expire_leases()
    report = books.run(books.post, ["A", "B", "C"], try_number=2, side_effect=DATABASE)
    assert counts(report) == {"replayed": 1, "executed": 2}
    assert sorted(books.posted()) == ["A", "B", "C"]
    take_overs = books.events("take_over")
    assert len(take_overs) == 2


@databases("sqlite")
def test_a_crash_of_the_test_ledger_leaves_what_a_kill_leaves(
    books: Books, start: Callable[..., Worker]
) -> None:
    """``airflow_guard.testing`` lets a process die without killing it. The ledger shows the same."""
    from airflow_guard.testing import TestLedger

    holds = {"inside": ["inside"], "after": ["after"], "behind": ["behind"]}
    worker = start(["inside", "after", "behind"], act="window", holds=holds, max_workers=3)
    for label in ("inside", "after", "behind"):
        worker.wait_for(label)
    worker.kill()
    killed = {row.document: shape(row) for row in books.rows()}

    def pay(document: str, effect: Any) -> None:
        with effect:
            books.receiver.call(document)

    with TestLedger(books.url) as ledger:
        for document, at in (("inside", "inside"), ("after", "after"), ("behind", "follow_up")):
            ledger.crash(pay, at=at, document=document)
            row = ledger.row(document)
            assert row is not None
            assert (row.state, row.phase, row.follow_up, row.attempt, row.result, row.error) == killed[
                document
            ]
            assert not row.lease_over
    assert killed["inside"][:2] == (State.IN_PROGRESS, Phase.BEGUN)


def shape(row: Any) -> tuple[Any, ...]:
    return (row.state, row.phase, row.follow_up, row.attempt, row.result, row.error)
