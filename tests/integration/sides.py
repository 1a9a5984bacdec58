"""Two tables that must agree, and DAGs that compare them."""

from __future__ import annotations

import itertools
import threading
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard import ReconciliationSensor, Side
from airflow_guard.store.reconciliations import Reconciliations
from tests.airflow_runs import AirflowRun, start_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.sdk import DAG

    from tests.integration.conftest import Business

JANUARY_30 = datetime(2026, 1, 30, tzinfo=UTC)
DAY = JANUARY_30.date()
MODES = ("poke", "reschedule", "deferrable")
LEDGER = "guard_ledger"
GOOD = [("D-1", "10.00"), ("D-2", "-2.50"), ("D-3", "0.00")]
WHERE = "business_date = :business_date"


class Sides:
    """The tables ``booked`` (the source) and ``posted`` (the target) beside a ledger."""

    def __init__(self, business: Business) -> None:
        self.business = business
        self.engine = business.ledger.business_engine
        self._moments = itertools.count()
        # SQLite has no decimals: amounts there are text, or they are floats.
        amount = sa.Text() if business.database.kind == "sqlite" else sa.Numeric(30, 4)
        self._tables = {
            name: sa.Table(
                name,
                sa.MetaData(),
                sa.Column("document_no", sa.String(50)),
                sa.Column("currency", sa.String(10)),
                sa.Column("amount", amount),
                sa.Column("account", sa.String(10)),
                sa.Column("business_date", sa.Date),
            )
            for name in ("booked", "posted")
        }
        for table in self._tables.values():
            table.create(self.engine)

    def add(
        self,
        side: str,
        *rows: tuple[str | None, str | None],
        day: date = DAY,
        currency: str | None = "EUR",
        account: str = "A",
    ) -> None:
        """Commit rows, each a document and its amount."""
        if not rows:
            return
        values = [
            {
                "document_no": no,
                "amount": amount,
                "currency": currency,
                "account": account,
                "business_date": day,
            }
            for no, amount in rows
        ]
        with self.engine.begin() as connection:
            connection.execute(self._tables[side].insert(), values)

    def both(self, *rows: tuple[str, str], day: date = DAY) -> None:
        """Commit the same rows on both sides."""
        for side in ("booked", "posted"):
            self.add(side, *(rows or GOOD), day=day)

    def run_sql(self, statement: str) -> None:
        """Commit a statement."""
        with self.engine.begin() as connection:
            connection.execute(sa.text(statement))

    def dag(self, mode: str = "poke", **parameters: Any) -> DAG:
        """A DAG that compares the two, and looks every moment."""
        from airflow.sdk import DAG

        side = {"conn_id": LEDGER, "key": "document_no", "where": WHERE}
        defaults: dict[str, Any] = {
            "task_id": "reconcile",
            "source": Side(table="booked", **side),
            "target": Side(table="posted", **side),
            "poke_interval": 0.02,
            "timeout": 30,
            "settle_pokes": 2,
            "mode": "reschedule" if mode == "reschedule" else "poke",
            "deferrable": mode == "deferrable",
            "retries": 1,
        }
        with DAG(self.business.dag_id, schedule=None, start_date=datetime(2025, 1, 1, tzinfo=UTC)) as dag:
            ReconciliationSensor(**{**defaults, **parameters})
        return dag

    def run(self, mode: str = "poke", *, at: datetime = JANUARY_30, **parameters: Any) -> AirflowRun:
        """Run such a DAG until nothing waits any more."""
        moment = at + timedelta(seconds=next(self._moments))  # a DAG has one run for each
        return start_run(self.dag(mode, **parameters), logical_at=moment).go_on()

    def checks(self) -> list[Any]:
        """Return the rows of ``guard_reconciliation``."""
        return self._rows(self.business.ledger.tables.reconciliation)

    def breaks(self) -> list[Any]:
        """Return the rows of ``guard_break``."""
        return self._rows(self.business.ledger.tables.breaks)

    def named(self) -> list[tuple[str, str | None, str]]:
        """Return type, document and state of all breaks."""
        return sorted((row.break_type, row.document or "", row.state) for row in self.breaks())

    def store(self) -> Reconciliations:
        """Return the store of checks and breaks."""
        return Reconciliations(self.business.ledger)

    def when(self, looks: int, act: Callable[[], None]) -> threading.Thread:
        """Do something as soon as the task has looked so many times and waits."""

        def wait() -> None:
            while not any(row.poke_count >= looks for row in self.checks()):
                threading.Event().wait(0.005)
            act()

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        return thread

    def _rows(self, table: sa.Table) -> list[Any]:
        with self.business.ledger.engine.connect() as connection:
            return list(connection.execute(sa.select(table).order_by(table.c.id)).all())
