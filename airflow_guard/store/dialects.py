"""What differs between PostgreSQL, MySQL/MariaDB and SQLite, in one module.

Lease time and ages are always the database's clock, in UTC: :class:`utc_now`, :class:`utc_after`, :class:`age_s`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.dialects import sqlite as sqlite_dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from airflow_guard.store.tables import Instant

POSTGRES, MYSQL, SQLITE = "postgresql", "mysql", "sqlite"
_SQLITE_INSTANT = "'%Y-%m-%d %H:%M:%f000'"


def family(dialect_name: str) -> str:
    """Return ``postgresql``, ``mysql`` (also for MariaDB) or ``sqlite``.

    :raises ValueError: another database: the ledger's statements are not known to be right there.
    """
    name = MYSQL if dialect_name == "mariadb" else dialect_name
    if name not in (POSTGRES, MYSQL, SQLITE):
        raise ValueError(f"The ledger runs on PostgreSQL, MySQL, MariaDB and SQLite, not on {dialect_name}.")
    return name


class utc_now(FunctionElement[Any]):  # noqa: N801 - a SQL function
    """The database's clock at this statement (not at the start of the transaction)."""

    type = Instant
    inherit_cache = True


class utc_after(FunctionElement[Any]):  # noqa: N801 - a SQL function
    """The database's clock plus a number of seconds (one argument)."""

    type = Instant
    inherit_cache = True


class age_s(FunctionElement[Any]):  # noqa: N801 - a SQL function
    """Seconds from an instant until the database's clock (one argument)."""

    type = sa.Float()
    inherit_cache = True


@compiles(utc_now, "postgresql")
def _now_postgres(element: utc_now, compiler: Any, **kw: Any) -> str:
    return "clock_timestamp()"


@compiles(utc_now, "mysql")
@compiles(utc_now, "mariadb")
def _now_mysql(element: utc_now, compiler: Any, **kw: Any) -> str:
    return "UTC_TIMESTAMP(6)"


@compiles(utc_now, "sqlite")
def _now_sqlite(element: utc_now, compiler: Any, **kw: Any) -> str:
    return f"strftime({_SQLITE_INSTANT}, 'now')"


@compiles(utc_after, "postgresql")
def _after_postgres(element: utc_after, compiler: Any, **kw: Any) -> str:
    return f"clock_timestamp() + make_interval(secs => CAST({compiler.process(element.clauses, **kw)} AS float8))"


@compiles(utc_after, "mysql")
@compiles(utc_after, "mariadb")
def _after_mysql(element: utc_after, compiler: Any, **kw: Any) -> str:
    seconds = compiler.process(element.clauses, **kw)
    return f"TIMESTAMPADD(MICROSECOND, 1000000 * {seconds}, UTC_TIMESTAMP(6))"


@compiles(utc_after, "sqlite")
def _after_sqlite(element: utc_after, compiler: Any, **kw: Any) -> str:
    return f"strftime({_SQLITE_INSTANT}, 'now', ({compiler.process(element.clauses, **kw)}) || ' seconds')"


@compiles(age_s, "postgresql")
def _age_postgres(element: age_s, compiler: Any, **kw: Any) -> str:
    return f"CAST(EXTRACT(EPOCH FROM clock_timestamp() - {compiler.process(element.clauses, **kw)}) AS float8)"


@compiles(age_s, "mysql")
@compiles(age_s, "mariadb")
def _age_mysql(element: age_s, compiler: Any, **kw: Any) -> str:
    return f"(TIMESTAMPDIFF(MICROSECOND, {compiler.process(element.clauses, **kw)}, UTC_TIMESTAMP(6)) / 1e6)"


@compiles(age_s, "sqlite")
def _age_sqlite(element: age_s, compiler: Any, **kw: Any) -> str:
    instant = compiler.process(element.clauses, **kw)
    return f"((julianday('now') - julianday({instant})) * 86400.0)"


