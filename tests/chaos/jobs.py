"""What child processes run: task tries that stop at checkpoints, where a test kills or pauses them."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any

from airflow_guard.core.report import Outcome
from airflow_guard.execution import run as execution
from tests.chaos.books import Books, Receiver, counts, failure
from tests.processes import checkpoint

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

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


def work(
    url: str, dag_id: str, path: str, documents: Sequence[Any] | None, *, act: str = "pay",
    hold_inside: Collection[str | None] = (), hold_after: Collection[str | None] = (),
    hold_behind: Collection[str | None] = (), waits: bool = False, chunk: int | None = None, **parameters: Any,
) -> dict[str, Any]:  # fmt: skip
    """Run a task try over documents.

    :param act: ``pay`` (outside), ``window`` (outside, in a window), ``send`` (a batch outside), ``post`` (in the
        database).
    :param hold_inside: documents at which it stops in the effect, before anything is sent: checkpoint "inside".
    :param hold_after: those at which it stops after that, before the effect is left: "after".
    :param hold_behind: those at which it stops behind the window: "behind".
    :param waits: whether it looks again, as the operator does, until nothing is held by others.
    :param chunk: keys per claim.
    """
    logging.basicConfig(level=logging.WARNING)
    if chunk is not None:
        execution.CLAIM_CHUNK = chunk
    books = Books(url, dag_id, Receiver(path))

    def stops(document: str | None, key: str | None = None) -> None:
        if document in hold_inside:
            checkpoint("inside")
        books.receiver.call(document, key=key, pid=os.getpid())
        if document in hold_after:
            checkpoint("after")

    def pay(document: str | None, idempotency_key: str) -> dict[str, Any]:
        stops(document, idempotency_key)
        return {"paid": document, "pid": os.getpid()}

    def window(document: str | None, idempotency_key: str, effect: Any) -> dict[str, Any]:
        with effect:
            stops(document, idempotency_key)
        if document in hold_behind:
            checkpoint("behind")
        return {"paid": document, "pid": os.getpid()}

    def send(documents: list[str], batch_id: str) -> dict[str, Any]:
        for document in documents:
            stops(document, batch_id)
        return {"file": batch_id}

    def post(document: str | None, connection: Any) -> dict[str, Any]:
        books.post(document, connection)
        if document in hold_inside:
            checkpoint("inside")
        return {"posted": document, "pid": os.getpid()}

    function = {"pay": pay, "window": window, "send": send, "post": post}[act]
    report = books.run(function, documents, **parameters)
    while waits and report.counts[Outcome.WAITING]:
        checkpoint("waits")
        threading.Event().wait(0.05)
        report = books.run(function, documents, **parameters)
    books.close()
    return outcome(report)
