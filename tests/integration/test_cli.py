"""The commands as people use them: at a terminal, in scripts, and as part of Airflow's own command line."""

from __future__ import annotations

import csv
import getpass
import io
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
import yaml

from airflow_guard.acts.withdraw import Scope, granted, withdraw
from airflow_guard.commands.definitions import COMMANDS
from airflow_guard.commands.main import main
from airflow_guard.core.commands import without_password
from airflow_guard.core.errors import ResolutionError
from airflow_guard.core.keys import KeySpace
from airflow_guard.core.states import FollowUp, State
from airflow_guard.store.changes import Ownership
from airflow_guard.store.resolution import resolve
from demo.waiting import QUIET_S
from tests.contract.attempts import (
    DAY,
    SPACE,
    Attempt,
    attempt,
    documents_of,
    events_of,
    new_ledger,
    opened,
)
from tests.databases import databases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_guard.store.ledger import Ledger
    from tests.databases import DatabaseKind, DatabaseUnderTest


@pytest.fixture
def ledger(database: DatabaseUnderTest) -> Iterator[Ledger]:
    ledger = new_ledger(database.url)
    yield ledger
    ledger.database.dispose()


class Cli:
    """Runs commands of the console script in this process."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.url = url
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """Run a command on the ledger, check its exit code, and return what it printed."""
        self._capsys.readouterr()
        try:
            ended = main([*arguments, "--ledger", self.url])
        except SystemExit as exit_:  # argparse
            ended = int(str(exit_.code))
        self.out, self.err = self._capsys.readouterr()
        assert ended == code, f"{ended}: {self.out}{self.err}"
        assert "Traceback" not in self.err
        return self.out

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "-o", "json"))


@pytest.fixture
def cli(database: DatabaseUnderTest, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(database.url, capsys)


# The contract tests of the store run on every kind; here the statements of the read model are new.
ONE_OF_EACH: tuple[DatabaseKind, ...] = ("sqlite", "postgres_embedded", "mariadb")
REASON = ("--reason", "seen in the bank's statement")


# -- migrate


def test_migrate_creates_the_ledger_once(database: DatabaseUnderTest, cli: Cli) -> None:
    cli("show", code=1)
    assert "airflow-guard migrate --ledger" in cli.err or "no SQLite file" in cli.err.replace("There is ", "")
    assert "was migrated to version" in cli("migrate")
    assert "already" in cli("migrate")
    assert "no such keys" in cli("show")


@databases("postgres_embedded")
def test_migrate_partitions_a_ledger_and_adds_months(cli: Cli) -> None:
    cli("migrate")
    cli("migrate", "--partitions-ahead", "3", code=1)
    assert "airflow-guard migrate --partition" in cli.err
    said = cli("migrate", "--partition", "--partitions-ahead", "1")
    assert "The ledger is partitioned. It held nothing with a date." in said
    assert said.count("guard_execution_p") == 2
    assert "none, they are all there" in cli("migrate", "--partition", "--partitions-ahead", "1")
    assert cli("migrate", "--partitions-ahead", "3").count("guard_execution_p") == 2
    for words in (["--sql", "--partition"], ["--partitions-ahead", "-1"], ["--partitions-ahead", "many"]):
        cli("migrate", *words, code=2)


@databases("sqlite")
def test_only_postgresql_is_partitioned(cli: Cli) -> None:
    cli("migrate", "--partition", code=1)
    assert "Only a ledger on PostgreSQL can be partitioned" in cli.err


@databases("sqlite")
def test_migrate_prints_a_script(cli: Cli) -> None:
    assert "CREATE TABLE guard_execution" in cli("migrate", "--sql")
    cli("migrate")
    assert cli("migrate", "--sql") == ""
    assert "nothing to do" in cli.err
    script = cli(
        "migrate", "--sql", "--dialect", "postgresql", "--schema", "guard", "--table-prefix", "once_"
    )
    assert "CREATE TABLE guard.once_execution" in script
    cli("migrate", "--dialect", "mysql", code=2)


@databases("postgres_embedded", "postgres_server")
def test_a_ledger_in_another_schema_under_another_prefix(database: DatabaseUnderTest, cli: Cli) -> None:
    place = ("--schema", str(database.schema), "--table-prefix", "once_")
    cli("migrate", *place)
    assert "no such keys" in cli("show", *place)
    cli("show", code=1)


# -- show


def scene(ledger: Ledger) -> dict[str, Attempt]:
    """One key in every situation."""
    done_but = attempt(ledger, "follow-up").begin().complete(follow_up=FollowUp.PENDING)
    ledger.end_follow_up(
        done_but.own, done_but.hashes, outcome=None, failed=True, why="no archive", patience_s=0
    )
    return {
        "done": attempt(ledger, "done").begin().complete('{"receipt":7}'),
        "doubtful": attempt(ledger, "doubtful", run_id="manual__9").begin().doubt("ReadTimeout: bank"),
        "killed": attempt(ledger, "killed").begin().die(),
        "abandoned": attempt(ledger, "abandoned").die(),
        "running": attempt(ledger, "running").begin(),
        "refused": attempt(ledger, "refused").begin().reject("account closed"),
        "failed": attempt(ledger, "failed").begin().fail("connection refused"),
        "follow-up": done_but,
        "elsewhere": attempt(ledger, "elsewhere", space=replace(SPACE, operation="notify"))
        .begin()
        .complete(),
    }


@databases(*ONE_OF_EACH)
def test_show_lists_what_wants_attention_first_with_the_databases_view_of_leases(
    ledger: Ledger, cli: Cli
) -> None:
    scene(ledger)
    found = [(key["document"], key["situation"]) for key in cli.json("show", "statements", "2025-03-31")]
    assert found == [
        ("doubtful", "in doubt"),
        ("killed", "in doubt"),
        ("follow-up", "follow-up failed"),
        ("refused", "rejected"),
        ("failed", "failed"),
        ("abandoned", "abandoned"),
        ("running", "running"),
        ("elsewhere", "done"),
        ("done", "done"),
    ]
    table = cli("show", "statements", "2025-03-31", "--limit", "3")
    assert "2 in doubt, 1 follow-up failed, 1 rejected, 1 failed, 1 abandoned, 1 running, 2 done" in table
    assert "manual__9, try 1" in table
    assert "There are more" in cli.err


@pytest.mark.parametrize(
    ("options", "documents"),
    [
        (["--state", "in_doubt"], {"doubtful", "killed"}),
        (["--state", "in_progress"], {"abandoned", "running"}),
        (["--state", "completed"], {"done", "follow-up", "elsewhere"}),
        (["--state", "follow_up", "--state", "rejected"], {"follow-up", "refused"}),
        (["statements", "--operation", "notify"], {"elsewhere"}),
        (["--operation", "notify", "--state", "unfinished"], set()),
        (["statements", "2025-04-01"], set()),
        (["other_dag"], set()),
        (["--document", "done", "--document", " running "], {"done", "running"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@databases(*ONE_OF_EACH)
def test_show_narrows_down(ledger: Ledger, cli: Cli, options: list[str], documents: set[str]) -> None:
    scene(ledger)
    assert {key["document"] for key in cli.json("show", *options)} == documents


@databases(*ONE_OF_EACH)
def test_show_finds_the_keys_of_a_dag_with_a_namespace_of_another_name(ledger: Ledger, cli: Cli) -> None:
    attempt(ledger, "A", dag_id="statements_backfill").begin().complete()
    (key,) = cli.json("show", "statements_backfill", "2025-03-31")
    assert (key["document"], key["key_namespace"]) == ("A", "statements")
    cli("rename", "statements", "post_statement", "books", "post", *REASON)
    (key,) = cli.json("show", "statements_backfill", "--operation", "post_statement")
    assert (key["document"], key["key_namespace"], key["operation"]) == ("A", "books", "post")


@databases(*ONE_OF_EACH)
def test_show_of_one_key_tells_its_life_and_the_command_that_settles_it(ledger: Ledger, cli: Cli) -> None:
    doubtful = scene(ledger)["doubtful"]
    key = doubtful.hashes[0]
    text = cli("show", "--key", key[:8])
    assert "statements / post_statement / 2025-03-31 / doubtful" in text
    assert "ReadTimeout: bank" in text
    assert "run manual__9" in text
    assert "worker-7 pid 4711" in text
    assert doubtful.documents[0].idempotency_key in text
    assert "doubt, in_progress → in_doubt" in text
    for option in ("--happened", "--did-not-happen"):
        assert re.search(rf'airflow-guard resolve --ledger \S+ --key {key} {option} --reason "…"', text)
    (life,) = cli.json("show", "--key", key)
    assert [event["kind"] for event in life["events"]] == ["doubt"]
    assert len(life["commands"]) == 2
    assert yaml.safe_load(cli("show", "--key", key, "-o", "yaml")) == [
        life | {"last_sign_age_s": pytest.approx(life["last_sign_age_s"], abs=60)}
    ]


@databases(*ONE_OF_EACH)
def test_show_of_a_renamed_key_has_its_events_from_before(ledger: Ledger, cli: Cli) -> None:
    killed = attempt(ledger, "A").begin().die()
    resolve(ledger, DAY, killed.hashes[0], killed.own.token, "happened", actor="ana", reason="seen")
    cli("rename", "statements", "post_statement", "books", "post", *REASON)
    (key,) = cli.json("show", "books")
    text = cli("show", "--key", key["key"])
    assert "resolve happened, in_doubt → completed, attempt 1, by ana: seen" in text
    assert "renamed statements / post_statement → books / post" in text
    cli("show", "--key", killed.hashes[0], code=1)
    assert "renamed" in cli.err


@databases("sqlite")
def test_show_is_plain_for_scripts(ledger: Ledger, cli: Cli) -> None:
    done = scene(ledger)["done"]
    head, row = cli("show", "--document", "done", "-o", "plain").splitlines()
    assert head.split()[:4] == ["state", "date", "operation", "document"]
    assert done.hashes[0] in row.split()


@databases("sqlite")
def test_stored_text_cannot_steer_the_terminal(ledger: Ledger, cli: Cli) -> None:
    refused = attempt(ledger, "A").begin().reject("\x1b[2Jwiped \x07 [bold]not markup[/bold]")
    for arguments in (["show"], ["show", "--key", refused.hashes[0]]):
        text = cli(*arguments)
        assert "\x1b" not in text
        assert "\\x1b[2Jwiped" in text
        assert "[bold]not markup[/bold]" in text


@databases("sqlite")
@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["show", "statements", "31/03/2025"], 1, "YYYY-MM-DD"),
        (["show", "--key", "xyz"], 1, "is no key"),
        (["show", "--key", "abcdef", "statements"], 2, "--key names keys by itself"),
        (["show", "--limit", "0"], 2, "--limit"),
        (["show", "--state", "lost"], 2, "invalid choice"),
        (["show", "--nonsense"], 2, "unrecognized"),
        (["rerun", "statements", "--start", "2025-01-01", *REASON], 2, "give --key HASH"),
        (["purge", *REASON], 2, "give --until DATE or --older-than"),
        (["resolve", "--key", "abcdef", *REASON], 2, "say one of --happened"),
        (["resolve", "--key", "abcdef", "--waive", "--happened", *REASON], 2, "say one of"),
        (["resolve", "--happened", *REASON], 2, "give --key HASH"),
        (["resolve", "statements", "2025-03-31", "--happened", *REASON], 2, "give --key HASH"),
        (["resolve", "--key", "abcdef", "--happened"], 1, "reason is missing"),
        (["adopt", "--dag", "s", "--operation", "p", *REASON], 2, "--csv FILE or --sql"),
        (["adopt", "--dag", "s", "--operation", "p", "--csv", "/nowhere", *REASON], 1, "cannot be read"),
        (["rename", "a", "b", "a", "b", *REASON], 1, "the same"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_refusals_are_a_line_and_an_exit_code(
    ledger: Ledger, cli: Cli, arguments: list[str], code: int, says: str
) -> None:
    cli(*arguments, code=code)
    assert says in cli.err
    assert cli.out == ""


@databases("sqlite")
@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://guard:secret@127.0.0.1:1/ledger", "cannot be reached"),
        ("sqlite:////nowhere/ledger.db", "no SQLite file"),
        ("oracle://guard:secret@host/ledger", "not on oracle"),
        ("not a url://x", "no database URL"),
    ],
)
def test_a_ledger_that_is_not_there(capsys: pytest.CaptureFixture[str], url: str, says: str) -> None:
    assert main(["show", "--ledger", url]) == 1
    printed = capsys.readouterr()
    assert says in printed.err
    assert "secret" not in printed.err


@databases("sqlite")
def test_show_of_an_unknown_name_offers_near_ones(ledger: Ledger, cli: Cli) -> None:
    attempt(ledger, "A").begin().complete()
    assert "It knows no DAG statement. Did you mean statements?" in cli("show", "statement", "2025-03-31")
    said = cli("show", "statements", "--operation", "post_statements")
    assert "It knows no operation post_statements. Did you mean post_statement?" in said
    assert cli("show", "statements", "2025-01-01") == "The ledger has no such keys.\n"


def test_no_ledger_and_a_file_that_is_not_there_are_said_with_the_option(
    airflow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("AIRFLOW__AIRFLOW_GUARD__LEDGER_CONN_ID", raising=False)
    assert main(["show"]) == 1
    assert "give --ledger with an Airflow connection or a URL" in capsys.readouterr().err
    missing = tmp_path / "misspelt.db"
    monkeypatch.setenv("AIRFLOW_CONN_BANK", json.dumps({"conn_type": "sqlite", "host": str(missing)}))
    for name in ("bank", f"sqlite:///{missing}"):
        assert main(["show", "--ledger", name]) == 1
        assert "There is no SQLite file" in (said := capsys.readouterr().err)
        assert f"airflow-guard migrate --ledger {name}" in said
    assert not missing.exists()
    assert main(["migrate", "--ledger", "bank"]) == 0
    assert main(["show", "--ledger", "bank"]) == 0


# -- resolve


@databases(*ONE_OF_EACH)
def test_c27_resolve_from_the_command_line(ledger: Ledger, cli: Cli) -> None:
    killed = attempt(ledger, "INV-1").begin().die()
    key = killed.hashes[0]
    text = cli("resolve", "--key", key[:10], "--did-not-happen", "--yes", "--actor", "ana", *REASON)
    assert "INV-1: was in_doubt, is now failed, so the next run executes it" in text
    assert "resolved as not happened by ana: seen in the bank's statement" in text
    assert events_of(ledger, DAY, key)[-1].actor == "ana"
    attempt(ledger, "INV-1", known=True).begin().complete()

    cli("resolve", "--key", key, "--happened", "--yes", *REASON, code=1)
    assert "StaleResolution" in cli.err
    assert "settled already" in cli.err
    assert f"airflow-guard show --ledger {shlex.quote(without_password(cli.url))} --key {key}" in cli.err
    assert killed.row().state is State.COMPLETED


@databases("sqlite")
def test_c27_a_live_lease_is_refused_and_the_holder_named(ledger: Ledger, cli: Cli) -> None:
    running = attempt(ledger, "INV-1").begin()
    cli("resolve", "--key", running.hashes[0], "--did-not-happen", "--yes", *REASON, code=1)
    assert "worker-7 pid 4711" in cli.err


@databases("sqlite")
def test_the_actor_is_the_user_of_the_system(ledger: Ledger, cli: Cli) -> None:
    doubtful = attempt(ledger, "A").begin().doubt("timeout")
    cli("resolve", "--key", doubtful.hashes[0], "--happened", "--yes", *REASON)
    assert events_of(ledger, DAY, doubtful.hashes[0])[-1].actor == getpass.getuser()


@databases("sqlite")
def test_keys_are_named_by_dag_date_operation_and_documents(ledger: Ledger, cli: Cli) -> None:
    doubtful = attempt(ledger, "A", "B", "C").begin().doubt("timeout")
    where = ("resolve", "statements", "2025-03-31", "post_statement")
    cli(*where, "A", " C ", "--happened", "--yes", *REASON)
    assert [doubtful.row(number).state for number in range(3)] == [
        State.COMPLETED, State.IN_DOUBT, State.COMPLETED,
    ]  # fmt: skip
    cli(*where, "B", "Z", "--happened", "--yes", *REASON, code=1)
    assert "no key statements / post_statement / 2025-03-31 / Z" in cli.err
    cli(*where, "--happened", "--yes", *REASON, code=1)
    assert "(whole run)" in cli.err
    assert doubtful.row(1).state is State.IN_DOUBT


@databases("sqlite")
def test_a_run_as_a_whole_is_named_without_documents(ledger: Ledger, cli: Cli) -> None:
    doubtful = attempt(ledger, None).begin().doubt("timeout")
    cli("resolve", "statements", "2025-03-31", "post_statement", "--happened", "--yes", *REASON)
    assert doubtful.row().state is State.COMPLETED


@databases("sqlite")
def test_all_of_an_operation_that_stand_so(ledger: Ledger, cli: Cli) -> None:
    attempts = scene(ledger)
    where = ("resolve", "statements", "2025-03-31", "post_statement", "--all")
    planned = cli.json(*where, "--did-not-happen", "--dry-run", *REASON)
    assert {each["key"] for each in planned} == {*attempts["doubtful"].hashes, *attempts["killed"].hashes}
    assert attempts["doubtful"].row().state is State.IN_DOUBT
    cli(*where, "--did-not-happen", "--yes", *REASON)
    assert attempts["doubtful"].row().state is attempts["killed"].row().state is State.FAILED
    assert attempts["running"].row().state is State.IN_PROGRESS
    cli(*where, "--did-not-happen", "--yes", *REASON, code=1)
    assert "is in doubt" in cli.err


@databases("sqlite")
def test_a_document_with_several_keys_must_be_named_by_key(ledger: Ledger, cli: Cli) -> None:
    for cycle in ("1", "2"):
        attempt(ledger, "A", space=replace(SPACE, cycle=cycle)).begin().doubt("timeout")
    cli("resolve", "statements", "2025-03-31", "post_statement", "A", "--happened", "--yes", *REASON, code=1)
    assert cli.err.count("--key") == 2


@databases("sqlite")
def test_an_answer_can_name_the_attempt_that_it_is_about(ledger: Ledger, cli: Cli) -> None:
    doubtful = attempt(ledger, "A").begin().doubt("timeout")
    command = ("resolve", "--key", doubtful.hashes[0], "--happened", "--yes", *REASON)
    cli(*command, "--attempt", "2", code=1)
    assert "its last attempt is 1" in cli.err
    cli(*command, "--owner-token", "0" * 32, code=1)
    cli(*command, "--attempt", "1", "--owner-token", doubtful.own.token)


@databases("sqlite")
def test_r03_waive_send_again_and_followed_up(ledger: Ledger, cli: Cli) -> None:
    attempts = scene(ledger)
    cli("resolve", "--key", attempts["follow-up"].hashes[0], "--followed-up", "--yes", *REASON)
    assert attempts["follow-up"].row().follow_up is FollowUp.SETTLED
    cli("resolve", "--key", attempts["refused"].hashes[0], "--send-again", "--yes", *REASON)
    assert attempts["refused"].row().state is State.FAILED
    again = attempt(ledger, "refused", known=True).begin().reject("still closed")
    cli("resolve", "--key", again.hashes[0], "--waive", "--yes", *REASON)
    assert again.row().state is State.COMPLETED


@databases("sqlite")
def test_a_batch_is_settled_together_and_said_so(ledger: Ledger, cli: Cli) -> None:
    space = KeySpace("payments", "send", DAY, once_per="document")
    batch = attempt(ledger, "P1", "P2", "P3", space=space).begin(batch=True).doubt("killed")
    text = cli("resolve", "--key", batch.hashes[0], "--happened", "--yes", *REASON)
    assert text.count("(same batch)") == 2
    assert {batch.row(number).state for number in range(3)} == {State.COMPLETED}


@databases("sqlite")
def test_without_a_terminal_nobody_is_asked(ledger: Ledger, cli: Cli) -> None:
    doubtful = attempt(ledger, "A").begin().doubt("timeout")
    cli("resolve", "--key", doubtful.hashes[0], "--happened", *REASON, code=1)
    assert "--yes" in cli.err
    assert doubtful.row().state is State.IN_DOUBT


@databases("sqlite")
@pytest.mark.parametrize(
    ("answer", "state"), [("yes", State.COMPLETED), ("no", State.IN_DOUBT), ("", State.IN_DOUBT)]
)
def test_r03_at_a_terminal_it_shows_what_is_known_and_asks(
    ledger: Ledger, database: DatabaseUnderTest, answer: str, state: State
) -> None:
    doubtful = attempt(ledger, "INV-1", run_id="manual__9").begin().doubt("ReadTimeout: bank")
    command = ["resolve", "--ledger", database.url, "--key", doubtful.hashes[0], "--happened", *REASON]
    code, shown = at_terminal(command, answer)
    for fact in (
        "INV-1",
        "manual__9",
        "ReadTimeout: bank",
        "effect begun",
        doubtful.documents[0].idempotency_key,
    ):
        assert fact in shown
    assert "never executed again" in shown
    assert doubtful.row().state is state
    assert code == (0 if answer == "yes" else 1)


@databases("sqlite")
def test_what_changes_while_somebody_thinks_is_not_settled(
    ledger: Ledger, database: DatabaseUnderTest
) -> None:
    doubtful = attempt(ledger, "INV-1").begin().doubt("timeout")

    def meanwhile() -> None:
        doubtful.ledger.complete(doubtful.own, doubtful.hashes, '"late, but done"')

    command = ["resolve", "--ledger", database.url, "--key", doubtful.hashes[0], "--did-not-happen", *REASON]
    code, shown = at_terminal(command, "yes", before_answer=meanwhile)
    assert code == 1
    assert "StaleResolution" in shown
    assert doubtful.row().result == '"late, but done"'


def at_terminal(
    arguments: list[str], answer: str, *, before_answer: Callable[[], None] = lambda: None
) -> tuple[int, str]:
    """Run a command at a terminal of its own and answer its question; return exit code and what it shows."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "airflow_guard.commands.main", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = ""
    while "[yes/no]" not in shown:
        shown += os.read(ours, 4096).decode()
    before_answer()
    os.write(ours, f"{answer}\n".encode())
    while True:
        try:
            more = os.read(ours, 4096).decode()
        except OSError:  # how Linux says that the other end is closed
            break
        if not more:
            break
        shown += more
    os.close(ours)
    return process.wait(60), re.sub(r"\x1b\[[0-9;]*m|\r", "", shown)


