"""Bring a ledger to the version that this release works with, and check that it is there.

Tasks never run DDL; only a SQLite file, which has no administrator, is created on first use.
"""

from __future__ import annotations

import io
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from airflow_guard.core.errors import ConfigurationError, LedgerBusy, LedgerNotMigrated
from airflow_guard.store import dialects
from airflow_guard.store.database import LOCK_TIMEOUT_S, LedgerDatabase, meaning, raise_meant
from airflow_guard.store.migrations import HEAD_REVISION, REVISIONS, version_table
from airflow_guard.store.migrations.append_only import create_triggers, existing_triggers
from airflow_guard.store.partitions import AHEAD, Split, add_ahead, is_partitioned, split

if TYPE_CHECKING:
    from collections.abc import Iterator

    from alembic.config import Config

    from airflow_guard.store.tables import Tables

PATIENCE_S = 60.0
"""How long a migration waits for another one, and for locks on the tables."""
# "GUARDLED": all ledgers of one PostgreSQL database take turns, as they may share a schema.
_POSTGRES_LOCK = 0x47554152444C4544
# PostgreSQL: insufficient privilege; MySQL: access to the database, or a command on a table, denied.
_NOT_ALLOWED = {"42501", "1044", "1142"}
# Alembic keeps the running environment in module globals.
_alembic = threading.Lock()


def migrate(database: LedgerDatabase, *, patience_s: float = PATIENCE_S) -> list[str]:
    """Bring the ledger to the newest version; any number of processes may do so at the same time.

    On PostgreSQL and SQLite all of it takes effect or nothing. MySQL and MariaDB commit each DDL statement: a
    migration that was interrupted there goes on when it is run again.

    :param patience_s: how long to wait for another migration and for locks, in seconds.
    :returns: the versions that this call applied, oldest first; empty if there was nothing to do.
    :raises LedgerNotMigrated: the ledger is newer than this installation.
    :raises ConfigurationError: the schema does not fit the database, or somebody else's table is in the way.
    :raises LedgerBusy: another migration, or tasks that hold locks (a retry helps).
    :raises LedgerUnavailable: the database is down (a retry helps).
    """
    current = current_revision(database)
    if current is not None and current not in REVISIONS:
        raise LedgerNotMigrated(_other_version(database, current))
    if current == HEAD_REVISION and database.dialect != dialects.MYSQL:
        return []
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return _migrate_once(database)
        except LedgerBusy:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.2)


def partition(
    database: LedgerDatabase, *, ahead: int = AHEAD, patience_s: float = PATIENCE_S
) -> Split | tuple[str, ...]:
    """Partition the ledger by date (PostgreSQL), or add the partitions that are missing if it is partitioned.

    All of it takes effect or nothing. Tasks wait meanwhile, and those that wait longer than their lock timeout are
    retried: see :func:`airflow_guard.store.partitions.split`.

    :param ahead: months after the current one that have a partition afterwards.
    :param patience_s: how long to try for a moment at which nobody holds the table, in seconds.
    :returns: what was made of a plain table, or the names of new partitions.
    :raises ConfigurationError: another database, an account that may not, or views of the table.
    :raises LedgerBusy: the table was never free (a retry helps).
    :raises LedgerUnavailable: the database is down (a retry helps).
    """
    check_migrated(database)
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return _partition_once(database, ahead)
        except LedgerBusy:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.2)


def has_partitions(database: LedgerDatabase) -> bool:
    """Whether the ledger is partitioned.

    :raises LedgerUnavailable: the database is down (a retry helps).
    """
    return database.read(lambda connection: is_partitioned(connection, database.tables.execution))


def _partition_once(database: LedgerDatabase, ahead: int) -> Split | tuple[str, ...]:
    try:
        with database.engine.connect() as connection, _alone(connection, database):
            made = split(connection, database, ahead=ahead)
            return add_ahead(connection, database, ahead=ahead) if made is None else made
    except DBAPIError as error:
        raise_meant(_failure(error, database), error)


