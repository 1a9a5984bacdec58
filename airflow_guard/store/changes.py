"""Changes that the owner of keys writes: each matches the token and the state that it leaves, and is accounted for."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_guard.core.states import FollowUp, Phase, State
from airflow_guard.store import dialects
from airflow_guard.store.events import AuditEvent, EventLog

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    import sqlalchemy as sa

    from airflow_guard.store.by_keys import ByKeys
    from airflow_guard.store.database import LedgerDatabase
    from airflow_guard.store.statements import Statements


@dataclass(frozen=True, slots=True)
class Ownership:
    """What every write after a claim carries.

    :param token: random, one per claim: an attempt of a key is told by it.
    """

    key_date: date
    token: str
    task_run_id: int
    actor: str

    @staticmethod
    def new(key_date: date, task_run_id: int, actor: str) -> Ownership:
        """Return an ownership with a token that no other attempt has."""
        return Ownership(key_date, uuid.uuid4().hex, task_run_id, actor)


@dataclass(frozen=True, slots=True)
class Change:
    """One kind of write for a set of owned keys.

    :param statement: name of the statement in :class:`Statements`.
    :param target: state and phase that it leads to; a row that is there already with our token was written by a
        repetition of the same change.
    :param late: statement for a row that somebody else has settled or marked in doubt meanwhile.
    """

    statement: str
    target: tuple[State, Phase]
    late: str | None = None


BEGIN = Change("begin", (State.IN_PROGRESS, Phase.BEGUN))
COMPLETE = Change("complete", (State.COMPLETED, Phase.DONE), late="late_complete")
FAIL_BEFORE = Change("fail_before", (State.FAILED, Phase.NONE))
FAIL_BEGUN = Change("fail_begun", (State.FAILED, Phase.NONE), late="late_fail")
REJECT = Change("reject", (State.REJECTED, Phase.NONE), late="late_reject")
DOUBT = Change("doubt", (State.IN_DOUBT, Phase.BEGUN))


class Changes:
    """Applies changes in the caller's transaction.

    :param database: for lock timeouts.
    :param statements: of the ledger's tables.
    :param events: where what is out of the ordinary is told.
    """

    def __init__(self, database: LedgerDatabase, statements: Statements, events: EventLog) -> None:
        self.database = database
        self.statements = statements
        self.events = events

    def apply(
        self, connection: sa.Connection, own: Ownership, change: Change, hashes: Sequence[str], **values: Any
    ) -> set[str]:
        """Apply a change in the caller's transaction and return the keys that are no longer ours.

        The row count is checked; only where it differs are the rows locked and looked at: a repetition after a
        lost commit finds its own work done, a late report follows its own path, the rest is lost.
        """
        statement: ByKeys = getattr(self.statements, change.statement)
        if self._may_be_held(connection, own, hashes):
            return self._account_for(connection, own, change, hashes, values)
        if statement.run(connection, own.key_date, hashes, token=own.token, **values).rowcount == len(hashes):
            return set()
        return self._account_for(connection, own, change, hashes, values)

    def _may_be_held(self, connection: sa.Connection, own: Ownership, hashes: Sequence[str]) -> bool:
        """Return whether another attempt owns a key, which it may hold for as long as its callable runs.

        MySQL and MariaDB lock a row before they look at its token, so that the change itself would wait for it.
        PostgreSQL compares first, and SQLite locks no rows.
        """
        if self.database.dialect != dialects.MYSQL:
            return False
        owners = self.statements.owners.run(connection, own.key_date, hashes).scalars()
        return any(token != own.token for token in owners)

    def _account_for(
        self,
        connection: sa.Connection,
        own: Ownership,
        change: Change,
        hashes: Sequence[str],
        values: dict[str, Any],
    ) -> set[str]:
        # Once another token is there, ours never comes back: such a row is not waited for, since its owner may hold
        # it for as long as a callable runs. Ours may be held by a commit whose answer was lost.
        self.database.limit_locks(connection)
        rows = {row.key_hash: row for row in self.statements.plain.run(connection, own.key_date, hashes)}
        ours_now = sorted(key_hash for key_hash, row in rows.items() if row.owner_token == own.token)
        if ours_now:
            rows |= {
                row.key_hash: row for row in self.statements.lock.run(connection, own.key_date, ours_now)
            }
        lost = set()
        for key_hash in hashes:
            row = rows.get(key_hash)
            ours = row is not None and row.owner_token == own.token
            if ours and reached(row, change):
                self._add_result(connection, own, change, row, values)
                continue
            if ours and change.late and self._late(connection, own, change, row, values):
                continue
            self._tell_conflict(connection, own, change, key_hash, row)
            lost.add(key_hash)
        return lost

    def _add_result(
        self, connection: sa.Connection, own: Ownership, change: Change, row: Any, values: dict[str, Any]
    ) -> None:
        """Keep what an attempt got whose effect somebody else has recorded as happened."""
        if change is not COMPLETE or row.result is not None or row.follow_up != FollowUp.NONE:
            return
        outcome, follow, pushed = values["outcome"], values["follow"], values["pushed"]
        if outcome is not None or follow == FollowUp.PENDING:
            late = self.statements.late_result
            late.run(
                connection,
                own.key_date,
                [row.key_hash],
                token=own.token,
                outcome=outcome,
                follow=follow,
                pushed=pushed,
            )

    def _late(
        self, connection: sa.Connection, own: Ownership, change: Change, row: Any, values: dict[str, Any]
    ) -> bool:
        statement: ByKeys = getattr(self.statements, change.late or "")
        if statement.run(connection, own.key_date, [row.key_hash], token=own.token, **values).rowcount != 1:
            return False
        self.record(
            connection,
            own,
            [row.key_hash],
            "late_report",
            "the attempt itself reported after all",
            State(row.state),
            change.target[0],
            rows={row.key_hash: row},
        )
        return True

    def _tell_conflict(
        self, connection: sa.Connection, own: Ownership, change: Change, key_hash: str, row: Any
    ) -> None:
        """Write an event where an attempt reports what does not fit what the ledger has."""
        found = f"state {row.state}, attempt {row.attempt}" if row is not None else "no row"
        ours = row is not None and row.owner_token == own.token
        let_go = self.events.let_go_by(connection, own.key_date, key_hash, own.token)
        compare = f"({found}): {let_go}. It may have been executed again: compare with the receiver."
        if change is COMPLETE:
            why = f"an attempt reports that its effect happened, but the key is no longer its own {compare}"
        elif change is DOUBT and not (ours and row.state == State.COMPLETED):
            why = f"an attempt ended inside its effect, which may have happened, but the key is no longer its own {compare}"
        elif change in (FAIL_BEGUN, REJECT) and ours and row.state == State.COMPLETED:
            why = (
                f"an attempt reports that its effect did not happen, but the ledger has it as happened ({found}): "
                f"{let_go}. Compare with the receiver: it may have to be done by hand."
            )
        else:
            return
        known = self.events.of_key(connection, own.key_date, key_hash)
        if any(
            (event.kind, event.owner_token, event.reason) == ("conflict", own.token, why) for event in known
        ):
            return  # a repetition after a lost commit
        rows = {key_hash: row} if row is not None else {}
        self.record(connection, own, [key_hash], "conflict", why, None, None, rows=rows)

    def record(
        self,
        connection: sa.Connection,
        own: Ownership,
        hashes: Sequence[str],
        kind: str,
        why: str,
        before: State | None,
        after: State | None,
        rows: dict[str, Any] | None = None,
    ) -> None:
        """Write an event of one kind for keys."""
        if not hashes:
            return
        if rows is None:
            rows = {row.key_hash: row for row in self.statements.lock.run(connection, own.key_date, hashes)}
        self.events.write(
            connection,
            *(
                AuditEvent(
                    kind,
                    describe(rows.get(key_hash)) or key_hash,
                    own.actor,
                    why,
                    own.key_date,
                    key_hash,
                    getattr(rows.get(key_hash), "attempt", None),
                    own.token,
                    own.task_run_id,
                    before,
                    after,
                )
                for key_hash in hashes
            ),
        )


def reached(row: Any, change: Change) -> bool:
    """Return whether a row is where a change leads to."""
    state, phase = change.target
    if state is State.IN_DOUBT:
        return bool(row.state == state.value)
    return bool((row.state, row.phase) == (state.value, phase.value))


def describe(row: Any) -> str:
    """Return the key of a row as a person reads it."""
    if row is None:
        return ""
    parts = [row.key_namespace, row.operation, row.business_date.isoformat()]
    parts += [f"cycle {row.cycle}"] if row.cycle else []
    return " / ".join([*parts, row.document if row.document is not None else "(whole run)"])
