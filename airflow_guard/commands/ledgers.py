"""From ``--ledger`` to a ledger: an Airflow connection, or a URL without Airflow."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from airflow_guard.acts.act import Opened
from airflow_guard.core.commands import without_password
from airflow_guard.core.errors import ConfigurationError, LedgerNotConfigured
from airflow_guard.store.database import LedgerDatabase
from airflow_guard.store.ledger import Ledger
from airflow_guard.store.migrate import check_migrated
from airflow_guard.store.tables import Tables, ledger_tables

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from airflow.sdk import Connection

    from airflow_guard.hooks.settings import GuardSettings

# What Airflow makes of the options of [airflow_guard], so that a URL and a connection find the same tables.
_ENVIRONMENT = "AIRFLOW__AIRFLOW_GUARD__"
_DRIVERS = {"postgres": "postgresql+psycopg", "postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql",
            "mariadb": "mariadb+pymysql"}  # fmt: skip


@contextmanager
def open_ledger(given: argparse.Namespace) -> Iterator[Opened]:
    """Open the ledger that the arguments name, ready for use; its connections are closed at the end.

    :raises LedgerNotConfigured: none is named, or there is no such connection.
    :raises LedgerNotMigrated: its tables are missing or of another version.
    :raises LedgerUnavailable: down (a retry helps).
    """
    opened = _opened(given)
    try:
        yield opened
    finally:
        opened.ledger.database.dispose()


def _opened(given: argparse.Namespace) -> Opened:
    if is_url(given.ledger):
        database = database_at(given.ledger, _tables(given), create=False)
        check_migrated(database, ledger=without_password(given.ledger))
        return _of(Ledger(database), given.ledger, _setting("deployment") or "default")
    from airflow_guard.hooks.ledger import ledger_of

    connection, settings = _connection(given)
    _check_file(connection)
    return _of(ledger_of(connection, settings), given.ledger, settings.deployment)


def _of(ledger: Ledger, name: str | None, deployment: str) -> Opened:
    return Opened(ledger, name, deployment, source=partial(source_engine, ledger))


@contextmanager
def open_database(given: argparse.Namespace) -> Iterator[LedgerDatabase]:
    """Open the ledger's database, migrated or not; its connections are closed at the end."""
    database = _database(given)
    try:
        yield database
    finally:
        database.dispose()


def _database(given: argparse.Namespace) -> LedgerDatabase:
    if is_url(given.ledger):
        return database_at(given.ledger, _tables(given), create=True)
    from airflow_guard.hooks.connections import database_of

    connection, settings = _connection(given)
    return database_of(connection, ledger_tables(settings.table_prefix, settings.schema))


def tables_of(given: argparse.Namespace) -> Tables:
    """Return the ledger's tables, without a database: from the options, else from Airflow's configuration."""
    if given.schema and given.table_prefix:
        return _tables(given)
    settings = _settings(given)
    return ledger_tables(settings.table_prefix, settings.schema)


def source_engine(ledger: Ledger, conn_id: str | None, url: str | None) -> sa.Engine:
    """Return the engine of a connection or URL; without either that of the ledger's database."""
    if url:
        return database_at(url, ledger_tables(), create=False).business_engine
    if not conn_id:
        return ledger.database.business_engine
    from airflow_guard.hooks.connections import database_of

    connection = _find(conn_id)
    _check_file(connection)
    if connection.conn_type in ("postgres", "mysql", "sqlite"):
        return database_of(connection).business_engine
    hook = connection.get_hook()  # type: ignore[no-untyped-call]
    if not hasattr(hook, "get_sqlalchemy_engine"):
        raise ConfigurationError(f"Connection {conn_id!r} ({connection.conn_type}) is no SQL database.")
    engine: sa.Engine = hook.get_sqlalchemy_engine()
    return engine


def is_url(name: str | None) -> bool:
    """Return whether a ledger is named by a URL."""
    return name is not None and "://" in name


def is_no_file(url: sa.URL) -> bool:
    """Return whether a URL names a SQLite file that is not there: the first connection would make it."""
    return url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file()


def database_at(url: str, tables: Tables, *, create: bool) -> LedgerDatabase:
    """Return the database of a URL; nothing is opened yet.

    :param create: whether a SQLite file that does not exist is made by the first use; otherwise it is
        refused, since a misspelt path would be an empty ledger.
    :raises ConfigurationError: no URL, or its driver is not installed.
    """
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        raise ConfigurationError(f"{without_password(url)} is no database URL.") from None
    parsed = parsed.set(drivername=_DRIVERS.get(parsed.drivername, parsed.drivername))
    if not create and is_no_file(parsed):
        raise LedgerNotConfigured(
            f"There is no SQLite file {parsed.database!r}. Correct the path, or make a ledger there: airflow-guard migrate "
            f"--ledger {shlex.quote(url)}"
        )
    try:
        return LedgerDatabase(parsed, tables=tables)
    except sa.exc.NoSuchModuleError as error:
        raise ConfigurationError(f"{without_password(url)}: {error}.") from None
    except ModuleNotFoundError as error:
        extra = " (pip install 'airflow-guard[mysql]')" if error.name == "pymysql" else ""
        raise ConfigurationError(
            f"{without_password(url)} needs {error.name}, which is not installed{extra}."
        ) from None


def _tables(given: argparse.Namespace) -> Tables:
    prefix = given.table_prefix or _setting("table_prefix") or "guard_"
    return ledger_tables(prefix, given.schema or _setting("schema"))


def _setting(option: str) -> str | None:
    return os.environ.get(_ENVIRONMENT + option.upper(), "").strip() or None


def _settings(given: argparse.Namespace) -> GuardSettings:
    from airflow_guard.hooks.settings import GuardSettings

    _keep_logs_out_of_data()
    settings = GuardSettings.read()
    return replace(
        settings,
        schema=given.schema or settings.schema,
        table_prefix=given.table_prefix or settings.table_prefix,
    )


def _keep_logs_out_of_data() -> None:
    """Send what Airflow 3.2 and newer log to standard output to standard error: data is printed there."""
    logging.getLogger("alembic").setLevel(logging.WARNING)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stdout:
            handler.setStream(sys.stderr)


def _connection(given: argparse.Namespace) -> tuple[Connection, GuardSettings]:
    from airflow_guard.hooks.ledger import ledger_conn_id

    settings = _settings(given)
    if not (given.ledger or settings.ledger_conn_id):
        raise LedgerNotConfigured(
            "No ledger is named: give --ledger with an Airflow connection or a URL (--ledger core_banking, --ledger "
            "postgresql://user@host/db), or set ledger_conn_id in section [airflow_guard] of airflow.cfg."
        )
    return _find(ledger_conn_id(given.ledger, settings)), settings


def _check_file(connection: Connection) -> None:
    """Refuse a SQLite file that is not there: a task makes it at its first use, but who looks has misspelt it."""
    if connection.conn_type != "sqlite":
        return
    from airflow_guard.hooks.connections import database_of

    url = database_of(connection).url
    if is_no_file(url):
        raise LedgerNotConfigured(
            f"There is no SQLite file {url.database!r}, which connection {connection.conn_id!r} names. Correct it. A new "
            f"ledger is made there by: airflow-guard migrate --ledger {connection.conn_id}"
        )


def _find(conn_id: str) -> Connection:
    # As Airflow's own commands do: otherwise connections that were made in its UI are not found.
    os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")
    from airflow_guard.hooks.ledger import find_connection

    return find_connection(conn_id)
