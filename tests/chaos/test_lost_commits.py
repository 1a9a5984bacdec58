"""A standby takes over that has not got the last commits: real PostgreSQL, streaming, cut off, promoted.

What the primary had acknowledged since is gone. The receiver's calls are not.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import sqlalchemy as sa

from airflow_guard.commands.main import main
from airflow_guard.core.effects import External
from airflow_guard.core.errors import InDoubt, NotExecuted
from airflow_guard.core.states import State
from airflow_guard.testing import TestLedger
from demo.postgres import EmbeddedPostgres, EmbeddedPostgresNotInstalled, _give_to_server

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTLE = timedelta(minutes=5)
SETTINGS = {"max_wal_senders": "4", "wal_level": "replica"}


@dataclass
class Bank:
    """A receiver outside: what it was asked to pay, and under which key."""

    paid: list[tuple[str, str]] = field(default_factory=list)
    down: bool = False

    def pay(self, document: str, idempotency_key: str) -> str:
        if self.down:
            raise NotExecuted("the line was busy")
        self.paid.append((document, idempotency_key))
        return f"receipt of {document}"

    def knows(self, document: str) -> bool:
        return any(document == paid for paid, _ in self.paid)

    def count(self, document: str) -> int:
        return sum(document == paid for paid, _ in self.paid)


@dataclass
class Pair:
    """A primary and a standby that streams from it."""

    primary: EmbeddedPostgres
    standby: EmbeddedPostgres

    def cut_off(self) -> None:
        """Let the standby have what there is, and nothing that comes."""
        with _connect(self.primary) as primary, _connect(self.standby) as standby:
            here = "SELECT pg_current_wal_lsn()"
            (position,) = primary.execute(here).fetchone() or ("",)
            _until(standby, f"SELECT pg_last_wal_replay_lsn() >= '{position}'")
            standby.execute("ALTER SYSTEM SET primary_conninfo = ''")
            standby.execute("SELECT pg_reload_conf()")
            _until(standby, "SELECT count(*) = 0 FROM pg_stat_wal_receiver")

    def take_over(self) -> str:
        """Crash the primary and promote the standby; return the URL of its database."""
        self.primary.stop_immediately()
        self.standby._pg_ctl("promote")
        return self.standby.url()


def _connect(server: EmbeddedPostgres) -> psycopg.Connection[Any]:
    return psycopg.connect(server.url(driver="postgresql"), autocommit=True)


def _until(connection: psycopg.Connection[Any], question: str) -> None:
    for _ in range(600):
        if (connection.execute(question).fetchone() or (False,))[0]:
            return
        threading.Event().wait(0.05)
    raise AssertionError(question)


@pytest.fixture
def pair() -> Iterator[Pair]:
    folders = [Path(tempfile.mkdtemp(prefix="guard-pg-")) for _ in range(2)]
    primary = EmbeddedPostgres(folders[0], settings=SETTINGS)
    standby = EmbeddedPostgres(folders[1])
    try:
        primary.start()
        _give_to_server(folders[1])
        # The copy says by itself (-R) that it is a standby, and of whom.
        copied = (
            "-D",
            str(folders[1]),
            "-h",
            str(primary.socket_dir),
            "-U",
            "postgres",
            "-R",
            "-c",
            "fast",
        )
        primary._run("pg_basebackup", *copied)
        (folders[1] / ".s.PGSQL.5432.lock").unlink()  # of the primary, which keeps its socket in its folder
        standby.start()
        yield Pair(primary, standby)
    except EmbeddedPostgresNotInstalled as error:
        pytest.skip(str(error))
    finally:
        for server in (standby, primary):
            server.stop("immediate")
            server.close()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def book(connection: sa.Connection, document: str) -> None:
    connection.execute(sa.text("INSERT INTO booked VALUES (:document)"), {"document": document})


def rules(bank: Bank, **more: Any) -> External:
    return External(verify=bank.knows, settle_after=SETTLE, **more)


def test_what_the_lost_commits_had_done_is_not_done_again(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    bank, same = Bank(), {"key_namespace": "payments", "operation": "send"}
    with TestLedger(pair.primary.url()) as before:
        with before.connection() as connection:
            connection.execute(sa.text("CREATE TABLE booked (document varchar(20))"))
        assert before.run(bank.pay, documents=["old"], **same).executed == 1
        bank.down = True
        assert before.run(bank.pay, documents=["failed"], **same).failed == 1
        bank.down = False
        before.crash(bank.pay, at="inside", documents=["begun"], **same)
        pair.cut_off()
        lost_since = datetime.now(UTC)
        # Acknowledged by the primary, known to the receiver, and lost.
        assert before.run(bank.pay, documents=["failed", "new", "listed later"], **same).executed == 3
        assert before.run(bank.pay, documents=["blind"], **same | {"operation": "blind"}).executed == 1
        assert (
            before.run(
                book, documents=["row"], side_effect="database", **same | {"operation": "book"}
            ).executed
            == 1
        )
    url = pair.take_over()
    said = ["--ledger", url, "--reason", "db2 took over", "--actor", "ada"]
    with TestLedger(url) as after:
        # So that this test can fail: nobody has said anything yet, and a payment is made twice.
        assert after.run(bank.pay, documents=["listed later"], **same).executed == 1
        assert bank.count("listed later") == 2

        assert main(["failover", "--lost-since", lost_since.isoformat(), "--yes", *said]) == 0
        assert "begun is in doubt" in capsys.readouterr().out
        listing = ["old", "failed", "new", "begun", "never"]
        paid = list(bank.paid)
        run = after.run(bank.pay, documents=listing, side_effect=rules(bank), **same)
        # verify knew those that were paid; its "no" about the others counts when nothing can be on its way any more.
        assert (run.executed, run.replayed, run.in_doubt) == (0, 3, 2), run.lines
        assert bank.paid == paid
        after.let_time_pass(SETTLE)
        assert after.run(bank.pay, documents=listing, side_effect=rules(bank), **same).executed == 2
        assert sorted(document for document, _ in bank.paid[len(paid) :]) == ["begun", "never"]

        # Without verify it waits for a person.
        blind = after.run(bank.pay, documents=["blind"], **same | {"operation": "blind"})
        assert isinstance(blind.errors[0][1], InDoubt)
        assert "fail-over" in str(blind.errors[0][1])
        assert bank.count("blind") == 1
        after.resolve("blind", "happened", operation="blind")
        assert after.run(bank.pay, documents=["blind"], **same | {"operation": "blind"}).replayed == 1

        # Rows were lost with their key, so they are written once more: once.
        booking = {"side_effect": "database", **same, "operation": "book"}
        assert after.run(book, documents=["row"], **booking).executed == 1
        assert after.run(book, documents=["row"], **booking).replayed == 1
        with after.connection() as connection:
            assert connection.execute(sa.text("SELECT count(*) FROM booked")).scalar_one() == 1

        assert main(["failover", "--close", *said]) == 0
        assert after.run(bank.pay, documents=["tomorrow's"], **same).executed == 1


@pytest.fixture
def ledger() -> Iterator[TestLedger]:
    with TestLedger() as ledger:
        yield ledger


def recorded(ledger: TestLedger, *, ago: timedelta = timedelta(hours=1)) -> None:
    since = (datetime.now(UTC) - ago).isoformat()
    assert (
        main(["failover", "--lost-since", since, "--yes", "--reason", "db2", "--ledger", str(ledger._url)])
        == 0
    )


@pytest.mark.parametrize(
    ("run", "in_doubt"),
    [
        # Nothing earlier can have had its key: another automatic run is refused.
        ({"run_type": "scheduled", "run_after_at": timedelta(hours=1)}, False),
        ({"run_type": "scheduled", "run_after_at": timedelta(hours=-1)}, True),
        ({"run_type": "scheduled", "run_after_at": timedelta(hours=1), "once_per": "document"}, True),
        ({"run_type": "scheduled", "run_after_at": timedelta(hours=1), "on_other_run": "replay"}, True),
        ({"run_type": "manual", "run_after_at": timedelta(hours=1)}, True),
        ({"run_type": "scheduled"}, True),
    ],
)
def test_an_unknown_key_is_in_doubt_unless_no_earlier_run_can_have_had_it(
    ledger: TestLedger, run: dict[str, Any], in_doubt: bool
) -> None:
    bank = Bank()
    recorded(ledger)
    due = run.pop("run_after_at", None)
    when = datetime.now(UTC) + due if due is not None else None
    done = ledger.run(bank.pay, documents=["PAY-1"], run_after_at=when, **run)
    assert (done.in_doubt, done.executed, len(bank.paid)) == ((1, 0, 0) if in_doubt else (0, 1, 1)), (
        done.lines
    )


@pytest.mark.parametrize(("remembers", "paid"), [(timedelta(hours=2), 1), (timedelta(minutes=30), 0)])
def test_the_memory_of_the_receiver_counts_from_when_commits_were_lost(
    ledger: TestLedger, remembers: timedelta, paid: int
) -> None:
    bank = Bank()
    recorded(ledger)
    rules = External(in_doubt="retry", receiver_remembers=remembers)
    assert ledger.run(bank.pay, documents=["PAY-1"], side_effect=rules).executed == paid
    assert len(bank.paid) == paid


def test_a_batch_is_in_doubt_as_the_batch_that_it_was(ledger: TestLedger) -> None:
    files: list[tuple[str, list[str]]] = []

    def send(documents: list[str], batch_id: str) -> None:
        files.append((batch_id, documents))

    def asked(batch_id: str) -> bool:
        questions.append(batch_id)
        return False

    questions: list[str] = []
    given = {"documents": ["A", "B", "C"], "call_per": "batch", "batch_size": 2}
    with TestLedger() as primary:
        assert primary.run(send, **given).executed == 3
    lost = [batch_id for batch_id, _ in files]
    files.clear()
    recorded(ledger)
    rules = External(verify=asked, settle_after=SETTLE)
    run = ledger.run(send, side_effect=rules, **given)
    assert (run.in_doubt, files) == (3, []), run.lines
    assert questions == lost, "the receiver is asked about the batches that it may have got"
    ledger.let_time_pass(SETTLE)
    run = ledger.run(send, side_effect=rules, **given)
    assert run.executed == 3, run.lines
    assert sorted((batch_id, sorted(documents)) for batch_id, documents in files) == sorted(
        [(lost[0], ["A", "B"]), (lost[1], ["C"])]
    )
    assert ledger.run(send, side_effect=rules, **given).replayed == 3


def test_a_single_document_and_the_run_as_a_whole(ledger: TestLedger) -> None:
    bank = Bank()
    recorded(ledger)
    happened = ledger.run(
        bank.pay, document="PAY-1", side_effect=External(verify=lambda: True, settle_after=SETTLE)
    )
    assert (happened.replayed, happened.result, bank.paid) == (1, None, [])
    held = ledger.run(lambda: bank.pay("all", "-"), operation="whole")
    assert isinstance(held.errors[0][1], InDoubt)
    row = ledger.row(operation="whole")
    assert row is not None
    assert row.state is State.IN_DOUBT
    assert bank.paid == []
