"""Asking a person about breaks, in the Airflow UI, and recording the answer."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypedDict

from airflow_guard.acts import break_decisions
from airflow_guard.core.checks import digest
from airflow_guard.core.commands import breaks_command
from airflow_guard.core.doubts import (
    ACCEPT,
    REASON,
    REFUSE,
    Question,
    Response,
    break_question,
    reason_problem,
)
from airflow_guard.core.errors import BreaksFound
from airflow_guard.operators.asking import Desk

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_guard.core.errors import GuardError
    from airflow_guard.sensors.check_try import CheckTry
    from airflow_guard.sensors.declaration import ReconciliationTask
    from airflow_guard.sensors.report import TryReport
    from airflow_guard.store.break_rows import StoredBreak

log = logging.getLogger(__name__)


class AskedBreaks(TypedDict):
    """What travels with a question about breaks.

    ``until``: when it ends, ISO 8601; ``breaks``: id and digest of the values of each.
    """

    until: str
    breaks: list[list[Any]]


def why_not_asked(report: TryReport, failure: GuardError) -> str | None:
    """Return why nobody can be asked about a failure, ``None`` if somebody can."""
    if not isinstance(failure, BreaksFound):
        return "it is not about breaks"
    if report.time_over:
        return "the difference was still changing when the timeout was over"
    if any(each.capped for each in report.broken):
        return "there are more breaks than max_breaks, and what is not named cannot be accepted"
    return None


@dataclass(frozen=True)
class BreakDesk(Desk):
    """Asks about the breaks of one task try, and takes the answer."""

    task: ReconciliationTask
    attempt: CheckTry

    def ask(self, report: TryReport) -> None:
        """Ask about what fails the task, and end this process; return if it cannot be asked."""
        until = datetime.now(UTC) + self.task.sensor_spec.ask_timeout
        breaks = [one for each in report.broken for one in each.open]
        marks = [_mark(one) for one in breaks]
        # Airflow may show an older question of this task instead: it is told by this.
        name = f"Question {digest(json.dumps(marks))[:12]}"
        question = break_question(
            report.what,
            [f"{each.check.business_date}: {each.check.reason}" for each in report.broken],
            [f"{one.business_date}: {one.found.describe()}" for one in breaks],
            until=until,
            ledger_command=self._command(report),
            name=name,
        )
        if name not in self.put(question).body:
            log.warning(
                "Nobody is asked: Airflow keeps one question for a task of a run, and has one from before, about other "
                "breaks. They can be accepted with: %s",
                self._command(report, explain=True),
            )
            return
        log.warning(
            "A person is asked about %d breaks in the Airflow UI (Required Actions), until %s.",
            len(breaks),
            f"{until:%Y-%m-%d %H:%M} UTC",
        )
        days = [each.check.business_date for each in report.broken]
        why = f"a person is asked about {len(breaks):,} breaks, until {until:%Y-%m-%d %H:%M:%S} UTC"
        break_decisions.note(self.attempt.database, "asked", report.what, days, self.attempt.actor, why)
        words = f"{len(breaks):,} breaks. A person is asked to accept them, until {until:%Y-%m-%d %H:%M} UTC."
        self.tell(words)
        asked: AskedBreaks = {"until": until.isoformat(), "breaks": marks}
        self.wait(question, asked)

    def settle(self, event: Mapping[str, Any], told: AskedBreaks) -> None:
        """Record an answer; ask once more if it is none.

        :raises LedgerError: the answer could not be recorded.
        """
        response = Response.of(event)
        who, database = response.user or "unknown", self.attempt.database
        what, days = self.attempt.what, [self.attempt.business_date]
        if response.user is None and response.problem is None:
            log.warning("Nobody has answered in time: the breaks stay open.")
            break_decisions.note(
                database, "ask_timeout", what, days, self.attempt.actor, "nobody has answered in time"
            )
            return
        if response.problem is None and response.chosen == REFUSE:
            log.warning("%s leaves the breaks open: %s", who, response.reason or "without a reason")
            break_decisions.note(
                database, "answer_left", what, days, who, response.reason or "left open, without a reason"
            )
            return
        problem = response.problem or reason_problem(response)
        if problem is None and response.chosen != ACCEPT:
            problem = f"there is no option {response.chosen!r}"
        if problem is not None:
            log.error("The answer of %s is none: %s. Nothing was changed.", who, problem)
            break_decisions.note(database, "answer_refused", what, days, who, f"not accepted: {problem}")
            reason = {REASON: {"value": "", "description": "", "schema": {}}}
            self.open_again(Question("", "", (ACCEPT, REFUSE), reason), told)
            return
        self._accept(told, who, response.reason)

    def _accept(self, told: AskedBreaks, who: str, reason: str) -> None:
        database, judged = self.attempt.database, {int(number): str(mark) for number, mark in told["breaks"]}
        accepted = break_decisions.accept(database, judged, actor=who, reason=reason)
        for text in accepted.explained:
            log.warning("%s is explained now: %s says so (%s).", text, who, reason)
        for why in accepted.refused.values():
            log.warning("The answer of %s changes nothing here: %s", who, why)
        if accepted.refused:
            first = next(iter(accepted.refused.values()))
            more = f" (and {len(accepted.refused) - 1} more)" if len(accepted.refused) > 1 else ""
            said = f"accepted: {reason}. Changes nothing: {first}{more}"
            break_decisions.note(
                database, "answer_refused", self.attempt.what, [self.attempt.business_date], who, said
            )

    def _command(self, report: TryReport, *, explain: bool = False) -> str:
        (namespace, operation), day = report.names, report.own.check.business_date.isoformat()
        return breaks_command(namespace, day, operation=operation, explain=explain, ledger=report.ledger)


def _mark(one: StoredBreak) -> list[Any]:
    return [one.id, one.found.values_digest]
