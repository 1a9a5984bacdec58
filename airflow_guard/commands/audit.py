"""``audit``: which tasks of a DAG folder could do their effect twice."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_guard.acts.arguments import UsageError
from airflow_guard.commands import output
from airflow_guard.commands.ledgers import open_ledger
from airflow_guard.core.audit import Audit, DagFacts, GuardFacts, Severity, SideEffect, TaskFacts, audit
from airflow_guard.core.errors import ResolutionError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import timedelta

FOUND = 1
STYLES = {"high": "bold red", "medium": "yellow", "low": "dim"}


def run(given: argparse.Namespace) -> int:
    """Audit, print, and return 1 if something is as bad as ``--fail-on`` says."""
    dags, errors = _dags(given.paths)
    longest = _longest(given)
    if longest:
        dags = [
            replace(
                dag,
                tasks=[replace(task, longest=longest.get((dag.dag_id, task.task_id))) for task in dag.tasks],
            )
            for dag in dags
        ]
    audited = audit(dags, errors)
    _print(audited, given)
    return FOUND if given.fail_on != "never" and audited.reaches(Severity(given.fail_on)) else 0


def _dags(paths: Sequence[str]) -> tuple[list[DagFacts], dict[str, str]]:
    """Return what the DAG files declare, and which of them cannot be imported."""
    os.environ.setdefault("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
    try:
        with redirect_stdout(sys.stderr):  # what DAG files print must not get into the data
            from airflow import settings

            try:
                from airflow.dag_processing.dagbag import DagBag
            except ImportError:  # Airflow 3.1
                from airflow.models.dagbag import DagBag  # type: ignore[no-redef]

            found: dict[str, DagFacts] = {}
            errors: dict[str, str] = {}
            for path in paths or [settings.DAGS_FOLDER]:
                if not Path(path).exists():
                    raise UsageError(f"there is no {path}")
                bag = DagBag(dag_folder=path, bundle_path=None, safe_mode=False)
                found |= {dag_id: _dag_facts(dag) for dag_id, dag in bag.dags.items()}
                errors |= {
                    where: str(error).strip().splitlines()[-1] for where, error in bag.import_errors.items()
                }
    except ImportError as error:
        raise ResolutionError(
            f"Airflow is not installed here ({error.name}): audit reads DAG files with it."
        ) from None
    return list(found.values()), errors


def _dag_facts(dag: Any) -> DagFacts:
    timetable = type(dag.timetable).__name__
    return DagFacts(
        dag.dag_id,
        timetable != "NullTimetable",
        bool(dag.catchup),
        int(dag.max_active_runs),
        [_task_facts(dag, task) for task in sorted(dag.tasks, key=lambda task: str(task.task_id))],
    )


def _task_facts(dag: Any, task: Any) -> TaskFacts:
    mapped = hasattr(task, "partial_kwargs")
    cls = task.operator_class if mapped else type(task)
    sql = task.partial_kwargs.get("sql") if mapped else getattr(task, "sql", None)
    statements = (
        sql if isinstance(sql, str) else ";".join(map(str, sql)) if isinstance(sql, (list, tuple)) else None
    )
    return TaskFacts(
        dag.dag_id,
        task.task_id,
        [base.__name__ for base in cls.__mro__ if base is not object],
        int(task.retries or 0),
        task.execution_timeout,
        statements,
        _guard_facts(task, mapped=mapped)
        if any(base.__name__ == "IdempotentOperator" for base in cls.__mro__)
        else None,
    )


def _guard_facts(task: Any, *, mapped: bool) -> GuardFacts:
    from airflow_guard.core.effects import External, side_effect_of

    spec = None if mapped else task.guard_spec
    given: Mapping[str, Any] = task.partial_kwargs if mapped else {}
    effect = spec.side_effect if spec else side_effect_of(given.get("side_effect", "external"))
    external = isinstance(effect, External)
    return GuardFacts(
        SideEffect.EXTERNAL if external else SideEffect.DATABASE,
        spec.once_per if spec else given.get("once_per", "date"),
        spec.mode if spec else given.get("mode") or "enforce",
        bool(external and effect.verify),  # type: ignore[union-attr]
        effect.on_rerun is not None,
    )


def _longest(given: argparse.Namespace) -> dict[tuple[str, str], timedelta]:
    """Return how long tasks took at most, from the ledger; nothing without one, as in a pre-commit hook."""
    if not given.ledger:
        return {}
    from airflow_guard.reading.tries import longest

    with open_ledger(given) as opened:
        return longest(opened.ledger)


def _print(audited: Audit, given: argparse.Namespace) -> None:
    tasks = [
        {
            "dag": each.dag.dag_id, "task": each.task.task_id, "operator": each.task.classes[0],
            "side_effect": each.side_effect.value, "protection": each.protection, "retries": each.task.retries,
            "execution_timeout": _seconds(each.task.execution_timeout), "longest": _seconds(each.task.longest),
            "max_active_runs": each.dag.max_active_runs, "catchup": each.dag.catchup,
        }
        for each in audited.tasks
    ]  # fmt: skip
    findings = [
        {
            "severity": each.severity.value, "dag": each.dag_id, "task": each.task_id, "problem": each.problem,
            "fix": each.fix,
        }
        for each in audited.findings
    ]  # fmt: skip
    if given.output in ("json", "yaml"):
        output.record({"tasks": tasks, "findings": findings}, given.output)
        return
    if given.output == "plain":
        output.records(findings, given.output)
        return
    output.records(tasks, given.output)
    output.say()
    for line in _said(audited):
        output.say(*line)


def _said(audited: Audit) -> Iterable[tuple[str, str | None]]:
    for each in audited.findings:
        where = " / ".join(part for part in (each.dag_id, each.task_id) if part) or "all DAGs"
        yield f"{each.severity}: {where}: {each.problem}", STYLES[each.severity]
        yield f"    {each.fix}", None
    counted = ", ".join(
        f"{sum(each.severity is severity for each in audited.findings)} {severity}" for severity in Severity
    )
    yield f"{len(audited.tasks)} tasks, findings: {counted}", None


def _seconds(length: timedelta | None) -> float | None:
    return None if length is None else length.total_seconds()
