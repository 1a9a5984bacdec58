"""What is done about a key in doubt: ask ``verify``, repeat within the receiver's memory, or leave it to a person."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from airflow_guard.core.commands import resolve_command
from airflow_guard.core.documents import Document
from airflow_guard.core.effects import External
from airflow_guard.core.errors import InDoubt, InDoubtUnsettled, ResolutionError
from airflow_guard.core.guard import LedgerRow
from airflow_guard.core.keys import KeySpace
from airflow_guard.execution.spec import Callee, GuardSpec
from airflow_guard.store import resolution
from airflow_guard.store.ledger import Ledger

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settled:
    """How a doubt ended: ``happened``, ``not_happened`` (claim it), ``changed`` (read again), or ``error``."""

    verdict: str
    error: InDoubt | None = None


class DoubtSettler:
    """Settles keys in doubt for one task try.

    :param verify: the callee for ``External.verify``, ``None`` if there is none.
    """

    def __init__(self, ledger: Ledger, spec: GuardSpec, space: KeySpace, verify: Callee | None) -> None:
        self._ledger = ledger
        self._effect = spec.side_effect if isinstance(spec.side_effect, External) else External()
        self._batches = spec.call_per == "batch"
        self._space = space
        self._verify = verify

    def settle(self, key_date: date, documents: Sequence[Document], rows: Sequence[LedgerRow]) -> Settled:
        """Settle one document, or the listed members of one batch.

        :param rows: as they were read; the resolution carries the owner token that was judged, so that an answer
            about an attempt that is no longer the last changes nothing.
        """
        row = rows[0]
        answer = self._ask(documents, rows)
        age_s = min(each.last_sign_age_s for each in rows)
        settle_after = self._effect.settle_after
        if answer is True:
            return self._resolve(key_date, row, "happened", "verify", "verify answered that the effect happened")
        if answer is False and settle_after is not None:
            if age_s >= settle_after.total_seconds():
                reason = f"verify answered that it did not happen, {age_s:.0f} s after the last sign of life"
                return self._resolve(key_date, row, "did_not_happen", "verify", reason)
            return Settled("error", self._unsettled(documents[0], row, settle_after.total_seconds() - age_s))
        if self._effect.in_doubt == "retry" and self._remembered(rows):
            reason = f"repeated with the same idempotency key within receiver_remembers={self._effect.receiver_remembers}"
            return self._resolve(key_date, row, "did_not_happen", "receiver_remembers", reason)
        return Settled("error", self._held(documents[0], row, answered=self._verify is not None))

    def _ask(self, documents: Sequence[Document], rows: Sequence[LedgerRow]) -> bool | None:
        if self._verify is None:
            return None
        row, document = rows[0], documents[0]
        values: dict[str, Any] = {
            "business_date": self._space.business_date,
            "idempotency_key": row.batch_id or row.idempotency_key,
            "attempt": row.attempt,
            "generation": row.generation,
            "document": document.name,
            "payload": document.payload,
        }
        if row.batch_id is not None:
            values |= {"batch_id": row.batch_id, "documents": [each.payload for each in documents]}
        try:
            answer = self._verify.call(values)
        except Exception:
            log.exception("verify failed for %s; that is no answer, the key stays in doubt", document.name)
            return None
        if answer is None or isinstance(answer, bool):
            return answer
        log.error("verify must answer True, False or None, not %r; the key stays in doubt", answer)
        return None

    def _remembered(self, rows: Sequence[LedgerRow]) -> bool:
        remembers = self._effect.receiver_remembers
        ages = [row.first_begun_age_s for row in rows]
        if any((row.batch_id is not None) != self._batches for row in rows):
            return False  # call_per was changed since: the receiver would get a key that it does not know
        return remembers is not None and all(age is not None and age < remembers.total_seconds() for age in ages)

    def _resolve(self, key_date: date, row: LedgerRow, decision: str, actor: str, reason: str) -> Settled:
        try:
            resolution.resolve(
                self._ledger, key_date, row.key_hash, row.owner_token, decision, actor=actor, reason=reason
            )
        except ResolutionError as error:
            # Settled by somebody else meanwhile, or the attempt has come back to life: it is read again.
            log.info("%s", error)
            return Settled("changed")
        return Settled("happened" if decision == "happened" else "not_happened")

    def _unsettled(self, document: Document, row: LedgerRow, left_s: float) -> InDoubtUnsettled:
        return InDoubtUnsettled(
            f"{self._space.describe(document.name)} is in doubt, and verify found no trace of it. That counts only in "
            f"{left_s:.0f} s (settle_after): the call may still be on its way. Attempt {row.attempt} was {row.done_by}. "
            "The next try asks again."
        )

    def _held(self, document: Document, row: LedgerRow, *, answered: bool) -> InDoubt:
        said = " verify could not tell." if answered else ""
        why = f" ({row.error})" if row.error else ""
        return InDoubt(
            f"{self._space.describe(document.name)} is in doubt since attempt {row.attempt} ({row.done_by}){why}: its "
            f"effect may or may not have happened, and is not repeated.{said} Ask the receiver about idempotency key "
            f"{row.idempotency_key}, then: {resolve_command(row.key_hash)} (or --did-not-happen)"
        )
