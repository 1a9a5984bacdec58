"""Whether a change of what decides a key makes finished work look undone (key drift)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_guard.core.commands import adopt_command, rename_command
from airflow_guard.core.errors import DocumentError, KeyDrift
from airflow_guard.core.keys import KeyShape, normalise_document
from airflow_guard.store.overlap import done_once, done_under

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from airflow_guard.core.documents import Document
    from airflow_guard.core.guard import TaskIdentity
    from airflow_guard.core.keys import KeySpace
    from airflow_guard.store.ledger import Ledger


@dataclass(frozen=True)
class _Candidate:
    task_id: str
    key_namespace: str
    operation: str
    text: str
    shape: KeyShape


class DriftCheck:
    """Compares a task's documents with what this task, or a task that the DAG no longer has, did before.

    :param shape: of this task's keys.
    :param document_key: the field that is the identity of a mapping now.
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
        document_key: str | None = None,
        dag_task_ids: Collection[str] = (),
        retired_operations: Collection[str] = (),
        ledger_name: str | None = None,
    ) -> None:
        self._ledger_name = ledger_name
        self._ledger = ledger
        self._space = space
        self._task_id = identity.task_id
        self._document_key = document_key
        own = KeyShape.parse(shape)
        rows = ledger.runs.other_shapes(identity.dag_id, space.business_date, shape)
        rows += ledger.runs.dateless_shapes(identity.dag_id, shape)
        found = set()
        for row in rows:
            other = KeyShape.parse(row.key_shape)
            mine = row.task_id == identity.task_id or row.task_id not in dag_task_ids
            if own is None or other is None or not mine or own.same_keys(other):
                continue
            if row.operation not in retired_operations:
                found.add(_Candidate(row.task_id, row.key_namespace, row.operation, row.key_shape, other))
        self._own = own
        self._candidates = sorted(found, key=lambda each: (each.operation, each.task_id, each.text))

    def check(self, documents: Sequence[Document]) -> None:
        """Refuse documents that would be executed, and were done under another shape.

        :raises KeyDrift: not retryable; says how to map the old key to the new one.
        """
        if not self._candidates:
            return
        rows = self._ledger.lookup(self._space.key_date, [document.key_hash for document in documents])
        known = {row[0] for row in rows}
        unknown = [document for document in documents if document.key_hash not in known]
        for candidate in self._candidates if unknown else ():
            done = self._done(candidate, unknown, none_known=not known)
            if done:
                raise KeyDrift(self._message(candidate, done))

    def _done(
        self, candidate: _Candidate, unknown: Sequence[Document], *, none_known: bool
    ) -> list[str | None]:
        old, own = candidate.shape, self._own
        names = [document.name for document in unknown if document.name is not None]
        if own is not None and old.same_names_and_scope(own):
            before = [name for document in unknown if (name := _name_by(old.field, document)) is not None]
            if before:
                return self._done_by(candidate, before)
            # Nothing says what these were called. If none of them is known, and some were done, they may be the same.
            return self._under(candidate, None) if none_known else []
        if old.whole or not names:
            return self._under(candidate, None)
        found = self._done_by(candidate, names)
        if found or old.field is None or old.field == self._document_key:
            return found
        return self._done_by(candidate, [name for each in unknown if (name := _name_by(old.field, each))])

    def _done_by(self, candidate: _Candidate, names: Sequence[str]) -> list[str | None]:
        if candidate.shape.once_per == "date":
            return self._under(candidate, names)
        space = replace(
            self._space, key_namespace=candidate.key_namespace, operation=candidate.operation, cycle="",
            once_per="document",
        )  # fmt: skip
        return done_once(self._ledger.database, space, self._by(candidate), names)

    def _under(self, candidate: _Candidate, names: Sequence[str] | None) -> list[str | None]:
        date = self._space.business_date
        key = (candidate.key_namespace, candidate.operation)
        return done_under(self._ledger.database, key, date, names, self._by(candidate))

    def _by(self, candidate: _Candidate) -> str | None:
        """Return the shape that tells the old work from the new where both have the same names."""
        own = self._own
        return candidate.text if own is not None and candidate.shape.same_names_and_scope(own) else None

    def _message(self, candidate: _Candidate, done: Sequence[str | None]) -> str:
        space, own = self._space, self._own
        names = ", ".join("(whole run)" if name is None else name for name in done)
        if own is not None and candidate.shape.same_names_and_scope(own):
            change = self._other_identity(candidate)
        elif (candidate.key_namespace, candidate.operation) == (space.key_namespace, space.operation):
            now = own.describe() if own is not None else ""
            change = (
                f"The keys of task {self._task_id!r} have another shape now ({now}; before: {candidate.shape.describe()}): "
                "a cycle or partition, documents or once_per was added or taken away. Keep the old shape for this date. "
                f"{self._other_work()}"
            )
        else:
            before, after = (
                (candidate.key_namespace, candidate.operation),
                (space.key_namespace, space.operation),
            )
            change = (
                f"Task {candidate.task_id!r} did them as {' / '.join(before)!r}. If this is the same work, set "
                f"operation={candidate.operation!r} (and key_namespace={candidate.key_namespace!r}), or run: "
                f"{rename_command(before, after, ledger=self._ledger_name)}. If it is other work, set "
                f"retired_operations=[{candidate.operation!r}]"
            )
        return (
            f"{space.describe(None)}: documents of {space.business_date} were done before under another key ({names}); "
            f"executing them again could be a second effect. {change}."
        )

    def _other_identity(self, candidate: _Candidate) -> str:
        old, space = candidate.shape.field, self._space
        now = f"document_key={self._document_key!r}" if self._document_key else "no document_key"
        back = f"document_key={old!r}" if old else "the identities of then"
        command = adopt_command(space.key_namespace, space.operation, ledger=self._ledger_name)
        if space.once_per == "document":
            command += " --once-per document"
        return (
            f"They were identified by {back}, now it is {now}. Put {back} back. If the new identity is to stay, list what "
            f"was done by it in done.csv (business_date,document), and record it: {command}. {self._other_work()}"
        )

    def _other_work(self) -> str:
        return (
            'If it is other work, give it an operation of its own and name the old one: operation="…", '
            f"retired_operations=[{self._space.operation!r}]"
        )


def _name_by(field: str | None, document: Document) -> str | None:
    """Return what a document was called when another field was its identity, ``None`` if nothing says so."""
    if field is None or not isinstance(document.payload, Mapping) or field not in document.payload:
        return None
    try:
        return normalise_document(document.payload[field])
    except DocumentError:
        return None
