"""What differs between PostgreSQL, MySQL/MariaDB and SQLite, in one module.

Lease time and ages are always the database's clock, in UTC: :class:`utc_now`, :class:`utc_after`, :class:`age_s`.
"""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.dialects import sqlite as sqlite_dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from airflow_guard.store.columns import Instant

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

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
    return (
        f"CAST(EXTRACT(EPOCH FROM clock_timestamp() - {compiler.process(element.clauses, **kw)}) AS float8)"
    )


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


def among_keys(dialect: str, table: sa.Table) -> sa.ColumnElement[bool]:
    """Return ``(key_date, key_hash) is one of`` the parameters ``:d`` and ``:hashes`` (a list).

    PostgreSQL gets a join with the unnested list, written so that its planner probes the primary key on both columns
    whatever its statistics say. With ``key_date = :d`` as a plain condition it reads all rows of a date whenever the
    statistics do not know the date yet, which for a ledger is every morning.
    """
    if dialect != POSTGRES:
        return sa.and_(
            table.c.key_date == sa.bindparam("d"),
            table.c.key_hash.in_(sa.bindparam("hashes", expanding=True)),
        )
    keys = listed(h="hashes").subquery("keys")
    return sa.and_(table.c.key_date == keys.c.d, table.c.key_hash == keys.c.h)


def listed(**lists: str) -> sa.Select[Any]:
    """Return a select of ``:d`` and of parallel list parameters, one row an element (PostgreSQL).

    A set-returning function keeps it from being merged into the outer query, and scalar subqueries hide the length of
    the lists: the planner expects ten rows, and one of them within a limit that it cannot know. A probe of the primary
    key is then cheaper than any table of more than ten pages, whether it has statistics or not. A plan that is kept
    for a connection is made while the ledger is small; one that reads the table would be kept while it grows.
    """
    columns = [
        sa.func.unnest(sa.select(_split(name)).scalar_subquery()).label(label)
        for label, name in lists.items()
    ]
    first = sa.bindparam(next(iter(lists.values())), type_=sa.Text())
    more_than_all = sa.select(sa.func.length(first) + sa.literal_column("1")).scalar_subquery()
    return sa.select(sa.cast(sa.bindparam("d"), sa.Date()).label("d"), *columns).limit(more_than_all)


def _split(name: str) -> Any:
    return sa.func.string_to_array(
        sa.bindparam(name),
        sa.literal_column("E'\\n'"),
        sa.literal_column("E'\\x01'"),
        type_=postgresql.ARRAY(sa.Text()),
    )


def list_value(dialect: str, items: Iterable[str | None]) -> Any:
    """Return a list parameter: for PostgreSQL one text of lines, which costs a tenth of a driver's array.

    No element can hold a line break: keys and fingerprints have none, documents are refused with one, results are
    JSON, which escapes it.
    """
    if dialect != POSTGRES:
        return list(items)
    return "\n".join("\x01" if item is None else item for item in items)


def claim_insert(dialect: str, table: sa.Table, rows: Sequence[str], shared: Sequence[str]) -> Any:
    """Return the statement that inserts claims and leaves existing keys alone.

    :param rows: columns that differ by row; PostgreSQL takes one array for each (named like the column),
        the others one parameter set a row.
    :param shared: columns that all rows share, as scalar parameters.
    """
    instants = {"claimed_at": utc_now()}
    if dialect == POSTGRES:
        unnested = (
            sa.func.unnest(*(_split(name) for name in rows))
            .table_valued(*(sa.column(name, sa.Text()) for name in rows), name="claims")
            .render_derived()
        )
        selected = [unnested.c[name] for name in rows]
        scalars = [sa.cast(sa.bindparam(f"p_{name}"), table.c[name].type) for name in shared]
        insert = postgresql.insert(table).from_select(
            [*rows, *shared, *instants], sa.select(*selected, *scalars, *instants.values())
        )
        return insert.on_conflict_do_nothing(index_elements=["key_date", "key_hash"])
    values: dict[str, Any] = (
        {name: sa.bindparam(name) for name in rows}
        | {name: sa.bindparam(f"p_{name}") for name in shared}
        | instants
    )
    if dialect == MYSQL:
        plain = mysql.insert(table).values(values)
        # Not INSERT IGNORE, which would turn truncation and CHECK violations into warnings.
        return plain.on_duplicate_key_update(key_hash=table.c.key_hash)
    return (
        sqlite_dialect.insert(table)
        .values(values)
        .on_conflict_do_nothing(index_elements=["key_date", "key_hash"])
    )


def own_transaction(dialect: str, table: sa.Table) -> sa.ColumnElement[bool] | None:
    """Return a condition that holds only if the row was last written by the current transaction.

    PostgreSQL can tell by ``xmin``; elsewhere ``None``: a savepoint tells (it does not survive a commit).
    """
    if dialect != POSTGRES:
        return None
    row: sa.ColumnElement[str] = sa.literal_column(f"{table.name}.xmin::text")
    return row == sa.literal_column("pg_current_xact_id()::xid::text")


_LIMIT_S = "airflow_guard_limit_s"
_SQLITE_STEPS = 20_000  # of its virtual machine, between two looks at the clock: about a millisecond


