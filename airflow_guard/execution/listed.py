"""The listing of a try: read chunk by chunk, compared with what was expected, and remembered until it is finished."""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_guard.core.documents import AFTER_A_FINER_IDENTITY
from airflow_guard.core.errors import (
    DocumentError,
    GuardError,
    RepeatedDocument,
    UnexpectedListing,
)
from airflow_guard.core.expectations import Tally
from airflow_guard.core.report import Outcome
from airflow_guard.execution.forgotten import Leftovers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from airflow_guard.core.documents import Document, DocumentReader
    from airflow_guard.core.expectations import Expected
    from airflow_guard.execution.attempt import Attempt

log = logging.getLogger(__name__)
_NAMED = 5


class Listed:
    """What one try lists.

    Documents that are in hand and not claimed yet are noted in the ledger before the first effect: who lists them may
    have taken them from their source, so that nobody would list them again after a kill.

    :param expectation: gives what was expected, asked once the listing is read to its end.
    """

    def __init__(self, attempt: Attempt, expectation: Callable[[], Expected | None]) -> None:
        self._try = attempt
        self._expectation = expectation
        self._store = attempt.ledger.listed
        self._left = Leftovers(attempt, self._store)
        self._source: Iterator[list[Document]] = iter(())
        self._ahead: deque[list[Document]] | None = None
        self._in_hand = False
        self._noted_ahead = False
        self._notes = False
        self._chunk: Sequence[Document] = ()
        self._seen: set[int] = set()
        self._refused: dict[str, str] = {}
        self._refused_items: list[Any] = []
        self.count = 0
        self.again: set[str] = set()

    @property
    def in_hand(self) -> int:
        """How many documents have been listed so far, also those that are still to be looked at."""
        return self.count + sum(len(chunk) for chunk in self._ahead or ())

    def begin(self) -> None:
        """Look what earlier tries of the run have left."""
        if self._try.spec.mode == "enforce":
            self._left.load()

    @property
    def _reads_all(self) -> bool:
        # A try that goes on after a wait has compared its listing before.
        spec = self._try.spec
        return not self._try.resumed and (spec.expected is not None or spec.on_repeated == "fail")

    # -- reading --------------------------------------------------------------------------------------------

    def one(self, document: Document) -> Iterator[list[Document]]:
        """Yield the single document of a task."""
        self.count, self._chunk = 1, [document]
        self._left.saw(self._chunk)
        yield [document]
        self._chunk = ()

    def chunks(self, reader: DocumentReader, items: Iterable[Any], size: int) -> Iterator[list[Document]]:
        """Yield the documents, ``size`` at a time.

        :raises UnexpectedListing: the listing is not what was expected; nothing was executed (retryable).
        :raises RepeatedDocument: a document is listed twice, and ``on_repeated="fail"``; nothing was executed.
        """
        self._reader = reader
        self._source = reader.chunks(items, size, self._refuse)
        self._in_hand = isinstance(items, (list, tuple))
        if self._reads_all:
            self._read_ahead()
            self._compare()
        while (chunk := self._next()) is not None:
            self._chunk = chunk
            self._left.saw(chunk)
            self._count(chunk)
            yield chunk
            self._chunk = ()
        if self.count == 0 and not self._try.resumed and not self._reads_all:
            self._compare()

    def _next(self) -> list[Document] | None:
        if self._ahead is not None:
            return self._ahead.popleft() if self._ahead else None
        return next(self._source, None)

    def _read_ahead(self) -> None:
        if self._ahead is None:
            self._ahead, self._in_hand = deque(self._source), True

    def _refuse(self, item: Any, error: DocumentError) -> None:
        self.count += 1
        shown = self._reader.called(item)
        self._try.report.add_error(Outcome.FAILED, shown, error, figure="not_begun")
        # By its key where it has one: corrected, it is listed again under that.
        text = hashlib.sha256(shown.encode("utf-8", "replace")).hexdigest()[:32]
        self._refused[self._reader.key_of(item) or text] = shown
        self._left.saw_refused(self._refused)
        if self._reads_all:
            self._refused_items.append(item)

    def _count(self, chunk: Sequence[Document]) -> None:
        """Count the chunk, and find what an earlier chunk has listed already."""
        self.count += len(chunk)
        self.again = set()
        for document in chunk:
            number = int(document.key_hash, 16)
            if number in self._seen:
                self.again.add(document.key_hash)
        self._seen.update(int(document.key_hash, 16) for document in chunk)

    # -- what was expected ----------------------------------------------------------------------------------

    def _compare(self) -> None:
        expected = self._expectation()
        tally = Tally(expected)
        self._try.report.expected = expected
        try:
            for chunk in self._ahead or ():
                tally.add(chunk)
            for item in self._refused_items:
                tally.add_refused(item)
            self._try.report.listed_total = tally.total
            self._check(tally, expected)
        except (UnexpectedListing, RepeatedDocument) as error:
            if self._try.spec.mode == "enforce":
                self._try.report.listed = tally.count
                self.abandon()
                raise
            self._remark(f"observe: would have blocked: {error}")

    def _check(self, tally: Tally, expected: Expected | None) -> None:
        self._try.report.empty_allowed = self._try.spec.on_empty == "allow"
        what = self._try.space.describe(None)
        counts = expected is not None and (expected.least is not None or expected.most is not None)
        if tally.count == 0 and not counts and self._try.spec.on_empty != "allow":
            if self._try.spec.on_empty == "fail":
                raise UnexpectedListing(
                    f'{what}: nothing was listed, and on_empty="fail". Nothing was executed. Find out why the source has '
                    "nothing for this date; another try lists again."
                )
            self._remark("nothing was listed")
        difference = tally.difference()
        if difference is not None and expected is not None:
            if expected.otherwise == "fail":
                raise UnexpectedListing(
                    f"{what}: {difference}. Nothing was executed. Find out what is missing, or too much, at the source; "
                    "another try lists again."
                )
            self._remark(difference)
        if self._try.spec.on_repeated == "fail":
            self._refuse_repeated(what)

    def _refuse_repeated(self, what: str) -> None:
        seen: set[str] = set()
        repeated: dict[str, str] = {}
        for document in (each for chunk in self._ahead or () for each in chunk):
            if document.key_hash in seen:
                repeated[document.key_hash] = str(document.name)
            seen.add(document.key_hash)
        if repeated:
            named = ", ".join(list(repeated.values())[:_NAMED])
            more = f" and {len(repeated) - _NAMED:,} more" if len(repeated) > _NAMED else ""
            raise RepeatedDocument(
                f'{what}: listed more than once, and on_repeated="fail": {named}{more}. Nothing was executed. If a '
                "line is there twice, correct the list; if these are different documents, make the identity (document_key) "
                f"finer. {AFTER_A_FINER_IDENTITY}"
            )

    def _remark(self, words: str) -> None:
        log.warning("%s: %s", self._try.space.describe(None), words)
        self._try.report.remark = self._try.report.remark or words

    # -- what is not finished -------------------------------------------------------------------------------

    def before_effects(self) -> None:
        """Note what is in hand beyond the present chunk, before the first of its effects begins."""
        if self._noted_ahead or self._try.spec.mode != "enforce":
            return
        if self._in_hand:
            self._read_ahead()
            self._note([document for chunk in self._ahead or () for document in chunk])
        self._noted_ahead = True

    def note(self, documents: Sequence[Document]) -> None:
        """Note documents whose claim has to wait: others of their chunk are looked at first, which may take long."""
        if self._try.spec.mode == "enforce":
            self._note(documents)

    def chunk_done(
        self, chunk: Sequence[Document], outcomes: Mapping[str, Outcome], whys: dict[str, str]
    ) -> None:
        """Note what of a chunk this try could not claim; what earlier tries had noted of it is listed again."""
        if self._try.spec.mode != "enforce":
            return
        open_ = [each for each in chunk if outcomes.get(each.key_hash) in _NOT_FINISHED]
        with _as_far_as_the_ledger_answers():
            self._note(open_, whys)
            self._left.relisted(chunk)

    def _note(self, documents: Iterable[Document], whys: dict[str, str] | None = None) -> None:
        documents = list(documents)
        if documents:
            self._notes = True
            self._store.note(self._try.task_run_id, self._try.space.key_date, documents, whys)

    def finish(self, *, stopped: bool) -> None:
        """Note what a try that stopped has not reached; of one that reached its end, find what was forgotten."""
        if self._try.spec.mode == "enforce":
            with _as_far_as_the_ledger_answers():
                self._note_refused()
                if stopped:
                    self.before_effects()
                if self._notes:
                    self._store.forget_claimed(self._try.task_run_id)
        if not stopped:
            self._left.report()

    def abandon(self) -> None:
        """Note all that is in hand: the try ends in the middle."""
        if self._try.spec.mode != "enforce":
            return
        with _as_far_as_the_ledger_answers():
            self._note(self._chunk)
            self._noted_ahead = False
            self.before_effects()
            self._note_refused()
            self._store.forget_claimed(self._try.task_run_id)

    def _note_refused(self) -> None:
        if self._refused:
            self._store.note_refused(self._try.task_run_id, self._try.space.key_date, self._refused.items())

    def settled(self) -> None:
        """Forget all that this run has noted: the try ended well, so that all of it is done."""
        self._left.clear(also=self._notes)


@contextmanager
def _as_far_as_the_ledger_answers() -> Iterator[None]:
    """Say what could not be noted: it changes nothing of how the try ends, and what is claimed its keys tell."""
    try:
        yield
    except GuardError as problem:
        log.warning("What this try had listed and not begun could not be recorded: %s", problem)


_NOT_FINISHED = frozenset(
    {Outcome.WAITING, Outcome.BLOCKED, Outcome.IN_DOUBT, Outcome.RELEASED, Outcome.FAILED}
)
