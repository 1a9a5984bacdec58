"""What a database itself says that a ledger's tables and triggers are."""

from __future__ import annotations

import re
import sqlite3
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    from airflow_guard.store.tables import Tables
    from tests.databases import DatabaseUnderTest


def tables_of(database: DatabaseUnderTest, tables: Tables) -> dict[str, Any]:
    """Return everything that the database knows of the ledger's columns, keys, indexes and CHECKs.

    :param tables: of the connection's default schema.
    """
    names = sorted(table.name for table in tables.metadata.tables.values())
    with database.engine().connect() as connection:
        if database.kind == "sqlite":
            return _sqlite(connection, names)
        if database.kind == "mariadb":
            return _mysql(connection, names)
        return _postgres(connection, names, database.schema or "public")


def triggers_of(database: DatabaseUnderTest, tables: Tables) -> list[tuple[Any, ...]]:
    """Return the triggers of the event table."""
    if database.kind == "sqlite":
        query = (
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = :table ORDER BY name"
        )
    elif database.kind == "mariadb":
        query = (
            "SELECT trigger_name, action_timing, event_manipulation, action_statement "
            "FROM information_schema.triggers "
            "WHERE event_object_schema = DATABASE() AND event_object_table = :table ORDER BY trigger_name"
        )
    else:
        query = (
            "SELECT tgname, tgtype, tgenabled, proname, prosrc FROM pg_trigger JOIN pg_proc p "
            "ON p.oid = tgfoid WHERE tgrelid = to_regclass(:table) AND NOT tgisinternal ORDER BY tgname"
        )
    with database.engine().connect() as connection:
        return [tuple(row) for row in connection.execute(sa.text(query), {"table": tables.event.name})]


def run_script(database: DatabaseUnderTest, script: str) -> None:
    """Run a script of many statements as an administrator's client would."""
    if database.kind == "sqlite":
        connection = sqlite3.connect(sa.make_url(database.url).database or "")
        connection.executescript(script)
        connection.close()
        return
    options: dict[str, Any] = {}
    if database.kind == "mariadb":
        from pymysql.constants import CLIENT

        options = {"connect_args": {"client_flag": CLIENT.MULTI_STATEMENTS}}
    raw = database.engine(isolation_level="AUTOCOMMIT", **options).raw_connection()
    try:
        cursor = raw.cursor()
        cursor.execute(script)
        while cursor.nextset():  # also tells of an error in a later statement
            pass
    finally:
        raw.close()


def _sqlite(connection: sa.Connection, names: list[str]) -> dict[str, Any]:
    query = sa.text(
        "SELECT type || ' ' || name, sql FROM sqlite_master "
        "WHERE tbl_name IN :names AND type IN ('table', 'index') AND sql IS NOT NULL"
    ).bindparams(sa.bindparam("names", expanding=True))
    return {name: " ".join(sql.split()) for name, sql in connection.execute(query, {"names": names})}


def _mysql(connection: sa.Connection, names: list[str]) -> dict[str, Any]:
    found = {}
    for name in names:
        lines = connection.execute(sa.text(f"SHOW CREATE TABLE `{name}`")).one()[1].splitlines()
        # Indexes are listed in the order in which they were made, which means nothing.
        found[name] = [lines[0], *sorted(line.rstrip(",") for line in lines[1:-1]), lines[-1]]
        found[f"{name} columns"] = [line for line in lines if line.startswith("  `")]
    return found


_POSTGRES_QUERIES = {
    "columns": "SELECT table_name, ordinal_position, column_name, data_type, character_maximum_length, "
    "numeric_precision, datetime_precision, collation_name, is_nullable, column_default "
    "FROM information_schema.columns WHERE table_schema = :schema AND table_name = ANY(:names)",
    "constraints": "SELECT c.relname, k.conname, k.contype, pg_get_constraintdef(k.oid) FROM pg_constraint k "
    "JOIN pg_class c ON c.oid = k.conrelid WHERE c.relnamespace = to_regnamespace(:schema) "
    "AND c.relname = ANY(:names)",
    "indexes": "SELECT tablename, indexname, indexdef FROM pg_indexes "
    "WHERE schemaname = :schema AND tablename = ANY(:names)",
}


def _postgres(connection: sa.Connection, names: list[str], schema: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind, query in _POSTGRES_QUERIES.items():
        for table, *row in connection.execute(sa.text(query), {"schema": schema, "names": names}):
            own = [re.sub(rf"\b{schema}\.", "", str(value)) for value in row]
            found.setdefault(f"{table} {kind}", []).append(own)
    return {name: sorted(rows) for name, rows in found.items()}
