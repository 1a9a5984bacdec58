"""``GuardNotifier``: composes an alert from a callback's context and the ledger, and lets others deliver it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook, BaseNotifier

from airflow_guard.airflow_compat import let_threads_talk, without_known_secrets
from airflow_guard.core.alerts.facts import NO_TASK, AlertFacts, AlertKind, Problem, Stage
from airflow_guard.core.alerts.message import build_alert
from airflow_guard.core.errors import ConfigurationError
from airflow_guard.core.parameters import duration
from airflow_guard.hooks.ledger import find_connection, ledger_conn_id, ledger_of
from airflow_guard.hooks.settings import GuardSettings
from airflow_guard.notifications.callback_context import CallbackContext
from airflow_guard.notifications.composing import facts_of
from airflow_guard.notifications.delivery import (
    EVERYBODY,
    LEDGER_PATIENCE_S,
    Desk,
    Due,
    Transport,
    deliver,
    deliver_async,
    routes_of,
    within,
)
from airflow_guard.reading.alert_facts import recorded
from airflow_guard.store.alerts import Alerts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow.sdk import Connection, Context

    from airflow_guard.core.alerts.message import Alert
    from airflow_guard.core.parameters import AlertEvent
    from airflow_guard.reading.alert_facts import Recorded
    from airflow_guard.store.ledger import Ledger

log = logging.getLogger(__name__)
_EVENTS: Mapping[AlertEvent, AlertKind | None] = {
    "failure": AlertKind.FAILED,
    "retry": AlertKind.RETRY,
    "skipped": AlertKind.SKIPPED,
    "dag_failure": AlertKind.DAG_FAILED,
    "deadline": AlertKind.DEADLINE,
    "success": None,
}


@dataclass(frozen=True)
class _Plan:
    """What there is to say, to whom, and whether somebody has said it."""

    facts: AlertFacts
    desk: Desk
    dues: Sequence[Due]
    ledger: Ledger | None = None

    def alert(self, due: Due) -> Alert:
        return build_alert(replace(self.facts, stage=due.stage), without_known_secrets)

    def end(self) -> None:
        if self.ledger is not None:
            self.ledger.database.dispose()


class GuardNotifier(BaseNotifier):
    """Tells what happened, since when, and what to do next, by Airflow's own notifiers.

    ::

        IdempotentOperator(
            task_id="post",
            on_failure_callback=GuardNotifier(
                transports=[SmtpNotifier(from_email="airflow@example.com", to="oncall@example.com")]
            ),
            ...,
        )

    Each transport is told of a problem once, and again only after ``escalate_after`` if somebody asks again. A
    transport that fails is logged; the next callback, or ``GuardWatchOperator``, finds what was not delivered.

    Templated fields of the transports can use ``{{ alert.text }}``, ``{{ alert.subject }}``, ``{{ alert.html }}``,
    ``{{ alert.markdown }}``, ``{{ alert.slack }}`` and the single facts of
    :class:`~airflow_guard.core.alerts.message.Alert`.

    :param transports: notifiers; or a mapping from team to notifiers, ``"*"`` for all others.
    :param on: ``"failure"``, ``"retry"``, ``"skipped"``, ``"dag_failure"``, ``"deadline"``, or ``"success"``: says
        "resolved" of what was said about the task before. Default: what the context says, a failure or a deadline.
    :param team: who is told. Default: what the tag ``team:…`` of the DAG names.
    :param announce_retries: whether a failure that Airflow tries again by itself is told. Default yes, as ``low``.
    :param escalate_after: when a problem that is still there may be told once more. Default 4 hours.
    :param ledger_conn_id: connection of the ledger. Default: the task's, then ``[airflow_guard] ledger_conn_id``.
    :param context: for asynchronous use, as Airflow's notifiers have it.
    :raises ConfigurationError: no transport, or an unknown ``on``.
    """

    def __init__(
        self,
        *,
        transports: Sequence[Any] | Mapping[str, Sequence[Any]],
        on: AlertEvent | None = None,
        team: str | None = None,
        announce_retries: bool = True,
        escalate_after: timedelta | float = timedelta(hours=4),
        ledger_conn_id: str | None = None,
        context: Context | None = None,
    ) -> None:
        super().__init__(context=context)
        if on is not None and on not in _EVENTS:
            raise ConfigurationError(f"on={on!r} is none of {', '.join(_EVENTS)}.")
        self.routes = routes_of(transports, "GuardNotifier")
        self.on = on
        self.team = team
        self.announce_retries = announce_retries
        self.escalate_after = duration("escalate_after", escalate_after)
        self.ledger_conn_id = ledger_conn_id

    def __call__(self, *args: Any) -> None:
        """Tell of it. Never raises."""
        context = args[0] if args and isinstance(args[0], Mapping) else {}
        self.notify(context)  # type: ignore[arg-type]

    def notify(self, context: Context) -> None:
        """Tell of it. Never raises: what goes wrong is logged."""
        self._tell(context, self._said)

    def tell_question(self, context: Context, words: str) -> None:
        """Tell that a task asks a person, with the same transports. Never raises.

        :param words: what is asked, and until when.
        """
        asked = {**context, "exception": words}
        self._tell(context, lambda _: CallbackContext(asked, AlertKind.QUESTION))

    def _tell(self, context: Context, read: Callable[[Context], CallbackContext]) -> None:
        try:
            let_threads_talk()
            said = read(context)
            plan = self._plan(said, self._ledger(said))
            if plan is None:
                return
            try:
                for due in plan.dues:
                    deliver(plan.desk, due, context, plan.alert(due))
            finally:
                plan.end()
        except Exception:
            log.exception("An alert could not be composed")

    async def async_notify(self, context: Context) -> None:
        """Tell of it from an event loop, as the triggerer does. Never raises."""
        try:
            said = self._said(context)
            ledger = await self._ledger_async(said)
            plan = await asyncio.to_thread(self._plan, said, ledger)
            if plan is None:
                return
            try:
                for due in plan.dues:
                    await deliver_async(plan.desk, due, context, plan.alert(due))
            finally:
                plan.end()
        except Exception:
            log.exception("An alert could not be composed")

    # -- what to say ----------------------------------------------------------------------------------------

    def _said(self, context: Mapping[str, Any]) -> CallbackContext:
        return CallbackContext(context, None if self.on is None else _EVENTS[self.on])

    def _plan(self, said: CallbackContext, ledger: Ledger | None) -> _Plan | None:
        if said.kind is AlertKind.RETRY and not self.announce_retries:
            return None
        if self.on == "success":
            return self._resolving(said, ledger)
        known = self._known(said, ledger)
        team = self.team or said.team
        facts = facts_of(said, known, ledger=self.ledger_conn_id or said.ledger_conn_id, team=team)
        desk = Desk(Alerts(ledger.database) if ledger else None)
        subject = build_alert(facts, without_known_secrets).subject
        after_s = self.escalate_after.total_seconds()
        dues = list(desk.due(self._problem(facts, known), self._transports(team), subject, after_s))
        return _Plan(facts, desk, dues, ledger)

    def _transports(self, team: str | None) -> Sequence[Transport]:
        transports = self.routes.get(team or EVERYBODY) or self.routes.get(EVERYBODY)
        if not transports:
            log.error('Nobody is told of this: transports has neither team %r nor "*".', team)
        return transports or ()

    def _problem(self, facts: AlertFacts, known: Recorded | None) -> Problem | None:
        """Return what the alert is about; ``None`` where another alert could not be told from it."""
        number = facts.try_number or (known.try_number if known and not facts.is_dag_level else None)
        if facts.dag_id is None or facts.run_id is None or (number is None and not facts.is_dag_level):
            return None
        return Problem(
            deployment=GuardSettings.read().deployment,
            dag_id=facts.dag_id,
            kind=facts.kind,
            what=f"{facts.run_id} try {number or 'any'}",
            task_id=facts.task_id or NO_TASK,
            map_index=-1 if facts.map_index is None else facts.map_index,
            run_id=facts.run_id,
            business_date=facts.business_date,
            team=facts.team or "",
        )

    def _resolving(self, said: CallbackContext, ledger: Ledger | None) -> _Plan | None:
        """Return the message that what was said of a task is over, for each transport that said it."""
        if ledger is None or said.dag_id is None or said.run_id is None or said.task_id is None:
            return None
        alerts = Alerts(ledger.database)
        index = -1 if said.map_index is None else said.map_index
        deployment = GuardSettings.read().deployment
        told = within(
            LEDGER_PATIENCE_S,
            lambda: alerts.open_of_task(
                deployment, said.dag_id or "", said.task_id or "", index, said.run_id or ""
            ),
        )
        claims = [(each.transport, alerts.claim_resolved(each)) for each in told]
        team = self.team or said.team
        dues = [
            Due(transport, Stage.RESOLVED, mine)
            for transport in self._transports(team)
            if (mine := tuple(claim for name, claim in claims if claim and name == transport.name))
        ]
        facts = facts_of(said, self._known(said, ledger) if dues else None, team=team)
        happened = (
            f"The task has succeeded with try {said.try_number or 'unknown'}. {len(told)} alerts are closed."
        )
        only_asked = bool(told) and all(each.problem.kind is AlertKind.QUESTION for each in told)
        kind = AlertKind.QUESTION if only_asked else AlertKind.FAILED
        facts = replace(facts, kind=kind, will_retry=False, happened=happened, steps=(), documents=())
        return _Plan(facts, Desk(alerts), dues, ledger)

    # -- the ledger -----------------------------------------------------------------------------------------

    def _known(self, said: CallbackContext, ledger: Ledger | None) -> Recorded | None:
        asked = said.asked
        if ledger is None or asked is None:
            return None
        try:
            return within(LEDGER_PATIENCE_S, lambda: recorded(ledger, asked))
        except Exception as error:
            log.warning("The ledger does not say what it knows about this task: %s", error)
            return None

    def _ledger(self, said: CallbackContext) -> Ledger | None:
        try:
            return self._open(find_connection(self._conn_id(said)))
        except Exception as error:
            log.warning("The alert is composed without the ledger: %s", error)
            return None

    async def _ledger_async(self, said: CallbackContext) -> Ledger | None:
        try:
            connection = await BaseHook.aget_connection(self._conn_id(said))
            return await asyncio.to_thread(self._open, connection)
        except Exception as error:
            log.warning("The alert is composed without the ledger: %s", error)
            return None

    def _conn_id(self, said: CallbackContext) -> str:
        return ledger_conn_id(self.ledger_conn_id or said.ledger_conn_id)

    def _open(self, connection: Connection) -> Ledger:
        settings = GuardSettings.read()
        return within(LEDGER_PATIENCE_S, lambda: ledger_of(connection, settings))
