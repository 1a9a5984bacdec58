"""One try of a reconciliation: from Airflow's context to looks at the two sides, and to what came of them.

Everything that one look leaves for the next is in the ledger, so that it does not matter whether the task sleeps,
is rescheduled or is deferred in between.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from airflow_guard.airflow_compat import AirflowSkipException, hostname, let_threads_talk
from airflow_guard.core.checks import CheckOutcome, Progress, Step, step_after
from airflow_guard.core.dates import NoBusinessDate, ResolvedDate, resolve_business_date
from airflow_guard.core.errors import (
    ConfigurationError,
    LedgerError,
    NeverCompared,
    ReconciliationError,
    SideUnavailable,
)
from airflow_guard.core.keys import KeySpace, cycle_text
from airflow_guard.core.run_facts import cycle_of_run
from airflow_guard.execution.preflight import check_date
from airflow_guard.hooks.connections import side_engines
from airflow_guard.hooks.ledger import ledger_conn_id, open_ledger
from airflow_guard.operators.run_context import identity_of, run_facts
from airflow_guard.reconciling.check_report import changed_since, difference_of, found_breaks, totals_of
from airflow_guard.reconciling.reconciler import reconcile
from airflow_guard.sensors.declaration import recheckable
from airflow_guard.sensors.report import DateReport, TryReport
from airflow_guard.store.breaks import Findings
from airflow_guard.store.reconciliations import Check, Ending, Figures, Reconciliations

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import TracebackType

    import sqlalchemy as sa
    from airflow.sdk import Context

    from airflow_guard.reconciling.comparison import Comparison
    from airflow_guard.sensors.declaration import ReconciliationTask
    from airflow_guard.store.break_rows import StoredBreak
    from airflow_guard.store.database import LedgerDatabase
    from airflow_guard.store.reconciliations import CheckState, EndedCheck

log = logging.getLogger(__name__)


class CheckTry:
    """A try of a reconciliation. Use as a context manager.

    :param task: with its templates rendered.
    :param context: Airflow's.
    :param began_at: when the first look was, if the task was deferred since: for a ledger that does not answer.
    :raises GuardError: nothing was looked at.
    :raises AirflowSkipException: the business date's rule says that there is nothing to do.
    """

    def __init__(self, task: ReconciliationTask, context: Context, began_at: datetime | None) -> None:
        self._task = task
        self._context = context
        self._spec = task.sensor_spec
        self._identity = identity_of(context, hostname())
        self._ti_id = str(context["ti"].id)
        if task.operation is None and self._identity.map_index >= 0:
            raise ConfigurationError(
                f"Task {task.task_id!r} is mapped and has no operation: all instances would have the same breaks, and "
                "each would close those of the others. Give it an operation, and map over business_date or cycle; or "
                "map over operation as well."
            )
        self._facts = run_facts(context)
        self._resolved = resolve_business_date(self._facts, task.business_date)
        self._conn_id = ledger_conn_id(task.ledger_conn_id)
        self._recheck_days = recheckable(task.source, task.target, self._spec.recheck_days)
        self._began_at = began_at
        self._store: Reconciliations | None = None
        self._database: LedgerDatabase | None = None
        self._own: CheckState | None = None
        self._opened_at = datetime.now(UTC)

    def __enter__(self) -> Self:
        let_threads_talk()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._database is not None:
            self._database.dispose()

    # -- time -----------------------------------------------------------------------------------------------

    @property
    def began_at(self) -> datetime:
        """When the first look of this try was, as well as this process can know."""
        return self._opened_at - timedelta(seconds=self._own.age_s) if self._own else self._fallback()

    @property
    def elapsed_s(self) -> float:
        """Seconds since then."""
        return (datetime.now(UTC) - self.began_at).total_seconds()

    @property
    def left_s(self) -> float:
        """Seconds until the timeout is over."""
        return max(self._task.timeout - self.elapsed_s, 0.0)

    @property
    def pokes(self) -> int:
        """How often this try has looked."""
        return self._own.progress.pokes if self._own else 1

    def _fallback(self) -> datetime:
        # Only if the ledger has never answered: Airflow itself remembers the first reschedule.
        if self._began_at is None and self._task.reschedule:
            self._began_at = self._context["ti"].get_first_reschedule_date(self._context)
        self._began_at = self._began_at or self._opened_at
        return self._began_at

    # -- looking --------------------------------------------------------------------------------------------

    def look(self) -> bool:
        """Look once at every date that is not decided yet; return whether all are.

        :raises NeverCompared: the timeout is over, and the ledger does not answer.
        :raises GuardError: no later look will be better.
        """
        try:
            return self._look()
        except LedgerError as error:
            if not error.retryable:
                raise
            if self.left_s <= 0:
                raise NeverCompared(
                    f"{self.what}: the ledger did not answer within the timeout of {self._task.timeout:g} s, so that "
                    f"nothing could be recorded. The last error: {error}"
                ) from error
            log.warning("The ledger does not answer, looking again later: %s", error)
            return False

    def _look(self) -> bool:
        store = self._opened()
        states = store.states(self._ti_id)
        if not states:
            store.begin(self._checks(store))
            states = store.states(self._ti_id)
        self._opened_at = datetime.now(UTC)
        self._own = next(each for each in states if each.business_date == self.business_date)
        undecided = [each for each in states if each.outcome is None]
        if not undecided:
            return True
        task = self._task
        with ExitStack() as stack:
            try:
                engines = stack.enter_context(side_engines([task.source, task.target]))
            except ConfigurationError as error:
                raise error.about(self.what)  # noqa: B904 - the same error
            # The date of the run first: what is found out about it must not depend on the others.
            undecided.sort(key=lambda each: (each.business_date != self.business_date, each.business_date))
            return all([self._look_at(store, each, engines) for each in undecided])  # noqa: C419 - each is looked at

    def _look_at(self, store: Reconciliations, state: CheckState, engines: list[sa.Engine]) -> bool:
        check = self._check(state.business_date)
        comparison: Comparison | None = None
        try:
            comparison = self._compare(state.business_date, engines)
            progress = state.progress.saw(difference_of(comparison))
        except SideUnavailable as error:
            log.warning("%s: looking again later: %s", state.business_date, error)
            progress = state.progress.failed(str(error))
        if state is self._own or state.business_date == self.business_date:
            self._own = replace(state, progress=progress)
        before = store.last_ended(check.space, but=self._ti_id)
        step = step_after(
            progress,
            compared=comparison is not None,
            settle_pokes=self._patience(state, progress, before),
            time_over=self.left_s <= 0,
        )
        if step is Step.WAIT:
            store.note(state, progress, _figures(comparison) if comparison else None)
            self._say_waiting(state, progress, comparison)
            return False
        store.close(check, state, self._ending(step, progress, comparison, before))
        return True

    def _patience(self, state: CheckState, progress: Progress, before: EndedCheck | None) -> int:
        """Return how often the same difference must be seen; an earlier date whose break is known needs no more."""
        known = (
            state.business_date != self.business_date
            and before is not None
            and before.outcome in (CheckOutcome.BROKEN, CheckOutcome.EMPTY)
            and before.progress.difference == progress.difference
        )
        return 1 if known else self._spec.settle_pokes

    def _compare(self, day: date, engines: list[sa.Engine]) -> Comparison:
        try:
            return reconcile(
                self._task.source,
                self._task.target,
                self._spec.rules,
                source_engine=engines[0],
                target_engine=engines[1],
                parameters={"business_date": day, "cycle": self._cycle},
            )
        except SideUnavailable:
            raise
        except (ReconciliationError, ConfigurationError) as error:
            raise error.about(self._named(day))  # noqa: B904 - the same error

    def _ending(
        self, step: Step, progress: Progress, comparison: Comparison | None, before: EndedCheck | None
    ) -> Ending:
        if comparison is None:
            return Ending(CheckOutcome.FAILED, f"Could not be compared: {progress.last_error}", progress)
        figures = _figures(comparison)
        reason = [comparison.why]
        if before and before.outcome is CheckOutcome.PASSED and before.figures and before.ended_at:
            changed = changed_since(before.figures.totals, figures.totals)
            if changed:
                reason.insert(
                    0, f"Changed since it passed at {before.ended_at:%Y-%m-%d %H:%M} UTC: {changed}."
                )
        closes = "all" if comparison.with_keys else "groups"
        if step is Step.PASS:
            findings = Findings((), closes)
            return Ending(
                CheckOutcome.PASSED, "\n".join(reason), progress, figures=figures, findings=findings
            )
        if step is Step.TIME_OVER:
            reason.append("The difference was still changing when the timeout was over.")
        empty = not comparison.groups
        return Ending(
            CheckOutcome.EMPTY if empty else CheckOutcome.BROKEN,
            "\n".join(reason),
            progress,
            settled=step is Step.SETTLED,
            figures=figures,
            findings=Findings(found_breaks(comparison), "none" if empty or comparison.capped else closes),
        )

    def _say_waiting(self, state: CheckState, progress: Progress, comparison: Comparison | None) -> None:
        if comparison is not None:
            log.info(
                "%s: they differ (look %d, the same difference %d of %d times). %s",
                state.business_date,
                progress.pokes,
                progress.same,
                self._spec.settle_pokes,
                " ".join(comparison.reasons),
            )

    # -- what came of it ------------------------------------------------------------------------------------

    def report(self, also: Collection[int] = ()) -> TryReport:
        """Return what came of all dates, as the ledger has it.

        :param also: ids of breaks that were found here, also if other checks have found them since.
        """
        store = self._opened()
        ended = store.ended(self._ti_id)
        dates = [each.business_date for each in ended]
        found = store.breaks.of_checks([each.id for each in ended], dates, also)

        def belongs(one: StoredBreak, check: EndedCheck) -> bool:
            asked = one.id in also and one.business_date == check.business_date
            return asked or check.id in (one.seen_by_id, one.closed_by_id)

        reports = [DateReport(each, tuple(one for one in found if belongs(one, each))) for each in ended]
        return TryReport(
            what=self.what,
            run_id=self._identity.run_id,
            own=next(each for each in reports if each.check.business_date == self.business_date),
            earlier=tuple(each for each in reports if each.check.business_date != self.business_date),
            ledger=self._task.ledger_conn_id,
            names=self._names,
        )

    @property
    def database(self) -> LedgerDatabase:
        """The ledger's, open."""
        self._opened()
        if self._database is None:
            raise RuntimeError("the ledger is not open")
        return self._database

    @property
    def actor(self) -> str:
        """Who this try is, in words."""
        return self._identity.describe()

    @property
    def what(self) -> str:
        """How messages call the work."""
        return self._named(self.business_date)

    def _named(self, day: date) -> str:
        cycle = f", cycle {self._cycle}" if self._cycle else ""
        return f"{' / '.join(self._names)} of {day}{cycle}"

    @property
    def _names(self) -> tuple[str, str]:
        task = self._task
        return task.key_namespace or task.dag_id, task.operation or task.task_id

    @property
    def business_date(self) -> date:
        """The business date of the run.

        :raises AirflowSkipException: its rule says that there is nothing to do.
        """
        return self._date().date

    # -- dates and checks -----------------------------------------------------------------------------------

    @property
    def _cycle(self) -> str:
        return cycle_text(self._task.cycle)

    def _opened(self) -> Reconciliations:
        """Return the ledger, opened once; compare the date with what it knows of the run."""
        if self._store is None:
            ledger = open_ledger(self._conn_id, executor=self._task.executor)
            self._database = ledger.database
            store = Reconciliations(ledger.database)
            self._check_date(store)
            self._date()
            self._store = store
        return self._store

    def _date(self) -> ResolvedDate:
        if isinstance(self._resolved, NoBusinessDate):
            raise AirflowSkipException(self._resolved.reason)
        key, cycle = self._facts.partition_key, self._cycle
        if cycle_of_run(key, self._resolved.date, cycle) != cycle:
            raise ConfigurationError(
                f"The partition {key!r} and others of {self._resolved.date} would close each other's breaks. Set "
                'cycle="{{ partition_key }}".'
            )
        return self._resolved

    def _check_date(self, store: Reconciliations) -> None:
        """Refuse another date than an earlier try of this run had, and warn of what looks wrong."""
        first = isinstance(self._resolved, ResolvedDate) and not store.states(self._ti_id)
        check_date(
            store,
            self._facts,
            self._identity,
            self._task.business_date,
            self._resolved,
            warn=log.warning if first else None,
        )

    def _checks(self, store: Reconciliations) -> list[Check]:
        """Return what this try checks: its own date, and earlier ones once more."""
        own = self._check(self.business_date)
        if self._recheck_days is None:
            return [own]
        again = store.to_recheck(own.space, self._recheck_days)
        return [own, *(self._check(each.business_date) for each in again)]

    def _check(self, day: date) -> Check:
        task, found = self._task, self._date()
        space = KeySpace(
            task.key_namespace or task.dag_id,
            task.operation or task.task_id,
            day,
            self._cycle,
            deployment=task.guard_settings.deployment,
        )
        return Check(self._ti_id, self._identity, space, found.date, found.source.value, found.detail)


def _figures(comparison: Comparison) -> Figures:
    found: list[Any] = found_breaks(comparison)
    return Figures(
        with_keys=comparison.with_keys,
        source_count=comparison.source.records,
        target_count=comparison.target.records,
        totals=totals_of(comparison),
        source_read_at=comparison.source.read_at,
        target_read_at=comparison.target.read_at,
        break_count=len(found),
        break_cap=comparison.rules.max_breaks,
        capped=comparison.capped,
    )
