"""What other processes do in the tests of waiting. Without Airflow, whose import takes seconds."""

from __future__ import annotations

import os
from datetime import date
from typing import Any

from airflow_guard.core.guard import TaskIdentity
from airflow_guard.core.keys import KeyShape, KeySpace
from airflow_guard.execution import external
from airflow_guard.execution.run import GuardedTask
from airflow_guard.execution.spec import Callee, GuardSpec
from airflow_guard.store.database import LedgerDatabase
from airflow_guard.store.ledger import Ledger
from airflow_guard.store.task_runs import TaskTry
from tests.processes import checkpoint


def hold(url: str, dag_id: str, documents: list[str]) -> dict[str, Any]:
    """Work on documents as another task try, held at the checkpoint ``at work`` inside the first."""

    def act(document: str) -> str:
        checkpoint("at work")
        return f"{document} done elsewhere"

    space = KeySpace(dag_id, "act", date(2025, 3, 31))
    identity = TaskIdentity(dag_id, "act", "manual__elsewhere", host="elsewhere", pid=os.getpid())
    ledger = Ledger(LedgerDatabase(url))
    task_try = TaskTry(identity, space, KeyShape.of(space, documents=True).text)
    task = GuardedTask(ledger, GuardSpec(), task_try, Callee.of(act))
    return task.run(lambda: documents).summary()


def claim_only(url: str, dag_id: str) -> None:
    """Claim document A and stand still before the effect."""

    def stand(*args: Any) -> None:
        checkpoint("claimed")

    external.ExternalEffect._begin = stand  # type: ignore[method-assign]
    hold(url, dag_id, ["A"])
