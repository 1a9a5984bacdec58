"""Whose an operation is: the DAGs that a change of all its keys is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from airflow_guard.store import aliases

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_guard.store.aliases import Name
    from airflow_guard.store.database import LedgerDatabase


def dags_of(database: LedgerDatabase, names: Iterable[Name]) -> set[str]:
    """Return the DAGs whose tasks and checks have used operations, also under their earlier names.

    Of an operation that no task has used there is none.

    :param names: ``key_namespace`` and ``operation``.
    """
    return database.read(lambda connection: _dags(connection, database, list(names)))


def dags_of_namespace(database: LedgerDatabase, key_namespace: str) -> set[str]:
    """Return the DAGs whose tasks have used any operation of a key namespace."""
    run = database.tables.task_run
    found = sa.select(run.c.dag_id).where(run.c.key_namespace == key_namespace).distinct()
    return set(database.read(lambda connection: connection.execute(found).scalars().all()))


def _dags(connection: sa.Connection, database: LedgerDatabase, names: list[Name]) -> set[str]:
    tables = database.tables
    every = {old for name in names for old in aliases.former_names(connection, tables, name)} | set(names)
    dags: set[str] = set()
    for namespace, operation in sorted(every):
        for table in (tables.task_run, tables.reconciliation):
            used = sa.select(table.c.dag_id).where(
                table.c.key_namespace == namespace, table.c.operation == operation
            )
            dags |= set(connection.execute(used.distinct()).scalars())
    return dags
