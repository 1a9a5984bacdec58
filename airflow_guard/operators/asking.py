"""Asking a person about what is in doubt, in the Airflow UI, and recording the answer."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict

from airflow_guard.airflow_compat import await_answer, put_question, without_known_secrets
from airflow_guard.core.commands import resolve_day_command
from airflow_guard.core.doubts import (
    LEAVE_ALL,
    MAX_ASKED,
    SETTLE,
    Answer,
    AskedKey,
    Question,
    Response,
    doubt_question,
    reason_problem,
)
from airflow_guard.core.effects import ASK_FIELDS
from airflow_guard.store import resolution
from airflow_guard.store.events import AuditEvent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

    from airflow_guard.airflow_compat import ShownQuestion
    from airflow_guard.core.decisions import Decision
    from airflow_guard.core.report import Report
    from airflow_guard.operators.task_try import GuardedTry

log = logging.getLogger(__name__)


class AskedDoubts(TypedDict):
    """What travels with a question, so that the task can go on with the answer.

    ``task_run_id`` of the try that asks; ``until``: when the question ends, ISO 8601; ``keys``: see
    :meth:`~airflow_guard.core.doubts.AskedKey.packed`.
    """

    task_run_id: int
    until: str
    keys: list[list[str]]


@dataclass(frozen=True)
class Desk:
    """Puts questions of a task to people, and ends its process until there is an answer.

    :param context: Airflow's.
    """

    context: Context

    def put(self, question: Question) -> ShownQuestion:
        """Show a question in the Airflow UI, and return what is shown: perhaps an older one."""
        return put_question(
            self.context["ti"].id,
            subject=question.subject,
            body=question.body,
            options=question.options,
            fields=question.fields,
        )

    def open_again(self, question: Question, told: Mapping[str, Any]) -> None:
        """Open a question once more, if its time is not over. Airflow shows it as it was, so that its words do not matter.

        :param told: see :meth:`wait`.
        """
        if datetime.fromisoformat(told["until"]) > datetime.now(UTC):
            self.put(question)
            log.warning("The question is open again.")
            self.wait(question, told)

    def wait(self, question: Question, told: Mapping[str, Any]) -> NoReturn:
        """End this process until there is an answer, or until it is too late for one.

        :param told: travels with the question; ``until`` says when it ends, ISO 8601.
        """
        left = datetime.fromisoformat(told["until"]) - datetime.now(UTC)
        await_answer(
            self.context["ti"].id,
            options=question.options,
            fields=question.fields,
            method_name="execute_answered",
            kwargs={"asked": dict(told)},
            timeout=max(left, timedelta(seconds=1)),
        )

    def tell(self, words: str) -> None:
        """Let the alerts of the task tell that it asks: Airflow calls back only when a task has ended."""
        callbacks = getattr(self.context["task"], "on_failure_callback", None) or ()
        for callback in callbacks if isinstance(callbacks, (list, tuple)) else (callbacks,):
            tell = getattr(callback, "tell_question", None)
            if tell is not None:
                tell(self.context, words)


def may_ask(attempt: GuardedTry, report: Report) -> bool:
    """Return whether a person has to be asked: nothing else that this task could still do by itself is left."""
    if not (attempt.spec.asks and report.doubt_count) or report.problem is not None or attempt.is_stopped():
        return False
    if report.retryable and attempt.identity.more_tries:
        log.info("%s effects are in doubt. A person is asked once no retry can help.", report.doubt_count)
        return False
    if report.doubt_count > MAX_ASKED:
        space = attempt.space
        command = resolve_day_command(
            space.key_namespace, space.business_date.isoformat(), space.operation, ledger=attempt.spec.ledger
        )
        report.note = (
            f"{report.doubt_count:,} effects are in doubt, more than the {MAX_ASKED} that a question may have, so nobody "
            f"was asked in the Airflow UI. All of them alike: {command}"
        )
        return False
    return True


@dataclass(frozen=True)
class DoubtDesk(Desk):
    """Asks about the effects of one task try, and takes the answer.

    :param attempt: open.
    :param task_run_id: the try's id in the ledger.
    """

    attempt: GuardedTry
    task_run_id: int

    def ask(self, report: Report) -> None:
        """Ask about what is in doubt, and end this process; return if it cannot be asked."""
        attempt, effect = self.attempt, self.attempt.spec.external
        now = datetime.now(UTC)
        until = now + timedelta(seconds=effect.question_s)
        keys = [
            AskedKey(doubt.name, attempt.space.key_date, doubt.row.key_hash, doubt.row.owner_token)
            for doubt in report.doubts
        ]
        question = doubt_question(
            report.doubts,
            keys,
            attempt.space,
            shown=ASK_FIELDS if effect.ask_fields is None else effect.ask_fields,
            asked_at=now,
            until=until,
            redact=without_known_secrets,
        )
        shown = self.put(question).fields
        asked = [key for key in keys if key.field_name in shown]
        others = [key for key in keys if key.field_name not in shown]
        if others:
            report.note = (
                f"Airflow keeps one question for a task of a run, and has one from before, without "
                f"{', '.join(key.name for key in others)}: settle that with airflow-guard resolve."
            )
            log.warning(report.note)
        if not asked:
            return
        names = ", ".join(key.name for key in asked)
        log.warning(
            "A person is asked about %s in the Airflow UI (Required Actions), until %s.",
            names,
            f"{until:%Y-%m-%d %H:%M} UTC",
        )
        self._note(
            "asked",
            asked,
            attempt.identity.describe(),
            f"a person is asked, until {until:%Y-%m-%d %H:%M:%S} UTC",
        )
        attempt.close(report, "waiting", f"waits for a person, who is asked about {names}")
        self.tell(
            f"It is not known whether {names} happened. A person is asked, until {until:%Y-%m-%d %H:%M} UTC."
        )
        told: AskedDoubts = {
            "task_run_id": self.task_run_id,
            "until": until.isoformat(),
            "keys": [key.packed() for key in asked],
        }
        self.wait(question, told)

    def settle(self, event: Mapping[str, Any], told: AskedDoubts) -> None:
        """Record an answer; ask once more if it is none.

        :raises LedgerError: the answer could not be recorded.
        """
        keys = [AskedKey(name, date.fromisoformat(day), key, token) for name, day, key, token in told["keys"]]
        response = Response.of(event)
        if response.user is None and response.problem is None:
            log.warning("Nobody has answered in time: what is in doubt stays so.")
            self._note("ask_timeout", keys, self.attempt.identity.describe(), "nobody has answered in time")
            return
        answers, problem = read_answers(response, keys)
        if problem is not None:
            who = response.user or "unknown"
            log.error("The answer of %s is none: %s. Nothing was changed.", who, problem)
            self._note("answer_refused", keys, who, f"not accepted: {problem}")
            fields = {
                key.field_name: {"value": Answer.LEAVE.value, "description": key.name, "schema": {}}
                for key in keys
            }
            self.open_again(Question("", "", (SETTLE, LEAVE_ALL), fields), told)
            return
        self._record(answers, response)

    # -- the answer -----------------------------------------------------------------------------------------

    def _record(self, answers: Mapping[AskedKey, Answer], response: Response) -> None:
        who, reason = response.user or "unknown", response.reason
        left = [key for key, answer in answers.items() if answer is Answer.LEAVE]
        if left:
            log.warning("%s leaves %s in doubt.", who, ", ".join(key.name for key in left))
            self._note("answer_left", left, who, reason or "left in doubt, without a reason")
        for answer in (Answer.HAPPENED, Answer.DID_NOT_HAPPEN):
            decision = answer.decision
            keys = [key for key, given in answers.items() if given is answer]
            if keys and decision is not None:
                self._resolve(keys, decision, who, reason)

    def _resolve(self, keys: Sequence[AskedKey], decision: Decision, who: str, reason: str) -> None:
        attempt = self.attempt
        resolved = resolution.resolve_many(
            attempt.ledger,
            [resolution.Judged(key.key_date, key.key_hash, key.owner_token) for key in keys],
            decision,
            actor=who,
            reason=reason,
            ledger_name=attempt.spec.ledger,
        )
        for settled in resolved.settled:
            log.warning("%s is now %s: %s says so (%s).", settled.key_text, settled.after.value, who, reason)
        for key in keys:
            refused = resolved.refused.get(key.key_hash)
            if refused is not None:
                said = f"{decision.value.replace('_', ' ')}: {reason}"
                log.warning(
                    "The answer of %s about %s (%s) changes nothing: %s", who, key.name, said, refused
                )
                self._note("answer_refused", [key], who, f"{said}. Changes nothing: {refused}")

    def _note(self, kind: str, keys: Sequence[AskedKey], actor: str, reason: str) -> None:
        """Write an event for each key."""
        attempt = self.attempt
        events = [
            AuditEvent(
                kind,
                attempt.space.describe(key.name),
                actor,
                reason,
                key.key_date,
                key.key_hash,
                owner_token=key.owner_token,
                task_run_id=self.task_run_id,
            )
            for key in keys
        ]
        attempt.ledger.tell(*events)


def read_answers(response: Response, keys: Sequence[AskedKey]) -> tuple[dict[AskedKey, Answer], str | None]:
    """Return the answer about each effect, or why there is none.

    A field that is missing means "leave". Fields of other effects, which an older question had, are left out.
    """
    if response.problem is not None or response.chosen not in (SETTLE, LEAVE_ALL):
        return {}, response.problem or f"there is no option {response.chosen!r}"
    if response.chosen == LEAVE_ALL:
        return dict.fromkeys(keys, Answer.LEAVE), None
    answers: dict[AskedKey, Answer] = {}
    for key in keys:
        given = response.inputs.get(key.field_name, Answer.LEAVE.value)
        try:
            answers[key] = Answer(given)
        except ValueError:
            allowed = ", ".join(repr(answer.value) for answer in Answer)
            return {}, f"{given!r:.80} is no answer about {key.name}; use {allowed}"
    return answers, reason_problem(response)
