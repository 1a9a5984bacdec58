"""A connection that is cut before, during or after a COMMIT, and commits that land after the client gave up."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from airflow_guard.core.errors import LedgerError, LedgerUnavailable, UnknownCommit
from airflow_guard.core.guard import Asking, TaskIdentity, Verdict, judge
from airflow_guard.core.states import FollowUp, Phase, State
from airflow_guard.store import business_transaction as business_module
from airflow_guard.store import database as database_module
from airflow_guard.store import resolution
from airflow_guard.store.business_transaction import BusinessTransaction, Ending
from airflow_guard.store.changes import BEGIN
from airflow_guard.store.database import LedgerDatabase
from airflow_guard.store.ledger import Ledger, Ownership
from chaos.cutting import PATIENCE_S, Proxy
from demo.postgres import EmbeddedPostgres
from tests.contract.attempts import SPACE, Attempt, attempt, documents_of, events_of, new_ledger, opened
from tests.contract.waiting import wait_until, wait_until_blocked
from tests.databases import POSTGRES, databases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from chaos.cutting import When
    from tests.databases import DatabaseServers, DatabaseUnderTest

ASKING = Asking(TaskIdentity("statements", "post", "manual__1"), "default")
KINDS = ("postgres_embedded", "mariadb")


class Cut:
    """A ledger, seen directly and through a proxy.

    ``when``: at which moment of the next commit :meth:`arm` cuts.
    """

    when: When = "after"

    def __init__(self, url: str) -> None:
        self.ledger = new_ledger(url)
        with self.ledger.database.engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE posting (name VARCHAR(40))")
        self.proxy = Proxy(url).__enter__()
        self.proxied = Ledger(LedgerDatabase(self.proxy.url))
        for engine in (self.proxied.database.engine, self.proxied.database.business_engine):
            engine.connect().close()  # the first connection asks the server about itself, and commits that

    def close(self) -> None:
        self.proxied.database.dispose()
        self.proxy.__exit__(None, None, None)
        self.ledger.database.dispose()

    def arm(self) -> None:
        self.proxy.cut_at_commit(self.when)

    def through(self, one: Attempt) -> Attempt:
        """The same attempt, whose calls go through the proxy."""
        return Attempt(self.proxied, one.space, one.own, one.documents)

    def postings(self) -> int:
        with self.ledger.database.engine.connect() as connection:
            return int(connection.exec_driver_sql("SELECT count(*) FROM posting").scalar_one())

    def post(self, one: Attempt) -> BusinessTransaction:
        """Run a business transaction through the proxy, up to a commit whose answer is lost."""
        business = self.proxied.transaction(one.own, one.hashes)
        with pytest.raises(UnknownCommit), business as connection:
            connection.exec_driver_sql("INSERT INTO posting VALUES ('S-1')")
            business.complete('"ok"')
        return business


@pytest.fixture
def cut(database: DatabaseUnderTest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cut]:
    monkeypatch.setattr(database_module, "LOCK_TIMEOUT_S", int(PATIENCE_S))
    sleep = time.sleep
    monkeypatch.setattr(database_module.time, "sleep", lambda seconds: sleep(min(seconds, 0.02)))
    made = Cut(database.url)
    yield made
    made.close()


# -- the ledger's own writes -------------------------------------------------------------------------------


def claim(cut: Cut) -> Attempt:
    documents = documents_of(SPACE, "claim")
    own = Ownership.new(SPACE.key_date, opened(cut.ledger), "test")
    cut.arm()
    assert cut.proxied.claim(own, SPACE, documents, []).keys() == {documents[0].key_hash}
    return Attempt(cut.ledger, SPACE, own, documents)


def claim_again(cut: Cut) -> Attempt:
    one = attempt(cut.ledger, "claim again").begin().fail("why")
    own = Ownership.new(SPACE.key_date, opened(cut.ledger), "test")
    cut.arm()
    assert cut.proxied.claim(own, SPACE, [], one.documents).keys() == set(one.hashes)
    return one


def take_over(cut: Cut) -> Attempt:
    one = attempt(cut.ledger, "take over").die()
    own = Ownership.new(SPACE.key_date, opened(cut.ledger), "test")
    cut.arm()
    assert cut.proxied.claim(own, SPACE, [], one.documents).keys() == set(one.hashes)
    return one


def begin(cut: Cut) -> Attempt:
    one = attempt(cut.ledger, "begin")
    cut.arm()
    cut.through(one).begin()
    return one


def complete(cut: Cut) -> Attempt:
    one = attempt(cut.ledger, "complete").begin()
    cut.arm()
    cut.through(one).complete("42")
    assert one.row().result == "42"
    return one


def complete_pending(cut: Cut) -> Attempt:
    one = attempt(cut.ledger, "complete pending").begin()
    cut.arm()
    cut.through(one).complete(None, FollowUp.PENDING)
    assert one.row().follow_up is FollowUp.PENDING
    return one


def complete_late(cut: Cut) -> Attempt:
    one = attempt(cut.ledger, "complete late").begin().die()
    cut.ledger.expire(SPACE.key_date, [one.row()], "watcher")
    cut.arm()
    cut.through(one).complete("42")
    return one


def fail(cut: Cut) -> Attempt:
    one = attempt(cut.ledger, "fail").begin()
    cut.arm()
    cut.through(one).fail("why")
    return one


def reject(cut: Cut) -> Attempt:
    one = attempt(cut.ledger, "reject").begin()
    cut.arm()
    cut.through(one).reject("why")
    return one


def doubt(cut: Cut) -> Attempt:
    one = attempt(cut.ledger, "doubt").begin()
    cut.arm()
    cut.through(one).doubt("why")
    return one


def conflict(cut: Cut) -> Attempt:
    one = attempt(cut.ledger, "conflict")
    cut.arm()
    assert cut.proxied.complete(one.own, one.hashes, "42") == set(one.hashes)
    return one


def follow_up(cut: Cut) -> Attempt:
    one = attempt(cut.ledger, "follow up").begin().complete(None, FollowUp.PENDING)
    cut.arm()
    assert cut.proxied.end_follow_up(one.own, one.hashes, outcome="7", failed=False, why=None, patience_s=0)
    assert one.row().result == "7"
    return one


def resolve(cut: Cut) -> Attempt:
    one = attempt(cut.ledger, "resolve").begin().doubt("why")
    cut.arm()
    resolution.resolve(
        cut.proxied,
        SPACE.key_date,
        one.hashes[0],
        one.own.token,
        "did_not_happen",
        actor="ada",
        reason="asked",
    )
    return one


WRITES: dict[Callable[[Cut], Attempt], tuple[State, Phase, int, list[str]]] = {
    claim: (State.IN_PROGRESS, Phase.NONE, 1, []),
    claim_again: (State.IN_PROGRESS, Phase.NONE, 2, []),
    take_over: (State.IN_PROGRESS, Phase.NONE, 2, ["take_over"]),
    begin: (State.IN_PROGRESS, Phase.BEGUN, 1, []),
    complete: (State.COMPLETED, Phase.DONE, 1, []),
    complete_pending: (State.COMPLETED, Phase.DONE, 1, []),
    complete_late: (State.COMPLETED, Phase.DONE, 1, ["doubt", "late_report"]),
    fail: (State.FAILED, Phase.NONE, 1, []),
    reject: (State.REJECTED, Phase.NONE, 1, []),
    doubt: (State.IN_DOUBT, Phase.BEGUN, 1, ["doubt"]),
    conflict: (State.IN_PROGRESS, Phase.NONE, 1, ["conflict"]),
    follow_up: (State.COMPLETED, Phase.DONE, 1, []),
    resolve: (State.FAILED, Phase.NONE, 1, ["doubt", "resolve_not_happened"]),
}


@databases(*KINDS)
@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_write_whose_answer_is_lost_is_repeated_and_has_one_effect(cut: Cut, when: When) -> None:
    """Each write is told as done, its row is where it should be, and its event is there once."""
    cut.when = when
    for write, (state, phase, number, events) in WRITES.items():
        one = write(cut)
        assert cut.proxy.was_cut(), write.__name__
        row = one.row()
        assert (row.state, row.phase, row.attempt) == (state, phase, number), write.__name__
        kinds = [event.kind for event in events_of(cut.ledger, SPACE.key_date, one.hashes[0])]
        assert kinds == events, write.__name__


@databases(*KINDS)
@pytest.mark.parametrize("write", [claim, begin, complete, fail], ids=lambda write: write.__name__)
def test_a_repeated_write_waits_for_the_commit_that_is_still_on_its_way(
    cut: Cut, write: Callable[[Cut], Attempt]
) -> None:
    """The old transaction is open and holds its rows: the repetition finds out only after it has ended."""
    cut.when = "held"
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write, cut)
        assert cut.proxy.was_cut()
        wait_until_blocked(cut.ledger)
        assert not writing.done()
        cut.proxy.let_go()
        one = writing.result(PATIENCE_S)
    state, phase, number, _ = WRITES[write]
    assert (one.row().state, one.row().phase, one.row().attempt) == (state, phase, number)


@databases(*KINDS)
def test_a_try_is_opened_and_closed_although_answers_are_lost(cut: Cut) -> None:
    for when in ("before", "after"):
        cut.proxy.cut_at_commit(when)
        one = attempt(cut.proxied, f"opened {when}")
        assert cut.proxy.was_cut()
        one.ledger = cut.ledger
        assert not one.row().lease_over
        cut.proxy.cut_at_commit(when)
        cut.proxied.runs.close(one.own.task_run_id, "failed", {})
        assert one.row().lease_over


@databases(*KINDS)
def test_a_ledger_that_stays_away_is_told_as_unknown_and_not_as_down(
    cut: Cut, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "UNKNOWN_COMMIT_PATIENCE_S", 0.1)
    one = attempt(cut.ledger)
    through = cut.through(one)
    cut.proxied.read(SPACE.key_date, one.hashes)
    cut.proxy.cut_at_commit("after")
    cut.proxy.let_nobody_in()
    with pytest.raises(UnknownCommit) as caught:
        through.begin()
    assert caught.value.retryable
    assert one.row().phase is Phase.BEGUN
    with pytest.raises(LedgerUnavailable):
        cut.proxied.fail(one.own, one.hashes, "why", begun=True)


# -- connections of MariaDB that are lost in another way ----------------------------------------------------


def closed(connection: sa.Connection) -> None:
    """The driver has closed its end: InterfaceError (0, '')."""
    connection.connection.driver_connection._force_close()


def killed(connection: sa.Connection) -> None:
    """An administrator ends the session."""
    (number,) = connection.exec_driver_sql("SELECT CONNECTION_ID()").one()
    other = sa.create_engine(connection.engine.url, poolclass=sa.NullPool)
    with other.connect() as administrator:
        administrator.exec_driver_sql(f"KILL {number}")


def out_of_step(connection: sa.Connection) -> None:
    """An answer was left unread, as by a timeout that struck within a call."""
    connection.connection.driver_connection._execute_command(3, "SELECT 1")


@databases("mariadb")
@pytest.mark.parametrize("lose", [closed, killed, out_of_step], ids=lambda lose: lose.__name__)
def test_a_write_whose_connection_mariadb_loses_at_its_commit_is_repeated(
    database: DatabaseUnderTest, lose: Callable[[sa.Connection], None]
) -> None:
    ledger = new_ledger(database.url)
    one, times = attempt(ledger), list[None]()

    def work(connection: sa.Connection) -> set[str]:
        lost = ledger.apply(connection, one.own, BEGIN, one.hashes, batch=None)
        times.append(None)
        if len(times) == 1:
            lose(connection)
        return lost

    assert ledger.write(work) == set()
    assert len(times) == 2
    assert one.row().phase is Phase.BEGUN
    ledger.database.dispose()


@databases("mariadb", "postgres_embedded")
def test_a_write_that_goes_on_after_its_connection_broke_ends_in_a_typed_error(
    database: DatabaseUnderTest,
) -> None:
    ledger = new_ledger(database.url)
    one = attempt(ledger)

    def work(connection: sa.Connection) -> set[str]:
        lost = ledger.apply(connection, one.own, BEGIN, one.hashes, batch=None)
        connection.connection.driver_connection.close()
        with suppress(sa.exc.DBAPIError):
            connection.exec_driver_sql("SELECT 1")
        return lost

    with pytest.raises(LedgerUnavailable) as caught:
        ledger.write(work)
    assert caught.value.retryable
    assert one.row().phase is Phase.NONE
    ledger.database.dispose()


@databases("mariadb")
@pytest.mark.parametrize("lose", [closed, killed], ids=lambda lose: lose.__name__)
def test_a_business_transaction_whose_connection_mariadb_loses_ends_in_a_typed_error(
    database: DatabaseUnderTest, lose: Callable[[sa.Connection], None]
) -> None:
    ledger = new_ledger(database.url)
    one = attempt(ledger)
    business = ledger.transaction(one.own, one.hashes)
    with pytest.raises(LedgerError) as caught, business as connection:
        lose(connection)
        business.complete('"ok"')
    assert caught.value.retryable
    assert not business.self_ended, "nobody but MariaDB ended it"
    assert business.ending() is Ending.ROLLED_BACK
    ledger.database.dispose()


# -- business transactions ---------------------------------------------------------------------------------


@databases(*KINDS)
@pytest.mark.parametrize(
    ("when", "ending"), [("before", Ending.ROLLED_BACK), ("during", None), ("after", Ending.COMMITTED)]
)
def test_what_became_of_a_business_transaction_is_found_out(
    cut: Cut, when: When, ending: Ending | None
) -> None:
    one = attempt(cut.ledger)
    cut.proxy.cut_at_commit(when)
    found = cut.post(one).ending()
    assert ending in (None, found)
    assert cut.postings() == (found is Ending.COMMITTED)
    expected = State.COMPLETED if found is Ending.COMMITTED else State.IN_PROGRESS
    assert one.row().state is expected


@databases(*KINDS)
def test_a_business_commit_that_lands_after_the_client_gave_up_is_waited_for(cut: Cut) -> None:
    one = attempt(cut.ledger)
    cut.proxy.cut_at_commit("held")
    business = cut.post(one)
    assert cut.postings() == 0
    assert judge(one.die().row(), ASKING).verdict is Verdict.TAKE_OVER, "a plain read decides nothing"
    other = Ownership.new(SPACE.key_date, opened(cut.ledger), "other")
    assert cut.ledger.claim(other, SPACE, [], one.documents) == {}
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(business.ending)
        wait_until_blocked(cut.ledger)
        cut.proxy.let_go()
        assert ending.result(PATIENCE_S) is Ending.COMMITTED
    assert cut.postings() == 1


@databases(*KINDS)
def test_a_business_commit_that_does_not_land_in_time_is_unknown_and_never_rolled_back(
    cut: Cut, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "LOCK_TIMEOUT_S", 1)
    monkeypatch.setattr(business_module, "UNKNOWN_COMMIT_PATIENCE_S", 0.0)
    cut.proxied.database.dispose()  # its connections wait for longer
    one = attempt(cut.ledger)
    cut.proxy.cut_at_commit("held")
    business = cut.post(one)
    with pytest.raises(UnknownCommit):
        business.ending()
    cut.proxy.let_go()
    assert business.ending() is Ending.COMMITTED
    assert cut.postings() == 1


# -- a standby that holds the commit -----------------------------------------------------------------------


@pytest.fixture
def own_postgres(database_servers: DatabaseServers) -> Iterator[EmbeddedPostgres]:
    """A server whose settings this test may change."""
    with EmbeddedPostgres(settings={"fsync": "off"}) as server:
        yield server


@databases("postgres_embedded")
def test_a_commit_that_a_standby_holds_is_unknown_until_it_lands(
    database: DatabaseUnderTest, own_postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has committed and waits for a standby that is not there; the client's connection is cut."""
    monkeypatch.setattr(database_module, "LOCK_TIMEOUT_S", 1)
    monkeypatch.setattr(business_module, "UNKNOWN_COMMIT_PATIENCE_S", 0.0)
    cut = Cut(own_postgres.url())
    one = attempt(cut.ledger).die()
    other = Ownership.new(SPACE.key_date, opened(cut.ledger), "other")
    admin = sa.create_engine(own_postgres.url(), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)

    def standby(name: str) -> None:
        with admin.connect() as connection:
            connection.exec_driver_sql(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
            connection.exec_driver_sql("SELECT pg_reload_conf()")
        wait_until(admin, f"SELECT current_setting('synchronous_standby_names') = '{name}'")

    standby("away")
    with ThreadPoolExecutor(1) as pool:
        posting = pool.submit(cut.post, one)
        wait_until(admin, "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        cut.proxy.cut_clients()
        business = posting.result(PATIENCE_S)
    with pytest.raises(UnknownCommit):
        business.ending()
    assert cut.postings() == 0
    assert cut.ledger.claim(other, SPACE, [], one.documents) == {}
    standby("")
    wait_until(admin, "SELECT count(*) = 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
    assert business.ending() is Ending.COMMITTED
    assert cut.postings() == 1
    assert one.row().state is State.COMPLETED
    admin.dispose()
    cut.close()


# -- a server that acknowledges before it has written ------------------------------------------------------


@databases(*POSTGRES)
def test_where_synchronous_commit_is_off_the_ledger_switches_it_on_for_its_transactions_only(
    database: DatabaseUnderTest,
) -> None:
    own = database.server.fresh_database()
    admin = sa.create_engine(own.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with admin.connect() as connection:
        name = sa.make_url(own.url).database
        connection.exec_driver_sql(f"ALTER DATABASE {name} SET synchronous_commit = off")
    ledger, show = new_ledger(own.url), "SHOW synchronous_commit"
    seen = {
        "a session": ledger.database.read(lambda c: c.exec_driver_sql(show).scalar_one()),
        "a write": ledger.write(lambda c: c.exec_driver_sql(show).scalar_one()),
        "the session after it": ledger.database.read(lambda c: c.exec_driver_sql(show).scalar_one()),
    }
    one = attempt(ledger, "a", "b").begin()
    directly = ledger.database.at_once()
    assert not ledger.complete_and_begin(one.own, {one.hashes[0]: "1"}, [], directly), (
        "one round trip cannot switch it on"
    )
    posting = attempt(ledger, "c")
    business = ledger.transaction(posting.own, posting.hashes)
    with business as connection:
        seen["a business transaction"] = connection.exec_driver_sql(show).scalar_one()
        business.complete(None)
    ledger.database.dispose()
    admin.dispose()
    database.server.drop(own)
    assert seen == {
        "a session": "off", "a write": "on", "the session after it": "off", "a business transaction": "on",
    }  # fmt: skip
