"""Delivering a message: by each transport on its own, claimed in the ledger before, marked there after.

A transport is a notifier of Airflow's, unchanged. What goes wrong here is logged, and nothing else: an alert must
never change what became of a task. A ledger that does not answer keeps no alert back.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk import BaseNotifier

from airflow_guard.core.alerts.facts import Stage
from airflow_guard.core.errors import ConfigurationError
from airflow_guard.core.texts import described

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_guard.core.alerts.facts import Problem
    from airflow_guard.core.alerts.message import Alert
    from airflow_guard.store.alerts import AlertClaim, Alerts

log = logging.getLogger(__name__)
T = TypeVar("T")

EVERYBODY = "*"
LEDGER_PATIENCE_S = 15.0
"""How long an alert waits for a ledger that does not answer, each time that it asks."""
# What a transport says if its author has said nothing, by the name of its class.
_OWN_WORDS: Mapping[str, Mapping[str, str]] = {
    "SmtpNotifier": {"subject": "{{ alert.subject }}", "html_content": "{{ alert.html }}"},
    "SlackWebhookNotifier": {"text": "{{ alert.slack }}"},
}


@dataclass(frozen=True)
class Transport:
    """A notifier and the name under which the ledger remembers what it has delivered."""

    notifier: Any
    name: str

    def prepared(self, context: Mapping[str, Any], alert: Alert) -> tuple[Any, dict[str, Any]]:
        """Return a copy of the notifier, and its context with ``alert`` in it.

        A copy, since a notifier that has rendered its templates once says the same for ever.
        """
        notifier = copy.copy(self.notifier)
        for field, template in _OWN_WORDS.get(type(notifier).__name__, {}).items():
            if not getattr(notifier, field, None):
                setattr(notifier, field, template)
        full = {**context, "alert": alert}
        if not hasattr(full.get("dag"), "get_template_env"):
            full.pop("dag", None)  # a reduced one, which could not render a template
        return notifier, full

    def send(self, context: Mapping[str, Any], alert: Alert) -> None:
        """Deliver; whatever the notifier raises is raised."""
        notifier, full = self.prepared(context, alert)
        notifier(full)

    async def send_async(self, context: Mapping[str, Any], alert: Alert) -> None:
        """Deliver from an event loop; on a thread if the notifier has no other way."""
        notifier, full = self.prepared(context, alert)
        if (
            isinstance(notifier, BaseNotifier)
            and type(notifier).async_notify is not BaseNotifier.async_notify
        ):
            notifier.context = full  # type: ignore[assignment]
            await notifier
            return
        await asyncio.to_thread(notifier, full)


def routes_of(
    transports: Sequence[Any] | Mapping[str, Sequence[Any]], owner: str
) -> dict[str, list[Transport]]:
    """Return the transports of each team; those of a plain list are everybody's.

    :param owner: who is given them, for messages.
    :raises ConfigurationError: there is none, or one cannot be called.
    """
    routes = dict(transports) if isinstance(transports, Mapping) else {EVERYBODY: transports}
    for notifiers in routes.values():
        if isinstance(notifiers, str) or not isinstance(notifiers, Sequence):
            raise ConfigurationError(
                f"{owner}: {type(notifiers).__name__} is no list of transports. Give a list also of one: [mail]."
            )
        for each in notifiers:
            if not callable(each):
                raise ConfigurationError(
                    f"{owner}: {type(each).__name__} is no transport. Give notifiers of Airflow's, such as SmtpNotifier(…)."
                )
    if not any(routes.values()):
        raise ConfigurationError(f"{owner} has no transports: nobody would be told.")
    return {name: named(notifiers) for name, notifiers in routes.items()}


def named(notifiers: Sequence[Any]) -> list[Transport]:
    """Return transports with names that stay the same from process to process.

    A name has a digest of what the notifier was made with: two of one class tell other people, also where they stand in
    two lists.
    """
    counts: dict[str, int] = {}
    transports = []
    for notifier in notifiers:
        kind = _kind(notifier) if isinstance(notifier, BaseNotifier) else _function_name(notifier)
        counts[kind] = counts.get(kind, 0) + 1
        transports.append(Transport(notifier, kind if counts[kind] == 1 else f"{kind} {counts[kind]}"))
    return transports


def _kind(notifier: BaseNotifier) -> str:
    # Only what is written alike in every process: an object is told by its type. The context is of one call.
    made_with = {name: value for name, value in vars(notifier).items() if name != "context"}
    text = json.dumps(made_with, sort_keys=True, default=lambda value: type(value).__name__, skipkeys=True)
    return f"{type(notifier).__name__} {hashlib.sha256(text.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Due:
    """A message that a transport has to deliver now.

    :param claims: what the ledger is told of when it was delivered; none if the ledger does not answer.
    """

    transport: Transport
    stage: Stage
    claims: tuple[AlertClaim, ...] = ()


@dataclass(frozen=True)
class Desk:
    """Asks the ledger what is to be sent, and tells it what was.

    :param alerts: ``None``: there is no ledger, or it does not answer.
    """

    alerts: Alerts | None

    def due(
        self,
        problem: Problem | None,
        transports: Sequence[Transport],
        subject: str,
        escalate_after_s: float | None,
    ) -> Iterator[Due]:
        """Yield what is to be sent of a problem.

        :param problem: ``None``: nobody can tell whether it was sent before, so it is sent.
        """
        for transport in transports:
            if self.alerts is None or problem is None:
                yield Due(transport, Stage.FIRST)
                continue
            alerts, name = self.alerts, transport.name

            def ask(alerts: Alerts = alerts, name: str = name) -> AlertClaim | None:
                return alerts.claim(problem, name, subject, escalate_after_s=escalate_after_s)

            try:
                claim = within(LEDGER_PATIENCE_S, ask)
            except Exception as error:
                log.warning(
                    "The ledger does not say whether this alert was sent before; it is sent: %s", error
                )
                yield Due(transport, Stage.FIRST)
                continue
            if claim is None:
                log.info("%s was told of this problem before, or is being told.", name)
            else:
                yield Due(transport, claim.stage, (claim,))

    def delivered(self, due: Due) -> None:
        """Mark a message as delivered."""
        log.info("Alert delivered by %s.", due.transport.name)
        self._tell(due, lambda alerts, claim: alerts.delivered(claim))

    def failed(self, due: Due, error: BaseException) -> None:
        """Remember that a transport could not deliver. Its error may hold an address with a password."""
        said = described(error)
        log.error("Alert NOT delivered by %s: %s", due.transport.name, said)
        self._tell(due, lambda alerts, claim: alerts.failed(claim, said))

    def _tell(self, due: Due, work: Callable[[Alerts, AlertClaim], bool]) -> None:
        alerts = self.alerts
        if alerts is None:
            return
        for claim in due.claims:
            try:
                within(LEDGER_PATIENCE_S, lambda claim=claim: work(alerts, claim))  # type: ignore[misc]
            except Exception as error:
                log.warning(
                    "The ledger was not told what became of the alert, it may be sent again: %s", error
                )


def deliver(desk: Desk, due: Due, context: Mapping[str, Any], alert: Alert) -> bool:
    """Send one message; return whether the transport took it."""
    try:
        due.transport.send(context, alert)
    except Exception as error:
        desk.failed(due, error)
        return False
    desk.delivered(due)
    return True


async def deliver_async(desk: Desk, due: Due, context: Mapping[str, Any], alert: Alert) -> bool:
    """Send one message from an event loop; return whether the transport took it."""
    try:
        await due.transport.send_async(context, alert)
    except Exception as error:
        await asyncio.to_thread(desk.failed, due, error)
        return False
    await asyncio.to_thread(desk.delivered, due)
    return True


def within(seconds: float, work: Callable[[], T]) -> T:
    """Return what a function returns, unless it takes too long: a database that is gone may not even refuse.

    :raises TimeoutError: it goes on, on a thread that nobody waits for.
    """
    outcome: dict[str, Any] = {}

    def run() -> None:
        try:
            outcome["value"] = work()
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=run, name="airflow-guard-alert", daemon=True)
    thread.start()
    thread.join(seconds)
    if "error" in outcome:
        raise outcome["error"]
    if "value" not in outcome:
        raise TimeoutError(f"no answer within {seconds:g} s")
    value: T = outcome["value"]
    return value


def _function_name(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))
