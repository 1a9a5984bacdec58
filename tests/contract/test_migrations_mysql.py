"""Migrations on MySQL and MariaDB: character sets, DDL that commits by itself, triggers that are refused."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import time
from contextlib import ExitStack
from datetime import date, datetime
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from airflow_guard.core.errors import ConfigurationError
from airflow_guard.store.database import LedgerDatabase
from airflow_guard.store.migrate import check_migrated, current_revision, migrate
from airflow_guard.store.migrations import REVISIONS
from airflow_guard.store.tables import Tables
from demo.waiting import QUIET_S, Patience, cpu_used
from tests.contract.schema_of import tables_of, triggers_of
from tests.databases import DatabaseUnderTest, databases

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = databases("mariadb")


@pytest.fixture
def ledger(database: DatabaseUnderTest) -> Iterator[LedgerDatabase]:
    """A ledger that was never migrated."""
    ledger = LedgerDatabase(database.url)
    yield ledger
    ledger.dispose()


@pytest.mark.parametrize(
    "defaults",
    [
        "CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
        "CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci",
        "CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_ai_ci",
        "CHARACTER SET utf8mb4 COLLATE utf8mb4_uca1400_ai_ci",
        "CHARACTER SET utf8mb3",
        "CHARACTER SET latin1",
    ],
    ids=lambda defaults: defaults.split()[-1],
)
def test_c34_the_character_set_of_the_database_does_not_matter(
    database: DatabaseUnderTest, ledger: LedgerDatabase, defaults: str
) -> None:
    name = sa.make_url(database.url).database
    with database.engine().connect() as connection:
        try:
            connection.execute(sa.text(f"ALTER DATABASE `{name}` {defaults}"))
        except OperationalError as error:
            pytest.skip(f"not run: this server does not know it ({error.orig})")

    migrate(ledger)

    collations = sa.text(
        "SELECT DISTINCT collation_name FROM information_schema.columns WHERE table_schema = DATABASE() "
        "AND collation_name IS NOT NULL AND table_name <> 'guard_alembic_version'"
    )
    with ledger.engine.connect() as connection:
        assert set(connection.execute(collations).scalars()) == {"utf8mb4_bin", "ascii_bin"}
    moment = datetime(2025, 3, 31)  # noqa: DTZ001 - the columns hold UTC without saying so
    dag_id, documents = "d" * 250, ["€" * 254 + "🧾", "€" * 254 + "x", "€" * 254 + "X", "INV-1 ", "INV-1"]
    execution = ledger.tables.execution
    rows = [
        {
            "key_date": date(2025, 3, 31), "key_hash": f"{number:032x}", "normaliser": 1,
            "key_namespace": dag_id, "operation": "🏦" * 250, "business_date": date(2025, 3, 31),
            "cycle": "c" * 100, "document": document, "deployment": "p", "state": "failed", "phase": "none",
            "follow_up": "none", "attempt": 1, "generation": 1, "owner_token": "b" * 32,
            "idempotency_key": "c" * 32, "claimed_at": moment, "finished_at": moment, "error": "🔥",
        }
        for number, document in enumerate(documents)
    ]  # fmt: skip
    with ledger.engine.begin() as connection:
        connection.execute(execution.insert(), rows)
    with ledger.engine.connect() as connection:
        everything = connection.execute(sa.select(execution).order_by(execution.c.key_hash)).mappings().all()
    assert [row["document"] for row in everything] == documents
    assert {(row["operation"], row["error"]) for row in everything} == {("🏦" * 250, "🔥")}


def test_an_interrupted_migration_goes_on_where_it_stopped(
    database: DatabaseUnderTest, ledger: LedgerDatabase
) -> None:
    migrate(ledger)
    whole = tables_of(database, ledger.tables), triggers_of(database, ledger.tables)
    with ledger.engine.connect() as connection:
        for statement in (
            "DELETE FROM guard_alembic_version",
            "DROP TRIGGER guard_event_no_delete",
            "DROP TABLE guard_alias",
            "DROP INDEX guard_event_at ON guard_event",
        ):
            connection.execute(sa.text(statement))
        connection.commit()

    assert current_revision(ledger) is None
    assert migrate(ledger) == list(REVISIONS)
    assert (tables_of(database, ledger.tables), triggers_of(database, ledger.tables)) == whole


def test_the_session_is_left_as_it_was(database: DatabaseUnderTest, ledger: LedgerDatabase) -> None:
    query = sa.text("SELECT @@SESSION.lock_wait_timeout = @@GLOBAL.lock_wait_timeout")
    migrate(ledger)
    with ledger.engine.connect() as connection:  # the pooled one
        assert connection.execute(query).scalar_one() == 1
        mine = connection.execute(sa.text("SELECT RELEASE_ALL_LOCKS()")).scalar_one()
    assert mine == 0


def test_a_schema_is_another_database_that_must_exist(database: DatabaseUnderTest) -> None:
    other = database.server.fresh()
    name = sa.make_url(other.url).database
    ledger = LedgerDatabase(database.url, tables=Tables(schema=name))
    try:
        assert migrate(ledger) == list(REVISIONS)
        check_migrated(ledger)
        assert sa.inspect(database.engine()).get_table_names() == []
        assert len(triggers_of(other, ledger.tables)) == 2
    finally:
        ledger.dispose()
        database.server.drop(other)

    missing = LedgerDatabase(database.url, tables=Tables(schema=name))
    with pytest.raises(ConfigurationError, match=f"CREATE DATABASE {name}"):
        migrate(missing)
    missing.dispose()


def test_refused_triggers_are_a_warning_that_names_the_grants(
    awkward_server: sa.URL, caplog: pytest.LogCaptureFixture
) -> None:
    admin = sa.create_engine(awkward_server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(sa.text("CREATE DATABASE bank"))
        connection.execute(sa.text("CREATE USER clerk@localhost IDENTIFIED BY 'clerk'"))
        connection.execute(sa.text("GRANT ALL ON bank.* TO clerk@localhost"))
    ledger = LedgerDatabase(awkward_server.set(username="clerk", password="clerk", database="bank"))
    try:
        with caplog.at_level(logging.WARNING):
            assert migrate(ledger) == list(REVISIONS)
        check_migrated(ledger)
        (warning,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        for part in ("1419", "guard_event", "log_bin_trust_function_creators", "SELECT and INSERT"):
            assert part in warning

        # What the warning says helps: the next migration creates them.
        caplog.clear()
        with admin.connect() as connection:
            connection.execute(sa.text("SET GLOBAL log_bin_trust_function_creators = 1"))
        assert migrate(ledger) == []
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
        with ledger.engine.connect() as connection:
            formats = sa.text(
                "SELECT DISTINCT row_format FROM information_schema.tables WHERE table_name IN :names"
            )
            names = [table.name for table in ledger.tables.metadata.tables.values()]
            formats = formats.bindparams(sa.bindparam("names", names, expanding=True))
            assert connection.execute(formats).scalars().all() == ["Dynamic"]
        with admin.connect() as connection:
            query = sa.text("SELECT COUNT(*) FROM information_schema.triggers WHERE trigger_schema = 'bank'")
            assert connection.execute(query).scalar_one() == 2
    finally:
        ledger.dispose()
        admin.dispose()


@pytest.fixture
def awkward_server(database: DatabaseUnderTest, tmp_path: Path) -> Iterator[sa.URL]:
    """A MariaDB of this test: binary log on, and the row format of old servers.

    Both belong to a whole server, so that the one that the other tests use cannot have them.
    """
    programs = [shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in _PROGRAMS]
    if None in programs:
        pytest.skip(f"not run: {' and '.join(_PROGRAMS)} are not installed")
    install, server = (str(program) for program in programs)
    folder, socket = tmp_path / "data", tmp_path / "sock"
    if len(str(socket)) > 100:
        pytest.skip("not run: the temporary folder's name is too long for a socket")
    # The database of whoever runs the tests: no settings of the machine's own server.
    common = ["--no-defaults", f"--datadir={folder}", "--innodb-buffer-pool-size=32M"]
    common += ["--user=root"] if os.geteuid() == 0 else []
    subprocess.run(
        [install, *common, "--auth-root-authentication-method=normal", "--skip-test-db"],
        check=True,
        capture_output=True,
        timeout=QUIET_S,
    )
    with ExitStack() as stack:
        log = stack.enter_context((tmp_path / "log").open("wb"))
        process = subprocess.Popen(
            [server, *common, *_AWKWARD, "--skip-networking", f"--socket={socket}"],
            stdout=log,
            stderr=log,
        )
        stack.callback(process.wait, QUIET_S)
        stack.callback(process.terminate)
        url = sa.make_url("mysql+pymysql://root@localhost/").update_query_dict({"unix_socket": str(socket)})
        _wait_for(url, process)
        yield url


_AWKWARD = ("--log-bin=log", "--server-id=1", "--innodb-default-row-format=compact")
_PROGRAMS = ("mariadb-install-db", "mariadbd")


def _wait_for(url: sa.URL, process: subprocess.Popen[bytes]) -> None:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    patience = Patience("the server", lambda: cpu_used(process.pid))
    while True:
        try:
            with engine.connect():
                return
        except OperationalError:
            assert process.poll() is None, "the server ended"
            patience.check()
            time.sleep(0.1)
