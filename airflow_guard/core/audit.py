"""Which tasks could do their effect twice, and what to do about each. Pure: it is given what a DAG file declares."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_guard.core.diagnosis import NEAR

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

WATCH = "GuardWatchOperator"


class SideEffect(StrEnum):
    """What a task does to the world."""

    NONE = "none"
    DATABASE = "database"
    EXTERNAL = "external"
    UNKNOWN = "unknown"


class Severity(StrEnum):
    """How bad a finding is: ``high`` can move money twice, ``low`` is worth knowing."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


ORDER = (Severity.HIGH, Severity.MEDIUM, Severity.LOW)

# By the names of classes, also of their bases: no provider is imported for it.
_BY_CLASS: tuple[tuple[SideEffect, frozenset[str]], ...] = (
    (
        SideEffect.NONE,
        frozenset(
            {
                "EmptyOperator",
                "BaseSensorOperator",
                "BaseBranchOperator",
                "BranchMixIn",
                "BranchPythonOperator",
                "ShortCircuitOperator",
                "LatestOnlyOperator",
                "SQLCheckOperator",
                "BaseSQLCheckOperator",
                "BaseSQLOperatorCheck",
                "SQLColumnCheckOperator",
                "SQLTableCheckOperator",
                "SQLValueCheckOperator",
                "SQLThresholdCheckOperator",
                "ReconciliationSensor",
                "DuplicateCheckOperator",
                "HITLOperator",
                "GuardRerunOperator",
                WATCH,
            }
        ),
    ),
    (
        SideEffect.EXTERNAL,
        frozenset(
            {
                "HttpOperator",
                "SimpleHttpOperator",
                "EmailOperator",
                "SFTPOperator",
                "SSHOperator",
                "TriggerDagRunOperator",
                "SlackAPIPostOperator",
                "SlackWebhookOperator",
                "S3CreateObjectOperator",
                "LocalFilesystemToS3Operator",
                "KafkaProducer",
                "ProduceToTopicOperator",
                "PublishToPubSubOperator",
                "SqsPublishOperator",
                "SnsPublishOperator",
            }
        ),
    ),
    (
        SideEffect.DATABASE,
        frozenset(
            {
                "SQLExecuteQueryOperator",
                "SQLInsertRowsOperator",
                "PostgresOperator",
                "MySqlOperator",
                "GenericTransfer",
            }
        ),
    ),
)
_READS = re.compile(r"\s*(--[^\n]*\n\s*)*(select|with|show|explain)\b", re.IGNORECASE)
_WRITES = re.compile(
    r"\b(insert|update|delete|merge|truncate|call|replace|create|drop|alter)\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """What a DAG file declares about one task.

    :param classes: the names of its operator's class and of the bases.
    :param sql: the statements that it executes, if it says so.
    :param guard: what guards it, ``None`` if nothing does.
    :param longest: how long it took at most, as far as anybody knows.
    """

    dag_id: str
    task_id: str
    classes: Sequence[str]
    retries: int
    execution_timeout: timedelta | None = None
    sql: str | None = None
    guard: GuardFacts | None = None
    longest: timedelta | None = None


@dataclass(frozen=True, slots=True)
class GuardFacts:
    """How a guarded task is guarded."""

    side_effect: SideEffect
    once_per: str
    mode: str
    has_verify: bool
    on_rerun: bool


@dataclass(frozen=True, slots=True)
class DagFacts:
    """What a DAG file declares about one DAG.

    :param scheduled: whether it runs by itself.
    """

    dag_id: str
    scheduled: bool
    catchup: bool
    max_active_runs: int
    tasks: Sequence[TaskFacts] = ()


@dataclass(frozen=True, slots=True)
class AuditedTask:
    """One line of the inventory."""

    task: TaskFacts
    dag: DagFacts
    side_effect: SideEffect
    protection: str


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One thing to mend.

    :param task_id: ``None``: it is about the DAG, or about all of them.
    """

    severity: Severity
    dag_id: str | None
    task_id: str | None
    problem: str
    fix: str


@dataclass(frozen=True)
class Audit:
    """What was found."""

    tasks: Sequence[AuditedTask] = ()
    findings: Sequence[AuditFinding] = field(default_factory=tuple)

    def reaches(self, severity: Severity) -> bool:
        """Return whether a finding is as bad as that, or worse."""
        return any(ORDER.index(each.severity) <= ORDER.index(severity) for each in self.findings)


def side_effect_of(task: TaskFacts) -> SideEffect:
    """Return what a task does, as far as its declaration tells; unknown if it does not."""
    if task.guard is not None:
        return task.guard.side_effect
    for effect, names in _BY_CLASS:
        if names & set(task.classes):
            if (
                effect is SideEffect.DATABASE
                and task.sql
                and _READS.match(task.sql)
                and not _WRITES.search(task.sql)
            ):
                return SideEffect.NONE
            return effect
    return SideEffect.UNKNOWN


def audit(dags: Sequence[DagFacts], import_errors: Mapping[str, str] | None = None) -> Audit:
    """Return the inventory of all tasks and what is to be mended, the worst first."""
    tasks, findings = [], []
    for path, error in sorted((import_errors or {}).items()):
        findings.append(
            AuditFinding(
                Severity.HIGH,
                None,
                None,
                f"{path} cannot be imported: {error}",
                "Mend it; nothing in it was audited.",
            )
        )
    for dag in sorted(dags, key=lambda dag: dag.dag_id):
        for task in dag.tasks:
            audited = AuditedTask(task, dag, side_effect_of(task), _protection(task))
            tasks.append(audited)
            findings += _of_task(audited)
    if any(each.task.guard for each in tasks) and not any(WATCH in each.task.classes for each in tasks):
        findings.append(
            AuditFinding(
                Severity.LOW,
                None,
                None,
                "no DAG watches the ledger: a process that was killed tells nobody",
                f"Schedule {WATCH}, or look every morning: airflow-guard show --state unfinished.",
            )
        )
    findings.sort(key=lambda each: (ORDER.index(each.severity), each.dag_id or "", each.task_id or ""))
    return Audit(tasks, findings)


def _protection(task: TaskFacts) -> str:
    if task.guard is None:
        return "none"
    observed = ", only observed" if task.guard.mode == "observe" else ""
    return f"ledger, once per {task.guard.once_per}{observed}"


def _of_task(audited: AuditedTask) -> Collection[AuditFinding]:
    found = _of_unguarded(audited) if audited.task.guard is None else _of_guarded(audited)
    return [*found, *_of_timeout(audited)]


def _of_unguarded(audited: AuditedTask) -> list[AuditFinding]:
    task, dag, effect = audited.task, audited.dag, audited.side_effect
    if effect is SideEffect.NONE:
        return []
    again = [f"retries={task.retries}"] if task.retries else []
    again += ["catchup=True"] if dag.scheduled and dag.catchup else []
    again += [f"max_active_runs={dag.max_active_runs}"] if dag.scheduled and dag.max_active_runs != 1 else []
    why = f" ({', '.join(again)})" if again else ""
    severity = Severity.MEDIUM
    if effect is SideEffect.UNKNOWN:
        severity = Severity.LOW
    elif task.retries:
        severity = Severity.HIGH
    effect_said = (
        "may have a side effect" if effect is SideEffect.UNKNOWN else f"has a side effect ({effect})"
    )
    return [
        AuditFinding(
            severity,
            dag.dag_id,
            task.task_id,
            f"{effect_said} and nothing stops a second execution{why}",
            "If it posts, pays or sends: make it an IdempotentOperator. Until then retries=0.",
        )
    ]


def _of_guarded(audited: AuditedTask) -> list[AuditFinding]:
    task, dag, found = audited.task, audited.dag, []
    guard = task.guard
    if guard is None:
        return []
    if guard.mode == "observe":
        found.append(
            AuditFinding(
                Severity.MEDIUM,
                dag.dag_id,
                task.task_id,
                'mode="observe": it records, and holds nothing back',
                'Read what it would have blocked, then mode="enforce".',
            )
        )
    if guard.side_effect is SideEffect.EXTERNAL and not guard.has_verify:
        found.append(
            AuditFinding(
                Severity.LOW,
                dag.dag_id,
                task.task_id,
                "no verify: each doubt waits for a person",
                "External(verify=…, settle_after=…), if the receiver can be asked.",
            )
        )
    if not task.retries:
        found.append(
            AuditFinding(
                Severity.LOW,
                dag.dag_id,
                task.task_id,
                "retries=0: what a retry would finish waits for a person",
                "A guarded task can be retried: set retries.",
            )
        )
    return found


def _of_timeout(audited: AuditedTask) -> list[AuditFinding]:
    task = audited.task
    limit, longest = task.execution_timeout, task.longest
    if limit is None or longest is None or longest < NEAR * limit:
        return []
    said = f"it took {timedelta(seconds=round(longest.total_seconds()))} of an execution_timeout of {limit}"
    unguarded = task.guard is None and audited.side_effect is not SideEffect.NONE
    severity = Severity.HIGH if unguarded else Severity.MEDIUM
    fix = "Raise execution_timeout first: what is cut off is started again."
    return [AuditFinding(severity, audited.dag.dag_id, task.task_id, said, fix)]
