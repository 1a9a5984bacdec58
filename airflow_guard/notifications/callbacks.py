"""The callbacks of a DAG in one line each, and all of them in one."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.bases.sensor import BaseSensorOperator

from airflow_guard.core.errors import ConfigurationError
from airflow_guard.core.texts import meant
from airflow_guard.notifications.guard import GuardNotifier
from airflow_guard.operators.idempotent import IdempotentOperator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_guard.core.parameters import AlertEvent


def alert_on_failure(*transports: Any, **options: Any) -> GuardNotifier:
    """Return a task's ``on_failure_callback``: ``on_failure_callback=alert_on_failure(mail, chat)``.

    :param transports: notifiers of Airflow's.
    :param options: see :class:`GuardNotifier`.
    """
    return GuardNotifier(transports=transports, on="failure", **options)


def alert_on_retry(*transports: Any, **options: Any) -> GuardNotifier:
    """Return a task's ``on_retry_callback``; its messages are of low severity."""
    return GuardNotifier(transports=transports, on="retry", **options)


def alert_on_skipped(*transports: Any, **options: Any) -> GuardNotifier:
    """Return a task's ``on_skipped_callback``."""
    return GuardNotifier(transports=transports, on="skipped", **options)


def alert_on_dag_failure(*transports: Any, **options: Any) -> GuardNotifier:
    """Return the ``on_failure_callback`` of a DAG: ``DAG(..., on_failure_callback=alert_on_dag_failure(mail))``.

    It also tells of what no task can: a run that took too long, or that could not go on.
    """
    return GuardNotifier(transports=transports, on="dag_failure", **options)


def alert_on_recovery(*transports: Any, **options: Any) -> GuardNotifier:
    """Return a task's ``on_success_callback``: "resolved", once, if something was said about the task before."""
    return GuardNotifier(transports=transports, on="success", **options)


def guard_defaults(
    default_args: Mapping[str, Any] | None = None,
    *,
    alerts: Sequence[Any] | Mapping[str, Sequence[Any]] = (),
    skipped: bool = False,
    team: str | None = None,
    announce_retries: bool = True,
    **more: Any,
) -> dict[str, Any]:
    """Return ``default_args`` with alerts on failure, retry and recovery, beside what a DAG has already.

    ::

        with DAG("statements", default_args=guard_defaults({"retries": 3}, alerts=[mail], team="payments")):
            ...

    A task with a callback of its own does not get that of ``default_args``: that is how Airflow works. Give such a
    task a list: ``on_failure_callback=[own, alert_on_failure(mail)]``.

    :param default_args: what the DAG has. Its callbacks stay, and come first.
    :param alerts: transports, or a mapping from team to transports. None: no callbacks are added.
    :param skipped: whether a skipped task is told too. Default no: most skips are intended.
    :param team: see :class:`GuardNotifier`.
    :param announce_retries: see :class:`GuardNotifier`.
    :param more: further ``default_args``, of Airflow's operators and sensors in general, and of ``IdempotentOperator``.
        Those of other operators go into the dictionary.
    :raises ConfigurationError: ``more`` has a name that none of these takes, such as a misspelt one.
    """
    for name in more:
        _check_name(name)
    merged = {**(default_args or {}), **more}
    if not alerts:
        return merged
    events: dict[str, AlertEvent] = {
        "on_failure_callback": "failure",
        "on_retry_callback": "retry",
        "on_success_callback": "success",
    }
    if skipped:
        events["on_skipped_callback"] = "skipped"
    for name, on in events.items():
        ours = GuardNotifier(transports=alerts, on=on, team=team, announce_retries=announce_retries)
        merged[name] = [*_as_list(merged.get(name)), ours]
    return merged


def _check_name(name: str) -> None:
    known = {"default_args", "alerts", "skipped", "team", "announce_retries"}
    for operator in (BaseOperator, BaseSensorOperator, IdempotentOperator):
        known |= set(inspect.signature(operator.__init__).parameters)
    if name in known - {"self", "kwargs"}:
        return
    if name in inspect.signature(GuardNotifier.__init__).parameters:
        raise ConfigurationError(
            f"guard_defaults({name}=…): only a callback of its own takes that: "
            f"on_failure_callback=alert_on_failure(mail, {name}=…)."
        )
    raise ConfigurationError(
        f"guard_defaults({name}=…): no task takes that.{meant(name, known)} What is meant for operators of other kinds "
        f"goes into the dictionary: guard_defaults({{{name!r}: …}})."
    )


def _as_list(callbacks: Any) -> list[Any]:
    if callbacks is None:
        return []
    return list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
