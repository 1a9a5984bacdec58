"""Observe mode: the callable is always called; what would have been blocked is recorded, not held back."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_guard.core.content import content_id
from airflow_guard.core.documents import DocumentReader
from airflow_guard.core.errors import ResolutionError
from airflow_guard.core.guard import LedgerRow, Verdict, changed_content, judge_state
from airflow_guard.core.keys import batch_id_of
from airflow_guard.core.report import Outcome
from airflow_guard.execution.spec import CLAIM_CHUNK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_guard.core.documents import Document
    from airflow_guard.core.errors import DocumentError
    from airflow_guard.execution.attempt import Attempt, Listing

log = logging.getLogger(__name__)
_NO_LEDGER = "the ledger is not there"

Observed: TypeAlias = "tuple[Document, LedgerRow | None, str]"
"""A document, its row, and why enforce mode would have held it back."""


class Observer:
    """Calls the callable for documents that enforce mode would have held back.

    The ledger's rows of these keys stay as they are: what is recorded is that the task would have been blocked.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._try = attempt

    def run(self, observed: Sequence[Observed]) -> None:
        """Call the callable for each document, or for each batch."""
        size = self._try.spec.batch_size if self._try.spec.call_per == "batch" else 1
        for start in range(0, len(observed), size):
            self._call(observed[start : start + size])

    def _call(self, members: Sequence[Observed]) -> None:
        try:
            value = self._invoke(self._values(members))
        except Exception as error:
            for document, _, _ in members:
                self._try.report.add_error(Outcome.FAILED, document.name, error)
            return
        if self._try.report.single:
            self._try.report.set_result(value)
        for document, row, why in members:
            self._try.report.add(Outcome.OBSERVED, document.name, f"observe: would have blocked: {why}")
            if row is not None and changed_content(row, document.fingerprint) is None:
                self._settle(row)

    def _settle(self, row: LedgerRow) -> None:
        """End a doubt that the call has ended: otherwise it would block the first enforced run."""
        if judge_state(row) is not Verdict.DOUBT:
            return
        try:
            self._try.settle(
                self._try.space.key_date,
                row.key_hash,
                row.owner_token,
                "happened",
                actor="observe mode",
                reason="executed again in observe mode, where nothing is held back",
                ledger_name=self._try.spec.ledger,
            )
        except ResolutionError as error:
            log.info("%s", error)

    def _invoke(self, values: dict[str, Any]) -> Any:
        if not self._try.spec.database:
            return self._try.callee.call({**values, "effect": contextlib.nullcontext()})
        with self._try.ledger.business() as connection:
            return self._try.callee.call({**values, "connection": connection})

    def _values(self, members: Sequence[Observed]) -> dict[str, Any]:
        document, row, _ = members[0]
        common: Mapping[str, Any] = {
            "business_date": self._try.space.business_date,
            "cycle": self._try.space.cycle,
            "attempt": row.attempt if row else 1,
            "generation": row.generation if row else 1,
        }
        if self._try.spec.call_per == "document":
            return {
                **common,
                "document": document.name,
                "payload": document.payload,
                "idempotency_key": _key(document, row),
            }
        batch_id = batch_id_of(_key(each, known) for each, known, _ in members)
        documents = [each.payload for each, _, _ in members]
        return {**common, "documents": documents, "batch_id": batch_id, "idempotency_key": batch_id}


def _key(document: Document, row: LedgerRow | None) -> str:
    """Return the idempotency key of a call: content that is new never travels under an old one."""
    if row is None:
        return document.idempotency_key
    if changed_content(row, document.fingerprint) is None:
        return row.idempotency_key
    content = content_id(document.fingerprint)
    return document.hasher.idempotency_key(document.key_hash, row.generation, content)


def run_without_ledger(attempt: Attempt, documents: Listing | None, one: Any) -> None:
    """Call the callable for all of a listing: observe mode promises that it runs as if the guard were not there."""
    space, spec, observer = attempt.space, attempt.spec, Observer(attempt)
    reader = DocumentReader(space.hasher(), spec.document_key, spec.fingerprint_fields)
    if documents is None:
        observer.run([(reader.whole_run() if one is None else reader.read_one(one), None, _NO_LEDGER)])
        return

    def refuse(item: Any, error: DocumentError) -> None:
        attempt.report.add_error(Outcome.FAILED, reader.called(item), error)

    size = spec.batch_size if spec.call_per == "batch" else CLAIM_CHUNK
    for chunk in reader.chunks(documents(), size, refuse):
        observer.run([(document, None, _NO_LEDGER) for document in chunk])
