"""What is in doubt, from an earlier try, from this one, or since a fail-over: ask ``verify``, repeat, or leave it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_guard.core.commands import resolve_command
from airflow_guard.core.doubts import Doubt
from airflow_guard.core.effects import External
from airflow_guard.core.errors import (
    GuardError,
    InDoubt,
    InDoubtUnsettled,
    LedgerBusy,
    LedgerError,
    NotExecuted,
    ResolutionError,
)
from airflow_guard.core.guard import changed_content
from airflow_guard.core.refusals import changed_since
from airflow_guard.core.report import Outcome
from airflow_guard.core.states import State
from airflow_guard.core.texts import described
from airflow_guard.execution.units import asked_by

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from airflow_guard.core.documents import Document
    from airflow_guard.core.fail_over import FailOver
    from airflow_guard.core.guard import LedgerRow
    from airflow_guard.execution.attempt import Attempt
    from airflow_guard.execution.units import Unit, UnitResult

log = logging.getLogger(__name__)
_MEMORY = "receiver_remembers"
"""Who "says" that a key may be repeated where the receiver recognises a repetition: no proof that nothing happened."""


@dataclass(frozen=True)
class Settled:
    """How a doubt ended: ``happened``, ``not_happened`` (claim it), ``changed`` (read again), or ``error``.

    :param verify: with ``error``: what ``verify`` said, in words.
    :param left_s: with ``error``: in how many seconds asking again decides more, ``None`` if time alone does not help.
    """

    verdict: str
    error: InDoubt | None = None
    verify: str = ""
    left_s: float | None = None


@dataclass(frozen=True)
class _Answer:
    """What ``verify`` said.

    :param value: ``None``: it could not tell, or it gave no answer.
    :param said: the same in words, after "verify".
    :param again: whether asking once more may give another answer.
    :param raised: whether it raised an exception.
    :param new: which content is new since it was sent, in words; empty if none is.
    """

    value: bool | None
    said: str
    again: bool = True
    raised: bool = False
    new: str = ""


_NOBODY = _Answer(None, "there is none, so nobody has asked the receiver", again=False)


class DoubtSettler:
    """Settles keys in doubt for one task try: asks ``verify``, or repeats within the receiver's memory."""

    def __init__(self, attempt: Attempt) -> None:
        self._try = attempt
        effect = attempt.spec.side_effect
        self._effect = effect if isinstance(effect, External) else External()

    def settle(self, key_date: date, documents: Sequence[Document], rows: Sequence[LedgerRow]) -> Settled:
        """Settle one document, or the listed members of one batch.

        :param rows: as they were read; the resolution carries the owner token that was judged, so that an answer
            about an attempt that is no longer the last changes nothing.
        """
        row, new = rows[0], self._news(documents, rows)
        answer = self._ask(self.as_sent(documents, rows), rows)
        if answer.value is True:
            return self._resolve(
                key_date, row, "happened", "verify", "verify answered that the effect happened"
            )
        age_s = min(each.last_sign_age_s for each in rows)
        settle_s = self._effect.settle_s or 0.0
        if answer.value is False and age_s >= settle_s:
            reason = f"verify answered that it did not happen, {age_s:.0f} s after the last sign of life"
            # Since the row was read, the attempt may have come back.
            return self._resolve(key_date, row, "did_not_happen", "verify", reason, quiet_s=settle_s)
        if answer.value is None and not new and self._remembered(rows):
            reason = f"repeated with the same idempotency key within receiver_remembers={self._effect.receiver_remembers}"
            return self._resolve(key_date, row, "did_not_happen", _MEMORY, reason)
        return self._open(documents[0], row, replace(answer, new=new), max(settle_s - age_s, 0.0))

    def _open(self, document: Document, row: LedgerRow, answer: _Answer, left_s: float) -> Settled:
        """Return what stays in doubt, and whether another try, or time, can settle it."""
        if answer.value is False:
            said = f"found no trace of it, which counts only in {left_s:.0f} s (settle_after)"
            # The last try of a task that asks does not wait: a person may know more, and sooner.
            return Settled(
                "error",
                self._unsettled(document, row, said, answer.new),
                said,
                None if self._try.spec.asks else left_s,
            )
        if not answer.again or (self._try.spec.asks and not answer.raised):
            return Settled("error", self._held(document, row, answer), answer.said)
        if left_s > 0 and not answer.raised:
            return Settled(
                "error", self._unsettled(document, row, answer.said, answer.new), answer.said, left_s
            )
        if answer.raised or self._try.identity.more_tries:
            return Settled("error", self._unsettled(document, row, answer.said, answer.new), answer.said)
        return Settled("error", self._held(document, row, answer), answer.said)

    def lapsed(
        self, key_date: date, documents: Sequence[Document], rows: Sequence[LedgerRow]
    ) -> InDoubt | None:
        """Return the error for free keys that may not be repeated, ``None`` if they may.

        Keys in doubt that the receiver remembered became free for a repetition. If that has done nothing, what the
        call before it did is unknown still: once the receiver has forgotten it, or the content is new, they are put in
        doubt again.
        """
        new = self._news(documents, rows)
        if not new and self._remembered(rows):
            return None
        if not any(self._freed_by_memory(key_date, row) for row in rows):
            return None
        own, hashes = self._try.new_ownership(), [row.key_hash for row in rows]
        try:
            won = self._try.ledger.claim(own, self._try.space, [], documents, keep_content=hashes)
        except LedgerBusy:
            return None  # another attempt is at them: the claim that follows finds out
        if len(won) != len(hashes):
            if won:
                self._try.ledger.fail(
                    own, list(won), "given back: another attempt has a part of the batch", begun=False
                )
            return None
        why = "an earlier call may have happened, and "
        why += "it was of other content" if new else "the receiver does not recognise a repetition any more"
        self._try.ledger.begin(own, hashes, rows[0].batch_id)
        self._try.ledger.doubt(own, hashes, why)
        return self._held(documents[0], replace(rows[0], error=why), replace(_NOBODY, new=new))

    def as_sent(self, documents: Sequence[Document], rows: Sequence[LedgerRow]) -> list[Document]:
        """Return documents with what is known of the content that was sent: without the fields that are new since."""
        return [
            document if fields is None else replace(document, payload=self._kept(document, fields))
            for document, fields in zip(documents, _changes(documents, rows), strict=True)
        ]

    def _kept(self, document: Document, fields: Sequence[str]) -> Any:
        if not isinstance(document.payload, Mapping):
            return document.payload
        if not fields:  # none can be compared
            return {self._try.spec.document_key: document.identity}
        return {name: value for name, value in document.payload.items() if name not in fields}

    def _news(self, documents: Sequence[Document], rows: Sequence[LedgerRow]) -> str:
        """Return which content is new since it was sent, in words; empty if none is."""
        for document, row, fields in zip(documents, rows, _changes(documents, rows), strict=True):
            if fields is not None:
                which = f" ({document.name})" if len(rows) > 1 else ""
                return changed_since(row, fields) + which
        return ""

    def _freed_by_memory(self, key_date: date, row: LedgerRow) -> bool:
        if row.first_begun_age_s is None:
            return False
        events = self._try.ledger.events_of(key_date, row.key_hash)
        settled = [
            event.actor for event in events if event.kind in ("resolve_happened", "resolve_not_happened")
        ]
        return bool(settled) and settled[-1] == _MEMORY

    def _ask(self, documents: Sequence[Document], rows: Sequence[LedgerRow]) -> _Answer:
        if self._try.verify is None:
            return _NOBODY
        row, document = rows[0], documents[0]
        values: dict[str, Any] = {
            "business_date": self._try.space.business_date,
            "cycle": self._try.space.cycle,
            "idempotency_key": row.batch_id or row.idempotency_key,
            "attempt": row.attempt,
            "generation": row.generation,
            "document": document.name,
            "payload": document.payload,
        }
        if row.batch_id is not None:
            values |= {"batch_id": row.batch_id, "documents": [each.payload for each in documents]}
        try:
            answer = self._try.verify.call(values)
        except Exception as error:
            log.exception("verify raised for %s; that is no answer, the key stays in doubt", document.name)
            return _Answer(None, f"raised {described(error)}", raised=True)
        if answer is None:
            return _Answer(None, "could not tell")
        if isinstance(answer, bool):
            return _Answer(answer, "answered")
        log.error("verify must answer True, False or None, not %.80r; the key stays in doubt", answer)
        return _Answer(None, f"answered with {type(answer).__name__}, not True, False or None", again=False)

    def _remembered(self, rows: Sequence[LedgerRow]) -> bool:
        """Return whether a repetition would meet a receiver that recognises it."""
        remembers_s, batches = self._effect.repeats_s, self._try.spec.call_per == "batch"
        ages = [row.first_begun_age_s for row in rows]
        if any((row.batch_id is not None) != batches for row in rows):
            return False  # call_per was changed since: the receiver would get a key that it does not know
        return remembers_s is not None and all(age is not None and age < remembers_s for age in ages)

    def _resolve(
        self, key_date: date, row: LedgerRow, decision: str, actor: str, reason: str, quiet_s: float = 0.0
    ) -> Settled:
        try:
            self._try.settle(
                key_date,
                row.key_hash,
                row.owner_token,
                decision,
                actor=actor,
                reason=reason,
                quiet_s=quiet_s,
                ledger_name=self._try.spec.ledger,
            )
        except ResolutionError as error:
            # Settled by somebody else meanwhile, or the attempt has come back to life: it is read again.
            log.info("%s", error)
            return Settled("changed")
        return Settled("happened" if decision == "happened" else "not_happened")

    def _unsettled(self, document: Document, row: LedgerRow, said: str, new: str) -> InDoubtUnsettled:
        return InDoubtUnsettled(
            f"{self._named(document, row)} is in doubt since attempt {row.attempt} ({row.done_by}), and verify {said}.{new} "
            f"Another try asks again. To settle it before that: {self._command(row)} (or --did-not-happen)"
        )

    def _held(self, document: Document, row: LedgerRow, answer: _Answer) -> InDoubt:
        said = "" if answer.said == _NOBODY.said else f" verify {answer.said}."
        why = f" ({row.error})" if row.error else ""
        return InDoubt(
            f"{self._named(document, row)} is in doubt since attempt {row.attempt} ({row.done_by}){why}: its "
            f"effect may or may not have happened, and is not repeated.{said}{answer.new} Ask the receiver about "
            f"{asked_by(row.idempotency_key, row.batch_id)}, then: {self._command(row)} (or --did-not-happen)"
        )

    def _named(self, document: Document, row: LedgerRow) -> str:
        name = f"batch {row.batch_id} (with {document.name})" if row.batch_id is not None else document.name
        return self._try.space.describe(name)

    def _command(self, row: LedgerRow) -> str:
        return resolve_command(row.key_hash, ledger=self._try.spec.ledger)


