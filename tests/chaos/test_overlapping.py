"""Two attempts of one key at the same time: one that is slow, stopped or thought dead, and another."""

from __future__ import annotations

import socket
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard.core.errors import LedgerBusy
from airflow_guard.core.states import Phase, State
from airflow_guard.store.dialects import age_s
from demo.waiting import QUIET_S
from tests.chaos.books import DATABASE, counts, failure
from tests.chaos.fixtures import ONE_OF_EACH
from tests.chaos.jobs import outcome, work
from tests.databases import databases

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.books import Books
    from tests.processes import Worker

pytestmark = ONE_OF_EACH
LEASE = timedelta(seconds=3)
"""The shortest that there is."""


@pytest.fixture
def start(start_worker: Callable[..., Worker], books: Books) -> Callable[..., Worker]:
    """``start(documents, …)`` starts a process that works on documents, see :func:`tests.chaos.jobs.work`."""

    def start(documents: Any, **more: Any) -> Worker:
        where = {"url": books.url, "dag_id": books.dag_id, "path": books.receiver.path}
        return start_worker(work, documents=documents, **where, **more)

    return start


def test_c01_the_same_try_delivered_twice(books: Books, start: Callable[..., Worker]) -> None:
    """Run, task, map index and try number are identical; only the owner token tells the two apart."""
    first = start(["K"], holds={"inside": ["K"]})
    first.wait_for("inside")
    token = books.row("K").owner_token

    second = outcome(books.run(books.pay, ["K"], on_concurrent="fail"))
    assert second["error"] == "InProgressElsewhere"
    assert second["retryable"]
    row = books.row("K")
    assert row.last_run is not None
    started = f"{row.last_run.started_at:%Y-%m-%d %H:%M:%S} UTC"
    for told in (socket.gethostname(), f"pid {first.pid}", started):
        assert told in second["message"]
    assert books.receiver.documents() == []
    assert len(books.events("blocked")) == 1

    waiting = books.task(books.pay)
    assert counts(waiting.run(one="K")) == {"waiting": 1}
    assert books.receiver.documents() == []

    first.release("inside")
    result = first.result()
    assert result["counts"] == {"executed": 1}
    row = books.row("K")
    assert (row.state, row.owner_token, row.attempt) == (State.COMPLETED, token, 1)

    again = books.task(books.pay, resumed=waiting.task_run_id)
    assert again.run(one="K").result == {"paid": "K", "pid": first.pid}, "the one that waited gets it too"
    third = books.run(books.pay, one="K")
    assert third.result == {"paid": "K", "pid": first.pid}
    assert failure(third) is None
    assert books.receiver.documents() == ["K"]


def test_r01_a_second_try_beside_a_first_that_outlives_its_lease_ends_with_its_result(
    books: Books, start: Callable[..., Worker]
) -> None:
    first = start(["K"], holds={"inside": ["K"]}, lease=LEASE)
    first.wait_for("inside")
    second = books.task(books.pay, try_number=2, lease=LEASE)
    looks = [second.run(lambda: ["K"])]
    longer_than_the_lease(books)
    again = books.task(books.pay, try_number=2, lease=LEASE, resumed=second.task_run_id)
    looks += [again.run(lambda: ["K"]) for _ in range(2)]
    assert [counts(look) for look in looks] == [{"waiting": 1}] * 3
    assert books.row("K").phase is Phase.BEGUN
    assert not books.row("K").lease_over, "renewed in the background"
    assert counts(books.run(books.pay, ["K"], try_number=3)) == {"waiting": 1}
    first.release("inside")
    assert first.result()["counts"] == {"executed": 1}
    assert counts(again.run(lambda: ["K"])) == {"replayed": 1}, "without a person"
    assert books.run(books.pay, one="K", try_number=4).result == {"paid": "K", "pid": first.pid}
    assert books.receiver.documents() == ["K"]
    assert books.events("doubt") == []


