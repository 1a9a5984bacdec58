"""Adopt history: what was done before the ledger kept watch."""

from __future__ import annotations

import itertools
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from airflow_guard.acts import adoption, history, keys, shown
from airflow_guard.acts.act import Act, Plan
from airflow_guard.acts.adoption import COLUMNS, Adopted, Operation
from airflow_guard.acts.arguments import CHANGING, CYCLE, Argument, Command, UsageError
from airflow_guard.acts.concerned import dags_of_namespace
from airflow_guard.core.errors import ConfigurationError, ResolutionError
from airflow_guard.reading.scope import NotThere

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from airflow_guard.acts.act import Asked, Opened, Words
    from airflow_guard.acts.adoption import HistoryRow

    Rows = Callable[[], AbstractContextManager[Iterator[HistoryRow]]]

MAX_UPLOAD_BYTES = 5_000_000
"""Of a file at a page. A larger history is adopted in parts, or by the command."""
_DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t"}
_SHOWN = 10


@dataclass(frozen=True)
class Wanted:
    """Whose history it is, and where it comes from.

    :param file: as it was uploaded; a character for each byte.
    """

    operation: Operation
    rows: Rows
    words: Words
    file: str | None = None


@dataclass(frozen=True)
class Looked:
    """What an adoption comes to, with the first rows of the source."""

    adopted: Adopted
    first: list[HistoryRow]


