"""From facts to a message: what a person who is woken up at three has to read, and nothing else.

It fits the screen of a telephone: about a dozen lines, none of them long. The rest is behind the link.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC
from typing import TYPE_CHECKING

from airflow_guard.core.alerts.facts import UNKNOWN, AlertFacts, AlertKind, Severity, Stage
from airflow_guard.core.alerts.markup import Line, as_html, as_markdown, as_slack, as_text
from airflow_guard.core.texts import without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


MAX_SUBJECT_CHARACTERS = 150
MAX_SENTENCE_CHARACTERS = 320
MAX_NAME_CHARACTERS = 60
MAX_DOCUMENTS = 3
MAX_FIGURES = 4
MAX_STEPS = 3
DAG_LEVEL = "DAG-level"

HEADLINES: Mapping[AlertKind, str] = {
    AlertKind.SKIPPED: "SKIPPED",
    AlertKind.DAG_FAILED: "RUN FAILED",
    AlertKind.DEADLINE: "LATE",
    AlertKind.QUESTION: "ANSWER NEEDED",
    AlertKind.LEASE_EXPIRED: "NO SIGN OF LIFE",
    AlertKind.IN_DOUBT: "IN DOUBT",
    AlertKind.BREAKS: "OPEN BREAKS",
    AlertKind.CHANGED: "CHANGED AFTER IT PASSED",
    AlertKind.UNDELIVERED: "ALERT NOT DELIVERED",
    AlertKind.MISSING: "NEVER COMPLETED",
    AlertKind.EMPTY: "LISTED NOTHING",
    AlertKind.LEFT: "NOT DONE, NOT TRIED AGAIN",
    AlertKind.FAIL_OVER: "FAIL-OVER NOT CLOSED",
    AlertKind.PARTITIONS: "NO PARTITION AHEAD",
}
# The ledger's words for what became of documents, in the order in which a reader wants them.
_OUTCOMES: Mapping[str, str] = {
    "in_doubt": "in doubt",
    "failed": "failed",
    "rejected": "rejected",
    "blocked": "blocked",
    "waiting": "waiting for others",
    "executed": "done now",
    "replayed": "done before",
}


@dataclass(frozen=True, kw_only=True)
class Alert:
    """A message in all its forms, with the single facts as text; what is not known is ``unknown``.

    In templates of transports: ``{{ alert.text }}``, ``{{ alert.subject }}`` and so on.

    :param subject: one line.
    :param text: plain text; :param html: an HTML fragment; :param markdown: CommonMark; :param slack: ``mrkdwn``.
    :param severity: ``low`` or ``high``.
    :param kind: what is wrong; :param stage: ``first``, ``escalation`` or ``resolved``.
    :param outcome: such as ``failed, final (try 4/4)``.
    :param next_step: the first thing to do, with its command.
    """

    subject: str
    text: str
    html: str
    markdown: str
    slack: str
    severity: str
    kind: str
    stage: str
    outcome: str
    dag_id: str
    task_id: str
    map_index: str
    business_date: str
    cycle: str
    run_id: str
    try_number: str
    max_tries: str
    happened: str
    figures: str
    documents: str
    since: str
    next_step: str
    command: str
    link: str
    team: str

    def __str__(self) -> str:
        return self.text


def build_alert(facts: AlertFacts, redact: Callable[[str], str] = without_secrets) -> Alert:
    """Return the message of some facts.

    :param facts: as far as they are known.
    :param redact: hides secrets, before anything is cut: half a secret is one too.
    """
    facts = facts.redacted(lambda text: without_secrets(redact(text)))
    heading, lines = subject_of(facts), list(_lines(facts))
    return _alert(facts, heading, lines)


def _alert(facts: AlertFacts, heading: str, lines: Sequence[Line]) -> Alert:
    first = facts.steps[0] if facts.steps else None
    return Alert(
        subject=heading,
        text=as_text(heading, lines),
        html=as_html(heading, lines),
        markdown=as_markdown(heading, lines),
        slack=as_slack(heading, lines),
        severity=facts.severity.value,
        kind=facts.kind.value,
        stage=facts.stage.value,
        outcome=outcome_of(facts),
        dag_id=facts.dag_id or UNKNOWN,
        task_id=_task(facts),
        map_index=_number(facts.map_index),
        business_date=facts.business_date.isoformat() if facts.business_date else UNKNOWN,
        cycle=UNKNOWN if facts.cycle is None else facts.cycle,
        run_id=facts.run_id or UNKNOWN,
        try_number=_number(facts.try_number),
        max_tries=_number(facts.max_tries),
        happened=_cut(facts.happened, MAX_SENTENCE_CHARACTERS),
        figures="; ".join(_figures(facts)) or UNKNOWN,
        documents=_documents(facts) or UNKNOWN,
        since=_since(facts),
        next_step=first.words if first else UNKNOWN,
        command=(first.command if first else None) or "",
        link=facts.link or UNKNOWN,
        team=facts.team or UNKNOWN,
    )


def outcome_of(facts: AlertFacts) -> str:
    """Return how it ended, and whether it goes on by itself: ``will retry (1/4)``, ``failed, final (4/4)``."""
    if facts.kind not in (AlertKind.FAILED, AlertKind.RETRY):
        return HEADLINES[facts.kind].lower()
    if facts.max_tries is None and facts.will_retry is None:
        return "failed (retries unknown)"
    tries = f"({_number(facts.try_number)}/{_number(facts.max_tries)})"
    if facts.will_retry is None:
        return f"failed {tries}, retries unknown"
    return f"will retry {tries}" if facts.will_retry else f"failed, final {tries}"


def subject_of(facts: AlertFacts) -> str:
    """Return the one line that is read on a locked screen."""
    word = HEADLINES.get(facts.kind) or outcome_of(facts)
    if word.startswith("failed"):
        word = word.replace("failed", "FAILED", 1)
    if facts.stage is Stage.RESOLVED:
        word = f"RESOLVED (was: {word})"
    if facts.stage is Stage.ESCALATION:
        word = f"STILL: {word}"
    if facts.kind.is_of_the_ledger:
        return f"{word}: the ledger"
    day = f"business date {facts.business_date.isoformat() if facts.business_date else UNKNOWN}"
    cycle = f", cycle {facts.cycle}" if facts.cycle else ""
    names = f"{_cut(facts.dag_id, MAX_NAME_CHARACTERS)} / {_cut(_task(facts), MAX_NAME_CHARACTERS)}{_mapped(facts)}"
    return _cut(f"{word}: {names}, {day}{cycle}", MAX_SUBJECT_CHARACTERS)


def _lines(facts: AlertFacts) -> Iterator[Line]:
    if facts.happened or facts.stage is not Stage.RESOLVED:
        happened = _cut(facts.happened, MAX_SENTENCE_CHARACTERS)
        yield Line(f"What happened is {UNKNOWN}." if happened == UNKNOWN else happened)
    counted = _counted(facts)
    if counted:
        yield Line(counted, "Documents")
    for figure in _figures(facts):
        yield Line(figure)
    if documents := _documents(facts):
        yield Line(documents, "Look at")
    if facts.since is not None or not facts.kind.is_of_the_ledger:
        yield Line(_since(facts), "Since")
    yield from _next(facts)
    if facts.kind.is_of_the_ledger:
        return
    yield Line(facts.link or UNKNOWN, "Airflow", is_link=True)
    yield Line(_identity(facts), "Run")


def _next(facts: AlertFacts) -> Iterator[Line]:
    steps = list(facts.steps[:MAX_STEPS])
    if facts.stage is Stage.RESOLVED or not steps:
        yield Line("Nothing." if facts.stage is Stage.RESOLVED else "Read the log of the task.", "Do now")
        return
    for number, step in enumerate(steps):
        yield Line(step.words, "Do now" if number == 0 else "Then")
        if step.command:
            yield Line(step.command, is_command=True)


def _identity(facts: AlertFacts) -> str:
    """Return which run and try it was, for the person who looks for it."""
    parts = [_cut(facts.run_id, 2 * MAX_NAME_CHARACTERS)]
    if not facts.is_dag_level and facts.kind in (AlertKind.FAILED, AlertKind.RETRY, AlertKind.SKIPPED):
        parts.append(f"try {_number(facts.try_number)} of {_number(facts.max_tries)}")
        again = {
            True: "Airflow tries again by itself",
            False: "Airflow does not try again",
            None: "retries unknown",
        }
        parts.append(again[facts.will_retry])
    return ", ".join(parts)


def _counted(facts: AlertFacts) -> str:
    counts = [
        f"{facts.counts[name]:,} {words}" for name, words in _OUTCOMES.items() if facts.counts.get(name)
    ]
    total = facts.counts.get("documents")
    return f"{total:,}: {', '.join(counts)}" if total and counts else ", ".join(counts)


def _figures(facts: AlertFacts) -> list[str]:
    more = len(facts.figures) - MAX_FIGURES
    shown = [_cut(each, MAX_SENTENCE_CHARACTERS // 2) for each in facts.figures[:MAX_FIGURES]]
    return [*shown, f"… {more:,} more groups"] if more > 0 else shown


def _documents(facts: AlertFacts) -> str:
    named = [_cut(each, MAX_NAME_CHARACTERS) for each in facts.documents[:MAX_DOCUMENTS]]
    more = len(facts.documents) - len(named) + facts.more_documents
    return ", ".join(named) + (f", and {more:,} more" if more and named else "")


def _since(facts: AlertFacts) -> str:
    return UNKNOWN if facts.since is None else f"{facts.since.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _task(facts: AlertFacts) -> str:
    return facts.task_id or (DAG_LEVEL if facts.is_dag_level else UNKNOWN)


def _mapped(facts: AlertFacts) -> str:
    return "" if facts.map_index is None or facts.map_index < 0 else f"[{facts.map_index}]"


def _number(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)


def _cut(text: str | None, limit: int) -> str:
    """Return a text of others on one line, cut at the limit."""
    flat = re.sub(r"\s+", " ", text or "").strip()
    if not flat:
        return UNKNOWN
    return flat if len(flat) <= limit else f"{flat[: limit - 1]}…"


# -- Several problems in one message -------------------------------------------------------------------------

MAX_PROBLEMS = 6


def build_digest(
    problems: Sequence[AlertFacts], *, team: str | None, redact: Callable[[str], str] = without_secrets
) -> Alert:
    """Return one message for several problems; of a single one it is the same message as a callback's.

    :param problems: at least one, with their stages.
    """
    first = build_alert(problems[0], redact)
    if len(problems) == 1:
        return first
    counts = Counter(_word(each) for each in problems)
    heading = f"{len(problems):,} problems{f' for {team}' if team else ''}: " + ", ".join(
        f"{count:,} {word}" for word, count in counts.items()
    )
    lines = list(_digest_lines(problems, redact))
    severe = any(each.severity is Severity.HIGH for each in problems)
    return replace(
        first,
        subject=heading[:150],
        text=as_text(heading, lines),
        html=as_html(heading, lines),
        markdown=as_markdown(heading, lines),
        slack=as_slack(heading, lines),
        severity=(Severity.HIGH if severe else Severity.LOW).value,
        kind="digest",
        outcome=heading,
    )


def _word(facts: AlertFacts) -> str:
    return "resolved" if facts.stage is Stage.RESOLVED else HEADLINES[facts.kind].lower()


def _digest_lines(problems: Sequence[AlertFacts], redact: Callable[[str], str]) -> Iterator[Line]:
    urgent = sorted(problems, key=lambda each: each.severity is Severity.LOW)
    for facts in urgent[:MAX_PROBLEMS]:
        alert = build_alert(facts, redact)
        yield Line(alert.subject)
        if facts.stage is Stage.RESOLVED:
            continue
        documents = f" {alert.documents}." if facts.documents else ""
        since = f" Since {alert.since}." if facts.since or not facts.kind.is_of_the_ledger else ""
        yield Line(f"{alert.happened}{documents}{since} {alert.next_step}")
        if alert.command:
            yield Line(alert.command, is_command=True)
    more = len(problems) - MAX_PROBLEMS
    if more > 0:
        yield Line(f"… and {more:,} more: see the log of the watch.")
