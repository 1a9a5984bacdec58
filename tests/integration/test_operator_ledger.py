"""From an Airflow connection to a ledger: every type, its settings, and what is refused."""

from __future__ import annotations

import json
import ssl
import sys
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard import ConfigurationError, LedgerNotConfigured, LedgerNotMigrated
from airflow_guard.core.guard import TaskIdentity
from airflow_guard.core.keys import KeyShape, KeySpace
from airflow_guard.execution.run import GuardedTask
from airflow_guard.execution.spec import Callee, GuardSpec
from airflow_guard.hooks import connections
from airflow_guard.hooks.ledger import executors_of_task, open_database, open_ledger, refuse_file_elsewhere
from airflow_guard.hooks.settings import GuardSettings
from airflow_guard.store.migrate import migrate
from airflow_guard.store.task_runs import TaskTry
from tests.databases import POSTGRES, databases

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_guard.store.ledger import Ledger
    from tests.databases import DatabaseUnderTest


@pytest.fixture(autouse=True)
def _airflow(airflow_home: Path) -> None:
    """Connections are looked up in an Airflow of the tests' own."""


def connect(monkeypatch: pytest.MonkeyPatch, content: dict[str, Any] | str, conn_id: str = "books") -> str:
    """Make a connection and return its id."""
    written = content if isinstance(content, str) else json.dumps(content)
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", written)
    return conn_id


def execute_twice(ledger: Ledger) -> list[dict[str, Any]]:
    """Run the same documents twice, and return both summaries."""
    calls: list[str] = []

    def act(document: str) -> None:
        calls.append(document)

    space = KeySpace("dag", "act", date(2025, 3, 31))
    task_try = TaskTry(TaskIdentity("dag", "act", "run"), space, KeyShape.of(space, documents=True).text)
    spec = GuardSpec(max_workers=2)
    summaries = [
        GuardedTask(ledger, spec, task_try, Callee.of(act)).run(lambda: ["A", "B"]).summary()
        for _ in range(2)
    ]
    assert sorted(calls) == ["A", "B"]
    return summaries


