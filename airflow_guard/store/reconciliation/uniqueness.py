"""Whether a database itself forbids that a key occurs twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.store import dialects

if TYPE_CHECKING:
    from airflow_guard.store.reconciliation.plan import Readable


def is_unique(one: Readable, dialect: str, connection: sa.Connection) -> bool:
    """Return whether the database itself guarantees that no key occurs twice; ``False`` if that cannot be told."""
    table = one.rows.element if isinstance(one.rows, sa.Alias) else None
    if not isinstance(table, sa.TableClause):
        return False
    keys = {str(column.key) for column in one.keys}
    if (
        dialect == dialects.POSTGRES
        and connection.execute(_INHERITED, {"name": _quoted(connection, table)}).scalar()
    ):
        return False
    inspector = sa.inspect(connection)
    try:
        constraints = [inspector.get_pk_constraint(table.name, table.schema)["constrained_columns"]]
        constraints += [
            each["column_names"] for each in inspector.get_unique_constraints(table.name, table.schema)
        ]
    except (sa.exc.NoSuchTableError, NotImplementedError):
        return False  # a view, or a dialect that cannot tell
    return any(names and keys >= set(names) for names in constraints)


def never_null(rows: sa.FromClause, dialect: str, connection: sa.Connection) -> set[str]:
    """Return the columns that cannot be NULL, where knowing it makes a scan cheaper: tables of MySQL and MariaDB.

    A view says what its tables forbid, although an outer join in it makes NULLs: only what has a primary key is asked.
    PostgreSQL 18 has such constraints that its older rows break.
    """
    table = rows.element if isinstance(rows, sa.Alias) else None
    if dialect != dialects.MYSQL or not isinstance(table, sa.TableClause):
        return set()
    inspector = sa.inspect(connection)
    try:
        if not inspector.get_pk_constraint(table.name, table.schema)["constrained_columns"]:
            return set()
        columns = inspector.get_columns(table.name, table.schema)
    except sa.exc.NoSuchTableError:
        return set()
    return {column["name"] for column in columns if not column["nullable"]}


# A constraint of a parent table does not hold across the tables that inherit from it.
_INHERITED = sa.text("SELECT relkind = 'r' AND relhassubclass FROM pg_class WHERE oid = to_regclass(:name)")


def _quoted(connection: sa.Connection, table: sa.TableClause) -> str:
    preparer: Any = connection.dialect.identifier_preparer
    return str(preparer.format_table(table))