def migration_sql(dialect_name: str, tables: Tables, *, from_revision: str | None = None) -> str:
    """Return the migration as a script, for an administrator to run.

    :param dialect_name: ``postgresql``, ``mysql``, ``mariadb`` or ``sqlite``.
    :param tables: prefix and schema of the ledger.
    :param from_revision: the version that the ledger has (:func:`current_revision`), ``None`` for a new one.
    :raises ConfigurationError: another database, or an unknown version.
    """
    try:
        family = dialects.family(dialect_name)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    if from_revision is not None and from_revision not in REVISIONS:
        raise ConfigurationError(f"The ledger has no version {from_revision}, only {', '.join(REVISIONS)}.")
    if family == dialects.SQLITE and tables.schema:
        raise ConfigurationError(_SQLITE_SCHEMA)
    script = io.StringIO()
    start = "" if from_revision is None else f"{from_revision}:"
    _upgrade(_config(tables, script, dialect_name=family), f"{start}{HEAD_REVISION}", sql=True)
    return script.getvalue()


def current_revision(database: LedgerDatabase) -> str | None:
    """Return the version of the ledger, ``None`` if it was never migrated.

    :raises LedgerUnavailable: the database is down (a retry helps).
    """
    tables = database.tables
    number = sa.column("version_num", sa.String)
    table = sa.table(version_table(tables.prefix), number, schema=tables.schema)

    def read(connection: sa.Connection) -> str | None:
        return connection.execute(sa.select(number).select_from(table)).scalar()

    try:
        return database.read(read)
    except LedgerNotMigrated:
        return None


def head_revision() -> str:
    """Return the version that this release of the package works with."""
    return HEAD_REVISION


def check_migrated(database: LedgerDatabase, *, ledger: str | None = None) -> None:
    """Refuse a ledger of another version.

    :param ledger: how the command line names the ledger (a connection id); default the URL without password.
    :raises LedgerNotMigrated: missing, older or newer; names both versions and the command that helps.
    :raises LedgerUnavailable: the database is down (a retry helps).
    """
    current = current_revision(database)
    if current != HEAD_REVISION:
        raise LedgerNotMigrated(_other_version(database, current, ledger))


def ensure_sqlite(database: LedgerDatabase) -> None:
    """Create the ledger if it is a SQLite file without one; do nothing on other databases.

    An older ledger is left as it is: :func:`check_migrated` says how to migrate it. Processes that come here
    at the same time all succeed.

    :raises ConfigurationError: ``[airflow_guard] schema`` is set.
    :raises LedgerBusy: another process held the file for too long (a retry helps).
    """
    if database.dialect == dialects.SQLITE and _patient_revision(database) is None:
        migrate(database)


_SQLITE_SCHEMA = "[airflow_guard] schema is set, but SQLite has none. Unset it, or use another database."


