"""What no callback can say: looked for in the ledger, from time to time."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.alerts.facts import AlertFacts, AlertKind, Step
from airflow_guard.core.checks import BreakState
from airflow_guard.core.commands import drop_command, resolve_command, show_day_command
from airflow_guard.core.decisions import Situation
from airflow_guard.core.states import State
from airflow_guard.core.texts import meant
from airflow_guard.reading.listing import Selection, keys
from airflow_guard.reading.nights import empty_listings, left_alone, shortfalls
from airflow_guard.reading.spaces import is_known, known_names
from airflow_guard.reading.upkeep import open_fail_overs, partitions_ahead
from airflow_guard.store import aliases
from airflow_guard.store.alerts import Alerts
from airflow_guard.store.breaks import Breaks
from airflow_guard.store.dialects import age_s, utc_now
from airflow_guard.store.situations import constant, situations
from airflow_guard.store.task_runs import as_stored, aware, instant_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_guard.core.alerts.expected import ExpectedOperation
    from airflow_guard.store.ledger import Ledger

WATCHED = frozenset(
    {
        AlertKind.LEASE_EXPIRED,
        AlertKind.IN_DOUBT,
        AlertKind.BREAKS,
        AlertKind.CHANGED,
        AlertKind.UNDELIVERED,
        AlertKind.MISSING,
        AlertKind.EMPTY,
        AlertKind.LEFT,
        AlertKind.FAIL_OVER,
        AlertKind.PARTITIONS,
    }
)
_NAMED = 4


class Watch:
    """Looks at one ledger, for one deployment.

    :param ledger_option: the connection that commands have to name, ``None``: the configured one.
    """

    def __init__(self, ledger: Ledger, deployment: str, ledger_option: str | None = None) -> None:
        self._ledger = ledger
        self._db = ledger.database
        self._deployment = deployment
        self._option = ledger_option

    def now(self) -> datetime:
        """Return the database's clock."""
        read = sa.select(sa.cast(utc_now(), sa.String))
        return instant_of(self._db.read(lambda connection: connection.execute(read).scalar_one()))

    def expired_leases(self, grace_s: float) -> Iterator[AlertFacts]:
        """Yield tries whose process is gone, and after which nobody has come."""
        run, lease = self._db.tables.task_run, self._db.tables.lease
        later = run.alias("later")
        followed = sa.exists().where(
            later.c.business_date == run.c.business_date,
            later.c.key_namespace == run.c.key_namespace,
            later.c.operation == run.c.operation,
            later.c.cycle == run.c.cycle,
            later.c.map_index == run.c.map_index,
            later.c.id > run.c.id,
        )
        found = (
            sa.select(run, lease.c.renewed_at)
            .join(lease, lease.c.task_run_id == run.c.id)
            .where(
                run.c.deployment == self._deployment,
                run.c.ended_at.is_(None),
                age_s(lease.c.expires_at) > grace_s,
                sa.not_(followed),
            )
            .order_by(run.c.id)
        )
        for row in self._rows(found):
            yield AlertFacts(
                kind=AlertKind.LEASE_EXPIRED,
                **_names(row),
                run_id=row.run_id,
                try_number=row.try_number,
                map_index=row.map_index,
                happened=f"Process {row.pid} on {row.host} gives no sign of life, and no other try has come after it.",
                since=aware(row.renewed_at),
                steps=(Step("Look whether its machine is there. Then clear the task:", self._show(row)),),
            )

    def doubts(self) -> Iterator[AlertFacts]:
        """Yield operations and dates that have keys in doubt, whether or not anyone has written it."""
        e, lease = self._db.tables.execution, self._db.tables.lease
        columns = (e.c.key_namespace, e.c.operation, e.c.business_date, e.c.cycle, e.c.begun_at)
        mine = e.c.deployment == self._deployment
        # Each by an index: what is marked by "attention", what nobody has marked by the leases that are over.
        marked = sa.select(*columns).where(mine, e.c.attention == constant(State.IN_DOUBT))
        unmarked = (
            sa.select(*columns)
            .select_from(lease.join(e, e.c.task_run_id == lease.c.task_run_id))
            .where(mine, e.c.state == constant(State.IN_PROGRESS))
            .where(situations(self._db.tables)[Situation.IN_DOUBT])
        )
        keys = sa.union_all(marked, unmarked).subquery()
        names = (keys.c.key_namespace, keys.c.operation, keys.c.business_date, keys.c.cycle)
        found = (
            sa.select(*names, sa.func.count().label("keys"), sa.func.min(keys.c.begun_at).label("begun_at"))
            .group_by(*names)
            .order_by(*names)
        )
        for row in self._rows(found):
            first = self._first_doubts(row)
            question = "Ask the receiver whether it happened, then say so (--happened or --did-not-happen):"
            command = (
                resolve_command(first[0].row.key_hash, ledger=self._option) if first else self._show(row)
            )
            yield AlertFacts(
                kind=AlertKind.IN_DOUBT,
                **_names(row),
                happened=f"{_count(row.keys, 'effect')} may or may not have happened, and nothing repeats it.",
                counts={"in_doubt": row.keys},
                documents=tuple(each.row.document or "the run as a whole" for each in first),
                more_documents=max(row.keys - len(first), 0),
                since=aware(row.begun_at),
                steps=(Step(question, command), Step("All of them:", self._show(row))),
            )

    def aged_breaks(self, age: timedelta) -> Iterator[AlertFacts]:
        """Yield operations and dates whose breaks are open for longer than that."""
        every = Breaks(self._db).unsettled(state=BreakState.OPEN, limit=10_000)

        def of(each: Any) -> tuple[Any, ...]:
            return (each.key_namespace, each.operation, each.business_date, each.cycle)

        old = sorted((each for each in every if each.age_s >= age.total_seconds()), key=of)
        for (namespace, operation, day, cycle), group in groupby(old, key=of):
            breaks = list(group)
            yield AlertFacts(
                kind=AlertKind.BREAKS,
                dag_id=namespace,
                task_id=operation,
                business_date=day,
                cycle=cycle,
                happened=f"{_count(len(breaks), 'break')} between source and target still open.",
                documents=tuple(each.found.describe() for each in breaks[:_NAMED]),
                more_documents=max(len(breaks) - _NAMED, 0),
                since=min(filter(None, (each.first_seen_at for each in breaks)), default=None),
                steps=(Step("Correct the side that is wrong, and clear the task: what is gone is closed."),),
            )

    def changed(self, since: datetime) -> Iterator[AlertFacts]:
        """Yield dates that had passed and then changed, as a check since then has found."""
        r = self._db.tables.reconciliation
        newest = (
            sa.select(sa.func.max(r.c.id))
            .where(
                r.c.deployment == self._deployment,
                r.c.reason.like("Changed since it passed%"),
                r.c.ended_at >= as_stored(since, self._db.dialect),
            )
            .group_by(r.c.key_namespace, r.c.operation, r.c.business_date, r.c.cycle)
        )
        for row in self._rows(sa.select(r).where(r.c.id.in_(newest)).order_by(r.c.id)):
            yield AlertFacts(
                kind=AlertKind.CHANGED,
                **_names(row),
                run_id=row.run_id,
                happened=row.reason.partition("\n")[0],
                since=aware(row.ended_at),
                steps=(
                    Step(
                        "Find out who has changed a day that was closed; its reports may have to be made anew."
                    ),
                ),
            )

    def undelivered(self) -> Iterator[AlertFacts]:
        """Yield alerts of callbacks that a transport has not delivered."""
        for each in Alerts(self._db).undelivered(self._deployment):
            if each.problem.kind in WATCHED:
                continue
            yield AlertFacts(
                kind=AlertKind.UNDELIVERED,
                dag_id=each.problem.dag_id,
                task_id=each.problem.task_id or None,
                is_dag_level=not each.problem.task_id,
                map_index=each.problem.map_index,
                run_id=each.problem.run_id,
                business_date=each.problem.business_date,
                happened=f"{each.subject} ({each.transport}: {each.error or 'its sender died'})",
                since=each.opened_at,
                steps=(Step("Deal with the alert itself, and with the transport."),),
            )

    def upkeep(self, age: timedelta) -> Iterator[AlertFacts]:
        """Yield what the ledger wants of its operator: fail-overs that are open for longer than that, partitions."""
        yield from open_fail_overs(self._db, self.now() - age, self._option)
        yield from partitions_ahead(self._db, self._option)

    def missing(self, expected: Sequence[ExpectedOperation], days: int) -> Iterator[AlertFacts]:
        """Yield business dates on which an operation must have completed, and never has.

        It does not matter why: no run, a run without tasks, a task that failed, a DAG that is paused. Of a date that was
        purged nobody can say that it never completed.
        """
        now = self.now()
        for each in expected:
            due = list(each.dates_due(now, days=days))
            if due and (unknown := self._unknown(each)):
                yield unknown
                continue
            purged = self._purged_until(each) if due else None
            due = [day for day in due if purged is None or day > purged]
            short = shortfalls(self._db, each, due) if due else {}
            for day in due:
                if day in short:
                    yield self._never(each, day, short[day])

    def _purged_until(self, each: ExpectedOperation) -> date | None:
        tables, name = self._db.tables, (each.key_namespace, each.operation)
        h = tables.horizon

        def read(connection: sa.Connection) -> date | None:
            now = aliases.follow(connection, tables, name)[-1]
            until = sa.select(h.c.business_date).where(h.c.name_hash == aliases.name_hash(*now))
            found: date | None = connection.execute(until).scalar()
            return found

        return self._db.read(read)

    def _unknown(self, each: ExpectedOperation) -> AlertFacts | None:
        """Return what to say once, and not for each date, of an operation that the ledger has never seen."""
        tables, name = self._db.tables, (each.key_namespace, each.operation)

        def read(connection: sa.Connection) -> list[str] | None:
            # It may be expected under a name from before a rename.
            if any(is_known(connection, tables, one) for one in aliases.follow(connection, tables, name)):
                return None
            return [" / ".join(one) for one in known_names(connection, tables)]

        known = self._db.read(read)
        if known is None:
            return None
        words = meant(" / ".join(name), known, all_if_none=True)
        return AlertFacts(
            kind=AlertKind.MISSING,
            dag_id=each.key_namespace,
            task_id=each.operation,
            happened=f"No such operation is known to this ledger.{words}",
            steps=(
                Step(
                    "If it is misspelt in expected=[…] of the watch, correct it. If it is new, it has never run yet."
                ),
            ),
        )

    def empty(self, since: datetime, expected: Sequence[ExpectedOperation] = ()) -> Iterator[AlertFacts]:
        """Yield operations and dates that ended well without a document, where nobody has said that this is normal.

        :param expected: what is said about these is said by :meth:`missing`.
        """
        spoken = {(each.key_namespace, each.operation) for each in expected}
        for row in self._rows(empty_listings(self._db, self._deployment, since)):
            if (row.key_namespace, row.operation) not in spoken:
                yield AlertFacts(
                    kind=AlertKind.EMPTY,
                    **_names(row),
                    happened="The listing brought no document, and the task ended well.",
                    since=aware(row.since),
                    steps=(
                        Step(
                            'Find out whether the source had nothing. If that is normal, set on_empty="allow"; look at:',
                            self._show(row),
                        ),
                    ),
                )

    def left(self, age: timedelta) -> Iterator[AlertFacts]:
        """Yield operations and dates with documents that failed, or were never begun, and that nobody has tried for so long."""
        for row in self._rows(left_alone(self._db, self._deployment, age)):
            yield AlertFacts(
                kind=AlertKind.LEFT,
                **_names(row),
                happened=f"{_count(row.found, 'document')} not done, and nobody has tried again.",
                documents=tuple(sorted({name for name in (row.first, row.last) if name is not None})),
                more_documents=max(row.found - len({row.first, row.last}), 0),
                since=aware(row.since),
                steps=(
                    Step(
                        "Clear the task, so that they are done. If they are not to be done any more, drop them:",
                        drop_command(
                            (row.key_namespace, row.operation, row.business_date.isoformat()),
                            (),
                            every=True,
                            cycle=row.cycle,
                            ledger=self._option,
                        ),
                    ),
                ),
            )

    def _never(self, each: ExpectedOperation, day: date, why: str) -> AlertFacts:
        command = show_day_command(each.key_namespace, day.isoformat(), ledger=self._option)
        return AlertFacts(
            kind=AlertKind.MISSING,
            dag_id=each.key_namespace,
            task_id=each.operation,
            business_date=day,
            happened=why,
            since=datetime(day.year, day.month, day.day, tzinfo=UTC),
            steps=(Step("Look at the runs of that date in Airflow, and run what is missing:", command),),
        )

    def _first_doubts(self, row: Any) -> list[Any]:
        selection = Selection(
            dag=row.key_namespace,
            operation=row.operation,
            business_date=row.business_date,
            situations=frozenset({Situation.IN_DOUBT}),
            limit=_NAMED,
        )
        return [each for each in keys(self._ledger, selection).keys if each.cycle == row.cycle]

    def _show(self, row: Any) -> str:
        return show_day_command(row.key_namespace, row.business_date.isoformat(), ledger=self._option)

    def _rows(self, found: Any) -> Sequence[Any]:
        return self._db.read(lambda connection: connection.execute(found).all())


def _names(row: Any) -> dict[str, Any]:
    return {
        "dag_id": row.key_namespace,
        "task_id": row.operation,
        "business_date": row.business_date,
        "cycle": row.cycle,
    }


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
