"""Purging: what is done and old goes, in batches, and a horizon stays so that none of it can happen again.

The horizon of an operation is committed before the first row is deleted, and every claim of a new key looks at it after
its insert. So a claim either met the old row, which was still there, or meets the horizon. On a partitioned ledger, a
purge of everything drops the partitions that lie behind it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.checks import BreakState
from airflow_guard.core.decisions import check_words
from airflow_guard.core.errors import ResolutionError
from airflow_guard.core.keys import DATELESS
from airflow_guard.core.states import FollowUp, State
from airflow_guard.store import aliases
from airflow_guard.store.dialects import utc_now
from airflow_guard.store.events import AuditEvent, storable
from airflow_guard.store.partition_drop import PartitionDrop, droppable
from airflow_guard.store.task_runs import instant_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import date

    from airflow_guard.store.aliases import Name
    from airflow_guard.store.ledger import Ledger

BATCH = 1000


@dataclass
class Purged:
    """What a purge removed of one operation, or would remove (dry run).

    :param name: ``key_namespace`` and ``operation``.
    :param kept: keys of these dates that are not done, or whose rerun is authorised: they stay.
    :param once_per_document: keys without a date: no horizon could stand for them, so they stay.
    """

    name: Name
    keys: int = 0
    task_runs: int = 0
    checks: int = 0
    breaks: int = 0
    kept: int = 0
    once_per_document: int = 0

    @property
    def found(self) -> bool:
        """Whether there was anything to remove."""
        return bool(self.keys or self.task_runs or self.checks or self.breaks)


@dataclass(frozen=True)
class Purge:
    """What is to go.

    :param until: the last business date that goes.
    :param key_namespace: only this one; ``None``: all.
    :param operation: only this one; ``None``: all.
    :param batch: rows in a transaction.
    """

    ledger: Ledger
    until: date
    actor: str
    reason: str
    key_namespace: str | None = None
    operation: str | None = None
    batch: int = BATCH
    names: list[Name] = field(default_factory=list)

    def __post_init__(self) -> None:
        actor, reason = check_words(self.actor, self.reason)
        object.__setattr__(self, "actor", actor)
        object.__setattr__(self, "reason", reason)
        if self.batch < 1:
            raise ResolutionError("A batch has at least one row.")

    def plan(self) -> list[Purged]:
        """Return what would go, by operation; changes nothing.

        :raises ResolutionError: the last date that goes is not over yet (database clock).
        """
        return self.ledger.database.read(self._planned)

    def _planned(self, connection: sa.Connection) -> list[Purged]:
        today = instant_of(connection.execute(sa.select(sa.cast(utc_now(), sa.String))).scalar_one()).date()
        if self.until >= today:
            raise ResolutionError(f"{self.until} is not over yet: what is purged can never be executed.")
        return [self._counted(connection, name) for name in self._names(connection)]

    def run(self) -> Iterator[Purged]:
        """Remove, and yield what went, operation by operation. Each batch is committed on its own.

        Interrupted, it goes on when it is run again: the horizon stands, and what is gone is gone.

        :raises LedgerBusy: a lock was not free in time; what was removed before stays removed (a retry helps).
        """
        plan = self.plan()
        for planned in plan:
            if planned.found:
                self.ledger.database.look_and_write(
                    partial(self._set_horizon, name=planned.name, planned=planned)
                )
        dropped = self._drop_partitions()
        for planned in plan:
            if not planned.found:
                yield planned
                continue
            name = planned.name
            done = Purged(name, kept=planned.kept, once_per_document=planned.once_per_document)
            done.keys = dropped[name] + self._in_batches(name, self._some_keys)
            done.breaks = self._in_batches(name, self._some_breaks)
            done.checks = self._in_batches(name, self._some_checks)
            done.task_runs = self._in_batches(name, self._some_task_runs)
            if done.found:  # not where another purge was faster
                self.ledger.database.write(partial(self._tell, done=done))
            yield done

    def asked_for(self, horizon: Any) -> bool:
        """Return whether a row of ``guard_horizon`` is that of this purge."""
        mine = (self.until, storable(self.actor, 250), storable(self.reason))
        return (horizon.business_date, horizon.actor, horizon.reason) == mine

    def was_begun(self) -> bool:
        """Return whether this very purge, by the same person for the same reason, has begun before."""
        h = self.ledger.database.tables.horizon
        wanted = sa.select(h).where(h.c.business_date == self.until)
        if self.key_namespace is not None:
            wanted = wanted.where(h.c.key_namespace == self.key_namespace)
        if self.operation is not None:
            wanted = wanted.where(h.c.operation == self.operation)
        found = self.ledger.database.read(lambda connection: connection.execute(wanted).all())
        return any(self.asked_for(row) for row in found)

    # -- what there is --------------------------------------------------------------------------------------

    def _names(self, connection: sa.Connection) -> list[Name]:
        t, found = self.ledger.database.tables, set()
        for table in (t.execution, t.task_run, t.reconciliation):
            wanted = sa.select(table.c.key_namespace, table.c.operation).where(
                table.c.business_date <= self.until
            )
            if self.key_namespace is not None:
                wanted = wanted.where(table.c.key_namespace == self.key_namespace)
            if self.operation is not None:
                wanted = wanted.where(table.c.operation == self.operation)
            found |= {(row[0], row[1]) for row in connection.execute(wanted.distinct())}
        return sorted(found)

    def _counted(self, connection: sa.Connection, name: Name) -> Purged:
        t = self.ledger.database.tables

        def count(table: sa.Table, *where: sa.ColumnElement[bool]) -> int:
            return int(
                connection.execute(sa.select(sa.func.count()).select_from(table).where(*where)).scalar_one()
            )

        keys = count(t.execution, *self._done(name))
        dated = count(t.execution, *self._of(t.execution, name), t.execution.c.key_date != DATELESS)
        return Purged(
            name,
            keys,
            count(t.task_run, *self._ended_runs(name)),
            count(t.reconciliation, *self._ended_checks(name)),
            count(t.breaks, *self._closed_breaks(name)),
            dated - keys,
            count(t.execution, *self._of(t.execution, name), t.execution.c.key_date == DATELESS),
        )

    def _of(self, table: sa.Table, name: Name) -> tuple[sa.ColumnElement[bool], ...]:
        return (
            table.c.key_namespace == name[0],
            table.c.operation == name[1],
            table.c.business_date <= self.until,
        )

    def _done(self, name: Name) -> tuple[sa.ColumnElement[bool], ...]:
        e = self.ledger.database.tables.execution
        return (*self._of(e, name), *self._may_go(e))

    def _may_go(self, e: sa.FromClause) -> tuple[sa.ColumnElement[bool], ...]:
        """Keys that are done, of a date, and that nobody may execute again."""
        r = self.ledger.database.tables.rerun
        authorised = sa.exists().where(
            r.c.key_date == e.c.key_date,
            r.c.key_hash == e.c.key_hash,
            r.c.used_at.is_(None),
            r.c.expires_at > utc_now(),
        )
        return (
            e.c.key_date != DATELESS,
            e.c.state == State.COMPLETED.value,
            e.c.follow_up.in_([FollowUp.NONE.value, FollowUp.SETTLED.value]),
            sa.not_(authorised),
        )

    def _ended_runs(self, name: Name) -> tuple[sa.ColumnElement[bool], ...]:
        """Tries that are over, that no key refers to which stays, and that listed nothing that is still to be done."""
        t = self.ledger.database.tables
        run, lease, e = t.task_run, t.lease, t.execution
        stays = (*self._of(e, name), sa.not_(sa.and_(*self._done(name))))
        used = sa.union_all(
            *(
                sa.select(column).where(*stays, column.is_not(None))
                for column in (e.c.task_run_id, e.c.first_task_run_id)
            )
        )
        return (
            *self._of(run, name),
            sa.not_(sa.exists().where(lease.c.task_run_id == run.c.id, lease.c.expires_at > utc_now())),
            run.c.id.not_in(used),
            sa.not_(sa.exists().where(t.listed.c.task_run_id == run.c.id)),
        )

    def _closed_breaks(self, name: Name) -> tuple[sa.ColumnElement[bool], ...]:
        b = self.ledger.database.tables.breaks
        return (*self._of(b, name), b.c.state == BreakState.RESOLVED.value)

    def _ended_checks(self, name: Name) -> tuple[sa.ColumnElement[bool], ...]:
        c, b = self.ledger.database.tables.reconciliation, self.ledger.database.tables.breaks
        open_ = sa.exists().where(
            sa.or_(b.c.opened_by_id == c.c.id, b.c.seen_by_id == c.c.id, b.c.closed_by_id == c.c.id),
            b.c.state != BreakState.RESOLVED.value,
        )
        return (*self._of(c, name), c.c.outcome.is_not(None), sa.not_(open_))

    # -- what goes ------------------------------------------------------------------------------------------

    def _drop_partitions(self) -> Counter[Name]:
        """Drop what lies behind the horizon as a whole; return how many keys of each operation went with it."""
        gone: Counter[Name] = Counter()
        database = self.ledger.database
        if self.key_namespace is not None or self.operation is not None:
            return gone
        for partition in database.read(lambda c: droppable(c, database.tables.execution, self.until)):
            drop = PartitionDrop(self.ledger, partition, self.actor, self.reason, self._may_go)
            gone += database.write(drop.run)
        return gone

    def _set_horizon(self, connection: sa.Connection, name: Name, planned: Purged) -> None:
        """Refuse claims of these dates from now on; a horizon never goes back."""
        h = self.ledger.database.tables.horizon
        self.ledger.database.limit_locks(connection)
        mine = h.c.name_hash == aliases.name_hash(*name)
        stands = connection.execute(sa.select(h).where(mine).with_for_update()).first()
        if stands is not None and self.asked_for(stands):
            return  # interrupted, or sent twice: it goes on
        now = stands.business_date if stands is not None else None
        values: dict[str, Any] = {
            "business_date": self.until if now is None else max(now, self.until), "set_at": utc_now(),
            "actor": storable(self.actor, 250), "reason": storable(self.reason),
        }  # fmt: skip
        if now is None:
            new = {"name_hash": aliases.name_hash(*name), "key_namespace": name[0], "operation": name[1]}
            connection.execute(sa.insert(h).values(**new, **values))
        else:
            connection.execute(sa.update(h).where(mine).values(values))
        text = f"{' / '.join(name)} up to {self.until}: {planned.keys:,} keys are to go"
        self.ledger.events.write(connection, AuditEvent("purge", text, self.actor, self.reason))

    def _tell(self, connection: sa.Connection, done: Purged) -> None:
        text = (
            f"{' / '.join(done.name)} up to {self.until}: {done.keys:,} keys, {done.task_runs:,} task tries, "
            f"{done.checks:,} checks and {done.breaks:,} closed breaks are gone"
        )
        self.ledger.events.write(connection, AuditEvent("purged", text, self.actor, self.reason))

    def _in_batches(self, name: Name, some: Any) -> int:
        removed = 0
        while count := self.ledger.database.write(lambda c: some(c, name)):
            removed += count
        return removed

    def _some_keys(self, connection: sa.Connection, name: Name) -> int:
        e, r = self.ledger.database.tables.execution, self.ledger.database.tables.rerun
        self.ledger.database.limit_locks(connection)
        found = connection.execute(
            sa.select(e.c.key_date, e.c.key_hash)
            .where(*self._done(name))
            .order_by(e.c.key_date, e.c.key_hash)
            .limit(self.batch)
            .with_for_update(of=e, skip_locked=True)
        ).all()
        by_date: dict[date, list[str]] = {}
        for row in found:
            by_date.setdefault(row.key_date, []).append(row.key_hash)
        removed = 0
        for key_date, hashes in by_date.items():
            # Asked once more: between the two statements a row that was not locked may have been claimed.
            gone = sa.delete(e).where(e.c.key_date == key_date, e.c.key_hash.in_(hashes), *self._done(name))
            removed += connection.execute(gone).rowcount
            left = sa.exists().where(e.c.key_date == r.c.key_date, e.c.key_hash == r.c.key_hash)
            mine = (r.c.key_date == key_date, r.c.key_hash.in_(hashes))
            connection.execute(sa.delete(r).where(*mine, sa.not_(left)))
        return removed

    def _some_breaks(self, connection: sa.Connection, name: Name) -> int:
        return self._some(connection, self.ledger.database.tables.breaks, self._closed_breaks(name))

    def _some_checks(self, connection: sa.Connection, name: Name) -> int:
        return self._some(connection, self.ledger.database.tables.reconciliation, self._ended_checks(name))

    def _some_task_runs(self, connection: sa.Connection, name: Name) -> int:
        """Delete tries, and the leases of those that were killed: nobody else ever ends them."""
        t = self.ledger.database.tables
        return self._some(connection, t.task_run, self._ended_runs(name), t.lease.c.task_run_id)

    def _some(
        self, connection: sa.Connection, table: sa.Table, where: tuple[sa.ColumnElement[bool], ...],
        of_them: sa.Column[Any] | None = None,
    ) -> int:  # fmt: skip
        wanted = sa.select(table.c.id).where(*where).order_by(table.c.id).limit(self.batch)
        ids = connection.execute(wanted).scalars().all()
        if not ids:
            return 0
        if of_them is not None:
            connection.execute(sa.delete(of_them.table).where(of_them.in_(ids)))
        return int(connection.execute(sa.delete(table).where(table.c.id.in_(ids))).rowcount)