def _patient_revision(database: LedgerDatabase) -> str | None:
    """Return the version; the first processes at a new file lock each other out while they make it WAL."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return current_revision(database)
        except LedgerBusy:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.05)


def _other_version(database: LedgerDatabase, current: str | None, ledger: str | None = None) -> str:
    tables = database.tables
    name = f"{tables.schema}.{tables.prefix}*" if tables.schema else f"{tables.prefix}*"
    named = ledger or database.url.render_as_string(hide_password=True)
    if current is not None and current not in REVISIONS:
        return (
            f"The ledger {name} has version {current}, which this installation does not know; it works with "
            f"{HEAD_REVISION}. Upgrade airflow-guard here to the release that migrated the ledger."
        )
    return (
        f"The ledger {name} has version {current or 'none (no tables)'}, this installation works with "
        f"{HEAD_REVISION}. Run: airflow-guard migrate --ledger {named}"
    )


def _migrate_once(database: LedgerDatabase) -> list[str]:
    tables = database.tables
    applied: list[str] = []
    try:
        with database.engine.connect() as connection, _alone(connection, database):
            _require_schema(connection, database)
            callbacks = {"on_version_apply": _recorder(applied)}
            _upgrade(_config(tables, io.StringIO(), connection=connection, **callbacks), HEAD_REVISION)
            if database.dialect == dialects.MYSQL and REVISIONS[0] not in applied:
                # An earlier migration may have been refused the triggers.
                existing = existing_triggers(connection, tables.prefix, tables.schema)
                create_triggers(
                    connection.exec_driver_sql, connection.dialect, tables.prefix, tables.schema, existing
                )
    except DBAPIError as error:
        raise_meant(_failure(error, database), error)
    return applied


def _failure(error: DBAPIError, database: LedgerDatabase) -> Exception:
    said = str(error.orig).partition("\n")[0]
    if dialects.error_code(error) in _NOT_ALLOWED and not dialects.is_refused(error):
        return ConfigurationError(
            f"This account may not create the ledger: {said}. Use one that may, or give an administrator the "
            "script that airflow-guard migrate --sql prints."
        )
    if dialects.is_missing(error):
        return ConfigurationError(f"There is nowhere to create the ledger: {said}.")
    if dialects.is_transient(error):
        return LedgerBusy(f"The migration met a deadlock: {error.orig}")
    return meaning(error, "migrate", database)


def _recorder(applied: list[str]) -> Any:
    def record(*, step: Any, **_: Any) -> None:
        applied.append(str(step.up_revision_id))

    return record


@contextmanager
def _alone(connection: sa.Connection, database: LedgerDatabase) -> Iterator[None]:
    """Hold off other migrations, in one transaction (SQLite: it begins IMMEDIATE, and that is the lock)."""
    if database.dialect == dialects.MYSQL:
        with _mysql_lock(connection, database.tables.schema), connection.begin():
            yield
        return
    with connection.begin():
        if database.dialect == dialects.POSTGRES:
            database.limit_locks(connection, LOCK_TIMEOUT_S)
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_POSTGRES_LOCK)))
        yield


@contextmanager
def _mysql_lock(connection: sa.Connection, schema: str | None) -> Iterator[None]:
    # A lock of the session, as each DDL statement ends the transaction. Its name is the whole server's,
    # hence the digest of the database's name.
    name = sa.text("SELECT CONCAT('airflow_guard.', LEFT(SHA2(COALESCE(:schema, DATABASE(), ''), 256), 32))")
    lock = connection.execute(name, {"schema": schema}).scalar_one()
    got = connection.execute(sa.select(sa.func.get_lock(lock, LOCK_TIMEOUT_S))).scalar()
    if got != 1:
        raise LedgerBusy("Another process is migrating the ledger. Try again.")
    try:
        # Otherwise DDL waits a day and longer for a transaction that reads the table.
        connection.exec_driver_sql(f"SET SESSION lock_wait_timeout = {LOCK_TIMEOUT_S}")
        connection.commit()
        yield
    finally:
        if not connection.invalidated:
            connection.rollback()
            connection.exec_driver_sql("SET SESSION lock_wait_timeout = DEFAULT")
            connection.execute(sa.select(sa.func.release_lock(lock)))
            connection.commit()


def _require_schema(connection: sa.Connection, database: LedgerDatabase) -> None:
    schema = database.tables.schema
    if schema is None:
        return
    if database.dialect == dialects.SQLITE:
        raise ConfigurationError(_SQLITE_SCHEMA)
    if schema in sa.inspect(connection).get_schema_names():
        return
    if database.dialect == dialects.MYSQL:
        raise ConfigurationError(
            f"[airflow_guard] schema = {schema}: there is no such database, or this account does not see it. "
            f"Create it: CREATE DATABASE {schema} CHARACTER SET utf8mb4"
        )
    connection.execute(sa.schema.CreateSchema(schema))


def _config(tables: Tables, output: io.StringIO, **attributes: Any) -> Config:
    from alembic.config import Config

    config = Config(output_buffer=output, stdout=output, attributes={"tables": tables, **attributes})
    folder = str(Path(__file__).parent / "migrations")
    config.set_main_option("script_location", folder.replace("%", "%%"))
    return config


def _upgrade(config: Config, revision: str, *, sql: bool = False) -> None:
    from alembic import command

    with _alembic:
        command.upgrade(config, revision, sql=sql)
