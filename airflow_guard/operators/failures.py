"""How a failure of this package ends an Airflow task: with or without retry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_guard.airflow_compat import AirflowException, AirflowFailException, AirflowSensorTimeout

if TYPE_CHECKING:
    from airflow_guard.core.errors import GuardError


class GuardFailure(AirflowFailException):
    """The task fails, and no retry: only a person, another configuration or another document helps.

    The error that says what happened is its ``__cause__``, of a class in ``airflow_guard.core.errors``.
    """


class GuardRetry(AirflowException):
    """The task fails, and a retry can help by itself. Its ``__cause__`` says what happened."""


class GuardTimeout(AirflowSensorTimeout):
    """The ``timeout`` of a sensor is over, and no retry: it has looked again and again already.

    The error that says what it saw is its ``__cause__``.
    """


def as_airflow(error: GuardError) -> GuardFailure | GuardRetry:
    """Return what to raise ``from`` an error of this package, with the same message."""
    return GuardRetry(str(error)) if error.retryable else GuardFailure(str(error))
