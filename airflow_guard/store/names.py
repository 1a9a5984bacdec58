"""Which operations a ledger knows: asked where a name was not found, to say what may have been meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

if TYPE_CHECKING:
    from airflow_guard.store.aliases import Name
    from airflow_guard.store.tables import Tables


def known_names(connection: sa.Connection, tables: Tables) -> list[Name]:
    """Return namespace and operation of all that the ledger has seen: tries, checks, adopted keys and what was
    purged.

    It reads adopted keys too, which has no index: for messages, not for what runs often.
    """
    e = tables.execution
    sources = [
        sa.select(table.c.key_namespace, table.c.operation).distinct()
        for table in (tables.task_run, tables.reconciliation, tables.horizon)
    ]
    sources.append(sa.select(e.c.key_namespace, e.c.operation).where(e.c.task_run_id.is_(None)).distinct())
    return sorted({(row[0], row[1]) for source in sources for row in connection.execute(source)})


def known_dags(connection: sa.Connection, tables: Tables) -> list[str]:
    """Return the DAGs and namespaces that the ledger has seen. As slow as :func:`known_names`."""
    run = tables.task_run
    dags = connection.execute(sa.select(run.c.dag_id).distinct()).scalars()
    return sorted({*dags, *(namespace for namespace, _ in known_names(connection, tables))})


def is_known(connection: sa.Connection, tables: Tables, name: Name) -> bool:
    """Return whether the ledger has seen an operation, also if it has no keys any more."""
    for table in (tables.task_run, tables.execution, tables.horizon, tables.reconciliation):
        found = sa.select(sa.literal(1)).where(table.c.key_namespace == name[0], table.c.operation == name[1])
        if connection.execute(found.limit(1)).first() is not None:
            return True
    return False
