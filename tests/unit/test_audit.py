"""What an audit says of tasks."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_guard.core.audit import (
    DagFacts,
    GuardFacts,
    Severity,
    SideEffect,
    TaskFacts,
    audit,
    side_effect_of,
)

DAG = DagFacts("pay", scheduled=True, catchup=False, max_active_runs=1)
GUARD = GuardFacts(SideEffect.DATABASE, "date", "enforce", has_verify=False, on_rerun=False)


def task(*classes: str, retries: int = 0, **more: Any) -> TaskFacts:
    return TaskFacts("pay", "send", classes or ("HttpOperator", "BaseOperator"), retries, **more)


def found(one: TaskFacts, dag: DagFacts = DAG) -> list[tuple[Severity, str]]:
    audited = audit([replace(dag, tasks=[one])])
    return [(each.severity, each.problem) for each in audited.findings if each.task_id]


@pytest.mark.parametrize(
    ("one", "effect"),
    [
        (task("PythonOperator"), SideEffect.UNKNOWN),
        (task("MySensor", "BaseSensorOperator"), SideEffect.NONE),
        (task("SQLExecuteQueryOperator", sql="-- rows\nSELECT 1"), SideEffect.NONE),
        (
            task("SQLExecuteQueryOperator", sql="WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x"),
            SideEffect.DATABASE,
        ),
        (task("SQLExecuteQueryOperator", sql="UPDATE account SET balance = 0"), SideEffect.DATABASE),
        (task("PaySlip", "EmailOperator"), SideEffect.EXTERNAL),
        (task("IdempotentOperator", "PythonOperator", guard=GUARD), SideEffect.DATABASE),
    ],
)
def test_what_a_task_does_is_told_from_its_classes(one: TaskFacts, effect: SideEffect) -> None:
    assert side_effect_of(one) is effect


def test_a_payment_with_retries_and_no_guard_is_high() -> None:
    ((severity, problem),) = found(task(retries=3), replace(DAG, catchup=True, max_active_runs=16))
    assert severity is Severity.HIGH
    assert "(retries=3, catchup=True, max_active_runs=16)" in problem
    assert found(task())[0][0] is Severity.MEDIUM
    assert found(task("PythonOperator", retries=3))[0][0] is Severity.LOW
    assert found(task("EmptyOperator", retries=3)) == []


def test_a_guarded_task_is_told_what_it_lacks() -> None:
    assert found(task("IdempotentOperator", guard=GUARD, retries=2)) == []
    outside = replace(GUARD, side_effect=SideEffect.EXTERNAL, mode="observe")
    assert [severity for severity, _ in found(task("IdempotentOperator", guard=outside))] == [
        Severity.MEDIUM, Severity.LOW, Severity.LOW,
    ]  # fmt: skip


def test_a_timeout_is_compared_with_what_it_took() -> None:
    near = {"execution_timeout": timedelta(seconds=100), "longest": timedelta(seconds=80)}
    assert found(task("IdempotentOperator", guard=GUARD, retries=1, **near))[0][0] is Severity.MEDIUM
    assert found(task("PythonOperator", **near))[0][0] is Severity.HIGH
    near["longest"] = timedelta(seconds=79)
    assert found(task("IdempotentOperator", guard=GUARD, retries=1, **near)) == []


def test_nobody_watches_and_what_cannot_be_imported() -> None:
    guarded = replace(DAG, tasks=[task("IdempotentOperator", guard=GUARD, retries=1)])
    assert [each.severity for each in audit([guarded]).findings] == [Severity.LOW]
    watch = replace(DAG, dag_id="watch", tasks=[task("GuardWatchOperator")])
    assert audit([guarded, watch]).findings == []
    broken = audit([], {"dags/a.py": "SyntaxError"})
    assert broken.reaches(Severity.HIGH)
    assert not audit([guarded]).reaches(Severity.MEDIUM)
