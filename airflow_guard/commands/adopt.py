"""``adopt``: history from a CSV file or a query."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from airflow_guard.acts import adoption, history, keys
from airflow_guard.acts.arguments import UsageError
from airflow_guard.commands import output
from airflow_guard.commands.ledgers import open_ledger, source_engine
from airflow_guard.core.decisions import check_words
from airflow_guard.core.errors import ResolutionError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from airflow_guard.acts.adoption import Adopted, HistoryRow
    from airflow_guard.commands.ledgers import Opened


def run(given: argparse.Namespace) -> None:
    """Adopt all rows of the source, or none."""
    _check(given)
    actor, reason = check_words(keys.actor_of(given), given.reason or "")
    with open_ledger(given) as opened:
        deployment = given.deployment or adoption.deployment_of(opened.ledger, opened.deployment)
        operation = adoption.Operation(
            given.namespace, given.operation, given.once_per, given.cycle or "", deployment
        )
        with _rows(given, opened) as rows:
            done = adoption.adopt(
                opened.ledger, operation, rows, actor=actor, reason=reason, dry_run=given.dry_run
            )
    _print(done, given)


def _check(given: argparse.Namespace) -> None:
    if bool(given.csv) == bool(given.sql):
        raise UsageError("give --csv FILE or --sql QUERY")
    if given.csv and (given.conn_id or given.source_url):
        raise UsageError("--conn-id and --source-url belong to --sql")
    if given.conn_id and given.source_url:
        raise UsageError("give --conn-id or --source-url")
    if len(given.delimiter) != 1:
        raise UsageError("--delimiter is one character")


@contextmanager
def _rows(given: argparse.Namespace, opened: Opened) -> Iterator[Iterator[HistoryRow]]:
    if given.sql:
        engine = source_engine(given, opened)
        try:
            with history.sql_rows(engine, given.sql) as rows:
                yield rows
        finally:
            engine.dispose()
    elif given.csv == "-":
        yield history.csv_rows(sys.stdin, given.delimiter)
    else:
        with _file(given.csv) as file:
            yield history.csv_rows(file, given.delimiter)


def _file(path: str) -> TextIO:
    try:
        return Path(path).open(encoding="utf-8", newline="")
    except OSError as error:
        raise ResolutionError(f"{path} cannot be read: {error.strerror}.") from None


def _print(done: Adopted, given: argparse.Namespace) -> None:
    if given.output != "table":
        output.record(
            {"rows": done.rows, "adopted": done.adopted, "known": done.known, "repeated": done.repeated,
             "first_date": str(done.first_date), "last_date": str(done.last_date), "dry_run": given.dry_run},
            given.output,
        )  # fmt: skip
        return
    would = "would be adopted (dry run, nothing was written)" if given.dry_run else "adopted"
    output.say(
        f"{done.adopted:,} of {done.rows:,} rows {would} as completed: {given.namespace} / "
        f"{given.operation}, {done.first_date} to {done.last_date}"
    )
    if done.known:
        output.say(f"{done.known:,} were in the ledger already and are left as they are")
    if done.repeated:
        output.say(f"{done.repeated:,} were listed more than once; the first mention counts")
