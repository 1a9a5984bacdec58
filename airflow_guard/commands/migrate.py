"""``migrate``: the ledger's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_guard.acts.arguments import UsageError
from airflow_guard.commands import output
from airflow_guard.commands.ledgers import is_no_file, open_database, tables_of
from airflow_guard.core.errors import ConfigurationError
from airflow_guard.store.migrate import (
    current_revision,
    has_partitions,
    head_revision,
    migrate,
    migration_sql,
    partition,
)
from airflow_guard.store.partitions import AHEAD, Split

if TYPE_CHECKING:
    import argparse

    from airflow_guard.store.database import LedgerDatabase


def run(given: argparse.Namespace) -> None:
    """Create or upgrade the tables, or print the statements that would."""
    if given.dialect and not given.sql:
        raise UsageError("--dialect belongs to --sql")
    if given.sql and _wants_partitions(given):
        raise UsageError(
            "--sql prints versions; partitions depend on what the ledger holds, and are made directly"
        )
    if given.partitions_ahead is not None and not 0 <= given.partitions_ahead <= 120:
        raise UsageError("--partitions-ahead is a number of months, 0 to 120")
    if given.dialect:
        print(migration_sql(given.dialect, tables_of(given)))
        return
    with open_database(given) as database:
        if given.sql and is_no_file(database.url):
            print(migration_sql(database.dialect, database.tables))  # to connect would make the file
        elif given.sql:
            _print_script(database)
        else:
            _migrate(database)
            if _wants_partitions(given):
                _partition(database, given)


def _wants_partitions(given: argparse.Namespace) -> bool:
    return bool(given.partition or given.partitions_ahead is not None)


def _partition(database: LedgerDatabase, given: argparse.Namespace) -> None:
    ahead = AHEAD if given.partitions_ahead is None else given.partitions_ahead
    if not given.partition and not has_partitions(database):
        raise ConfigurationError(
            "This ledger is not partitioned. To make it so: airflow-guard migrate --partition (it locks the table for as "
            "long as it takes to read it once)."
        )
    made = partition(database, ahead=ahead)
    if isinstance(made, Split):
        held = "It held nothing with a date."
        if made.history is not None:
            held = f"What it held, up to before {made.history.after}, is the partition {made.history.name}."
        output.say(f"The ledger is partitioned. {held} {made.moved:,} keys without a date have their own.")
        added = made.added
    else:
        added = made
    output.say(f"New partitions: {', '.join(added) or 'none, they are all there'}.")


def _migrate(database: LedgerDatabase) -> None:
    applied = migrate(database)
    did = f"was migrated to version {applied[-1]}" if applied else f"has version {head_revision()} already"
    output.say(f"The ledger in {_where(database)} {did}.")


def _print_script(database: LedgerDatabase) -> None:
    current = current_revision(database)
    if current == head_revision():
        output.note(f"The ledger in {_where(database)} has version {current}: there is nothing to do.")
        return
    print(migration_sql(database.dialect, database.tables, from_revision=current))


def _where(database: LedgerDatabase) -> str:
    return database.url.render_as_string(hide_password=True)
