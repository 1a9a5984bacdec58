"""The same payment job under each approach, and what a child process runs of it.

Each is written as somebody who knows the approach would write it, and no better: what a lock cannot know is not
given to it.
"""

from __future__ import annotations

import fcntl
import threading
from contextlib import contextmanager, suppress
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import sqlalchemy as sa

from airflow_guard.core.effects import Database, External
from tests.approaches.place import PAID, PAID_ONCE, TASK, Place, Start, share_of
from tests.chaos.books import Books, failure
from tests.processes import checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis.lock import Lock

DONE, REFUSED, ASKS = "done", "refused", "asks"
"""How a start ends: its work is done, or was; somebody else is at it; a person is asked."""


class Approach(Protocol):
    """A way to keep a job from being done twice."""

    calls: bool
    """Whether its effect is a call to the bank; otherwise only a row in the books."""

    def __init__(self, place: Place) -> None: ...

    def run(self, start: Start) -> str:
        """Do what a start of the job does, and return how it ended."""
        ...

    def effects(self, document: str) -> int:
        """Count what happened to a document."""
        ...

    def outlast(self) -> None:
        """Let the work last longer than the approach expects, its process alive."""
        ...

    def lapse(self) -> None:
        """Let the same time pass while the process is dead, or stands still."""
        ...

    def restore(self) -> None:
        """Restore the database as it was before the job."""
        ...


class _Plain:
    """Nothing that runs out, nothing that remembers."""

    calls = True

    def __init__(self, place: Place) -> None:
        self.place = place

    def effects(self, document: str) -> int:
        return self.place.calls(document)

    def act(self, start: Start) -> str:
        for document, _ in start.documents:
            self.place.act(document)
        return DONE

    def outlast(self) -> None:
        self.lapse()

    def lapse(self) -> None:
        pass

    def restore(self) -> None:
        self.place.empty(PAID, PAID_ONCE, TASK)


