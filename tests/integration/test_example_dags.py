"""The example DAGs do what their comments say, on a real ledger, and a second run changes nothing."""

from __future__ import annotations

import itertools
import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from runpy import run_path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest
import sqlalchemy as sa

from airflow_guard import InDoubt, NotAvailableYet, OtherRun
from airflow_guard.demo.receiver import Receiver
from airflow_guard.store.database import LedgerDatabase
from airflow_guard.store.migrate import migrate
from tests.airflow_runs import start_run
from tests.databases import databases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow.models.dagrun import DagRun
    from airflow.sdk import DAG

    from tests.databases import DatabaseUnderTest

pytestmark = databases("postgres_embedded")

EXAMPLES = Path(__file__).parents[2] / "dags_examples"
_numbers = itertools.count(1)


class Bank:
    """The database that the examples call ``core_banking``: business tables, and the ledger in it."""

    def __init__(self, database: DatabaseUnderTest) -> None:
        self.ledger = LedgerDatabase(database.url)
        migrate(self.ledger)

    def run(self, *statements: str, **values: Any) -> None:
        with self.ledger.engine.begin() as connection:
            for statement in statements:
                connection.execute(sa.text(statement), values)

    def fill(self, statement: str, rows: list[dict[str, Any]]) -> None:
        with self.ledger.engine.begin() as connection:
            connection.execute(sa.text(statement), rows)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.ledger.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(sa.text(query))]

    def one(self, query: str) -> Any:
        ((value,),) = self.rows(query)
        return value


@pytest.fixture
def bank(database: DatabaseUnderTest, airflow_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bank]:
    """A migrated ledger behind the connection ``core_banking``."""
    del airflow_home
    monkeypatch.setenv("AIRFLOW_CONN_CORE_BANKING", database.airflow_connection())
    bank = Bank(database)
    yield bank
    bank.ledger.dispose()


def example(name: str) -> DAG:
    """Return the DAG of an example file, under an id that no other test has: Airflow's own database is shared."""
    from airflow.sdk import DAG

    module = run_path(str(EXAMPLES / f"{name}.py"))
    (dag,) = [value.function() if hasattr(value, "function") else value for value in _dags(module, DAG)]
    return dag


def _dags(module: dict[str, Any], kind: type) -> list[Any]:
    from airflow.sdk.definitions.contextmanager import DagContext

    found = [dag for dag, _ in DagContext.autoregistered_dags]
    DagContext.autoregistered_dags.clear()
    return found
