"""Several at once: every race is forced by a held lock, a barrier or a process that is stopped, never by luck."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard.core.errors import GuardError, LedgerBusy
from airflow_guard.core.guard import Verdict
from airflow_guard.core.states import Phase, State
from airflow_guard.store import database as database_module
from airflow_guard.store.business_transaction import Ending
from airflow_guard.store.changes import Ownership
from airflow_guard.store.database import LedgerDatabase
from airflow_guard.store.ledger import Ledger
from tests.contract.attempts import SPACE, attempt, documents_of, events_of, new_ledger, opened
from tests.contract.racing import KEYS, race
from tests.contract.waiting import PATIENCE_S, wait_until_blocked
from tests.databases import POSTGRES, SERVERS, databases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_guard.core.documents import Document
    from airflow_guard.core.keys import KeySpace
    from tests.databases import DatabaseUnderTest

PROCESSES = 8


def owner(ledger: Ledger, space: KeySpace, actor: str = "other") -> Ownership:
    return Ownership.new(space.key_date, opened(ledger, space), actor)


@pytest.fixture
def patient_ledger(database: DatabaseUnderTest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """A ledger that waits for locks as long as the test does."""
    monkeypatch.setattr(database_module, "LOCK_TIMEOUT_S", int(PATIENCE_S))
    ledger = new_ledger(database.url)
    yield ledger
    ledger.database.dispose()


@contextmanager
def stepped(ledger: Ledger) -> Iterator[sa.Connection]:
    """A transaction of another session, which is rolled back unless the test commits it."""
    connection = ledger.database.engine.connect()
    try:
        connection.begin()
        yield connection
    finally:
        connection.close()


# -- many processes ----------------------------------------------------------------------------------------


def test_many_processes_at_one_key_execute_it_once(database: DatabaseUnderTest) -> None:
    ledger = new_ledger(database.url)
    with ledger.database.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE effect (name VARCHAR(40))")
    verdicts = race(database.url, PROCESSES)
    assert [first for first, *_ in verdicts] == [Verdict.CLAIM] * PROCESSES
    with ledger.database.engine.connect() as connection:
        effects = connection.exec_driver_sql("SELECT name FROM effect ORDER BY name").scalars().all()
    assert effects == list(KEYS)
    rows = ledger.read(SPACE.key_date, [document.key_hash for document in documents_of(SPACE, *effects)])
    assert {(row.state, row.attempt) for row in rows.values()} == {(State.COMPLETED, 1)}
    ledger.database.dispose()


def claim_parameters(ledger: Ledger, own: Ownership, space: KeySpace, documents: list[Document]) -> Any:
    keys = {document.key_hash: document.idempotency_key for document in documents}
    return ledger._claim_parameters(own, space, documents, keys, 1)


# -- batches -----------------------------------------------------------------------------------------------


@databases(*SERVERS)
def test_batches_claimed_in_opposite_orders_do_not_block_each_other_for_good(
    patient_ledger: Ledger, space: KeySpace
) -> None:
    """Both meet at a key that a third holds: one waits there with its first keys claimed, the other before them."""
    documents = sorted(documents_of(space, *map(str, range(9))), key=lambda document: document.key_hash)
    owners = [owner(patient_ledger, space, name) for name in ("third", "up", "down")]
    s = patient_ledger.statements
    with stepped(patient_ledger) as third, ThreadPoolExecutor(2) as pool:
        middle = claim_parameters(patient_ledger, owners[0], space, documents[4:5])
        third.execute(s.insert_claims, middle)
        up = pool.submit(patient_ledger.claim, owners[1], space, documents, [])
        wait_until_blocked(patient_ledger)
        down = pool.submit(patient_ledger.claim, owners[2], space, documents[::-1], [])
        wait_until_blocked(patient_ledger, 2)
        third.commit()
        won = [set(up.result(PATIENCE_S)), set(down.result(PATIENCE_S))]
    assert won[0] | won[1] == {document.key_hash for document in documents} - {documents[4].key_hash}
    assert not won[0] & won[1]
    assert set() in won, "the first claim had the first key, so the other could only wait for it"


@databases(*SERVERS)
def test_a_deadlock_is_repeated_until_both_are_done(shared_ledger: Ledger, space: KeySpace) -> None:
    one = attempt(shared_ledger, "a", "b", space=space).begin()
    both, runs = threading.Barrier(2), []

    def crosswise(first: str, second: str) -> None:
        def work(connection: sa.Connection) -> None:
            runs.append(first)
            shared_ledger.statements.lock.run(connection, space.key_date, [first]).all()
            if len(runs) <= 2:
                both.wait(PATIENCE_S)
            shared_ledger.statements.lock.run(connection, space.key_date, [second]).all()

        shared_ledger.write(work)

    with ThreadPoolExecutor(2) as pool:
        crossing = [pool.submit(crosswise, *one.hashes), pool.submit(crosswise, *one.hashes[::-1])]
        for each in crossing:
            each.result(PATIENCE_S)
    assert len(runs) >= 3


# -- held locks --------------------------------------------------------------------------------------------


def test_a_key_that_another_session_is_inserting_counts_as_in_progress_elsewhere(
    database: DatabaseUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "LOCK_TIMEOUT_S", 1)
    ledger = new_ledger(database.url)
    (document,) = documents_of(SPACE, "INV-1")
    own, other = owner(ledger, SPACE, "me"), owner(ledger, SPACE)
    with stepped(ledger) as held:
        held.execute(ledger.statements.insert_claims, claim_parameters(ledger, other, SPACE, [document]))
        with pytest.raises(LedgerBusy) as caught:
            ledger.claim(own, SPACE, [document], [])
    assert caught.value.retryable
    assert ledger.claim(own, SPACE, [document], []).keys() == {document.key_hash}
    ledger.database.dispose()


@databases(*SERVERS)
def test_a_locked_key_is_not_waited_for_and_the_others_are_claimed(
    shared_ledger: Ledger, space: KeySpace
) -> None:
    one = attempt(shared_ledger, "a", "b", space=space).die()
    with stepped(shared_ledger) as held:
        shared_ledger.statements.lock.run(held, space.key_date, one.hashes[:1]).all()
        won = shared_ledger.claim(owner(shared_ledger, space), space, [], one.documents)
    assert set(won) == {one.hashes[1]}


class AfterALock:
    """A statement before which something else happens."""

    def __init__(self, statement: Any, before: Callable[[], object]) -> None:
        self._statement, self._before = statement, before

    def run(self, *arguments: Any, **values: Any) -> Any:
        self._before()
        return self._statement.run(*arguments, **values)


@databases(*SERVERS)
def test_an_attempt_that_renews_while_it_is_taken_over_stays_and_nothing_else_is_told(
    shared_ledger: Ledger, space: KeySpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row was found claimable and locked, and then its lease lived again."""
    one, dead = attempt(shared_ledger, "a", space=space).die(), attempt(shared_ledger, "b", space=space).die()
    renewed = AfterALock(
        shared_ledger.statements.take, lambda: shared_ledger.runs.renew(one.own.task_run_id, 60)
    )
    monkeypatch.setattr(shared_ledger.statements, "take", renewed)
    won = shared_ledger.claim(owner(shared_ledger, space), space, [], [*one.documents, *dead.documents])
    assert set(won) == set(dead.hashes)
    assert shared_ledger.begin(one.own, one.hashes) == set()
    assert events_of(shared_ledger, space.key_date, one.hashes[0]) == []
    assert [event.kind for event in events_of(shared_ledger, space.key_date, dead.hashes[0])] == ["take_over"]


