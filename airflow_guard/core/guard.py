"""The decision: may this attempt have the key, and if not, why not. Pure, so that every case is a unit test."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_guard.core.content import changed_fields, content_id
from airflow_guard.core.states import FollowUp, Phase, State

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

AUTOMATIC_RUN_TYPES = frozenset({"scheduled", "backfill", "asset_triggered"})
"""Runs that nobody asked for at that moment: two of them with one key are never obviously the same work."""


class Verdict(StrEnum):
    """What may be done with a key."""

    CLAIM = "claim"
    TAKE_OVER = "take_over"
    DONE = "done"
    RERUN = "rerun"
    CHANGED = "changed"
    ELSEWHERE = "elsewhere"
    DOUBT = "doubt"
    FOLLOW_UP = "follow_up"
    REJECTED = "rejected"
    DROPPED = "dropped"
    OTHER_RUN = "other_run"
    OTHER_DEPLOYMENT = "other_deployment"
    NOT_GUARDED = "not_guarded"


CLOCKS_DIFFER = timedelta(minutes=1)
"""So much older than a run its code must be: the machines of an Airflow have clocks of their own."""

CLAIMABLE = frozenset({Verdict.CLAIM, Verdict.TAKE_OVER})


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """The task try that asks, or that asked: for people, never part of the key.

    :param run_type: Airflow's word: ``scheduled``, ``manual``, ``backfill``, ``asset_triggered``, …
    :param run_after_at: when the run was due, aware; ``None`` if unknown.
    :param producers: digest of the asset events that set the run off, see ``operators.run_context``; ``None`` if
        none did, or if it is not known who emitted them.
    :param more_tries: whether Airflow will try the task again if this try fails.
    :param code_since_at: since when the code of this try is certainly in place, ``None`` if that cannot be told.
    :param run_began_at: when the run began, ``None`` if it was cleared since, and so began more than once.
    """

    dag_id: str
    task_id: str
    run_id: str
    map_index: int = -1
    try_number: int = 1
    run_type: str = "manual"
    run_after_at: datetime | None = None
    host: str = ""
    pid: int = 0
    started_at: datetime | None = None
    producers: str | None = None
    more_tries: bool = False
    code_since_at: datetime | None = None
    run_began_at: datetime | None = None

    @property
    def guarded_from_its_start(self) -> bool:
        """Whether all tries of the run had the code of this one, which guards the task."""
        since, began = self.code_since_at, self.run_began_at
        return since is not None and began is not None and since + CLOCKS_DIFFER <= began

    @property
    def task(self) -> tuple[str, str, str, int]:
        """Which task of which run, whatever the try."""
        return self.dag_id, self.run_id, self.task_id, self.map_index

    @property
    def automatic(self) -> bool:
        """Whether the run was started by a schedule, a backfill or an asset."""
        return self.run_type in AUTOMATIC_RUN_TYPES

    def describe(self) -> str:
        """Return run, try, time and process as one phrase of a log line."""
        mapped = f" [{self.map_index}]" if self.map_index >= 0 else ""
        since = f" at {self.started_at:%Y-%m-%d %H:%M:%S} UTC" if self.started_at else ""
        where = f" on {self.host} pid {self.pid}" if self.host else ""
        return f"run {self.run_id}, {self.dag_id}.{self.task_id}{mapped} try {self.try_number}{since}{where}"


@dataclass(frozen=True, slots=True)
class OpenRerun:
    """A rerun that a person has authorised, and that nobody has used yet.

    :param without_reversal: whether the first effect stays as it is.
    """

    actor: str
    reason: str
    without_reversal: bool


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One key as the ledger has it, with what the database's clock says about it.

    :param lease_over: whether the lease of the last attempt is over (database clock).
    :param last_sign_age_s: seconds since the attempt was last known to live (database clock).
    :param first_begun_age_s: seconds since the first effect of this generation began, ``None`` if none did.
    :param batch_position: its place in the batch, from 0.
    :param first_run: the task try that claimed the key first; ``None`` for adopted history.
    :param last_run: the task try of the last attempt.
    :param rerun: the rerun that a person has authorised of what is done; ``None``: none, or it is used or over.
    :param fingerprint: of the content that the last attempt was for.
    :param offered: of other content that was listed since, and refused.
    :param accepted: of other contents for which the stored result stands: a person says so.
    """

    key_hash: str
    document: str | None
    state: State
    phase: Phase
    follow_up: FollowUp
    attempt: int
    generation: int
    owner_token: str
    idempotency_key: str
    deployment: str
    lease_over: bool
    last_sign_age_s: float
    first_begun_age_s: float | None = None
    batch_id: str | None = None
    batch_position: int | None = None
    fingerprint: str | None = None
    result: str | None = None
    pushed: str | None = None
    error: str | None = None
    first_run: TaskIdentity | None = None
    last_run: TaskIdentity | None = None
    task_run_id: int | None = None
    finished_at: datetime | None = None
    rerun: OpenRerun | None = None
    offered: str | None = None
    accepted: tuple[str, ...] = ()

    @property
    def content(self) -> str | None:
        """The id of the other content that a person judges: listed and refused, or accepted last; ``None``: none."""
        return content_id(self.offered or (self.accepted[-1] if self.accepted else None))

    @property
    def offered_fields(self) -> list[str] | None:
        """The names of the fields in which content that was listed and refused differs; ``None``: there is none."""
        return changed_fields(self.fingerprint, self.offered)

    @property
    def done_by(self) -> str:
        """By whom it was done, or is held, in words."""
        return self.last_run.describe() if self.last_run else "adoption (recorded by a person)"


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks, and under which rules.

    :param compare_runs: whether another automatic run with the same key is an error (``once_per="date"`` and
        ``on_other_run="fail"``).
    :param not_guarded: whether a key that the ledger does not know must not run (dated before
        ``guarded_from``, or a later try of a run that ran unguarded).
    """

    identity: TaskIdentity
    deployment: str
    compare_runs: bool = True
    not_guarded: bool = False


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and the names of the fields that have changed since the last attempt, ``None``: it is the same content."""

    verdict: Verdict
    fields: Sequence[str] | None = None


