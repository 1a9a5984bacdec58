"""Reruns on purpose: a person authorises, a claim uses it once, and the reversal of the first effect is remembered.

An authorisation is of one attempt, by its owner token. The key stays completed, and is replayed, until a claim uses
it: in one transaction the key becomes failed in its next generation, is claimed, and the authorisation is used. What
nobody uses in time changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.errors import ResolutionError
from airflow_guard.core.reruns import Rerun, Reversal
from airflow_guard.core.states import State
from airflow_guard.store.changes import describe
from airflow_guard.store.dialects import utc_now
from airflow_guard.store.events import AuditEvent, told

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import date

    from airflow_guard.core.keys import KeySpace
    from airflow_guard.store.changes import Ownership
    from airflow_guard.store.events import EventLog
    from airflow_guard.store.statements import Statements
    from airflow_guard.store.tables import Tables


class Reruns:
    """What claims and executions do with authorisations, in the caller's transaction unless said otherwise."""

    def __init__(self, tables: Tables, statements: Statements, events: EventLog) -> None:
        self._r = tables.rerun
        self._statements = statements
        self._events = events

    def use(
        self, connection: sa.Connection, own: Ownership, space: KeySpace, hashes: Sequence[str]
    ) -> set[str]:
        """Begin the next generation of completed keys that are authorised (completed → failed), and note the
        authorisations as used. Returns the keys that may be claimed now; the caller claims them before its commit.
        """
        r = self._r
        rows = {
            row.key_hash: row for row in self._statements.lock.run(connection, own.key_date, sorted(hashes))
        }
        found = connection.execute(
            sa.select(r)
            .where(
                r.c.key_date == own.key_date,
                r.c.key_hash.in_(sorted(hashes)),
                r.c.used_at.is_(None),
                r.c.expires_at > utc_now(),
            )
            .order_by(r.c.id)
        ).all()
        hasher, used = space.hasher(), set()
        for rerun in found:
            row = rows.get(rerun.key_hash)
            if row is None or (row.owner_token, row.generation + 1) != (rerun.owner_token, rerun.generation):
                continue
            why = f"rerun authorised by {rerun.actor}: {rerun.reason}"
            changed = self._statements.reopen.run(
                connection,
                own.key_date,
                [row.key_hash],
                token=row.owner_token,
                why=told(why),
                receiver_key=hasher.idempotency_key(row.key_hash, rerun.generation),
            ).rowcount
            if changed != 1:
                continue
            self._note_used(connection, own, rerun, row)
            used.add(row.key_hash)
            self._events.write(
                connection,
                AuditEvent(
                    "rerun",
                    describe(row),
                    own.actor,
                    why,
                    own.key_date,
                    row.key_hash,
                    row.attempt + 1,
                    own.token,
                    own.task_run_id,
                    State.COMPLETED.value,
                    State.IN_PROGRESS.value,
                ),
            )
        return used

    def _note_used(self, connection: sa.Connection, own: Ownership, rerun: Any, row: Any) -> None:
        r = self._r
        unused = sa.update(r).where(r.c.id == rerun.id, r.c.used_at.is_(None))
        noted = connection.execute(
            unused.values(
                used_at=utc_now(),
                used_by_id=own.task_run_id,
                previous_result=row.result,
                previous_idempotency_key=row.idempotency_key,
                previous_task_run_id=row.task_run_id,
            )
        ).rowcount
        if noted != 1:  # cannot be: the key's row is locked, and only its claim uses it
            raise ResolutionError(f"The authorisation of {describe(row)} was used by somebody else just now.")

    def of_claims(
        self, connection: sa.Connection, key_date: date, generations: Mapping[str, int]
    ) -> dict[str, Rerun]:
        """Return the reruns that claimed keys of later generations execute."""
        r = self._r
        found = connection.execute(
            sa.select(r).where(
                r.c.key_date == key_date, r.c.key_hash.in_(sorted(generations)), r.c.used_at.is_not(None)
            )
        )
        return {
            row.key_hash: Rerun(
                row.key_hash,
                row.generation,
                bool(row.without_reversal),
                row.previous_result,
                row.previous_idempotency_key,
                Reversal(row.reversal),
            )
            for row in found
            if generations[row.key_hash] == row.generation
        }

    def mark_reversal(
        self, connection: sa.Connection, key_date: date, reruns: Iterable[Rerun], reversal: Reversal
    ) -> None:
        """Write how far the reversal of keys is."""
        r = self._r
        for rerun in reruns:
            mine = (
                r.c.key_date == key_date,
                r.c.key_hash == rerun.key_hash,
                r.c.generation == rerun.generation,
            )
            connection.execute(sa.update(r).where(*mine).values(reversal=reversal.value))
