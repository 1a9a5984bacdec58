"""Why something happened twice, or not at all: what the scheduling log shows first, what the ledger and the business rows
show second, and these win.

Pure: it is given what was read, and names the cause.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

NEAR = 0.8
"""A duration above this part of a limit is near it: the next slow night is over it."""

_FIRST = 5


class Cause(StrEnum):
    """What happened, in the words of the person who asks."""

    DUPLICATE_TRIGGERING = "duplicate triggering"
    DUPLICATE_EXECUTION = "duplicate execution"
    RERUN_WHOLE = "a batch rerun whole"
    OVERLAP = "overlapping tries"
    NEAR_TIMEOUT = "duration near execution_timeout"
    NEAR_HEARTBEAT = "stopped giving signs of life"
    NEVER_RAN = "never ran"
    PURGED = "purged"
    LISTED_NOTHING = "listed nothing"
    IN_DOUBT = "in doubt"
    NOT_DONE = "not done"
    HELD_BACK = "held back by the ledger"
    NAMESAKE = "done under another key namespace too"
    DOUBLED = "doubled in the business table"
    LOST = "done in the ledger, missing in the business table"
    UNKNOWN_TO_LEDGER = "in the business table, unknown to the ledger"
    NOTHING_WRONG = "nothing wrong"


@dataclass(frozen=True, slots=True)
class Try:
    """One try of a task, as Airflow recorded it.

    :param ended_at: ``None``: it has not ended, or nobody knows when.
    """

    task_id: str
    map_index: int
    number: int
    state: str
    started_at: datetime | None
    ended_at: datetime | None
    host: str = ""

    @property
    def length(self) -> timedelta | None:
        """How long it took."""
        return self.ended_at - self.started_at if self.started_at and self.ended_at else None

    @property
    def name(self) -> str:
        """The task, with its map index if it has one."""
        return self.task_id if self.map_index < 0 else f"{self.task_id}[{self.map_index}]"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the DAG that was about the date.

    :param cleared: how often it was cleared.
    """

    run_id: str
    run_type: str
    state: str
    cleared: int = 0
    triggered_by: str = ""
    tries: Sequence[Try] = ()


@dataclass(frozen=True, slots=True)
class Key:
    """What the ledger knows of one document.

    :param situation: in words, as ``airflow-guard show`` has it.
    """

    operation: str
    document: str | None
    situation: str
    attempt: int
    generation: int = 1


