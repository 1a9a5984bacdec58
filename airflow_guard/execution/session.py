"""The listing of one task try, worked through chunk by chunk: judged, claimed, executed. Here the keys are claimed."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any

from airflow_guard.core.documents import Document, DocumentReader, without_repetitions
from airflow_guard.core.errors import BeforeHorizon, DocumentError, KeyDrift, LedgerBusy, Stopped
from airflow_guard.core.keys import batch_id_of
from airflow_guard.core.report import Outcome
from airflow_guard.execution.classify import Claimable, Classifier
from airflow_guard.execution.doubts import AfterFailOver
from airflow_guard.execution.observing import Observer
from airflow_guard.execution.preflight import OtherKeys
from airflow_guard.execution.spec import CLAIM_CHUNK
from airflow_guard.execution.units import Unit

if TYPE_CHECKING:
    from airflow_guard.core.guard import LedgerRow
    from airflow_guard.core.reruns import Rerun
    from airflow_guard.execution.attempt import Attempt, LeaseKeeper, Listing
    from airflow_guard.execution.listed import Listed
    from airflow_guard.execution.workers import Workers
    from airflow_guard.store.changes import Ownership
    from airflow_guard.store.claims import Claimed

log = logging.getLogger(__name__)
MAX_EVENTS = 1000
"""Blocked keys of one try that get an event each; all are counted in guard_task_run."""


class Session:
    """The loop over chunks."""

    def __init__(
        self, attempt: Attempt, classifier: Classifier, workers: Workers, listed: Listed, keeper: LeaseKeeper
    ) -> None:
        self._try = attempt
        self._next_try = attempt.spec.next_try if attempt.identity.more_tries else None
        self._after = AfterFailOver(attempt)
        self._classifier = classifier
        self._workers = workers
        self._other_keys = OtherKeys(attempt)
        self._observer = Observer(attempt)
        self._keeper = keeper
        self._gatherer = BatchGatherer(attempt)
        self._listed = listed
        self._events_written = 0

    def run(self, documents: Listing | None, one: Any) -> None:
        """Work through the listing, then through the batches that had to be gathered from all of it."""
        self._listed.begin()
        try:
            for chunk in self._chunks(documents, one):
                self._chunk(chunk)
                self._try.progress.reached(self._listed.count)
                if self._must_stop():
                    break
            if not self._must_stop():
                self._gathered()
        except KeyDrift:
            raise  # under these keys nothing is owed: the next try has others, and would miss them
        except BaseException:
            self._listed.abandon()
            raise
        self._write_events()
        self._listed.finish(stopped=bool(self._try.stop))
        if self._try.stop:
            self._try.report.stopped = Stopped(
                f"{self._try.space.describe(None)}: stopped early: {self._try.stop.reason}"
            )
        self._try.report.problem = self._workers.result_error

    def _chunks(self, documents: Listing | None, one: Any) -> Iterator[list[Document]]:
        reader = DocumentReader(
            self._try.space.hasher(), self._try.spec.document_key, self._try.spec.fingerprint_fields
        )
        if documents is None:
            return self._listed.one(reader.whole_run() if one is None else reader.read_one(one))
        size = max(self._try.spec.batch_size, 1) if self._try.spec.call_per == "batch" else CLAIM_CHUNK
        listing = documents()
        self._try.progress.of = len(listing) if isinstance(listing, Sized) else None
        return self._listed.chunks(reader, listing, size)

    def _must_stop(self) -> bool:
        if self._keeper.held_too_long:
            self._try.stop.set("max_hold is over")
        return bool(self._try.stop)

    def _chunk(self, chunk: list[Document]) -> None:
        split = without_repetitions(chunk)
        outcomes: dict[str, Outcome] = {}
        for document, error in split.conflicting:
            outcomes[document.key_hash] = Outcome.FAILED
            self._try.report.add_error(Outcome.FAILED, document.name, error, figure="not_begun")
        self._other_keys.check(split.unique)
        self._classifier.again = self._listed.again
        claimable = self._classifier.classify(split.unique)
        self._gatherer.add(claimable)
        outcomes |= self._claim_and_run(claimable.new, claimable.known)
        if claimable.reruns:
            outcomes |= self._claim_and_run([], [], claimable.reruns)
        outcomes |= self._classifier.not_done
        self._listed.chunk_done(chunk, outcomes, self._classifier.whys)
        self._classifier.not_done.clear()
        for document in split.repeated:
            self._try.report.add(Outcome.REPEATED, document.name, "listed more than once in this task")
        self._observer.run(self._classifier.observed)
        self._classifier.observed.clear()
        self._write_events()

    # -- claims ---------------------------------------------------------------------------------------------

    def _claim_and_run(
        self, new: Sequence[Document], known: Sequence[Document], reruns: Sequence[Document] = ()
    ) -> dict[str, Outcome]:
        everything = [*new, *known, *reruns]
        if not everything or self._must_stop():
            for document in everything:
                self._try.report.add(Outcome.RELEASED, document.name, self._try.stop.reason)
                self._try.report.retryable = True
            return {document.key_hash: Outcome.RELEASED for document in everything}
        self._listed.before_effects()
        unsure = self._after.unsure(new, known)
        own, won = self._claim(new, known, reruns, keep_content=unsure)
        if not won:
            return {}
        documents = [document for document in everything if document.key_hash in won]
        units = self._units(own, documents, won)
        if not unsure:
            return self._workers.run(units)
        held = [unit for unit in units if unsure.intersection(unit.hashes)]
        outcomes = self._workers.run([unit for unit in units if not unsure.intersection(unit.hashes)])
        for unit in held:
            outcomes |= self._hold(unit)
        return outcomes

    def _hold(self, unit: Unit) -> dict[str, Outcome]:
        """Put in doubt what a fail-over may have lost, and settle it if it can be settled at once."""
        lost = self._after.put_in_doubt(unit)
        rows = self._try.ledger.read(self._try.space.key_date, unit.hashes)
        members = [
            (each, rows[each.key_hash])
            for each in unit.documents
            if each.key_hash in rows and each.key_hash not in lost
        ]
        gone = [each for each in unit.documents if each.key_hash in lost]
        cleared: list[Document] = []
        if members and self._classifier.settled(members, cleared):
            gone += [document for document, _ in members]
        if gone:
            self._not_won(gone, "another attempt settles it just now")
        if unit.batch_id is not None and cleared:
            self._repeat(unit.batch_id, cleared)
            return {}
        return self._claim_and_run([], cleared) if cleared else {}

    def _claim(
        self,
        new: Sequence[Document],
        known: Sequence[Document],
        reruns: Sequence[Document] = (),
        keep_content: Collection[str] = (),
    ) -> tuple[Ownership, dict[str, Claimed]]:
        own = self._try.new_ownership()
        everything = [*new, *known, *reruns]
        try:
            won = self._try.ledger.claim(
                own,
                self._try.space,
                new,
                known,
                reruns=reruns,
                fail_over=self._after.newest,
                listed=self._listed.in_hand,
                keep_content=keep_content,
            )
        except LedgerBusy as error:
            self._not_won(everything, str(error))
            return own, {}
        except BeforeHorizon as error:
            for document in new:
                self._classifier.block(document, None, error, Outcome.BLOCKED)
            return self._claim([], known, reruns, keep_content) if known or reruns else (own, {})
        lost = [document for document in everything if document.key_hash not in won]
        if lost:
            self._not_won(lost, "another attempt is just claiming it")
        return own, won

    def _not_won(self, documents: Sequence[Document], why: str) -> None:
        if self._try.spec.mode == "observe":
            self._classifier.observed.extend((document, None, why) for document in documents)
        else:
            self._classifier.not_won(documents, why)

    def _units(self, own: Ownership, documents: Sequence[Document], won: dict[str, Claimed]) -> list[Unit]:
        reruns = self._reruns(own, won)
        if self._try.spec.call_per == "document":
            return [self._unit(own, [document], won, reruns) for document in documents]
        size, units = self._try.spec.batch_size, []
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
        self,
        own: Ownership,
        documents: Sequence[Document],
        won: dict[str, Claimed],
        reruns: Mapping[str, Rerun],
        batch_id: str | None = None,
    ) -> Unit:
        claims = [won[document.key_hash] for document in documents]
        mine = (
            {key.key_hash: reruns[key.key_hash] for key in claims if key.key_hash in reruns} if reruns else {}
        )
        return Unit(
            documents,
            claims,
            own,
            self._try.space,
            batch_id,
            self._try.spec.ledger,
            mine,
            next_try=self._next_try,
        )

    def _reruns(self, own: Ownership, won: dict[str, Claimed]) -> Mapping[str, Rerun]:
        """Return what people have authorised of these claims; asked for later generations only."""
        later = {key: claim.generation for key, claim in won.items() if claim.generation > 1}
        if not later:
            return {}
        return self._try.ledger.reruns_of_claims(own.key_date, later)

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
        rows = self._try.ledger.read(self._try.space.key_date, [document.key_hash for document in documents])
        members = in_order([(each, rows[each.key_hash]) for each in documents if each.key_hash in rows])
        if self._classifier.lapsed(members):
            return
        documents = [
            *(each for each, _ in members),
            *(each for each in documents if each.key_hash not in rows),
        ]
        unsure = self._after.unsure([], documents)
        own, won = self._claim([], documents, keep_content=unsure)
        if len(won) != len(documents):
            if won:
                why = "released: another attempt has a part of the batch"
                self._try.ledger.fail(own, list(won), why, begun=False)
                for document in documents:
                    if document.key_hash in won:
                        self._try.report.add(Outcome.RELEASED, document.name, why)
                        self._try.report.retryable = True
            return
        if any(_renewed(row, won[key]) for key, row in rows.items()):
            # Content of it is new: the receiver may know the old batch by the old id.
            batch_id = batch_id_of(claim.idempotency_key for claim in won.values())
        unit = self._unit(own, documents, won, self._reruns(own, won), batch_id)
        if unsure:
            self._hold(unit)
        else:
            self._workers.run([unit])

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
            f"{self._try.space.describe(None)}: batch {batch_id} must be repeated as it was, and {len(missing)} of its "
            f"documents are not listed any more ({', '.join(str(name) for name in missing[:5])}). List them again. Nothing "
            'of it has happened: to execute the others one by one, run them with call_per="document".'
        )
        for document, row in found.batches:
            self._classifier.block(document, row, error, Outcome.BLOCKED)

    def _write_events(self) -> None:
        self._try.ledger.offer(self._try.space.key_date, self._classifier.offers)
        self._classifier.offers.clear()
        events = self._classifier.events[: max(0, MAX_EVENTS - self._events_written)]
        self._classifier.events.clear()
        if events:
            self._try.ledger.tell(*events)
            self._events_written += len(events)


class BatchGatherer:
    """Collects members of external batches that were begun once, which are verified and repeated as the same batch.

    From the whole listing: their order may have changed since. Holds the payloads of unfinished batches only.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._try = attempt
        self._doubted: dict[str, list[tuple[Document, LedgerRow]]] = {}
        self._repeat: dict[str, list[Document]] = {}

    def add(self, claimable: Claimable) -> None:
        """Take the batch members of a chunk."""
        for document, row in claimable.doubted:
            self._doubted.setdefault(row.batch_id or "", []).append((document, row))
        for document, row in claimable.batches:
            self._repeat.setdefault(row.batch_id or "", []).append(document)

    def add_members(self, batch_id: str, documents: Sequence[Document]) -> None:
        """Take members whose doubt was settled as "did not happen"."""
        self._repeat.setdefault(batch_id, []).extend(documents)

    def doubted(self) -> Iterator[list[tuple[Document, LedgerRow]]]:
        """Yield the batches in doubt, each with its listed members in the batch's order."""
        while self._doubted:
            yield in_order(self._doubted.pop(next(iter(self._doubted))))

    def to_repeat(self) -> Iterator[tuple[str, list[Document], list[str | None]]]:
        """Yield batches to repeat: id, listed members, names of members not listed."""
        if not self._repeat:
            return
        members = self._try.ledger.members_of_batches(self._repeat)
        while self._repeat:
            batch_id, documents = self._repeat.popitem()
            listed = {document.key_hash: document for document in documents}
            missing = [name for key_hash, name in members.get(batch_id, {}).items() if key_hash not in listed]
            yield batch_id, list(listed.values()), missing


def in_order(members: list[tuple[Document, LedgerRow]]) -> list[tuple[Document, LedgerRow]]:
    """Return the members of a batch in the order in which it was begun first: another order is another file."""
    return sorted(members, key=lambda member: member[1].batch_position or 0)


def _renewed(row: LedgerRow, claim: Claimed) -> bool:
    """Return whether a member of a batch has got another key since the batch was begun, now or by an earlier claim."""
    return claim.idempotency_key != row.idempotency_key or row.first_begun_age_s is None
