"""What a type checker refuses: each line that ends in ``# refused`` and no other."""

from __future__ import annotations

from typing import Any

from airflow_guard import (
    DuplicateCheckOperator,
    External,
    GuardNotifier,
    IdempotentOperator,
    ReconciliationSensor,
    Side,
    business_day,
    month_end,
    previous_business_day,
    task,
)
from airflow_guard.testing import TestLedger

side = Side("bank", table="posting", key="no")


def act(document: str) -> None:
    """Do something."""


def listed() -> list[str]:
    """List something."""
    return ["A"]


IdempotentOperator(task_id="a", python_callable=act, side_effect="databse")  # refused
IdempotentOperator(task_id="b", python_callable=act, on_duplicate="replayed")  # refused
IdempotentOperator(task_id="c", python_callable=act, once_per="documents")  # refused
IdempotentOperator(task_id="d", python_callable=act, call_per="bach")  # refused
IdempotentOperator(task_id="e", python_callable=act, on_concurrent="waits")  # refused
IdempotentOperator(task_id="f", python_callable=act, on_other_run="replays")  # refused
IdempotentOperator(task_id="g", python_callable=act, mode="observed")  # refused
IdempotentOperator(task_id="h", python_callable=act, side_effect="database", mode="observe")
IdempotentOperator.partial(task_id="i", python_callable=act, side_effect="databse")  # refused
External(in_doubt="hope")  # refused
ReconciliationSensor(task_id="j", source=side, target=side, on_break="faill")  # refused
DuplicateCheckOperator(task_id="k", side=side, on_break="ask")  # refused
GuardNotifier(transports=[], on="fail")  # refused
month_end(otherwise="skipp")  # refused
business_day("DE", otherwise="skipp")  # refused
previous_business_day("DE", otherwise="skipp")  # refused


@task.idempotent(operation="notify", document_key="no")
def notify(payload: Any, idempotency_key: str) -> str:
    """Send something."""
    return idempotency_key


notify(documents=listed)
notify(documents=7)  # refused
notify.override(on_duplicate="replayed")(documents=listed)  # refused
task.idempotent(operation="notify", side_effect="databse")  # refused
task.idempotent(operation="notify", batch_size="500")  # refused

with TestLedger() as ledger:
    ledger.run(act, document="A", side_effect="databse")  # refused
    ledger.run(act, document="A", side_effect="external")
