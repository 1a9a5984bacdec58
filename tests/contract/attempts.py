"""Attempts at keys of a real ledger, stepped by a test, and sessions that meet at one row."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.documents import Document
from airflow_guard.core.guard import TaskIdentity
from airflow_guard.core.keys import KeySpace, batch_id_of
from airflow_guard.core.states import FollowUp
from airflow_guard.store.changes import Ownership
from airflow_guard.store.database import LedgerDatabase
from airflow_guard.store.dialects import utc_after
from airflow_guard.store.ledger import Ledger
from airflow_guard.store.migrate import partition
from airflow_guard.store.task_runs import TaskTry
from demo.waiting import QUIET_S
from tests.databases import wants_partitions
from tests.ledgers import migrated

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_guard.core.guard import LedgerRow
    from tests.databases import DatabaseUnderTest

DAY = date(2025, 3, 31)
SPACE = KeySpace("statements", "post_statement", DAY)
_PATIENCE_S = QUIET_S


def new_ledger(url: str) -> Ledger:
    """Return a migrated ledger; its engines are disposed of with ``ledger.database.dispose()``."""
    database = LedgerDatabase(url)
    migrated(database)
    if wants_partitions(url):
        partition(database)
    return Ledger(database)


@dataclass
class Attempt:
    """One attempt at some documents of a space, its claim done."""

    ledger: Ledger
    space: KeySpace
    own: Ownership
    documents: list[Document]

    @property
    def hashes(self) -> list[str]:
        return [document.key_hash for document in self.documents]

    def begin(self, *, batch: bool = False) -> Attempt:
        """Commit that the effect has begun."""
        batch_id = batch_id_of(document.idempotency_key for document in self.documents) if batch else None
        assert self.ledger.begin(self.own, self.hashes, batch_id) == set()
        return self

    def die(self) -> Attempt:
        """Let the lease be over by the database's clock, as after a kill."""
        lease = self.ledger.database.tables.lease
        over = sa.update(lease).where(lease.c.task_run_id == self.own.task_run_id)
        with self.ledger.database.engine.begin() as connection:
            connection.execute(over.values(expires_at=utc_after(sa.bindparam("seconds"))), {"seconds": -1})
        return self

    def complete(self, outcome: str | None = None, follow_up: FollowUp = FollowUp.NONE) -> Attempt:
        assert self.ledger.complete(self.own, self.hashes, outcome, follow_up=follow_up) == set()
        return self

    def reject(self, why: str) -> Attempt:
        assert self.ledger.reject(self.own, self.hashes, why) == set()
        return self

    def doubt(self, why: str) -> Attempt:
        assert self.ledger.doubt(self.own, self.hashes, why) == set()
        return self

    def fail(self, why: str) -> Attempt:
        assert self.ledger.fail(self.own, self.hashes, why, begun=True) == set()
        return self

    def row(self, document: int = 0) -> LedgerRow:
        return self.ledger.read(self.space.key_date, self.hashes)[self.hashes[document]]


def documents_of(space: KeySpace, *names: str | None) -> list[Document]:
    """Return documents as a task would list them."""
    hasher = space.hasher()
    hashes = [hasher.key_hash(name) for name in names]
    return [Document(name, name, key_hash, hasher) for name, key_hash in zip(names, hashes, strict=True)]


def opened(ledger: Ledger, space: KeySpace = SPACE, run_id: str = "scheduled__2025-03-31", **who: Any) -> int:
    """Record a task try with a lease that outlasts the test."""
    identity = TaskIdentity(
        **{
            "dag_id": space.key_namespace, "task_id": "post", "run_id": run_id, "run_type": "scheduled",
            "host": "worker-7", "pid": 4711, **who,
        }
    )  # fmt: skip
    return ledger.runs.open(TaskTry(identity, space, key_shape="test"), 3600)


def attempt(
    ledger: Ledger,
    *names: str | None,
    space: KeySpace = SPACE,
    run_id: str = "scheduled__2025-03-31",
    known: bool = False,
    **who: Any,
) -> Attempt:
    """Claim documents with a try of its own and check that all were won.

    :param known: the ledger has them already (failed, or abandoned before the effect).
    """
    documents = documents_of(space, *(names or ("INV-1",)))
    own = Ownership.new(space.key_date, opened(ledger, space, run_id, **who), "test")
    won = ledger.claim(own, space, [] if known else documents, documents if known else [])
    assert set(won) == {document.key_hash for document in documents}
    return Attempt(ledger, space, own, documents)


def events_of(ledger: Ledger, key_date: date, key_hash: str) -> list[Any]:
    with ledger.database.engine.connect() as connection:
        return ledger.events.of_key(connection, key_date, key_hash)


def in_thread(work: Callable[[], Any]) -> Callable[[], Any]:
    """Start work in a thread; the returned function waits for it and returns what it returned or raised."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(work())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def wait() -> Any:
        thread.join(_PATIENCE_S)
        if thread.is_alive():
            msg = f"the thread is not done after {_PATIENCE_S} s: {work}"
            raise TimeoutError(msg)
        return outcome[0]

    return wait


class held_before_commit:  # noqa: N801 - reads like a function
    """Run work on a ledger of its own and hold it just before its commit; ``skip`` commits pass before.

    The ``with`` block begins when it stands there, and gets what lets it go on and what returns its outcome.
    What the block starts before it releases has at least sent its first statement: the release waits for the
    database to have it.
    """

    def __init__(self, database: DatabaseUnderTest, work: Callable[[Ledger], Any], *, skip: int = 0) -> None:
        self._ledger = Ledger(LedgerDatabase(database.url))
        self._work = work
        self._stands, self._go_on = threading.Event(), threading.Event()
        left = [skip]

        @sa.event.listens_for(self._ledger.database.engine, "commit")
        def hold(connection: sa.Connection) -> None:
            if left[0]:
                left[0] -= 1
                return
            self._stands.set()
            assert self._go_on.wait(60)

    def __enter__(self) -> tuple[Callable[[], None], Callable[[], Any]]:
        self._outcome = in_thread(lambda: self._work(self._ledger))
        assert self._stands.wait(60)
        return self._release, self._outcome

    def _release(self) -> None:
        threading.Event().wait(0.3)  # either order is right; this makes the interesting one likely
        self._go_on.set()

    def __exit__(self, *error: object) -> None:
        self._go_on.set()
        self._outcome()
        self._ledger.database.dispose()
