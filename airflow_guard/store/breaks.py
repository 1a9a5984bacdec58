"""Breaks: found, found again, closed when gone, opened again when back.

What one check has found is written in one transaction, so that two checks of one date (its own, and that of a
later run) cannot leave half of each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.checks import BOTH_EMPTY, TOTALS_MISMATCH, BreakState
from airflow_guard.store.break_rows import describe, found_of, row_of, stored_break, values_of
from airflow_guard.store.dialects import age_s, utc_now
from airflow_guard.store.events import AuditEvent, EventLog, storable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import date

    from airflow_guard.core.checks import FoundBreak
    from airflow_guard.core.keys import KeySpace
    from airflow_guard.store.break_rows import StoredBreak
    from airflow_guard.store.database import LedgerDatabase


@dataclass(frozen=True, slots=True)
class Findings:
    """What one check found out about the breaks of its date.

    :param found: the breaks that are there now, each once.
    :param closes: which others are certainly gone: ``"all"``, ``"groups"`` (only those of whole groups: the
        documents were not compared) or ``"none"`` (not all breaks are named).
    """

    found: Sequence[FoundBreak] = ()
    closes: str = "all"


@dataclass(slots=True)
class Changes:
    """What became of the breaks of a date.

    :param new: found for the first time, or again after they were closed or explained, in this run.
    :param known: open already, opened by an earlier run.
    :param explained: a person has accepted them as they are.
    :param closed: gone now.
    """

    new: list[FoundBreak] = field(default_factory=list)
    known: list[FoundBreak] = field(default_factory=list)
    explained: list[FoundBreak] = field(default_factory=list)
    closed: list[FoundBreak] = field(default_factory=list)


class Breaks:
    """Reads and writes ``guard_break``.

    :param database: the ledger's.
    """

    def __init__(self, database: LedgerDatabase) -> None:
        self._db = database
        self._break = database.tables.breaks
        self._check = database.tables.reconciliation
        self._events = EventLog(database.tables)

    def merge(
        self,
        connection: sa.Connection,
        checks: Sequence[int],
        space: KeySpace,
        findings: Findings,
        actor: str,
    ) -> Changes:
        """Write what a check found, in the caller's transaction.

        none → open; resolved → open; explained → open if its values are others; open, explained → resolved if it
        is gone.

        :param checks: rows in ``guard_reconciliation``: the check, then earlier checks of this date by the same
            task in the same run. What they opened counts as new: a retry must fail as the first try did.
        :param actor: the check in words, for what it closes.
        """
        b = self._break
        known = sa.select(b).where(*_of(b, space)).order_by(b.c.break_hash).with_for_update()
        rows = {row.break_hash: row for row in connection.execute(known)}
        found = {each.hash_in(space): each for each in findings.found}
        changes = Changes()
        fresh: list[dict[str, Any]] = []
        for break_hash, each in found.items():
            row = rows.get(break_hash)
            if row is None:
                fresh.append(row_of(each, break_hash, checks[0], space))
                changes.new.append(each)
            else:
                self._seen(connection, row, each, checks, actor, changes)
        if fresh:
            now = {"first_seen_at": utc_now(), "last_seen_at": utc_now()}
            connection.execute(sa.insert(b).values(now), fresh)
        gone = [row for key, row in rows.items() if key not in found and _closes(row, findings.closes)]
        if gone:
            connection.execute(
                sa.update(b)
                .where(b.c.id.in_([row.id for row in gone]), b.c.state != BreakState.RESOLVED.value)
                .values(
                    state=BreakState.RESOLVED.value,
                    closed_at=utc_now(),
                    closed_by_id=checks[0],
                    actor=storable(actor, 250),
                    reason="gone: a later look no longer found it",
                )
            )
            changes.closed.extend(found_of(row) for row in gone)
        return changes

    def _seen(
        self,
        connection: sa.Connection,
        row: Any,
        each: FoundBreak,
        checks: Sequence[int],
        actor: str,
        changes: Changes,
    ) -> None:
        b = self._break
        values = {**values_of(each), "last_seen_at": utc_now(), "seen_by_id": checks[0]}
        same = found_of(row).values == tuple(values_of(each).values())
        if row.state == BreakState.EXPLAINED and same:
            changes.explained.append(each)
        elif row.state == BreakState.OPEN:
            (changes.new if row.opened_by_id in checks else changes.known).append(each)
        else:
            why = f"found again: {each.describe()}"
            if row.reason:
                why += f" (before: {row.state} by {row.actor}: {row.reason})"
            self._events.write(
                connection,
                AuditEvent(
                    "break_reopened", describe(row), actor, why, row.business_date, row.break_hash,
                    from_state=row.state, to_state=BreakState.OPEN.value,
                ),
            )  # fmt: skip
            values |= {
                "state": BreakState.OPEN.value,
                "opened_by_id": checks[0],
                "closed_at": None,
                "closed_by_id": None,
                "actor": None,
                "reason": None,
            }
            changes.new.append(each)
        connection.execute(sa.update(b).where(b.c.id == row.id).values(values))

    @property
    def select(self) -> sa.Select[Any]:
        """All breaks, each with its age and the run that opened it."""
        b, r = self._break, self._check
        columns = (b, age_s(b.c.first_seen_at).label("age"), r.c.run_id.label("opened_in"))
        return sa.select(*columns).select_from(b.outerjoin(r, r.c.id == b.c.opened_by_id))

    def of_checks(
        self, check_ids: Sequence[int], dates: Iterable[date], also: Iterable[int] = ()
    ) -> list[StoredBreak]:
        """Return the breaks that these checks found last, and those that they closed, in the order in which they were found.

        :param dates: the business dates of the checks.
        :param also: breaks of these ids, which other checks may have found since.
        """
        b = self._break
        found = self.select.where(
            b.c.business_date.in_(sorted(set(dates))),
            b.c.seen_by_id.in_(check_ids) | b.c.closed_by_id.in_(check_ids) | b.c.id.in_(sorted(also)),
        ).order_by(b.c.business_date, b.c.id)
        return [
            stored_break(row) for row in self._db.read(lambda connection: connection.execute(found).all())
        ]

    def unsettled(
        self,
        *,
        key_namespace: str | None = None,
        operation: str | None = None,
        business_date: date | None = None,
        state: BreakState | None = None,
        limit: int = 1000,
    ) -> list[StoredBreak]:
        """Return breaks that are open or explained, oldest first.

        :param state: only these.
        :param limit: at most so many.
        """
        b = self._break
        conditions = [b.c.state != BreakState.RESOLVED.value if state is None else b.c.state == state.value]
        for column, value in (
            (b.c.key_namespace, key_namespace),
            (b.c.operation, operation),
            (b.c.business_date, business_date),
        ):
            if value is not None:
                conditions.append(column == value)
        found = self.select.where(*conditions).order_by(b.c.first_seen_at, b.c.id).limit(limit)
        return [
            stored_break(row) for row in self._db.read(lambda connection: connection.execute(found).all())
        ]


def _of(table: sa.Table, space: KeySpace) -> list[sa.ColumnElement[bool]]:
    return [
        table.c.business_date == space.business_date,
        table.c.key_namespace == space.key_namespace,
        table.c.operation == space.operation,
        table.c.cycle == space.cycle,
        table.c.deployment == space.deployment,
    ]


def _closes(row: Any, closes: str) -> bool:
    if row.state == BreakState.RESOLVED or closes == "none":
        return False
    return closes == "all" or row.break_type in (TOTALS_MISMATCH, BOTH_EMPTY)
