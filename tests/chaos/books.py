"""A ledger, a receiver outside it and a business table in it, as the tests of the execution use them.

The same functions run in the test's process and in child processes.
"""

from __future__ import annotations

import json
import os
import socket
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.effects import Database
from airflow_guard.core.guard import TaskIdentity
from airflow_guard.core.keys import KeyShape, KeySpace
from airflow_guard.core.report import Outcome
from airflow_guard.execution.run import GuardedTask
from airflow_guard.execution.spec import Callee, GuardSpec
from airflow_guard.store import resolution
from airflow_guard.store.database import LedgerDatabase
from airflow_guard.store.dialects import utc_after
from airflow_guard.store.ledger import Ledger
from airflow_guard.store.task_runs import TaskTry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from airflow_guard.core.guard import LedgerRow
    from airflow_guard.core.report import Report

DAY = date(2026, 1, 31)
RUN = "scheduled__2026-01-31"
DATABASE = Database()


@dataclass(frozen=True)
class Receiver:
    """Who executes effects outside: a file to which each call appends a line, whatever becomes of the caller.

    :param path: the file.
    """

    path: str

    def call(self, document: str | None, **facts: Any) -> None:
        """Receive a call; one write, so that it is there as a whole or not at all."""
        line = json.dumps({"document": document, **facts}) + "\n"
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def calls(self) -> list[dict[str, Any]]:
        """Return all calls, in their order."""
        path = Path(self.path)
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def documents(self) -> list[str | None]:
        """Return the documents of all calls, in their order."""
        return [call["document"] for call in self.calls()]

    def knows(self, document: str | None) -> bool:
        """Answer as ``verify``."""
        return document in self.documents()

    def twice(self) -> list[str | None]:
        """Return the documents that were executed more than once."""
        return [document for document, count in Counter(self.documents()).items() if count > 1]