class FreshDoubts:
    """Keeps units that ended in doubt out of the report until everything else is done; then ``verify`` is asked."""

    def __init__(self, attempt: Attempt, settler: DoubtSettler) -> None:
        self._try = attempt
        self._settler = settler
        self._kept: list[UnitResult] = []

    def keep(self, result: UnitResult) -> None:
        """Take a unit that ended in doubt."""
        self._kept.append(result)

    def report_as_they_are(self) -> None:
        """Report what is kept, without asking anybody: the task ends at once."""
        for result in self._kept:
            self._in_doubt(result.unit, result.error)
        self._kept.clear()

    def settle(self) -> None:
        """Ask ``verify``, and report what became of each."""
        while self._kept:
            result = self._kept.pop(0)
            try:
                self._settle(result)
            except LedgerError as error:
                log.warning("%s stays in doubt, the ledger does not answer: %s", result.unit.name, error)
                self._in_doubt(result.unit, result.error)

    def _settle(self, result: UnitResult) -> None:
        unit = result.unit
        rows = self._try.ledger.read(self._try.space.key_date, unit.hashes)
        mine = [rows[key] for key in unit.hashes if key in rows and rows[key].state is State.IN_DOUBT]
        if len(mine) != len(unit.hashes) or any(row.owner_token != unit.own.token for row in mine):
            self._in_doubt(unit, result.error)  # it could not be written down, or somebody was faster
            return
        settled = self._settler.settle(self._try.space.key_date, unit.documents, mine)
        if settled.verdict == "happened":
            for document in unit.documents:
                self._try.report.add(Outcome.REPLAYED, document.name, "verify: this attempt had done it")
        elif settled.verdict == "not_happened":
            error = NotExecuted(
                f"{self._try.space.describe(unit.name)}: verify answered that it did not happen ({result.error}). "
                "Another try executes it."
            )
            error.__cause__ = result.error
            for document in unit.documents:
                self._try.report.add_error(Outcome.FAILED, document.name, error)
        elif settled.error is None:
            self._in_doubt(unit, result.error)
        else:
            self._try.report.add_doubt(Doubt(unit.documents, mine[0], settled.verify))
            self._in_doubt(unit, _caused(settled.error, result.error))

    def _in_doubt(self, unit: Unit, error: BaseException | None) -> None:
        for document in unit.documents:
            if error is not None:
                self._try.report.add_error(Outcome.IN_DOUBT, document.name, error)


