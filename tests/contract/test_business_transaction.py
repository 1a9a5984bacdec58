"""Business rows and completion commit together or not at all, whatever the callable does to its connection."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from airflow_guard.core.errors import GuardError, LedgerUnavailable, OwnershipLost, TransactionError
from airflow_guard.core.guard import Asking, TaskIdentity, Verdict, judge
from airflow_guard.core.states import Phase, State
from airflow_guard.store.business_transaction import BusinessTransaction, Ending
from airflow_guard.store.changes import Ownership
from tests.contract.attempts import Attempt, attempt, opened
from tests.databases import POSTGRES, SERVERS, databases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_guard.core.keys import KeySpace
    from airflow_guard.store.ledger import Ledger

ASKING = Asking(TaskIdentity("statements", "post", "manual__1"), "default")


@pytest.fixture
def posted(shared_ledger: Ledger) -> Iterator[Callable[[str], int]]:
    """A business table; the fixture counts the postings of a name."""
    engine = shared_ledger.database.engine
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS posting")
        connection.exec_driver_sql("CREATE TABLE posting (name VARCHAR(40) UNIQUE)")

    def count(name: str) -> int:
        with engine.connect() as connection:
            found = sa.text("SELECT count(*) FROM posting WHERE name = :name")
            return connection.execute(found, {"name": name}).scalar_one()

    yield count
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE posting")


def post(connection: sa.Connection, name: str = "S-1") -> None:
    connection.execute(sa.text("INSERT INTO posting VALUES (:name)"), {"name": name})


def transaction(one: Attempt) -> BusinessTransaction:
    return one.ledger.transaction(one.own, one.hashes)


def run(one: Attempt, callable_: Callable[[sa.Connection], object]) -> Ending:
    """Call it as an operator would, and return what the ledger says of it afterwards."""
    business = transaction(one)
    with business as connection:
        callable_(connection)
        business.complete('"ok"')
    return business.ending()


# -- together or not at all --------------------------------------------------------------------------------


def test_business_rows_and_completion_commit_together(
    shared_ledger: Ledger, space: KeySpace, posted: Callable[[str], int]
) -> None:
    one = attempt(shared_ledger, "a", "b", space=space)
    assert run(one, post) is Ending.COMMITTED
    assert posted("S-1") == 1
    assert [(one.row(n).state, one.row(n).phase, one.row(n).result) for n in range(2)] == [
        (State.COMPLETED, Phase.DONE, '"ok"')
    ] * 2


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_any_exception_rolls_both_back(
    shared_ledger: Ledger, space: KeySpace, posted: Callable[[str], int], error: type[BaseException]
) -> None:
    one = attempt(shared_ledger, space=space)
    business = transaction(one)
    with pytest.raises(error), business as connection:
        post(connection)
        raise error
    assert business.ending() is Ending.ROLLED_BACK
    assert posted("S-1") == 0
    assert (one.row().state, one.row().phase) == (State.IN_PROGRESS, Phase.NONE)
    assert run(one, post) is Ending.COMMITTED


def test_nothing_begins_for_keys_that_another_attempt_owns(
    shared_ledger: Ledger, space: KeySpace, posted: Callable[[str], int]
) -> None:
    one = attempt(shared_ledger, "a", "b", space=space)
    shared_ledger.fail(one.own, one.hashes[1:], "why", begun=False)
    with pytest.raises(OwnershipLost, match="1 of 2"):
        run(one, post)
    assert posted("S-1") == 0
    assert transaction(one).ending() is Ending.LOST
    assert one.row().phase is Phase.NONE


def test_a_savepoint_of_the_callable_saves_it_from_an_error_of_its_own(
    shared_ledger: Ledger, space: KeySpace, posted: Callable[[str], int]
) -> None:
    def twice(connection: sa.Connection) -> None:
        post(connection)
        with suppress(sa.exc.IntegrityError), connection.begin_nested():
            post(connection)
        with connection.begin_nested():
            post(connection, "S-2")

    assert run(attempt(shared_ledger, space=space), twice) is Ending.COMMITTED
    assert (posted("S-1"), posted("S-2")) == (1, 1)


@databases(*SERVERS)
def test_while_it_lasts_others_see_an_attempt_that_has_not_begun_and_cannot_take_it(
    shared_ledger: Ledger, space: KeySpace, posted: Callable[[str], int]
) -> None:
    one = attempt(shared_ledger, space=space)
    business = transaction(one)
    with business as connection:
        post(connection)
        one.die()
        assert judge(one.row(), ASKING).verdict is Verdict.TAKE_OVER
        other = Ownership.new(space.key_date, opened(shared_ledger, space), "other")
        assert shared_ledger.claim(other, space, [], one.documents) == {}
        business.complete(None)
    assert one.row().state is State.COMPLETED
    assert posted("S-1") == 1


# -- a callable that ends the transaction ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["commit", "rollback", "close", "detach", "get_transaction", "invalidate"])
def test_what_would_end_the_transaction_is_refused_and_nothing_happens(
    shared_ledger: Ledger, space: KeySpace, posted: Callable[[str], int], name: str
) -> None:
    one = attempt(shared_ledger, space=space)
    with pytest.raises(TransactionError, match=rf"{name}\(\)"):
        run(one, lambda connection: (post(connection), getattr(connection, name)()))
    assert transaction(one).ending() is Ending.ROLLED_BACK
    assert posted("S-1") == 0


def test_a_refusal_that_the_callable_swallows_changes_nothing(
    shared_ledger: Ledger, space: KeySpace, posted: Callable[[str], int]
) -> None:
    def stubborn(connection: sa.Connection) -> None:
        post(connection)
        with suppress(GuardError):
            connection.commit()

    assert run(attempt(shared_ledger, space=space), stubborn) is Ending.COMMITTED
    assert posted("S-1") == 1


def driver_commit(connection: sa.Connection) -> None:
    connection.connection.driver_connection.commit()


@pytest.mark.parametrize(
    "end", [driver_commit, lambda connection: connection.exec_driver_sql("COMMIT")], ids=["driver", "sql"]
)
@pytest.mark.parametrize("then", ["nothing", "more", "error"])
def test_a_commit_past_the_refusal_is_seen_and_is_in_doubt(
    shared_ledger: Ledger,
    space: KeySpace,
    posted: Callable[[str], int],
    end: Callable[..., object],
    then: str,
) -> None:
    def commits(connection: sa.Connection) -> None:
        post(connection)
        end(connection)
        if then == "more":
            post(connection, "S-2")
        if then == "error":
            raise ValueError

    one = attempt(shared_ledger, space=space)
    with pytest.raises(ValueError if then == "error" else TransactionError):
        run(one, commits)
    assert posted("S-1") == 1
    assert transaction(one).ending() is Ending.SELF_COMMITTED
    assert (one.row().state, one.row().phase) == (State.IN_PROGRESS, Phase.IN_TRANSACTION)
    one.doubt("the callable committed by itself")
    assert transaction(one).ending() is Ending.SELF_COMMITTED
    one.die()
    assert judge(one.row(), ASKING).verdict is Verdict.DOUBT


def test_a_rollback_past_the_refusal_completes_nothing(
    shared_ledger: Ledger, space: KeySpace, posted: Callable[[str], int]
) -> None:
    def rolls_back(connection: sa.Connection) -> None:
        post(connection)
        connection.exec_driver_sql("ROLLBACK")

    one = attempt(shared_ledger, space=space)
    with pytest.raises(TransactionError):
        run(one, rolls_back)
    assert posted("S-1") == 0
    assert transaction(one).ending() is Ending.ROLLED_BACK


def create_table(connection: sa.Connection) -> None:
    post(connection)
    connection.exec_driver_sql("CREATE TABLE made_by_callable (id INTEGER)")


@databases("sqlite", *POSTGRES)
def test_ddl_belongs_to_the_transaction_where_the_database_lets_it(
    shared_ledger: Ledger, space: KeySpace, posted: Callable[[str], int]
) -> None:
    assert run(attempt(shared_ledger, space=space), create_table) is Ending.COMMITTED
    with shared_ledger.database.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE made_by_callable")


@databases("mariadb")
def test_ddl_that_commits_implicitly_is_seen_and_is_in_doubt(
    shared_ledger: Ledger, space: KeySpace, posted: Callable[[str], int]
) -> None:
    one = attempt(shared_ledger, space=space)
    with pytest.raises(TransactionError, match="DDL"):
        run(one, create_table)
    assert posted("S-1") == 1
    assert transaction(one).ending() is Ending.SELF_COMMITTED
    with shared_ledger.database.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE made_by_callable")


@databases(*POSTGRES)
def test_an_error_that_the_callable_swallows_is_named(
    shared_ledger: Ledger, space: KeySpace, posted: Callable[[str], int]
) -> None:
    """The transaction is aborted; "current transaction is aborted" would send the author looking elsewhere."""

    def swallows(connection: sa.Connection) -> None:
        post(connection)
        with suppress(sa.exc.IntegrityError):
            post(connection)

    one = attempt(shared_ledger, space=space)
    with pytest.raises(TransactionError, match="begin_nested"):
        run(one, swallows)
    assert posted("S-1") == 0
    assert transaction(one).ending() is Ending.ROLLED_BACK


# -- a connection that breaks ------------------------------------------------------------------------------


def cut(ledger: Ledger, connection: sa.Connection) -> None:
    """End the session of a connection from the server's side."""
    postgres = ledger.database.dialect == "postgresql"
    mine = connection.exec_driver_sql(
        "SELECT pg_backend_pid()" if postgres else "SELECT connection_id()"
    ).scalar_one()
    with ledger.database.engine.connect() as other:
        other.exec_driver_sql(f"SELECT pg_terminate_backend({mine}, 5000)" if postgres else f"KILL {mine}")


