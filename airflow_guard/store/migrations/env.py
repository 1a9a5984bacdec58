"""Alembic's entry: runs the versions on the connection, or writes them as SQL, as ``migrate.py`` asks.

It configures no logging (the application's stands) and reads no ``alembic.ini``: everything comes in
``Config.attributes``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from alembic import context

from airflow_guard.store.migrations import version_table

if TYPE_CHECKING:
    from airflow_guard.store.tables import Tables


def run() -> None:
    """Run what ``alembic.command.upgrade`` selected."""
    attributes = context.config.attributes
    tables: Tables = attributes["tables"]
    options: dict[str, Any] = {
        "version_table": version_table(tables.prefix),
        "version_table_schema": tables.schema,
    }
    if context.is_offline_mode():
        name = attributes["dialect_name"]
        context.configure(
            dialect_name=name,
            # A style without percent signs, which would be doubled in a script.
            dialect_opts={"paramstyle": "named"},
            transactional_ddl=name != "mysql",
            **options,
        )
    else:
        context.configure(
            connection=attributes["connection"],
            on_version_apply=attributes["on_version_apply"],
            **options,
        )
    with context.begin_transaction():
        if context.is_offline_mode() and tables.schema and attributes["dialect_name"] == "postgresql":
            quoted = context.get_context().dialect.identifier_preparer.quote_schema(tables.schema)
            context.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted}")
        context.run_migrations(prefix=tables.prefix, schema=tables.schema)


run()
