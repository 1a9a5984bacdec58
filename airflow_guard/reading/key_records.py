"""Keys and task tries as people read them: a row of a list, and a whole life."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_guard.core.decisions import Situation, decisions_of, explanation, situation_of
from airflow_guard.core.keys import DATELESS
from airflow_guard.store.changes import describe
from airflow_guard.store.rows import ledger_row
from airflow_guard.store.task_runs import aware

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date, datetime

    from airflow_guard.core.decisions import Decision
    from airflow_guard.core.guard import LedgerRow, TaskIdentity


# -- Task tries: who asked the ledger, when, and with what outcome -------------------------------------------


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


# -- Keys: a row of a list, and a whole life -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyRow:
    """One key with all that the ledger knows of it now.

    :param dag_id: the DAG of its last attempt; for adopted keys the key namespace.
    :param text: the key as a person reads it.
    :param row: state, attempt, owner token, document, result, error, who did it first and last.
    """

    key_date: date
    key_namespace: str
    operation: str
    business_date: date
    cycle: str
    text: str
    row: LedgerRow
    claimed_at: datetime | None
    begun_at: datetime | None
    finished_at: datetime | None
    dag_id: str = ""

    @property
    def key_hash(self) -> str:
        """32 hex characters; with ``key_date`` it names the key."""
        return self.row.key_hash

    @property
    def document(self) -> str | None:
        """The normalised document, ``None``: the run as a whole."""
        return self.row.document

    @property
    def once_per(self) -> str:
        """``date`` or ``document``: whether the key holds once per date or once per document."""
        return "document" if self.key_date == DATELESS else "date"

    @property
    def situation(self) -> Situation:
        """Where the key stands, with what the database's clock says of its lease."""
        return situation_of(self.row)

    @property
    def decisions(self) -> Sequence[Decision]:
        """What a person may decide about it now."""
        return decisions_of(self.row)

    @property
    def version(self) -> str:
        """What a person looks at: the attempt and, where other content was listed since, that content."""
        return self.row.owner_token + (f".{self.row.content}" if self.row.content else "")

    @property
    def explanation(self) -> str:
        """What its situation means and what to do, in one or two sentences."""
        return explanation(self.situation)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One entry of the audit.

    :param by: the task try that it is about, if any.
    """

    at: datetime | None
    kind: str
    actor: str
    reason: str
    from_state: str | None
    to_state: str | None
    attempt: int | None
    key_text: str
    by: TaskIdentity | None


@dataclass(frozen=True, slots=True)
class RerunRow:
    """One authorisation to execute a key once more, used or not.

    :param generation: the one that it gives the key.
    :param open: whether a task may still use it (database clock).
    :param used_by: the task try that used it.
    :param previous_run: the task try of the execution before.
    :param reversal: ``none``, ``begun`` (in doubt while nobody is at work) or ``done``.
    """

    generation: int
    actor: str
    reason: str
    without_reversal: bool
    authorised_at: datetime
    expires_at: datetime
    open: bool
    used_at: datetime | None
    used_by: TaskIdentity | None
    previous_result: str | None
    previous_idempotency_key: str | None
    previous_run: TaskIdentity | None
    reversal: str


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One moment of a key's life.

    :param kind: a kind of the audit (``doubt``, ``resolve_happened``, ``rerun`` …), or ``first_claimed``, ``claimed``,
        ``begun``, ``finished``, ``renamed``, ``asked_again``: another try of the same operation and date that found
        keys done, or was kept from executing.
    :param actor: a user's name, or the task try; empty where ``by`` says it.
    :param by: the task try, where it is known.
    """

    at: datetime
    kind: str
    actor: str = ""
    reason: str = ""
    from_state: str | None = None
    to_state: str | None = None
    attempt: int | None = None
    by: TaskIdentity | None = None


@dataclass(frozen=True, slots=True)
class Renaming:
    """A rename that led to the name that a key has now; ``old`` and ``new`` are key namespace and operation."""

    old: tuple[str, str]
    new: tuple[str, str]
    at: datetime | None
    actor: str
    reason: str


@dataclass(frozen=True, slots=True)
class KeyLife:
    """The whole life of one key.

    :param timeline: all that is known, oldest first: what the row tells, ``events``, ``renames``, duplicates.
    :param events: the audit alone, also that of its names before a rename.
    :param tries: the newest tries of its operation, date and cycle that the caller may read, newest first.
    :param reruns: every authorisation, oldest first.
    :param batch_documents: how many keys its batch has; 0 without one.
    :param reversal_in_doubt: whether somebody has to say what became of the reversal of the effect before.
    """

    key: KeyRow
    timeline: Sequence[TimelineEntry]
    events: Sequence[AuditEntry]
    renames: Sequence[Renaming]
    tries: Sequence[TryRow]
    reruns: Sequence[RerunRow]
    batch_documents: int = 0
    reversal_in_doubt: bool = False


def key_row(row: Any, people: Mapping[int, TaskIdentity]) -> KeyRow:
    """Return a key as people look at it, from a row of ``Statements.read``.

    :param people: who the task tries were, by id.
    """
    own = people.get(row.task_run_id)
    return KeyRow(
        row.key_date,
        row.key_namespace,
        row.operation,
        row.business_date,
        row.cycle,
        describe(row),
        ledger_row(row, people),
        aware(row.claimed_at),
        aware(row.begun_at),
        aware(row.finished_at),
        own.dag_id if own else row.key_namespace,
    )
