"""Sorting a chunk of documents: what is done is replayed, what may not run is reported, the rest is to be claimed."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from airflow_guard.core.content import changed_fields
from airflow_guard.core.doubts import Doubt
from airflow_guard.core.errors import BlockedError, DuplicateRefused, InProgressElsewhere, RerunRefused
from airflow_guard.core.figures import figure_of
from airflow_guard.core.guard import (
    CLAIMABLE,
    Asking,
    Judgement,
    LedgerRow,
    Verdict,
    another_automatic_run,
    changed_content,
    judge,
)
from airflow_guard.core.keys import NORMALISER_VERSION, NORMALISERS
from airflow_guard.core.refusals import changed_since, content_changed, not_guarded, refusal, rejected_before
from airflow_guard.core.report import Held, Outcome
from airflow_guard.core.reruns import nothing_reverses
from airflow_guard.core.results import decode_result, has_result
from airflow_guard.core.states import Phase, State
from airflow_guard.store.events import AuditEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_guard.core.documents import Document
    from airflow_guard.core.guard import TaskIdentity
    from airflow_guard.execution.attempt import Attempt
    from airflow_guard.execution.doubts import DoubtSettler

log = logging.getLogger(__name__)
_ROUNDS = 3


@dataclass(slots=True)
class Claimable:
    """Documents of a chunk that may be claimed.

    :param new: the ledger does not know them.
    :param known: failed, or the lease is over with nothing begun.
    :param reruns: done, and a person has authorised a rerun.
    :param batches: known members of external batches, by batch id: repeated only together.
    :param doubted: members of external batches in doubt, by batch id: verified together.
    """

    new: list[Document] = field(default_factory=list)
    known: list[Document] = field(default_factory=list)
    reruns: list[Document] = field(default_factory=list)
    batches: list[tuple[Document, LedgerRow]] = field(default_factory=list)
    doubted: list[tuple[Document, LedgerRow]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.new or self.known or self.reruns or self.batches or self.doubted)


class Classifier:
    """Judges documents for one task try, and adds what needs no execution to the report.

    :param settler: settles what is in doubt.
    :param unguarded: why unknown keys must not run, ``None`` if they may.

    ``observed``, ``not_done`` and ``offers`` collect until the caller clears them: documents that observe mode calls all
    the same; by key what became of those that are neither done nor to be claimed; rows that were listed with other
    content, and its fingerprint. ``whys`` names the errors that held back.
    ``again``: keys that an earlier chunk has listed already. ``remember`` takes new documents that have to wait until
    ``verify`` was asked about others.
    """

    def __init__(self, attempt: Attempt, settler: DoubtSettler, unguarded: str | None) -> None:
        self._try = attempt
        self._asking = Asking(attempt.identity, attempt.space.deployment, compare_runs=attempt.compares_runs)
        self._settler = settler
        self._unguarded = unguarded
        self._observe = attempt.spec.mode == "observe"
        self._mine_known: set[int | None] = set()
        self.observed: list[tuple[Document, LedgerRow | None, str]] = []
        self.not_done: dict[str, Outcome] = {}
        self.whys: dict[str, str] = {}
        self.again: set[str] = set()
        self.remember: Callable[[Sequence[Document]], None] | None = None
        self.events: list[AuditEvent] = []
        self.offers: list[tuple[LedgerRow, str]] = []

    def classify(self, documents: Sequence[Document]) -> Claimable:
        """Return what may be claimed; everything else is in the report (or in ``observed``)."""
        self._use_older_keys(documents)
        found = self._try.ledger.lookup(
            self._try.space.key_date, [document.key_hash for document in documents]
        )
        rows = {row.key_hash: row for row in found}
        claimable, unclear = Claimable(), []
        done: dict[int | None, list[str | None]] = {}
        # A single document's result is returned, and observe mode calls it: both need all of the row.
        simple = not self._observe and not self._try.report.single and self._try.spec.on_duplicate != "fail"
        for document in documents:
            row = rows.get(document.key_hash)
            if row is None:
                self._unknown(document, claimable)
            elif simple and self._simply_done(row, document):
                if document.key_hash in self.again:
                    self._repeated(document)
                else:
                    done.setdefault(row[5], []).append(document.name)
            else:
                unclear.append(document)
        for task_run_id, names in done.items():
            self._replayed(names, task_run_id)
        if unclear and claimable.new and self.remember is not None:
            self.remember(claimable.new)
        self.look_again(unclear, claimable)
        return claimable

    def look_again(self, documents: Sequence[Document], claimable: Claimable) -> None:
        """Judge documents by all that the ledger knows about them."""
        for _ in range(_ROUNDS):
            if not documents:
                return
            rows = self._try.ledger.read(
                self._try.space.key_date, [document.key_hash for document in documents]
            )
            changed = [
                document
                for document in documents
                if self._judge(document, rows.get(document.key_hash), claimable)
            ]
            documents = changed
        for document in documents:
            self._wait(document, None, "several attempts at once")

    def not_won(self, documents: Sequence[Document], why: str) -> None:
        """Report what a claim did not win: done meanwhile, or in progress elsewhere."""
        rows = self._try.ledger.read(self._try.space.key_date, [document.key_hash for document in documents])
        for document in documents:
            row, free = rows.get(document.key_hash), Claimable()
            if row is None or self._judge(document, row, free) or free:
                # It may be claimed by now, or its doubt is settled: the next look at it, which may claim, does so.
                holder = row.done_by if row is not None and row.state is State.IN_PROGRESS else why
                self._wait(document, row, holder)

    # -- verdicts -------------------------------------------------------------------------------------------

    def _simply_done(self, row: Any, document: Document) -> bool:
        # By position: this runs for every document of every replay.
        _, state, follow_up, deployment, first_task_run_id, _, content, look_closer = row
        return (
            state == "completed"
            and not look_closer
            and follow_up in ("none", "settled")
            and deployment == self._asking.deployment
            and (content is None or changed_fields(content, document.fingerprint) is None)
            and (first_task_run_id in self._mine_known or self._same_work(first_task_run_id))
        )

    def _same_work(self, first_task_run_id: int | None) -> bool:
        if self._asking.compare_runs and first_task_run_id is not None:
            first = self._try.ledger.identities([first_task_run_id]).get(first_task_run_id)
            if first is not None and another_automatic_run(first, self._try.identity):
                return False
        self._mine_known.add(first_task_run_id)
        return True

    def _unknown(self, document: Document, claimable: Claimable) -> None:
        if self._unguarded is None:
            claimable.new.append(document)
            return
        error = not_guarded(self._try.space, document.name, self._unguarded)
        self.block(document, None, error, Outcome.BLOCKED)

    def _judge(self, document: Document, row: LedgerRow | None, claimable: Claimable) -> bool:
        """Act on a verdict; return whether the row changed meanwhile and must be read again."""
        judgement = judge(row, self._asking, document.fingerprint)
        verdict = judgement.verdict
        if row is None:
            self._unknown(document, claimable)
        elif verdict in CLAIMABLE:
            # In observe mode nothing is held back.
            batch = (
                row.batch_id is not None
                and not self._try.spec.database
                and self._try.spec.call_per == "batch"
            )
            if batch and not self._observe:
                claimable.batches.append((document, row))
            elif self._observe or not self.lapsed([(document, row)]):
                claimable.known.append(document)
        elif verdict is Verdict.DOUBT:
            return self._doubt(document, row, claimable)
        elif verdict is Verdict.RERUN or (
            verdict is Verdict.DONE and self._try.spec.on_duplicate != "fail" and not self._observe
        ):
            self._done(document, row, claimable)
        elif verdict is Verdict.REJECTED and not self._observe:
            self.not_done[document.key_hash] = Outcome.REJECTED
            self._try.report.add(Outcome.REJECTED, document.name, rejected_before(row))
        elif verdict is Verdict.ELSEWHERE and not self._observe:
            self._wait(document, row, row.done_by)
        elif verdict is Verdict.REJECTED:
            self.block(document, row, BlockedError(rejected_before(row)), Outcome.BLOCKED)
        else:
            self._refuse(document, row, judgement)
        return False

    def _refuse(self, document: Document, row: LedgerRow, judgement: Judgement) -> None:
        if judgement.verdict is Verdict.CHANGED:
            self._offered(document, row)
        error = refusal(judgement, row, self._try.space, document.name, self._try.spec.ledger)
        self.block(document, row, error, Outcome.BLOCKED)

    def _offered(self, document: Document, row: LedgerRow) -> None:
        if document.fingerprint is not None and not self._observe:
            self.offers.append((row, document.fingerprint))

    def _rerun(self, document: Document, row: LedgerRow, claimable: Claimable) -> None:
        if row.rerun is None or row.rerun.without_reversal or self._try.on_rerun is not None:
            claimable.reruns.append(document)
            return
        text = nothing_reverses(
            self._try.space.describe(document.name),
            document.key_hash,
            in_database=self._try.spec.database,
            ledger=self._try.spec.ledger,
        )
        self.block(document, row, RerunRefused(text), Outcome.BLOCKED)

    def lapsed(self, members: Sequence[tuple[Document, LedgerRow]]) -> bool:
        """Report documents that were free only as long as the receiver remembers them; return whether these were."""
        documents, rows = [document for document, _ in members], [row for _, row in members]
        error = self._settler.lapsed(self._try.space.key_date, documents, rows)
        if error is None:
            return False
        for document, row in members:
            self.block(document, row, error, Outcome.IN_DOUBT)
        return True

    def _doubt(self, document: Document, row: LedgerRow, claimable: Claimable) -> bool:
        if row.batch_id is not None and self._try.spec.call_per == "batch" and not self._observe:
            claimable.doubted.append((document, row))
            return False
        if self._observe:
            new = changed_since(row, changed_content(row, document.fingerprint))
            why = f"in doubt since {row.done_by}.{new}" if new else f"in doubt since {row.done_by}"
            self.block(document, row, BlockedError(why), Outcome.IN_DOUBT)
            return False
        return self.settled([(document, row)], claimable.known)

    def settled(self, members: Sequence[tuple[Document, LedgerRow]], free: list[Document]) -> bool:
        """Settle doubt about one document or one batch; return whether its rows changed meanwhile.

        :param free: takes the documents that may be claimed now.
        """
        documents = [document for document, _ in members]
        rows = [row for _, row in members]
        settled = self._settler.settle(self._try.space.key_date, documents, rows)
        if settled.error is not None:
            self._try.ledger.expire(self._try.space.key_date, rows, self._try.actor)
            if self._try.spec.asks:
                self._try.report.add_doubt(
                    Doubt(self._settler.as_sent(documents, rows), rows[0], settled.verify)
                )
            if settled.left_s is not None:
                self._try.report.add_settling(len(members), settled.left_s)
            for document, row in members:
                self.block(document, row, settled.error, Outcome.IN_DOUBT)
        elif settled.verdict == "happened":
            for document, row in members:
                self._happened(document, row)
        elif settled.verdict == "not_happened":
            free.extend(documents)
        return settled.verdict == "changed"

    def _happened(self, document: Document, row: LedgerRow) -> None:
        """Report what ``verify`` has settled as done: for the content that was sent, and for no other."""
        said = f"verify: attempt {row.attempt} had done it"
        fields = changed_content(row, document.fingerprint)
        if fields is None:
            self._return_stored(document, None)
            self._try.report.add(Outcome.REPLAYED, document.name, said)
            self._try.report.own_replays += self._is_own(row.last_run)
            return
        self._offered(document, row)
        done = replace(row, state=State.COMPLETED, phase=Phase.DONE, error=said)
        error = content_changed(self._try.space.describe(document.name), done, fields, self._try.spec.ledger)
        self.block(document, done, error, Outcome.BLOCKED)

    def _done(self, document: Document, row: LedgerRow, claimable: Claimable) -> None:
        if row.rerun is not None:
            self._rerun(document, row, claimable)
            return
        self._return_stored(document, row.result)
        self._try.recorder.replay(self._try.space.describe(document.name), row)
        if document.key_hash in self.again:
            self._repeated(document)
            return
        self._replayed([document.name], row.task_run_id, settled=row.error, figure=figure_of(row))

    def _repeated(self, document: Document) -> None:
        self._try.report.add(Outcome.REPEATED, document.name, "listed more than once in this task")

    def _return_stored(self, document: Document, result: str | None) -> None:
        if not self._try.report.single:
            return
        if has_result(result):
            self._try.report.set_result(decode_result(result))
        else:
            log.warning(
                "%s is done, but no result is stored; None is returned.",
                self._try.space.describe(document.name),
            )

    def _replayed(
        self,
        names: Sequence[str | None],
        task_run_id: int | None,
        settled: str | None = None,
        figure: str | None = None,
    ) -> None:
        if self._try.resumed and task_run_id == self._try.task_run_id:
            self._try.report.add_many(Outcome.EXECUTED, names, "earlier in this try")
            self._try.report.earlier += len(names)
            return
        people = self._try.ledger.identities([task_run_id] if task_run_id is not None else [])
        who = people[task_run_id].describe() if task_run_id in people else "adoption (recorded by a person)"
        outcome = Outcome.SKIPPED if self._try.spec.on_duplicate == "skip" else Outcome.REPLAYED
        by_a_person = f"; {settled}" if settled else ""
        for name in names if settled else ():
            self._try.report.add_settled(name, str(settled))
        self._try.report.add_many(outcome, names, f"done before by {who}{by_a_person}", figure)
        if task_run_id is not None and self._is_own(people.get(task_run_id)):
            self._try.report.own_replays += len(names)

    def _is_own(self, who: TaskIdentity | None) -> bool:
        """Return whether it was a try of this very task in this run."""
        return who is not None and who.task == self._try.identity.task

    def _wait(self, document: Document, row: LedgerRow | None, holder: str) -> None:
        error = InProgressElsewhere(
            f"{self._try.space.describe(document.name)} is in progress elsewhere: {holder}. Nothing was executed here; "
            "another try finds its result."
        )
        self.not_done[document.key_hash] = Outcome.WAITING
        self._try.report.add_waiting(Held(document.key_hash, document.name, holder), error)
        if not self._try.resumed:
            self._event("blocked", document, row, str(error))

    def block(
        self, document: Document, row: LedgerRow | None, error: BaseException, outcome: Outcome
    ) -> None:
        """Report a document that may not run; in observe mode keep it, so that the caller calls it all the same."""
        if self._observe:
            done = row is not None and row.state is State.COMPLETED and isinstance(error, DuplicateRefused)
            why = f"done before by {row.done_by}" if done and row is not None else str(error)
            self._event("would_block", document, row, why)
            self.observed.append((document, row, why))
            return
        self.not_done[document.key_hash] = outcome
        self.whys[document.key_hash] = type(error).__name__[:40]
        because = f"{type(error).__name__}, {row.done_by}" if row is not None else type(error).__name__
        figure = figure_of(row) if row is not None else None
        self._try.report.add_error(outcome, document.name, error, because, figure)
        self._event("blocked", document, row, str(error))

    def _event(self, kind: str, document: Document, row: LedgerRow | None, why: str) -> None:
        self.events.append(
            AuditEvent(
                kind,
                self._try.space.describe(document.name),
                self._try.actor,
                why,
                self._try.space.key_date,
                document.key_hash,
                row.attempt if row else None,
                row.owner_token if row else None,
                self._try.task_run_id,
                row.state if row else None,
                row.state if row else None,
            )
        )

    def _use_older_keys(self, documents: Sequence[Document]) -> None:
        """Let documents whose key an older normaliser made keep that key."""
        for version in sorted(NORMALISERS):
            if version == NORMALISER_VERSION:
                continue
            hasher = self._try.space.hasher(version)
            older = {}
            for document in documents:
                if document.name is not None:
                    older[hasher.key_hash(hasher.normalise(document.identity))] = document
            for row in self._try.ledger.lookup(self._try.space.key_date, list(older)):
                older[row.key_hash].key_hash = row.key_hash
