"""``make demo``: from end to end, and that its referee can say no."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import textwrap
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console
from sqlalchemy import create_engine, text

from airflow_guard.store.database import LedgerDatabase
from airflow_guard.store.migrate import migrate
from demo import report, summary
from demo.books import create_books, post_statement
from demo.offspring import is_running, marked
from demo.receiver import Receiver
from demo.scene import airflow_home
from demo.statements import ACCOUNTS, read_statements, write_month
from demo.waiting import wait

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from demo.postgres import EmbeddedPostgres

_ROOT = Path(__file__).resolve().parents[2]


def _demo(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "demo", *arguments]


@pytest.mark.slow
@pytest.mark.timeout(7200)  # a busy machine; the demo itself ends when nothing moves
def test_a_disturbed_month_is_posted_and_notified_exactly_once(tmp_path: Path) -> None:
    folder = tmp_path / "demo"

    done = subprocess.run(
        _demo("--exit", "--folder", str(folder)), cwd=_ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((folder / "summary.json").read_text())
    # Two processes at one day, and retries beside the leases of killed ones. How often depends on the moment; that
    # each provocation hit is what the driver's exit code says.
    assert figures.pop("blocked") >= 1
    replayed = figures.pop("replayed")
    assert replayed >= 434 + 14 + 14, "the month again, a cleared run and a manual run are all found done"
    transactions = figures.pop("transactions")
    assert transactions > 31 * 200
    assert figures == {
        "statements": 217,
        "posted": transactions,
        "notified": 217,
        "duplicates": 0,
        "lost": 0,
        "paid": 18,
        # Something to see on the pages in every state.
        "in_doubt": 1,
        "rejected": 1,
        "failed": 1,
        "follow_up_failed": 1,
        "in_progress": 7,
        "breaks_open": 1,
        "breaks_injected": 5,
        "breaks_found": 5,
    }
    assert "Nothing was doubled and nothing was lost." in done.stdout
    assert marked(str(airflow_home(folder))) == []


def test_a_folder_that_is_not_the_demo_s_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")

    done = subprocess.run(
        _demo("--exit", "--folder", str(tmp_path)), cwd=_ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert "not a folder of the demo" in done.stdout
    assert (tmp_path / "letter.txt").read_text() == "dear"


# ---------------------------------------------------------------------------------------- the referee


class _Books:
    """A week of one account, posted and notified without Airflow."""

    def __init__(self, bank: Engine, folder: Path) -> None:
        self.bank = bank
        self.journal = folder / "notifications.journal"
        self.letters = folder / "letters.journal"
        write_month(folder, year=2026, month=2, accounts=ACCOUNTS[5:])
        days = [date(2026, 2, day) for day in range(1, 8)]
        self.statements = [statement for day in days for statement in read_statements(folder, day)]
        with bank.begin() as connection:
            for statement in self.statements:
                post_statement(statement, connection)
        with Receiver(self.journal) as receiver:
            for statement in self.statements:
                receiver.notify({"statement_no": statement["statement_no"]}, statement["statement_no"])

    def sql(self, statement: str) -> None:
        with self.bank.begin() as connection:
            connection.execute(text(statement))

    def verdict(self) -> tuple[bool, dict[str, int]]:
        proof = summary.prove(self.bank, self.statements, self.journal, self.letters, [])
        right = report.show(Console(file=io.StringIO()), self.bank, [], proof, self.journal)
        return right, summary.summary_of(self.bank, proof)


@pytest.fixture
def books(postgres_server: EmbeddedPostgres, tmp_path: Path) -> Iterator[_Books]:
    postgres_server.create_database("referee")
    bank = create_engine(postgres_server.url("referee"))
    create_books(bank)
    ledger = LedgerDatabase(postgres_server.url("referee"))
    migrate(ledger)
    ledger.dispose()
    yield _Books(bank, tmp_path)
    bank.dispose()
    admin = create_engine(postgres_server.url(), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text("DROP DATABASE referee"))
    admin.dispose()


def test_the_referee_says_yes_to_a_month_without_fault(books: _Books) -> None:
    right, figures = books.verdict()

    assert right
    assert figures["statements"] == figures["notified"] == 14
    assert figures["transactions"] == figures["posted"]
    assert figures["duplicates"] == figures["lost"] == figures["in_doubt"] == 0


def test_the_referee_sees_a_transaction_that_was_posted_twice(books: _Books) -> None:
    columns = "statement_no, reference, business_date, account, currency, amount"
    books.sql(f"INSERT INTO statement_posting ({columns}) SELECT {columns} FROM statement_posting LIMIT 1")

    right, figures = books.verdict()

    assert not right
    assert (figures["duplicates"], figures["lost"]) == (1, 0)


def test_the_referee_sees_a_transaction_that_was_lost(books: _Books) -> None:
    books.sql("DELETE FROM statement_posting WHERE id = (SELECT min(id) FROM statement_posting)")

    right, figures = books.verdict()

    assert not right
    assert (figures["duplicates"], figures["lost"]) == (0, 1)


def test_the_referee_sees_a_statement_that_was_posted_twice_by_the_balance_alone(books: _Books) -> None:
    books.sql("UPDATE balance SET closing = closing + 0.001 WHERE business_date = '2026-02-03'")

    right, figures = books.verdict()

    assert not right
    assert (figures["duplicates"], figures["lost"]) == (0, 0)


def test_the_referee_sees_an_amount_that_differs(books: _Books) -> None:
    books.sql(
        "UPDATE statement_posting SET amount = amount + 1 WHERE id = (SELECT min(id) FROM statement_posting)"
    )

    right, _ = books.verdict()

    assert not right


def test_the_referee_sees_a_customer_who_was_notified_twice(books: _Books) -> None:
    with Receiver(books.journal) as receiver:
        receiver.notify({"statement_no": books.statements[3]["statement_no"]}, "another key")

    right, figures = books.verdict()

    assert not right
    assert (figures["duplicates"], figures["lost"], figures["notified"]) == (1, 0, 15)


def test_the_referee_sees_a_customer_who_was_not_notified(books: _Books) -> None:
    lines = books.journal.read_text().splitlines(keepends=True)
    books.journal.write_text("".join(lines[:-1]))

    right, figures = books.verdict()

    assert not right
    assert (figures["duplicates"], figures["lost"], figures["notified"]) == (0, 1, 13)


# ---------------------------------------------------------------------------------------- the end of it

_DRIVER = """
    import subprocess, sys, time
    from pathlib import Path
    from demo.offspring import Offspring

    offspring = Offspring(sys.argv[1])
    # A child that starts another one, which leaves the process group and the session.
    grandchild = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(600)"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])"
    offspring.start([sys.executable, "-c", child], log=Path(sys.argv[2]))
    print("started", flush=True)
    time.sleep(600)
"""


def test_nothing_survives_a_driver_that_is_killed(tmp_path: Path) -> None:
    mark, log = str(tmp_path / "home"), tmp_path / "log"
    driver = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_DRIVER), mark, str(log)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
    )
    assert driver.stdout is not None
    with driver:
        assert driver.stdout.readline() == "started\n"
        wait(lambda: log.exists() and log.read_text().endswith("\n"), "the first line")
        grandchild = int(log.read_text())
        assert {process.pid for process in marked(mark)} >= {grandchild}

        driver.send_signal(signal.SIGKILL)

        wait(lambda: marked(mark) == [], "all to end", lambda: len(marked(mark)))
        assert not is_running(grandchild)
