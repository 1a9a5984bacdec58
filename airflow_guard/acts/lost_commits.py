"""A fail-over that lost commits, recorded by a person: what is unfinished, and what may be forgotten, is not trusted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.acts.once import one_transaction
from airflow_guard.core.decisions import check_words
from airflow_guard.core.errors import ResolutionError
from airflow_guard.core.fail_over import check_lost_since
from airflow_guard.core.states import Phase, State
from airflow_guard.store.changes import describe
from airflow_guard.store.dialects import utc_now
from airflow_guard.store.events import AuditEvent, storable
from airflow_guard.store.fail_overs import OpenFailOver, instant_in, listed, listed_in, open_of
from airflow_guard.store.task_runs import as_stored, aware

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import date, datetime

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
class ClosedFailOver:
    """A recorded fail-over that somebody has closed."""

    recorded: OpenFailOver
    closed_at: datetime
    closed_by: str
    close_reason: str


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
        ClosedFailOver(open_of(row), instant_in(row.closed_at), row.closed_by, row.close_reason)
        for row in database.read(lambda connection: connection.execute(found).all())
    ]


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
            for each in listed_in(connection, f)
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
