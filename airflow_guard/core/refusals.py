"""The messages for keys that may not run: what is wrong, with which key, whose it is, what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_guard.core.commands import rerun_command, resolve_command, show_command
from airflow_guard.core.content import content_id, fields_of
from airflow_guard.core.decisions import (
    DECISIONS_OF,
    Decision,
    Situation,
    decisions_of,
    explanation,
    situation_of,
)
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
    ResolutionError,
    StaleResolution,
)
from airflow_guard.core.guard import Judgement, LedgerRow, Verdict
from airflow_guard.core.results import UNSTORED
from airflow_guard.core.states import Phase, State

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        return content_changed(key, row, judgement.fields or (), ledger)
    if judgement.verdict is Verdict.FOLLOW_UP:
        return _follow_up(key, row, judgement.fields, ledger)
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
    by_events = row.first_run is not None and row.first_run.run_type == "asset_triggered"
    return OtherRun(
        f"{key} belongs to {first} (state {row.state}). This is another automatic run with the same key, so it is not "
        "clear whether it is new work or the same work again; nothing was executed. If it is new work, set cycle (several "
        'runs a day) or business_date. If listing the same documents again is normal, set on_other_run="replay".'
        f"{_OTHER_EVENTS if by_events else ''}"
    )


_OTHER_EVENTS = (
    " The asset events that set this run off are not those of the first one (which a producer that is cleared would emit "
    "again). If each event is work of its own, let its producer put a date, or what else tells them apart, into the "
    "event's extra, and take it from there: business_date=from_asset_extra(), or cycle=."
)


def _other_deployment(key: str, row: LedgerRow) -> OtherDeployment:
    return OtherDeployment(
        f"{key} belongs to deployment {row.deployment!r} ({row.done_by}, state {row.state}). Another deployment neither "
        "replays nor repeats it. Give each deployment its own ledger, or set [airflow_guard] deployment to the same "
        "name if they are one."
    )


def _follow_up(key: str, row: LedgerRow, fields: Sequence[str] | None, ledger: str | None) -> FollowUpFailed:
    command = resolve_command(row.key_hash, decision="followed_up", ledger=ledger)
    if row.error is not None and row.error.startswith(UNSTORED):
        return FollowUpFailed(
            f"{key}: the effect is done ({row.done_by}), {row.error}{changed_since(row, fields)} It is not executed "
            f"again. Settle it, and the task returns None for it: {command}"
        )
    why = f" ({row.error})" if row.error else ""
    why += changed_since(row, fields)
    return FollowUpFailed(
        f"{key}: the effect is done ({row.done_by}), what follows it in the callable is not{why}. It is not executed "
        f"again. Finish the follow-up by hand, then: {command}"
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


def content_changed(
    key: str, row: LedgerRow, fields: Sequence[str], ledger: str | None = None
) -> ContentChanged:
    """Return the error for a document that is listed with other content than was decided about.

    :param row: completed or rejected.
    :param fields: that have changed, see :func:`~airflow_guard.core.content.changed_fields`.
    """
    stands = resolve_command(row.key_hash, decision=Decision.CONTENT_STANDS, ledger=ledger)
    look = f"See: {show_command(row.key_hash, ledger=ledger)}"
    if row.state is State.REJECTED:
        again = resolve_command(row.key_hash, decision=Decision.SEND_AGAIN, ledger=ledger)
        return ContentChanged(
            f"{key} was rejected before by {row.done_by} ({row.error or 'no reason stored'}), and its content is new since "
            f"then; {_named(row, fields)}. The rejection was of the old content; nothing was executed. To let the next run "
            f"execute the new content: {again}. If it stays rejected with this content too: {stands}. {look}"
        )
    done = "was settled without an effect" if row.phase is Phase.NONE else f"was done by {row.done_by}"
    said = f" ({row.error})" if row.error else ""
    again = rerun_command(row.key_hash, ledger=ledger)
    return ContentChanged(
        f"{key} {done} with other content{said}; {_named(row, fields)}. It is neither replayed nor executed. If what was done "
        f"stands for this content too: {stands}. If this content must be executed as well: {again} (add --without-reversal "
        "if what was done stays). If it is another document, give it an identity of its own. If fields that change do not "
        f"matter, name in fingerprint_fields only those that do. {look}"
    )


def changed_since(row: LedgerRow, fields: Sequence[str] | None) -> str:
    """Return what to add about a key that is settled for what was sent, before anything is said of new content."""
    if fields is None:
        return ""
    return (
        f" Its content is new since then; {_named(row, fields)}. This is about what was sent then, and the new content is "
        "not executed meanwhile."
    )


def _named(row: LedgerRow, fields: Sequence[str]) -> str:
    if fields:
        return f"changed: {', '.join(fields)}"
    return f"none of its fields can be compared, since those of {', '.join(fields_of(row.fingerprint))} are stored"


def rejected_before(row: LedgerRow) -> str:
    """Return why a rejected document is not sent again, as the explanation of a log line."""
    return f"rejected before by {row.done_by}: {row.error or 'no reason stored'}"


def decision_refused(  # noqa: PLR0911 - a reason to refuse each
    decision: Decision,
    row: LedgerRow,
    text: str,
    *,
    token: str,
    content: str | None,
    quiet_s: float,
    ledger: str | None,
) -> ResolutionError | None:
    """Return why what somebody says of a key cannot be, ``None`` if it can.

    :param row: as it is now.
    :param text: the key as a person reads it.
    :param token: of the attempt that was judged.
    :param content: what ``content_stands`` is said of.
    :param quiet_s: refused if the attempt gave a sign of life within so many seconds.
    :param ledger: connection that the command in the message must name.
    """
    situation = situation_of(row)
    look = f"Nothing was changed. Look at it: {show_command(row.key_hash, ledger=ledger)}"
    if row.owner_token != token:
        return StaleResolution(
            f"{text}: the answer is about an earlier attempt (owner token {token}). {_now(row)} {look}"
        )
    if decision is Decision.CONTENT_STANDS:
        return _content_refused(row, text, content, look)
    if decision in decisions_of(row):
        if row.last_sign_age_s >= quiet_s:
            return None
        return StaleResolution(f"{text}: its attempt has just given a sign of life. {look}")
    if situation in (Situation.DONE, Situation.FAILED, Situation.DROPPED):
        return StaleResolution(f"{text}: settled already. {_now(row)} {look}")
    if situation in DECISIONS_OF and situation is not Situation.ABANDONED:
        options = " or ".join(each.option for each in DECISIONS_OF[situation])
        return ResolutionError(
            f"{text} is {situation}, so {decision.option} does not apply: use {options}. Nothing was changed."
        )
    return ResolutionError(f"{text} cannot be resolved. {_now(row)} Nothing was changed.")


def _content_refused(row: LedgerRow, text: str, judged: str | None, look: str) -> ResolutionError | None:
    if Decision.CONTENT_STANDS not in decisions_of(row):
        accepted = ": it was accepted already" if judged in map(content_id, row.accepted) else ""
        return StaleResolution(
            f"{text} has no other content that was listed and refused{accepted}. {_now(row)} {look}"
        )
    if row.content != judged:
        return StaleResolution(f"{text} has been listed with yet another content since you looked. {look}")
    return None


def _now(row: LedgerRow) -> str:
    situation = situation_of(row)
    why = f", {row.error}" if row.error else ""
    return f"It is now {situation} (attempt {row.attempt}, {row.done_by}{why}). {explanation(situation)}"
