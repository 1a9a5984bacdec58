"""``GuardWatchOperator``: finds what no callback can say, and tells each team of it in one message."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_guard.airflow_compat import let_threads_talk, without_known_secrets
from airflow_guard.core.alerts.expected import ExpectedOperation
from airflow_guard.core.alerts.facts import NO_TASK, AlertFacts, AlertKind, Problem, Stage
from airflow_guard.core.alerts.message import build_digest, subject_of
from airflow_guard.core.errors import ConfigurationError, GuardError
from airflow_guard.core.parameters import age, duration
from airflow_guard.core.texts import meant
from airflow_guard.hooks.ledger import ledger_conn_id, open_ledger
from airflow_guard.hooks.settings import GuardSettings
from airflow_guard.notifications.callback_context import CallbackContext
from airflow_guard.notifications.delivery import EVERYBODY, Desk, Due, Transport, deliver, routes_of
from airflow_guard.operators.endings import GuardRetry, as_airflow
from airflow_guard.reading.watching import WATCHED, Watch
from airflow_guard.store.alerts import Alerts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow.sdk import Context

    from airflow_guard.store.alerts import StoredAlert
    from airflow_guard.store.ledger import Ledger

_LEASE_GRACE_S = 60.0
_FAIL_OVER_AGE = timedelta(days=1)
# That a date has changed, or that an alert was late, is no state that ends.
_WITHOUT_AN_END = frozenset({AlertKind.CHANGED, AlertKind.UNDELIVERED})


class GuardWatchOperator(BaseOperator):
    """Looks at the ledger and tells of expired leases, doubts, aged breaks, alerts that were not delivered, dates that
    passed and then changed, business dates that never completed, listings that brought nothing, failed documents that nobody
    tries again, and of what the ledger itself wants: a fail-over that
    nobody has closed for a day, partitions for the next month.

    ::

        GuardWatchOperator(
            task_id="watch",
            transports=[SmtpNotifier(from_email="airflow@example.com", to="oncall@example.com")],
            expected=[ExpectedOperation(key_namespace="statements", operation="post_statement",
                                        since="2026-01-01", calendar="DE")],
        )

    Each team gets one message with what is new. A problem is told once, once more after ``escalate_after``, and once
    when it is gone.

    :param transports: notifiers of Airflow's, or a mapping from team to notifiers, ``"*"`` for all others.
    :param teams: which team watches which DAGs: a mapping from team to patterns of ``key_namespace``, such as
        ``{"payments": ["pay_*"]}``. Default: one team.
    :param expected: operations that have to complete for each of their dates.
    :param left_age: how long nobody must have tried a failed document again. Default 24 hours.
    :param break_age: how old an open break must be. Default 24 hours.
    :param escalate_after: when what is still there is told once more. Default 4 hours.
    :param lookback_days: how far back to look for missing and changed dates. Default 14.
    :param ledger_conn_id: connection of the ledger. Default ``[airflow_guard] ledger_conn_id``.
    :raises ConfigurationError: when the DAG is parsed, for what cannot work, such as a team without transports.
    """

    ui_color = "#e6f2e9"

    def __init__(
        self,
        *,
        transports: Sequence[Any] | Mapping[str, Sequence[Any]],
        teams: Mapping[str, Sequence[str]] | None = None,
        expected: Sequence[ExpectedOperation] = (),
        left_age: timedelta | float = timedelta(hours=24),
        break_age: timedelta | float = timedelta(hours=24),
        escalate_after: timedelta | float = timedelta(hours=4),
        lookback_days: int = 14,
        ledger_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.routes = routes_of(transports, "GuardWatchOperator")
        for each in expected:
            if not isinstance(each, ExpectedOperation):
                raise ConfigurationError(f"expected={each!r:.80} is not an ExpectedOperation(…).")
        if lookback_days < 1:
            raise ConfigurationError(f"lookback_days={lookback_days}: at least 1.")
        self.teams = {name: list(patterns) for name, patterns in (teams or {}).items()}
        self._check_teams()
        self.expected = list(expected)
        self.left_age = age("left_age", left_age)
        self.break_age = age("break_age", break_age)
        self.escalate_after = duration("escalate_after", escalate_after)
        self.lookback_days = lookback_days
        self.ledger_conn_id = ledger_conn_id

    def execute(self, context: Context) -> dict[str, int]:
        """Look once, tell what is new, and return how many problems of each kind there are.

        :raises GuardRetry: the ledger does not answer, or a message was delivered by no transport of its team.
        :raises GuardFailure: what no retry helps, such as a problem of a team that has no transport. The others were told.
        """
        let_threads_talk()
        try:
            ledger = open_ledger(ledger_conn_id(self.ledger_conn_id), executor=self.executor)
            try:
                return self._watch(ledger, context)
            finally:
                ledger.database.dispose()
        except GuardError as error:
            raise as_airflow(error) from error

    def _watch(self, ledger: Ledger, context: Context) -> dict[str, int]:
        deployment = GuardSettings.read().deployment
        watch = Watch(ledger, deployment, self.ledger_conn_id)
        found = [routed for facts in self._findings(watch) for routed in self._routed(facts)]
        for facts in found:
            self.log.warning("%s. %s", subject_of(facts), facts.happened)
        alerts = Alerts(ledger.database)
        teams = sorted({facts.team or "" for facts in found} | set(self.teams) | {""})
        untold = [team for team in teams if not self._tell(team, found, alerts, deployment, context)]
        self._check_everybody_is_told(found)
        if untold:
            raise GuardRetry(
                f"Nobody was told: every transport of {', '.join(team or 'the default team' for team in untold)} has "
                "failed, see the log. What was not delivered is sent by the next watch."
            )
        return {kind.value: sum(each.kind is kind for each in found) for kind in AlertKind if kind in WATCHED}

    def _findings(self, watch: Watch) -> Iterator[AlertFacts]:
        now = watch.now()
        yield from watch.doubts()
        yield from watch.missing(self.expected, self.lookback_days)
        yield from watch.empty(now - timedelta(days=self.lookback_days), self.expected)
        yield from watch.left(self.left_age)
        yield from watch.expired_leases(_LEASE_GRACE_S)
        yield from watch.aged_breaks(self.break_age)
        yield from watch.changed(now - timedelta(days=self.lookback_days))
        yield from watch.undelivered()
        yield from watch.upkeep(_FAIL_OVER_AGE)

    def _routed(self, facts: AlertFacts) -> list[AlertFacts]:
        """Return the facts for the team that they concern; for every team, if they concern all."""
        if facts.kind.is_of_the_ledger:
            return [replace(facts, team=team) for team in (self.teams or ("",))]
        name = facts.dag_id or ""
        team = next(
            (
                team
                for team, patterns in self.teams.items()
                if any(fnmatchcase(name, each) for each in patterns)
            ),
            "",
        )
        return [replace(facts, team=team, link=CallbackContext({"dag_id": name}).link)]

    def _check_teams(self) -> None:
        if self.routes.get(EVERYBODY):
            return
        unreachable = [name for name in self.teams or ("",) if not self.routes.get(name)]
        if unreachable:
            name = unreachable[0]
            whose = f"team {name!r}" if name else "the DAGs of no team"
            raise ConfigurationError(
                f"GuardWatchOperator: transports has nobody for {whose}, and no {EVERYBODY!r} for all others."
                f"{meant(name, self.routes)}"
            )

    def _check_everybody_is_told(self, found: Sequence[AlertFacts]) -> None:
        unheard = [facts for facts in found if not self._transports(facts.team or "")]
        if unheard:
            named = "; ".join(subject_of(facts) for facts in unheard[:3])
            more = f"; and {len(unheard) - 3:,} more" if len(unheard) > 3 else ""
            raise ConfigurationError(
                f"Nobody is told of these, because teams and transports have nobody for their DAGs: {named}{more}. Add "
                f"{EVERYBODY!r} to transports. All others were told."
            )

    def _transports(self, team: str) -> Sequence[Transport]:
        return self.routes.get(team) or self.routes.get(EVERYBODY) or ()

    # -- one team -------------------------------------------------------------------------------------------

    def _tell(
        self, team: str, found: Sequence[AlertFacts], alerts: Alerts, deployment: str, context: Context
    ) -> bool:
        """Tell a team what is new; return whether a transport has delivered, or had nothing to."""
        desk = Desk(alerts)
        problems = [(_problem(facts, deployment), facts) for facts in found if (facts.team or "") == team]
        gone = self._gone(alerts, deployment, team, {problem.hash_for("") for problem, _ in problems})
        outcomes = []
        for transport in self._transports(team):
            news = [*self._news(desk, transport, problems), *self._over(alerts, transport, gone)]
            if news:
                due = Due(transport, Stage.FIRST, tuple(claim for claims, _ in news for claim in claims))
                facts = [each for _, each in news]
                digest = build_digest(facts, team=team or None, redact=without_known_secrets)
                outcomes.append(deliver(desk, due, context, digest))
        return any(outcomes) or not outcomes

    def _news(
        self, desk: Desk, transport: Transport, problems: Sequence[tuple[Problem, AlertFacts]]
    ) -> Iterator[tuple[tuple[Any, ...], AlertFacts]]:
        for problem, facts in problems:
            for due in desk.due(problem, [transport], subject_of(facts), self.escalate_after.total_seconds()):
                yield due.claims, replace(facts, stage=due.stage)

    def _gone(self, alerts: Alerts, deployment: str, team: str, there: set[str]) -> list[StoredAlert]:
        told = alerts.open_of_kinds(deployment, WATCHED, team)
        return [each for each in told if each.problem.hash_for("") not in there]

    def _over(
        self, alerts: Alerts, transport: Transport, gone: Sequence[StoredAlert]
    ) -> Iterator[tuple[tuple[Any, ...], AlertFacts]]:
        for each in gone:
            if each.transport != transport.name:
                continue
            claim = alerts.claim_resolved(each)
            if claim is not None and each.problem.kind not in _WITHOUT_AN_END:
                yield (claim,), _resolved(each)


def _problem(facts: AlertFacts, deployment: str) -> Problem:
    day = facts.business_date.isoformat() if facts.business_date else ""
    parts = [day, facts.cycle or "", facts.run_id or "", str(facts.try_number or "")]
    if facts.kind is AlertKind.FAIL_OVER and facts.since is not None:  # each of them is a problem of its own
        parts = [facts.since.isoformat()]
    return Problem(
        deployment=deployment,
        dag_id=facts.dag_id or "",
        kind=facts.kind,
        what=" ".join(parts)
        if facts.kind is not AlertKind.UNDELIVERED
        else (facts.happened or "").partition(" (")[0],
        task_id=facts.task_id or NO_TASK,
        map_index=-1 if facts.map_index is None else facts.map_index,
        run_id=facts.run_id or "",
        business_date=facts.business_date,
        team=facts.team or "",
    )


def _resolved(alert: StoredAlert) -> AlertFacts:
    problem = alert.problem
    return AlertFacts(
        kind=problem.kind,
        stage=Stage.RESOLVED,
        dag_id=problem.dag_id,
        task_id=problem.task_id or None,
        map_index=problem.map_index,
        business_date=problem.business_date,
        run_id=problem.run_id or None,
        happened="It is no longer found.",
        since=alert.opened_at,
        link=CallbackContext({"dag_id": problem.dag_id}).link,
        team=problem.team,
    )