def test_a_transaction_longer_than_the_lease_is_not_taken_over(
    books: Books, start: Callable[..., Worker]
) -> None:
    """On SQLite the lease cannot even be renewed meanwhile; the transaction itself keeps others out."""
    first = start(["K"], act="post", holds={"inside": ["K"]}, lease=LEASE, side_effect=DATABASE)
    first.wait_for("inside")
    longer_than_the_lease(books)
    if books.database.dialect == "sqlite":
        with pytest.raises(LedgerBusy) as caught:
            books.run(books.post, ["K"], try_number=2, lease=LEASE, side_effect=DATABASE)
        assert caught.value.retryable
    else:
        beside = books.run(books.post, ["K"], try_number=2, lease=LEASE, side_effect=DATABASE)
        assert counts(beside) == {"waiting": 1}
    first.release("inside")
    assert first.result()["counts"] == {"executed": 1}
    assert counts(books.run(books.post, ["K"], try_number=2, side_effect=DATABASE)) == {"replayed": 1}
    assert books.posted() == ["K"]
    assert books.run(books.post, one="K", try_number=3, side_effect=DATABASE).result["pid"] == first.pid


def longer_than_the_lease(books: Books) -> None:
    """Wait until the lease that the first try began with is over by the database's clock."""
    run = books.database.tables.task_run
    age = sa.select(age_s(sa.func.min(run.c.started_at))).where(run.c.dag_id == books.dag_id)
    while (
        books.database.read(lambda connection: connection.execute(age).scalar_one()) <= LEASE.total_seconds()
    ):
        threading.Event().wait(0.1)


@pytest.mark.parametrize("act", ["pay", "window"])
def test_a_stopped_process_loses_what_it_had_not_begun_and_keeps_what_it_had(
    books: Books, start: Callable[..., Worker], act: str
) -> None:
    documents = ["begun", "free-1", "free-2"]
    first = start(documents, act=act, holds={"inside": ["begun"]})
    first.wait_for("inside")
    first.pause()
    books.expire_leases()

    second = books.run(books.pay, documents, try_number=2)
    assert counts(second) == {"in_doubt": 1, "executed": 2}
    assert books.states() == {"begun": "in_doubt", "free-1": "completed", "free-2": "completed"}
    assert len(books.events("take_over")) == 2

    first.resume()
    first.release("inside")
    result = first.result()
    assert result["counts"] == {"executed": 1, "failed": 2}
    assert result["retryable"]
    assert sorted(map(str, books.receiver.documents())) == documents, "nothing twice, nothing lost"
    row = books.row("begun")
    assert (row.state, row.attempt) == (State.COMPLETED, 1)
    assert [event.key_hash for event in books.events("late_report")] == [row.key_hash]

    assert counts(books.run(books.pay, documents, try_number=3)) == {"replayed": 3}


@databases("sqlite", "postgres_embedded")
def test_a_stopped_process_whose_document_was_said_not_to_have_happened(
    books: Books, start: Callable[..., Worker]
) -> None:
    """A person was wrong, or the call went out after the question: it is told, not hidden."""
    first = start(["K"], holds={"inside": ["K"]})
    first.wait_for("inside")
    first.pause()
    books.expire_leases()
    assert counts(books.run(books.pay, ["K"], try_number=2)) == {"in_doubt": 1}
    books.resolve("K", "did_not_happen", "nothing at the bank")
    assert counts(books.run(books.pay, ["K"], try_number=3)) == {"executed": 1}
    first.resume()
    first.release("inside")
    result = first.result()
    assert result["counts"] == {"in_doubt": 1}

    assert "may have happened twice" in result["message"]
    calls = books.receiver.calls()
    assert len(calls) == 2
    assert len({call["key"] for call in calls}) == 1, "one key for both, which the receiver can recognise"
    assert len(books.events("conflict")) == 1


@databases("postgres_embedded")
def test_many_processes_at_one_key_execute_it_once(books: Books, start: Callable[..., Worker]) -> None:
    workers = [start(["K"], waits=True) for _ in range(3)]
    for worker in workers:
        worker.run_on()
    ends = [worker.result() for worker in workers]
    assert sorted(next(iter(end["counts"])) for end in ends) == ["executed"] + ["replayed"] * 2
    assert books.receiver.documents() == ["K"]


def test_many_threads_at_one_key_execute_it_once(books: Books) -> None:
    """The claims come at the same moment, as near as threads can bring it."""
    together = threading.Barrier(8, timeout=QUIET_S)
    seen: list[dict[str, int]] = []

    def attempt() -> None:
        together.wait()
        seen.append(counts(books.run(books.pay, ["K", "L", "M"])))

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, books.receiver.documents())) == ["K", "L", "M"]
    assert sum(each.get("executed", 0) for each in seen) == 3
    assert all(sum(each.values()) == 3 for each in seen)
    assert all(not each.keys() - {"executed", "replayed", "waiting"} for each in seen)
