"""A ledger for tests, and what they do with it."""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self, Unpack

import sqlalchemy as sa

from airflow_guard.acts import reruns
from airflow_guard.core.errors import ConfigurationError, GuardError, ResolutionError
from airflow_guard.core.guard import LedgerRow, TaskIdentity
from airflow_guard.core.keys import KeyShape
from airflow_guard.core.report import Report
from airflow_guard.core.reruns import DEFAULT_EXPIRY
from airflow_guard.core.run_facts import parse_business_date
from airflow_guard.execution.run import GuardedTask
from airflow_guard.store import resolution
from airflow_guard.store.database import LedgerDatabase
from airflow_guard.store.ledger import Ledger
from airflow_guard.store.migrate import migrate
from airflow_guard.store.task_runs import TaskTry
from airflow_guard.testing.parameters import (
    Parameters,
    callee_of,
    expected_by,
    listing_of,
    refuse_unknown,
    space_of,
    spec_of,
)
from airflow_guard.testing.process import DyingProcess, Killed, Moment
from airflow_guard.testing.run import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from airflow_guard.core.keys import KeySpace


class TestLedger:
    """A ledger for tests; use it as a context manager.

    :param url: SQLAlchemy URL of a database to work in, for SQL that SQLite does not know. The ledger's
        tables are made there and stay; this ledger meets no keys of another one. Default: a SQLite file that
        is gone afterwards.
    """

    __test__ = False  # not a test class of the pytest run that imports it

    def __init__(self, url: str | sa.URL | None = None) -> None:
        self._url = url
        self._name = "test" if url is None else f"test_{secrets.token_hex(6)}"
        self._tries: dict[tuple[str, str], int] = {}
        self._space: KeySpace | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if self._url is None:
            folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="airflow_guard_"))
            self._url = f"sqlite:///{folder}/ledger.db"
        self._database = self._opened()
        migrate(self._database)
        self._ledger = Ledger(self._database)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def run(self, python_callable: Callable[..., Any], **parameters: Unpack[Parameters]) -> Run:
        """Run a task once, as the operator would, and return what became of it.

        It neither retries nor waits for other attempts: run it again. What the callable raises is in the
        run's ``errors``; what is no ``Exception`` (``SystemExit``) goes through, after it was recorded.

        :param parameters: see :class:`Parameters`.
        :raises ConfigurationError: parameters that cannot work.
        """
        task, space = self._task(self._ledger, python_callable, parameters)
        day = space.business_date.isoformat()
        try:
            report = task.run(listing_of(parameters, space), one=parameters.get("document"))
        except GuardError as error:
            return Run(Report(single=parameters.get("documents") is None), error, {})
        failure = report.failure(f"{space.operation} of {day}", parameters.get("max_rejected", 0))
        return Run(report, failure, report.summary(business_date=day))

    def crash(
        self,
        python_callable: Callable[..., Any],
        *,
        at: Moment = "inside",
        of: object = None,
        **parameters: Unpack[Parameters],
    ) -> None:
        """Run a task whose process dies: the database shows what a killed process leaves, its lease alive.

        The process of the test lives on, so that what the callable counts in memory can be looked at. But
        from its death on nothing reaches the ledger, and open transactions are rolled back.

        :param at: when it dies, see :data:`Moment`.
        :param of: at which document; default: the first that is executed.
        :param parameters: see :class:`Parameters`.
        :raises AssertionError: it never came to that point, for example because the document was done before.
        :raises ConfigurationError: parameters that cannot work.
        """
        database = self._opened()
        process = DyingProcess(database, at, of, parameters.get("document_key"))
        task, space = self._task(Ledger(database), python_callable, parameters, process)
        try:
            report = task.run(listing_of(parameters, space), one=parameters.get("document"))
        except Killed:
            return
        finally:
            database.dispose()
        became = "; ".join(report.log_lines()) or "nothing was listed"
        raise AssertionError(f"The process did not come to where it dies: {became}.")

    def expire_leases(self) -> None:
        """Let all leases be over, as some time after their processes died."""
        lease = self._database.tables.lease
        with self._database.engine.begin() as connection:
            # Column by column: it is the database's clock that wrote them.
            connection.execute(sa.update(lease).values(expires_at=lease.c.renewed_at))

    def let_time_pass(self, length: timedelta) -> None:
        """Let everything in the ledger lie that much longer ago, so that leases run out, and ``settle_after``
        and ``receiver_remembers`` count on. The append-only events keep their times."""
        tables = self._database.tables
        with self._database.engine.begin() as connection:
            for table in (tables.execution, tables.lease, tables.task_run, tables.rerun, tables.fail_over):
                _age(connection, table, length)

    def row(
        self, document: object = None, *, operation: str | None = None, business_date: str | None = None
    ) -> LedgerRow | None:
        """Return what the ledger knows about a document, ``None`` if nothing.

        :param document: its id; ``None``: the run as a whole.
        :param operation: default: that of the last run.
        :param business_date: default: that of the last run.
        """
        space = self._space_of(operation, business_date)
        hasher = space.hasher()
        key_hash = hasher.key_hash(None if document is None else hasher.normalise(document))
        return self._ledger.read(space.key_date, [key_hash]).get(key_hash)

    def resolve(
        self,
        document: object,
        decision: str,
        *,
        actor: str = "tester",
        reason: str = "said by the test",
        operation: str | None = None,
        business_date: str | None = None,
    ) -> None:
        """Settle a document as a person would with ``airflow-guard resolve``.

        :param decision: ``"happened"``, ``"did_not_happen"``, ``"waive"``, ``"send_again"``,
            ``"followed_up"`` or ``"content_stands"``.
        :raises ResolutionError: there is nothing to decide, or a living attempt is at work.
        """
        space = self._space_of(operation, business_date)
        row = self.row(document, operation=operation, business_date=business_date)
        if row is None:
            raise ResolutionError(f"The ledger does not know {document!r}.")
        resolution.resolve(
            self._ledger,
            space.key_date,
            row.key_hash,
            row.owner_token,
            decision,
            actor=actor,
            reason=reason,
            content=row.content,
        )

    def authorise_rerun(
        self,
        document: object,
        *,
        without_reversal: bool = False,
        actor: str = "tester",
        reason: str = "said by the test",
        operation: str | None = None,
        business_date: str | None = None,
    ) -> None:
        """Authorise that a completed document is executed once more, as ``airflow-guard rerun`` does.

        :param without_reversal: the first effect stays; otherwise the side effect needs ``on_rerun``.
        :raises ResolutionError: it is not done, or is authorised already.
        """
        space = self._space_of(operation, business_date)
        row = self.row(document, operation=operation, business_date=business_date)
        if row is None:
            raise ResolutionError(f"The ledger does not know {document!r}.")
        reruns.authorise(
            self._ledger,
            [resolution.Judged(space.key_date, row.key_hash, row.owner_token)],
            actor=actor,
            reason=reason,
            expires=DEFAULT_EXPIRY,
            without_reversal=without_reversal,
        )

    @contextmanager
    def connection(self) -> Iterator[sa.Connection]:
        """Give a connection to the ledger's database, to make business tables and to look at their rows. It
        commits at the end."""
        with self._database.business_engine.begin() as connection:
            yield connection

    # -- from parameters to a task --------------------------------------------------------------------------

    def _opened(self) -> LedgerDatabase:
        database = LedgerDatabase(self._url or "", max_connections=32)
        self._stack.callback(database.dispose)
        return database

    def _task(
        self,
        ledger: Ledger,
        function: Callable[..., Any],
        parameters: Parameters,
        process: DyingProcess | None = None,
    ) -> tuple[GuardedTask, KeySpace]:
        refuse_unknown(parameters)
        spec, given = spec_of(parameters), parameters.get("op_kwargs") or {}
        name = getattr(function, "__name__", type(function).__name__)
        self._space = space = space_of(parameters, name, self._name)
        identity = self._identity(space.operation, parameters)
        named = parameters.get("documents") is not None or parameters.get("document") is not None
        shape = KeyShape.of(space, documents=named, document_key=spec.document_key, call_per=spec.call_per)
        callee = callee_of(function, given)
        callee.check(spec)
        verify, on_rerun = None if spec.database else spec.external.verify, spec.side_effect.on_rerun
        task = GuardedTask(
            ledger,
            spec,
            TaskTry(identity, space, shape.text, spec.mode),
            process.around(callee, spec) if process else callee,
            verify=callee_of(verify, given) if verify else None,
            on_rerun=callee_of(on_rerun, given) if on_rerun else None,
            dag_task_ids={task_id for task_id, _ in self._tries},
            expectation=lambda: expected_by(parameters, space),
        )
        return task, space

    def _identity(self, operation: str, parameters: Parameters) -> TaskIdentity:
        task_id, run_id = parameters.get("task_id") or operation, parameters.get("run_id", "manual__test")
        number = parameters.get("try_number") or self._tries.get((task_id, run_id), 0) + 1
        self._tries[task_id, run_id] = number
        return TaskIdentity(
            self._name,
            task_id,
            run_id,
            try_number=number,
            run_type=parameters.get("run_type", "manual"),
            run_after_at=parameters.get("run_after_at"),
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=datetime.now(UTC),
        )

    def _space_of(self, operation: str | None, business_date: str | None) -> KeySpace:
        if self._space is None:
            raise ConfigurationError("Nothing was run yet, so there is nothing to look at.")
        day = self._space.business_date
        if business_date is not None:
            day = parse_business_date(business_date, source="business_date")
        return replace(self._space, operation=operation or self._space.operation, business_date=day)


def _age(connection: sa.Connection, table: sa.Table, length: timedelta) -> None:
    keys = list(table.primary_key.columns)
    instants = [column for column in table.columns if isinstance(column.type, sa.DateTime)]
    for row in connection.execute(sa.select(*keys, *instants)).mappings().all():
        earlier = {column.name: row[column.name] - length for column in instants if row[column.name]}
        same = sa.and_(*(key == row[key.name] for key in keys))
        connection.execute(sa.update(table).where(same).values(earlier))
