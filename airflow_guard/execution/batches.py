"""External batches that were begun once: verified and repeated as the same batch, never regrouped."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_guard.core.documents import Document
    from airflow_guard.core.guard import LedgerRow
    from airflow_guard.core.keys import KeySpace
    from airflow_guard.execution.classify import Claimable
    from airflow_guard.store.ledger import Ledger


class BatchGatherer:
    """Collects members of earlier batches from the whole listing: their order may have changed since.

    Holds the payloads of unfinished batches only.
    """

    def __init__(self, ledger: Ledger, space: KeySpace) -> None:
        self._ledger = ledger
        self._space = space
        self._doubted: dict[str, list[tuple[Document, LedgerRow]]] = {}
        self._repeat: dict[str, list[Document]] = {}

    def add(self, claimable: Claimable) -> None:
        """Take the batch members of a chunk."""
        for document, row in claimable.doubted:
            self._doubted.setdefault(row.batch_id or "", []).append((document, row))
        for document, row in claimable.batches:
            self._repeat.setdefault(row.batch_id or "", []).append(document)

    def add_members(self, batch_id: str, documents: Sequence[Document]) -> None:
        """Take members whose doubt was settled as "did not happen"."""
        self._repeat.setdefault(batch_id, []).extend(documents)

    def doubted(self) -> Iterator[list[tuple[Document, LedgerRow]]]:
        """Yield the batches in doubt, each with its listed members in the batch's order."""
        while self._doubted:
            yield in_order(self._doubted.pop(next(iter(self._doubted))))

    def to_repeat(self) -> Iterator[tuple[str, list[Document], list[str | None]]]:
        """Yield batches to repeat: id, listed members, names of members not listed."""
        if not self._repeat:
            return
        members = self._ledger.members_of_batches(self._repeat)
        while self._repeat:
            batch_id, documents = self._repeat.popitem()
            listed = {document.key_hash: document for document in documents}
            missing = [name for key_hash, name in members.get(batch_id, {}).items() if key_hash not in listed]
            yield batch_id, list(listed.values()), missing


def in_order(members: list[tuple[Document, LedgerRow]]) -> list[tuple[Document, LedgerRow]]:
    """Return the members of a batch in the order in which it was begun first: another order is another file."""
    return sorted(members, key=lambda member: member[1].batch_position or 0)
