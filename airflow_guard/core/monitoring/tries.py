"""Task tries: who asked the ledger, when, and with what outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import date, datetime

    from airflow_guard.core.guard import TaskIdentity


@dataclass(frozen=True, slots=True)
class TryRow:
    """One task try. ``identity`` says who: DAG, task, run, run type, try, host.

    :param mode: ``enforce`` or ``observe``.
    :param outcome: ``success``, ``failed``, ``skipped``, ``waiting``; ``None``: it has not ended, or died.
    :param alive: whether its lease runs (database clock).
    :param documents: listed by it, each mention. The other counts say what became of them.
    :param replayed: done before, by whomever: the duplicates that did no harm.
    :param own_replays: those of them that an earlier try of the same task and run had done.
    :param repeated: mentions of documents that it had listed already.
    :param blocked: kept from executing: another run's, changed, in doubt and so on.
    :param released: given back untouched, since it stopped.
    :param forgotten: what an earlier try of its run has listed and not finished, and it did not list.
    :param expected: what the listing should bring, in words; empty: nothing was said.
    :param listed_total: what its amounts came to.
    """

    id: int
    identity: TaskIdentity
    deployment: str
    key_namespace: str
    operation: str
    business_date: date
    cycle: str
    mode: str
    started_at: datetime
    ended_at: datetime | None
    outcome: str | None
    alive: bool
    error: str | None
    documents: int
    executed: int
    replayed: int
    blocked: int
    rejected: int
    failed: int
    in_doubt: int
    waiting: int
    own_replays: int = 0
    repeated: int = 0
    released: int = 0
    forgotten: int = 0
    expected: str = ""
    listed_total: str | None = None

    @property
    def empty(self) -> bool:
        """Whether it ended well without a document."""
        return self.outcome == "success" and not self.documents

    @property
    def dag_id(self) -> str:
        """The DAG that it belongs to."""
        return self.identity.dag_id

    @property
    def died(self) -> bool:
        """Whether it neither ended nor lives."""
        return self.ended_at is None and not self.alive
