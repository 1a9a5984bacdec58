"""The messages for keys that may not run: what is wrong, with which key, whose it is, what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_guard.core.commands import resolve_command, show_command
from airflow_guard.core.errors import (
    BlockedError,
    ContentChanged,
    DroppedBefore,
    DuplicateRefused,
    FollowUpFailed,
    InProgressElsewhere,
    NotGuardedThen,
    OtherDeployment,
    OtherRun,
)
from airflow_guard.core.guard import Judgement, LedgerRow, Verdict

if TYPE_CHECKING:
    from airflow_guard.core.keys import KeySpace


def refusal(
    judgement: Judgement, row: LedgerRow, space: KeySpace, document: str | None, ledger: str | None = None
) -> BlockedError:
    """Return the error for a verdict that forbids to run.

    :param ledger: the connection that commands must name, ``None`` for the configured one.
    :param judgement: any verdict but ``CLAIM``, ``TAKE_OVER``, ``DOUBT`` and ``REJECTED``.
    """
    key = space.describe(document)
    makers = {
        Verdict.ELSEWHERE: _elsewhere,
        Verdict.OTHER_RUN: _other_run,
        Verdict.OTHER_DEPLOYMENT: _other_deployment,
        Verdict.DONE: _duplicate,
    }
    if judgement.verdict is Verdict.DROPPED:
        return _dropped(key, row, ledger)
    if judgement.verdict is Verdict.CHANGED:
        return _changed(key, row, judgement, ledger)
    if judgement.verdict is Verdict.FOLLOW_UP:
        return _follow_up(key, row, ledger)
    return makers[judgement.verdict](key, row)


def not_guarded(space: KeySpace, document: str | None, reason: str) -> NotGuardedThen:
    """Return the error for a key from before the ledger kept watch."""
    return NotGuardedThen(f"{space.describe(document)} was not executed: {reason}")


def _elsewhere(key: str, row: LedgerRow) -> InProgressElsewhere:
    return InProgressElsewhere(
        f"{key} is in progress elsewhere: {row.done_by}. Nothing was executed here; another try finds its result."
    )


def _other_run(key: str, row: LedgerRow) -> OtherRun:
    first = row.first_run.describe() if row.first_run else "another run"
    return OtherRun(
        f"{key} belongs to {first} (state {row.state}). This is another automatic run with the same key, so it is not "
        "clear whether it is new work or the same work again; nothing was executed. If it is new work, set cycle (several "
        'runs a day) or business_date. If listing the same documents again is normal, set on_other_run="replay".'
    )


def _other_deployment(key: str, row: LedgerRow) -> OtherDeployment:
    return OtherDeployment(
        f"{key} belongs to deployment {row.deployment!r} ({row.done_by}, state {row.state}). Another deployment neither "
        "replays nor repeats it. Give each deployment its own ledger, or set [airflow_guard] deployment to the same "
        "name if they are one."
    )


def _follow_up(key: str, row: LedgerRow, ledger: str | None) -> FollowUpFailed:
    why = f" ({row.error})" if row.error else ""
    return FollowUpFailed(
        f"{key}: the effect is done ({row.done_by}), what follows it in the callable is not{why}. It is not executed "
        f"again. Finish the follow-up by hand, then: {resolve_command(row.key_hash, decision='followed_up', ledger=ledger)}"
    )


def _duplicate(key: str, row: LedgerRow) -> DuplicateRefused:
    return DuplicateRefused(
        f'{key} was done by {row.done_by}, and on_duplicate="fail". Nothing was executed.'
    )


def _dropped(key: str, row: LedgerRow, ledger: str | None) -> DroppedBefore:
    return DroppedBefore(
        f"{key} was not done, and is not to be: {row.error or 'dropped'}. It is listed again; nothing was executed. To do it "
        f"after all: {resolve_command(row.key_hash, decision='send_again', ledger=ledger)}"
    )


def _changed(key: str, row: LedgerRow, judgement: Judgement, ledger: str | None) -> ContentChanged:
    fields = ", ".join(judgement.fields) or "fields that were not recorded by name"
    return ContentChanged(
        f"{key} was done by {row.done_by} with other content; changed: {fields}. It is neither replayed nor executed. If "
        "the change is a new document, give it an identity of its own; if the fields do not matter, leave them out of "
        f"fingerprint_fields. See: {show_command(row.key_hash, ledger=ledger)}"
    )


def rejected_before(row: LedgerRow) -> str:
    """Return why a rejected document is not sent again, as the explanation of a log line."""
    return f"rejected before by {row.done_by}: {row.error or 'no reason stored'}"
