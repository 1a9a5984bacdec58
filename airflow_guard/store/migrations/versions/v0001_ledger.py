"""The ledger as ``tables.py`` says, and the triggers that keep its events append-only.

No release holds this version yet, so it is made from the tables themselves. The first release writes it out: from then
on it never changes with them, and what comes after it is a version of its own.

Revision: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from airflow_guard.core.errors import ConfigurationError
from airflow_guard.store.migrations.append_only import create_triggers, existing_triggers
from airflow_guard.store.tables import ledger_tables

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_FILLFACTOR = 35


def upgrade(prefix: str, schema: str | None) -> None:
    """Create all tables, and the triggers that keep the event table append-only."""
    tables = ledger_tables(prefix, schema)
    for table in tables.metadata.tables.values():
        _create(table)
    context = op.get_context()
    if context.dialect.name == "postgresql":
        _leave_room(tables.execution)
    existing: set[str] = set()
    if not context.as_sql and _commits_ddl():
        existing = existing_triggers(op.get_bind(), prefix, schema)
    create_triggers(op.execute, context.dialect, prefix, schema, existing)


def downgrade(prefix: str, schema: str | None) -> None:
    """Refuse: the ledger is the memory of what was done, and no migration throws that away."""
    raise ConfigurationError(f"The ledger {schema or ''}.{prefix}* has no version before {revision}.")


def _commits_ddl() -> bool:
    return op.get_context().dialect.name in {"mysql", "mariadb"}


def _create(table: sa.Table) -> None:
    """Create a table and its indexes.

    MySQL and MariaDB commit each statement, so a migration that was interrupted goes on where it stopped.
    """
    offline = op.get_context().as_sql
    found, found_indexes = (False, set[str | None]()) if offline else _existing(table)
    if not found:
        op.execute(sa.schema.CreateTable(table))
    for index in sorted(table.indexes, key=lambda index: str(index.name)):
        if index.name not in found_indexes:
            op.execute(sa.schema.CreateIndex(index))


def _leave_room(table: sa.Table) -> None:
    """Let the versions of a row stay on its page (PostgreSQL).

    A row is written three times within seconds: claimed, begun, completed. With room for that, no step writes an
    index entry (a HOT update), and the log gets only what changed.
    """
    name = op.get_context().dialect.identifier_preparer.format_table(table)
    op.execute(f"ALTER TABLE {name} SET (fillfactor = {_FILLFACTOR})")


def _existing(table: sa.Table) -> tuple[bool, set[str | None]]:
    inspector = sa.inspect(op.get_bind())
    if not inspector.has_table(table.name, schema=table.schema):
        return False, set()
    columns = {column["name"] for column in inspector.get_columns(table.name, schema=table.schema)}
    if not _commits_ddl() or columns != set(table.columns.keys()):
        raise ConfigurationError(
            f"The table {table.fullname} exists, but no migration of this ledger made it. Give the ledger a "
            "free prefix or schema: [airflow_guard] table_prefix, schema."
        )
    return True, {index["name"] for index in inspector.get_indexes(table.name, schema=table.schema)}