class Adopt(Act[Wanted, Looked]):
    """Rows are adopted after a look at the first ones, and at how many the ledger knows."""

    path, place, carries = "adopt", 50, True
    fields = ("namespace", "operation", "once_per", "cycle", "deployment", "delimiter", "reason")
    entry = ("Adopt history", "Record from a CSV file what was done before the ledger kept watch.")
    command = Command(
        "adopt",
        "Record history that was done before the ledger kept watch, as completed",
        "airflow_guard.acts.adopt:ADOPT",
        (
            Argument(
                "--namespace", "--dag", dest="namespace", required=True, help="the DAG, or key_namespace"
            ),
            Argument("--operation", required=True, help="the operation (by default the task_id)"),
            Argument(
                "--csv",
                metavar="FILE",
                help="a UTF-8 file with the header business_date[,document][,cycle][,result]; - is stdin",
            ),
            Argument("--delimiter", default=",", metavar="C", help="of the CSV file (default: a comma)"),
            Argument("--sql", metavar="QUERY", help="a query with those columns; it runs read only"),
            Argument(
                "--conn-id",
                metavar="CONN_ID",
                help="with --sql: Airflow connection to run it on (default: the ledger's database)",
            ),
            Argument("--source-url", metavar="URL", help="with --sql: the same as a URL"),
            Argument(
                "--once-per",
                choices=("date", "document"),
                default="date",
                help="as the operator has it (default: date)",
            ),
            CYCLE,
            Argument(
                "--deployment",
                metavar="NAME",
                help="whose history it is (default: [airflow_guard] deployment)",
            ),
            *CHANGING,
        ),
        description="All rows or none: a bad row is named, and nothing is written. Keys that the ledger has are "
        "left alone. Without a column document each row is a run as a whole.",
        epilog="examples:\n"
        '  airflow-guard adopt --dag statements --operation post --csv done.csv --reason "ran before" --dry-run\n'
        '  airflow-guard adopt --dag statements --operation post --reason "ran before" \\\n'
        '    --sql "select posted_on as business_date, statement_no as document from postings"',
    )

    def files(self) -> dict[str, tuple[str, str, str]]:
        """Return a file with the header that a history needs, and nothing that could be adopted by mistake."""
        return {"template.csv": ("history.csv", "text/csv", f"{','.join(COLUMNS)}\r\n")}

    def may(self, asked: Asked, at: Opened) -> None:
        """Refuse who may not edit the DAGs of the key namespace: an adopted key is never executed."""
        namespace = asked.text("namespace")
        if not namespace:
            raise NotThere
        asked.person.must_edit_all_of(dags_of_namespace(at.ledger.database, namespace) | {namespace})

    def form(self, asked: Asked, at: Opened) -> shown.FillIn:
        about = (
            "What was done before the ledger kept watch is recorded as done, so that no run does it again. What the ledger "
            "has already is left alone."
        )
        header = (
            f". It may have the columns {', '.join(COLUMNS)}; only business_date must be there. Without the column document "
            "a row is a run as a whole."
        )
        download = shown.Link("Download an empty file with the header", "forms/adopt/template.csv")
        once = shown.Options(
            "once_per",
            "It is done",
            (
                shown.Option("date", "once per date and document"),
                shown.Option("document", "once per document, whatever the date"),
            ),
            default="date",
        )
        hint = "What the keys of the task begin with: the id of its DAG, if the task says nothing else."
        limit = f"Up to {MAX_UPLOAD_BYTES:,} bytes."
        return shown.FillIn(
            "Adopt history",
            [shown.Text(about), shown.Text((download, header))],
            [
                shown.Line("namespace", "DAG, or key namespace", hint, dags=True),
                shown.Line("operation", "Operation"),
                once,
                shown.Line("cycle", "Cycle of rows that bring none", required=False),
                shown.Line("deployment", "Deployment", "Empty: this one.", required=False),
                shown.Upload("csv", "CSV file, in UTF-8", limit, ".csv,text/csv"),
                shown.Choice(
                    "delimiter", "Its columns are separated by a", {each: each for each in _DELIMITERS}
                ),
            ],
            why="How is it known that this was done?",
            dags=asked.person.dags,
        )

    def request(self, asked: Asked, at: Opened, words: Words) -> Wanted:
        """Return what was filled in, with the file; the confirmation carries it, so that no server has to keep it."""
        file = asked.carried if asked.confirmed else self._file(asked)
        if not asked.text("operation"):
            raise ResolutionError("Say which operation.")
        if asked.text("once_per") not in ("date", "document"):
            raise ResolutionError("Say whether it is done once per date or once per document.")
        deployment = asked.text("deployment")
        if not deployment:
            try:
                deployment = adoption.deployment_of(at.ledger, at.deployment)
            except ConfigurationError as error:
                raise ResolutionError(str(error)) from error
        text = asked.text
        operation = Operation(
            text("namespace"), text("operation"), text("once_per"), text("cycle"), deployment
        )
        delimiter = _DELIMITERS.get(text("delimiter"), ",")

        @contextmanager
        def rows() -> Iterator[Iterator[HistoryRow]]:
            yield history.uploaded_rows(file.encode("latin-1"), delimiter)

        return Wanted(operation, rows, words, file)

    def _file(self, asked: Asked) -> str:
        content = asked.upload("csv")
        if content is None:
            raise ResolutionError("Choose a CSV file.")
        return content.decode("latin-1")

    def plan(self, at: Opened, request: Wanted) -> Plan[Looked]:
        """Return what would be adopted; what the ledger has learnt since makes it stale."""
        look = self.run(at, request, dry_run=True)
        each = look.adopted
        seen = [each.rows, each.adopted, each.known, each.repeated, each.first_date, each.last_date]
        return Plan(look, seen, sure=not each.adopted, carried=request.file)

    def run(self, at: Opened, request: Wanted, *, dry_run: bool) -> Looked:
        """Adopt all rows, or none."""
        first: list[HistoryRow] = []

        def noted(rows: Iterator[HistoryRow]) -> Iterator[HistoryRow]:
            for row in rows:
                if len(first) < _SHOWN:
                    first.append(row)
                yield row

        words = request.words
        with request.rows() as rows:
            done = adoption.adopt(
                at.ledger,
                request.operation,
                noted(rows),
                actor=words.actor,
                reason=words.reason,
                dry_run=dry_run,
            )
        return Looked(done, first)

    def preview(self, request: Wanted, plan: Plan[Looked]) -> shown.Preview:
        adopted, first, operation = plan.what.adopted, plan.what.first, request.operation
        names = list(dict.fromkeys(itertools.chain.from_iterable(row.values for row in first)))
        columns = [("Where", "row"), *((name, "long") for name in names)]
        rows = [
            (row.place, *(keys.cut(str(row.values.get(name, "")), 200) for name in names)) for row in first
        ]
        figures = shown.Figures(
            "What would be written",
            (
                (adopted.rows, "rows in the file"),
                (adopted.adopted, "would be adopted as completed"),
                (adopted.known, "are in the ledger and left as they are"),
                (adopted.repeated, "are listed more than once; the first counts"),
            ),
        )
        span = (
            f"{operation.key_namespace} / {operation.operation}, {adopted.first_date} to {adopted.last_date}"
        )
        return shown.Preview(
            f"adopt {adopted.adopted:,} keys",
            [figures, shown.Text(span), shown.Table("First rows", columns, rows, caption="The first rows")],
            button="Adopt them",
            cancel=shown.Link("Cancel", "forms/adopt"),
        )

    def done(self, request: Wanted, what: Looked) -> shown.Done:
        adopted, operation = what.adopted, request.operation
        text = (
            f"All {adopted.rows:,} rows of the file are in the ledger: {operation.key_namespace} / {operation.operation}, "
            f"{adopted.first_date} to {adopted.last_date}."
        )
        where = {"namespace": operation.key_namespace, "operation": operation.operation}
        span = {"from": adopted.first_date, "to": adopted.last_date}
        return shown.Done(
            "Adopted", text, links=[shown.Link("The keys of these dates", "keys", {**where, **span})]
        )

    # -- The command -----------------------------------------------------------------------------------------

    def check(self, given: argparse.Namespace) -> Adopt:
        if bool(given.csv) == bool(given.sql):
            raise UsageError("give --csv FILE or --sql QUERY")
        if given.csv and (given.conn_id or given.source_url):
            raise UsageError("--conn-id and --source-url belong to --sql")
        if given.conn_id and given.source_url:
            raise UsageError("give --conn-id or --source-url")
        if len(given.delimiter) != 1:
            raise UsageError("--delimiter is one character")
        return self

    def given(self, given: argparse.Namespace, at: Opened, words: Words) -> Wanted:
        deployment = given.deployment or adoption.deployment_of(at.ledger, at.deployment)
        operation = Operation(given.namespace, given.operation, given.once_per, given.cycle or "", deployment)
        return Wanted(operation, lambda: _rows(given, at), words)

    def said(self, request: Wanted, what: Looked, *, dry_run: bool) -> shown.Said:
        done, operation = what.adopted, request.operation
        data = {
            "rows": done.rows,
            "adopted": done.adopted,
            "known": done.known,
            "repeated": done.repeated,
            "first_date": str(done.first_date),
            "last_date": str(done.last_date),
            "dry_run": dry_run,
        }
        would = "would be adopted (dry run, nothing was written)" if dry_run else "adopted"
        span = f"{operation.key_namespace} / {operation.operation}, {done.first_date} to {done.last_date}"
        lines = [f"{done.adopted:,} of {done.rows:,} rows {would} as completed: {span}"]
        if done.known:
            lines.append(f"{done.known:,} were in the ledger already and are left as they are")
        if done.repeated:
            lines.append(f"{done.repeated:,} were listed more than once; the first mention counts")
        return shown.Said(data, lines)


@contextmanager
def _rows(given: argparse.Namespace, at: Opened) -> Iterator[Iterator[HistoryRow]]:
    if given.sql and at.source is not None:
        engine = at.source(given.conn_id, given.source_url)
        try:
            with history.sql_rows(engine, given.sql) as rows:
                yield rows
        finally:
            engine.dispose()
    elif given.csv == "-":
        yield history.csv_rows(sys.stdin, given.delimiter)
    else:
        with _opened(given.csv) as file:
            yield history.csv_rows(file, given.delimiter)


def _opened(path: str) -> TextIO:
    try:
        return Path(path).open(encoding="utf-8", newline="")
    except OSError as error:
        raise ResolutionError(f"{path} cannot be read: {error.strerror}.") from None


ADOPT = Adopt()
ACTS = (ADOPT,)
