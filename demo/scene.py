"""What the demo needs around it: a month of statements, two databases, an Airflow, two receivers."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import ExitStack
from datetime import date
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Self

from sqlalchemy import create_engine, func, select

from airflow_guard.core.errors import GuardError
from airflow_guard.store.database import LedgerDatabase
from airflow_guard.store.migrate import migrate
from airflow_guard.store.tables import Tables
from demo.books import RECONCILIATION_DAG, create_books, deliver_lines
from demo.postgres import EmbeddedPostgres
from demo.receiver import Receiver
from demo.stack import AirflowStack
from demo.statements import read_statements, write_month
from demo.suppliers import deliver_payments
from demo.waiting import sizes

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from demo.progress import Screen
    from demo.statements import Statement, WrittenMonth

__all__ = ["DAG", "LETTERS_DAG", "MONTH", "PAYMENTS_DAG", "Scene", "airflow_home"]

DAG = "bank_statements"
LETTERS_DAG = "balance_letters"
PAYMENTS_DAG = "supplier_payments"
_DAG_FILES = {
    LETTERS_DAG: "letters_dag.py",
    PAYMENTS_DAG: "payments_dag.py",
    RECONCILIATION_DAG: "reconciliation_dag.py",
}
MONTH = tuple(date(2026, 1, day) for day in range(1, 32))
_EXAMPLE = Path(__file__).parents[1] / "dags_examples" / f"{DAG}.py"
_AIRFLOW_SETTINGS = {
    # The DAG files do not change, and parsing them again and again takes a core's attention.
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "120",
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "60",
    # How long the others wait for a process that was killed; a minute by default.
    "AIRFLOW__AIRFLOW_GUARD__LEASE_SECONDS": "15",
    # What the pages in the UI show.
    "AIRFLOW__AIRFLOW_GUARD__LEDGER_CONN_IDS": "core_banking",
    # Who waits, waits in the triggerer and not in a worker.
    "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": "True",
}


class Scene:
    """Sets the scene when entered, and clears it away when left; what it wrote into the folder stays.

    :param folder: where everything lies, empty.
    :param screen: where the steps are shown.
    """

    def __init__(self, folder: Path, screen: Screen) -> None:
        self.folder = folder.resolve()
        self.screen = screen
        self._cleanup = ExitStack()
        self.month: WrittenMonth
        self.statements: dict[date, list[Statement]]
        self.bank: Engine
        self.ledger_url: str
        self.airflow: AirflowStack
        self.mailer: Receiver
        self.print_shop: Receiver
        self.payment_bank: Receiver

    def __enter__(self) -> Self:
        try:
            self._set()
        except BaseException:
            self._cleanup.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    @property
    def notifications(self) -> Path:
        """The journal of the receiver of notifications."""
        return self.folder / "notifications.journal"

    @property
    def letters(self) -> Path:
        """The journal of the print shop."""
        return self.folder / "letters.journal"

    @property
    def payments(self) -> Path:
        """The journal of the bank that pays the suppliers."""
        return self.folder / "payments.journal"

    @property
    def log_folder(self) -> Path:
        """Where the logs are."""
        return airflow_home(self.folder) / "logs"

    @property
    def _lines(self) -> Path:
        """The bank's lines as they were delivered, in a database file."""
        return self.folder / "bank_lines.db"

    @property
    def _suppliers(self) -> Path:
        """Where exchange rates and receipts lie."""
        return self.folder / "suppliers"

    def _set(self) -> None:
        step = self.screen.step
        with step("The bank delivers the statements of January 2026 (MT940)") as shown:
            folder = self.folder / "statements"
            self.month = write_month(folder)
            self.statements = {day: list(read_statements(folder, day)) for day in self.month.business_dates}
            self._check_reading()
            deliver_lines(self._lines, [each for day in self.statements.values() for each in day])
            files, accounts = len(self.month.files), len(self.month.closing)
            shown.note(
                f"{files} files, {self.month.statements} statements of {accounts} accounts, "
                f"{self.month.transactions:,} transactions"
            )
        with step("PostgreSQL starts, with the business tables and the ledger"):
            server = self._start_postgres()
        with step(f"Airflow {version('apache-airflow-core')} starts, with LocalExecutor") as shown:
            self._start_airflow(server)
            shown.note("scheduler, DAG processor, triggerer and API server report to be healthy")
            shown.note(
                f"UI: {self.airflow.address}   user: {self.airflow.user}   password: {self.airflow.password}"
            )

    def _check_reading(self) -> None:
        """Compare what was read with what the writer counted: a line that is never read would not be missed."""
        statements = [statement for day in self.statements.values() for statement in day]
        lines = sum(len(statement["lines"]) for statement in statements)
        last_day = self.statements[max(self.statements)]
        closing = {statement["account"]: Decimal(statement["closing"]) for statement in last_day}
        written = (self.month.statements, self.month.transactions, self.month.closing)
        if (len(statements), lines, closing) != written:
            raise GuardError(
                f"The statements were not read as they were written: {len(statements)} statements with {lines} "
                f"transactions, not {self.month.statements} with {self.month.transactions}, or other balances."
            )

    def _start_postgres(self) -> EmbeddedPostgres:
        server = self._cleanup.enter_context(EmbeddedPostgres())
        # Its folder is temporary.
        self._cleanup.callback(self._keep_log, server)
        for database in ("bank", "airflow"):
            server.create_database(database)
        self.ledger_url = server.url("bank")
        self.bank = create_engine(self.ledger_url)
        self._cleanup.callback(self.bank.dispose)
        create_books(self.bank)
        deliver_payments(self.bank, self._lines, self._suppliers)
        ledger = LedgerDatabase(self.ledger_url)
        migrate(ledger)
        ledger.dispose()
        return server

    def _keep_log(self, server: EmbeddedPostgres) -> None:
        self.log_folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(server.data_dir / "server.log", self.log_folder / "postgres.log")

    def _start_airflow(self, server: EmbeddedPostgres) -> None:
        self.mailer = self._cleanup.enter_context(Receiver(self.notifications))
        self.print_shop = self._cleanup.enter_context(Receiver(self.letters))
        self.payment_bank = self._cleanup.enter_context(Receiver(self.payments))
        bank = {
            "conn_type": "postgres",
            "host": str(server.socket_dir),
            "port": server.port,
            "login": "postgres",
            "schema": "bank",
        }
        self.airflow = AirflowStack(
            airflow_home(self.folder),
            self._dags(),
            server.url("airflow"),
            connections={
                "core_banking": json.dumps(bank),
                "bank_lines": json.dumps({"conn_type": "sqlite", "host": str(self._lines)}),
                "mailer": _http(self.mailer),
                "print_shop": _http(self.print_shop),
                "payment_bank": _http(self.payment_bank),
            },
            variables={
                "statement_folder": str(self.folder / "statements"),
                "supplier_folder": str(self._suppliers),
            },
            settings={**_AIRFLOW_SETTINGS, "AIRFLOW__CORE__PARALLELISM": str(_parallelism())},
            user="demo",
        )
        self.airflow.client.told = self.screen.waiting
        self.airflow.signs.append(self._moved)
        self._cleanup.enter_context(self.airflow)
        self.airflow.wait_for_dag(DAG, *_DAG_FILES)

    def _moved(self) -> object:
        """Return what moves while documents are worked on: rows of the ledger, and calls at the receivers."""
        tables = Tables()
        run, event, key = tables.task_run, tables.event, tables.execution
        figures = select(
            select(func.max(run.c.id)).scalar_subquery(),
            select(func.max(event.c.id)).scalar_subquery(),
            select(func.count()).where(key.c.finished_at.is_not(None)).scalar_subquery(),
        )
        with self.bank.connect() as connection:
            return tuple(connection.execute(figures).one()), sizes(
                self.notifications, self.letters, self.payments
            )

    def _dags(self) -> Path:
        folder = self.folder / "dags"
        folder.mkdir()
        if not _EXAMPLE.exists():
            raise GuardError(
                f"{_EXAMPLE} is not there: the demo runs from a checkout of the project, with `make demo`."
            )
        shutil.copy(_EXAMPLE, folder)
        for dag_id, name in _DAG_FILES.items():
            shutil.copy(Path(__file__).with_name(name), folder / f"{dag_id}.py")
        return folder


def airflow_home(folder: Path) -> Path:
    """Return where the demo's Airflow is, in the folder of the demo."""
    return folder.resolve() / "airflow"


def _http(receiver: Receiver) -> str:
    port = int(receiver.address.rpartition(":")[2])
    return json.dumps({"conn_type": "http", "host": "127.0.0.1", "port": port})


def _parallelism() -> int:
    # Four tasks are held still at times; the others should go on beside them.
    return 5 + min(os.cpu_count() or 2, 4)