@databases(*SERVERS)
def test_a_connection_that_breaks_in_the_callable_is_told_as_that(
    shared_ledger: Ledger, space: KeySpace, posted: Callable[[str], int]
) -> None:
    def broken(connection: sa.Connection) -> None:
        post(connection)
        cut(shared_ledger, connection)
        post(connection, "S-2")

    one = attempt(shared_ledger, space=space)
    with pytest.raises(sa.exc.DBAPIError) as caught:
        run(one, broken)
    assert caught.value.connection_invalidated
    assert transaction(one).ending() is Ending.ROLLED_BACK
    assert posted("S-1") == 0
    assert run(one, post) is Ending.COMMITTED, "the pool gave the broken connection out again"


@databases(*SERVERS)
@pytest.mark.parametrize("swallowed", [True, False])
def test_a_connection_that_broke_is_no_mistake_of_the_callable(
    shared_ledger: Ledger, space: KeySpace, posted: Callable[[str], int], swallowed: bool
) -> None:
    def broken(connection: sa.Connection) -> None:
        post(connection)
        cut(shared_ledger, connection)
        if swallowed:
            with suppress(sa.exc.DBAPIError):
                post(connection, "S-2")

    one = attempt(shared_ledger, space=space)
    with pytest.raises(LedgerUnavailable):
        run(one, broken)
    assert transaction(one).ending() is Ending.ROLLED_BACK
    assert posted("S-1") == 0
    assert run(one, post) is Ending.COMMITTED
