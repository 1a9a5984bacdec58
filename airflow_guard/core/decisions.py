"""What a person (or ``verify``) may decide about a key, and when.

==================  =============================================  =======================
decision            leaves                                         leads to
==================  =============================================  =======================
``happened``        ``in_doubt``                                   ``completed``
``did_not_happen``  ``in_doubt``                                   ``failed``: may run again
``waive``           ``rejected``                                   ``completed``, no effect
``send_again``      ``rejected`` or ``dropped``                    ``failed``: may run again
``drop``            ``failed``, or given up before it began        ``dropped``: not done, not to be
``followed_up``     ``completed``, the part after the effect       the same, settled
                    failed
``content_stands``  ``completed`` or ``rejected``, and listed      the same, for that
                    since with other content                       content too
==================  =============================================  =======================

"Lease over, effect begun" counts as ``in_doubt``, whether or not anyone has written it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from airflow_guard.core.errors import ResolutionError
from airflow_guard.core.states import FollowUp, Phase, State

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_REASON_CHARACTERS = 2000
"""A reason is for the person who reads the ledger next year; longer ones are refused rather than cut off."""


class Decision(StrEnum):
    """What is decided; the module's table says what each one does."""

    HAPPENED = "happened"
    DID_NOT_HAPPEN = "did_not_happen"
    WAIVE = "waive"
    SEND_AGAIN = "send_again"
    DROP = "drop"
    FOLLOWED_UP = "followed_up"
    CONTENT_STANDS = "content_stands"

    @staticmethod
    def of(value: str) -> Decision:
        """Return the decision of a name; ``-`` and ``_`` are the same.

        :raises ResolutionError: there is no such decision.
        """
        try:
            return Decision(value.replace("-", "_"))
        except ValueError:
            raise ResolutionError(f"There is no decision {value!r}: use {', '.join(Decision)}.") from None

    @property
    def option(self) -> str:
        """The option of ``airflow-guard resolve``."""
        return "--" + self.value.replace("_", "-")


class Situation(StrEnum):
    """Where a key stands, for a person who wonders whether there is anything to do."""

    RUNNING = "running"
    ABANDONED = "abandoned"
    IN_DOUBT = "in doubt"
    FOLLOW_UP_RUNNING = "follow-up running"
    FOLLOW_UP_OPEN = "follow-up failed"
    DONE = "done"
    FAILED = "failed"
    REJECTED = "rejected"
    DROPPED = "dropped"


DECISIONS_OF: Mapping[Situation, tuple[Decision, ...]] = {
    Situation.IN_DOUBT: (Decision.HAPPENED, Decision.DID_NOT_HAPPEN),
    Situation.REJECTED: (Decision.WAIVE, Decision.SEND_AGAIN),
    Situation.FOLLOW_UP_OPEN: (Decision.FOLLOWED_UP,),
    Situation.FAILED: (Decision.DROP,),
    Situation.ABANDONED: (Decision.DROP,),
    Situation.DROPPED: (Decision.SEND_AGAIN,),
}
"""What may be decided, whatever the content; in every other situation there is nothing to decide. See
:func:`decisions_of`."""

UNFINISHED = frozenset(Situation) - {Situation.DONE, Situation.DROPPED}


class Standing(Protocol):
    """What of a row decides; :class:`~airflow_guard.core.guard.LedgerRow` has it."""

    @property
    def state(self) -> State:
        """Where the key stands."""

    @property
    def phase(self) -> Phase:
        """How far the effect is known to be."""

    @property
    def follow_up(self) -> FollowUp:
        """What came of the part after the effect."""

    @property
    def lease_over(self) -> bool:
        """Whether the last attempt's lease is over, by the database's clock."""

    @property
    def offered(self) -> str | None:
        """The fingerprint of other content that was listed since, and refused."""


@dataclass(frozen=True)
class Consequence:
    """What a decision does.

    :param event: the kind of the audit event.
    :param statement: the name of the statement in ``store.statements``.
    :param target: the state that it leads to; ``None``: the key stays in its own.
    :param words: how the ledger words it, before "by NAME: reason".
    :param together: whether the members of a batch are settled together: their effect was one.
    :param meaning: what it comes to, for the person who is asked to confirm it.
    """

    event: str
    statement: str
    target: State | None
    words: str
    together: bool
    meaning: str


