"""Database mode in a whole run: business rows and completion together, whatever the callable does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard.core.errors import (
    GuardError,
    InDoubt,
    NotExecuted,
    Rejected,
    ResultError,
    TransactionError,
)
from airflow_guard.core.states import Phase, State
from demo.waiting import QUIET_S
from tests.chaos import fixtures
from tests.chaos.books import DATABASE, counts, failure, mapped, numbered
from tests.databases import POSTGRES, SERVERS, databases

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.books import Books

books = fixtures.books


def once(books: Books, breaks: Callable[[sa.Connection], Any]) -> Callable[..., Any]:
    """A callable that posts and misbehaves in its first attempt, and only posts in later ones."""

    def post(document: str, attempt: int, connection: sa.Connection) -> Any:
        books.post(document, connection)
        return breaks(connection) if attempt == 1 else None

    return post


def driver(connection: sa.Connection) -> Any:
    return connection.connection.driver_connection


# -- errors ---------------------------------------------------------------------------------------------


class Timeout(BaseException):
    """As Airflow's task timeout: no ``Exception``."""


def test_rows_and_result_are_there_together_and_replayed(books: Books) -> None:
    report = books.run(books.post, ["A", "B"], side_effect=DATABASE)
    assert counts(report) == {"executed": 2}
    assert books.posted() == ["A", "B"]
    assert books.row("A").result == '{"posted":"A"}'
    assert counts(books.run(books.post, ["B", "A", "C"], try_number=2, side_effect=DATABASE)) == {
        "replayed": 2, "executed": 1,
    }  # fmt: skip
    assert books.posted() == ["A", "B", "C"]


@pytest.mark.parametrize(
    "error",
    [ValueError("no rate"), NotExecuted("closed"), ConnectionError("swift"), Timeout(), SystemExit(3)],
    ids=repr,
)
def test_any_error_takes_the_rows_back_and_may_be_tried_again(books: Books, error: BaseException) -> None:
    def breaks(connection: sa.Connection) -> None:
        raise error

    post = once(books, breaks)
    if isinstance(error, Exception):
        report = books.run(post, ["A"], side_effect=DATABASE)
        assert counts(report) == {"failed": 1}
        assert failure(report).retryable
    else:
        with pytest.raises(type(error)):
            books.run(post, ["A"], side_effect=DATABASE)
    assert books.posted() == []
    assert (books.row("A").state, books.row("A").phase) == (State.FAILED, Phase.NONE)
    assert counts(books.run(post, ["A"], try_number=2, side_effect=DATABASE)) == {"executed": 1}
    assert books.posted() == ["A"]


def test_rejected_takes_the_rows_back_and_is_terminal(books: Books) -> None:
    def breaks(connection: sa.Connection) -> None:
        raise Rejected("account closed")

    assert counts(books.run(once(books, breaks), ["A"], side_effect=DATABASE)) == {"rejected": 1}
    assert counts(books.run(books.post, ["A"], try_number=2, side_effect=DATABASE)) == {"rejected": 1}
    assert books.posted() == []


def test_an_error_of_the_database_is_one_of_the_document(books: Books) -> None:
    def breaks(connection: sa.Connection) -> None:
        connection.exec_driver_sql("INSERT INTO no_such_table VALUES (1)")

    report = books.run(once(books, breaks), ["A", "B"], side_effect=DATABASE)
    assert counts(report) == {"failed": 2}
    assert books.posted() == []
    assert counts(books.run(books.post, ["A", "B"], try_number=2, side_effect=DATABASE)) == {"executed": 2}


# -- a callable that ends the transaction ---------------------------------------------------------------


@pytest.mark.parametrize("method", ["commit", "rollback", "close", "detach", "invalidate"])
@pytest.mark.parametrize("swallowed", [True, False])
def test_ending_the_lent_transaction_is_refused(books: Books, method: str, swallowed: bool) -> None:
    def breaks(connection: sa.Connection) -> None:
        try:
            getattr(connection, method)()
        except GuardError:
            if not swallowed:
                raise

    report = books.run(once(books, breaks), ["A"], side_effect=DATABASE)
    if swallowed:
        assert counts(report) == {"executed": 1}
    else:
        assert isinstance(failure(report), TransactionError)
        assert not failure(report).retryable
        assert books.posted() == []
        assert books.states() == {"A": "failed"}
        books.run(books.post, ["A"], try_number=2, side_effect=DATABASE)
    assert books.posted() == ["A"]


ENDS = {
    "driver": lambda connection: driver(connection).commit(),
    "sql": lambda connection: connection.exec_driver_sql("COMMIT"),
    "text": lambda connection: connection.execute(sa.text("COMMIT")),
}


