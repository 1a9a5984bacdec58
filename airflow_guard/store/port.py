"""What one try asks of the ledger: the whole interface, in one place. It touches nothing; ``store/ledger.py`` does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import date

    import sqlalchemy as sa

    from airflow_guard.core.documents import Document
    from airflow_guard.core.fail_over import FailOver
    from airflow_guard.core.guard import LedgerRow, TaskIdentity
    from airflow_guard.core.keys import KeySpace
    from airflow_guard.core.reruns import Rerun, Reversal
    from airflow_guard.core.states import FollowUp
    from airflow_guard.store.business_transaction import BusinessTransaction
    from airflow_guard.store.changes import Change, Ownership
    from airflow_guard.store.claims import Claimed
    from airflow_guard.store.database import AtOnce
    from airflow_guard.store.events import AuditEvent
    from airflow_guard.store.listed import ListedDocuments
    from airflow_guard.store.overlap import Overlap
    from airflow_guard.store.task_runs import TaskRuns

T = TypeVar("T")
Keys: TypeAlias = "Sequence[str]"
"""Hashes of keys, all of one date."""
Lost: TypeAlias = "set[str]"
"""Which of the keys are another attempt's now, or were settled by a person."""


class LedgerPort(Protocol):
    """What one try asks of the ledger. Contention is a value; every write can be repeated, and returns the keys not ours."""

    runs: TaskRuns
    """Tries: opened, leased, closed, and which dates they had."""
    listed: ListedDocuments
    """What tries have listed, and what is left of it."""
    overlap: Overlap
    """What was done under other keys."""

    @property
    def one_writer(self) -> bool: ...
    def close(self) -> None: ...

    # look up
    def lookup(self, key_date: date, hashes: Keys) -> Sequence[Any]: ...
    def read(self, key_date: date, hashes: Keys) -> dict[str, LedgerRow]: ...
    def identities(self, ids: Iterable[int]) -> dict[int, TaskIdentity]: ...
    def members_of_batches(self, batch_ids: Iterable[str]) -> dict[str, dict[str, str | None]]: ...
    def events_of(self, key_date: date, key_hash: str) -> list[Any]: ...
    def reruns_of_claims(self, key_date: date, generations: Mapping[str, int]) -> dict[str, Rerun]: ...
    def names_now(self, key_namespace: str, operation: str) -> tuple[str, str]: ...
    def let_go_by(self, own: Ownership, key_hash: str) -> str: ...
    def open_fail_over(self) -> FailOver | None: ...
    def not_trusted(self, key_date: date, hashes: Keys) -> set[str]: ...

    # claim
    def claim(
        self,
        own: Ownership,
        space: KeySpace,
        new: Sequence[Document],
        known: Sequence[Document],
        *,
        reruns: Sequence[Document] = (),
        fail_over: int | None = None,
        listed: int = 0,
        keep_content: Collection[str] = (),
    ) -> dict[str, Claimed]: ...

    # begin
    def begin(self, own: Ownership, hashes: Keys, batch_id: str | None = None) -> Lost: ...
    def begin_together(self, own: Ownership, hashes: Keys, batch_id: str) -> None: ...

    # complete
    def complete(
        self,
        own: Ownership,
        hashes: Keys,
        outcome: str | None,
        *,
        follow_up: FollowUp = ...,
        why: str | None = None,
        pushed: str | None = None,
        patience_s: float = 0.0,
    ) -> Lost: ...
    def end_follow_up(
        self,
        own: Ownership,
        hashes: Keys,
        *,
        outcome: str | None,
        failed: bool,
        why: str | None,
        patience_s: float,
        pushed: str | None = None,
    ) -> bool: ...
    def transaction(self, own: Ownership, hashes: Keys) -> BusinessTransaction: ...
    def business(self) -> AbstractContextManager[sa.Connection]: ...

    # fail
    def fail(
        self, own: Ownership, hashes: Keys, why: str, *, begun: bool, patience_s: float = 0.0
    ) -> Lost: ...
    def reject(self, own: Ownership, hashes: Keys, why: str, *, patience_s: float = 0.0) -> Lost: ...

    # doubt
    def doubt(self, own: Ownership, hashes: Keys, why: str, *, patience_s: float = 0.0) -> Lost: ...
    def doubt_since(
        self, own: Ownership, hashes: Keys, batch_id: str | None, fail_over: FailOver
    ) -> Lost: ...
    def expire(self, key_date: date, rows: Sequence[LedgerRow], actor: str) -> int: ...

    # several of these in one transaction, or in one round trip
    def write(self, work: Callable[[sa.Connection], T], *, patience_s: float = 0.0) -> T: ...
    def apply(
        self, connection: sa.Connection, own: Ownership, change: Change, hashes: Keys, **values: Any
    ) -> Lost: ...
    def mark_reversal(
        self, connection: sa.Connection, key_date: date, reruns: Iterable[Rerun], reversal: Reversal
    ) -> None: ...
    def complete_each(
        self, connection: sa.Connection, own: Ownership, outcomes: Mapping[str, str]
    ) -> Lost: ...
    def complete_and_begin(
        self, own: Ownership, outcomes: Mapping[str, str], begins: Keys, at_once: AtOnce
    ) -> bool: ...
    def at_once(self) -> AtOnce: ...

    # say
    def offer(self, key_date: date, offers: Sequence[tuple[LedgerRow, str]]) -> None: ...
    def tell(self, *events: AuditEvent) -> None: ...


class Settle(Protocol):
    """Settles a key in doubt, as a person does: :func:`airflow_guard.store.resolution.resolve` of this ledger."""

    def __call__(
        self,
        key_date: date,
        key_hash: str,
        owner_token: str,
        decision: str,
        *,
        actor: str,
        reason: str,
        quiet_s: float = 0.0,
        ledger_name: str | None = None,
    ) -> object: ...
