"""Durations as a DAG file gives them: a ``timedelta``, or seconds."""

from __future__ import annotations

from datetime import timedelta

from airflow_guard.core.errors import ConfigurationError


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