@databases(*SERVERS)
@pytest.mark.parametrize("first", ["begin", "take_over"])
def test_a_begin_and_a_take_over_at_the_same_moment_have_one_winner(
    patient_ledger: Ledger, space: KeySpace, first: str
) -> None:
    one = attempt(patient_ledger, space=space).die()
    other, s = owner(patient_ledger, space), patient_ledger.statements
    with stepped(patient_ledger) as held, ThreadPoolExecutor(1) as pool:
        if first == "begin":
            s.begin.run(held, space.key_date, one.hashes, token=one.own.token, batch=None)
            late = pool.submit(lambda: set(patient_ledger.claim(other, space, [], one.documents)))
            assert late.result(PATIENCE_S) == set()
        else:
            s.take.run(held, space.key_date, one.hashes, token=other.token, run=other.task_run_id)
            late = pool.submit(patient_ledger.begin, one.own, one.hashes)
            wait_until_blocked(patient_ledger)
        held.commit()
        assert late.result(PATIENCE_S) == (set() if first == "begin" else set(one.hashes))
    row = one.row()
    assert (row.owner_token, row.phase) == (
        (one.own.token, Phase.BEGUN) if first == "begin" else (other.token, Phase.NONE)
    )


@databases(*SERVERS)
@pytest.mark.parametrize("report", ["complete", "fail", "reject", "doubt"])
def test_who_reports_late_does_not_wait_for_whoever_holds_the_key_now(
    shared_ledger: Ledger, space: KeySpace, report: str
) -> None:
    """The new owner holds its row for as long as its callable runs; the old one has nothing to wait for."""
    one = attempt(shared_ledger, space=space).die()
    again = attempt(shared_ledger, space=space, known=True)
    late: Any = {
        "complete": lambda: shared_ledger.complete(one.own, one.hashes, "1"),
        "fail": lambda: shared_ledger.fail(one.own, one.hashes, "why", begun=True),
        "reject": lambda: shared_ledger.reject(one.own, one.hashes, "why"),
        "doubt": lambda: shared_ledger.doubt(one.own, one.hashes, "why"),
    }[report]
    with shared_ledger.transaction(again.own, again.hashes), ThreadPoolExecutor(1) as pool:
        assert pool.submit(late).result(PATIENCE_S / 10) == set(one.hashes)
        ended = shared_ledger.transaction(one.own, one.hashes)
        assert pool.submit(ended.ending).result(PATIENCE_S / 10) is Ending.LOST


