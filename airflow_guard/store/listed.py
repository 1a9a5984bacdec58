"""What tries list: ``guard_listed``, and what earlier tries of a run have left undone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.states import State
from airflow_guard.store.situations import constant

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import date

    from airflow_guard.core.documents import Document
    from airflow_guard.core.guard import TaskIdentity
    from airflow_guard.core.keys import KeySpace
    from airflow_guard.store.database import LedgerDatabase

_CHUNK = 500
_ATTENTION = ("in_doubt", "rejected", "failed", "follow_up")


@dataclass(frozen=True, slots=True)
class Left:
    """A document that an earlier try of a run listed, and that it did not finish.

    :param document: ``None``: the run as a whole.
    :param why: the error that held it back, where nobody claimed it for the try.
    :param noted: whether it stands in ``guard_listed``.
    """

    key_date: date
    key_hash: str
    document: str | None
    why: str | None = None
    noted: bool = False


class ListedDocuments:
    """Reads and writes ``guard_listed``: documents that a try has listed and not claimed, one row each."""

    def __init__(self, database: LedgerDatabase) -> None:
        self._db = database
        self._listed = database.tables.listed

    def tries(self, identity: TaskIdentity, until: int, length: int | None = None) -> list[int]:
        """Return the tries of this task in this run up to one of them, oldest first; observing ones left nothing.

        Of other instances of a mapped task: those of an instance that has ended well after several tries, and of one that
        the task does not have any more, since its mapping is shorter now, or it is not mapped.

        :param length: how many instances it has now; ``None``: it is not mapped, or that is not known.
        """
        run = self._db.tables.task_run
        found = (
            sa.select(run.c.id, run.c.map_index, run.c.outcome)
            .where(
                run.c.run_id == identity.run_id,
                run.c.dag_id == identity.dag_id,
                run.c.task_id == identity.task_id,
                run.c.id <= until,
                run.c.mode == "enforce",
            )
            .order_by(run.c.id)
        )
        of_instance: dict[int, list[Any]] = {}
        for row in self._db.read(lambda c: c.execute(found).all()):
            of_instance.setdefault(row.map_index, []).append(row)
        return sorted(
            row.id
            for index, rows in of_instance.items()
            if index == identity.map_index
            or (len(rows) > 1 and rows[-1].outcome == "success")
            or _is_gone(index, identity.map_index, length)
            for row in rows
        )

    def left(self, space: KeySpace, tries: Sequence[int]) -> dict[str, Left]:
        """Return what tries have left undone, by the hash that the document has in a key space."""
        hasher = space.hasher()
        found = {}
        for row in self._db.read(lambda connection: self._keys(connection, space, tries)):
            found[row.key_hash] = Left(row.key_date, row.key_hash, row.document)
        noted = sa.select(self._listed).where(self._listed.c.task_run_id.in_(tries))
        for row in self._db.read(lambda c: c.execute(noted.order_by(self._listed.c.task_run_id)).all()):
            # Its key may have been moved by a rename since.
            key_hash = row.key_hash if row.why == "DocumentError" else hasher.key_hash(row.document)
            found[key_hash] = Left(row.key_date, key_hash, row.document, row.why, noted=True)
        return found

    def _keys(self, connection: sa.Connection, space: KeySpace, tries: Sequence[int]) -> list[Any]:
        """Return keys that tries have left: by the index of what wants attention, and by the leases that are there."""
        e, lease = self._db.tables.execution, self._db.tables.lease
        mine = (
            e.c.task_run_id.in_(tries),
            e.c.key_namespace == space.key_namespace,
            e.c.operation == space.operation,
        )
        columns = (e.c.key_date, e.c.key_hash, e.c.document)
        wanted = sa.select(*columns).where(*mine, e.c.attention.in_([constant(word) for word in _ATTENTION]))
        held = (
            sa.select(*columns)
            .select_from(lease.join(e, e.c.task_run_id == lease.c.task_run_id))
            .where(*mine, lease.c.task_run_id.in_(tries), e.c.state == constant(State.IN_PROGRESS))
        )
        return [*connection.execute(wanted).all(), *connection.execute(held).all()]

    def note(
        self,
        task_run_id: int,
        key_date: date,
        documents: Iterable[Document],
        whys: dict[str, str] | None = None,
    ) -> None:
        """Remember documents that a try has listed and not claimed; one that stands there gets the new reason."""
        whys = whys or {}
        rows = [
            {
                "task_run_id": task_run_id,
                "key_date": key_date,
                "key_hash": each.key_hash,
                "document": each.name,
                "why": whys.get(each.key_hash),
            }
            for each in documents
        ]
        self._write(task_run_id, rows)

    def note_refused(self, task_run_id: int, key_date: date, items: Iterable[tuple[str, str]]) -> None:
        """Remember what was listed and cannot be a key, by a hash and as it was shown."""
        self._write(
            task_run_id,
            [
                {
                    "task_run_id": task_run_id,
                    "key_date": key_date,
                    "key_hash": key,
                    "document": text,
                    "why": "DocumentError",
                }
                for key, text in items
            ],
        )

    def _write(self, task_run_id: int, rows: Sequence[dict[str, Any]]) -> None:
        rows = list({row["key_hash"]: row for row in rows}.values())
        t = self._listed

        def work(connection: sa.Connection) -> None:
            for start in range(0, len(rows), _CHUNK):
                part = rows[start : start + _CHUNK]
                hashes = [row["key_hash"] for row in part]
                connection.execute(
                    sa.delete(t).where(t.c.task_run_id == task_run_id, t.c.key_hash.in_(hashes))
                )
                connection.execute(sa.insert(t), part)

        if rows:
            self._db.write(work)

    def forget(self, tries: Sequence[int], hashes: Iterable[str] | None = None) -> None:
        """Remove what tries have noted: it is listed again, or all of it is done.

        :param hashes: only these; ``None``: all.
        """
        t = self._listed
        wanted = None if hashes is None else sorted(set(hashes))

        def work(connection: sa.Connection) -> None:
            mine = t.c.task_run_id.in_(tries)
            if wanted is None:
                connection.execute(sa.delete(t).where(mine))
            for start in range(0, len(wanted or ()), _CHUNK):
                part = (wanted or [])[start : start + _CHUNK]
                connection.execute(sa.delete(t).where(mine, t.c.key_hash.in_(part)))

        if tries and (wanted is None or wanted):
            self._db.write(work)

    def forget_claimed(self, task_run_id: int) -> None:
        """Remove what a try has noted in advance and claimed since: from then on its key tells of it."""
        t, e = self._listed, self._db.tables.execution
        claimed = sa.exists().where(e.c.key_date == t.c.key_date, e.c.key_hash == t.c.key_hash)
        gone = sa.delete(t).where(t.c.task_run_id == task_run_id, t.c.why.is_(None), claimed)
        self._db.write(lambda connection: connection.execute(gone))


def _is_gone(index: int, own: int, length: int | None) -> bool:
    """Return whether an instance of an earlier try is none that the task has now."""
    if own < 0 or index < 0:
        return index != own
    return length is not None and index >= length
