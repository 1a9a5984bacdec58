"""From a callback's context and the ledger to the facts of an alert."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_guard.core.alerts.facts import AlertFacts, AlertKind, Step
from airflow_guard.core.commands import breaks_command, resolve_command, show_day_command
from airflow_guard.core.decisions import Decision, Situation
from airflow_guard.notifications.words import totals_in_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from airflow_guard.notifications.callback_context import CallbackContext
    from airflow_guard.reading.alert_facts import Recorded
    from airflow_guard.reading.key_records import KeyRow

_WHOLE_RUN = "the run as a whole"


def facts_of(
    said: CallbackContext, known: Recorded | None, *, ledger: str | None = None, team: str | None = None
) -> AlertFacts:
    """Return the facts of an alert.

    :param said: what the context says.
    :param known: what the ledger knows, ``None`` if that is nothing, or if it does not answer.
    :param ledger: the connection that commands have to name, ``None``: the configured one.
    :param team: who is told.
    """
    same = known if known is not None and known.same_try else None
    documents, more = _documents(same)
    return AlertFacts(
        kind=said.kind,
        is_dag_level=said.is_dag_level,
        dag_id=said.dag_id,
        task_id=said.task_id,
        map_index=said.map_index,
        business_date=known.business_date if known else said.derived_date(),
        cycle=known.cycle if known else None,
        run_id=said.run_id,
        try_number=said.try_number,
        max_tries=said.max_tries,
        will_retry=said.will_retry,
        happened=said.happened if said.kind is AlertKind.QUESTION else _happened(said, same),
        counts=same.counts if same else {},
        figures=totals_in_words(same.totals, said.allowed) if same and same.totals else (),
        documents=documents,
        more_documents=more,
        since=_since(said, same),
        steps=tuple(_steps(said, known, same, ledger)),
        link=said.link,
        team=team,
    )


def _happened(said: CallbackContext, same: Recorded | None) -> str | None:
    if same is not None and same.is_check and same.open_breaks and not said.is_dag_level:
        kinds = {each.found.break_type.replace("_", " ") for each in same.breaks}
        count = f"{same.open_breaks:,} open break{'' if same.open_breaks == 1 else 's'}"
        return f"Source and target differ: {count} ({', '.join(sorted(kinds))})."
    words = said.happened
    if said.is_dag_level and same is not None:
        # A try that has ended left no error where only its documents say why, such as rejected ones.
        why = same.error or (_gone(same) if same.outcome is None else "it failed, and its log says why.")
        return f"{words or 'The run failed.'} Task {same.task_id}: {why}"
    if words is None and said.kind is AlertKind.SKIPPED:
        return "The task was skipped."
    if words is None and same is not None:
        return same.error or (_gone(same) if same.outcome is None else None)
    if words is None and said.task_id is not None:
        return "Airflow gives no exception: the task was killed or lost contact, or its state was changed by hand."
    return words


def _gone(same: Recorded) -> str:
    sign = f" Last sign of life: {same.last_sign_at:%Y-%m-%d %H:%M} UTC." if same.last_sign_at else ""
    return f"The process of the task was killed, or lost contact with Airflow.{sign}"


def _since(said: CallbackContext, same: Recorded | None) -> datetime | None:
    if same is None:
        return said.started_at
    begun = [each.begun_at or each.claimed_at for each in _doubts(same)]
    seen = [each.first_seen_at for each in same.breaks]
    return min(filter(None, [*begun, *seen]), default=same.started_at)


def _documents(same: Recorded | None) -> tuple[Sequence[str], int]:
    if same is None:
        return (), 0
    if same.is_check:
        return [each.found.describe() for each in same.breaks], same.open_breaks - len(same.breaks)
    named = [f"{each.row.document or _WHOLE_RUN} ({each.situation.value})" for each in same.keys]
    open_ = sum(same.counts.get(name, 0) for name in ("in_doubt", "failed", "rejected"))
    return named, max(open_ - len(named), 0)


def _doubts(same: Recorded) -> list[KeyRow]:
    return [each for each in same.keys if each.situation is Situation.IN_DOUBT]


def _steps(
    said: CallbackContext, known: Recorded | None, same: Recorded | None, ledger: str | None
) -> Iterator[Step]:
    if said.kind is AlertKind.QUESTION:
        yield Step(
            "Ask the receiver, or look at the breaks. Then answer in Airflow: the task's Required Actions."
        )
        return
    settling = list(_settling(same, ledger)) if same and not said.will_retry else []
    yield from settling[:2]
    if said.kind is AlertKind.RETRY:
        yield Step("Nothing. Airflow tries again by itself, and what is done is not repeated.")
        return
    if said.kind is AlertKind.SKIPPED:
        yield Step("Nothing, if there was nothing to do on this date.")
        return
    if same is not None and same.is_check and same.open_breaks:
        yield Step("Correct the side that is wrong. Then clear the task in Airflow: what is gone is closed.")
        day, operation = same.business_date.isoformat(), same.operation
        listed = breaks_command(same.key_namespace, day, operation=operation, ledger=ledger)
        yield Step("What is right as it is can be accepted (--explain). All breaks:", listed)
        return
    again = (
        "Clear the task in Airflow" if settling else "Read the log and remove the cause. Then clear the task"
    )
    if known is None or known.is_check:
        yield Step(f"{again}.")
    else:
        day = show_day_command(known.key_namespace, known.business_date.isoformat(), ledger=ledger)
        yield Step(f"{again}; what is done is not repeated. What is open:", day)


def _settling(same: Recorded, ledger: str | None) -> Iterator[Step]:
    """Yield how to settle the first key of each kind that waits for a person."""
    words = {
        Situation.IN_DOUBT: (
            Decision.HAPPENED,
            "Ask the receiver whether {} happened, then say so (--happened or --did-not-happen):",
        ),
        Situation.FOLLOW_UP_OPEN: (
            Decision.FOLLOWED_UP,
            "The effect of {} is done. Finish by hand what follows it, then:",
        ),
        Situation.REJECTED: (
            Decision.WAIVE,
            "{} was refused. Settle it otherwise and waive it (--waive), or --send-again:",
        ),
    }
    for situation, (decision, sentence) in words.items():
        first = next((each for each in same.keys if each.situation is situation), None)
        if first is not None:
            command = resolve_command(first.row.key_hash, decision=decision.value, ledger=ledger)
            yield Step(sentence.format(first.row.document or _WHOLE_RUN), command)