class AfterFailOver:
    """What an open fail-over means for the claims of one task try.

    Nothing where the effect is in the ledger's own database, which lost the effect and its key together, and nothing in
    observe mode, which holds nothing back.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._try = attempt
        self._fail_over: FailOver | None = None
        self.newest: int | None = None
        """The open fail-over that the claims of this try know of, see :meth:`Ledger.claim`."""
        if attempt.spec.database or attempt.spec.mode == "observe":
            return
        self._fail_over = attempt.ledger.open_fail_over()
        self.newest = self._fail_over.id if self._fail_over else 0
        self._forgets = self._fail_over is not None and self._fail_over.may_forget(
            attempt.identity, compare_runs=attempt.compares_runs
        )
        if self._fail_over is not None:
            log.warning("%s: %s", attempt.space.operation, self._fail_over.why)

    def unsure(self, new: Sequence[Document], known: Sequence[Document]) -> set[str]:
        """Return the keys that may have been executed. Asked before the claim, which makes them look new."""
        if self._fail_over is None:
            return set()
        forgotten = {document.key_hash for document in new} if self._forgets else set()
        hashes = [document.key_hash for document in known]
        return forgotten | self._try.ledger.not_trusted(self._try.space.key_date, hashes)

    def put_in_doubt(self, unit: Unit) -> set[str]:
        """Mark a claimed unit as in doubt since the fail-over, and return the keys that are no longer ours."""
        if self._fail_over is None:
            return set()
        return self._try.ledger.doubt_since(unit.own, unit.hashes, unit.batch_id, self._fail_over)


def _changes(documents: Sequence[Document], rows: Sequence[LedgerRow]) -> list[list[str] | None]:
    return [changed_content(row, document.fingerprint) for document, row in zip(documents, rows, strict=True)]


def _caused(error: GuardError, cause: BaseException | None) -> GuardError:
    """Return an error that shows what the callable raised as its cause."""
    error.__cause__ = cause.__cause__ if isinstance(cause, GuardError) else cause
    return error
