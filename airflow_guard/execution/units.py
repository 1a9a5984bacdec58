"""A unit of work: what one call of the callable does, one document or one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import date

    from airflow_guard.core.documents import Document
    from airflow_guard.core.keys import KeySpace
    from airflow_guard.core.report import Outcome
    from airflow_guard.core.reruns import Rerun
    from airflow_guard.execution.writer import Mark
    from airflow_guard.store.changes import Ownership
    from airflow_guard.store.ledger import Claimed


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

    def values(self, business_date: date) -> dict[str, Any]:
        """Return what the callable may take by name, without ``connection`` and ``effect``."""
        first = self.claims[0]
        common = {
            "business_date": business_date,
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
