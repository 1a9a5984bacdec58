"""One guarded task try: read the documents, judge, claim, execute, report."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_guard.core.documents import Document, DocumentReader, without_repetitions
from airflow_guard.core.errors import (
    BeforeHorizon,
    DocumentError,
    KeyDrift,
    LedgerBusy,
    LedgerError,
    LedgerUnavailable,
    Stopped,
)
from airflow_guard.core.guard import Asking
from airflow_guard.core.keys import batch_id_of
from airflow_guard.core.report import Outcome, Report, said
from airflow_guard.execution.batches import BatchGatherer
from airflow_guard.execution.classify import Claimable, Classifier
from airflow_guard.execution.doubt import DoubtSettler
from airflow_guard.execution.external import ExternalEffect
from airflow_guard.execution.in_database import DatabaseEffect
from airflow_guard.execution.lease import LeaseKeeper
from airflow_guard.execution.observing import Observer
from airflow_guard.execution.preflight import unguarded_reason
from airflow_guard.execution.reversal import FirstEffect
from airflow_guard.execution.shape import DriftCheck, key_shape
from airflow_guard.execution.spec import CLAIM_CHUNK, Callee, GuardSpec
from airflow_guard.execution.units import Unit
from airflow_guard.execution.workers import StopFlag, Workers
from airflow_guard.execution.writer import GroupWriter, InlineWriter
from airflow_guard.store import aliases
from airflow_guard.store.changes import Ownership

if TYPE_CHECKING:
    from airflow_guard.core.reruns import Rerun
    from airflow_guard.store.ledger import Claimed, Ledger
    from airflow_guard.store.task_runs import TaskTry

log = logging.getLogger(__name__)
MAX_EVENTS = 1000
"""Blocked keys of one try that get an event each; all are counted in guard_task_run."""

_NO_LEDGER = "the ledger is not there"
Listing = Callable[[], Iterable[Any]]


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
    ) -> None:
        callee.check(spec)
        self._ledger = ledger
        self._spec = spec
        self._try = task_try
        self._callee = callee
        self._verify = verify
        self._on_rerun = on_rerun
        self._dag_task_ids = dag_task_ids
        self._resumed = resumed
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
        outcome, ended_by = "failed", None
        try:
            drift = DriftCheck(
                self._ledger, self._try.space, self._try.identity, self._try.key_shape,
                dag_task_ids=self._dag_task_ids, retired_operations=self._spec.retired_operations,
                ledger_name=self._spec.ledger,
            )  # fmt: skip
            self._work(report, unguarded, drift, documents, one)
            outcome = self._outcome(report)
        except BaseException as error:
            ended_by = error
            raise
        finally:
            for line in report.log_lines():
                level = logging.WARNING if line.startswith(Outcome.OBSERVED) else logging.INFO
                log.log(level, "%s: %s", self._try.space.operation, line)
            first = report.errors[0][1] if report.errors else ended_by
            self.close(report, outcome, said(first) if first else None)
        return report

    def close(self, report: Report, outcome: str, error: str | None) -> None:
        """Record how the try ended, and end its lease. Once more where the task ends otherwise than :meth:`run` did.

        :param outcome: see :meth:`airflow_guard.store.task_runs.TaskRuns.close`.
        """
        try:
            self._ledger.runs.close(self.task_run_id, outcome, report.task_run_counts(), error)
        except LedgerError as problem:
            # The lease ends by itself; the counts of this try are missing, which changes nothing that is decided.
            log.warning("The end of this try could not be recorded: %s", problem)

    def _outcome(self, report: Report) -> str:
        if self._spec.on_concurrent == "wait" and report.only_waits():
            return "waiting"
        return "failed" if report.failure("", self._spec.max_rejected) else "success"

    def _prepare(self) -> str | None:
        """Use the names that the ledger has now, open the try, and return why unknown keys must not run."""
        ledger, task_try = self._ledger, self._try
        names = aliases.resolve(ledger, task_try.space.key_namespace, task_try.space.operation)
        if names != (task_try.space.key_namespace, task_try.space.operation):
            log.info("%s is kept in the ledger as %s", task_try.space.describe(None), " / ".join(names))
            space = replace(task_try.space, key_namespace=names[0], operation=names[1])
            shape = key_shape(space, documents=not task_try.key_shape.endswith("/whole"))
            self._try = replace(task_try, space=space, key_shape=shape)
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
            report.add_error(Outcome.FAILED, f"{item!r:.80}", error)

        size = spec.batch_size if spec.call_per == "batch" else CLAIM_CHUNK
        for chunk in reader.chunks(documents(), size, refuse):
            observer.run([(document, None, _NO_LEDGER) for document in chunk])

    def _work(
        self, report: Report, unguarded: str | None, drift: DriftCheck, documents: Listing | None, one: Any
    ) -> None:
        spec, ledger, space = self._spec, self._ledger, self._try.space
        keeper = LeaseKeeper(ledger.runs, self.task_run_id, spec.lease, spec.max_hold, over=self._stop.set)
        self._keeper = keeper
        with keeper, (InlineWriter if spec.max_workers == 1 else GroupWriter)(ledger) as writer:
            first = FirstEffect(ledger, spec, self._on_rerun)
            effect = (
                DatabaseEffect(ledger, spec, self._callee, keeper, first)
                if spec.database
                else ExternalEffect(ledger, spec, self._callee, writer, keeper, first)
            )
            threads = 1 if spec.database and ledger.database.dialect == "sqlite" else spec.max_workers
            workers = Workers(
                ledger, effect, writer, report, self._stop, threads, stop_on_failure=spec.stop_on_failure
            )
            actor, task_run_id = self._try.identity.describe(), self.task_run_id
            settler = DoubtSettler(
                ledger, spec, space, self._verify, lambda: Ownership.new(space.key_date, task_run_id, actor)
            )

            asking = Asking(
                self._try.identity, space.deployment,
                compare_runs=spec.once_per == "date" and spec.on_other_run == "fail",
            )  # fmt: skip
            classifier = Classifier(
                ledger, spec, space, asking, report, settler, self.task_run_id, unguarded,
                resumed=self._resumed is not None, has_on_rerun=self._on_rerun is not None,
            )  # fmt: skip
            observer = Observer(ledger, spec, space, self._callee, report)
            session = _Session(self._ledger, spec, self._try, report, classifier, workers, drift, observer,
                               keeper, self._stop, self.task_run_id)  # fmt: skip
            session.run(documents, one)


class _Session:
    """The loop over chunks, with what it needs at hand."""

    def __init__(
        self, ledger: Ledger, spec: GuardSpec, task_try: TaskTry, report: Report, classifier: Classifier,
        workers: Workers, drift: DriftCheck, observer: Observer, keeper: LeaseKeeper, stop: StopFlag,
        task_run_id: int,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._spec = spec
        self._space = task_try.space
        self._actor = task_try.identity.describe()
        self._report = report
        self._classifier = classifier
        self._workers = workers
        self._drift = drift
        self._observer = observer
        self._keeper = keeper
        self._stop = stop
        self._task_run_id = task_run_id
        self._gatherer = BatchGatherer(ledger, self._space)
        self._events_written = 0

    def run(self, documents: Listing | None, one: Any) -> None:
        """Work through the listing, then through the batches that had to be gathered from all of it."""
        reader = DocumentReader(self._space.hasher(), self._spec.document_key, self._spec.fingerprint_fields)
        if documents is None:
            document = reader.whole_run() if one is None else reader.read_one(one)
            self._chunk([document])
        else:
            size = max(self._spec.batch_size, 1) if self._spec.call_per == "batch" else CLAIM_CHUNK
            for chunk in reader.chunks(documents(), size, self._refuse):
                self._chunk(chunk)
                if self._must_stop():
                    break
        if not self._must_stop():
            self._gathered()
        self._write_events()
        if self._stop:
            self._report.stopped = Stopped(
                f"{self._space.describe(None)}: stopped early: {self._stop.reason}"
            )
        self._report.problem = self._workers.result_error

    def _must_stop(self) -> bool:
        if self._keeper.held_too_long:
            self._stop.set("max_hold is over")
        return bool(self._stop)

    def _refuse(self, item: Any, error: DocumentError) -> None:
        self._report.add_error(Outcome.FAILED, f"{item!r:.80}", error)

    def _chunk(self, chunk: list[Document]) -> None:
        split = without_repetitions(chunk)
        for document, error in split.conflicting:
            self._report.add_error(Outcome.FAILED, document.name, error)
        self._check_drift(split.unique)
        claimable = self._classifier.classify(split.unique)
        self._gatherer.add(claimable)
        outcomes = self._claim_and_run(claimable.new, claimable.known)
        if claimable.reruns:
            outcomes |= self._claim_and_run([], [], claimable.reruns)
        outcomes |= self._classifier.not_done
        self._classifier.not_done.clear()
        for document in split.repeated:
            outcome = outcomes.get(document.key_hash, Outcome.REPLAYED)
            again = Outcome.REPLAYED if outcome is Outcome.EXECUTED else outcome
            self._report.add(again, document.name, "listed more than once in this task")
        self._observer.run(self._classifier.observed)
        self._classifier.observed.clear()
        self._write_events()

    def _check_drift(self, documents: Sequence[Document]) -> None:
        try:
            self._drift.check(documents)
        except KeyDrift as error:
            if self._spec.mode == "enforce":
                raise
            log.warning("observe: would have blocked %s", error)

    # -- claims ---------------------------------------------------------------------------------------------

    def _claim_and_run(
        self, new: Sequence[Document], known: Sequence[Document], reruns: Sequence[Document] = ()
    ) -> dict[str, Outcome]:
        everything = [*new, *known, *reruns]
        if not everything or self._must_stop():
            for document in everything:
                self._report.add(Outcome.RELEASED, document.name, self._stop.reason)
                self._report.retryable = True
            return {document.key_hash: Outcome.RELEASED for document in everything}
        own, won = self._claim(new, known, reruns)
        if not won:
            return {}
        documents = [document for document in everything if document.key_hash in won]
        return self._workers.run(self._units(own, documents, won))

    def _claim(
        self, new: Sequence[Document], known: Sequence[Document], reruns: Sequence[Document] = ()
    ) -> tuple[Ownership, dict[str, Claimed]]:
        own = Ownership.new(self._space.key_date, self._task_run_id, self._actor)
        everything = [*new, *known, *reruns]
        try:
            won = self._ledger.claim(own, self._space, new, known, reruns=reruns)
        except LedgerBusy as error:
            self._not_won(everything, str(error))
            return own, {}
        except BeforeHorizon as error:
            for document in new:
                self._classifier.block(document, None, error, Outcome.BLOCKED)
            return self._claim([], known, reruns) if known or reruns else (own, {})
        lost = [document for document in everything if document.key_hash not in won]
        if lost:
            self._not_won(lost, "another attempt is just claiming it")
        return own, won

    def _not_won(self, documents: Sequence[Document], why: str) -> None:
        if self._spec.mode == "observe":
            self._classifier.observed.extend((document, None, why) for document in documents)
        else:
            self._classifier.not_won(documents, why)

    def _units(self, own: Ownership, documents: Sequence[Document], won: dict[str, Claimed]) -> list[Unit]:
        reruns = self._reruns(own, won)
        if self._spec.call_per == "document":
            return [self._unit(own, [document], won, reruns) for document in documents]
        size, units = self._spec.batch_size, []
        # What is reversed before is reversed for a batch as a whole: only documents that stand alike go together.
        groups: dict[tuple[int, bool], list[Document]] = {}
        for document in documents:
            rerun = reruns.get(document.key_hash)
            alike = (won[document.key_hash].generation, rerun is not None and rerun.to_reverse)
            groups.setdefault(alike, []).append(document)
        for group in groups.values():
            for start in range(0, len(group), size):
                members = group[start : start + size]
                batch_id = batch_id_of(won[document.key_hash].idempotency_key for document in members)
                units.append(self._unit(own, members, won, reruns, batch_id))
        return units

    def _unit(
        self, own: Ownership, documents: Sequence[Document], won: dict[str, Claimed], reruns: Mapping[str, Rerun],
        batch_id: str | None = None,
    ) -> Unit:  # fmt: skip
        claims = [won[document.key_hash] for document in documents]
        mine = (
            {key.key_hash: reruns[key.key_hash] for key in claims if key.key_hash in reruns} if reruns else {}
        )
        return Unit(documents, claims, own, self._space, batch_id, self._spec.ledger, mine)

    def _reruns(self, own: Ownership, won: dict[str, Claimed]) -> Mapping[str, Rerun]:
        """Return what people have authorised of these claims; asked for later generations only."""
        later = {key: claim.generation for key, claim in won.items() if claim.generation > 1}
        if not later:
            return {}
        return self._ledger.database.read(lambda c: self._ledger.reruns.of_claims(c, own.key_date, later))

    # -- batches that must stay what they were --------------------------------------------------------------

    def _gathered(self) -> None:
        """Verify and repeat external batches whose members the whole listing has given."""
        for members in self._gatherer.doubted():
            free: list[Document] = []
            if self._classifier.settled(members, free):
                again = Claimable()
                self._classifier.look_again([document for document, _ in members], again)
                self._gatherer.add(again)
            elif free:
                self._gatherer.add_members(members[0][1].batch_id or "", free)
        for batch_id, documents, missing in self._gatherer.to_repeat():
            if missing:
                self._incomplete(batch_id, documents, missing)
            elif not self._must_stop():
                self._repeat(batch_id, documents)

    def _repeat(self, batch_id: str, documents: Sequence[Document]) -> None:
        rows = self._ledger.read(self._space.key_date, [document.key_hash for document in documents])
        members = [(document, rows[document.key_hash]) for document in documents if document.key_hash in rows]
        if self._classifier.lapsed(members):
            return
        own, won = self._claim([], documents)
        if len(won) != len(documents):
            if won:
                why = "released: another attempt has a part of the batch"
                self._ledger.fail(own, list(won), why, begun=False)
                for document in documents:
                    if document.key_hash in won:
                        self._report.add(Outcome.RELEASED, document.name, why)
                        self._report.retryable = True
            return
        self._workers.run([self._unit(own, documents, won, self._reruns(own, won), batch_id)])

    def _incomplete(
        self, batch_id: str, documents: Sequence[Document], missing: Sequence[str | None]
    ) -> None:
        # A batch moves as one. If another attempt took it while the listing was read, its members only look missing.
        found = Claimable()
        self._classifier.look_again(documents, found)
        self._classifier.not_won(
            [document for document, _ in found.doubted], "another attempt had this batch"
        )
        error = DocumentError(
            f"{self._space.describe(None)}: batch {batch_id} must be repeated as it was, and {len(missing)} of its "
            f"documents are not listed any more ({', '.join(str(name) for name in missing[:5])}). List them again. Nothing "
            'of it has happened: to execute the others one by one, run them with call_per="document".'
        )
        for document, row in found.batches:
            self._classifier.block(document, row, error, Outcome.BLOCKED)

    def _write_events(self) -> None:
        events = self._classifier.events[: max(0, MAX_EVENTS - self._events_written)]
        self._classifier.events.clear()
        if events:
            self._ledger.write(lambda connection: self._ledger.events.write(connection, *events))
            self._events_written += len(events)