def greatest(dialect: str, *columns: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Return the latest of several instants; NULL counts only if all are NULL."""
    filled = [sa.func.coalesce(column, columns[0]) for column in columns]
    return (sa.func.max if dialect == SQLITE else sa.func.greatest)(*filled, type_=Instant)


def hash_in(dialect: str, column: sa.Column[Any], name: str = "hashes") -> sa.ColumnElement[bool]:
    """Return ``column is one of`` a list parameter.

    PostgreSQL gets one array, so that the statement text (and its plan) does not depend on the length.
    """
    if dialect == POSTGRES:
        # The cast is to the column's own type: with text, the planner would not use the primary key.
        array = sa.cast(sa.bindparam(name), postgresql.ARRAY(postgresql.CHAR(32)))
        return column == sa.func.any(array)
    return column.in_(sa.bindparam(name, expanding=True))


def claim_insert(dialect: str, table: sa.Table, rows: Sequence[str], shared: Sequence[str]) -> Any:
    """Return the statement that inserts claims and leaves existing keys alone.

    :param rows: columns that differ by row; PostgreSQL takes one array for each (named like the column),
        the others one parameter set a row.
    :param shared: columns that all rows share, as scalar parameters.
    """
    instants = {"claimed_at": utc_now()}
    if dialect == POSTGRES:
        # Arrays of text: the insert casts to the columns' types, and text carries no collation of its own.
        arrays = [sa.cast(sa.bindparam(name), postgresql.ARRAY(sa.Text())) for name in rows]
        unnested = (
            sa.func.unnest(*arrays)
            .table_valued(*(sa.column(name, sa.Text()) for name in rows), name="claims")
            .render_derived()
        )
        selected = [unnested.c[name] for name in rows]
        scalars = [sa.cast(sa.bindparam(f"p_{name}"), table.c[name].type) for name in shared]
        insert = postgresql.insert(table).from_select(
            [*rows, *shared, *instants], sa.select(*selected, *scalars, *instants.values())
        )
        return insert.on_conflict_do_nothing(index_elements=["key_date", "key_hash"])
    values: dict[str, Any] = {name: sa.bindparam(name) for name in rows} | {
        name: sa.bindparam(f"p_{name}") for name in shared
    } | instants  # fmt: skip
    if dialect == MYSQL:
        plain = mysql.insert(table).values(values)
        # Not INSERT IGNORE, which would turn truncation and CHECK violations into warnings.
        return plain.on_duplicate_key_update(key_hash=table.c.key_hash)
    return sqlite_dialect.insert(table).values(values).on_conflict_do_nothing(
        index_elements=["key_date", "key_hash"]
    )  # fmt: skip


def own_transaction(dialect: str, table: sa.Table) -> sa.ColumnElement[bool] | None:
    """Return a condition that holds only if the row was last written by the current transaction.

    PostgreSQL can tell by ``xmin``; elsewhere ``None``: a savepoint tells (it does not survive a commit).
    """
    if dialect != POSTGRES:
        return None
    row: sa.ColumnElement[str] = sa.literal_column(f"{table.name}.xmin::text")
    return row == sa.literal_column("pg_current_xact_id()::xid::text")


_TRANSIENT = {"40001", "40P01", "1213", "1020"}
_BUSY = {"55P03", "1205", "3572"}
_DOWN = {"57P01", "57P02", "57P03", "08000", "08001", "08003", "08004", "08006", "53300", "25006", "1040", "1290",
         "2002", "2003", "2006", "2013", "2055", "1053", "1927", "1836"}  # fmt: skip
_MISSING = {"42P01", "42703", "1146", "1054", "3F000"}


def error_code(error: DBAPIError) -> str:
    """Return SQLSTATE (PostgreSQL) or the error number (MySQL), or ``""``."""
    original = error.orig
    # The number first: PyMySQL has a SQLSTATE too, which is coarser (HY000 for a lock timeout).
    arguments = getattr(original, "args", ())
    if arguments and isinstance(arguments[0], int):
        return str(arguments[0])
    return str(getattr(original, "sqlstate", None) or getattr(original, "pgcode", None) or "")


def is_transient(error: DBAPIError) -> bool:
    """Return whether a deadlock or serialisation failure rolled the transaction back: repeat it."""
    return error_code(error) in _TRANSIENT


def is_busy(error: DBAPIError) -> bool:
    """Return whether a lock was not free in time."""
    return error_code(error) in _BUSY or bool(re.search(r"database (table )?is locked|busy", str(error.orig)))


def is_down(error: DBAPIError) -> bool:
    """Return whether the database could not be reached, went away, or is read-only (a standby)."""
    if error.connection_invalidated or error_code(error) in _DOWN:
        return True
    text = str(error.orig).lower()
    lost = ("connection", "server closed", "terminating", "could not connect", "unable to open database", "timeout")
    return not error_code(error) and any(word in text for word in lost)


def is_missing(error: DBAPIError) -> bool:
    """Return whether a table or column does not exist."""
    return error_code(error) in _MISSING or "no such table" in str(error.orig) or "no such column" in str(error.orig)
