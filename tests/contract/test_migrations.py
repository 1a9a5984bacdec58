"""Migrations of the ledger make what ``tables.py`` says, once, and touch nothing of others."""

from __future__ import annotations

import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from airflow_guard.core.errors import ConfigurationError, LedgerBusy, LedgerNotMigrated
from airflow_guard.store import migrate as migrate_module
from airflow_guard.store import migrations
from airflow_guard.store.database import LedgerDatabase
from airflow_guard.store.migrate import (
    check_migrated,
    current_revision,
    ensure_sqlite,
    head_revision,
    migrate,
    migration_sql,
)
from airflow_guard.store.tables import Tables
from tests.contract.migrating import at_the_same_time, ensure_in_a_process, migrate_in_a_process
from tests.contract.schema_of import run_script, tables_of, triggers_of
from tests.databases import POSTGRES, SERVERS, DatabaseUnderTest, databases
from tests.ledgers import migrated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FOLDER = Path(migrations.__file__).parent
ALL_VERSIONS = list(migrations.REVISIONS)
HEAD = migrations.HEAD_REVISION


@pytest.fixture
def another(database: DatabaseUnderTest) -> Iterator[DatabaseUnderTest]:
    """A second empty place on the same server."""
    fresh = database.server.fresh()
    yield fresh
    database.server.drop(fresh)


@pytest.fixture
def open_ledger(database: DatabaseUnderTest) -> Iterator[Callable[..., LedgerDatabase]]:
    """``open_ledger(url, tables)``: ledgers that are closed when the test ends."""
    opened: list[LedgerDatabase] = []

    def open_ledger(url: str = database.url, tables: Tables | None = None) -> LedgerDatabase:
        opened.append(LedgerDatabase(url, tables=tables))
        return opened[-1]

    yield open_ledger
    for ledger in opened:
        ledger.dispose()


@pytest.fixture
def ledger(open_ledger: Callable[..., LedgerDatabase]) -> LedgerDatabase:
    """A ledger that was never migrated."""
    return open_ledger()


# ---- What the versions make --------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["guard_", "Month_End_"])
def test_migrating_from_nothing_makes_what_tables_says(
    database: DatabaseUnderTest,
    another: DatabaseUnderTest,
    open_ledger: Callable[..., LedgerDatabase],
    prefix: str,
) -> None:
    tables = Tables(prefix)
    assert migrate(open_ledger(tables=tables)) == list(migrations.REVISIONS)
    tables.metadata.create_all(another.engine())

    migrated, defined = tables_of(database, tables), tables_of(another, tables)
    assert migrated == defined
    assert len(migrated) >= len(tables.metadata.tables)


