"""Taking back authorisations of reruns that nobody has used yet."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.decisions import check_words
from airflow_guard.core.errors import ResolutionError
from airflow_guard.store.changes import describe
from airflow_guard.store.dialects import utc_now
from airflow_guard.store.events import AuditEvent, storable, told
from airflow_guard.store.task_runs import aware

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import date, datetime

    from airflow_guard.store.ledger import Ledger

CHUNK = 500


@dataclass(frozen=True, slots=True)
class Granted:
    """An authorisation that holds, and that nobody has used.

    :param rerun_id: its row.
    :param key_text: the key as a person reads it.
    :param actor: who authorised it, and why: ``reason``.
    """

    rerun_id: int
    key_date: date
    key_hash: str
    key_text: str
    actor: str
    reason: str
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class Scope:
    """Which authorisations; every part narrows it.

    :param hashes: of keys; empty: all.
    :param documents: normalised ids; empty: all.
    """

    key_namespace: str | None = None
    operation: str | None = None
    start: date | None = None
    end: date | None = None
    cycle: str | None = None
    documents: Collection[str | None] = ()
    hashes: Collection[str] = ()


def granted(ledger: Ledger, scope: Scope) -> list[Granted]:
    """Return the authorisations that hold and that nobody has used, by key.

    :raises LedgerUnavailable: the database is down (a retry helps).
    """
    e, r = ledger.database.tables.execution, ledger.database.tables.rerun
    same_key = sa.and_(e.c.key_date == r.c.key_date, e.c.key_hash == r.c.key_hash)
    found = sa.select(e, r.c.id, r.c.actor, r.c.reason, r.c.expires_at).join(r, same_key)
    found = found.where(r.c.used_at.is_(None), r.c.expires_at > utc_now())
    parts = {"key_namespace": scope.key_namespace, "operation": scope.operation, "cycle": scope.cycle}
    found = found.where(*(e.c[name] == value for name, value in parts.items() if value is not None))
    if scope.start is not None:
        found = found.where(e.c.business_date.between(scope.start, scope.end or scope.start))
    if scope.hashes:
        found = found.where(e.c.key_hash.in_(sorted(scope.hashes)))
    rows = ledger.database.read(
        lambda connection: connection.execute(found.order_by(e.c.key_date, e.c.key_hash)).all()
    )
    return [
        Granted(
            row.id,
            row.key_date,
            row.key_hash,
            describe(row),
            row.actor,
            row.reason,
            aware(row.expires_at),
        )
        for row in rows
        if not scope.documents or row.document in scope.documents
    ]


def withdraw(ledger: Ledger, given: Sequence[Granted], *, actor: str, reason: str) -> None:
    """Take authorisations back, all of them or none. The keys stay done, and are replayed.

    :param given: as somebody looked at them.
    :param actor: who says so.
    :param reason: why, mandatory.
    :raises ResolutionError: one was used meanwhile, or is gone. A retry does not help.
    :raises LedgerBusy: a lock was not free in time (a retry helps).
    """
    actor, reason = check_words(actor, reason)

    def work(connection: sa.Connection) -> None:
        ledger.database.limit_locks(connection)
        for key_date, group in groupby(given, key=lambda each: each.key_date):
            members = list(group)
            for start in range(0, len(members), CHUNK):
                _withdraw(ledger, connection, key_date, members[start : start + CHUNK], actor, reason)

    ledger.database.write(work)


def _withdraw(
    ledger: Ledger, connection: sa.Connection, key_date: date, given: Sequence[Granted], actor: str, reason: str
) -> None:  # fmt: skip
    r = ledger.database.tables.rerun
    hashes = sorted(each.key_hash for each in given)
    # A claim that uses an authorisation locks the key first: it comes before this, and is seen, or after it.
    rows = {row.key_hash: row for row in ledger.statements.lock.run(connection, key_date, hashes)}
    ids = [each.rerun_id for each in given]
    there = {row.id: row for row in connection.execute(sa.select(r).where(r.c.id.in_(ids)))}
    events = []
    for each in given:
        row, rerun = rows.get(each.key_hash), there.get(each.rerun_id)
        if rerun is None and _done_before(ledger, connection, each, actor, reason):
            continue  # by this very call, whose commit was not answered
        if rerun is None or rerun.used_at is not None or row is None:
            became = "is gone" if rerun is None else "was used meanwhile"
            raise ResolutionError(
                f"The authorisation of {each.key_text} {became}. Nothing was withdrawn. Look again: airflow-guard show --key "
                f"{each.key_hash}"
            )
        events.append(
            AuditEvent(
                "rerun_withdrawn", each.key_text, actor, f"{reason} (authorised by {each.actor}: {each.reason})", key_date,
                each.key_hash, row.attempt, row.owner_token, row.task_run_id, row.state, row.state,
            )
        )  # fmt: skip
    taken = connection.execute(sa.delete(r).where(r.c.id.in_(ids), r.c.used_at.is_(None))).rowcount
    if taken != len(events):  # a purge has removed one meanwhile: claims are kept out by the lock on the key
        raise ResolutionError(
            f"{len(events)} authorisations were to be withdrawn, {taken} were there. Nothing was withdrawn. Look again."
        )
    ledger.events.write(connection, *events)


def _done_before(ledger: Ledger, connection: sa.Connection, each: Granted, actor: str, reason: str) -> bool:
    v: Any = ledger.database.tables.event
    whose = (v.c.key_date == each.key_date, v.c.key_hash == each.key_hash, v.c.kind == "rerun_withdrawn")
    words = told(f"{reason} (authorised by {each.actor}: {each.reason})")
    same = (v.c.actor == storable(actor, 250), v.c.reason == words)
    return connection.execute(sa.select(v.c.id).where(*whose, *same).limit(1)).first() is not None
