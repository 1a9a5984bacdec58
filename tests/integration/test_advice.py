"""Each advice of an error and of ``diagnose``, followed as it is written: commands and parameters are cut out of the text
that somebody would read, and afterwards the situation that the text was about is gone.

That every command, option, parameter and setting in a text exists at all: tests/docs/test_advice.py.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from airflow.sdk import DAG

import airflow_guard
from airflow_guard import (
    ConfigurationError,
    Database,
    External,
    IdempotentOperator,
    NotExecuted,
    Rejected,
    Side,
)
from airflow_guard.acts.purging import Purge
from airflow_guard.acts.reruns import authorise
from airflow_guard.commands.definitions import COMMANDS
from airflow_guard.commands.main import main
from airflow_guard.core import commands as command_lines
from airflow_guard.core import errors
from airflow_guard.core.documents import DocumentReader
from airflow_guard.core.expectations import Expected
from airflow_guard.core.keys import KeySpace
from airflow_guard.reconciling.reconciler import reconcile
from airflow_guard.reconciling.rules import Rules
from airflow_guard.store.resolution import Judged
from tests.chaos import fixtures
from tests.chaos.books import DATABASE, DAY, Books, counts, failure
from tests.databases import databases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from airflow_guard.core.report import Report

pytestmark = databases("sqlite")
books = fixtures.books
NEXT_RUN = "scheduled__2026-02-01"
_COMMAND = re.compile(r'airflow-guard [a-z]+(?: (?:"[^"]*"|[^\s"();]+))*')
_PARAMETER = re.compile(r"\b(\w+)=('[^']*'|\"[^\"]*\"|\[[^\]]*\])")


def commands_in(text: str) -> list[list[str]]:
    """Return the command lines in a text, each as its words."""
    return [shlex.split(found[0].rstrip(".,")) for found in _COMMAND.finditer(text)]


def parameters_in(text: str) -> dict[str, Any]:
    """Return what a text says to set, as ``name=value``."""
    found: dict[str, Any] = {}
    for name, value in _PARAMETER.findall(text):
        unquoted = json.loads(value.replace("'", '"'))
        found[name] = tuple(unquoted) if isinstance(unquoted, list) else unquoted
    return found


class Reader:
    """Somebody who does what a text says, and puts in only what it leaves open: a reason, and the ledger."""

    def __init__(self, books: Books) -> None:
        self.books = books

    def runs(self, words: Sequence[str], *more: str) -> None:
        """Run a command line on the ledger, and say yes where it asks."""
        assert words[0] == "airflow-guard"
        (command,) = [each for each in COMMANDS if each.name == words[1]]
        if any("--yes" in argument.flags for argument in command.arguments):
            more = (*more, "--yes")
        filled = ["the advice was followed" if word == "…" else word for word in words[1:]]
        assert main([*filled, *more, "--ledger", self.books.url]) == 0, words

    def runs_the_command_of(self, error: object, *more: str) -> None:
        """Run the one command that a text names."""
        (words,) = commands_in(str(error))
        self.runs(words, *more)


@pytest.fixture
def reader(books: Books) -> Reader:
    return Reader(books)


def failed(report: Report, kind: type[BaseException]) -> str:
    """Return the message of the error of a document, or of the task, of this kind."""
    raised = [*(error for _, error in report.errors), failure(report)]
    return str(next(each for each in raised if isinstance(each, kind)))


FOLLOWED: dict[type[BaseException], list[str]] = {}
"""Which test follows the advice of an error."""


def follows(*kinds: type[BaseException]) -> Callable[[Any], Any]:
    """Note that a test follows what errors of these kinds advise."""

    def note(test: Any) -> Any:
        for kind in kinds:
            FOLLOWED.setdefault(kind, []).append(test.__name__)
        return test

    return note


ADVISE_NOTHING = {
    errors.GuardError: "the root",
    errors.ContentChanged: "followed in tests/integration/test_content_advice.py",
    errors.Signal: "the root of what callables raise",
    errors.Rejected: "raised by the callable; what becomes of it is TooManyRejected",
    errors.NotExecuted: "raised by the callable; another try does it",
    errors.LedgerError: "the root of what the ledger raises",
    errors.BlockedError: "the root of what holds a key back",
    errors.ReconciliationError: "the root of what checks raise",
    errors.BusinessDateError: "followed in tests/unit/test_dates*.py: conf, business_date or a rule gives a date",
    errors.CalendarError: "advises to install a library, or a calendar of one's own: tests/unit/test_calendars.py",
    errors.DateChangedError: "followed in tests/integration/test_operator_dates.py: the old date again, or a run with conf",
    errors.LedgerUnavailable: "waits for the database",
    errors.LedgerRefused: "an account or a database must be corrected: tests/integration/test_refused_connections.py",
    errors.LedgerBusy: "try again: tests/contract/test_driver_errors.py",
    errors.UnknownCommit: "try again: tests/contract/test_commit_faults.py",
    errors.DuplicateRefused: 'on_duplicate="fail" asked for it',
    errors.Stopped: "another try goes on: tests/integration/test_execution_workers.py",
    errors.DocumentsFailed: "counts what its documents say themselves",
    errors.SideUnavailable: "looked at again by the sensor",
    errors.NeverCompared: "names what kept the sides from being read",
    errors.BreaksFound: "names the breaks; tests/integration/test_cli_breaks.py runs the command of its message",
}
"""Errors whose text says nothing that a reader could do here, and why."""


# -- keys that may not run -------------------------------------------------------------------------------------


@follows(errors.OtherRun)
def test_another_run(books: Books) -> None:
    books.run(books.pay, ["A"])
    said = failed(books.run(books.pay, ["A"], run_id=NEXT_RUN), errors.OtherRun)
    assert "set cycle" in said
    assert counts(books.run(books.pay, ["A"], run_id=NEXT_RUN, **parameters_in(said))) == {"replayed": 1}
    assert counts(books.run(books.pay, ["B"], run_id=NEXT_RUN, cycle="2")) == {"executed": 1}


@follows(errors.OtherDeployment)
def test_another_deployment(books: Books) -> None:
    books.run(books.pay, ["A"], deployment="production")
    said = failed(books.run(books.pay, ["A"], deployment="laptop", try_number=2), errors.OtherDeployment)
    assert "set [airflow_guard] deployment to the same name" in said
    (name,) = re.findall(r"deployment '(\w+)'", said)
    assert counts(books.run(books.pay, ["A"], deployment=name, try_number=3)) == {"replayed": 1}


@follows(errors.InDoubt, errors.InDoubtUnsettled)
@pytest.mark.parametrize("happened", [True, False])
@pytest.mark.parametrize("when", ["when it arises", "at the next try"])
def test_a_doubt(books: Books, reader: Reader, happened: bool, when: str) -> None:
    def pay(document: str) -> None:
        if happened:
            books.receiver.call(document)
        raise TimeoutError("no answer")

    report = books.run(pay, ["A"])
    if when == "at the next try":
        report = books.run(books.pay, ["A"], try_number=2)
    said = failed(report, errors.InDoubt)
    (words,) = commands_in(said)
    if not happened:
        assert "(or --did-not-happen)" in said
        words[words.index("--happened")] = "--did-not-happen"
    reader.runs(words)
    assert counts(books.run(books.pay, ["A"], try_number=3)) == {"replayed" if happened else "executed": 1}
    assert books.receiver.documents() == ["A"]


@follows(errors.FollowUpFailed)
@pytest.mark.parametrize("when", ["when it arises", "at the next try"])
def test_a_follow_up(books: Books, reader: Reader, when: str) -> None:
    def pay(document: str, effect: Any) -> None:
        with effect:
            books.receiver.call(document)
        raise ValueError("no archive")

    report = books.run(pay, ["A"])
    if when == "at the next try":
        report = books.run(pay, ["A"], try_number=2)
    reader.runs_the_command_of(failed(report, errors.FollowUpFailed))
    assert counts(books.run(pay, ["A"], try_number=3)) == {"replayed": 1}
    assert books.receiver.documents() == ["A"]


@follows(errors.TooManyRejected)
@pytest.mark.parametrize("decision", ["--waive", "--send-again"])
def test_a_rejection(books: Books, reader: Reader, decision: str) -> None:
    def refuse(document: str) -> None:
        raise Rejected("no account")

    said = failed(books.run(refuse, ["A"]), errors.TooManyRejected)
    assert f"(or {decision})" in said or decision in said
    (words,) = commands_in(said)
    words[words.index("--waive")] = decision
    reader.runs(words)
    expected = {"replayed": 1} if decision == "--waive" else {"executed": 1}
    assert counts(books.run(books.pay, ["A"], try_number=2)) == expected


@follows(errors.KeyDrift)
@pytest.mark.parametrize("way", ["operation", "rename", "retired_operations"])
def test_a_renamed_task(books: Books, reader: Reader, way: str) -> None:
    books.run(books.pay, ["A"], operation="post", task_id="post")
    new = {"operation": "post_statement", "task_id": "post_statement"}
    with pytest.raises(errors.KeyDrift) as caught:
        books.run(books.pay, ["A"], **new)
    said = str(caught.value)
    set_ = parameters_in(said)
    if way == "rename":
        reader.runs_the_command_of(said)
    elif way == "operation":
        assert set_["key_namespace"] == books.dag_id
        new["operation"] = set_["operation"]
    else:
        new["retired_operations"] = set_["retired_operations"]
    done = {"executed": 1} if way == "retired_operations" else {"replayed": 1}
    assert counts(books.run(books.pay, ["A"], try_number=2, **new)) == done


@follows(errors.NotGuardedThen)
@pytest.mark.parametrize("way", ["adopt", "guarded_from"])
@pytest.mark.parametrize("why", ["guarded_from", "a later try"])
def test_work_from_before(
    books: Books, reader: Reader, way: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules: dict[str, Any] = {"guarded_from": date(2026, 2, 1)} if why == "guarded_from" else {}
    due = {"run_after_at": datetime.now(UTC) - timedelta(hours=1), "try_number": 2}
    said = failed(books.run(books.pay, ["A"], **due, **rules), errors.NotGuardedThen)
    if way == "adopt":
        monkeypatch.chdir(tmp_path)
        assert "list it in done.csv (business_date,document)" in said
        Path("done.csv").write_text(f"business_date,document\n{DAY},A\n", encoding="utf-8")
        reader.runs_the_command_of(said)
    else:
        assert "set guarded_from to a date at or before this one" in said
        rules["guarded_from"] = DAY
    done = {"replayed": 1} if way == "adopt" else {"executed": 1}
    assert counts(books.run(books.pay, ["A"], **due | {"try_number": 3}, **rules)) == done


@follows(errors.BeforeHorizon)
def test_a_purged_date(books: Books) -> None:
    day = date(2025, 1, 31)
    books.run(books.pay, ["A"], day=day)
    list(Purge(books.ledger, day, "ada", "a year", key_namespace=books.dag_id).run())
    said = failed(books.run(books.pay, ["A"], day=day, run_id=NEXT_RUN), errors.BeforeHorizon)
    assert "give it a key of its own: another operation or cycle" in said
    own: dict[str, Any] = {"run_id": NEXT_RUN, "day": day, "operation": "post_again", "task_id": "again"}
    assert counts(books.run(books.pay, ["A"], **own)) == {"executed": 1}


@follows(errors.InProgressElsewhere)
def test_a_key_in_progress_elsewhere(books: Books) -> None:
    seen: list[str] = []

    def pay(document: str) -> None:
        books.receiver.call(document)
        seen.append(failed(books.run(books.pay, ["A"], try_number=2), errors.InProgressElsewhere))

    books.run(pay, ["A"])
    assert "another try finds its result" in seen[0]
    assert counts(books.run(books.pay, ["A"], try_number=3)) == {"replayed": 1}


@follows(errors.RerunRefused)
@pytest.mark.parametrize("way", ["on_rerun", "--without-reversal"])
def test_a_rerun_that_nothing_reverses(books: Books, reader: Reader, way: str) -> None:
    books.run(books.pay, ["A"])
    row = books.row("A")
    judged = [Judged(DAY, row.key_hash, row.owner_token)]
    authorise(books.ledger, judged, actor="ada", reason="a bug", expires=timedelta(days=1))
    said = failed(books.run(books.pay, ["A"], try_number=2), errors.RerunRefused)
    if way == "on_rerun":
        assert "Give the task on_rerun" in said
        reversed_: list[str] = []

        def reverse(document: str) -> None:
            reversed_.append(document)

        effect = External(on_rerun=reverse)
        assert counts(books.run(books.pay, ["A"], try_number=3, side_effect=effect)) == {"executed": 1}
        assert reversed_ == ["A"]
    else:
        withdraw, again = commands_in(said)
        assert ("--withdraw" in withdraw, way in again) == (True, True)
        reader.runs(withdraw)
        reader.runs(again)
        assert counts(books.run(books.pay, ["A"], try_number=3)) == {"executed": 1}
    assert books.receiver.documents() == ["A", "A"]


@follows(errors.OwnershipLost)
def test_a_key_that_went_to_another_attempt(
    books: Books, reader: Reader, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = External(verify=lambda: False, settle_after=timedelta(0))

    def pay(document: str) -> None:
        books.receiver.call(document)
        books.expire_leases()
        books.forget_signs()
        books.run(books.pay, [document], try_number=2, side_effect=wrong)

    said = failed(books.run(pay, ["A"], side_effect=wrong), errors.OwnershipLost)
    capsys.readouterr()
    reader.runs_the_command_of(said)
    assert "conflict" in capsys.readouterr().out, "what it says to look at tells the story"


# -- documents ---------------------------------------------------------------------------------------------------


def read(items: list[Any], **options: Any) -> list[Any]:
    refused: list[Any] = []
    reader = DocumentReader(KeySpace("statements", "post", DAY).hasher(), **options)
    for _ in reader.chunks(items, 10, lambda _item, error: refused.append(error)):
        pass
    return refused


@follows(errors.DocumentError)
def test_documents_that_cannot_be_keys() -> None:
    (missing,) = read([{"\ufeffno": "1"}], document_key="no")
    assert 'encoding="utf-8-sig"' in str(missing)
    assert read([{b"\xef\xbb\xbfno".decode("utf-8-sig"): "1"}], document_key="no") == []
    (long,) = read(["x" * 300])
    assert "a digest of it" in str(long)
    (float_,) = read([1.5])
    assert "must be str, int or UUID" in str(float_)
    assert read(["sha256:4711", 1, "1.5"]) == []


@follows(errors.DuplicateDocumentError)
def test_a_document_that_is_listed_with_two_contents(books: Books, reader: Reader) -> None:
    listed = [{"no": "1", "part": "a"}, {"no": "1", "part": "b"}]
    said = failed(books.run(books.pay, listed, document_key="no"), errors.DuplicateDocumentError)
    assert "make the identity (document_key) finer" in said
    finer = [{**each, "id": f"{each['no']}/{each['part']}"} for each in listed]
    second = books.run(books.pay, finer, document_key="id", try_number=2)
    assert counts(second)["executed"] == 2
    assert "drop that" in said
    reader.runs_the_command_of(failed(second, errors.Forgotten))
    assert counts(books.run(books.pay, finer, document_key="id", try_number=3)) == {"replayed": 2}


@follows(errors.Forgotten, errors.DroppedBefore)
def test_a_document_that_is_not_listed_any_more(books: Books, reader: Reader) -> None:
    def pay(document: str) -> None:
        if document == "B":
            raise NotExecuted("closed")
        books.receiver.call(document)

    books.run(pay, ["A", "B"])
    said = failed(books.run(pay, ["A"], try_number=2), errors.Forgotten)
    assert "let it be listed again and clear the task" in said
    reader.runs_the_command_of(said)
    assert counts(books.run(pay, ["A"], try_number=3)) == {"replayed": 1}
    again = failed(books.run(books.pay, ["A", "B"], try_number=4), errors.DroppedBefore)
    reader.runs_the_command_of(again)
    assert counts(books.run(books.pay, ["A", "B"], try_number=5)) == {"replayed": 1, "executed": 1}
    assert books.receiver.documents() == ["A", "B"]


@follows(errors.UnexpectedListing)
@pytest.mark.parametrize("rules", [{"on_empty": "fail"}, {"expected": Expected(least=1)}])
def test_a_listing_that_brings_too_little(books: Books, rules: dict[str, Any]) -> None:
    with pytest.raises(errors.UnexpectedListing, match="another try lists again"):
        books.run(books.pay, [], **rules)
    assert counts(books.run(books.pay, ["A"], try_number=2, **rules)) == {"executed": 1}


@follows(errors.RepeatedDocument)
@pytest.mark.parametrize("way", ["correct the list", "make the identity (document_key) finer"])
def test_a_document_that_is_listed_twice(books: Books, reader: Reader, way: str) -> None:
    rules = {"on_repeated": "fail", "document_key": "no", "fingerprint_fields": ("no",)}
    listed = [{"no": "1", "part": "a"}, {"no": "1", "part": "b"}]
    with pytest.raises(errors.RepeatedDocument) as caught:
        books.run(books.pay, listed, **rules)
    assert way in str(caught.value)
    assert books.receiver.calls() == []
    if way == "correct the list":
        assert counts(books.run(books.pay, listed[:1], try_number=2, **rules)) == {"executed": 1}
        return
    finer = [{**each, "id": f"{each['no']}/{each['part']}"} for each in listed]
    rules |= {"document_key": "id", "fingerprint_fields": ("id",)}
    second = books.run(books.pay, finer, try_number=2, **rules)
    assert counts(second)["executed"] == 2
    assert "drop that" in str(caught.value)
    reader.runs_the_command_of(failed(second, errors.Forgotten))
    assert counts(books.run(books.pay, finer, try_number=3, **rules)) == {"replayed": 2}


@follows(errors.TransactionError)
@pytest.mark.parametrize("way", ["begin_nested", "external"])
def test_a_callable_that_commits(books: Books, way: str) -> None:
    def commits(document: str, connection: sa.Connection) -> None:
        connection.commit()

    said = failed(books.run(commits, ["A"], side_effect=DATABASE), errors.TransactionError)
    assert "connection.begin_nested()" in said

    def nested(document: str, connection: sa.Connection) -> None:
        with connection.begin_nested():
            books.post(document, connection)

    def external(document: str) -> None:
        with books.database.business_engine.begin() as connection:
            books.post(document, connection)

    done = books.run(
        nested if way == "begin_nested" else external, ["A"], try_number=2,
        side_effect=DATABASE if way == "begin_nested" else External(),
    )  # fmt: skip
    assert counts(done) == {"executed": 1}
    assert books.posted() == ["A"]


# -- ledgers ------------------------------------------------------------------------------------------------------


@follows(errors.LedgerNotMigrated)
def test_a_ledger_without_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "new.db").touch()
    url = f"sqlite:///{tmp_path}/new.db"
    assert main(["show", "--ledger", url]) == 1
    (words,) = commands_in(capsys.readouterr().err)
    assert main(words[1:]) == 0
    assert main(["show", "--ledger", url]) == 0


@follows(errors.LedgerNotConfigured)
def test_a_ledger_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, airflow_home: Path
) -> None:
    monkeypatch.delenv("AIRFLOW__AIRFLOW_GUARD__LEDGER_CONN_ID", raising=False)
    url = f"sqlite:///{tmp_path}/new.db"
    assert main(["show", "--ledger", url]) == 1
    (words,) = commands_in(capsys.readouterr().err)
    assert main(words[1:]) == 0
    assert main(["show", "--ledger", url]) == 0
    assert main(["show"]) == 1
    said = capsys.readouterr().err
    assert "give --ledger with an Airflow connection or a URL" in said
    assert "set ledger_conn_id in section [airflow_guard]" in said
    monkeypatch.setenv(
        "AIRFLOW_CONN_BOOKS", json.dumps({"conn_type": "sqlite", "host": f"{tmp_path}/new.db"})
    )
    monkeypatch.setenv("AIRFLOW__AIRFLOW_GUARD__LEDGER_CONN_ID", "books")
    assert main(["show"]) == 0
    monkeypatch.delenv("AIRFLOW__AIRFLOW_GUARD__LEDGER_CONN_ID")
    assert main(["show", "--ledger", "books"]) == 0


@follows(errors.ResolutionError, errors.StaleResolution)
def test_a_decision_about_what_has_changed(
    books: Books, reader: Reader, capsys: pytest.CaptureFixture[str]
) -> None:
    def pay(document: str) -> None:
        raise TimeoutError("no answer")

    (words,) = commands_in(failed(books.run(pay, ["A"]), errors.InDoubt))
    reader.runs(words)
    wrong = ["waive" if word == "--happened" else word for word in words]
    filled = ["why" if word == "…" else word for word in wrong[1:]]
    filled[filled.index("waive")] = "--waive"
    assert main([*filled, "--ledger", books.url]) == 1
    said = capsys.readouterr().err
    shown = [each for each in commands_in(said) if each[1] == "show"]
    for each in shown:
        reader.runs(each)
    assert "Nothing was changed" in said


# -- parameters ---------------------------------------------------------------------------------------------------


@follows(errors.ConfigurationError)
@pytest.mark.parametrize(
    ("wrong", "says", "right"),
    [
        ({"documents": {"no": 1}}, "For one document use document=", {"document": "1"}),
        ({"documents": [{"no": 1}]}, "Set document_key=", {"documents": [{"no": 1}], "document_key": "no"}),
        ({"call_per": "batch"}, "needs documents=", {"call_per": "batch", "documents": ["A"]}),
        ({"documents": iter("A")}, "Give the function that makes it", {"documents": lambda: iter("A")}),
        ({"side_effect": External}, "The classes must be called: External()", {"side_effect": External()}),
        ({"once_per": "document", "document": "A", "cycle": "1"}, "leave out cycle", {"once_per": "document", "document": "A"}),
        ({"operation": "{{ ds }}"}, "belongs into document or cycle", {"cycle": "{{ ds }}"}),
        ({"task_id": "post__1"}, "needs operation=", {"task_id": "post__1", "operation": "post_statement"}),
    ],
)  # fmt: skip
def test_parameters_that_cannot_work(wrong: dict[str, Any], says: str, right: dict[str, Any]) -> None:
    def post() -> None: ...

    given = {"task_id": "post", "python_callable": post, "ledger_conn_id": "guard_ledger"}
    with DAG("advised", schedule=None), pytest.raises(ConfigurationError) as caught:
        IdempotentOperator(**given | wrong)
    assert says in str(caught.value)
    with DAG("advised", schedule=None):
        IdempotentOperator(**given | right)


@follows(errors.ResultError)
def test_a_result_that_cannot_be_stored(books: Books, reader: Reader) -> None:
    def pay(document: str) -> object:
        books.receiver.call(document)
        return object()

    said = str(books.run(pay, one="A").problem)
    assert "JSON" in said
    assert books.receiver.documents() == ["A"], "the effect is done, whatever its result is"


# -- checks of two sides ------------------------------------------------------------------------------------------


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/sides.db")
    with engine.begin() as connection:
        for table in "st":
            connection.exec_driver_sql(f"CREATE TABLE {table} (no text, amount, currency text)")

    def check(rows: list[tuple[Any, ...]], rules: Rules | None = None, **more: Any) -> Any:
        with engine.begin() as connection:
            for table in "st":
                connection.exec_driver_sql(f"DELETE FROM {table}")
                for row in rows:
                    connection.exec_driver_sql(f"INSERT INTO {table} VALUES (?, ?, ?)", row)
        both = [Side(f"books_{table}", table=table, key="no", amount="amount", **more) for table in "st"]
        return reconcile(*both, rules or Rules(), source_engine=engine, target_engine=engine)

    yield check
    engine.dispose()


@follows(errors.BothEmpty)
def test_both_sides_empty(sides: Callable[..., Any]) -> None:
    found = sides([])
    assert not found.passed
    assert sides([], Rules(allow_empty=True)).passed


@follows(errors.AmountError)
def test_an_amount_that_is_a_float(sides: Callable[..., Any]) -> None:
    with pytest.raises(errors.AmountError) as caught:
        sides([("1", 0.1, "EUR")])
    assert "set absolute_tolerance above zero" in str(caught.value)
    assert sides([("1", 0.1, "EUR")], Rules(absolute_tolerance="0.01")).passed
    assert "as text" in str(caught.value)
    assert sides([("1", "0.1", "EUR")]).passed
    assert "an integer of minor units" in str(caught.value)
    assert sides([("1", 10, "EUR")]).passed


@follows(errors.SideInvalid)
def test_a_column_that_is_not_there(sides: Callable[..., Any]) -> None:
    with pytest.raises(errors.SideInvalid) as caught:
        sides([], Rules(compare=["curency"]))
    (near,) = re.findall(r"Did you mean (\w+)\?", str(caught.value))
    assert sides([("1", "1", "EUR")], Rules(compare=[near])).passed


def test_currencies_that_cannot_be_added_up(sides: Callable[..., Any]) -> None:
    rows = [("1", "1", "EUR"), ("2", "1", "USD")]
    with pytest.raises(ConfigurationError) as caught:
        sides(rows, currency="currency")
    (group,) = re.findall(r"group_by=(\[[^\]]+\])", str(caught.value))
    assert sides(rows, Rules(group_by=json.loads(group.replace("'", '"'))), currency="currency").passed


# -- diagnose -----------------------------------------------------------------------------------------------------


def diagnosed(books: Books, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    capsys.readouterr()
    asked = ["diagnose", books.dag_id, str(DAY), *more, "--ledger", books.url, "-o", "json"]
    assert main(asked) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_diagnose_of_a_doubt(
    books: Books, reader: Reader, capsys: pytest.CaptureFixture[str], airflow_home: Path
) -> None:
    def pay(document: str) -> None:
        raise TimeoutError("no answer")

    books.run(pay, ["A"])
    (finding,) = [each for each in diagnosed(books, capsys)["findings"] if each["cause"] == "in doubt"]
    (words,) = commands_in(finding["remedy"])
    assert words == ["airflow-guard", "resolve", "--key", "…"]
    reader.runs([*words[:-1], books.row("A").key_hash, "--happened", "--reason", "…"])
    assert "in doubt" not in {each["cause"] for each in diagnosed(books, capsys)["findings"]}


def test_diagnose_asks_for_the_business_table_by_the_options_that_it_has(
    books: Books, capsys: pytest.CaptureFixture[str], airflow_home: Path
) -> None:
    table = f"booked_{books.dag_id}"
    with books.database.engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE {table} (document varchar(20))")

    def post(document: str, connection: sa.Connection) -> None:
        connection.execute(sa.text(f"INSERT INTO {table} VALUES (:document)"), {"document": document})

    # Of no other test: the ledger is shared, and the same documents elsewhere are a finding.
    books.run(post, [f"D-{books.dag_id}"], operation="book", side_effect=Database())
    said = diagnosed(books, capsys)["conclusion"]
    options = re.findall(r"--[a-z-]+", said)
    assert options == ["--table", "--table-key"]
    values = {"--table": table, "--table-key": "document"}
    more = [word for option in options for word in (option, values[option])]
    assert "No business row is doubled" in diagnosed(books, capsys, *more)["conclusion"]


def test_diagnose_of_a_guarded_task_that_listed_nothing(
    books: Books, capsys: pytest.CaptureFixture[str], airflow_home: Path
) -> None:
    books.run(books.pay, [])
    said = diagnosed(books, capsys)
    assert "not guarded" not in said["conclusion"]
    (finding,) = [each for each in said["findings"] if each["cause"] == "listed nothing"]
    assert "1 tries of guarded tasks" in finding["evidence"]


# -- commands ------------------------------------------------------------------------------------------------------


def doubtful(books: Books) -> str:
    """Leave document A in doubt, and return its key."""

    def pay(document: str) -> None:
        raise TimeoutError("no answer")

    books.run(pay, ["A"])
    return books.row("A").key_hash


def test_what_show_says_settles_a_key(
    books: Books, reader: Reader, capsys: pytest.CaptureFixture[str]
) -> None:
    key = doubtful(books)
    capsys.readouterr()
    assert main(["show", "--key", key, "-o", "json", "--ledger", books.url]) == 0
    [life] = json.loads(capsys.readouterr().out)
    happened, _ = life["commands"]
    reader.runs([word for word in shlex.split(happened) if word not in ("--ledger", books.url)])
    assert counts(books.run(books.pay, ["A"], try_number=2)) == {"replayed": 1}


def test_a_command_about_a_key_that_is_not_there(
    books: Books, reader: Reader, capsys: pytest.CaptureFixture[str]
) -> None:
    doubtful(books)
    wrong = ["resolve", books.dag_id, str(DAY), "post", "B", "--happened", "--reason", "seen", "--yes"]
    assert main([*wrong, "--ledger", books.url]) == 1
    [words] = commands_in(capsys.readouterr().err)
    reader.runs([word for word in words if word not in ("--ledger", books.url)])
    assert " A " in capsys.readouterr().out


def test_a_rerun_of_what_is_in_doubt(
    books: Books, reader: Reader, capsys: pytest.CaptureFixture[str]
) -> None:
    key = doubtful(books)
    again = ["rerun", "--key", key, "--without-reversal", "--reason", "a bug", "--yes", "--ledger", books.url]
    assert main(again) == 1
    [words] = commands_in(capsys.readouterr().err)
    reader.runs([word for word in words if word not in ("--ledger", books.url)])
    assert main(again) == 0
    assert counts(books.run(books.pay, ["A"], try_number=2)) == {"executed": 1}


@pytest.mark.parametrize("answer", [0, 1])
@pytest.mark.parametrize("when", ["when it arises", "at the next try"])
def test_a_reversal_in_doubt(books: Books, reader: Reader, answer: int, when: str) -> None:
    reversed_: list[str] = []

    def breaks(document: str) -> None:
        raise TimeoutError("no answer")

    def reverses(document: str) -> None:
        reversed_.append(document)

    books.run(books.pay, ["A"])
    row = books.row("A")
    authorise(
        books.ledger,
        [Judged(DAY, row.key_hash, row.owner_token)],
        actor="ada",
        reason="a bug",
        expires=timedelta(days=1),
    )
    said = failed(
        books.run(books.pay, ["A"], try_number=2, side_effect=External(on_rerun=breaks)), errors.InDoubt
    )
    assert "say that the second did not happen, and of the reversal:" in said
    books.resolve("A", "did_not_happen")
    if when == "at the next try":
        said = failed(
            books.run(books.pay, ["A"], try_number=3, side_effect=External(on_rerun=reverses)), errors.InDoubt
        )
    reruns = [words for part in said.split(" or: ") for words in commands_in(part) if words[1] == "rerun"]
    reader.runs(reruns[answer])
    report = books.run(books.pay, ["A"], try_number=4, side_effect=External(on_rerun=reverses))
    assert counts(report) == {"executed": 1}
    assert reversed_ == ([] if "--reversal-happened" in reruns[answer] else ["A"])
    assert books.receiver.documents() == ["A", "A"]


@pytest.mark.parametrize("when", ["when it arises", "at the next try"])
def test_a_result_that_is_missing(books: Books, reader: Reader, when: str) -> None:
    def pay(document: str) -> object:
        books.receiver.call(document)
        return object()

    report = books.run(pay, one="A")
    said = str(report.problem)
    if when == "at the next try":
        said = failed(books.run(pay, one="A", try_number=2), errors.FollowUpFailed)
    reader.runs_the_command_of(said)
    assert counts(books.run(pay, one="A", try_number=3)) == {"replayed": 1}
    assert books.receiver.documents() == ["A"]


def test_another_identity_that_is_to_stay(
    books: Books, reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = [{"no": "N1", "msg": "M1"}]
    books.run(books.pay, listed, document_key="no")
    with pytest.raises(errors.KeyDrift) as caught:
        books.run(books.pay, listed, document_key="msg", try_number=2)
    monkeypatch.chdir(tmp_path)
    assert "list what was done by it in done.csv (business_date,document)" in str(caught.value)
    Path("done.csv").write_text(f"business_date,document\n{DAY},M1\n", encoding="utf-8")
    reader.runs_the_command_of(caught.value)
    assert counts(books.run(books.pay, listed, document_key="msg", try_number=3)) == {"replayed": 1}


@pytest.mark.parametrize("way", ["key_namespace", "rename"])
def test_a_copy_of_a_dag(books: Books, reader: Reader, way: str, caplog: pytest.LogCaptureFixture) -> None:
    operation, copy = f"pay_{books.dag_id}", f"{books.dag_id}_copy"
    books.run(books.pay, ["A"], operation=operation)
    new: dict[str, Any] = {
        "operation": operation,
        "dag_id": copy,
        "run_id": "manual__copy",
        "run_type": "manual",
    }
    books.run(books.pay, ["A", "B"], key_namespace=copy, mode="observe", **new)
    [said] = [each.getMessage() for each in caplog.records if "in its first run" in each.getMessage()]
    assert f"key_namespace={books.dag_id!r}" in said
    if way == "key_namespace":
        done = books.run(books.pay, ["A"], key_namespace=parameters_in(said)["key_namespace"], **new)
        assert counts(done) == {"replayed": 1}
    else:
        [words] = commands_in(said)
        assert words[:3] == ["airflow-guard", "rename", books.dag_id]


def _sites() -> set[tuple[str, str]]:
    """Return where the package puts a command line into a text: function, and what makes the line."""
    found = set()
    for path in sorted(Path(airflow_guard.__file__).parent.rglob("*.py")):
        module = ".".join(path.relative_to(Path(airflow_guard.__file__).parent).with_suffix("").parts)
        if module != "core.commands":
            _look(ast.parse(path.read_text(encoding="utf-8")), module, found)
    return found


def _look(node: ast.AST, name: str, found: set[tuple[str, str]]) -> None:
    makers = {each for each in vars(command_lines) if each.endswith("_command")}
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Name) and child.func.id in makers:
            found.add((name, child.func.id))
        _look(child, f"{name}.{child.name}" if named else name, found)  # type: ignore[attr-defined]


HERE = "integration/test_advice.py"
COMMANDS_FOLLOWED = {
    ("acts.keys.commands_for", "resolve_command"): (HERE, "test_what_show_says_settles_a_key"),
    ("acts.keys._check_found", "show_day_command"): (HERE, "test_a_command_about_a_key_that_is_not_there"),
    ("core.refusals._follow_up", "resolve_command"): (HERE, "test_a_follow_up"),
    ("core.refusals._dropped", "resolve_command"): (HERE, "test_a_document_that_is_not_listed_any_more"),
    ("core.refusals.content_changed", "resolve_command"): (
        "integration/test_content_advice.py", "test_d09_each_advice_about_what_is_done_works",
    ),
    ("core.refusals.content_changed", "show_command"): (
        "integration/test_content_advice.py", "test_d09_each_advice_about_what_is_done_works",
    ),
    ("core.refusals.content_changed", "rerun_command"): (
        "integration/test_content_advice.py", "test_d09_each_advice_about_what_is_done_works",
    ),
    ("core.refusals.decision_refused", "show_command"): (HERE, "test_a_decision_about_what_has_changed"),
    ("core.reruns.not_done", "resolve_command"): (HERE, "test_a_rerun_of_what_is_in_doubt"),
    ("core.reruns.check_reversal", "rerun_command"): (HERE, "test_a_reversal_in_doubt"),
    ("core.reruns.nothing_reverses", "rerun_command"): (HERE, "test_a_rerun_that_nothing_reverses"),
    ("acts.rerun_plan.RerunPlan.commands", "backfill_command"): (
        "docs/test_advice.py", "test_every_command_line_that_is_handed_over_is_understood",
    ),
    ("execution.doubts.DoubtSettler._command", "resolve_command"): (HERE, "test_a_doubt"),
    ("execution.external.ExternalEffect._follow_up_failed", "resolve_command"): (HERE, "test_a_follow_up"),
    ("execution.forgotten.Leftovers._drop", "drop_command"): (HERE, "test_a_document_that_is_not_listed_any_more"),
    ("execution.forgotten.Leftovers._settle", "resolve_command"): (
        "integration/test_execution_listing.py", "test_d03_what_was_in_doubt_is_settled_before_it_can_be_dropped",
    ),
    ("execution.preflight.unguarded_reason", "adopt_command"): (HERE, "test_work_from_before"),
    ("execution.preflight.DriftCheck._message", "rename_command"): (HERE, "test_a_renamed_task"),
    ("execution.preflight.DriftCheck._other_identity", "adopt_command"): (HERE, "test_another_identity_that_is_to_stay"),
    ("execution.preflight.DriftCheck._other_date", "adopt_command"): (
        "integration/test_operator_dates.py", "test_d04_a_new_date_that_is_to_stay",
    ),
    ("execution.preflight.Namesakes._say", "rename_command"): (HERE, "test_a_copy_of_a_dag"),
    ("execution.units.in_doubt", "resolve_command"): (HERE, "test_a_doubt"),
    ("execution.units.in_doubt_note", "rerun_command"): (HERE, "test_a_reversal_in_doubt"),
    ("execution.units.unstored", "resolve_command"): (HERE, "test_a_result_that_is_missing"),
    ("execution.units._lost", "show_command"): (HERE, "test_a_key_that_went_to_another_attempt"),
}  # fmt: skip
"""Which test runs the command line that a text of the package names: file, and test."""

COMMANDS_NOT_FOLLOWED = {
    "acts.reruns._Authorise._check": "the key has a newer attempt than was looked at: to look, nothing is settled by it",
    "notifications.": "alerts: what they say is in tests/integration/test_alerts.py; the commands are those of errors",
    "reading.": "the watch: tests/integration/test_watch.py runs that of left documents, the others are those of errors",
    "sensors.": "breaks: tests/integration/test_cli_breaks.py",
    "operators.asking.may_ask": "beside a question to a person, with the command of a doubt",
}
"""Where a command line is only shown, and why no test has to run it."""


def test_every_command_line_in_a_text_is_followed() -> None:
    """A new one needs a test that cuts it out of the text and runs it."""
    left = {
        site
        for site in _sites() - COMMANDS_FOLLOWED.keys()
        if not site[0].startswith(tuple(COMMANDS_NOT_FOLLOWED))
    }
    assert left == set()
    assert COMMANDS_FOLLOWED.keys() - _sites() == set(), "gone, or moved"
    for file, test in COMMANDS_FOLLOWED.values():
        tree = ast.parse((Path(__file__).parent.parent / file).read_text(encoding="utf-8"))
        assert test in {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}, (file, test)


# -- and nothing is left out --------------------------------------------------------------------------------------


def test_every_error_that_advises_something_is_followed() -> None:
    kinds = {
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, errors.GuardError)
    }
    assert {kind.__name__ for kind in kinds - FOLLOWED.keys() - ADVISE_NOTHING.keys()} == set()
    assert {kind.__name__ for kind in FOLLOWED.keys() & ADVISE_NOTHING.keys()} == set()
