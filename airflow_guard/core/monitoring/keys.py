"""Keys: a row of a list, and a whole life."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_guard.core.decisions import Situation, decisions_of, explanation, situation_of
from airflow_guard.core.keys import DATELESS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date, datetime

    from airflow_guard.core.decisions import Decision
    from airflow_guard.core.guard import LedgerRow, TaskIdentity
    from airflow_guard.core.monitoring.tries import TryRow


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
