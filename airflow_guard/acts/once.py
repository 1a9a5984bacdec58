"""Long writes by a person: one transaction, tried once.

Short writes are repeated after a deadlock or a lost answer (:meth:`LedgerDatabase.write`). A long one is not:
the person sees what happened and runs the command again, which leaves alone what is done already.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from airflow_guard.core.errors import LedgerBusy, UnknownCommit
from airflow_guard.store import dialects
from airflow_guard.store.database import commit, meaning, raise_meant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_guard.store.database import LedgerDatabase


@contextmanager
def one_transaction(
    database: LedgerDatabase, doing: str, *, alone: bool = False, keep: bool = True
) -> Iterator[sa.Connection]:
    """Commit what is done in the block, or nothing of it.

    :param doing: in a word, for messages.
    :param alone: hold off everybody else's writes to keys from the first statement to the end, so that what
        is read in the block is all there is.
    :param keep: ``False`` takes everything back at the end (dry run).
    :raises LedgerBusy: a lock was not free in time, or a deadlock; nothing was written (a retry helps).
    :raises LedgerUnavailable: the database went away; nothing was written (a retry helps).
    :raises UnknownCommit: the answer to the commit was lost (a retry helps).
    """
    try:
        with database.engine.connect() as connection:
            if alone and database.dialect == dialects.MYSQL:
                # Only there are gaps locked: the places where a key would be inserted.
                connection = connection.execution_options(isolation_level="REPEATABLE READ")  # noqa: PLW2901
            with connection.begin() as transaction:
                database.durable(connection)
                database.limit_locks(connection)
                if alone:
                    _hold_off_writers(connection, database)
                yield connection
                if keep:
                    commit(transaction, connection, database)
                else:
                    transaction.rollback()
    except UnknownCommit as error:
        raise UnknownCommit(
            f"{error} Whether the {doing} took effect is not known. Run it again: what is done is left alone."
        ) from error
    except PoolTimeout as error:
        raise LedgerBusy(f"No free connection to the ledger {database.named}: {error}") from error
    except DBAPIError as error:
        if dialects.is_transient(error) or dialects.is_duplicate(error):
            raise LedgerBusy(
                f"The {doing} met a deadlock or conflict with tasks at work; nothing was written. Try again."
            ) from error
        raise_meant(meaning(error, doing, database), error)


def _hold_off_writers(connection: sa.Connection, database: LedgerDatabase) -> None:
    """Wait for the writes to keys that are under way, and let no other begin.

    SQLite has done so with ``BEGIN IMMEDIATE``. Readers and lease renewals go on everywhere.
    """
    execution = database.tables.execution
    if database.dialect == dialects.POSTGRES:
        name = connection.dialect.identifier_preparer.format_table(execution)
        connection.exec_driver_sql(f"LOCK TABLE {name} IN SHARE ROW EXCLUSIVE MODE")
    elif database.dialect == dialects.MYSQL:
        connection.execute(sa.select(sa.func.count()).select_from(execution).with_for_update()).scalar_one()