@pytest.mark.parametrize("way", ENDS)
@pytest.mark.parametrize("then", ["returns", "raises"])
def test_a_commit_of_its_own_is_in_doubt_and_not_repeated(books: Books, way: str, then: str) -> None:
    def breaks(connection: sa.Connection) -> None:
        ENDS[way](connection)
        if then == "raises":
            raise ValueError("after its commit")

    report = books.run(once(books, breaks), ["A", "B"], side_effect=DATABASE)
    assert counts(report) == {"in_doubt": 2}
    assert not failure(report).retryable
    assert books.posted() == ["A", "B"], "it did commit"
    assert books.states() == {"A": "in_doubt", "B": "in_doubt"}
    again = books.run(books.post, ["A", "B"], try_number=2, side_effect=DATABASE)
    assert counts(again) == {"in_doubt": 2}
    assert books.posted() == ["A", "B"]
    books.resolve("A", "happened")
    alone = books.run(books.post, ["A"], run_id="manual__1", run_type="manual", side_effect=DATABASE)
    assert counts(alone) == {"replayed": 1}


@pytest.mark.parametrize("way", ["driver", "sql"])
@pytest.mark.parametrize("then", ["returns", "raises", "posts", "posts and raises", "posts and commits"])
def test_a_rollback_of_its_own_never_leads_to_rows_twice(books: Books, way: str, then: str) -> None:
    """What follows it may be committed without the ledger: on SQLite even statement by statement."""

    def breaks(connection: sa.Connection) -> None:
        if way == "driver":
            driver(connection).rollback()
        else:
            connection.exec_driver_sql("ROLLBACK")
        if then.startswith("posts"):
            books.post("A", connection)
        if then.endswith("commits"):
            driver(connection).commit()
        if then.endswith("raises"):
            raise ValueError("after its rollback")

    report = books.run(once(books, breaks), ["A"], side_effect=DATABASE)
    assert counts(report) == {"in_doubt": 1}
    assert not failure(report).retryable
    posted = books.posted()
    assert counts(books.run(books.post, ["A"], try_number=2, side_effect=DATABASE)) == {"in_doubt": 1}
    assert books.posted() == posted
    books.resolve("A", "happened" if posted else "did_not_happen", "looked at the rows")
    books.run(books.post, ["A"], try_number=3, side_effect=DATABASE)
    assert books.posted() == ["A"]


@databases("mariadb")
def test_ddl_that_commits_is_in_doubt(books: Books) -> None:
    def breaks(connection: sa.Connection) -> None:
        connection.exec_driver_sql(f"CREATE TABLE made_{books.dag_id} (id INTEGER)")

    report = books.run(once(books, breaks), ["A"], side_effect=DATABASE)
    assert counts(report) == {"in_doubt": 1}
    assert "DDL" in str(report.errors[0][1].__cause__)
    assert books.posted() == ["A"]
    assert counts(books.run(books.post, ["A"], try_number=2, side_effect=DATABASE)) == {"in_doubt": 1}
    assert books.posted() == ["A"]


@databases("mariadb")
def test_a_deadlock_is_the_servers_rollback_and_may_be_tried_again(books: Books) -> None:
    def breaks(connection: sa.Connection) -> None:
        connection.exec_driver_sql("ROLLBACK")  # what the server does
        connection.exec_driver_sql("SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213")

    report = books.run(once(books, breaks), ["A"], side_effect=DATABASE)
    assert counts(report) == {"failed": 1}
    assert failure(report).retryable
    assert books.posted() == []
    assert counts(books.run(books.post, ["A"], try_number=2, side_effect=DATABASE)) == {"executed": 1}


@databases("sqlite", *POSTGRES)
def test_ddl_belongs_to_the_transaction(books: Books) -> None:
    def breaks(connection: sa.Connection) -> None:
        connection.exec_driver_sql(f"CREATE TABLE made_{books.dag_id} (id INTEGER)")
        raise ValueError("after its table")

    post = once(books, breaks)
    assert counts(books.run(post, ["A"], side_effect=DATABASE)) == {"failed": 1}
    assert not sa.inspect(books.database.engine).has_table(f"made_{books.dag_id}")
    assert counts(books.run(post, ["A"], try_number=2, side_effect=DATABASE)) == {"executed": 1}
    assert books.posted() == ["A"]


