"""States of a key, phases of its effect, and every transition between them, once.

The database enforces the same (CHECK constraints made from :data:`PHASES_OF_STATE`), and each transition is one
named statement in the store that matches the owner token *and* the state it leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Where a key stands.

    * ``IN_PROGRESS``: an attempt owns it. With the lease over and the effect not begun, another may claim it;
      with the effect begun, every reader treats it as in doubt, whether or not anyone has written it.
    * ``COMPLETED``: the effect is done. Never executed again without a person's authorisation (a rerun).
    * ``FAILED``: the effect has certainly not happened. May be claimed again.
    * ``REJECTED``: the business refused it. Terminal until a person waives it or sends it again.
    * ``DROPPED``: not done, and a person has said that it is not to be. Not executed until a person sends it again.
    * ``IN_DOUBT``: the effect may or may not have happened. Only ``verify``, a person, or a late report of the
      attempt itself ends it.
    """

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    REJECTED = "rejected"
    DROPPED = "dropped"
    IN_DOUBT = "in_doubt"


class Phase(StrEnum):
    """How far the effect of the last attempt is known to be.

    ``IN_TRANSACTION`` is written and cleared inside one transaction, so that another session sees it only if
    the callable committed by itself.
    """

    NONE = "none"
    IN_TRANSACTION = "in_transaction"
    BEGUN = "begun"
    DONE = "done"


class FollowUp(StrEnum):
    """What came of the part of a callable that follows its effect window."""

    NONE = "none"
    PENDING = "pending"
    FAILED = "failed"
    SETTLED = "settled"


class Event(StrEnum):
    """What moves a key from one state to another."""

    CLAIM = "claim"
    TAKE_OVER = "take_over"
    BEGIN = "begin"
    COMPLETE = "complete"
    REJECT = "reject"
    FAIL = "fail"
    DOUBT = "doubt"
    LATE_REPORT = "late_report"
    RESOLVE_HAPPENED = "resolve_happened"
    RESOLVE_NOT_HAPPENED = "resolve_not_happened"
    WAIVE = "waive"
    SEND_AGAIN = "send_again"
    DROP = "drop"
    ADOPT = "adopt"
    RERUN = "rerun"


@dataclass(frozen=True)
class Transition:
    """One row of the state machine: ``source`` is ``None`` for a key that the ledger does not know."""

    source: State | None
    event: Event
    target: State


TRANSITIONS: tuple[Transition, ...] = (
    Transition(None, Event.CLAIM, State.IN_PROGRESS),
    Transition(State.FAILED, Event.CLAIM, State.IN_PROGRESS),
    Transition(State.IN_PROGRESS, Event.TAKE_OVER, State.IN_PROGRESS),
    Transition(State.IN_PROGRESS, Event.BEGIN, State.IN_PROGRESS),
    Transition(State.IN_PROGRESS, Event.COMPLETE, State.COMPLETED),
    Transition(State.IN_PROGRESS, Event.REJECT, State.REJECTED),
    Transition(State.IN_PROGRESS, Event.FAIL, State.FAILED),
    Transition(State.IN_PROGRESS, Event.DOUBT, State.IN_DOUBT),
    # The attempt that others gave up tells more of what happened to it: its last sign of life moves.
    Transition(State.IN_DOUBT, Event.DOUBT, State.IN_DOUBT),
    Transition(State.IN_DOUBT, Event.LATE_REPORT, State.COMPLETED),
    # It alone can prove that nothing happened, or that the business refused it.
    Transition(State.IN_DOUBT, Event.LATE_REPORT, State.FAILED),
    Transition(State.IN_DOUBT, Event.LATE_REPORT, State.REJECTED),
    # A "did not happen" that the attempt itself refutes, before anybody claimed the key again: what it reports
    # has happened, so leaving the key claimable would make a second effect.
    Transition(State.FAILED, Event.LATE_REPORT, State.COMPLETED),
    Transition(State.IN_DOUBT, Event.RESOLVE_HAPPENED, State.COMPLETED),
    Transition(State.IN_DOUBT, Event.RESOLVE_NOT_HAPPENED, State.FAILED),
    Transition(State.REJECTED, Event.WAIVE, State.COMPLETED),
    Transition(State.REJECTED, Event.SEND_AGAIN, State.FAILED),
    # Listed once and not done. In progress: its lease is over and its effect had not begun.
    Transition(None, Event.DROP, State.DROPPED),
    Transition(State.FAILED, Event.DROP, State.DROPPED),
    Transition(State.IN_PROGRESS, Event.DROP, State.DROPPED),
    Transition(State.DROPPED, Event.SEND_AGAIN, State.FAILED),
    Transition(None, Event.ADOPT, State.COMPLETED),
    # An attempt uses what a person has authorised: the next generation, with its claim in the same transaction.
    Transition(State.COMPLETED, Event.RERUN, State.FAILED),
)

PHASES_OF_STATE: dict[State, frozenset[Phase]] = {
    State.IN_PROGRESS: frozenset({Phase.NONE, Phase.IN_TRANSACTION, Phase.BEGUN}),
    State.COMPLETED: frozenset({Phase.DONE, Phase.NONE}),
    State.FAILED: frozenset({Phase.NONE}),
    State.REJECTED: frozenset({Phase.NONE}),
    State.DROPPED: frozenset({Phase.NONE}),
    State.IN_DOUBT: frozenset({Phase.IN_TRANSACTION, Phase.BEGUN}),
}
"""Which phases a state can have. ``completed`` with ``none``: waived or adopted, no effect of ours."""
