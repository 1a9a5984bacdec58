"""``migrate``: the ledger's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_guard.cli import output
from airflow_guard.cli.definitions import UsageError
from airflow_guard.cli.ledgers import open_database, tables_of
from airflow_guard.store.migrate import current_revision, head_revision, migrate, migration_sql

if TYPE_CHECKING:
    import argparse

    from airflow_guard.store.database import LedgerDatabase


def run(given: argparse.Namespace) -> None:
    """Create or upgrade the tables, or print the statements that would."""
    if given.dialect and not given.sql:
        raise UsageError("--dialect belongs to --sql")
    if given.dialect:
        print(migration_sql(given.dialect, tables_of(given)))
        return
    with open_database(given) as database:
        if given.sql:
            _print_script(database)
        else:
            _migrate(database)


def _migrate(database: LedgerDatabase) -> None:
    applied = migrate(database)
    did = f"migrated to version {applied[-1]}" if applied else f"has version {head_revision()} already"
    output.say(f"The ledger in {_where(database)} {did}.")


def _print_script(database: LedgerDatabase) -> None:
    current = current_revision(database)
    if current == head_revision():
        output.note(f"The ledger in {_where(database)} has version {current}: there is nothing to do.")
        return
    print(migration_sql(database.dialect, database.tables, from_revision=current))


def _where(database: LedgerDatabase) -> str:
    return database.url.render_as_string(hide_password=True)
