"""The ledger's database is down: before anything starts, or in the middle of an effect."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_guard.core.errors import LedgerUnavailable
from airflow_guard.core.states import FollowUp, State
from airflow_guard.execution import external, in_database, writer
from airflow_guard.execution import workers as execution_workers
from demo.waiting import QUIET_S
from tests.chaos.books import DATABASE, Books, counts, failure, numbered
from tests.chaos.proxy import Proxy
from tests.databases import databases

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = databases("postgres_embedded", "mariadb")
PATIENCE_S = QUIET_S


@pytest.fixture
def proxy(books: Books) -> Iterator[Proxy]:
    with Proxy(books.url) as proxy:
        yield proxy


@pytest.fixture
def remote(books: Books, proxy: Proxy) -> Iterator[Books]:
    """The same ledger through the proxy."""
    remote = Books(proxy.url, books.dag_id, books.receiver)
    yield remote
    remote.close()


@contextmanager
def back_after(proxy: Proxy, refusals: int) -> Iterator[None]:
    """Restore the database once somebody has tried in vain so many times."""

    def restore() -> None:
        proxy.wait_for_refusals(refusals, PATIENCE_S)
        proxy.restore()

    thread = threading.Thread(target=restore)
    thread.start()
    yield
    thread.join()


def test_down_at_the_start_nothing_starts_and_a_retry_helps(
    books: Books, remote: Books, proxy: Proxy
) -> None:
    assert counts(remote.run(remote.pay, ["Z"])) == {"executed": 1}
    proxy.cut()
    for side_effect in ({}, {"side_effect": DATABASE}):
        act = remote.post if side_effect else remote.pay
        with pytest.raises(LedgerUnavailable) as caught:
            remote.run(act, ["A"], **side_effect)
        assert caught.value.retryable
    assert books.receiver.documents() == ["Z"]
    proxy.restore()
    assert counts(remote.run(remote.pay, ["A"], try_number=2)) == {"executed": 1}
    assert books.receiver.documents() == ["Z", "A"]


@pytest.mark.parametrize("workers", [1, 8, 16])
def test_down_in_the_middle_of_effects_their_completion_is_tried_until_it_is_back(
    books: Books, remote: Books, proxy: Proxy, workers: int
) -> None:
    """Sixteen effects have happened, and the ledger goes away before any of them could be told."""
    together = threading.Barrier(workers, timeout=PATIENCE_S)

    def pay(document: str) -> str:
        books.receiver.call(document)
        if together.wait() == 0:
            proxy.cut()
        together.wait()
        return document

    with back_after(proxy, 3):
        report = remote.run(pay, numbered(workers), max_workers=workers)
    assert counts(report) == {"executed": workers}
    assert failure(report) is None
    assert set(books.states().values()) == {"completed"}
    assert {row.result for row in books.rows()} == {f'"{document}"' for document in numbered(workers)}
    assert counts(books.run(books.pay, numbered(workers), try_number=2)) == {"replayed": workers}
    assert sorted(books.receiver.documents()) == numbered(workers)


def test_down_in_the_window_its_completion_is_tried_until_it_is_back(
    books: Books, remote: Books, proxy: Proxy
) -> None:
    seen: list[Any] = []

    def pay(document: str, effect: Any) -> str:
        with effect:
            books.receiver.call(document)
            proxy.cut()
        seen.append((books.row(document).state, books.row(document).follow_up))
        return document

    with back_after(proxy, 3):
        report = remote.run(pay, one="A")
    assert report.result == "A"
    assert seen == [(State.COMPLETED, FollowUp.PENDING)]
    assert books.receiver.documents() == ["A"]


def test_down_in_the_window_of_a_batch(books: Books, remote: Books, proxy: Proxy) -> None:
    def send(documents: list[str]) -> None:
        for document in documents:
            books.receiver.call(document)
        proxy.cut()

    with back_after(proxy, 3):
        report = remote.run(send, numbered(3), call_per="batch")
    assert counts(report) == {"executed": 3}
    assert set(books.states().values()) == {"completed"}


@pytest.mark.parametrize("workers", [1, 4])
def test_down_for_longer_than_anybody_waits_leaves_a_doubt_and_no_repetition(
    books: Books, remote: Books, proxy: Proxy, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "PATIENCE_S", 0.5)

    def pay(document: str) -> None:
        books.receiver.call(document)
        proxy.cut()

    report = remote.run(pay, ["A"], max_workers=workers)
    assert counts(report) == {"in_doubt": 1}
    assert not failure(report).retryable
    assert "could not be written" in str(failure(report))
    assert books.states() == {"A": "in_progress"}
    assert counts(books.run(books.pay, ["A"], try_number=2)) == {"waiting": 1}
    books.expire_leases()
    assert counts(books.run(books.pay, ["A"], try_number=3)) == {"in_doubt": 1}
    assert books.receiver.documents() == ["A"]


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("database", [True, False])
def test_down_for_good_begins_nothing_else_and_does_not_wait_for_each_document(
    books: Books, remote: Books, proxy: Proxy, workers: int, database: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (writer, external, in_database, execution_workers):
        monkeypatch.setattr(module, "PATIENCE_S", 0.5)
    inside = threading.Barrier(workers, timeout=PATIENCE_S)

    def act(document: str, **given: Any) -> None:
        if database:
            remote.post(document, given["connection"])
        else:
            books.receiver.call(document)
        inside.wait()
        proxy.cut()
        inside.wait()

    def post(document: str, connection: Any) -> None:
        act(document, connection=connection)

    def pay(document: str) -> None:
        act(document)

    rules: dict[str, Any] = {"side_effect": DATABASE} if database else {}
    report = remote.run(post if database else pay, numbered(40), max_workers=workers, **rules)
    assert report.documents == 40
    assert counts(report)["released"] >= 40 - 2 * workers
    assert counts(report).get("in_doubt", 0) == (0 if database else workers)
    assert failure(report).retryable, "another try does what was not begun"
    assert books.posted() == []
    proxy.restore()
    books.expire_leases()
    again = books.run(books.post if database else books.pay, numbered(40), try_number=2, **rules)
    if database:
        assert counts(again) == {"executed": 40}
        assert sorted(books.posted()) == numbered(40)
    else:
        assert counts(again) == {"in_doubt": workers, "executed": 40 - workers}
        assert sorted(map(str, books.receiver.documents())) == numbered(40)


@pytest.mark.parametrize("workers", [1, 4])
def test_down_while_the_callable_fails_the_doubt_is_written_when_it_is_back(
    books: Books, remote: Books, proxy: Proxy, workers: int
) -> None:
    def pay(document: str) -> None:
        books.receiver.call(document)
        proxy.cut()
        raise TimeoutError

    with back_after(proxy, 3):
        report = remote.run(pay, ["A"], max_workers=workers)
    assert counts(report) == {"in_doubt": 1}
    assert books.states() == {"A": "in_doubt"}
    assert counts(books.run(books.pay, ["A"], try_number=2)) == {"in_doubt": 1}
    assert books.receiver.documents() == ["A"]


def test_down_in_a_transaction_takes_the_rows_back_and_is_tried_again(
    books: Books, remote: Books, proxy: Proxy
) -> None:
    def post(document: str, connection: Any) -> None:
        remote.post(document, connection)
        if document == "B":
            proxy.cut()

    with back_after(proxy, 3):
        report = remote.run(post, ["A", "B", "C"], side_effect=DATABASE)
    assert counts(report) == {"executed": 2, "failed": 1}
    assert books.posted() == ["A", "C"]
    assert failure(report).retryable
    again = books.run(books.post, ["A", "B", "C"], try_number=2, side_effect=DATABASE)
    assert counts(again) == {"replayed": 2, "executed": 1}
    assert sorted(books.posted()) == ["A", "B", "C"]


def test_a_lease_that_ran_out_while_the_ledger_was_down_is_renewed_before_the_next_effect(
    books: Books, remote: Books, proxy: Proxy
) -> None:
    """What was begun is completed late; what was not is not begun without a lease."""
    seen: list[Any] = []

    def pay(document: str) -> None:
        books.receiver.call(document)
        if document == "A":
            proxy.cut()
            books.expire_leases()
            seen.append(books.run(books.pay, ["A", "B"], try_number=2))

    with back_after(proxy, 3):
        report = remote.run(pay, ["A", "B", "C"], lease=timedelta(seconds=60))
    assert counts(seen[0]) == {"in_doubt": 1, "executed": 1, "forgotten": 1}, "it does not list C"
    assert counts(report) == {"executed": 2, "failed": 1}
    assert failure(report).retryable
    assert books.states() == dict.fromkeys("ABC", "completed")
    assert sorted(books.receiver.documents()) == ["A", "B", "C"]
    assert len(books.events("late_report")) == 1
