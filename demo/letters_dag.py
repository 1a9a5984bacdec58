"""A DAG of the demo: letters go to a print shop that cannot be asked afterwards, so there is no ``verify``.

If the process dies while it hands a letter over, nobody knows whether it is printed. It is not handed over
again: it stays in doubt, until a person has found out and says so.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk import Connection, Variable, dag, task

from demo.receiver import ReceiverClient
from demo.statements import read_statements

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import date

    from demo.statements import Statement


_A_DAY_S = 86_400
"""The print shop answers when a letter is printed. That may take long, and nothing is repeated meanwhile."""


def _statements_of(business_date: date) -> Iterator[Statement]:
    return read_statements(Path(Variable.get("statement_folder")), business_date)


@dag(schedule=None, start_date=datetime(2026, 1, 1))  # noqa: DTZ001 - Airflow gives it the DAG's zone
def balance_letters() -> None:
    """Print one letter for each statement of a date, started by hand."""

    @task.idempotent(
        operation="print_letter",
        document_key="statement_no",
        ledger_conn_id="core_banking",
        guarded_from="2026-01-01",
        retries=3,
        retry_delay=timedelta(seconds=5),
    )
    def print_letter(payload: Statement, idempotency_key: str) -> str:
        shop = Connection.get("print_shop")
        letter = {"statement_no": payload["statement_no"], "closing": payload["closing"]}
        client = ReceiverClient(f"http://{shop.host}:{shop.port}", timeout_s=_A_DAY_S)
        return client.notify(letter, idempotency_key)

    print_letter(documents=_statements_of)  # type: ignore[call-arg]


balance_letters()