@dataclass(frozen=True)
class Evidence:
    """Everything that was read about one DAG and one business date.

    :param guarded_tries: tries of guarded tasks that the ledger has recorded for the date.
    :param purged: of operations whose keys of the date were purged, by whom and why.
    :param elsewhere: what was said of documents that another key namespace has done as well.
    :param replayed: keys that tries found done, and did not execute.
    :param blocked: keys that tries held back for other reasons.
    :param rows: how many rows of the business table each document has; ``None``: it was not asked.
    :param execution_timeouts: of tasks that have one.
    :param heartbeat_timeout: after which Airflow gives up a try that gives no sign of life.
    """

    runs: Sequence[Run] = ()
    keys: Sequence[Key] = ()
    guarded_tries: int = 0
    purged: Sequence[str] = ()
    elsewhere: Sequence[str] = ()
    replayed: int = 0
    blocked: int = 0
    rows: Mapping[str, int] | None = None
    execution_timeouts: Mapping[str, timedelta] = field(default_factory=dict)
    heartbeat_timeout: timedelta = timedelta(seconds=300)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found.

    :param source: where it was seen: ``scheduling log``, ``ledger`` or ``business rows``.
    """

    source: str
    cause: Cause
    evidence: str
    remedy: str


def diagnose(evidence: Evidence) -> list[Finding]:
    """Return what was found, in the fixed order: scheduling log, ledger, business rows. Never empty."""
    found = [*_of_runs(evidence), *_of_tries(evidence), *_of_ledger(evidence), *_of_rows(evidence)]
    return found or [
        Finding(
            "ledger",
            Cause.NOTHING_WRONG,
            f"{len(evidence.runs)} runs, {len(evidence.keys)} keys, all done once",
            "None.",
        )
    ]


def conclusion(findings: Sequence[Finding], evidence: Evidence) -> str:
    """Return whether harm was done, in one sentence: the business rows say so, else the ledger; never the log alone."""
    causes = {finding.cause for finding in findings}
    if Cause.NAMESAKE in causes and evidence.rows is None:
        return "Another key namespace has done the same documents. If it is the same work, it was done twice."
    if evidence.rows is not None:
        if Cause.DOUBLED in causes:
            return "Business rows are doubled. Correct them, whatever the other sources say."
        if causes & {Cause.LOST, Cause.UNKNOWN_TO_LEDGER}:
            return "Business rows and ledger disagree. The business rows are what happened; find out who wrote them."
        return "No business row is doubled: whatever ran more than once did no harm."
    return _by_the_ledger(causes, evidence)


def _by_the_ledger(causes: set[Cause], evidence: Evidence) -> str:
    if Cause.IN_DOUBT in causes:
        return "Something may or may not have happened. Settle the doubt before anything else."
    if evidence.keys:
        return (
            "The ledger has each document once: a guarded task did no harm, however often it ran. The business table was not "
            "asked; give --table and --table-key to be sure."
        )
    if evidence.purged:
        return (
            "The keys of this date were purged: what was done for it is not known here any more, and a claim of it is "
            "refused. The business table is what is left to ask: --table and --table-key."
        )
    if evidence.guarded_tries:
        return (
            "A guarded task ran for this date and listed no document. Either there was nothing to do, or its listing was "
            "wrong: compare with where the documents come from."
        )
    return (
        "The ledger knows nothing of this date: the work was not guarded, and a second run did what the first did. Ask the "
        "business table: --table and --table-key."
    )


def _of_runs(evidence: Evidence) -> Iterable[Finding]:
    runs, log = evidence.runs, "scheduling log"
    if not runs and not evidence.purged:
        yield Finding(
            log,
            Cause.NEVER_RAN,
            "Airflow has no run for this date",
            "Look at the DAG's schedule, start_date and catchup, and whether it was paused. Then: airflow backfill create.",
        )
    if len(runs) > 1:
        named = "; ".join(f"{run.run_id} ({_by(run)})" for run in runs[:_FIRST])
        yield Finding(
            log,
            Cause.DUPLICATE_TRIGGERING,
            f"{len(runs)} runs for one date: {named}",
            "Somebody or something started the date again. Airflow allows it, so the task must bear it: guard it "
            "(IdempotentOperator). If both are new work, set cycle.",
        )
    for run in runs:
        again = {each.task_id for each in run.tries if each.number > 1}
        tasks = {each.task_id for each in run.tries}
        if run.cleared and again and again == tasks:
            yield Finding(
                log,
                Cause.RERUN_WHOLE,
                f"{run.run_id} was cleared {run.cleared} times, with all of its {len(tasks)} tasks",
                "Clear the task that failed and what is downstream of it, not the run. A guarded batch repeats only the "
                "documents that are not done.",
            )
        elif again:
            tries = Counter(each.name for each in run.tries)
            named = ", ".join(f"{name} {count} tries" for name, count in sorted(tries.items()) if count > 1)
            how = f"cleared {run.cleared} times" if run.cleared else "retries"
            yield Finding(
                log,
                Cause.DUPLICATE_EXECUTION,
                f"{run.run_id}: {named or ', '.join(sorted(again))} ({how})",
                "One run, several executions: each try runs the whole task again. Guard it (IdempotentOperator), or make it "
                "retries=0 until it is.",
            )


def _by(run: Run) -> str:
    return f"{run.run_type}, by {run.triggered_by}" if run.triggered_by else run.run_type


def _of_tries(evidence: Evidence) -> Iterable[Finding]:
    by_task: dict[str, list[Try]] = {}
    for run in evidence.runs:
        for each in run.tries:
            by_task.setdefault(each.name, []).append(each)
    for name, tries in sorted(by_task.items()):
        started = sorted((each for each in tries if each.started_at), key=_start)
        yield from _overlaps(name, started)
        yield from _too_long(name, started, evidence)


def _start(one: Try) -> float:
    return one.started_at.timestamp() if one.started_at else 0.0


def _overlaps(name: str, tries: Sequence[Try]) -> Iterable[Finding]:
    for first, second in pairwise(tries):
        if second.started_at is None or (first.ended_at is not None and first.ended_at <= second.started_at):
            continue
        until = f"ended {first.ended_at:%H:%M:%S}" if first.ended_at else "has not ended"
        yield Finding(
            "scheduling log",
            Cause.OVERLAP,
            f"{name}: a try on {first.host or 'an unknown host'} {until}, another began {second.started_at:%H:%M:%S} on "
            f"{second.host or 'an unknown host'}",
            "Two processes worked at once. No schedule prevents it (a lost heartbeat, a killed supervisor): only a claim in "
            "the ledger does.",
        )


def _too_long(name: str, tries: Sequence[Try], evidence: Evidence) -> Iterable[Finding]:
    task = name.partition("[")[0]
    limit = evidence.execution_timeouts.get(task)
    longest = max((each.length for each in tries if each.length), default=None)
    if longest is None:
        return
    if limit is not None and longest >= NEAR * limit:
        yield Finding(
            "scheduling log",
            Cause.NEAR_TIMEOUT,
            f"{name} took {_said(longest)} of an execution_timeout of {_said(limit)}",
            "Raise execution_timeout first: what is cut off is started again. Then make it faster.",
        )
    heartbeat = evidence.heartbeat_timeout
    for each in tries:
        # A try that Airflow gave up ends as failed about one heartbeat timeout after its last sign of life.
        if each.state in ("failed", "up_for_retry") and each.length and each.length >= NEAR * heartbeat:
            if limit is not None and each.length >= NEAR * limit:
                continue
            yield Finding(
                "scheduling log",
                Cause.NEAR_HEARTBEAT,
                f"{name} try {each.number} failed after {_said(each.length)}; the heartbeat timeout is {_said(heartbeat)}",
                "If its log ends without an error, Airflow gave up a process that may have worked on. Raise [scheduler] "
                "task_instance_heartbeat_timeout first, then look at the host's memory and the API server.",
            )
            return


def _said(length: timedelta) -> str:
    return str(timedelta(seconds=round(length.total_seconds())))


def _of_ledger(evidence: Evidence) -> Iterable[Finding]:
    if evidence.purged:
        yield Finding(
            "ledger",
            Cause.PURGED,
            "; ".join(evidence.purged),
            "None: it is over. Ask the business table what was done.",
        )
    elif evidence.guarded_tries and not evidence.keys:
        yield Finding(
            "ledger",
            Cause.LISTED_NOTHING,
            f"{evidence.guarded_tries} tries of guarded tasks, and not one document",
            "Look at what documents= gave, in the task's log. A night that must bring something says so: expected=, or "
            'on_empty="fail".',
        )
    for said in evidence.elsewhere:
        what, _, remedy = said.partition(" If ")
        yield Finding("ledger", Cause.NAMESAKE, what, f"If {remedy}")
    doubts = [key for key in evidence.keys if key.situation == "in doubt"]
    if doubts:
        yield Finding(
            "ledger",
            Cause.IN_DOUBT,
            f"{len(doubts)} keys are in doubt: {_named(doubts)}",
            "Ask the receiver, then: airflow-guard resolve --key …",
        )
    open_ = [key for key in evidence.keys if key.situation not in ("done", "in doubt")]
    if open_:
        stand = ", ".join(
            f"{count} {name}" for name, count in Counter(key.situation for key in open_).items()
        )
        yield Finding(
            "ledger", Cause.NOT_DONE, f"{stand}: {_named(open_)}", "airflow-guard show says what each needs."
        )
    if evidence.replayed or evidence.blocked:
        yield Finding(
            "ledger",
            Cause.HELD_BACK,
            f"{evidence.replayed} keys were found done and replayed, {evidence.blocked} were held back",
            "None: they were not executed again.",
        )


def _of_rows(evidence: Evidence) -> Iterable[Finding]:
    if evidence.rows is None:
        return
    doubled = {name: count for name, count in evidence.rows.items() if count > 1}
    if doubled:
        named = ", ".join(f"{name} {count} rows" for name, count in sorted(doubled.items())[:_FIRST])
        done_once = {key.document for key in evidence.keys if key.situation == "done" and key.generation == 1}
        guarded = [name for name in doubled if name in done_once]
        remedy = "Reverse what is too much"
        remedy += (
            "; the ledger has executed these once, so somebody else wrote them too, or it writes several rows."
            if guarded
            else ", then guard the task and adopt what is done: airflow-guard adopt."
        )
        yield Finding("business rows", Cause.DOUBLED, f"{len(doubled)} documents: {named}", remedy)
    done = {key.document for key in evidence.keys if key.situation == "done" and key.document is not None}
    lost = sorted(done - set(evidence.rows))
    if lost:
        yield Finding(
            "business rows",
            Cause.LOST,
            f"{len(lost)} documents: {', '.join(lost[:_FIRST])}",
            "Somebody has deleted them, or the table, key or date asked for is another. If they must be done again: "
            "airflow-guard rerun --key … --without-reversal --reason …",
        )
    known = {key.document for key in evidence.keys}
    strange = sorted(set(evidence.rows) - known) if evidence.keys else []
    if strange:
        yield Finding(
            "business rows",
            Cause.UNKNOWN_TO_LEDGER,
            f"{len(strange)} documents: {', '.join(strange[:_FIRST])}",
            "They were written past the guard. Adopt what is right: airflow-guard adopt.",
        )


def _named(keys: Sequence[Key]) -> str:
    names = [
        f"{key.operation} / {key.document if key.document is not None else '(whole run)'}" for key in keys
    ]
    return ", ".join(names[:_FIRST]) + (f" and {len(names) - _FIRST} more" if len(names) > _FIRST else "")