# -- adopt and rename


@databases("sqlite")
def test_adopt_from_a_file_after_a_dry_run(ledger: Ledger, cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "done.csv"
    file.write_text(
        "\ufeffbusiness_date,document\n2025-03-31,A\n2025-03-31,B\n2025-03-31,B\n", encoding="utf-8"
    )
    attempt(ledger, "A").begin().complete()
    command = ("adopt", "--dag", "statements", "--operation", "post_statement", "--csv", str(file), *REASON)
    assert "1 of 3 rows would be adopted (dry run" in cli(*command, "--dry-run")
    assert cli.json("show", "--document", "B") == []
    text = cli(*command)
    assert "1 of 3 rows adopted as completed: statements / post_statement, 2025-03-31 to 2025-03-31" in text
    assert "1 were in the ledger already" in text
    assert "1 were listed more than once" in text
    (key,) = cli.json("show", "--document", "B")
    assert (key["state"], key["attempt"]) == ("completed", 0)
    life = cli("show", "--key", key["key"])
    assert f"adopt, by {getpass.getuser()}: seen in the bank's statement" in life


@databases("sqlite")
@pytest.mark.parametrize("header", ["business_date,document", '"business_date","document"'])
def test_adopt_takes_off_a_byte_order_mark_wherever_the_file_comes_from(
    ledger: Ledger, cli: Cli, monkeypatch: pytest.MonkeyPatch, header: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"\ufeff{header}\n2025-03-31,A\n"))
    cli("adopt", "--dag", "statements", "--operation", "post_statement", "--csv", "-", *REASON)
    assert [key["document"] for key in cli.json("show")] == ["A"]


