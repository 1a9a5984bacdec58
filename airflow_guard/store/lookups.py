"""What the ledger knows of keys: who has them, what stands there, and what was said of them. It writes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.errors import LedgerError
from airflow_guard.core.fail_over import FailOver
from airflow_guard.store.aliases import resolve
from airflow_guard.store.events import EventLog
from airflow_guard.store.reruns import Reruns
from airflow_guard.store.rows import ledger_row
from airflow_guard.store.statements import statements_of
from airflow_guard.store.task_runs import TaskRuns, aware

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import date

    from airflow_guard.core.guard import LedgerRow, TaskIdentity
    from airflow_guard.core.reruns import Rerun
    from airflow_guard.store.aliases import Name
    from airflow_guard.store.changes import Ownership
    from airflow_guard.store.database import LedgerDatabase


class Lookups:
    """The part of the ledger that reads keys.

    :param database: engines and tables. Tables must exist (``airflow-guard migrate``).
    """

    def __init__(self, database: LedgerDatabase) -> None:
        self.database = database
        self.statements = statements_of(database.tables, database.dialect)
        self.runs = TaskRuns(database)
        self.events = EventLog(database.tables)
        self.reruns = Reruns(database.tables, self.statements, self.events)
        self._identities: dict[int, TaskIdentity] = {}

    def lookup(self, key_date: date, hashes: Sequence[str]) -> Sequence[Any]:
        """Return the short rows (see ``Statements.lookup``) of the keys that the ledger knows."""
        return self.database.look(lambda c: self.statements.lookup.run(c, key_date, hashes).all())

    def read(self, key_date: date, hashes: Sequence[str]) -> dict[str, LedgerRow]:
        """Return all about the keys that the ledger knows, with the database's view of leases and ages."""
        rows = self.database.read(lambda c: self.statements.read.run(c, key_date, hashes).all())
        people = self.identities(
            run for row in rows for run in (row.task_run_id, row.first_task_run_id) if run is not None
        )
        return {row.key_hash: ledger_row(row, people) for row in rows}

    def identities(self, ids: Iterable[int]) -> dict[int, TaskIdentity]:
        """Return who the task tries were; remembered, since that never changes."""
        missing = {run for run in ids if run not in self._identities}
        if missing:
            self._identities.update(self.runs.identities(missing))
        return self._identities

    def members_of_batches(self, batch_ids: Iterable[str]) -> dict[str, dict[str, str | None]]:
        """Return the documents of batches, in their order, by batch id and key hash."""
        parameters = {"batch_ids": sorted(set(batch_ids))}
        rows = self.database.read(lambda c: c.execute(self.statements.batch_members, parameters).all())
        members: dict[str, dict[str, str | None]] = {}
        for row in rows:
            members.setdefault(row.batch_id, {})[row.key_hash] = row.document
        return members

    def reruns_of_claims(self, key_date: date, generations: Mapping[str, int]) -> dict[str, Rerun]:
        """Return what people have authorised of claimed keys, by key hash; see :meth:`Reruns.of_claims`."""
        return self.database.read(lambda c: self.reruns.of_claims(c, key_date, generations))

    def events_of(self, key_date: date, key_hash: str) -> list[Any]:
        """Return the events of one key, oldest first."""
        return self.database.read(lambda c: self.events.of_key(c, key_date, key_hash))

    def let_go_by(self, own: Ownership, key_hash: str) -> str:
        """Return, in words, what let another attempt begin, or a person settle, while this one was at work."""
        try:
            return self.database.read(lambda c: self.events.let_go_by(c, own.key_date, key_hash, own.token))
        except LedgerError as error:
            return f"what let it go cannot be read now ({error})"

    def names_now(self, key_namespace: str, operation: str) -> Name:
        """Return the names under which the ledger keeps an operation now, see :func:`airflow_guard.store.aliases.resolve`."""
        return resolve(self.database, key_namespace, operation)

    def open_fail_over(self) -> FailOver | None:
        """Return the open fail-overs as one, ``None`` if there is none."""
        f = self.database.tables.fail_over
        all_open = sa.select(
            sa.func.max(f.c.id), sa.func.min(f.c.lost_since_at), sa.func.max(f.c.recorded_at)
        ).where(f.c.closed_at.is_(None))
        newest, *instants = self.database.read(lambda connection: connection.execute(all_open).one())
        if newest is None:
            return None
        lost_since, recorded_at = (instant for instant in map(aware, instants) if instant is not None)
        return FailOver(newest, lost_since, recorded_at)

    def not_trusted(self, key_date: date, hashes: Sequence[str]) -> set[str]:
        """Return those of these keys that are known, and of which nothing is known since the open fail-overs."""
        e, f = self.database.tables.execution, self.database.tables.fail_over
        if not hashes:
            return set()
        recorded = sa.select(sa.func.max(f.c.recorded_at)).where(f.c.closed_at.is_(None)).scalar_subquery()
        found = sa.select(e.c.key_hash).where(
            e.c.key_date == key_date,
            e.c.key_hash.in_(sorted(hashes)),
            sa.func.coalesce(e.c.finished_at, e.c.claimed_at) <= recorded,
        )
        return set(self.database.read(lambda connection: connection.execute(found).scalars().all()))
