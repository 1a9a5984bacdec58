"""Rename an operation in the ledger, so that renamed code meets the keys of its past.

A key is a hash and cannot be translated: each row is hashed anew from all its parts. The row has them:
``key_namespace`` and ``operation`` (which change), ``cycle``, the normalised ``document``, and ``key_date``,
which is the business date, or the fixed date ``DATELESS`` where ``once_per="document"`` keeps the date out of
the key. So ``once_per`` need not be stored. ``deployment`` is no part of ``key_hash``; ``idempotency_key``
has it, and stays as it is, because the receiver knows the effect by it.

Everything happens in one transaction that holds off all writes to keys, of other operations too (it moves
some thousand rows a second; tasks wait, or retry). Therefore a claim is either made before it, and then seen
(an attempt at work refuses the rename), or it comes after it. One that comes after it under the old names,
from a task that looked for aliases before, is refused by the claim itself, which looks for the alias in its
own transaction after its insert; its next try meets the renamed keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.acts.once import one_transaction
from airflow_guard.core.decisions import check_words
from airflow_guard.core.errors import ResolutionError
from airflow_guard.core.keys import DATELESS, KeySpace
from airflow_guard.core.states import FollowUp, State
from airflow_guard.core.texts import meant
from airflow_guard.reading.spaces import is_known, known_names
from airflow_guard.store import aliases
from airflow_guard.store.changes import describe
from airflow_guard.store.dialects import utc_now
from airflow_guard.store.events import AuditEvent, storable
from airflow_guard.store.task_runs import identity_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import date

    from airflow_guard.core.keys import KeyHasher
    from airflow_guard.store.aliases import Name
    from airflow_guard.store.ledger import Ledger

CHUNK = 500
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Renamed:
    """What a rename did, or would do (dry run).

    :param keys: how many keys of each state were found under the old names.
    :param alias_is_new: ``False`` where the same rename was made before: only rows that came since moved.
    """

    old: Name
    new: Name
    keys: dict[State, int] = field(default_factory=dict)
    alias_is_new: bool = True

    @property
    def count(self) -> int:
        """How many keys there are."""
        return sum(self.keys.values())


def rename(
    ledger: Ledger, old: Name, new: Name, *, actor: str, reason: str, dry_run: bool = False
) -> Renamed:
    """Give the keys of an operation to another name, and leave an alias, so that old code meets them too.

    Task tries and events of the past keep the old names: that is what happened.

    :param old: ``key_namespace`` and ``operation`` that the ledger knows.
    :param new: the names from now on.
    :param actor: who does it; ``reason`` why: both mandatory.
    :param dry_run: check and count, change nothing.
    :raises ResolutionError: the ledger does not know the old names, an attempt is at work under them, a key exists
        under the new ones already, or the names contradict earlier renames. Nothing was changed; a retry helps
        only where an attempt is at work.
    :raises LedgerBusy: a long transaction holds keys, or a deadlock; nothing was changed (a retry helps).
    """
    actor, reason = check_words(actor, reason)
    if old == new:
        raise ResolutionError(f"The old and the new name are the same: {_named(old)}.")
    work = _Rename(ledger, old, new, actor, reason)
    if dry_run:
        return ledger.database.read(lambda connection: work.run(connection, dry_run=True))
    with one_transaction(ledger.database, "rename", alone=True) as connection:
        return work.run(connection, dry_run=False)


class _Rename:
    def __init__(self, ledger: Ledger, old: Name, new: Name, actor: str, reason: str) -> None:
        self._ledger = ledger
        self._old, self._new = old, new
        self._actor, self._reason = actor, reason
        self._tables = ledger.database.tables
        self._hashers: dict[tuple[date, str], KeyHasher] = {}

    def run(self, connection: sa.Connection, *, dry_run: bool) -> Renamed:
        """Check all, then change all, in the caller's transaction."""
        self._hasher(DATELESS, "")  # refuses impossible names before anything else
        alias_is_new = self._check_aliases(connection)
        if alias_is_new:
            self._check_known(connection)
        self._check_nobody_works(connection)
        done = Renamed(self._old, self._new, {}, alias_is_new)
        for rows in self._chunks(connection):
            moves = {
                row.key_hash: self._hasher(row.key_date, row.cycle).key_hash(row.document) for row in rows
            }
            self._check_targets(connection, rows, moves)
            for row in rows:
                done.keys[State(row.state)] = done.keys.get(State(row.state), 0) + 1
            if not dry_run:
                self._move(connection, rows, moves)
        if not done.count and not alias_is_new:
            return done
        if not dry_run:
            self._write_alias(connection, done)
        return done

    def _hasher(self, key_date: date, cycle: str) -> KeyHasher:
        """Return what hashes documents under the new names."""
        found = self._hashers.get((key_date, cycle))
        if found is None:
            if len(self._hashers) > CHUNK:
                self._hashers.clear()
            once_per = "document" if key_date == DATELESS else "date"
            found = KeySpace(*self._new, key_date, cycle, once_per).hasher()
            self._hashers[key_date, cycle] = found
        return found

    def _check_aliases(self, connection: sa.Connection) -> bool:
        """Return whether the alias is still to be written."""
        before = aliases.find(connection, self._tables, self._old)
        if before is not None and before.new == self._new:
            return False
        if before is not None:
            raise ResolutionError(
                f"{_named(self._old)} was renamed to {_named(before.new)} at "
                f"{before.created_at:%Y-%m-%d %H:%M} UTC by {before.actor} ({before.reason}). Rename that "
                "one."
            )
        path = aliases.follow(connection, self._tables, self._new)
        if len(path) > 1 and path[-1] != self._old:
            raise ResolutionError(
                f"{_named(self._new)} is an old name of {_named(path[-1])}: its keys are there. Rename to "
                "that."
            )
        return True

    def _check_known(self, connection: sa.Connection) -> None:
        """Refuse a name that was never used: an alias from it would catch what is named so one day."""
        if not is_known(connection, self._tables, self._old):
            known = [_named(name) for name in known_names(connection, self._tables)]
            raise ResolutionError(
                f"This ledger knows no operation {_named(self._old)}: nothing was changed. A name that was never used needs no "
                f"rename.{meant(_named(self._old), known, all_if_none=True)}"
            )

    def _check_nobody_works(self, connection: sa.Connection) -> None:
        e, lease, run = self._tables.execution, self._tables.lease, self._tables.task_run
        unfinished = sa.or_(e.c.state == State.IN_PROGRESS.value, e.c.follow_up == FollowUp.PENDING.value)
        alive = (
            sa.select(run)
            .where(
                run.c.id == lease.c.task_run_id,
                lease.c.expires_at > utc_now(),
                sa.exists().where(e.c.task_run_id == run.c.id, self._is_old(), unfinished),
            )
            .order_by(run.c.id)
            .limit(_NAMED)
        )
        holders = [identity_of(row).describe() for row in connection.execute(alive)]
        if holders:
            raise ResolutionError(
                f"{_named(self._old)} is being worked on: {'; '.join(holders)}. Nothing was changed. Pause "
                "the DAG, wait for the task to end, and try again."
            )

    def _is_old(self) -> sa.ColumnElement[bool]:
        e = self._tables.execution
        return sa.and_(e.c.key_namespace == self._old[0], e.c.operation == self._old[1])

    def _chunks(self, connection: sa.Connection) -> Iterator[Sequence[Any]]:
        """Yield the rows in the order of their keys; one that has moved is not met again."""
        e = self._tables.execution
        columns = (e.c.key_date, e.c.key_hash, e.c.cycle, e.c.document, e.c.owner_token, e.c.state)
        wanted = sa.select(*columns).where(self._is_old()).order_by(e.c.key_date, e.c.key_hash).limit(CHUNK)
        rows = connection.execute(wanted).all()
        while rows:
            yield rows
            last = rows[-1]
            after = sa.or_(e.c.key_date > last.key_date, e.c.key_hash > last.key_hash)
            rows = connection.execute(wanted.where(e.c.key_date >= last.key_date, after)).all()

    def _check_targets(self, connection: sa.Connection, rows: Sequence[Any], moves: dict[str, str]) -> None:
        e = self._tables.execution
        taken: list[Any] = []
        for key_date, group in _by_date(rows):
            new = [moves[row.key_hash] for row in group]
            found = sa.select(e).where(e.c.key_date == key_date, e.c.key_hash.in_(new)).limit(_NAMED)
            taken += connection.execute(found).all()
        if taken:
            named = "; ".join(f"{describe(row)} ({row.state})" for row in taken[:_NAMED])
            raise ResolutionError(
                f"{_named(self._new)} has keys already that {_named(self._old)} has too: {named}. Nothing "
                "was changed. Both names have done, or tried, the same documents: compare with the receiver "
                "before you decide which of them counts."
            )

    def _move(self, connection: sa.Connection, rows: Sequence[Any], moves: dict[str, str]) -> None:
        """Re-key rows: every other column, and so owner, state and idempotency key, stays."""
        e = self._tables.execution

        def of_row(values: dict[str, Any]) -> sa.ColumnElement[Any]:
            return sa.case(values, value=e.c.key_hash)

        for key_date, group in _by_date(rows):
            changed = connection.execute(
                sa.update(e)
                .where(
                    e.c.key_date == key_date,
                    e.c.key_hash.in_([row.key_hash for row in group]),
                    self._is_old(),
                    e.c.owner_token == of_row({row.key_hash: row.owner_token for row in group}),
                    e.c.state == of_row({row.key_hash: row.state for row in group}),
                )
                .values(
                    key_hash=of_row({row.key_hash: moves[row.key_hash] for row in group}),
                    key_namespace=self._new[0],
                    operation=self._new[1],
                )
            ).rowcount
            if changed != len(group):  # cannot be: writers are held off
                raise ResolutionError(
                    f"{changed} of {len(group)} keys of {key_date} could be moved: none was."
                )
            self._move_reruns(connection, key_date, {row.key_hash: moves[row.key_hash] for row in group})

    def _move_reruns(self, connection: sa.Connection, key_date: date, moves: dict[str, str]) -> None:
        r = self._tables.rerun
        connection.execute(
            sa.update(r)
            .where(r.c.key_date == key_date, r.c.key_hash.in_(list(moves)))
            .values(key_hash=sa.case(moves, value=r.c.key_hash))
        )

    def _write_alias(self, connection: sa.Connection, done: Renamed) -> None:
        a = self._tables.alias
        if done.alias_is_new:
            # Renamed back: what was an old name is the name again.
            connection.execute(sa.delete(a).where(a.c.old_hash == aliases.name_hash(*self._new)))
            connection.execute(
                sa.insert(a).values(
                    old_hash=aliases.name_hash(*self._old),
                    old_namespace=self._old[0],
                    old_operation=self._old[1],
                    new_namespace=self._new[0],
                    new_operation=self._new[1],
                    created_at=utc_now(),
                    actor=storable(self._actor, 250),
                    reason=storable(self._reason),
                )
            )
        self._move_horizon(connection)
        text = f"{_named(self._old)} → {_named(self._new)} ({done.count:,} keys)"
        self._ledger.events.write(connection, AuditEvent("rename", text, self._actor, self._reason))

    def _move_horizon(self, connection: sa.Connection) -> None:
        """Let what was purged under the old names stay refused under the new ones."""
        h = self._tables.horizon
        found = {
            row.name_hash: row
            for row in connection.execute(
                sa.select(h).where(
                    h.c.name_hash.in_([aliases.name_hash(*self._old), aliases.name_hash(*self._new)])
                )
            )
        }
        old, new = found.get(aliases.name_hash(*self._old)), found.get(aliases.name_hash(*self._new))
        if old is None:
            return
        if new is not None:
            later = max(old.business_date, new.business_date)
            connection.execute(sa.update(h).where(h.c.name_hash == new.name_hash).values(business_date=later))
            connection.execute(sa.delete(h).where(h.c.name_hash == old.name_hash))
            return
        names = {"key_namespace": self._new[0], "operation": self._new[1]}
        moved = sa.update(h).where(h.c.name_hash == old.name_hash)
        connection.execute(moved.values(name_hash=aliases.name_hash(*self._new), **names))


def _by_date(rows: Sequence[Any]) -> Iterator[tuple[date, list[Any]]]:
    groups: dict[date, list[Any]] = {}
    for row in rows:
        groups.setdefault(row.key_date, []).append(row)
    yield from groups.items()


def _named(name: Name) -> str:
    return " / ".join(name)
