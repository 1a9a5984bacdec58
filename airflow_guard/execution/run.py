"""One guarded task try: read the documents, judge, claim, execute, report."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_guard.core.commands import resolve_document_command
from airflow_guard.core.documents import DocumentReader
from airflow_guard.core.errors import (
    DocumentError,
    LedgerError,
    LedgerUnavailable,
)
from airflow_guard.core.expectations import expected_now
from airflow_guard.core.guard import Asking
from airflow_guard.core.keys import KeyShape
from airflow_guard.core.report import Outcome, Report, said
from airflow_guard.execution.after_fail_over import AfterFailOver
from airflow_guard.execution.classify import Classifier
from airflow_guard.execution.doubt import DoubtSettler
from airflow_guard.execution.external import ExternalEffect
from airflow_guard.execution.fresh import FreshDoubts
from airflow_guard.execution.in_database import DatabaseEffect
from airflow_guard.execution.lease import LeaseKeeper
from airflow_guard.execution.listed import Listed
from airflow_guard.execution.namesakes import Namesakes
from airflow_guard.execution.observing import Observer
from airflow_guard.execution.preflight import unguarded_reason
from airflow_guard.execution.progress import Progress
from airflow_guard.execution.pushing import Recorder
from airflow_guard.execution.reversal import FirstEffect
from airflow_guard.execution.session import Listing, Session
from airflow_guard.execution.shape import DriftCheck
from airflow_guard.execution.spec import CLAIM_CHUNK, Callee, GuardSpec
from airflow_guard.execution.workers import STOPPED_BY_FAILURE, StopFlag, Workers
from airflow_guard.execution.writer import GroupWriter, InlineWriter
from airflow_guard.store import aliases
from airflow_guard.store.changes import Ownership

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
_NO_LEDGER = "the ledger is not there"


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
        self._others_to_come = others_to_come
        self._expectation = expectation or self._as_the_rules_say
        self._ledger = ledger
        self._spec = spec
        self._try = task_try
        self._callee = callee
        self._verify = verify
        self._on_rerun = on_rerun
        self._dag_task_ids = dag_task_ids
        self._resumed = resumed
        self._recorder = recorder or Recorder()
        self._stop = StopFlag()
        self.task_run_id: int = resumed or 0
        self._keeper: LeaseKeeper | None = None

    @property
    def lease_failures(self) -> int:
        """How many renewals of the lease have failed."""
        return self._keeper.failures if self._keeper else 0

    def stop(self, reason: str = "the task was asked to stop") -> None:
        """Let what has begun finish and begin nothing else. Safe to call from a signal handler."""
        self._stop.set(reason)

    def run(self, documents: Listing | None = None, *, one: Any = None) -> Report:
        """Execute what the ledger allows and return what became of each document.

        :param documents: gives a fresh iterable of strings or mappings; ``None``: one document, or the whole run.
        :param one: the single document; ``None``: the run as a whole.
        :raises LedgerUnavailable: nothing was started (retryable).
        :raises KeyDrift: the documents were done under another key (not retryable).
        :raises BaseException: a timeout or exit from the callable, after everything was recorded.
        """
        report = Report(single=documents is None)
        try:
            unguarded = self._prepare()
        except LedgerUnavailable as error:
            if self._spec.mode == "enforce":
                raise
            log.warning("observe: nothing is recorded, the ledger is not there: %s", error)
            self._without_ledger(report, documents, one)
            return report
        space = self._try.space
        report.waive_command = partial(
            resolve_document_command,
            (space.key_namespace, space.operation, space.business_date.isoformat()),
            decision="waive",
            ledger=self._spec.ledger,
        )
        outcome, ended_by = "failed", None
        try:
            drift = DriftCheck(
                self._ledger, self._try.space, self._try.identity, self._try.key_shape,
                document_key=self._spec.document_key, dag_task_ids=self._dag_task_ids,
                retired_operations=self._spec.retired_operations,
                ledger_name=self._spec.ledger,
            )  # fmt: skip
            listed = Listed(
                self._ledger,
                self._spec,
                self._try,
                report,
                task_run_id=self.task_run_id,
                expectation=self._expectation,
                others_to_come=self._others_to_come,
                resumed=self._resumed is not None,
            )
            self._work(report, unguarded, drift, listed, documents, one)
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
            self.close(report, outcome, self._first_error(report, ended_by))
        return report

    def _first_error(self, report: Report, ended_by: BaseException | None) -> str | None:
        first = report.errors[0][1] if report.errors else ended_by
        if first is None:
            if report.remark:
                return report.remark
            space = self._try.space
            first = report.failure(
                f"{space.key_namespace} / {space.operation} of {space.business_date}", self._spec.max_rejected
            )
        return said(first) if first else None

    def close(self, report: Report, outcome: str, error: str | None) -> None:
        """Record how the try ended, and end its lease. Once more where the task ends otherwise than :meth:`run` did.

        :param outcome: see :meth:`airflow_guard.store.task_runs.TaskRuns.close`.
        """
        try:
            self._ledger.runs.close(
                self.task_run_id, outcome, report.task_run_counts(), error, report.expectation()
            )
        except LedgerError as problem:
            # The lease ends by itself; the counts of this try are missing, which changes nothing that is decided.
            log.warning("The end of this try could not be recorded: %s", problem)

    def _as_the_rules_say(self) -> Expected | None:
        space = self._try.space
        given = {"business_date": space.business_date, "cycle": space.cycle}
        return expected_now(self._spec.expected, lambda function: Callee.of(function).call(given))

    def _outcome(self, report: Report) -> str:
        for_others = self._spec.on_concurrent == "wait"
        if report.stopped is None and report.only_waits(for_others=for_others):
            return "waiting"
        return "failed" if report.failure("", self._spec.max_rejected) else "success"

    def _prepare(self) -> str | None:
        """Use the names that the ledger has now, open the try, and return why unknown keys must not run."""
        ledger, task_try = self._ledger, self._try
        names = aliases.resolve(ledger, task_try.space.key_namespace, task_try.space.operation)
        if names != (task_try.space.key_namespace, task_try.space.operation):
            log.info("%s is kept in the ledger as %s", task_try.space.describe(None), " / ".join(names))
            space = replace(task_try.space, key_namespace=names[0], operation=names[1])
            shape = KeyShape.parse(task_try.key_shape)
            text = shape.renamed(space).text if shape else task_try.key_shape
            self._try = replace(task_try, space=space, key_shape=text)
        # Asked before the try is recorded: its own row would say that the operation is watched.
        unguarded = None
        if self._resumed is None:
            unguarded = unguarded_reason(ledger.runs, self._spec, self._try.space, task_try.identity)
        if unguarded and self._spec.mode == "observe":
            log.warning("observe: would have blocked unknown keys: %s", unguarded)
            unguarded = None
        self.task_run_id = ledger.runs.open(self._try, self._spec.lease.total_seconds(), self._resumed)
        return unguarded

    def _without_ledger(self, report: Report, documents: Listing | None, one: Any) -> None:
        """Observe mode promises that the callable runs as if the guard were not there."""
        space, spec = self._try.space, self._spec
        observer = Observer(self._ledger, spec, space, self._callee, report)
        reader = DocumentReader(space.hasher(), spec.document_key, spec.fingerprint_fields)
        if documents is None:
            observer.run([(reader.whole_run() if one is None else reader.read_one(one), None, _NO_LEDGER)])
            return

        def refuse(item: Any, error: DocumentError) -> None:
            report.add_error(Outcome.FAILED, reader.called(item), error)

        size = spec.batch_size if spec.call_per == "batch" else CLAIM_CHUNK
        for chunk in reader.chunks(documents(), size, refuse):
            observer.run([(document, None, _NO_LEDGER) for document in chunk])

    def _work(
        self,
        report: Report,
        unguarded: str | None,
        drift: DriftCheck,
        listed: Listed,
        documents: Listing | None,
        one: Any,
    ) -> None:
        spec, ledger, space = self._spec, self._ledger, self._try.space
        keeper = LeaseKeeper(ledger.runs, self.task_run_id, spec.lease, spec.max_hold, over=self._stop.set)
        self._keeper = keeper
        with keeper, (InlineWriter if spec.max_workers == 1 else GroupWriter)(ledger) as writer:
            first = FirstEffect(ledger, spec, self._on_rerun)
            effect = (
                DatabaseEffect(ledger, spec, self._callee, keeper, first, recorder=self._recorder)
                if spec.database
                else ExternalEffect(
                    ledger, spec, self._callee, writer, keeper, first, recorder=self._recorder
                )
            )
            threads = 1 if spec.database and ledger.database.dialect == "sqlite" else spec.max_workers
            actor, task_run_id = self._try.identity.describe(), self.task_run_id
            settler = DoubtSettler(
                ledger, spec, space, self._verify, lambda: Ownership.new(space.key_date, task_run_id, actor),
                more_tries=self._try.identity.more_tries,
            )  # fmt: skip
            fresh, progress = FreshDoubts(ledger, space, report, settler), Progress()
            workers = Workers(
                ledger, effect, writer, report, self._stop, threads, stop_on_failure=spec.stop_on_failure,
                progress=progress, keep_doubt=fresh.keep if spec.asks else None,
            )  # fmt: skip

            asking = Asking(
                self._try.identity, space.deployment,
                compare_runs=spec.once_per == "date" and spec.on_other_run == "fail",
            )  # fmt: skip
            classifier = Classifier(
                ledger, spec, space, asking, report, settler, self.task_run_id, unguarded,
                resumed=self._resumed is not None, has_on_rerun=self._on_rerun is not None,
                recorder=self._recorder,
            )  # fmt: skip
            if self._verify is not None:
                classifier.remember = listed.note
            observer = Observer(ledger, spec, space, self._callee, report)
            after = AfterFailOver(ledger, spec, task_try=self._try)
            namesakes = Namesakes(ledger, self._try, self.task_run_id, spec.ledger)
            session = Session(
                ledger=ledger, spec=spec, task_try=self._try, report=report, classifier=classifier, workers=workers,
                drift=drift, namesakes=namesakes,
                observer=observer, keeper=keeper, stop=self._stop, task_run_id=self.task_run_id, after=after,
                progress=progress, listed=listed,
            )  # fmt: skip
            try:
                session.run(documents, one)
                if not self._stop or self._stop.reason.startswith(STOPPED_BY_FAILURE):
                    fresh.settle()
            finally:
                fresh.report_as_they_are()