@databases("sqlite")
def test_a_date_that_was_purged_reads_purged_and_never_never_ran(
    ledger: Ledger, cli: Cli, airflow_home: Path
) -> None:
    attempt(ledger, "A").begin().complete()
    cli("purge", "--until", "2025-03-31", "--yes", *REASON)
    purged = f"statements / post_statement was purged up to 2025-03-31 by {getpass.getuser()}"
    assert f"They are purged: {purged}" in cli("show", "statements", "2025-03-31")
    said = cli.json("diagnose", "statements", "2025-03-31")
    assert [(each["source"], each["cause"]) for each in said["findings"]] == [("ledger", "purged")]
    assert purged in said["findings"][0]["evidence"]
    assert [each["cause"] for each in cli.json("diagnose", "statements", "2025-04-01")["findings"]] == [
        "never ran"
    ]


@databases("sqlite")
def test_a_command_that_only_reads_leaves_no_file_behind(
    ledger: Ledger, cli: Cli, tmp_path: Path, airflow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt(ledger, "A").begin().complete()
    missing = tmp_path / "missing"
    monkeypatch.setenv(
        "AIRFLOW_CONN_BANK", json.dumps({"conn_type": "sqlite", "host": str(missing / "a.db")})
    )
    missing.mkdir()
    beside = set(Path(str(ledger.database.url.database)).parent.iterdir())
    business = ("--table", "posting", "--table-key", "no")
    for arguments, says in (
        (("diagnose", "statements", "2025-03-31", "--conn-id", "bank", *business), "There is no SQLite file"),
        (
            ("diagnose", "statements", "2025-03-31", "--source-url", f"sqlite:///{missing}/b.db", *business),
            "no SQLite file",
        ),
        (
            ("diagnose", "statements", "2025-03-31", "--airflow-db", f"sqlite:///{missing}/c.db"),
            "no SQLite file",
        ),
    ):
        cli(*arguments, code=1)
        assert says in cli.err
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", f"sqlite:///{missing}/d.db")
    cli("diagnose", "statements", "2025-03-31", code=1)
    assert "metadata database" in cli.err
    for arguments in (["show"], ["export", "--start", "2025-01-01"], ["breaks"]):
        assert main([*arguments, "--ledger", f"sqlite:///{missing}/e.db"]) == 1
    assert main(["migrate", "--sql", "--ledger", f"sqlite:///{missing}/f.db"]) == 0
    assert list(missing.iterdir()) == []
    cli("show", "statements")
    assert set(Path(str(ledger.database.url.database)).parent.iterdir()) == beside


@databases("sqlite")
def test_adopt_names_every_bad_line(ledger: Ledger, cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "done.csv"
    file.write_text("business_date;document\n2025-03-31;A\n31.3.2025;B\n2025-03-31;\n", encoding="utf-8")
    command = ("adopt", "--dag", "statements", "--operation", "post_statement", "--csv", str(file), *REASON)
    cli(*command, "--delimiter", ";", code=1)
    assert "2 of 3 rows cannot be adopted; nothing was written." in cli.err
    assert "\n  line 3: " in cli.err
    assert "\n  line 4: " in cli.err
    assert cli.json("show") == []


@databases("sqlite")
@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ("1.23E+15", "as a spreadsheet writes a long number: its digits are lost"),
        ("1,2E+15", "its digits are lost"),
    ],
)
def test_adopt_refuses_ids_that_a_spreadsheet_has_rounded(
    ledger: Ledger, cli: Cli, tmp_path: Path, cell: str, why: str
) -> None:
    """Adopted as they are, no task would find them, and the payments would be sent again."""
    file = tmp_path / "done.csv"
    file.write_text(f'business_date,document\n2025-03-31,"{cell}"\n', encoding="utf-8")
    command = ("adopt", "--dag", "statements", "--operation", "post_statement", "--csv", str(file), *REASON)
    cli(*command, code=1)
    assert "line 2: document is" in cli.err
    assert why in cli.err
    file.write_text("business_date,document\n2025-03-31,1E5\n", encoding="utf-8")
    cli(*command)
    assert [key["document"] for key in cli.json("show")] == ["1E5"]


