"""What parameters take: words, which type checkers read here as well, and durations."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from airflow_guard.core.errors import ConfigurationError

# -- The words that parameters take: type checkers read them here, and so do the checks when a DAG is parsed --

EffectName = Literal["external", "database"]
OncePer = Literal["date", "document"]
CallPer = Literal["document", "batch"]
OnDuplicate = Literal["replay", "skip", "fail"]
OnConcurrent = Literal["wait", "fail"]
OnOtherRun = Literal["fail", "replay"]
OnEmpty = Literal["warn", "fail", "allow"]
OnRepeated = Literal["warn", "fail"]
Otherwise = Literal["fail", "warn"]
Mode = Literal["enforce", "observe"]
WhenInDoubt = Literal["hold", "ask", "retry"]
OnBreak = Literal["fail", "warn", "ask"]
OnRepeatedKey = Literal["fail", "warn"]
AlertEvent = Literal["failure", "retry", "skipped", "dag_failure", "deadline", "success"]


def one_of(words: tuple[str, ...]) -> str:
    """Return words as a message offers them.

    >>> one_of(("replay", "skip", "fail"))
    "'replay', 'skip' or 'fail'"
    """
    quoted = [repr(word) for word in words]
    return f"{', '.join(quoted[:-1])} or {quoted[-1]}"


# -- Durations as a DAG file gives them: a ``timedelta``, or seconds -----------------------------------------


def length_of(value: object) -> timedelta | None:
    """Return a duration that is given as ``timedelta`` or in seconds; ``None`` if it is neither, or has no end."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return timedelta(seconds=value)
    except (OverflowError, ValueError):  # infinite, or no number
        return None


def duration(name: str, value: object) -> timedelta:
    """Return a duration that is given as ``timedelta`` or in seconds.

    :param name: of the parameter, for the message.
    :raises ConfigurationError: neither, or not above zero.
    """
    length = length_of(value)
    if length is None or length <= timedelta(0):
        raise ConfigurationError(f"{name}={value!r:.80}: a timedelta above zero, or its seconds.")
    return length


def seconds(value: timedelta | float) -> float:
    """Return the seconds of a duration that was checked when it was given."""
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


def age(name: str, value: object) -> timedelta:
    """Return how old something must be, given as ``timedelta`` or in seconds; zero: any age.

    :param name: of the parameter, for the message.
    :raises ConfigurationError: neither, or below zero.
    """
    length = length_of(value)
    if length is None or length < timedelta(0):
        raise ConfigurationError(f"{name}={value!r:.80}: a timedelta, zero or more, or its seconds.")
    return length
