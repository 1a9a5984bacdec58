"""The shape of a key, and whether a change of it makes finished work look undone (key drift)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_guard.core.commands import rename_command
from airflow_guard.core.errors import KeyDrift
from airflow_guard.store.overlap import done_under

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from airflow_guard.core.documents import Document
    from airflow_guard.core.guard import TaskIdentity
    from airflow_guard.core.keys import KeySpace
    from airflow_guard.store.ledger import Ledger


def key_shape(space: KeySpace, *, documents: bool) -> str:
    """Return what keys of a task look like, without the values that differ from run to run.

    :param documents: whether the task names documents, or stands for the run as a whole.
    """
    parts = hashlib.sha256(f"{len(space.key_namespace)}:{space.key_namespace}{space.operation}".encode())
    cycle = "cycle" if space.cycle else "-"
    return f"{parts.hexdigest()[:16]}/{space.once_per}/{cycle}/{'documents' if documents else 'whole'}"


@dataclass(frozen=True)
class _Candidate:
    task_id: str
    key_namespace: str
    operation: str
    shape: str

    @property
    def whole(self) -> bool:
        return self.shape.endswith("/whole")


class DriftCheck:
    """Compares a task's documents with what this task, or a task that the DAG no longer has, did before.

    :param shape: of this task's keys.
    :param dag_task_ids: the tasks that the DAG has now: another present task with its own operation is no drift.
    :param retired_operations: operations that were other work.
    :param ledger_name: connection that the commands in messages must name, ``None`` for the configured one.
    """

    def __init__(
        self,
        ledger: Ledger,
        space: KeySpace,
        identity: TaskIdentity,
        shape: str,
        *,
        dag_task_ids: Collection[str] = (),
        retired_operations: Collection[str] = (),
        ledger_name: str | None = None,
    ) -> None:
        self._ledger_name = ledger_name
        self._ledger = ledger
        self._space = space
        self._task_id = identity.task_id
        self._whole = shape.endswith("/whole")
        rows = ledger.runs.other_shapes(identity.dag_id, space.business_date, shape)
        self._candidates = {
            _Candidate(row.task_id, row.key_namespace, row.operation, row.key_shape)
            for row in rows
            if (row.task_id == identity.task_id or row.task_id not in dag_task_ids)
            and row.operation not in retired_operations
        }

    def check(self, documents: Sequence[Document]) -> None:
        """Refuse documents that were done under another shape.

        :raises KeyDrift: not retryable; says how to map the old key to the new one.
        """
        for candidate in sorted(self._candidates, key=lambda c: (c.operation, c.task_id, c.shape)):
            if candidate.whole or self._whole:
                names = None
            else:
                names = [document.name for document in documents if document.name is not None]
            done = done_under(
                self._ledger.database,
                candidate.key_namespace,
                candidate.operation,
                self._space.business_date,
                names,
            )
            if done:
                raise KeyDrift(self._message(candidate, done))

    def _message(self, candidate: _Candidate, done: Sequence[str | None]) -> str:
        space = self._space
        names = ", ".join("(whole run)" if name is None else name for name in done)
        old = f"{candidate.key_namespace} / {candidate.operation}"
        if (candidate.key_namespace, candidate.operation) == (space.key_namespace, space.operation):
            change = (
                f"the keys of task {self._task_id!r} have another shape now ({candidate.shape.split('/', 1)[1]} before): "
                "a cycle, documents or once_per was added or taken away. Keep the old shape for this date, or give the "
                "new work an operation of its own and name the old one in retired_operations"
            )
        else:
            before = (candidate.key_namespace, candidate.operation)
            command = rename_command(before, (space.key_namespace, space.operation), ledger=self._ledger_name)
            change = (
                f"task {candidate.task_id!r} did them as {old!r}. If this is the same work, set "
                f"operation={candidate.operation!r} (and key_namespace={candidate.key_namespace!r}), or run: {command}. "
                f"If it is other work, set retired_operations=[{candidate.operation!r}]"
            )
        return (
            f"{space.describe(None)}: documents of {space.business_date} were done before under another key ({names}); "
            f"executing them again could be a second effect. {change}."
        )