class Books:
    """What one process sees of the ledger and of the business table beside it.

    :param url: a migrated ledger.
    :param dag_id: the key namespace; each test has its own.
    :param receiver: where external effects go.
    """

    def __init__(self, url: str, dag_id: str, receiver: Receiver, **options: Any) -> None:
        self.url = url
        self.dag_id = dag_id
        self.receiver = receiver
        self.database = LedgerDatabase(url, max_connections=24, **options)
        self.ledger = Ledger(self.database)
        self.posting = sa.Table(
            "posting",
            sa.MetaData(),
            sa.Column("id", sa.Integer, primary_key=True),
            sa.Column("dag_id", sa.String(250)),
            sa.Column(
                "document", sa.String(255).with_variant(sa.String(255, "utf8mb4_bin"), "mysql", "mariadb")
            ),
        )

    def create_posting(self) -> None:
        self.posting.create(self.database.business_engine, checkfirst=True)

    def close(self) -> None:
        self.database.dispose()

    # -- running ------------------------------------------------------------------------------------------

    def task(
        self,
        function: Callable[..., Any],
        *,
        operation: str = "post",
        run_id: str = RUN,
        run_type: str = "scheduled",
        try_number: int = 1,
        task_id: str | None = None,
        day: date = DAY,
        cycle: str = "",
        deployment: str = "default",
        host: str | None = None,
        run_after_at: datetime | None = None,
        resumed: int | None = None,
        more_tries: bool = False,
        code_since_at: datetime | None = None,
        run_began_at: datetime | None = None,
        dag_task_ids: Collection[str] = (),
        dag_id: str | None = None,
        key_namespace: str | None = None,
        documents: bool = True,
        **rules: Any,
    ) -> GuardedTask:
        """Return a task try; ``rules`` are those of the specification."""
        spec = GuardSpec(**rules)
        verify = None if spec.database else spec.external.verify
        space = KeySpace(key_namespace or self.dag_id, operation, day, cycle, spec.once_per, deployment)
        identity = TaskIdentity(
            dag_id or self.dag_id,
            task_id or operation,
            run_id,
            try_number=try_number,
            run_type=run_type,
            run_after_at=run_after_at or datetime(2026, 2, 1, 6, tzinfo=UTC),
            host=host or socket.gethostname(),
            pid=os.getpid(),
            started_at=datetime.now(UTC),
            more_tries=more_tries,
            code_since_at=code_since_at,
            run_began_at=run_began_at,
        )
        shape = KeyShape.of(
            space, documents=documents, document_key=spec.document_key, call_per=spec.call_per
        )
        return GuardedTask(
            self.ledger,
            spec,
            TaskTry(identity, space, shape.text, spec.mode),
            Callee.of(function),
            verify=Callee.of(verify) if verify else None,
            on_rerun=Callee.of(spec.side_effect.on_rerun) if spec.side_effect.on_rerun else None,
            dag_task_ids={identity.task_id, *dag_task_ids},
            resumed=resumed,
        )

    def run(
        self, function: Callable[..., Any], documents: Any = None, *, one: Any = None, **parameters: Any
    ) -> Report:
        """Run a task try over documents (a list, or a function that lists them), one, or the whole run."""
        task = self.task(function, documents=documents is not None or one is not None, **parameters)
        listing = documents if documents is None or callable(documents) else lambda: documents
        return task.run(listing, one=one)

    def pay(self, document: str | None, idempotency_key: str) -> dict[str, Any]:
        """Execute an effect outside."""
        self.receiver.call(document, key=idempotency_key)
        return {"paid": document}

    def post(self, document: str | None, connection: sa.Connection) -> dict[str, Any]:
        """Write a business row."""
        connection.execute(self.posting.insert().values(dag_id=self.dag_id, document=document))
        return {"posted": document}

    # -- looking ------------------------------------------------------------------------------------------

    def posted(self) -> list[str]:
        """Return the documents of all business rows of this test."""
        found = (
            sa.select(self.posting.c.document)
            .where(self.posting.c.dag_id == self.dag_id)
            .order_by(self.posting.c.id)
        )
        with self.database.engine.connect() as connection:
            return list(connection.execute(found).scalars())

    def rows(self) -> list[Any]:
        """Return the ledger's rows of this test, by document."""
        e = self.database.tables.execution
        found = sa.select(e).where(e.c.key_namespace == self.dag_id).order_by(e.c.document)
        with self.database.engine.connect() as connection:
            return list(connection.execute(found))

    def states(self) -> dict[str | None, str]:
        """Return the state of each document."""
        return {row.document: row.state for row in self.rows()}

    def row(self, document: str | None = None) -> LedgerRow:
        """Return all about one document."""
        stored = next(row for row in self.rows() if row.document == document)
        return self.ledger.read(stored.key_date, [stored.key_hash])[stored.key_hash]

    def events(self, kind: str | None = None) -> list[Any]:
        """Return the audit of this test's keys; other tests have the same documents in this ledger, which is no matter."""
        event, hashes = self.database.tables.event, [row.key_hash for row in self.rows()]
        found = sa.select(event).where(event.c.key_hash.in_(hashes)).order_by(event.c.id)
        with self.database.engine.connect() as connection:
            rows = [row for row in connection.execute(found) if kind in (None, row.kind)]
        return [row for row in rows if kind is not None or row.kind != "namesake"]

    # -- disturbing ---------------------------------------------------------------------------------------

    def resolve(self, document: str | None, decision: str, reason: str = "asked the receiver") -> None:
        """Settle a document as a person."""
        row, stored = self.row(document), next(row for row in self.rows() if row.document == document)
        resolution.resolve(
            self.ledger, stored.key_date, row.key_hash, row.owner_token, decision, actor="ada", reason=reason,
            content=row.content,
        )  # fmt: skip

    def set_lease(self, seconds: float, pid: int | None = None) -> None:
        """Let the leases of this test's tries end so many seconds from now, by the database's clock.

        :param pid: only those of one process.
        """
        lease, run = self.database.tables.lease, self.database.tables.task_run
        tries = sa.select(run.c.id).where(run.c.dag_id == self.dag_id)
        mine = (tries if pid is None else tries.where(run.c.pid == pid)).scalar_subquery()
        ends = (
            sa.update(lease)
            .where(lease.c.task_run_id.in_(mine))
            .values(expires_at=utc_after(sa.bindparam("seconds")))
        )
        with self.database.engine.begin() as connection:
            connection.execute(ends, {"seconds": seconds})

    def expire_leases(self, pid: int | None = None) -> None:
        """Let the leases of this test's tries be over; with a pid only those of one process."""
        self.set_lease(-1, pid)

    def shift(self, seconds: float, *columns: str) -> None:
        """Let what a column of the executions tells lie so many seconds ago."""
        e = self.database.tables.execution
        names = columns or ("claimed_at", "begun_at", "first_begun_at", "last_sign_at")
        ago = {
            name: sa.case((e.c[name].is_(None), sa.null()), else_=utc_after(sa.bindparam("seconds")))
            for name in names
        }
        with self.database.engine.begin() as connection:
            connection.execute(
                sa.update(e).where(e.c.key_namespace == self.dag_id).values(ago), {"seconds": -seconds}
            )

    def forget_signs(self) -> None:
        """Let the last sign of life of all tries lie an hour ago."""
        self.shift(3600)
        tables = self.database.tables
        mine = (
            sa.select(tables.task_run.c.id).where(tables.task_run.c.dag_id == self.dag_id).scalar_subquery()
        )
        past = utc_after(sa.bindparam("seconds"))
        with self.database.engine.begin() as connection:
            ended = sa.update(tables.task_run).where(tables.task_run.c.dag_id == self.dag_id)
            connection.execute(
                ended.where(tables.task_run.c.ended_at.is_not(None)).values(ended_at=past), {"seconds": -3600}
            )
            leases = sa.update(tables.lease).where(tables.lease.c.task_run_id.in_(mine))
            connection.execute(leases.values(renewed_at=past, expires_at=past), {"seconds": -3600})


def counts(report: Report) -> dict[str, int]:
    """Return what a report counts, without zeros."""
    return {outcome.value: count for outcome, count in report.counts.items() if count}


def failure(report: Report, max_rejected: int = 0) -> Any:
    """Return the error that ends the task."""
    return report.failure("post of 2026-01-31", max_rejected)


def numbered(count: int, start: int = 1) -> list[str]:
    """Return that many document ids."""
    return [f"D-{number:04d}" for number in range(start, start + count)]


def mapped(documents: Iterable[str], amount: str = "10.00") -> list[dict[str, str]]:
    """Return documents with content."""
    return [{"no": document, "amount": amount} for document in documents]


EXECUTED, REPLAYED, WAITING = Outcome.EXECUTED.value, Outcome.REPLAYED.value, Outcome.WAITING.value
