"""Several documents at a time, one that breaks among them, and stopping between two documents."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_guard.core.errors import Stopped
from airflow_guard.core.states import State
from airflow_guard.store.ledger import Ledger
from demo.waiting import QUIET_S
from tests.chaos import fixtures
from tests.chaos.books import DATABASE, counts, failure, numbered
from tests.databases import databases

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.chaos.books import Books

pytestmark = fixtures.ONE_OF_EACH
books = fixtures.books
PATIENCE_S = QUIET_S


# -- a poison document ----------------------------------------------------------------------------------


def poison(books: Books, document: str, when: str) -> None:
    """Let the database refuse one write of one document, as a broken trigger or a full tablespace would."""
    table, name = books.database.tables.execution.name, f"poison_{books.dag_id}"
    condition = f"NEW.key_namespace = '{books.dag_id}' AND NEW.document = '{document}' AND {when}"
    trigger = f"CREATE TRIGGER {name} BEFORE UPDATE ON {table}"
    refuses = f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS"
    statements = {
        "sqlite": [f"{trigger} WHEN {condition} BEGIN SELECT RAISE(ABORT, 'poisoned'); END"],
        "mysql": [f"{trigger} FOR EACH ROW IF {condition} THEN SIGNAL SQLSTATE '45000'; END IF"],
        "postgresql": [
            f"{refuses} $$ BEGIN RAISE EXCEPTION 'poisoned'; END $$",
            f"{trigger} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION {name}()",
        ],
    }[books.database.dialect]
    with books.database.engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def antidote(books: Books) -> None:
    table, name = books.database.tables.execution.name, f"poison_{books.dag_id}"
    with books.database.engine.begin() as connection:
        on = f" ON {table}" if books.database.dialect == "postgresql" else ""
        connection.exec_driver_sql(f"DROP TRIGGER {name}{on}")


@pytest.mark.parametrize("workers", [1, 16])
def test_a_poison_completion_in_a_group_of_sixteen_leaves_the_others_alone(
    books: Books, workers: int
) -> None:
    poison(books, "D-0007", "NEW.state = 'completed'")
    together = threading.Barrier(workers, timeout=PATIENCE_S)

    def pay(document: str) -> str:
        books.receiver.call(document)
        together.wait()  # all sixteen complete at once
        return document

    report = books.run(pay, numbered(16), max_workers=workers)
    antidote(books)
    assert counts(report) == {"executed": 15, "in_doubt": 1}
    assert failure(report) is not None
    assert not failure(report).retryable
    assert "D-0007" in str(report.errors[0][1])
    assert sorted(books.receiver.documents()) == numbered(16)
    states = books.states()
    assert states.pop("D-0007") == "in_progress", "begun, and its lease over: in doubt for every reader"
    assert set(states.values()) == {"completed"}
    again = books.run(pay, numbered(16), try_number=2, max_workers=workers)
    assert counts(again) == {"replayed": 15, "in_doubt": 1}
    assert sorted(books.receiver.documents()) == numbered(16)


@pytest.mark.parametrize("workers", [1, 16])
def test_a_poison_begin_mark_in_a_group_of_sixteen_fails_alone(books: Books, workers: int) -> None:
    poison(books, "D-0007", "NEW.phase = 'begun'")
    report = books.run(books.pay, numbered(16), max_workers=workers)
    antidote(books)
    assert counts(report) == {"executed": 15, "failed": 1}
    assert "D-0007" not in books.receiver.documents()
    assert counts(books.run(books.pay, numbered(16), try_number=2, max_workers=workers)) == {
        "replayed": 15, "executed": 1,
    }  # fmt: skip
    assert sorted(books.receiver.documents()) == numbered(16)


@pytest.mark.parametrize("workers", [1, 8])
def test_a_poison_failure_is_in_doubt_and_the_rest_goes_on(books: Books, workers: int) -> None:
    """The callable fails, and that cannot be written either."""
    poison(books, "D-0003", "NEW.state IN ('failed', 'in_doubt')")

    def pay(document: str) -> None:
        if document == "D-0003":
            raise ValueError("no rate")
        books.receiver.call(document)

    report = books.run(pay, numbered(8), max_workers=workers)
    antidote(books)
    assert counts(report) == {"executed": 7, "in_doubt": 1}
    assert len(books.receiver.documents()) == 7
    assert counts(books.run(pay, numbered(8), try_number=2)) == {"replayed": 7, "in_doubt": 1}


@pytest.mark.parametrize("workers", [8, 16])
def test_many_workers_execute_each_document_once_and_at_the_same_time(books: Books, workers: int) -> None:
    together = threading.Barrier(workers, timeout=PATIENCE_S)

    def pay(document: str, idempotency_key: str) -> str:
        together.wait()
        books.receiver.call(document, key=idempotency_key, thread=threading.current_thread().name)
        return document

    documents = numbered(3 * workers)
    report = books.run(pay, documents, max_workers=workers)
    assert counts(report) == {"executed": 3 * workers}
    calls = books.receiver.calls()
    assert sorted(call["document"] for call in calls) == documents
    assert len({call["key"] for call in calls}) == 3 * workers
    assert len({call["thread"] for call in calls}) == workers
    assert {row.result for row in books.rows()} == {f'"{document}"' for document in documents}


def test_an_exit_in_one_worker_lets_the_others_finish_and_gives_the_rest_back(books: Books) -> None:
    inside = threading.Barrier(4, timeout=PATIENCE_S)

    def pay(document: str) -> None:
        books.receiver.call(document)
        inside.wait()
        if document == "D-0002":
            raise SystemExit(7)
        while not task._try.stop:
            threading.Event().wait(0.01)

    task = books.task(pay, max_workers=4)
    with pytest.raises(SystemExit):
        task.run(lambda: numbered(20))
    states = books.states()
    assert states["D-0002"] == "in_doubt"
    assert [document for document, state in states.items() if state == "completed"] == [
        "D-0001",
        "D-0003",
        "D-0004",
    ]
    assert sum(state == "failed" for state in states.values()) == 16


class Struck(BaseException):
    """A task timeout, wherever it strikes."""


def test_a_timeout_between_a_commit_and_what_follows_it_loses_nothing(books: Books) -> None:
    """With one worker, a completion and the next begin mark are written together, in the struck thread."""

    def pay(document: str) -> None:
        books.receiver.call(document)

    class Striking(Ledger):
        struck = False

        def write(self, work: Any, **more: Any) -> Any:
            answer = super().write(work, **more)
            if not self.struck and books.states().get("A") == "completed":
                self.struck = True
                raise Struck
            return answer

        def complete_and_begin(self, *args: Any, **more: Any) -> bool:
            answer = super().complete_and_begin(*args, **more)
            if not self.struck and books.states().get("A") == "completed":
                self.struck = True
                raise Struck
            return answer

    books.ledger = Striking(books.database)
    with pytest.raises(Struck):
        books.run(pay, ["A", "B", "C"])
    assert books.states() == {"A": "completed", "B": "failed", "C": "failed"}
    assert books.receiver.documents() == ["A"]
    assert counts(books.run(pay, ["A", "B", "C"], try_number=2)) == {"replayed": 1, "executed": 2}


# -- stopping -------------------------------------------------------------------------------------------


class Watching(Ledger):
    """A ledger that notes what the ledger shows when documents are given back."""

    def __init__(self, books: Books) -> None:
        super().__init__(books.database)
        self._books = books
        self.seen: list[dict[str | None, str]] = []

    def fail(self, own: Any, hashes: Sequence[str], why: str, **more: Any) -> set[str]:
        self.seen.append(self._books.states())
        return super().fail(own, hashes, why, **more)


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("database", [True, False])
def test_a_stop_lets_the_documents_in_hand_finish_and_gives_the_rest_back_at_once(
    books: Books, workers: int, database: bool
) -> None:
    if database and books.database.dialect == "sqlite" and workers > 1:
        workers = 1  # it has one writer
    inside = threading.Barrier(workers, timeout=PATIENCE_S)

    def act(document: str, stops: bool, **given: Any) -> None:
        if stops:
            inside.wait()
            task.stop("SIGTERM")  # as on_kill does, while documents are in hand
            inside.wait()
        if database:
            books.post(document, given["connection"])
        else:
            books.receiver.call(document)

    def first(document: str, connection: Any = None) -> None:
        act(document, True, connection=connection)

    def later(document: str, connection: Any = None) -> None:
        act(document, False, connection=connection)

    def external(document: str) -> None:
        act(document, True)

    rules: dict[str, Any] = {"max_workers": workers}
    if database:
        rules["side_effect"] = DATABASE
    watching = Watching(books)
    books.ledger = watching
    task = books.task(first if database else external, **rules)
    report = task.run(lambda: numbered(60))
    done = numbered(workers)
    assert counts(report) == {"executed": workers, "released": 60 - workers}
    assert failure(report).retryable
    assert report.stopped is not None
    assert len(watching.seen) <= 2, "all that is not begun is given back together"
    assert all(watching.seen[0][document] == "completed" for document in done), (
        "what was done is in the ledger before anything else is written: the process may be killed any moment"
    )
    if database:
        again = books.run(later, numbered(60), try_number=2, **rules)
    else:
        again = books.run(books.pay, numbered(60), try_number=2, **rules)
    assert counts(again) == {"replayed": workers, "executed": 60 - workers}, "nobody waits for a lease"
    assert sorted(books.posted() if database else books.receiver.documents()) == numbered(60)


def test_a_stop_before_the_first_document_begins_nothing_and_is_retryable(books: Books) -> None:
    task = books.task(books.pay)
    task.stop("SIGTERM")
    report = task.run(lambda: numbered(3))
    assert counts(report) == {"released": 3}
    assert failure(report).retryable
    assert books.receiver.documents() == []
    assert counts(books.run(books.pay, numbered(3), try_number=2)) == {"executed": 3}


def test_a_stop_while_the_documents_are_listed_is_retryable(books: Books) -> None:
    def listing() -> Iterator[str]:
        yield "A"
        task.stop("SIGTERM")
        yield "B"

    task = books.task(books.pay)
    report = task.run(listing)
    assert failure(report).retryable
    assert books.receiver.documents() == []
    assert counts(books.run(books.pay, ["A", "B"], try_number=2)) == {"executed": 2}


def test_a_stop_with_nothing_left_to_do_is_still_said(books: Books) -> None:
    def pay(document: str) -> None:
        books.receiver.call(document)
        task.stop("SIGTERM")

    task = books.task(pay)
    report = task.run(lambda: ["A"])
    assert counts(report) == {"executed": 1}
    assert isinstance(failure(report), Stopped), "the listing may have had more"


@databases("sqlite")
def test_max_hold_begins_nothing_new(books: Books) -> None:
    """A clock that has run on: what is in hand ends, the rest is given back."""

    def pay(document: str) -> None:
        books.receiver.call(document)
        held.wait(3.1)

    held = threading.Event()
    hold = timedelta(seconds=3)
    report = books.run(pay, ["A", "B", "C"], lease=hold, max_hold=hold)
    assert counts(report) == {"executed": 1, "released": 2}
    assert failure(report).retryable
    assert books.row("A").state is State.COMPLETED
    assert counts(books.run(books.pay, ["A", "B", "C"], try_number=2)) == {"replayed": 1, "executed": 2}


def test_stop_on_failure_gives_the_rest_back_and_is_retryable(books: Books) -> None:
    def pay(document: str, attempt: int) -> None:
        if document == "D-0002" and attempt == 1:
            raise ValueError("no rate")
        books.receiver.call(document)

    def narrow(document: str, attempt: int, effect: Any) -> None:
        with effect if not (document == "D-0002" and attempt == 1) else threading.Lock():
            pay(document, attempt)

    report = books.run(narrow, numbered(5), stop_on_failure=True)
    assert counts(report) == {"executed": 1, "failed": 1, "released": 3}
    assert failure(report).retryable
    again = books.run(narrow, numbered(5), try_number=2, stop_on_failure=True)
    assert counts(again) == {"replayed": 1, "executed": 4}
    assert sorted(books.receiver.documents()) == numbered(5)
