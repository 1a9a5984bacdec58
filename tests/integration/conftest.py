"""Fixtures of the tests that run guarded tasks in Airflow."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard.store.database import LedgerDatabase
from tests.ledgers import migrated

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.databases import DatabaseUnderTest

LEDGER = "guard_ledger"
_numbers = itertools.count(1)


class Business:
    """The ledger's database and a business table in it, in which every effect leaves one row.

    Effects outside the ledger's transaction use a connection of their own, so that their row stays whatever
    becomes of the ledger.

    ``dag_id`` is one that no other test has.
    """

    def __init__(self, database: DatabaseUnderTest) -> None:
        self.database = database
        self.dag_id = f"statements_{next(_numbers)}"
        self.ledger = LedgerDatabase(database.url)
        self._table = sa.Table(
            "posting",
            sa.MetaData(),
            sa.Column("id", sa.Integer, primary_key=True),
            sa.Column("task", sa.String(100)),
            sa.Column("document", sa.String(255)),
            sa.Column("business_date", sa.Date),
        )
        self._table.create(self.ledger.engine)

    def post(self, connection: sa.Connection, task: str, document: str | None, day: Any) -> None:
        """Write one row in a transaction of the caller."""
        row = {"task": task, "document": document, "business_date": day}
        connection.execute(self._table.insert(), row)

    def act(self, task: str, document: str | None = None, day: Any = None) -> None:
        """Write one row over a connection of its own: an effect outside the ledger."""
        with self.ledger.business_engine.begin() as connection:
            self.post(connection, task, document, day)

    def rows(self, task: str | None = None) -> list[tuple[str, str | None, str]]:
        """Return all effects so far, as (task, document, business date)."""
        query = sa.select(self._table.c.task, self._table.c.document, self._table.c.business_date).order_by(
            self._table.c.id
        )
        with self.ledger.engine.connect() as connection:
            found = connection.execute(query).all()
        return [(row[0], row[1], str(row[2])) for row in found if task in (None, row[0])]

    def documents(self, task: str | None = None) -> list[str | None]:
        """Return the documents of all effects so far."""
        return [document for _, document, _ in self.rows(task)]

    def ledger_rows(self) -> list[Any]:
        """Return the ledger's rows."""
        table = self.ledger.tables.execution
        with self.ledger.engine.connect() as connection:
            return list(connection.execute(sa.select(table).order_by(table.c.claimed_at)).all())

    def task_runs(self) -> list[Any]:
        """Return the ledger's task tries."""
        table = self.ledger.tables.task_run
        with self.ledger.engine.connect() as connection:
            return list(connection.execute(sa.select(table).order_by(table.c.id)).all())

    def events(self) -> list[Any]:
        """Return the ledger's audit."""
        table = self.ledger.tables.event
        with self.ledger.engine.connect() as connection:
            return list(connection.execute(sa.select(table).order_by(table.c.id)).all())


@pytest.fixture
def business(
    database: DatabaseUnderTest, airflow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Business]:
    """A migrated ledger that ``[airflow_guard] ledger_conn_id`` names, with a business table beside it."""
    del airflow_home
    monkeypatch.setenv(f"AIRFLOW_CONN_{LEDGER.upper()}", database.airflow_connection())
    monkeypatch.setenv("AIRFLOW__AIRFLOW_GUARD__LEDGER_CONN_ID", LEDGER)
    business = Business(database)
    migrated(business.ledger)
    yield business
    business.ledger.dispose()


@pytest.fixture
def short_deferrals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tasks leave their worker for a moment only, so that what becomes of them is tested in a moment."""
    monkeypatch.setattr("airflow_guard.sensors.reconciliation.SHORTEST_DEFERRAL_S", 0.0)
    monkeypatch.setattr("airflow_guard.operators.waiting.SHORTEST_DEFERRAL_S", 0.0)
