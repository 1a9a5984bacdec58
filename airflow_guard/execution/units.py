"""A unit of work: what one call of the callable does, what must be reversed before it, and what became of it in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_guard.core.commands import rerun_command, resolve_command, show_command
from airflow_guard.core.errors import InDoubt, InDoubtUnsettled, OwnershipLost, ResultError
from airflow_guard.core.keys import reversal_key
from airflow_guard.core.reruns import REVERSAL_OPTIONS as OPTIONS
from airflow_guard.core.reruns import Rerun, Reversal, check_reversal, lost
from airflow_guard.core.texts import described
from airflow_guard.store.changes import BEGIN

if TYPE_CHECKING:
    import sqlalchemy as sa

    from airflow_guard.core.documents import Document
    from airflow_guard.core.keys import KeySpace
    from airflow_guard.core.report import Outcome
    from airflow_guard.execution.attempt import Attempt
    from airflow_guard.execution.writer import Mark
    from airflow_guard.store.changes import Ownership
    from airflow_guard.store.claims import Claimed
    from airflow_guard.store.port import LedgerPort


@dataclass(frozen=True, slots=True)
class Unit:
    """Claimed documents that one call executes.

    :param batch_id: ``None`` with ``call_per="document"``.
    :param ledger: the connection that commands in messages must name, ``None`` for the configured one.
    :param next_try: what the next try does by itself if the effect ends in doubt, ``None`` if it waits for a person.
    :param reruns: what people have authorised, by key hash, for a unit of a later generation.
    """

    documents: Sequence[Document]
    claims: Sequence[Claimed]
    own: Ownership
    space: KeySpace
    batch_id: str | None = None
    ledger: str | None = None
    reruns: Mapping[str, Rerun] = field(default_factory=dict)
    next_try: str | None = None

    @property
    def generation(self) -> int:
        """The generation of its keys: those of one unit have the same."""
        return self.claims[0].generation

    @property
    def previous_keys(self) -> Any:
        """Under which key the receiver knows the first effect; a list for a batch, ``None`` in the first generation."""
        return self._previous("previous_idempotency_key")

    def _previous(self, name: str) -> Any:
        if not self.reruns:
            return None
        values = [getattr(self.reruns.get(key_hash), name, None) for key_hash in self.hashes]
        return values[0] if self.batch_id is None else values

    @property
    def receiver_key(self) -> str:
        """What the receiver was given to recognise the effect, in words."""
        return asked_by(self.claims[0].idempotency_key, self.batch_id)

    @property
    def hashes(self) -> list[str]:
        """The keys, in the order of the documents."""
        return [claim.key_hash for claim in self.claims]

    @property
    def name(self) -> str | None:
        """How messages call the unit."""
        if self.batch_id is None:
            return self.documents[0].name
        return f"batch {self.batch_id} ({len(self.documents)} documents from {self.documents[0].name})"

    @property
    def text(self) -> str:
        """The unit with its key space, as a person reads it."""
        return self.space.describe(self.name)

    @property
    def task_run_id(self) -> int:
        """Of the try that has claimed it."""
        return self.own.task_run_id

    @property
    def position(self) -> int:
        """Where its first document is in the listing."""
        return min(document.position for document in self.documents)

    def values(self) -> dict[str, Any]:
        """Return what the callable may take by name, without ``connection`` and ``effect``."""
        first = self.claims[0]
        common = {
            "business_date": self.space.business_date,
            "cycle": self.space.cycle,
            "attempt": max(claim.attempt for claim in self.claims),
            "generation": first.generation,
            "previous_result": self._previous("result"),
            "previous_idempotency_key": self.previous_keys,
        }
        if self.batch_id is None:
            document = self.documents[0]
            return common | {
                "document": document.name,
                "payload": document.payload,
                "idempotency_key": first.idempotency_key,
            }
        return common | {
            "documents": [document.payload for document in self.documents],
            "batch_id": self.batch_id,
            "idempotency_key": self.batch_id,
        }


@dataclass(slots=True)
class UnitResult:
    """What became of a unit.

    :param error: why it did not come through; or, with ``EXECUTED``, why its result is not stored.
    :param text: the stored result.
    :param pending: whether the completion is written, where that is not known yet.
    :param fatal: what must end the task at once (a timeout, an exit).
    :param unwritten: whether the ledger did not answer, so that this ending is not in it.
    """

    unit: Unit
    outcome: Outcome
    error: BaseException | None = None
    text: str | None = None
    pending: Mark | None = None
    fatal: BaseException | None = None
    unwritten: bool = False


Values = Mapping[str, Any]


def asked_by(idempotency_key: str, batch_id: str | None) -> str:
    """Return what a person asks the receiver about."""
    return f"batch id {batch_id}" if batch_id is not None else f"idempotency key {idempotency_key}"


class FirstEffect:
    """Reverses the first effect of units of a later generation."""

    def __init__(self, attempt: Attempt) -> None:
        self._try = attempt

    def check(self, unit: Unit) -> None:
        """Refuse a unit that cannot be executed again as it was authorised.

        :raises RerunRefused: the task has no ``on_rerun``, or the ledger has lost what was authorised.
        :raises InDoubt: the first effect may or may not have been reversed.
        """
        if unit.generation == 1:
            return
        for document, claim in zip(unit.documents, unit.claims, strict=True):
            text = unit.space.describe(document.name)
            rerun = unit.reruns.get(claim.key_hash)
            if rerun is None:
                raise lost(text, claim.generation)
            has, in_database = self._try.on_rerun is not None, self._try.spec.database
            check_reversal(rerun, text, has_on_rerun=has, in_database=in_database, ledger=unit.ledger)

    def left(self, unit: Unit) -> list[Rerun]:
        """Return the reruns of a unit whose first effect is still to be reversed."""
        return [rerun for rerun in unit.reruns.values() if rerun.to_reverse]

    def reverse(self, unit: Unit, **more: Any) -> None:
        """Call ``on_rerun``.

        :param more: ``connection``, where there is one.
        """
        if self._try.on_rerun is None:  # cannot be: the unit was checked
            raise lost(unit.text, unit.generation)
        values = unit.values()
        again = {"idempotency_key": reversal_key(values["idempotency_key"])}
        with self._try.recorder.call(unit, goes_on=True):
            self._try.on_rerun.call(
                {**values, **again, "previous_idempotency_key": unit.previous_keys, **more}
            )

    # -- outside the ledger's database, each step committed on its own --------------------------------------

    def begin(self, unit: Unit) -> None:
        """Commit that the effect of the unit has begun, and with it its reversal.

        :raises OwnershipLost: another attempt owns a key now; nothing was begun (retryable).
        """

        def work(connection: sa.Connection) -> None:
            gone = self._try.ledger.apply(connection, unit.own, BEGIN, unit.hashes, batch=unit.batch_id)
            if gone:
                raise OwnershipLost(f"{unit.text} is owned by another attempt.")
            self._mark(connection, unit, Reversal.BEGUN)

        self._try.ledger.write(work)

    def done(self, unit: Unit, *, patience_s: float = 0.0) -> None:
        """Commit that the first effect is reversed."""
        self._try.ledger.write(lambda c: self._mark(c, unit, Reversal.DONE), patience_s=patience_s)

    def refuted(self, unit: Unit, *, patience_s: float = 0.0) -> None:
        """Commit that the first effect has certainly not been reversed."""
        self._try.ledger.write(lambda c: self._mark(c, unit, Reversal.NONE), patience_s=patience_s)

    def _mark(self, connection: sa.Connection, unit: Unit, reversal: Reversal) -> None:
        self._try.ledger.mark_reversal(connection, unit.own.key_date, self.left(unit), reversal)


# -- what became of it, in words ------------------------------------------------------------------------------


def in_doubt(unit: Unit, error: BaseException) -> InDoubt:
    """Return the error for a unit whose effect may or may not have happened."""
    ask = f"sk the receiver about {unit.receiver_key}, then: {resolve_command(unit.hashes[0], ledger=unit.ledger)}"
    what = f"{unit.text} is in doubt: {described(error)}. The effect may or may not have happened"
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    failure = (
        InDoubt(f"{what}, and is not repeated. A{ask} (or --did-not-happen){notes}")
        if unit.next_try is None
        else InDoubtUnsettled(
            f"{what}. The next try {unit.next_try}. To settle it before that, a{ask} (or --did-not-happen){notes}"
        )
    )
    failure.__cause__ = error
    return failure


def unstored(unit: Unit, why: str) -> ResultError:
    """Return the error for an effect that is done, and whose result nobody can have.

    :param why: as the ledger notes it.
    """
    return ResultError(
        f"{unit.text}: the effect is done, {why} It is not executed again, also not after a clear: "
        f"the task fails until a person settles it: "
        f"{resolve_command(unit.hashes[0], decision='followed_up', ledger=unit.ledger)}. Then the task returns None for it."
    )


def not_ours(unit: Unit, ledger: LedgerPort) -> OwnershipLost:
    """Return the error for an effect that happened while its key went to another attempt, or was settled."""
    return _lost(unit, ledger, "executed, but", "It may have happened twice; compare with the receiver.")


def ended_elsewhere(unit: Unit, ledger: LedgerPort) -> OwnershipLost:
    """Return the error for an effect that may have happened while its key went to another attempt, or was settled."""
    return _lost(
        unit, ledger, "ended inside its effect, and", "It may have happened twice; compare with the receiver."
    )


def taken(unit: Unit, ledger: LedgerPort) -> OwnershipLost:
    """Return the error for a key that went to another attempt, or was settled, before anything was done here."""
    return _lost(unit, ledger, "nothing was executed here, and", "")


def _lost(unit: Unit, ledger: LedgerPort, here: str, then: str) -> OwnershipLost:
    return OwnershipLost(
        f"{unit.text}: {here} the key is no longer this attempt's: "
        f"{ledger.let_go_by(unit.own, unit.hashes[0])}. {then}{' ' if then else ''}See: "
        f"{show_command(unit.hashes[0], ledger=unit.ledger)}"
    )


def unrecorded(unit: Unit, problem: Exception) -> InDoubt:
    """Return the error for an ending that could not be written."""
    text = (
        f"{unit.text}: how it ended could not be written to the ledger ({problem}). The row shows "
        "it as in doubt once its lease is over."
    )
    failure = (
        InDoubt(text)
        if unit.next_try is None
        else InDoubtUnsettled(f"{text} Then the next try {unit.next_try}.")
    )
    failure.__cause__ = problem
    return failure


def in_doubt_note(unit: Unit) -> str:
    """Return what to add to an error that ``on_rerun`` ended in."""
    yes, no = (rerun_command(unit.hashes[0], option, ledger=unit.ledger) for option in OPTIONS)
    return (
        "it was raised by on_rerun, before the second effect: say that the second did not happen, and of the reversal: "
        f"{yes} or: {no}"
    )
