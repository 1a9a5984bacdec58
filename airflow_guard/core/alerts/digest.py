"""Several problems in one message."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_guard.core.alerts.facts import AlertFacts, Severity, Stage
from airflow_guard.core.alerts.markup import Line, as_html, as_markdown, as_slack, as_text
from airflow_guard.core.alerts.message import HEADLINES, Alert, build_alert
from airflow_guard.core.redaction import without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
    lines = list(_lines(problems, redact))
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


def _lines(problems: Sequence[AlertFacts], redact: Callable[[str], str]) -> Iterator[Line]:
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
