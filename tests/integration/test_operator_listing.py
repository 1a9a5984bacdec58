"""What an earlier try listed and did not finish, in runs of Airflow: a person drops it, and the next try ends well."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard import Forgotten, IdempotentOperator, NotExecuted
from demo.waiting import QUIET_S
from tests.airflow_runs import start_run
from tests.databases import databases

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from tests.integration.conftest import Business

pytestmark = databases("sqlite", "postgres_embedded")

MARCH_31 = datetime(2025, 3, 31, tzinfo=UTC)
START = datetime(2025, 1, 1, tzinfo=UTC)


class Inbox:
    """Rows that a lister takes: it gives each of them once."""

    def __init__(self, business: Business, *documents: str) -> None:
        self._engine = business.ledger.engine
        self._table = sa.Table("inbox", sa.MetaData(), sa.Column("no", sa.String(50)))
        self._table.create(self._engine)
        self.bring(*documents)

    def bring(self, *documents: str) -> None:
        """Let documents arrive, or arrive again."""
        with self._engine.begin() as connection:
            connection.execute(self._table.insert(), [{"no": each} for each in documents])

    def take(self) -> list[str]:
        """List what is there, and take it out."""
        with self._engine.begin() as connection:
            listed = list(
                connection.execute(sa.select(self._table.c.no).order_by(self._table.c.no)).scalars()
            )
            connection.execute(sa.delete(self._table))
        return listed


def posting(business: Business, listing: Any, closed: set[str]) -> DAG:
    """A DAG that posts what is listed; some accounts are closed."""
    from airflow.sdk import DAG

    def post(document: str, business_date: Any) -> None:
        if document in closed:
            raise NotExecuted("account closed")
        business.act("post", document, business_date)

    with DAG(business.dag_id, schedule=None, start_date=START) as dag:
        IdempotentOperator(task_id="post", python_callable=post, documents=listing, retries=0)
    return dag


def typed_in(command: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Run a command line of a message in a process of its own, with what the reader fills in."""
    program, *words = [word.replace("…", "withdrawn, ticket 77") for word in shlex.split(command)]
    assert program == "airflow-guard"
    return subprocess.run(
        [sys.executable, "-m", "airflow_guard.commands.main", *words, *more],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
        timeout=QUIET_S,
    )


def test_d03_what_the_message_says_is_typed_in_and_the_next_try_ends_well(business: Business) -> None:
    inbox = Inbox(business, "A", "B", "C")
    dag = posting(business, inbox.take, {"B"})
    run = start_run(dag, logical_at=MARCH_31).go()
    assert run.states() == {"post": "failed"}
    run.clear().go()
    forgotten = run.last("post").cause
    assert isinstance(forgotten, Forgotten), "B is not listed any more, and not done"
    command = "airflow-guard drop" + str(forgotten).partition("airflow-guard drop")[2]

    seen = typed_in(command, "--dry-run")
    assert seen.returncode == 0, seen.stderr
    assert "1 document of" in seen.stdout + seen.stderr
    assert "would be dropped" in seen.stdout + seen.stderr
    assert business.events() == []
    nobody = typed_in(command.partition(" --reason")[0])
    assert nobody.returncode != 0
    assert "reason" in nobody.stderr
    dropped = typed_in(command)
    assert dropped.returncode == 0, dropped.stderr
    assert "B" in dropped.stdout
    [event] = business.events()
    assert (event.kind, event.reason, event.to_state) == ("drop", "withdrawn, ticket 77", "dropped")

    run.clear().go()
    assert run.states() == {"post": "success"}
    assert business.documents() == ["A", "C"]
    # It comes again: it is held back, and not posted in silence.
    inbox.bring("B")
    run.clear().go(posting(business, inbox.take, set()))
    assert run.states() == {"post": "failed"}
    assert business.documents() == ["A", "C"]


def test_d03_drop_all_takes_what_can_be_dropped_and_a_wrong_name_takes_nothing(business: Business) -> None:
    inbox = Inbox(business, "A", "B", "C")
    run = start_run(posting(business, inbox.take, {"B", "C"}), logical_at=MARCH_31).go()
    place = f"airflow-guard drop {business.dag_id} 2025-03-31 post"
    wrong = typed_in(f'{place} B D --reason "…"')
    assert wrong.returncode == 1
    assert "'D' was not listed, or is done. Nothing was changed." in wrong.stderr
    assert {row.state for row in business.ledger_rows() if row.document != "A"} == {"failed"}
    done = typed_in(f'{place} --all --reason "…" --output json')
    assert done.returncode == 0, done.stderr
    assert {row.document: row.state for row in business.ledger_rows()} == {
        "A": "completed",
        "B": "dropped",
        "C": "dropped",
    }
    run.clear().go()
    assert run.states() == {"post": "success"}
    assert business.documents() == ["A"]
