"""A fail-over that lost commits, recorded by a person: what is unfinished, and what may be forgotten, is not trusted.

One transaction that holds off all writes to keys records it. In it, effects that had begun become in doubt, and claims
whose effect had not begun are taken from their owners, who find that out before they begin. Every claim looks for open
fail-overs after its inserts, so that a task that was at work meanwhile claims nothing without knowing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.decisions import check_words
from airflow_guard.core.errors import OwnershipLost, ResolutionError
from airflow_guard.core.fail_over import FailOver, check_lost_since
from airflow_guard.core.states import Phase, State
from airflow_guard.store.changes import BEGIN, DOUBT, describe
from airflow_guard.store.dialects import utc_now
from airflow_guard.store.events import AuditEvent, storable
from airflow_guard.store.one_transaction import one_transaction
from airflow_guard.store.task_runs import as_stored, aware

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import date, datetime

    from airflow_guard.store.changes import Ownership
    from airflow_guard.store.database import LedgerDatabase
    from airflow_guard.store.ledger import Ledger

NOT_BEGUN = "a fail-over was recorded before the effect had begun"


@dataclass(frozen=True, slots=True)
class Unfinished:
    """One key that was unfinished when a fail-over was recorded, or would be (dry run).

    :param begun: whether its effect had begun: it is in doubt then. Otherwise it may be claimed again.
    """

    key_date: date
    key_hash: str
    key_text: str
    begun: bool


@dataclass(frozen=True, slots=True)
class Recorded:
    """A fail-over as it was recorded, or would be (dry run)."""

    lost_since: datetime
    unfinished: list[Unfinished] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class OpenFailOver:
    """A recorded fail-over that nobody has closed."""

    id: int
    lost_since: datetime
    recorded_at: datetime
    actor: str
    reason: str


@dataclass(frozen=True, slots=True)
class ClosedFailOver:
    """A recorded fail-over that somebody has closed."""

    recorded: OpenFailOver
    closed_at: datetime
    closed_by: str
    close_reason: str


def listed(database: LedgerDatabase) -> list[OpenFailOver]:
    """Return the open fail-overs, oldest first."""
    return database.read(lambda connection: _listed(connection, database.tables.fail_over))


def closed(database: LedgerDatabase, limit: int = 20) -> list[ClosedFailOver]:
    """Return fail-overs that were closed, the last one first."""
    f = database.tables.fail_over
    found = (
        sa.select(f)
        .where(f.c.closed_at.is_not(None))
        .order_by(f.c.closed_at.desc(), f.c.id.desc())
        .limit(limit)
    )
    return [
        ClosedFailOver(_open(row), _instant(row.closed_at), row.closed_by, row.close_reason)
        for row in database.read(lambda connection: connection.execute(found).all())
    ]


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


def record(
    ledger: Ledger, lost_since: datetime, *, actor: str, reason: str, dry_run: bool = False
) -> Recorded:
    """Record a fail-over: begun → in_doubt, claimed and not begun → failed, with an event for each, in one transaction.

    The same once more, of the same instant by the same person for the same reason while it is open, changes nothing.

    :param lost_since: commits since then may be lost; aware.
    :param dry_run: return what would change; change nothing.
    :raises ResolutionError: who or why is missing, or the instant cannot be meant. A retry does not help.
    :raises LedgerBusy: a lock was not free in time: a transaction holds a key. Nothing was changed (a retry helps).
    """
    actor, reason = check_words(actor, reason)
    check_lost_since(lost_since)
    f = ledger.database.tables.fail_over
    with one_transaction(ledger.database, "record the fail-over", alone=True, keep=not dry_run) as connection:
        if any(
            (each.lost_since, each.actor, each.reason) == (lost_since, storable(actor, 250), storable(reason))
            for each in _listed(connection, f)
        ):
            return Recorded(lost_since)
        text = f"commits since {lost_since.isoformat()} may be lost"
        inserted = connection.execute(
            sa.insert(f).values(
                lost_since_at=as_stored(lost_since, ledger.database.dialect), recorded_at=utc_now(),
                actor=storable(actor, 250), reason=storable(reason),
            )
        )  # fmt: skip
        mine = f.c.id == inserted.inserted_primary_key[0]  # type: ignore[index]
        check_lost_since(
            lost_since, aware(connection.execute(sa.select(f.c.recorded_at).where(mine)).scalar_one())
        )
        ledger.events.write(connection, AuditEvent("fail_over", text, actor, reason))
        return Recorded(lost_since, _distrust(ledger, connection, actor, f"{text}: {reason}"))


def close(ledger: Ledger, *, actor: str, reason: str, dry_run: bool = False) -> list[OpenFailOver]:
    """Close the open fail-overs: what the ledger does not know counts as new again. Returns them.

    :raises ResolutionError: who or why is missing, or there is none. A retry does not help.
    """
    actor, reason = check_words(actor, reason)
    f = ledger.database.tables.fail_over
    found = listed(ledger.database)
    if not found:
        raise ResolutionError("No fail-over is open.")
    with one_transaction(ledger.database, "close the fail-over", keep=not dry_run) as connection:
        closing = sa.update(f).where(f.c.id.in_([each.id for each in found]), f.c.closed_at.is_(None))
        values = {"closed_by": storable(actor, 250), "close_reason": storable(reason)}
        changed = connection.execute(closing.values(closed_at=utc_now(), **values)).rowcount
        if changed != len(found):
            raise ResolutionError("Somebody else closed it just now. Nothing was changed.")
        for each in found:
            text = f"commits since {each.lost_since.isoformat()} were compared with the receivers"
            ledger.events.write(connection, AuditEvent("fail_over_closed", text, actor, reason))
    return found


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


def _distrust(ledger: Ledger, connection: sa.Connection, actor: str, why: str) -> list[Unfinished]:
    e = ledger.database.tables.execution
    found = connection.execute(
        sa.select(e)
        .where(e.c.state == State.IN_PROGRESS.value)
        .order_by(e.c.key_date, e.c.key_hash)
        .with_for_update()
    ).all()
    unfinished = []
    for row in found:
        begun = row.phase != Phase.NONE.value
        statement = ledger.statements.doubt_forgotten if begun else ledger.statements.fail_before
        words = storable(why if begun else f"{NOT_BEGUN}: {why}")
        changed = statement.run(
            connection, row.key_date, [row.key_hash], token=row.owner_token, why=words
        ).rowcount
        if changed != 1:  # cannot be: the row is locked
            raise ResolutionError(
                f"{describe(row)} changed while the fail-over was recorded. Nothing was changed."
            )
        unfinished.append(Unfinished(row.key_date, row.key_hash, describe(row), begun))
    _tell(ledger, connection, found, actor, why)
    return unfinished


def _tell(ledger: Ledger, connection: sa.Connection, rows: Iterable[Any], actor: str, why: str) -> None:
    ledger.events.write(
        connection,
        *(
            AuditEvent(
                "fail_over_key", describe(row), actor, why, row.key_date, row.key_hash, row.attempt, row.owner_token,
                row.task_run_id, State.IN_PROGRESS.value,
                (State.FAILED if row.phase == Phase.NONE.value else State.IN_DOUBT).value,
            )
            for row in rows
        ),
    )  # fmt: skip


def _listed(connection: sa.Connection, fail_over: sa.Table) -> list[OpenFailOver]:
    found = sa.select(fail_over).where(fail_over.c.closed_at.is_(None)).order_by(fail_over.c.id)
    return [_open(row) for row in connection.execute(found)]


def _open(row: Any) -> OpenFailOver:
    return OpenFailOver(row.id, _instant(row.lost_since_at), _instant(row.recorded_at), row.actor, row.reason)


def _instant(value: Any) -> datetime:
    found = aware(value)
    if found is None:  # a column that is NOT NULL
        raise ResolutionError("The ledger has a fail-over without a time.")
    return found