CONSEQUENCES: Mapping[Decision, Consequence] = {
    Decision.HAPPENED: Consequence(
        "resolve_happened",
        "resolve_happened",
        State.COMPLETED,
        "resolved as happened",
        together=True,
        meaning="It counts as done and is never executed again. No result is stored for it.",
    ),
    Decision.DID_NOT_HAPPEN: Consequence(
        "resolve_not_happened",
        "resolve_not_happened",
        State.FAILED,
        "resolved as not happened",
        together=True,
        meaning="The next run executes it. If it did happen after all, it happens twice.",
    ),
    Decision.WAIVE: Consequence(
        "waive",
        "waive",
        State.COMPLETED,
        "waived",
        together=False,
        meaning="It counts as completed, without an effect of this task.",
    ),
    Decision.SEND_AGAIN: Consequence(
        "send_again",
        "send_again",
        State.FAILED,
        "to be sent again",
        together=False,
        meaning="The next run executes it again.",
    ),
    Decision.DROP: Consequence(
        "drop",
        "drop",
        State.DROPPED,
        "dropped",
        together=False,
        meaning="It was not done, and is not to be. Listed again it is held back, until it is sent again.",
    ),
    Decision.FOLLOWED_UP: Consequence(
        "follow_up_settled",
        "settle_follow_up",
        State.COMPLETED,
        "follow-up settled",
        together=True,
        meaning="The task no longer fails for it. The effect is not repeated.",
    ),
    Decision.CONTENT_STANDS: Consequence(
        "content_accepted",
        "accept_content",
        None,
        "accepted for other content too",
        together=False,
        meaning="What was done, or decided, counts for the content that was listed last, too. Nothing is executed.",
    ),
}


def decisions_of(row: Standing) -> tuple[Decision, ...]:
    """Return what may be decided about a key."""
    situation = situation_of(row)
    settled = situation in (Situation.DONE, Situation.REJECTED)
    more = (Decision.CONTENT_STANDS,) if settled and row.offered is not None else ()
    return (*DECISIONS_OF.get(situation, ()), *more)


def situation_of(row: Standing) -> Situation:
    """Return where a key stands."""
    if row.state is State.IN_PROGRESS:
        if not row.lease_over:
            return Situation.RUNNING
        return Situation.ABANDONED if row.phase is Phase.NONE else Situation.IN_DOUBT
    if row.state is State.COMPLETED:
        if row.follow_up is FollowUp.FAILED or (row.follow_up is FollowUp.PENDING and row.lease_over):
            return Situation.FOLLOW_UP_OPEN
        return Situation.FOLLOW_UP_RUNNING if row.follow_up is FollowUp.PENDING else Situation.DONE
    return {
        State.IN_DOUBT: Situation.IN_DOUBT,
        State.FAILED: Situation.FAILED,
        State.REJECTED: Situation.REJECTED,
        State.DROPPED: Situation.DROPPED,
    }[row.state]


_EXPLANATIONS: Mapping[Situation, str] = {
    Situation.RUNNING: "An attempt is at work on it. Wait for it to end.",
    Situation.ABANDONED: (
        "The attempt is gone, and its effect had not begun. There is nothing to settle: the next run takes "
        "it over by itself. If it is not to be done any more, drop it."
    ),
    Situation.IN_DOUBT: (
        "The effect may or may not have happened, and nothing repeats it. Ask the receiver about the "
        "idempotency key, then say which."
    ),
    Situation.FOLLOW_UP_RUNNING: "The effect is done; the attempt is at work on what follows it.",
    Situation.FOLLOW_UP_OPEN: (
        "The effect is done, what follows it in the callable is not. Finish that by hand, then say so."
    ),
    Situation.DONE: "Done. It is not executed again, unless a person authorises it (airflow-guard rerun).",
    Situation.FAILED: (
        "The effect has not happened. There is nothing to settle: the next run executes it. If it is not to be done any "
        "more, drop it."
    ),
    Situation.DROPPED: "Not done, and a person has said that it is not to be. To do it after all, send it again.",
    Situation.REJECTED: (
        "The business refused it; it is not tried again. Waive it, or send it again once the cause is gone."
    ),
}


def explanation(situation: Situation) -> str:
    """Return what a situation means and what to do, in one or two sentences."""
    return _EXPLANATIONS[situation]


def check_words(actor: str, reason: str) -> tuple[str, str]:
    """Return actor and reason as they are stored.

    :raises ResolutionError: one is blank or too long. Who and why is what an auditor asks first.
    """
    actor, reason = actor.strip(), reason.strip()
    if not reason:
        raise ResolutionError("A reason is missing: say why, for the person who reads the ledger next year.")
    if not actor:
        raise ResolutionError("It is not said who acts (actor is blank).")
    if len(actor) > 250 or len(reason) > MAX_REASON_CHARACTERS:
        raise ResolutionError(
            f"A reason may have {MAX_REASON_CHARACTERS} characters (this one has {len(reason)}), a name 250."
        )
    return actor, reason