@contextmanager
def statement_limit(connection: sa.Connection, dialect: str, seconds: float) -> Iterator[None]:
    """Let each statement of the current transaction take only so long. Leaves nothing behind in the session."""
    if dialect == POSTGRES:
        # One round trip for both. To compile a plan takes longer than to run one that is over in milliseconds.
        settings = (
            f"set_config('statement_timeout', '{int(seconds * 1000)}', true), set_config('jit', 'off', true)"
        )
        connection.exec_driver_sql(f"SELECT {settings}")
        yield
    elif dialect == MYSQL:
        connection.execution_options(**{_LIMIT_S: seconds})  # see limited_mysql
        yield
    else:
        driver: Any = connection.connection.dbapi_connection
        end = time.monotonic() + seconds
        driver.set_progress_handler(lambda: time.monotonic() > end, _SQLITE_STEPS)
        try:
            yield
        finally:
            driver.set_progress_handler(None, 0)


def limited_mysql(
    connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, executemany: Any
) -> tuple[str, Any]:
    """Write the time limit of a transaction into each of its statements (``before_cursor_execute``)."""
    seconds = context.execution_options.get(_LIMIT_S) if context is not None else None
    if seconds is not None:
        if connection.dialect.is_mariadb:
            statement = f"SET STATEMENT max_statement_time = {seconds:f} FOR {statement}"
        else:
            hint = f"SELECT /*+ MAX_EXECUTION_TIME({int(seconds * 1000)}) */"
            statement = re.sub(r"\ASELECT\b", hint, statement)
    return statement, parameters


_TRANSIENT = {"40001", "40P01", "1213", "1020"}
# With them, statements that a time limit of the server or an administrator ended: a wait for a lock ends so, too.
_BUSY = {"55P03", "1205", "3572", "57014", "1317", "1969", "3024"}
_DOWN = {
    *(
        "57P01",
        "57P02",
        "57P03",
        "08000",
        "08001",
        "08003",
        "08004",
        "08006",
        "08007",
        "08P01",
        "53300",
        "25006",
    ),
    # MySQL's and MariaDB's servers; 1047 is a node of a cluster that is not ready.
    *("1040", "1047", "1053", "1158", "1159", "1160", "1161", "1184", "1203", "1226", "1290", "1836", "1927"),
    *("3169", "4031"),
    # Their clients; 0 is a connection that is closed already, 2014 and 2027 one whose answers are out of step.
    *("0", "2002", "2003", "2006", "2013", "2014", "2027", "2045", "2055"),
}
_REFUSED = {
    *("28000", "28P01", "3D000"),
    *("1044", "1045", "1049", "1129", "1130", "1251", "1275", "1698", "1820", "1862"),
    *("2026", "2054", "2059", "2061", "3118", "3159", "3955", "4151"),
}
# What PostgreSQL's drivers say has no code before there is a connection. "FATAL: " is a server's or a pooler's word.
_REFUSED_IN_WORDS = re.compile(
    r"fatal: +("
    r"(password|pam|ldap|gss\w*|sspi|ident|peer|scram|certificate|radius|md5|bsd) authentication failed"
    r"|(role|user|database) \".*\" (does not exist|is not permitted to log in)"
    r"|no such (database|user)|permission denied for database|no pg_hba\.conf entry|pg_hba\.conf rejects"
    r"|sasl authentication failed|invalid authorization|auth failed)"
    r"|no password supplied|does not support ssl, but|certificate verify failed|server certificate for "
    r"|invalid connection option|invalid \w+ value: |invalid integer value|file is not a database"
)
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
    code = error_code(error)
    # Only SQLite has no codes: elsewhere the text may hold a document's.
    return code in _BUSY or (
        not code and bool(re.search(r"database (table )?is locked|busy|interrupted", str(error.orig)))
    )


def is_down(error: DBAPIError) -> bool:
    """Return whether the database could not be reached, went away, or is read-only (a standby)."""
    if error.connection_invalidated or error_code(error) in _DOWN:
        return True
    text = str(error.orig).lower()
    lost = (
        "connection",
        "server closed",
        "packet sequence number wrong",
        "terminating",
        "could not connect",
        "unable to open database",
        "timeout",
        "failed to resolve host",
        "could not translate host name",
        "name or service not known",
        "name resolution",
        "nodename nor servname",
    )
    return not error_code(error) and any(word in text for word in lost)


def is_refused(error: DBAPIError) -> bool:
    """Return whether the server answers and refuses the connection, as it will the next time.

    No such database or account, a wrong password, no permission to connect, encryption that one side does not want. A
    host name that is not known is not among it: name servers fail, and come back.
    """
    if error.statement is not None:
        return False  # it was let in
    code = error_code(error)
    return code in _REFUSED or (
        not code and bool(_REFUSED_IN_WORDS.search(" ".join(str(error.orig).lower().split())))
    )


def is_duplicate(error: DBAPIError) -> bool:
    """Return whether a row with this key is there already."""
    code = error_code(error)
    return code in ("23505", "1062") or (not code and "UNIQUE constraint failed" in str(error.orig))


def is_missing(error: DBAPIError) -> bool:
    """Return whether a table or column does not exist."""
    code = error_code(error)
    return code in _MISSING or (not code and bool(re.search("no such (table|column)", str(error.orig))))


def is_denied(error: BaseException) -> bool:
    """Return whether an account of the database may not do what was asked for."""
    if not isinstance(error, DBAPIError):
        return False
    code = error_code(error)
    # 42501 insufficient_privilege; 1142 and 1143 of a table and a column.
    return code in ("42501", "1142", "1143") or (not code and "readonly database" in str(error.orig))


def is_no_savepoint(error: DBAPIError) -> bool:
    """Return whether a savepoint is not there (MySQL and SQLite): its transaction has ended."""
    code = error_code(error)
    return code == "1305" or (not code and "no such savepoint" in str(error.orig))
