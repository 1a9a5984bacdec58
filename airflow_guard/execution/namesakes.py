"""Whether another DAG has done the same documents under the same operation: this one may be its copy."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_guard.core.commands import rename_command
from airflow_guard.core.states import State
from airflow_guard.store.events import AuditEvent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_guard.core.documents import Document
    from airflow_guard.store.ledger import Ledger
    from airflow_guard.store.task_runs import TaskTry

log = logging.getLogger(__name__)
_NAMED = 5
_DONE = frozenset({State.COMPLETED, State.IN_PROGRESS, State.IN_DOUBT, State.REJECTED, State.DROPPED})


class Namesakes:
    """Looks, in the first run of an operation, for the same documents under the key namespaces of other DAGs.

    It warns, and does not decide: two DAGs may rightly call their operations alike.

    :param task_run_id: of the try, for the events.
    :param ledger_name: connection that the command in the message must name, ``None`` for the configured one.
    """

    def __init__(self, ledger: Ledger, task_try: TaskTry, task_run_id: int, ledger_name: str | None) -> None:
        self._ledger = ledger
        self._try = task_try
        self._task_run_id = task_run_id
        self._ledger_name = ledger_name
        # A namespace of the task's own says already whose keys it shares.
        by_dag = task_try.space.key_namespace == task_try.identity.dag_id
        self._others = ledger.runs.namesakes(task_try.space, task_try.identity) if by_dag else []

    def look(self, documents: Sequence[Document]) -> None:
        """Warn once of documents that another key namespace has done for this operation and date."""
        space = self._try.space
        for namespace in self._others:
            hasher = replace(space, key_namespace=namespace).hasher()
            listed = {hasher.key_hash(document.name): document for document in documents}
            rows = self._ledger.lookup(space.key_date, list(listed))
            done = [listed[row[0]] for row in rows if row[1] in _DONE and row[3] == space.deployment]
            if done:
                self._say(namespace, done)

    def _say(self, namespace: str, done: Sequence[Document]) -> None:
        space = self._try.space
        self._others = [other for other in self._others if other != namespace]
        names = ", ".join("(whole run)" if each.name is None else each.name for each in done[:_NAMED])
        more = f" and {len(done) - _NAMED} more" if len(done) > _NAMED else ""
        before, after = (namespace, space.operation), (space.key_namespace, space.operation)
        said = (
            f"{' / '.join(before)} has done documents that {' / '.join(after)} lists in its first run ({names}{more}). If "
            f"DAG {space.key_namespace!r} is a copy of {namespace!r}, or is {namespace!r} under a new name, this does the "
            f"work twice: set key_namespace={namespace!r}, or move the history: "
            f"{rename_command(before, after, ledger=self._ledger_name)}. If it is other work, nothing need be done; an "
            "operation of its own would say so."
        )
        log.warning(said)
        actor = self._try.identity.describe()
        events = [
            AuditEvent(
                "namesake", space.describe(each.name), actor, said, space.key_date, each.key_hash,
                task_run_id=self._task_run_id,
            )
            for each in done[:_NAMED]
        ]  # fmt: skip
        self._ledger.write(lambda connection: self._ledger.events.write(connection, *events))
