"""A fail-over that lost commits, recorded by a person: what is unfinished, and what may be forgotten, is not trusted.

One transaction that holds off all writes to keys records it. In it, effects that had begun become in doubt, and claims
whose effect had not begun are taken from their owners, who find that out before they begin. Every claim looks for open
fail-overs after its inserts, so that a task that was at work meanwhile claims nothing without knowing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.errors import OwnershipLost, ResolutionError
from airflow_guard.core.fail_over import FailOver
from airflow_guard.core.states import State
from airflow_guard.store.changes import BEGIN, DOUBT
from airflow_guard.store.events import storable
from airflow_guard.store.task_runs import as_stored, aware

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date, datetime

    from airflow_guard.store.changes import Ownership
    from airflow_guard.store.database import LedgerDatabase
    from airflow_guard.store.ledger import Ledger

NOT_BEGUN = "a fail-over was recorded before the effect had begun"


@dataclass(frozen=True, slots=True)
class OpenFailOver:
    """A recorded fail-over that nobody has closed."""

    id: int
    lost_since: datetime
    recorded_at: datetime
    actor: str
    reason: str


def listed(database: LedgerDatabase) -> list[OpenFailOver]:
    """Return the open fail-overs, oldest first."""
    return database.read(lambda connection: listed_in(connection, database.tables.fail_over))


def open_one(database: LedgerDatabase) -> FailOver | None:
    """Return the open fail-overs as one, ``None`` if there is none."""
    found = listed(database)
    if not found:
        return None
    return FailOver(
        max(each.id for each in found),
        min(each.lost_since for each in found),
        max(each.recorded_at for each in found),
    )


def not_trusted(ledger: Ledger, key_date: date, hashes: Sequence[str]) -> set[str]:
    """Return those of these keys that the ledger knows, and of which it knows nothing since the open fail-overs."""
    e, f = ledger.database.tables.execution, ledger.database.tables.fail_over
    if not hashes:
        return set()
    recorded = sa.select(sa.func.max(f.c.recorded_at)).where(f.c.closed_at.is_(None)).scalar_subquery()
    found = sa.select(e.c.key_hash).where(
        e.c.key_date == key_date,
        e.c.key_hash.in_(sorted(hashes)),
        sa.func.coalesce(e.c.finished_at, e.c.claimed_at) <= recorded,
    )
    return set(ledger.database.read(lambda connection: connection.execute(found).scalars().all()))


def put_in_doubt(
    ledger: Ledger, own: Ownership, hashes: Sequence[str], batch_id: str | None, fail_over: FailOver
) -> set[str]:
    """Mark claimed keys as if their effect had begun when the commits were lost, in doubt; return the keys not ours.

    in_progress/none → in_progress/begun → in_doubt, in one transaction, with an event. The receiver's memory counts from
    ``lost_since``: the first call may have been as early.
    """
    e = ledger.database.tables.execution
    said = storable(fail_over.why)

    def work(connection: sa.Connection) -> set[str]:
        rows = {row.key_hash: row for row in ledger.statements.plain.run(connection, own.key_date, hashes)}
        fresh = [key for key in hashes if key in rows and rows[key].state == State.IN_PROGRESS.value]
        lost = ledger.apply(connection, own, BEGIN, fresh, batch=batch_id) if fresh else set()
        mine = [key for key in hashes if key not in lost]
        lost |= ledger.apply(connection, own, DOUBT, mine, why=said)
        marked = [key for key in mine if key not in lost]
        # Never later: what began before the loss is remembered since then.
        since = as_stored(fail_over.lost_since, ledger.database.dialect)
        earliest = sa.case(
            (e.c.first_begun_at > since, sa.literal(since, e.c.first_begun_at.type)), else_=e.c.first_begun_at
        )
        changed = connection.execute(
            sa.update(e)
            .where(
                e.c.key_date == own.key_date, e.c.key_hash.in_(marked), e.c.owner_token == own.token,
                e.c.state == State.IN_DOUBT.value,
            )
            .values(state=State.IN_DOUBT.value, first_begun_at=earliest)
        ).rowcount  # fmt: skip
        if changed != len(marked):  # cannot be: this transaction has marked them
            raise OwnershipLost(f"{len(marked)} keys of {own.key_date} were put in doubt, {changed} are.")
        new = [key for key in marked if key in fresh]
        ledger.changes.record(
            connection, own, new, "doubt", fail_over.why, State.IN_PROGRESS, State.IN_DOUBT, rows=rows
        )
        return lost

    return ledger.database.write(work)


def listed_in(connection: sa.Connection, fail_over: sa.Table) -> list[OpenFailOver]:
    found = sa.select(fail_over).where(fail_over.c.closed_at.is_(None)).order_by(fail_over.c.id)
    return [open_of(row) for row in connection.execute(found)]


def open_of(row: Any) -> OpenFailOver:
    return OpenFailOver(
        row.id, instant_in(row.lost_since_at), instant_in(row.recorded_at), row.actor, row.reason
    )


def instant_in(value: Any) -> datetime:
    found = aware(value)
    if found is None:  # a column that is NOT NULL
        raise ResolutionError("The ledger has a fail-over without a time.")
    return found
