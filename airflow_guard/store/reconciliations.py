"""Checks of two sides: one row per check, kept while it waits, closed with what came of it.

The progress of a check is here and not in a process, so that a task that is rescheduled or deferred between two
looks goes on where it was.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.checks import BreakState, CheckOutcome, Progress, digest, scope_of
from airflow_guard.store.breaks import Breaks, Changes, Findings
from airflow_guard.store.dialects import age_s, utc_now
from airflow_guard.store.events import told
from airflow_guard.store.task_runs import RunDates, as_stored, aware

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date, datetime

    from airflow_guard.core.guard import TaskIdentity
    from airflow_guard.core.keys import KeySpace
    from airflow_guard.store.database import LedgerDatabase

MAX_OPEN_DATES = 31
"""Earlier dates with open breaks that one run looks at again, the newest first."""


@dataclass(frozen=True)
class Check:
    """Who checks which date.

    :param ti_id: Airflow's id of the task try: the same after a reschedule or a deferral, another one for each
        try.
    :param space: whose sides are checked, and for which date.
    :param run_date: the business date of the run; another than the checked one if that is looked at again.
    :param date_source: where the run's date came from, see ``core.dates.DateSource``.
    """

    ti_id: str
    identity: TaskIdentity
    space: KeySpace
    run_date: date
    date_source: str = "explicit"
    date_detail: str = ""

    @property
    def check_hash(self) -> str:
        """The 32 hex characters by which its row is found again."""
        return digest(*scope_of(self.space), self.ti_id, str(self.identity.map_index))


@dataclass(frozen=True, slots=True)
class CheckState:
    """Where a check is.

    :param age_s: seconds since its first look (database clock).
    :param outcome: ``None``: it goes on.
    """

    id: int
    business_date: date
    progress: Progress
    age_s: float
    outcome: CheckOutcome | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """What one look has read of both sides.

    :param with_keys: whether documents were compared, not only totals.
    :param totals: the control totals of both sides by group, as JSON values; amounts are text.
    :param break_count: breaks that it names.
    :param break_cap: the most that it names.
    :param capped: whether there are more.
    """

    with_keys: bool
    source_count: int | None
    target_count: int | None
    totals: Sequence[Mapping[str, Any]]
    source_read_at: datetime | None
    target_read_at: datetime | None
    break_count: int = 0
    break_cap: int = 0
    capped: bool = False


@dataclass(frozen=True, slots=True)
class Ending:
    """What came of a check.

    :param settled: whether its difference was seen as often as was asked for.
    :param figures: of the last look that read both sides, ``None`` if none did.
    :param findings: what is known of the date's breaks, ``None``: nothing.
    """

    outcome: CheckOutcome
    reason: str
    progress: Progress
    settled: bool = False
    figures: Figures | None = None
    findings: Findings | None = None


@dataclass(frozen=True, slots=True)
class EndedCheck:
    """A check that has ended.

    :param figures: ``None`` if it could never read both sides.
    """

    id: int
    business_date: date
    outcome: CheckOutcome
    reason: str
    progress: Progress
    settled: bool
    figures: Figures | None
    started_at: datetime | None
    ended_at: datetime | None


class Reconciliations(RunDates):
    """Reads and writes ``guard_reconciliation``.

    :param database: the ledger's.
    """

    def __init__(self, database: LedgerDatabase) -> None:
        super().__init__(database, database.tables.reconciliation, "run_date")
        self._check = database.tables.reconciliation
        self.breaks = Breaks(database)

    # -- one check ------------------------------------------------------------------------------------------

    def states(self, ti_id: str) -> list[CheckState]:
        """Return where the checks of a task try are, by date; empty before its first look."""
        r = self._check
        found = sa.select(r, age_s(r.c.started_at).label("age")).where(r.c.ti_id == ti_id)
        rows = self._db.read(lambda connection: connection.execute(found.order_by(r.c.business_date)).all())
        return [_state_of(row) for row in rows]

    def begin(self, checks: Sequence[Check]) -> None:
        """Begin the checks of a task try, all or none (none → running). Those that are there stay as they are.

        :raises LedgerError: the ledger does not answer.
        """
        r = self._check
        rows = {check.check_hash: _row_of(check, self._db.dialect) for check in checks}

        def work(connection: sa.Connection) -> None:
            there = sa.select(r.c.check_hash).where(r.c.check_hash.in_(list(rows)))
            known = set(connection.execute(there).scalars())
            new = [row for check_hash, row in rows.items() if check_hash not in known]
            if new:
                connection.execute(sa.insert(r).values(started_at=utc_now()), new)

        self._db.look_and_write(work)

    def note(self, state: CheckState, progress: Progress, figures: Figures | None = None) -> None:
        """Keep what a look has seen (running → running). A look that another process noted first stays.

        :param figures: ``None``: a side could not be read, and what was read before stays.
        """
        r = self._check
        values = _progress_row(progress) | (_figures_row(figures, self._db.dialect) if figures else {})
        change = (
            sa.update(r)
            .where(r.c.id == state.id, r.c.outcome.is_(None), r.c.poke_count == state.progress.pokes)
            .values(values)
        )
        self._db.write(lambda connection: connection.execute(change).rowcount)

    def close(self, check: Check, state: CheckState, ending: Ending) -> Changes:
        """Record what came of a check, and of the breaks of its date, in one transaction (running → ended).

        :return: what became of the breaks.
        """
        r = self._check
        values = {
            **_progress_row(ending.progress),
            **(_figures_row(ending.figures, self._db.dialect) if ending.figures else {}),
            "settled": int(ending.settled),
            "outcome": ending.outcome.value,
            "reason": told(ending.reason),
            "ended_at": utc_now(),
        }

        def work(connection: sa.Connection) -> Changes:
            self._db.limit_locks(connection)
            connection.execute(sa.update(r).where(r.c.id == state.id).values(values))
            if ending.findings is None:
                return Changes()
            checks = [state.id, *self._earlier_of_run(connection, check, state.id)]
            actor = check.identity.describe()
            return self.breaks.merge(connection, checks, check.space, ending.findings, actor)

        return self._db.look_and_write(work)

    def _earlier_of_run(self, connection: sa.Connection, check: Check, but: int) -> list[int]:
        r, who = self._check, check.identity
        same = sa.select(r.c.id).where(
            r.c.run_id == who.run_id,
            r.c.dag_id == who.dag_id,
            r.c.task_id == who.task_id,
            r.c.map_index == who.map_index,
            r.c.business_date == check.space.business_date,
            r.c.id != but,
        )
        return list(connection.execute(same).scalars())

    # -- dates ----------------------------------------------------------------------------------------------

    def last_ended(self, space: KeySpace, *, but: str = "") -> EndedCheck | None:
        """Return the last check of a date that has ended.

        :param but: not those of this task try.
        """
        return self._last_ended(space, [space.business_date], but=but).get(space.business_date)

    def ended(self, ti_id: str) -> list[EndedCheck]:
        """Return the checks of a task try that have ended, by date."""
        r = self._check
        found = sa.select(r).where(r.c.ti_id == ti_id, r.c.outcome.is_not(None))
        rows = self._db.read(lambda connection: connection.execute(found.order_by(r.c.business_date)).all())
        return [_ended(row) for row in rows]

    def to_recheck(self, space: KeySpace, days: int) -> list[EndedCheck]:
        """Return the dates before this one that a run has to look at again, oldest first, as they ended last.

        All that were checked within so many days, and, whatever their age, those with open breaks (the newest
        ``MAX_OPEN_DATES``).
        """
        b, own = self._db.tables.breaks, space.business_date
        first = own - timedelta(days=days)
        broken = (
            sa.select(b.c.business_date)
            .where(
                b.c.state == BreakState.OPEN.value,
                b.c.business_date < own,
                b.c.key_namespace == space.key_namespace,
                b.c.operation == space.operation,
                b.c.cycle == space.cycle,
                b.c.deployment == space.deployment,
            )
            .distinct()
            .order_by(b.c.business_date.desc())
            .limit(MAX_OPEN_DATES)
        )
        open_dates = list(self._db.read(lambda connection: connection.execute(broken).scalars().all()))
        window = [own - timedelta(days=back) for back in range(1, days + 1)]
        dates = sorted({*window, *(day for day in open_dates if day < first), *open_dates})
        ended = self._last_ended(space, dates)
        return [ended[day] for day in sorted(ended)]

    def _last_ended(self, space: KeySpace, dates: Sequence[date], *, but: str = "") -> dict[date, EndedCheck]:
        if not dates:
            return {}
        r = self._check
        newest = (
            sa.select(sa.func.max(r.c.id))
            .where(
                r.c.business_date.in_(dates),
                r.c.key_namespace == space.key_namespace,
                r.c.operation == space.operation,
                r.c.cycle == space.cycle,
                r.c.deployment == space.deployment,
                r.c.outcome.is_not(None),
                r.c.ti_id != but,
            )
            .group_by(r.c.business_date)
        )

        def read(connection: sa.Connection) -> Sequence[Any]:
            ids = list(connection.execute(newest).scalars())
            return connection.execute(sa.select(r).where(r.c.id.in_(ids))).all()

        return {row.business_date: _ended(row) for row in self._db.read(read)}


def _row_of(check: Check, dialect: str) -> dict[str, Any]:
    identity, space = check.identity, check.space
    return {
        "check_hash": check.check_hash,
        "ti_id": check.ti_id,
        "dag_id": identity.dag_id,
        "task_id": identity.task_id,
        "run_id": identity.run_id,
        "map_index": identity.map_index,
        "try_number": identity.try_number,
        "run_type": identity.run_type,
        "run_after_at": as_stored(identity.run_after_at, dialect),
        "deployment": space.deployment,
        "key_namespace": space.key_namespace,
        "operation": space.operation,
        "business_date": space.business_date,
        "cycle": space.cycle,
        "run_date": check.run_date,
        "date_source": check.date_source,
        "date_detail": check.date_detail[:250],
    }


def _progress_row(progress: Progress) -> dict[str, Any]:
    return {
        "poke_count": progress.pokes,
        "same_pokes": progress.same,
        "difference": progress.difference,
        "error_count": progress.errors,
        "last_error": told(progress.last_error),
    }


def _state_of(row: Any) -> CheckState:
    outcome = CheckOutcome(row.outcome) if row.outcome else None
    return CheckState(row.id, row.business_date, _progress_of(row), float(row.age), outcome)


def _progress_of(row: Any) -> Progress:
    return Progress(row.poke_count, row.same_pokes, row.difference, row.error_count, row.last_error)


def _figures_row(figures: Figures, dialect: str) -> dict[str, Any]:
    return {
        "with_keys": int(figures.with_keys),
        "source_count": figures.source_count,
        "target_count": figures.target_count,
        "totals": json.dumps([dict(group) for group in figures.totals]),
        "source_read_at": as_stored(figures.source_read_at, dialect),
        "target_read_at": as_stored(figures.target_read_at, dialect),
        "break_count": figures.break_count,
        "break_cap": figures.break_cap,
        "capped": int(figures.capped),
    }


def _ended(row: Any) -> EndedCheck:
    return EndedCheck(
        id=row.id,
        business_date=row.business_date,
        outcome=CheckOutcome(row.outcome),
        reason=row.reason,
        progress=_progress_of(row),
        settled=bool(row.settled),
        figures=None if row.totals is None else _figures_of(row),
        started_at=aware(row.started_at),
        ended_at=aware(row.ended_at),
    )


def _figures_of(row: Any) -> Figures:
    return Figures(
        with_keys=bool(row.with_keys),
        source_count=row.source_count,
        target_count=row.target_count,
        totals=json.loads(row.totals),
        source_read_at=aware(row.source_read_at),
        target_read_at=aware(row.target_read_at),
        break_count=row.break_count,
        break_cap=row.break_cap,
        capped=bool(row.capped),
    )