@databases("sqlite")
def test_adopt_refuses_a_date_far_ahead(ledger: Ledger, cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "done.csv"
    ahead = (datetime.now(UTC) + timedelta(days=400)).date()
    file.write_text(f"business_date,document\n{ahead},A\n", encoding="utf-8")
    cli("adopt", "--dag", "s", "--operation", "o", "--csv", str(file), *REASON, code=1)
    assert f"business_date {ahead} lies more than a year in the future" in cli.err
    assert cli.json("show") == []


@databases("sqlite")
def test_adopt_takes_the_ids_of_an_export_as_they_were(ledger: Ledger, cli: Cli, tmp_path: Path) -> None:
    """Export puts an apostrophe before what a spreadsheet would execute: it is no part of the id."""
    names = ["-S1", "=1+1", "@x", "'quoted'", "+49 1", "plain"]
    attempt(ledger, *names).begin().complete()
    exported = list(csv.DictReader(io.StringIO(cli("export", "statements", "--start", "2025-03-31"))))
    assert "'-S1" in {row["document"] for row in exported}
    file = tmp_path / "done.csv"
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, ["business_date", "document"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(exported)
    said = cli("adopt", "--dag", "statements", "--operation", "post_statement", "--csv", str(file), *REASON)
    assert "0 of 6 rows adopted" in said, "all are known: each has its own key"
    cli("adopt", "--dag", "copy", "--operation", "post_statement", "--csv", str(file), *REASON)
    assert sorted(key["document"] for key in cli.json("show", "copy")) == sorted(names)


@databases("sqlite")
def test_adopt_names_a_mark_of_another_encoding_and_passes_over_empty_lines(
    ledger: Ledger, cli: Cli, tmp_path: Path
) -> None:
    file = tmp_path / "done.csv"
    command = ("adopt", "--dag", "statements", "--operation", "post_statement", "--csv", str(file), *REASON)
    file.write_text("\u00ef\u00bb\u00bfbusiness_date,document\n2025-03-31,A\n", encoding="utf-8")
    cli(*command, code=1)
    assert "byte order mark before 'ï»¿business_date', of another encoding" in cli.err
    file.write_text("\n\nbusiness_date,document\n\n2025-03-31,A\n", encoding="utf-8")
    cli(*command)
    assert [key["document"] for key in cli.json("show")] == ["A"]


@databases(*ONE_OF_EACH)
def test_adopt_from_a_query_on_the_ledgers_own_and_on_another_database(
    ledger: Ledger, cli: Cli, database: DatabaseUnderTest, tmp_path: Path
) -> None:
    elsewhere = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    for url, document in ((database.url, "A"), (elsewhere, "B")):
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE postings (day VARCHAR(10), no VARCHAR(10))")
            connection.exec_driver_sql(f"INSERT INTO postings VALUES ('2025-03-31', '{document}')")
        engine.dispose()
    sql = "select day as business_date, no as document from postings"
    command = ("adopt", "--namespace", "statements", "--operation", "post_statement", "--sql", sql, *REASON)
    cli(*command)
    cli(*command, "--source-url", elsewhere)
    assert {key["document"] for key in cli.json("show", "statements")} == {"A", "B"}


@databases(*ONE_OF_EACH)
def test_adopt_does_not_guess_the_deployment(ledger: Ledger, cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "done.csv"
    file.write_text("business_date,document\n2025-03-31,A\n", encoding="utf-8")
    attempt(ledger, "Z", space=replace(SPACE, deployment="production")).begin().complete()
    command = ("adopt", "--dag", "statements", "--operation", "post_statement", "--csv", str(file), *REASON)
    cli(*command, code=1)
    assert "knows the deployments production" in cli.err
    cli(*command, "--deployment", "production")
    (key,) = cli.json("show", "--document", "A")
    assert key["deployment"] == "production"


@databases("sqlite")
def test_rename_after_a_dry_run(ledger: Ledger, cli: Cli) -> None:
    attempt(ledger, "A", "B").begin().complete()
    attempt(ledger, "C").begin().doubt("timeout")
    command = ("rename", "statements", "post_statement", "books", "post", *REASON)
    assert "3 keys (2 completed, 1 in_doubt) would move" in cli(*command, "--dry-run")
    assert cli.json("show", "books") == []
    assert "3 keys (2 completed, 1 in_doubt) moved" in cli(*command)
    assert len(cli.json("show", "books")) == 3
    assert cli.json(*command)["keys"] == 0


@databases("sqlite")
def test_a_misspelt_old_name_is_not_renamed_and_leaves_no_alias(ledger: Ledger, cli: Cli) -> None:
    attempt(ledger, "A").begin().complete()
    for options in ((), ("--dry-run",)):
        cli("rename", "statement", "post_statement", "books", "post", *REASON, *options, code=1)
        assert "knows no operation statement / post_statement" in cli.err
        assert "Did you mean statements / post_statement?" in cli.err
    with ledger.database.engine.connect() as connection:
        assert connection.execute(sa.select(ledger.database.tables.alias)).all() == []
    cli("rename", "statements", "post_statement", "books", "post", *REASON)
    assert len(cli.json("show", "books")) == 1


# -- as part of Airflow


CONSOLE = [sys.executable, "-m", "airflow_guard.commands.main"]


def in_a_process(program: list[str], *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **variables},
        timeout=QUIET_S,
    )


@databases(*ONE_OF_EACH)
def test_the_configured_connection_is_the_ledger(
    ledger: Ledger,
    database: DatabaseUnderTest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    monkeypatch.setenv("AIRFLOW_CONN_GUARD_BOOKS", database.airflow_connection())
    monkeypatch.setenv("AIRFLOW__AIRFLOW_GUARD__LEDGER_CONN_ID", "guard_books")
    doubtful = attempt(ledger, "A").begin().doubt("timeout")
    key = doubtful.hashes[0]
    assert main(["show", "--key", key]) == 0
    assert f"airflow-guard resolve --key {key} --happened" in capsys.readouterr().out
    assert main(["show", "--key", key, "--ledger", "guard_books"]) == 0
    assert f"airflow-guard resolve --ledger guard_books --key {key} --happened" in capsys.readouterr().out
    assert main(["resolve", "--key", key, "--happened", "--yes", *REASON]) == 0
    assert doubtful.row().state is State.COMPLETED
    assert main(["migrate"]) == 0
    # A SQLite file is created on first use, and so are other tables in it.
    assert main(["show", "--table-prefix", "other_"]) == (0 if database.kind == "sqlite" else 1)


def test_a_connection_that_is_missing_or_not_configured_is_named(
    airflow_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    assert main(["show", "--ledger", "nowhere"]) == 1
    assert "no connection 'nowhere'" in capsys.readouterr().err
    assert main(["show"]) == 1
    assert "[airflow_guard]" in capsys.readouterr().err


@databases("sqlite")
def test_a_connection_made_in_airflow_is_found_and_logs_stay_out_of_the_data(
    ledger: Ledger, database: DatabaseUnderTest, airflow_home: Path
) -> None:
    from airflow.models import Connection
    from airflow.utils.session import create_session

    attempt(ledger, "A").begin().doubt("timeout")
    with create_session() as session:
        session.add(Connection(conn_id="guard_in_metadata", **json.loads(database.airflow_connection())))
    shown = in_a_process(CONSOLE, "show", "--ledger", "guard_in_metadata", "-o", "json")
    assert shown.returncode == 0, shown.stderr
    assert len(json.loads(shown.stdout)) == 1


@databases("sqlite")
def test_a_url_needs_no_airflow(ledger: Ledger, database: DatabaseUnderTest, tmp_path: Path) -> None:
    """Not even one that can be imported."""
    attempt(ledger, "A").begin().doubt("timeout")
    (tmp_path / "airflow.py").write_text("raise ImportError('Airflow was imported')", encoding="utf-8")
    shown = in_a_process(
        CONSOLE, "show", "--ledger", database.url, "-o", "json",
        PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]),
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    assert len(json.loads(shown.stdout)) == 1


def test_both_fronts_have_the_same_commands() -> None:
    from airflow.cli.cli_config import ActionCommand

    from airflow_guard.commands.airflow_commands import get_cli_commands

    (group,) = get_cli_commands()
    actions = list(group.subcommands)
    assert group.name == "guard"
    assert all(isinstance(action, ActionCommand) for action in actions)
    assert [action.name for action in actions] == [command.name for command in COMMANDS]
    for action, command in zip(actions, COMMANDS, strict=True):
        assert [arg.flags for arg in action.args] == [argument.flags for argument in command.arguments]


@pytest.mark.parametrize(
    ("asked", "imported"), [("version", False), ("scheduler", False), ("guard", True), ("cheat-sheet", True)]
)
def test_another_command_of_airflow_does_not_pay_for_these(asked: str, imported: bool) -> None:
    code = (
        f"import sys; sys.argv = ['/bin/airflow', {asked!r}]\n"
        "from airflow_guard.commands.airflow_commands import get_cli_commands\n"
        "(group,) = get_cli_commands()\n"
        "print(len(list(group.subcommands)) > 9, any(name.startswith('airflow_guard.acts') for name in sys.modules))"
    )
    said = in_a_process([sys.executable, "-c", code])
    assert said.stdout.split()[-2:] == [str(imported), str(imported)], said.stderr


@databases("sqlite")
def test_airflow_guard_is_a_command_of_airflow(
    ledger: Ledger, database: DatabaseUnderTest, airflow_home: Path
) -> None:
    from airflow import __version__

    if tuple(map(int, __version__.split(".")[:2])) < (3, 2):
        pytest.skip("Airflow 3.1 takes no commands from providers; the console script has them all")
    killed = attempt(ledger, "INV-1").begin().die()
    settings = {"AIRFLOW_CONN_GUARD_BOOKS": database.airflow_connection()}
    airflow = [sys.executable, "-m", "airflow", "guard"]
    command = ("resolve", "--key", killed.hashes[0], "--happened", "--yes", "--ledger", "guard_books")
    refused = in_a_process(airflow, *command, **settings)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "reason is missing" in refused.stderr
    done = in_a_process(airflow, *command, *REASON, **settings)
    assert done.returncode == 0, done.stderr
    assert killed.row().state is State.COMPLETED


# -- rerun


RERUN = ("rerun", "statements", "post_statement", "--start", "2025-03-01", "--end", "2025-03-31")


@databases(*ONE_OF_EACH)
def test_rerun_shows_what_was_done_and_names_the_backfill(ledger: Ledger, cli: Cli) -> None:
    told = scene(ledger)
    dry = cli(*RERUN, *REASON, "--dry-run")
    assert "INV" not in dry
    assert "done: done 20" in dry.replace("statements / post_statement / 2025-03-31 / ", "")
    assert "run scheduled__2025-03-31" in dry
    assert '{"receipt":7}' in dry
    assert "Not part of it, since they are not done:" in dry
    assert "on_rerun of the task reverses" in dry
    assert (
        "airflow backfill create --dag-id statements --from-date 2025-03-31 --to-date 2025-03-31T23:59:59 "
        "--reprocess-behavior completed --run-on-latest-version" in dry
    )
    assert told["done"].row().rerun is None
    cli(*RERUN, *REASON, code=1)
    assert "no terminal" in cli.err
    cli(*RERUN, "--yes", code=1)
    assert "A reason is missing" in cli.err
    done = cli.json(*RERUN, *REASON, "--yes", "--actor", "ada", "--without-reversal", "--expires", "2h")
    assert done["without_reversal"]
    assert done["until"]
    rerun = told["done"].row().rerun
    assert rerun is not None
    assert (rerun.actor, rerun.without_reversal) == ("ada", True)
    cli(*RERUN, *REASON, "--yes", code=1)
    assert "authorised already, by ada" in cli.err


@databases(*ONE_OF_EACH)
def test_what_is_authorised_can_be_withdrawn_until_it_is_used(ledger: Ledger, cli: Cli) -> None:
    done = attempt(ledger, "A", "B").begin().complete()
    a, b = done.hashes
    take_back = ("rerun", "--withdraw", "--reason", "not corrected yet", "--yes")
    cli(*RERUN, *REASON, "--yes")
    assert "1 authorisation would be withdrawn" in cli(*take_back, "--key", a, "--dry-run")
    assert "1 authorisation withdrawn" in cli(*take_back, "--key", a)
    assert "rerun_withdrawn" in {event.kind for event in events_of(ledger, DAY, a)}
    assert ledger.read(DAY, [a])[a].rerun is None
    assert ledger.read(DAY, [b])[b].rerun is not None
    assert [each["key"] for each in cli.json(*take_back, "--all")["withdrawn"]] == [b]
    cli(*take_back, "--all", code=1)
    assert "Nothing of that is authorised" in cli.err

    cli(*RERUN, *REASON, "--yes")
    other = ("--start", "2025-03-30")
    cli(*take_back, "statements", "post_statement", *other, code=1)
    assert cli.json(*take_back, "statements", "post_statement")["withdrawn"]
    assert "A" in cli("show", "--key", a)
    cli(*take_back, code=2)
    cli("rerun", "--all", *REASON, code=2)


@databases(*ONE_OF_EACH)
def test_what_is_used_while_somebody_withdraws_is_not_withdrawn(ledger: Ledger, cli: Cli) -> None:
    attempt(ledger, "A", "B").begin().complete()
    cli(*RERUN, *REASON, "--yes")
    seen = granted(ledger, Scope())
    documents = documents_of(SPACE, "A")
    own = Ownership.new(DAY, opened(ledger), "test")
    assert ledger.claim(own, SPACE, [], [], reruns=documents)
    with pytest.raises(ResolutionError, match="was used meanwhile"):
        withdraw(ledger, seen, actor="ada", reason="not corrected yet")
    assert [each.key_text.rpartition(" ")[2] for each in granted(ledger, Scope())] == ["B"], "all or none"


@databases("sqlite")
def test_rerun_refuses_what_it_cannot_authorise(ledger: Ledger, cli: Cli) -> None:
    told = scene(ledger)
    cli(*RERUN, *REASON, "--document", "nobody", "--dry-run", code=1)
    assert "has no key" in cli.err
    for name, does in (("doubtful", "resolve"), ("follow-up", "--followed-up"), ("refused", "--send-again")):
        cli("rerun", "--key", told[name].hashes[0], *REASON, "--dry-run", code=1)
        assert does in cli.err, name
    cli(*RERUN, *REASON, "--expires", "40d", "--dry-run", code=1)
    assert "31 days" in cli.err
    for wrong in (
        ("rerun", *REASON), ("rerun", "statements", "post_statement", *REASON),
        ("rerun", "--key", "3f21ab", "--reversal-happened", "--reversal-did-not-happen", *REASON),
        (*RERUN, "--reversal-happened", *REASON), (*RERUN[:5], "--end", "2025-02-01", *REASON),
    ):  # fmt: skip
        cli(*wrong, code=2)
    cli("rerun", "--key", told["done"].hashes[0], "--reversal-happened", *REASON, code=1)
    assert "No reversal" in cli.err


# -- purge


@databases("sqlite")
def test_purge_counts_first_and_removes_what_is_done(ledger: Ledger, cli: Cli) -> None:
    scene(ledger)
    what = ("purge", "statements", "--until", "2025-03-31", *REASON)
    dry = cli.json(*what, "--dry-run")
    assert {(row["operation"], row["keys"], row["kept"]) for row in dry} == {
        ("post_statement", 1, 7), ("notify", 1, 0),
    }  # fmt: skip
    cli(*what, code=1)
    assert "no terminal" in cli.err
    assert "1 keys" in cli(*what, "--yes")
    assert "refused from now on" in cli.out
    assert "nothing to remove" in cli(*what, "--yes")
    left = cli.json("show", "statements", "2025-03-31", "--state", "completed")
    assert [row["document"] for row in left] == ["follow-up"]
    for wrong in (("--older-than", "2y"), ("--until", "2020-01-01", "--older-than", "9d")):
        cli("purge", *wrong, *REASON, code=2)
    cli("purge", "--until", "2999-01-01", *REASON, code=1)
    assert "not over yet" in cli.err


# -- failover


@databases(*ONE_OF_EACH)
def test_failover_puts_in_doubt_is_listed_and_is_closed(ledger: Ledger, cli: Cli) -> None:
    begun = attempt(ledger, "PAY-1").begin()
    waiting = attempt(ledger, "PAY-2")
    assert "No fail-over is open" in cli("failover")
    cli("failover", "--close", *REASON, code=1)
    what = ("failover", "--lost-since", "2025-03-31T04:10:00+02:00", "--actor", "ada", *REASON)
    dry = cli.json(*what, "--dry-run")
    assert {row["what"].split(" / ")[-1]: row["state"] for row in dry} == {
        "PAY-1": "in_doubt", "PAY-2": "failed",
    }  # fmt: skip
    assert begun.row().state is State.IN_PROGRESS
    cli(*what, code=1)
    assert "no terminal" in cli.err
    assert "PAY-1 is in doubt" in cli(*what, "--yes")
    assert "1 effects had begun, 1 claims had not" in cli.out
    assert (begun.row().state, waiting.row().state) == (State.IN_DOUBT, State.FAILED)
    assert "Commits since 2025-03-31 02:10:00 UTC may be lost" in cli("failover")
    assert "would be closed" in cli("failover", "--close", "--dry-run", *REASON)
    assert "counts as new again" in cli("failover", "--close", *REASON)
    assert cli.json("failover") == []
    for wrong in (("--lost-since", "yesterday"), ("--lost-since", "2025-03-31T04:10:00Z", "--close")):
        cli("failover", *wrong, *REASON, code=2)
    cli("failover", "--lost-since", "2025-03-31T04:10:00", *REASON, code=1)
    assert "has no zone" in cli.err
    cli("failover", "--lost-since", "2025-03-31T04:10:00Z", code=1)
    assert "A reason is missing" in cli.err


# -- export


@databases(*ONE_OF_EACH)
def test_export_writes_what_a_spreadsheet_does_not_execute(ledger: Ledger, cli: Cli, tmp_path: Path) -> None:
    formula = "=HYPERLINK(evil)"
    attempt(ledger, formula, "-12.50", "+49-30").begin().complete('{"amount":"-3"}')
    attempt(ledger, "refused, twice").begin().reject("@SUM(A1)\nline two")
    attempt(
        ledger, "other day", space=replace(SPACE, business_date=DAY + timedelta(days=2))
    ).begin().complete()
    file = tmp_path / "march.csv"
    cli("export", "statements", "--start", "2025-03-01", "--end", "2025-03-31", "--file", str(file))
    assert "4 keys" in cli.err
    with file.open(encoding="utf-8-sig", newline="") as text:
        rows = {row["document"]: row for row in csv.DictReader(text)}
    assert set(rows) == {f"'{formula}", "-12.50", "'+49-30", "refused, twice"}
    assert rows["refused, twice"]["error"] == "'@SUM(A1)\nline two"
    done = rows["-12.50"]
    assert (done["state"], done["result"], done["run_id"]) == (
        "completed",
        '{"amount":"-3"}',
        "scheduled__2025-03-31",
    )
    cli("export", "--start", "2025-03-31", "--file", str(file), code=1)
    assert "cannot be written" in cli.err
    assert cli("export", "--start", "2025-04-01", "--end", "2025-04-30").count("\n") == 2
    today = datetime.now(UTC).date().isoformat()
    doubtful = attempt(ledger, "doubtful").begin().doubt("timeout")
    (event,) = csv.DictReader(io.StringIO(cli("export", "--events", "--start", today)))
    assert (event["kind"], event["key_hash"]) == ("doubt", doubtful.hashes[0])
    cli("export", "statements", "--events", "--start", today, code=2)
    cli("export", "--start", "2025-04-01", "--end", "2025-03-01", code=2)