def test_autogenerate_finds_nothing_to_do_after_the_migration(
    database: DatabaseUnderTest, ledger: LedgerDatabase
) -> None:
    migrate(ledger)
    with database.engine().connect() as connection:
        options = {"version_table": "guard_alembic_version", "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, ledger.tables.metadata) == []


def test_the_script_makes_the_same_as_the_migration(
    database: DatabaseUnderTest, another: DatabaseUnderTest, open_ledger: Callable[..., LedgerDatabase]
) -> None:
    ledger, by_script = open_ledger(), open_ledger(another.url)
    migrate(ledger)
    run_script(another, migration_sql(by_script.dialect, by_script.tables))

    assert tables_of(another, ledger.tables) == tables_of(database, ledger.tables)
    assert triggers_of(another, ledger.tables) == triggers_of(database, ledger.tables)
    check_migrated(by_script)
    assert migrate(by_script) == []


def test_the_ledgers_of_the_other_tests_are_what_a_migration_makes(
    database: DatabaseUnderTest, another: DatabaseUnderTest, open_ledger: Callable[..., LedgerDatabase]
) -> None:
    """They are copied, to save time. The first of a process on MariaDB is migrated; the second is a copy for certain."""
    ledger, copy = open_ledger(), open_ledger(another.url)
    migrate(ledger)
    fresh = another.server.fresh()
    try:
        first = open_ledger(fresh.url)
        migrated(first)
        migrated(copy)
        assert tables_of(another, ledger.tables) == tables_of(database, ledger.tables)
        assert triggers_of(another, ledger.tables) == triggers_of(database, ledger.tables)
        check_migrated(copy)
        first.dispose()
    finally:
        another.server.drop(fresh)


@databases(*POSTGRES)
def test_the_script_creates_the_schema(
    database: DatabaseUnderTest, open_ledger: Callable[..., LedgerDatabase]
) -> None:
    tables = Tables(schema=f"{database.schema}_Finance")
    ledger = open_ledger(tables=tables)
    try:
        run_script(database, migration_sql("postgresql", tables))
        check_migrated(ledger)
    finally:
        drop_schema(database, str(tables.schema))


def test_a_script_can_start_at_the_version_that_the_ledger_has() -> None:
    script = migration_sql("postgresql", Tables(), from_revision=head_revision())
    assert "CREATE TABLE" not in script


@pytest.mark.parametrize(("dialect", "from_revision"), [("oracle", None), ("postgresql", "4711")])
def test_a_script_for_an_unknown_database_or_version_is_refused(
    dialect: str, from_revision: str | None
) -> None:
    with pytest.raises(ConfigurationError):
        migration_sql(dialect, Tables(), from_revision=from_revision)


def test_a_script_has_no_doubled_percent_signs_and_no_parameters() -> None:
    for dialect in ("postgresql", "mysql", "mariadb", "sqlite"):
        script = migration_sql(dialect, Tables())
        assert "%" not in script
        assert f"VALUES ('{head_revision()}')" in script


def test_the_list_of_versions_is_that_of_the_version_files() -> None:
    directory = ScriptDirectory(str(FOLDER))
    in_order = [script.revision for script in directory.walk_revisions()][::-1]
    assert tuple(in_order) == migrations.REVISIONS
    assert directory.get_current_head() == head_revision()


# ---- Once, also when several try ---------------------------------------------------------------------------


def test_repeating_a_migration_changes_nothing(ledger: LedgerDatabase) -> None:
    assert migrate(ledger) == ALL_VERSIONS
    assert migrate(ledger) == []
    assert current_revision(ledger) == head_revision()


def test_processes_that_migrate_at_the_same_time_all_succeed(
    database: DatabaseUnderTest, ledger: LedgerDatabase
) -> None:
    answers = at_the_same_time(migrate_in_a_process, database.url, processes=4)
    assert sorted(answers, key=len) == [[], [], [], ALL_VERSIONS]
    check_migrated(ledger)


@databases("sqlite")
def test_threads_of_one_process_can_migrate_ledgers_of_their_own(
    database: DatabaseUnderTest, open_ledger: Callable[..., LedgerDatabase]
) -> None:
    ledgers = [open_ledger(f"{database.url}.{number}") for number in range(6)]
    with ThreadPoolExecutor(max_workers=6) as threads:
        assert list(threads.map(migrate, ledgers)) == [ALL_VERSIONS] * 6


@databases("sqlite")
def test_processes_that_use_a_new_sqlite_ledger_at_the_same_time_all_succeed(
    database: DatabaseUnderTest, ledger: LedgerDatabase
) -> None:
    assert at_the_same_time(ensure_in_a_process, database.url, processes=4) == [head_revision()] * 4


@databases(*SERVERS)
def test_a_task_never_runs_ddl_on_a_server(ledger: LedgerDatabase) -> None:
    ensure_sqlite(ledger)
    assert current_revision(ledger) is None


@databases("sqlite")
def test_a_sqlite_ledger_of_another_version_is_left_as_it_is(ledger: LedgerDatabase) -> None:
    migrate(ledger)
    set_revision(ledger, "0000")
    ensure_sqlite(ledger)
    assert current_revision(ledger) == "0000"


@databases("postgres_server", "mariadb")
def test_a_migration_that_cannot_start_says_so(
    database: DatabaseUnderTest, ledger: LedgerDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate_module, "LOCK_TIMEOUT_S", 1)
    holder = LedgerDatabase(database.url)
    with (
        holder.engine.connect() as connection,
        migrate_module._alone(connection, holder),
        pytest.raises(LedgerBusy),
    ):
        migrate(ledger, patience_s=0)
    holder.dispose()
    assert migrate(ledger) == ALL_VERSIONS


@databases("sqlite")
def test_checking_a_ledger_does_not_import_alembic(
    database: DatabaseUnderTest, ledger: LedgerDatabase
) -> None:
    # A task does it each time, and the import costs more than the query.
    migrate(ledger)
    program = (
        "import sys\n"
        "from airflow_guard.store.database import LedgerDatabase\n"
        "from airflow_guard.store.migrate import check_migrated, ensure_sqlite\n"
        f"ledger = LedgerDatabase({database.url!r})\n"
        "ensure_sqlite(ledger)\n"
        "check_migrated(ledger)\n"
        "sys.exit('alembic' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=FOLDER.parents[2])


# ---- Which version a ledger has ----------------------------------------------------------------------------


def test_a_ledger_without_tables_is_refused_with_the_command_that_makes_them(ledger: LedgerDatabase) -> None:
    with pytest.raises(
        LedgerNotMigrated, match=rf"none.*{HEAD}.*airflow-guard migrate --ledger core_banking"
    ):
        check_migrated(ledger, ledger="core_banking")


def test_a_ledger_whose_migration_did_not_end_is_refused(ledger: LedgerDatabase) -> None:
    migrate(ledger)
    set_revision(ledger, None)
    assert current_revision(ledger) is None
    with pytest.raises(LedgerNotMigrated, match=rf"none.*{HEAD}.*airflow-guard migrate"):
        check_migrated(ledger)


def test_a_newer_ledger_is_refused_and_not_migrated(ledger: LedgerDatabase) -> None:
    migrate(ledger)
    set_revision(ledger, "9999")
    with pytest.raises(LedgerNotMigrated, match=rf"9999.*{HEAD}.*Upgrade airflow-guard"):
        check_migrated(ledger)
    with pytest.raises(LedgerNotMigrated, match=rf"9999.*{HEAD}"):
        migrate(ledger)


def test_a_password_is_not_shown() -> None:
    ledger = LedgerDatabase("postgresql+psycopg://guard:secret@db.invalid/bank")
    message = migrate_module._other_version(ledger, None)
    assert "secret" not in message
    assert "db.invalid/bank" in message


# ---- Beside others -----------------------------------------------------------------------------------------


def test_two_ledgers_and_airflow_live_in_one_database(
    database: DatabaseUnderTest, open_ledger: Callable[..., LedgerDatabase]
) -> None:
    engine = database.engine()
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)"))
        connection.execute(sa.text("INSERT INTO alembic_version VALUES ('airflows_own')"))

    first, second = open_ledger(), open_ledger(tables=Tables("other_"))
    assert migrate(first) == ALL_VERSIONS
    assert current_revision(second) is None
    assert migrate(second) == ALL_VERSIONS
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalars().all() == [
            "airflows_own"
        ]


def test_a_table_of_somebody_else_is_left_alone(database: DatabaseUnderTest, ledger: LedgerDatabase) -> None:
    engine = database.engine()
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE guard_alias (pet VARCHAR(20))"))
    with pytest.raises(ConfigurationError, match=r"guard_alias.*table_prefix"):
        migrate(ledger)
    inspector = sa.inspect(engine)
    assert [column["name"] for column in inspector.get_columns("guard_alias")] == ["pet"]
    assert current_revision(ledger) is None
    if database.kind != "mariadb":  # which commits each statement
        assert inspector.get_table_names() == ["guard_alias"]


@databases(*POSTGRES)
def test_a_missing_schema_is_created(
    database: DatabaseUnderTest, open_ledger: Callable[..., LedgerDatabase]
) -> None:
    tables = Tables(schema=f"{database.schema}_Finance")
    try:
        ledger = open_ledger(tables=tables)
        assert migrate(ledger) == ALL_VERSIONS
        assert migrate(open_ledger(tables=Tables("other_", tables.schema))) == ALL_VERSIONS
        check_migrated(ledger)
        names = sa.inspect(database.engine()).get_table_names(schema=tables.schema)
        assert {"guard_execution", "guard_alembic_version", "other_alembic_version"} <= set(names)
        assert sa.inspect(database.engine()).get_table_names() == []
    finally:
        drop_schema(database, str(tables.schema))


@databases("sqlite")
def test_a_schema_on_sqlite_is_refused(open_ledger: Callable[..., LedgerDatabase]) -> None:
    tables = Tables(schema="finance")
    for attempt in (migrate, ensure_sqlite):
        with pytest.raises(ConfigurationError, match="SQLite has none"):
            attempt(open_ledger(tables=tables))
    with pytest.raises(ConfigurationError, match="SQLite has none"):
        migration_sql("sqlite", tables)


@databases("postgres_server")
def test_an_account_that_may_not_create_tables_is_told_what_to_do(
    database: DatabaseUnderTest, open_ledger: Callable[..., LedgerDatabase]
) -> None:
    role = f"{database.schema}_reader"
    engine = database.engine()
    with engine.begin() as connection:
        connection.execute(sa.text(f"CREATE ROLE {role}"))
        connection.execute(sa.text(f"GRANT USAGE ON SCHEMA {database.schema} TO {role}"))
    try:
        options = f"-csearch_path={database.schema} -crole={role}"
        url = sa.make_url(database.url).update_query_dict({"options": options})
        with pytest.raises(ConfigurationError, match=r"permission denied.*--sql"):
            migrate(open_ledger(url.render_as_string(hide_password=False)))
    finally:
        with engine.begin() as connection:
            connection.execute(sa.text(f"DROP OWNED BY {role}"))
            connection.execute(sa.text(f"DROP ROLE {role}"))


def test_the_logging_of_the_application_stands(ledger: LedgerDatabase) -> None:
    def state() -> list[Any]:
        names = ["", "alembic", "alembic.runtime.migration", "sqlalchemy", "airflow_guard"]
        loggers = [logging.getLogger(name) for name in names]
        return [(log.name, log.level, log.disabled, log.propagate, list(log.handlers)) for log in loggers]

    import alembic.runtime.migration  # noqa: F401 - creates its loggers

    before = state()
    migrate(ledger)
    migration_sql(ledger.dialect, ledger.tables)
    assert state() == before


def set_revision(ledger: LedgerDatabase, revision: str | None) -> None:
    with ledger.engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM guard_alembic_version"))
        if revision is not None:
            connection.execute(sa.text("INSERT INTO guard_alembic_version VALUES (:it)"), {"it": revision})


def drop_schema(database: DatabaseUnderTest, schema: str) -> None:
    with database.engine().begin() as connection:
        connection.execute(sa.text(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'))