# -- servers with another isolation level ------------------------------------------------------------------


def strict(database: DatabaseUnderTest, level: str) -> sa.URL:
    """The same database, where sessions are as strict as some servers make them by default."""
    url = sa.make_url(database.url)
    if database.kind == "mariadb":
        return url.update_query_dict({"init_command": f"SET SESSION TRANSACTION ISOLATION LEVEL {level}"})
    option = level.lower().replace(" ", "\\ ")
    return url.update_query_dict(
        {"options": f"{url.query['options']} -cdefault_transaction_isolation={option}"}
    )


@pytest.fixture(params=["REPEATABLE READ", "SERIALIZABLE"])
def strict_ledger(
    database: DatabaseUnderTest, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ledger]:
    monkeypatch.setattr(database_module, "LOCK_TIMEOUT_S", int(PATIENCE_S))
    new_ledger(database.url).database.dispose()
    ledger = Ledger(LedgerDatabase(strict(database, request.param)))
    with ledger.database.business_engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE posting (name VARCHAR(40))")
        variable = (
            "@@tx_isolation" if database.kind == "mariadb" else "current_setting('transaction_isolation')"
        )
        assert (
            connection.exec_driver_sql(f"SELECT {variable}").scalar_one().upper().replace("-", " ")
            == request.param
        )
    yield ledger
    ledger.database.dispose()


@databases(*SERVERS)
def test_on_a_strict_server_the_ledger_works_as_on_any_other(strict_ledger: Ledger) -> None:
    ledger = strict_ledger
    one = attempt(ledger, "a").die()
    assert set(ledger.claim(owner(ledger, SPACE), SPACE, documents_of(SPACE, "b"), one.documents)) == {
        document.key_hash for document in documents_of(SPACE, "a", "b")
    }
    assert ledger.begin(one.own, one.hashes) == set(one.hashes)
    done = attempt(ledger, "c")
    business = ledger.transaction(done.own, done.hashes)
    with business as connection:
        connection.exec_driver_sql("INSERT INTO posting VALUES ('c')")
        business.complete(None)
    assert business.ending() is Ending.COMMITTED


@databases(*SERVERS)
def test_on_a_strict_server_a_claim_sees_what_others_commit_while_it_waits(strict_ledger: Ledger) -> None:
    """A snapshot from before the wait would fail here, or find the key free."""
    ledger = strict_ledger
    (document,) = documents_of(SPACE, "INV-1")
    with stepped(ledger) as held, ThreadPoolExecutor(1) as pool:
        other = owner(ledger, SPACE)
        held.execute(ledger.statements.insert_claims, claim_parameters(ledger, other, SPACE, [document]))
        mine = pool.submit(ledger.claim, owner(ledger, SPACE, "me"), SPACE, [document], [])
        wait_until_blocked(ledger)
        held.commit()
        assert mine.result(PATIENCE_S) == {}


@databases(*SERVERS)
def test_on_a_strict_server_a_business_transaction_that_comes_late_is_told_to_try_again(
    strict_ledger: Ledger,
) -> None:
    """Its key is taken over while it waits for the row: a serialisation failure there, a lost key here."""
    ledger = strict_ledger
    one = attempt(ledger, "a").die()
    other = owner(ledger, SPACE)

    def enter() -> None:
        with ledger.transaction(one.own, one.hashes):
            raise AssertionError("entered")

    with stepped(ledger) as held, ThreadPoolExecutor(1) as pool:
        ledger.statements.take.run(held, SPACE.key_date, one.hashes, token=other.token, run=other.task_run_id)
        late = pool.submit(enter)
        wait_until_blocked(ledger)
        held.commit()
        with pytest.raises(GuardError) as caught:
            late.result(PATIENCE_S)
    assert caught.value.retryable
    assert one.row().owner_token == other.token


@databases(*POSTGRES)
def test_a_commit_that_fails_to_serialise_is_rolled_back_and_told_to_try_again(
    database: DatabaseUnderTest,
) -> None:
    new_ledger(database.url).database.dispose()
    ledger = Ledger(LedgerDatabase(strict(database, "SERIALIZABLE")))
    with ledger.database.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE posting (name VARCHAR(40))")
    attempts = [attempt(ledger, "a"), attempt(ledger, "b")]
    first, second = (ledger.transaction(one.own, one.hashes) for one in attempts)
    with first as one, second as two:
        for connection in (one, two):  # each reads what the other writes
            connection.exec_driver_sql("SELECT count(*) FROM posting")
            connection.exec_driver_sql("INSERT INTO posting VALUES ('x')")
        first.complete(None)
        with pytest.raises(GuardError) as caught:
            second.complete(None)
    assert caught.value.retryable
    assert (first.ending(), second.ending()) == (Ending.COMMITTED, Ending.ROLLED_BACK)
    ledger.database.dispose()
