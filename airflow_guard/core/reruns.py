"""Reruns on purpose: what may be authorised, for how long, and what must be reversed before it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_guard.core.commands import rerun_command, resolve_command
from airflow_guard.core.decisions import Decision, Situation, explanation
from airflow_guard.core.errors import InDoubt, RerunRefused, ResolutionError
from airflow_guard.core.results import decode_result, has_result

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

DEFAULT_EXPIRY = timedelta(hours=24)
MAX_EXPIRY = timedelta(days=31)
"""An authorisation that nobody remembers is a second payment some day."""

_LENGTH = re.compile(r"(\d{1,6})\s*(m|min|h|d)")
_UNITS = {"m": "minutes", "min": "minutes", "h": "hours", "d": "days"}
_INSTEAD: Mapping[Situation, Decision] = {
    Situation.IN_DOUBT: Decision.HAPPENED,
    Situation.REJECTED: Decision.SEND_AGAIN,
    Situation.FOLLOW_UP_OPEN: Decision.FOLLOWED_UP,
}


class Reversal(StrEnum):
    """How far ``on_rerun`` is known to have got outside the ledger's database.

    ``BEGUN`` with nobody at work: it may or may not have reversed the first effect.
    """

    NONE = "none"
    BEGUN = "begun"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Rerun:
    """The rerun that a claimed key of a later generation executes.

    :param without_reversal: whether the first effect stays as it is.
    :param previous_result: what the generation before returned, as it is stored; ``None``: nothing is stored.
    """

    key_hash: str
    generation: int
    without_reversal: bool
    previous_result: str | None
    previous_idempotency_key: str
    reversal: Reversal = Reversal.NONE

    @property
    def result(self) -> Any:
        """What the generation before returned; ``None`` also where nothing is stored."""
        return decode_result(self.previous_result) if has_result(self.previous_result) else None

    @property
    def to_reverse(self) -> bool:
        """Whether ``on_rerun`` is still to be called."""
        return not self.without_reversal and self.reversal is not Reversal.DONE


def expiry_of(text: str) -> timedelta:
    """Return the length of time that a text such as ``24h``, ``90m`` or ``7d`` says.

    >>> expiry_of("36h")
    datetime.timedelta(days=1, seconds=43200)

    :raises ResolutionError: it says none, or one that is not allowed.
    """
    found = _LENGTH.fullmatch(text.strip().lower())
    if found is None:
        raise ResolutionError(f"{text!r} is no length of time: use 90m, 24h or 7d.")
    return check_expiry(timedelta(**{_UNITS[found[2]]: int(found[1])}))


def check_expiry(expires: timedelta) -> timedelta:
    """Return how long an authorisation holds.

    :raises ResolutionError: not above zero, or longer than 31 days.
    """
    if not timedelta(0) < expires <= MAX_EXPIRY:
        raise ResolutionError(
            f"An authorisation may hold for up to {MAX_EXPIRY.days} days, not {expires}. What is run later is "
            "authorised later."
        )
    return expires


def not_done(
    text: str, key_hash: str, situation: Situation, ledger: str | None = None
) -> ResolutionError | None:
    """Return why a key cannot be authorised: only what is done can be done once more. ``None``: it can.

    :param text: the key as a person reads it.
    """
    if situation is Situation.DONE:
        return None
    decision = _INSTEAD.get(situation)
    instead = f" First: {resolve_command(key_hash, decision=decision, ledger=ledger)}" if decision else ""
    return ResolutionError(
        f"{text} is {situation}, so there is nothing to authorise. {explanation(situation)} Nothing was authorised.{instead}"
    )


def check_reversal(
    rerun: Rerun, text: str, *, has_on_rerun: bool, in_database: bool, ledger: str | None = None
) -> None:
    """Refuse a rerun whose first effect would stay although nobody has said so, or may be reversed twice.

    :param text: the key as a person reads it.
    :raises RerunRefused: the task has no ``on_rerun``. A retry does not help.
    :raises InDoubt: the reversal may or may not have happened. A retry does not help.
    """
    if not rerun.to_reverse:
        return
    if not has_on_rerun:
        raise RerunRefused(
            f"{_nothing_reverses(text, in_database=in_database)} Nothing was executed. Give the task on_rerun."
        )
    if rerun.reversal is Reversal.BEGUN:
        yes, no = (rerun_command(rerun.key_hash, option, ledger=ledger) for option in REVERSAL_OPTIONS)
        raise InDoubt(
            f"{text}: whether its first effect was reversed is not known; on_rerun ended inside. Nothing was executed. Ask "
            f"the receiver, then: {yes} or: {no}"
        )


def nothing_reverses(text: str, key_hash: str, *, in_database: bool, ledger: str | None = None) -> str:
    """Return what to do about a rerun that nobody has begun and that nothing reverses."""
    withdraw, again = (
        rerun_command(key_hash, option, ledger=ledger) for option in ("--withdraw", "--without-reversal")
    )
    return (
        f"{_nothing_reverses(text, in_database=in_database)} Nothing was executed, and the authorisation stands. Give the "
        f"task on_rerun. Or, if the first effect is to stay, take the authorisation back: {withdraw}; then give another: "
        f"{again}"
    )


def _nothing_reverses(text: str, *, in_database: bool) -> str:
    effect = "Database" if in_database else "External"
    return f"{text}: a rerun is authorised with reversal of the first effect, but the task has no {effect}(on_rerun=…)."


def lost(text: str, generation: int) -> RerunRefused:
    """Return the error for a later generation whose authorisation the ledger does not have."""
    return RerunRefused(
        f"{text} is in generation {generation}, but the ledger has no authorisation for it. Nothing was executed. Somebody "
        "has changed its tables by hand: put the row of guard_rerun back."
    )


REVERSAL_OPTIONS = ("--reversal-happened", "--reversal-did-not-happen")
"""What a person may say of a reversal in doubt."""
