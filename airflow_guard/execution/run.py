"""One guarded task try, put together and recorded: read the documents, judge, claim, execute, report."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_guard.core.commands import resolve_document_command
from airflow_guard.core.errors import LedgerError, LedgerUnavailable
from airflow_guard.core.expectations import expected_now
from airflow_guard.core.keys import KeyShape
from airflow_guard.core.report import Outcome, Report, said
from airflow_guard.execution.attempt import Attempt, LeaseKeeper, Listing, Progress
from airflow_guard.execution.classify import Classifier
from airflow_guard.execution.doubts import DoubtSettler, FreshDoubts
from airflow_guard.execution.external import ExternalEffect
from airflow_guard.execution.in_database import DatabaseEffect
from airflow_guard.execution.listed import Listed
from airflow_guard.execution.observing import run_without_ledger
from airflow_guard.execution.preflight import unguarded_reason
from airflow_guard.execution.pushing import Recorder
from airflow_guard.execution.session import Session
from airflow_guard.execution.spec import Callee, GuardSpec
from airflow_guard.execution.workers import STOPPED_BY_FAILURE, Workers
from airflow_guard.execution.writer import GroupWriter, InlineWriter
from airflow_guard.store import resolution

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from airflow_guard.core.expectations import Expected
    from airflow_guard.store.ledger import Ledger
    from airflow_guard.store.task_runs import TaskTry

log = logging.getLogger(__name__)
_NEEDS_SOMEBODY = (
    Outcome.FAILED,
    Outcome.IN_DOUBT,
    Outcome.BLOCKED,
    Outcome.REJECTED,
    Outcome.OBSERVED,
    Outcome.REPEATED,
    Outcome.FORGOTTEN,
)


class GuardedTask:
    """Executes one task try under the ledger.

    :param ledger: migrated.
    :param spec: the rules.
    :param task_try: who asks, with the resolved business date in its key space.
    :param callee: the user's callable.
    :param verify: ``External.verify``, where given.
    :param on_rerun: ``on_rerun`` of the side effect, where given.
    :param dag_task_ids: the tasks that the DAG has now, for the key-drift check.
    :param resumed: the task try's id from before a deferral.
    :param recorder: notes what the callable pushes, and what is to be pushed again.
    :param others_to_come: tells whether other instances of a mapped task are still to list their documents.
    :param expectation: gives what the listing should bring, once it is read; ``None``: as the rules say.
    """

    def __init__(
        self,
        ledger: Ledger,
        spec: GuardSpec,
        task_try: TaskTry,
        callee: Callee,
        *,
        verify: Callee | None = None,
        on_rerun: Callee | None = None,
        dag_task_ids: Collection[str] = (),
        resumed: int | None = None,
        recorder: Recorder | None = None,
        expectation: Callable[[], Expected | None] | None = None,
        others_to_come: Callable[[], bool] = lambda: False,
    ) -> None:
        callee.check(spec)
        self._expectation = expectation or self._as_the_rules_say
        self._try = Attempt(
            ledger,
            partial(resolution.resolve, ledger),
            spec,
            task_try,
            callee,
            verify=verify,
            on_rerun=on_rerun,
            dag_task_ids=dag_task_ids,
            others_to_come=others_to_come,
            recorder=recorder or Recorder(),
            progress=Progress(),
            task_run_id=resumed or 0,
            resumed=resumed is not None,
        )
        self._keeper: LeaseKeeper | None = None

    @property
    def task_run_id(self) -> int:
        """The try's id in the ledger, 0 until it is recorded there."""
        return self._try.task_run_id

    @property
    def lease_failures(self) -> int:
        """How many renewals of the lease have failed."""
        return self._keeper.failures if self._keeper else 0

    def stop(self, reason: str = "the task was asked to stop") -> None:
        """Let what has begun finish and begin nothing else. Safe to call from a signal handler."""
        self._try.stop.set(reason)

    def run(self, documents: Listing | None = None, *, one: Any = None) -> Report:
        """Execute what the ledger allows and return what became of each document.

        :param documents: gives a fresh iterable of strings or mappings; ``None``: one document, or the whole run.
        :param one: the single document; ``None``: the run as a whole.
        :raises LedgerUnavailable: nothing was started (retryable).
        :raises KeyDrift: the documents were done under another key (not retryable).
        :raises BaseException: a timeout or exit from the callable, after everything was recorded.
        """
        report = Report(single=documents is None)
        self._try = replace(self._try, report=report)
        try:
            unguarded = self._prepare()
        except LedgerUnavailable as error:
            if self._try.spec.mode == "enforce":
                raise
            log.warning("observe: nothing is recorded, the ledger is not there: %s", error)
            run_without_ledger(self._try, documents, one)
            return report
        space = self._try.space
        report.waive_command = partial(
            resolve_document_command,
            (space.key_namespace, space.operation, space.business_date.isoformat()),
            decision="waive",
            ledger=self._try.spec.ledger,
        )
        outcome, ended_by = "failed", None
        try:
            listed = Listed(self._try, self._expectation)
            self._work(unguarded, listed, documents, one)
            outcome = self._outcome(report)
            if outcome == "success":
                listed.settled()
        except BaseException as error:
            ended_by = error
            raise
        finally:
            for line in report.log_lines():
                level = logging.WARNING if line.startswith(_NEEDS_SOMEBODY) else logging.INFO
                log.log(level, "%s: %s", self._try.space.operation, line)
            log.info(
                "%s of %s: %s", self._try.space.operation, self._try.space.business_date, report.describe()
            )
            self.close(report, outcome, self._first_error(report, ended_by))
        return report

    def _first_error(self, report: Report, ended_by: BaseException | None) -> str | None:
        first = report.errors[0][1] if report.errors else ended_by
        if first is None:
            if report.remark:
                return report.remark
            space = self._try.space
            first = report.failure(
                f"{space.key_namespace} / {space.operation} of {space.business_date}",
                self._try.spec.max_rejected,
            )
        return said(first) if first else None

    def close(self, report: Report, outcome: str, error: str | None) -> None:
        """Record how the try ended, and end its lease. Once more where the task ends otherwise than :meth:`run` did.

        :param outcome: see :meth:`airflow_guard.store.task_runs.TaskRuns.close`.
        """
        try:
            self._try.ledger.runs.close(
                self._try.task_run_id, outcome, report.task_run_counts(), error, report.expectation()
            )
        except LedgerError as problem:
            # The lease ends by itself; the counts of this try are missing, which changes nothing that is decided.
            log.warning("The end of this try could not be recorded: %s", problem)

    def _as_the_rules_say(self) -> Expected | None:
        space = self._try.space
        given = {"business_date": space.business_date, "cycle": space.cycle}
        return expected_now(self._try.spec.expected, lambda function: Callee.of(function).call(given))

    def _outcome(self, report: Report) -> str:
        for_others = self._try.spec.on_concurrent == "wait"
        if report.stopped is None and report.only_waits(for_others=for_others):
            return "waiting"
        return "failed" if report.failure("", self._try.spec.max_rejected) else "success"

    def _prepare(self) -> str | None:
        """Use the names that the ledger has now, open the try, and return why unknown keys must not run."""
        ledger, task_try = self._try.ledger, self._try.task_try
        names = ledger.names_now(task_try.space.key_namespace, task_try.space.operation)
        if names != (task_try.space.key_namespace, task_try.space.operation):
            log.info("%s is kept in the ledger as %s", task_try.space.describe(None), " / ".join(names))
            space = replace(task_try.space, key_namespace=names[0], operation=names[1])
            shape = KeyShape.parse(task_try.key_shape)
            text = shape.renamed(space).text if shape else task_try.key_shape
            self._try = replace(self._try, task_try=replace(task_try, space=space, key_shape=text))
        # Asked before the try is recorded: its own row would say that the operation is watched.
        unguarded = None if self._try.resumed else unguarded_reason(self._try)
        if unguarded and self._try.spec.mode == "observe":
            log.warning("observe: would have blocked unknown keys: %s", unguarded)
            unguarded = None
        lease_s, resumed = self._try.spec.lease.total_seconds(), self._try.resumed
        task_run_id = ledger.runs.open(
            self._try.task_try, lease_s, self._try.task_run_id if resumed else None
        )
        self._try = replace(self._try, task_run_id=task_run_id)
        return unguarded

    def _work(self, unguarded: str | None, listed: Listed, documents: Listing | None, one: Any) -> None:
        attempt, spec = self._try, self._try.spec
        keeper = self._keeper = LeaseKeeper(attempt)
        with keeper, (InlineWriter if spec.max_workers == 1 else GroupWriter)(attempt.ledger) as writer:
            effect = (
                DatabaseEffect(attempt, keeper) if spec.database else ExternalEffect(attempt, writer, keeper)
            )
            settler = DoubtSettler(attempt)
            fresh = FreshDoubts(attempt, settler)
            workers = Workers(attempt, effect, writer, keep_doubt=fresh.keep if spec.asks else None)
            classifier = Classifier(attempt, settler, unguarded)
            if attempt.verify is not None:
                classifier.remember = listed.note
            session = Session(attempt, classifier, workers, listed, keeper)
            try:
                session.run(documents, one)
                if not attempt.stop or attempt.stop.reason.startswith(STOPPED_BY_FAILURE):
                    fresh.settle()
            finally:
                fresh.report_as_they_are()