class SingleInstance(_Plain):
    """One copy of the job in the whole company: a start while it runs is refused."""

    def run(self, start: Start) -> str:
        with Path(f"{self.place.path}.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return REFUSED
            return self.act(start)


class TaskRow(_Plain):
    """One status row for the job, taken by an UPDATE; a row that is running for 15 minutes is taken over."""

    ended = "pending"

    def day_of(self, start: Start) -> date:
        return date(1900, 1, 1)

    def run(self, start: Start) -> str:
        row = (TASK.c.job == self.place.job) & (TASK.c.day == self.day_of(start))
        with suppress(sa.exc.IntegrityError), self.place.engine.begin() as connection:
            new = {"job": self.place.job, "day": self.day_of(start), "status": "pending", "started_ago_s": 0}
            connection.execute(TASK.insert().values(new))
        free = (TASK.c.status == "pending") | ((TASK.c.status == "running") & (TASK.c.started_ago_s > 900))
        with self.place.engine.begin() as connection:
            taken = connection.execute(
                TASK.update().where(row, free).values(status="running", started_ago_s=0)
            )
            if not taken.rowcount:
                status = connection.execute(sa.select(TASK.c.status).where(row)).scalar_one()
                return DONE if status == "done" else REFUSED
        self.act(start)
        with self.place.engine.begin() as connection:
            connection.execute(TASK.update().where(row).values(status=self.ended))
        return DONE

    def lapse(self) -> None:
        with self.place.engine.begin() as connection:
            connection.execute(TASK.update().where(TASK.c.job == self.place.job).values(started_ago_s=901))


class TaskRowOfDate(TaskRow):
    """The same with a row for each business date, which stays done."""

    ended = "done"

    def day_of(self, start: Start) -> date:
        return start.day


class RedisLock(_Plain):
    """A lock with a token and a time to live, as the client library makes it.

    The library is imported where it is used: it would make each of the other processes start later.
    """

    life_s = 60.0

    def run(self, start: Start) -> str:
        import redis

        lock = self._lock()
        if not lock.acquire(blocking=False):
            return REFUSED
        with self.kept(lock):
            self.act(start)
        with suppress(redis.exceptions.LockError):  # it is another's by now: nothing to release
            lock.release()
        return DONE

    @contextmanager
    def kept(self, lock: Lock) -> Iterator[None]:
        yield

    def lapse(self) -> None:
        self.place.redis.pexpire(self._lock().name, 1)
        _wait_until(lambda: not self.place.redis.exists(self._lock().name))

    def _lock(self) -> Lock:
        from redis.lock import Lock

        return Lock(self.place.redis, f"guard:{self.place.job}", timeout=self.life_s, thread_local=False)


class RenewedRedisLock(RedisLock):
    """The same, renewed in the background for as long as the process works."""

    @contextmanager
    def kept(self, lock: Lock) -> Iterator[None]:
        import redis

        over = threading.Event()

        def renew() -> None:
            while not over.wait(0.1):
                with suppress(redis.exceptions.LockError):
                    lock.reacquire()

        thread = threading.Thread(target=renew, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def outlast(self) -> None:
        name = self._lock().name
        self.place.redis.pexpire(name, 10_000)
        _wait_until(lambda: self.place.redis.pttl(name) > 20_000)


class Sharding(_Plain):
    """Each machine does the documents whose hash falls to it."""

    def run(self, start: Start) -> str:
        for document, _ in start.documents:
            if share_of(document, start.machines) == start.machine:
                self.place.act(document)
        return DONE


class UniqueRows(_Plain):
    """The effect is a row, under a unique index."""

    calls = False

    def effects(self, document: str) -> int:
        return self.place.rows(document, PAID_ONCE)

    def run(self, start: Start) -> str:
        for document, _ in start.documents:
            checkpoint("before")
            self.insert(document)
            checkpoint("after")
        return DONE

    def insert(self, document: str) -> bool:
        with suppress(sa.exc.IntegrityError), self.place.engine.begin() as connection:
            connection.execute(PAID_ONCE.insert().values(job=self.place.job, document=document))
            return True
        return False


class UniqueRowFirst(UniqueRows):
    """The row is committed, and who has written it calls the bank."""

    calls = True

    def effects(self, document: str) -> int:
        return self.place.calls(document)

    def run(self, start: Start) -> str:
        for document, _ in start.documents:
            if self.insert(document):
                self.call(document)
        return DONE

    def call(self, document: str) -> None:
        checkpoint("before")
        self.place.bank.call(document)
        checkpoint("after")


class UniqueCallFirst(UniqueRowFirst):
    """If there is no row, the bank is called, and the row is written after it."""

    def run(self, start: Start) -> str:
        for document, _ in start.documents:
            if not self.place.rows(document, PAID_ONCE):
                self.call(document)
                self.insert(document)
        return DONE


class _Guarded(_Plain):
    """This package."""

    def books(self) -> Books:
        return Books(self.place.url, self.place.job, self.place.bank)

    def rules(self, books: Books) -> tuple[Any, Any]:
        raise NotImplementedError

    def run(self, start: Start) -> str:
        books = self.books()
        act, effect = self.rules(books)
        report = books.run(
            act,
            [{"no": document, "amount": amount} for document, amount in start.documents],
            document_key="no", once_per="document", side_effect=effect, lease=timedelta(seconds=6),
            day=start.day, run_id=start.run_id, run_type=start.run_type, try_number=start.try_number,
        )  # fmt: skip
        books.close()
        error = failure(report)
        if error is None:
            return DONE
        return REFUSED if error.retryable else ASKS

    def outlast(self) -> None:
        books = self.books()
        books.set_lease(4)
        lease, run = books.database.tables.lease, books.database.tables.task_run
        mine = sa.select(run.c.id).where(run.c.dag_id == books.dag_id).scalar_subquery()
        ends = sa.select(lease.c.expires_at).where(lease.c.task_run_id.in_(mine))

        def renewed() -> bool:
            with books.database.engine.connect() as connection:
                return bool(connection.execute(ends).scalar_one() > first)

        with books.database.engine.connect() as connection:
            first = connection.execute(ends).scalar_one()
        _wait_until(renewed)
        books.close()

    def lapse(self) -> None:
        books = self.books()
        books.expire_leases()
        books.close()

    def restore(self) -> None:
        books = self.books()
        tables = books.database.tables
        with books.database.engine.begin() as connection:
            connection.execute(books.posting.delete().where(books.posting.c.dag_id == books.dag_id))
            mine = tables.execution.c.key_namespace == books.dag_id
            connection.execute(tables.execution.delete().where(mine))
        books.close()


class GuardedRows(_Guarded):
    """``side_effect="database"``."""

    calls = False

    def effects(self, document: str) -> int:
        books = self.books()
        found = books.posted().count(document)
        books.close()
        return found

    def rules(self, books: Books) -> tuple[Any, Any]:
        def post(document: str, connection: Any) -> None:
            checkpoint("before")
            books.post(document, connection)
            checkpoint("after")

        return post, Database()


class GuardedCalls(_Guarded):
    """``side_effect="external"``."""

    def effect(self) -> External:
        return External()

    def rules(self, books: Books) -> tuple[Any, Any]:
        def pay(document: str) -> None:
            checkpoint("before")
            books.receiver.call(document)
            checkpoint("after")

        return pay, self.effect()


class VerifiedCalls(GuardedCalls):
    """The same with ``verify``: the bank is asked."""

    def effect(self) -> External:
        return External(verify=self.place.bank.knows, settle_after=timedelta(minutes=5))

    def settle(self) -> None:
        """Let ``settle_after`` be over."""
        books = self.books()
        books.forget_signs()
        books.close()


APPROACHES: dict[str, type[Approach]] = {
    "single_instance": SingleInstance,
    "task_row": TaskRow,
    "task_row_of_date": TaskRowOfDate,
    "redis_lock": RedisLock,
    "renewed_redis_lock": RenewedRedisLock,
    "sharding": Sharding,
    "unique_rows": UniqueRows,
    "unique_row_first": UniqueRowFirst,
    "unique_call_first": UniqueCallFirst,
    "guarded_rows": GuardedRows,
    "guarded_calls": GuardedCalls,
    "verified_calls": VerifiedCalls,
}


def work(approach: str, place: Place, start: Start) -> str:
    """Run one start of the job, in a process of its own.

    :param approach: its name in :data:`APPROACHES`.
    """
    checkpoint("start")
    return APPROACHES[approach](place).run(start)


def _wait_until(holds: Any) -> None:
    for _ in range(3000):
        if holds():
            return
        threading.Event().wait(0.01)
    raise TimeoutError