def judge(row: LedgerRow | None, asking: Asking, fingerprint: str | None = None) -> Judgement:
    """Return what may be done with a key.

    The order matters: whose key it is comes before what state it is in, because a state that belongs to other
    work says nothing about this work.

    :param row: the ledger's row, ``None`` if it knows none.
    :param fingerprint: of the content that is to be processed now; ``None`` if there is none to compare.
    """
    if row is None:
        return Judgement(Verdict.NOT_GUARDED if asking.not_guarded else Verdict.CLAIM)
    if row.deployment != asking.deployment:
        return Judgement(Verdict.OTHER_DEPLOYMENT)
    first = row.first_run
    if asking.compare_runs and first is not None and another_automatic_run(first, asking.identity):
        return Judgement(Verdict.OTHER_RUN)
    fields = changed_content(row, fingerprint)
    if row.state is State.COMPLETED:
        return _judge_completed(row, fields)
    if row.state is State.REJECTED and fields is not None:
        return Judgement(Verdict.CHANGED, fields)
    return Judgement(judge_state(row), fields)


def changed_content(row: LedgerRow, fingerprint: str | None) -> list[str] | None:
    """Return the names of the fields that have changed since the last attempt; ``None``: nothing has, or a person
    says that the stored result stands for this content too."""
    fields = changed_fields(row.fingerprint, fingerprint)
    if fields is None or any(changed_fields(each, fingerprint) is None for each in row.accepted):
        return None
    return fields


def judge_state(row: LedgerRow) -> Verdict:
    """Return what the state of a key alone says, whoever asks and for whatever content."""
    if row.state is State.IN_PROGRESS:
        if not row.lease_over:
            return Verdict.ELSEWHERE
        return Verdict.TAKE_OVER if row.phase is Phase.NONE else Verdict.DOUBT
    return {
        State.COMPLETED: Verdict.DONE,
        State.REJECTED: Verdict.REJECTED,
        State.DROPPED: Verdict.DROPPED,
        State.IN_DOUBT: Verdict.DOUBT,
        State.FAILED: Verdict.CLAIM,
    }[row.state]


def _judge_completed(row: LedgerRow, fields: list[str] | None) -> Judgement:
    if row.follow_up is FollowUp.PENDING and not row.lease_over:
        return Judgement(Verdict.ELSEWHERE)
    if row.follow_up in (FollowUp.PENDING, FollowUp.FAILED):
        return Judgement(Verdict.FOLLOW_UP, fields)
    if row.rerun is not None:  # also of changed content: the bug fix may be in it
        return Judgement(Verdict.RERUN, fields)
    if fields is not None:
        return Judgement(Verdict.CHANGED, fields)
    return Judgement(Verdict.DONE)


def another_automatic_run(first: TaskIdentity, identity: TaskIdentity) -> bool:
    """Return whether two task tries belong to two automatic runs, so that one key for both is unclear.

    It is clear where the same asset events of the same runs set both off: a producer that is cleared emits its
    events again.
    """
    if not (identity.automatic and first.automatic):
        return False
    same_events = first.producers is not None and first.producers == identity.producers
    same_run = (first.dag_id, first.run_id) == (identity.dag_id, identity.run_id)
    return not (same_run or (same_events and first.dag_id == identity.dag_id))
