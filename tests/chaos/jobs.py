"""What child processes run: task tries that stop at checkpoints, where a test kills or pauses them."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any

from airflow_guard.core.report import Outcome
from airflow_guard.execution import session as execution
from tests.chaos.books import Books, Receiver, counts, failure
from tests.processes import checkpoint

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from airflow_guard.core.report import Report


def outcome(report: Report) -> dict[str, Any]:
    """Return what a test wants to know of a report, as values that can be sent."""
    error = failure(report)
    return {
        "pid": os.getpid(),
        "counts": counts(report),
        "error": type(error).__name__ if error else None,
        "message": str(error) if error else "",
        "retryable": bool(error and error.retryable),
        "result": report.result,
        "waiting": [(held.document, held.holder) for held in report.waiting],
        "in_doubt": [name for name, each in report.errors if type(each).__name__.startswith("InDoubt")],
    }


class _Acts:
    """The callables, with the places where they stop."""

    def __init__(self, books: Books, holds: Mapping[str, Collection[str | None]]) -> None:
        self._books = books
        self._holds = holds

    def stop(self, label: str, document: str | None) -> None:
        if document in self._holds.get(label, ()):
            checkpoint(label)

    def receive(self, document: str | None, key: str) -> dict[str, Any]:
        self.stop("inside", document)
        self._books.receiver.call(document, key=key, pid=os.getpid())
        self.stop("after", document)
        return {"paid": document, "pid": os.getpid()}

    def pay(self, document: str | None, idempotency_key: str) -> dict[str, Any]:
        return self.receive(document, idempotency_key)

    def window(self, document: str | None, idempotency_key: str, effect: Any) -> dict[str, Any]:
        with effect:
            result = self.receive(document, idempotency_key)
        self.stop("behind", document)
        return result

    def send(self, documents: list[str], batch_id: str) -> dict[str, Any]:
        for document in documents:
            self.receive(document, batch_id)
        return {"file": batch_id}

    def post(self, document: str | None, connection: Any) -> dict[str, Any]:
        self._books.post(document, connection)
        self.stop("inside", document)
        return {"posted": document, "pid": os.getpid()}


def work(
    url: str,
    dag_id: str,
    path: str,
    documents: Sequence[Any] | None,
    *,
    act: str = "pay",
    holds: Mapping[str, Collection[str | None]] | None = None,
    waits: bool = False,
    chunk: int | None = None,
    **parameters: Any,
) -> dict[str, Any]:
    """Run a task try over documents.

    :param act: ``pay`` (outside), ``window`` (outside, in a window), ``send`` (a batch outside), ``post`` (in
        the database).
    :param holds: documents at which it stops, by checkpoint: ``inside`` the effect, before anything is sent;
        ``after`` that, before the effect is left; ``behind`` its window.
    :param waits: whether it looks again, as the operator does, until nothing is held by others; it stops at
        the checkpoint ``waits`` before each look.
    :param chunk: keys per claim.
    """
    logging.basicConfig(level=logging.WARNING)
    if chunk is not None:
        execution.CLAIM_CHUNK = chunk
    books = Books(url, dag_id, Receiver(path))
    function = getattr(_Acts(books, holds or {}), act)
    report = books.run(function, documents, **parameters)
    while waits and report.counts[Outcome.WAITING]:
        checkpoint("waits")
        threading.Event().wait(0.05)
        report = books.run(function, documents, **parameters)
    books.close()
    return outcome(report)
