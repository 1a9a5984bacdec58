"""Rows of the database as the values that the rules decide on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_guard.core.guard import LedgerRow, OpenRerun, TaskIdentity
from airflow_guard.core.states import FollowUp, Phase, State
from airflow_guard.store.task_runs import aware

if TYPE_CHECKING:
    from collections.abc import Mapping


def ledger_row(row: Any, people: Mapping[int, TaskIdentity]) -> LedgerRow:
    """Return a :class:`LedgerRow` from a row of ``Statements.read``.

    :param people: who the task tries were, by id.
    """
    begun = row.first_begun_age_s
    return LedgerRow(
        key_hash=row.key_hash,
        document=row.document,
        state=State(row.state),
        phase=Phase(row.phase),
        follow_up=FollowUp(row.follow_up),
        attempt=row.attempt,
        generation=row.generation,
        owner_token=row.owner_token,
        idempotency_key=row.idempotency_key,
        deployment=row.deployment,
        lease_over=bool(row.lease_over),
        last_sign_age_s=float(row.last_sign_age_s or 0.0),
        first_begun_age_s=None if begun is None else float(begun),
        batch_id=row.batch_id,
        batch_position=row.batch_position,
        fingerprint=row.fingerprint,
        offered=row.content_offered,
        accepted=tuple((row.content_accepted or "").splitlines()),
        result=row.result,
        pushed=row.pushed,
        error=row.error,
        first_run=people.get(row.first_task_run_id),
        last_run=people.get(row.task_run_id),
        task_run_id=row.task_run_id,
        finished_at=aware(row.finished_at),
        rerun=None
        if row.rerun_actor is None
        else OpenRerun(row.rerun_actor, row.rerun_reason, bool(row.without_reversal)),
    )