def test_rows_over_a_connection_of_its_own_are_not_protected_and_the_others_are(books: Books) -> None:
    """Only ``connection`` commits together with the ledger. On SQLite a second writer is locked out."""
    own = sa.create_engine(books.url, connect_args={"timeout": 0.1} if books.url.startswith("sqlite") else {})

    def breaks(connection: sa.Connection) -> None:
        with own.begin() as mine:
            mine.execute(books.posting.insert().values(dag_id=books.dag_id, document="own"))
        raise ValueError("after its own commit")

    report = books.run(once(books, breaks), ["A"], side_effect=DATABASE)
    own.dispose()
    assert counts(report) == {"failed": 1}
    assert books.posted() == ([] if books.url.startswith("sqlite") else ["own"])
    assert counts(books.run(books.post, ["A"], try_number=2, side_effect=DATABASE)) == {"executed": 1}
    assert [document for document in books.posted() if document != "own"] == ["A"]


@databases(*POSTGRES)
def test_an_error_that_the_callable_swallowed_is_named_and_nothing_stays(books: Books) -> None:
    def breaks(connection: sa.Connection) -> None:
        try:
            connection.exec_driver_sql("SELECT 1 / 0")
        except sa.exc.DBAPIError:
            return

    report = books.run(once(books, breaks), ["A"], side_effect=DATABASE)
    assert isinstance(failure(report), TransactionError)
    assert "begin_nested" in str(failure(report))
    assert books.posted() == []
    assert books.states() == {"A": "failed"}


# -- results --------------------------------------------------------------------------------------------


def test_a_result_that_cannot_be_stored_takes_the_rows_back(books: Books) -> None:
    report = books.run(once(books, lambda connection: object()), ["A"], side_effect=DATABASE)
    assert isinstance(failure(report), ResultError)
    assert not failure(report).retryable
    assert books.posted() == []
    assert books.states() == {"A": "failed"}
    assert counts(books.run(books.post, ["A"], try_number=2, side_effect=DATABASE)) == {"executed": 1}
    assert books.posted() == ["A"]


# -- batches --------------------------------------------------------------------------------------------


def test_a_batch_is_one_transaction(books: Books) -> None:
    def post(documents: list[dict[str, str]], attempt: int, connection: sa.Connection) -> int:
        for document in documents:
            books.post(document["no"], connection)
            if attempt == 1 and document["no"] == "D-0005":
                raise ValueError("no rate")
        return len(documents)

    listed = mapped(numbered(9))
    rules: dict[str, Any] = {
        "document_key": "no", "call_per": "batch", "batch_size": 3, "side_effect": DATABASE,
    }  # fmt: skip
    report = books.run(post, listed, **rules)
    assert counts(report) == {"executed": 6, "failed": 3}
    assert books.posted() == [*numbered(3), *numbered(3, 7)]
    again = books.run(post, list(reversed(listed)), try_number=2, **rules)
    assert counts(again) == {"executed": 3, "replayed": 6}
    assert sorted(books.posted()) == numbered(9)


def test_a_batch_that_commits_by_itself_is_in_doubt_together(books: Books) -> None:
    def post(documents: list[str], connection: sa.Connection) -> None:
        for document in documents:
            books.post(document, connection)
        connection.exec_driver_sql("COMMIT")

    rules: dict[str, Any] = {"call_per": "batch", "batch_size": 3, "side_effect": DATABASE}
    assert counts(books.run(post, numbered(3), **rules)) == {"in_doubt": 3}
    again = books.run(post, numbered(3), try_number=2, **rules)
    assert counts(again) == {"in_doubt": 3}
    assert isinstance(again.errors[0][1], InDoubt)
    assert books.posted() == numbered(3)


# -- threads --------------------------------------------------------------------------------------------


@databases(*SERVERS)
def test_sixteen_workers_post_each_document_once(books: Books) -> None:
    import threading

    together = threading.Barrier(16, timeout=QUIET_S)

    def post(document: str, attempt: int, connection: sa.Connection) -> None:
        books.post(document, connection)
        if attempt == 1:
            together.wait()
            if document == "D-0007":
                raise ValueError("no rate")

    report = books.run(post, numbered(32), max_workers=16, side_effect=DATABASE)
    assert counts(report) == {"executed": 31, "failed": 1}
    assert counts(books.run(post, numbered(32), try_number=2, max_workers=16, side_effect=DATABASE)) == {
        "replayed": 31, "executed": 1,
    }  # fmt: skip
    assert sorted(books.posted()) == numbered(32)


@databases("sqlite")
def test_sqlite_posts_one_after_another_however_many_workers(books: Books) -> None:
    report = books.run(books.post, numbered(20), max_workers=8, side_effect=DATABASE)
    assert counts(report) == {"executed": 20}
    assert books.posted() == numbered(20)