def test_every_type_holds_a_ledger(database: DatabaseUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    conn_id = connect(monkeypatch, database.airflow_connection())
    migrate(open_database(conn_id))
    ledger = open_ledger(conn_id)
    try:
        first, second = execute_twice(ledger)
        assert (first["executed"], second["replayed"]) == (2, 2)
    finally:
        ledger.database.dispose()


@databases("postgres_embedded")
def test_settings_of_the_postgres_connection_count(
    database: DatabaseUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = json.loads(database.airflow_connection())
    # A cursor kind that SQLAlchemy could not read, and a setting that only libpq knows, as sslmode is one.
    content["extra"] |= {"cursor": "dictcursor", "application_name": "the books"}
    conn_id = connect(monkeypatch, content)
    migrate(open_database(conn_id))
    ledger = open_ledger(conn_id)
    with ledger.database.engine.connect() as connection:
        assert connection.execute(sa.text("SHOW application_name")).scalar() == "the books"
    assert execute_twice(ledger)[1]["replayed"] == 2
    ledger.database.dispose()


@databases("postgres_embedded")
def test_an_older_driver_of_the_hook_works(
    database: DatabaseUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("psycopg2")
    from airflow.providers.postgres.hooks import postgres

    monkeypatch.setattr(postgres, "USE_PSYCOPG3", False)
    content = json.loads(database.airflow_connection())
    conn_id = connect(monkeypatch, {**content, "extra": {**content["extra"], "application_name": "psycopg2"}})
    migrate(open_database(conn_id))
    ledger = open_ledger(conn_id)
    assert ledger.database.engine.driver == "psycopg2"
    assert execute_twice(ledger)[1]["replayed"] == 2
    ledger.database.dispose()


@databases(*POSTGRES)
def test_a_schema_and_a_prefix(database: DatabaseUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    assert database.schema is not None
    conn_id = connect(monkeypatch, database.airflow_connection())
    monkeypatch.setenv("AIRFLOW__AIRFLOW_GUARD__SCHEMA", database.schema)
    monkeypatch.setenv("AIRFLOW__AIRFLOW_GUARD__TABLE_PREFIX", "g_")
    migrate(open_database(conn_id))
    names = sa.inspect(open_database(conn_id).engine).get_table_names(schema=database.schema)
    assert {"g_execution", "g_lease"} <= set(names)
    open_database(conn_id).dispose()


@databases("postgres_embedded", "mariadb")
def test_a_ledger_that_was_never_migrated_names_the_command(
    database: DatabaseUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn_id = connect(monkeypatch, database.airflow_connection())
    with pytest.raises(LedgerNotMigrated, match="airflow-guard migrate --ledger books"):
        open_ledger(conn_id)
    open_database(conn_id).dispose()


# -- MySQL and MariaDB ---------------------------------------------------------------------------------------


@databases("mariadb")
def test_row_counts_of_mysql_are_of_rows_found(
    database: DatabaseUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn_id = connect(monkeypatch, database.airflow_connection())
    engine = open_database(conn_id).engine
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (a INT, b VARCHAR(20)) CHARACTER SET utf8mb4")
        connection.exec_driver_sql("INSERT INTO t VALUES (1, '🧾')")
        assert connection.exec_driver_sql("UPDATE t SET a = 1").rowcount == 1, "unchanged, and found"
        assert connection.exec_driver_sql("SELECT b FROM t").scalar() == "🧾"
    engine.dispose()


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({}, {}),
        ({"ssl_mode": "DISABLED", "ssl": {"ca": "ca.pem"}}, {"ssl_disabled": True}),
        ({"ssl": {"ca": "ca.pem"}}, {"ssl": {"ca": "ca.pem"}}),
        ({"ssl": '{"ca": "ca.pem"}'}, {"ssl": {"ca": "ca.pem"}}),
        ({"ssl_mode": "required"}, {"ssl": {"ca": None, "check_hostname": False}}),
        (
            {"ssl_mode": "VERIFY_CA", "ssl": {"ca": "ca.pem"}},
            {"ssl": {"ca": "ca.pem", "check_hostname": False, "verify_mode": "required"}},
        ),
    ],
)
def test_tls_of_a_mysql_connection(extra: dict[str, Any], expected: dict[str, Any]) -> None:
    assert connections._mysql_tls(extra, "books") == expected


def test_tls_with_identity_verifies_without_a_ca_of_its_own() -> None:
    context = connections._mysql_tls({"ssl_mode": "VERIFY_IDENTITY"}, "books")["ssl"]
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)
    with pytest.raises(ConfigurationError, match="ssl_mode=SOMETIMES"):
        connections._mysql_tls({"ssl_mode": "sometimes"}, "books")


def test_mysql_without_its_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymysql", None)
    connect(monkeypatch, {"conn_type": "mysql", "host": "db"})
    with pytest.raises(ConfigurationError, match=r"airflow-guard\[mysql\]"):
        open_database("books")


# -- SQLite --------------------------------------------------------------------------------------------------


def test_a_sqlite_ledger_is_created_on_first_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, content in enumerate(
        [{"conn_type": "sqlite", "host": str(tmp_path / "0.db")}, f"sqlite:///{tmp_path / '1.db'}"]
    ):
        conn_id = connect(monkeypatch, content)
        ledger = open_ledger(conn_id)
        assert execute_twice(ledger)[1]["replayed"] == 2
        assert (tmp_path / f"{number}.db").is_file()
        ledger.database.dispose()


@pytest.mark.parametrize(
    ("host", "says"),
    [
        ("", "no file"),
        (":memory:", "in memory"),
        ("ledger.db", "absolute path"),
        ("/nowhere/at/all/x.db", "folder"),
    ],
)
def test_a_sqlite_connection_must_name_a_file(host: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, {"conn_type": "sqlite", "host": host})
    with pytest.raises(ConfigurationError, match=says):
        open_ledger("books")


@pytest.mark.parametrize(
    ("configured", "own", "refused"),
    [
        ("LocalExecutor", None, None),
        ("SequentialExecutor", None, None),
        ("airflow.executors.local_executor.LocalExecutor", None, None),
        ("CeleryExecutor", None, "CeleryExecutor"),
        ("LocalExecutor,CeleryExecutor", None, None),
        ("LocalExecutor,CeleryExecutor", "CeleryExecutor", "CeleryExecutor"),
        ("CeleryExecutor,LocalExecutor", None, "CeleryExecutor"),
        ("CeleryExecutor,LocalExecutor", "LocalExecutor", None),
        ("LocalExecutor,far:acme.executors.FarExecutor", "far", "acme.executors.FarExecutor"),
        ("near:LocalExecutor", None, None),
        ("LocalExecutor;payments=CeleryExecutor", None, "CeleryExecutor"),
        ("LocalExecutor;payments=LocalExecutor", None, None),
    ],
)
def test_sqlite_only_where_all_tasks_run_on_one_machine(
    configured: str, own: str | None, refused: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, {"conn_type": "sqlite", "host": str(tmp_path / "ledger.db")})
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", configured)
    if refused is None:
        open_ledger("books", executor=own).database.dispose()
        return
    with pytest.raises(ConfigurationError, match=refused):
        open_ledger("books", executor=own)
    assert not (tmp_path / "ledger.db").exists()


def test_sqlite_in_a_pod_is_refused_whatever_its_configuration_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_IS_K8S_EXECUTOR_POD", "True")
    with pytest.raises(ConfigurationError, match="KubernetesExecutor"):
        refuse_file_elsewhere("books")


def test_an_executor_that_is_not_configured_is_taken_by_its_word() -> None:
    assert executors_of_task("LocalExecutor", "EdgeExecutor") == ["EdgeExecutor"]


# -- what is missing -----------------------------------------------------------------------------------------


def test_no_ledger_is_named() -> None:
    with pytest.raises(LedgerNotConfigured, match="AIRFLOW__AIRFLOW_GUARD__LEDGER_CONN_ID"):
        open_ledger()


def test_a_connection_that_does_not_exist() -> None:
    with pytest.raises(LedgerNotConfigured, match="'nowhere'"):
        open_ledger("nowhere")


def test_a_connection_of_another_type(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, {"conn_type": "redis", "host": "cache"})
    with pytest.raises(ConfigurationError, match=r"'redis'.*postgres, mysql"):
        open_ledger("books")


def test_the_configured_ledger_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, {"conn_type": "sqlite", "host": str(tmp_path / "ledger.db")})
    monkeypatch.setenv("AIRFLOW__AIRFLOW_GUARD__LEDGER_CONN_ID", "books")
    ledger = open_ledger()
    assert ledger is open_ledger("books"), "one set of engines per process"
    ledger.database.dispose()
    connect(monkeypatch, {"conn_type": "sqlite", "host": str(tmp_path / "other.db")})
    other = open_ledger("books")
    assert other is not ledger, "the connection was changed"
    other.database.dispose()


@pytest.mark.parametrize(("option", "value"), [("lease_seconds", "soon"), ("result_max_bytes", "-1")])
def test_a_setting_that_is_no_number_is_named(
    option: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"AIRFLOW__AIRFLOW_GUARD__{option.upper()}", value)
    with pytest.raises(ConfigurationError, match=rf"\[airflow_guard\] {option}"):
        GuardSettings.read()


def test_airflow_knows_the_settings_and_their_defaults() -> None:
    from airflow.providers_manager import ProvidersManager

    from airflow_guard.get_provider_info import get_provider_info

    manager = ProvidersManager()
    assert "airflow-guard" in manager.providers
    options = get_provider_info()["config"]["airflow_guard"]["options"]
    settings = GuardSettings()
    assert {name: option["default"] for name, option in options.items()} == {
        "ledger_conn_id": None,
        "schema": None,
        "table_prefix": settings.table_prefix,
        "deployment": settings.deployment,
        "mode": settings.mode,
        "lease_seconds": f"{settings.lease.total_seconds():.0f}",
        "result_max_bytes": str(settings.result_max_bytes),
        "ledger_conn_ids": None,
        "page_timeout_seconds": "1.6",
    }
