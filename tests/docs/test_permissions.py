"""The grants of the page on permissions are enough for each account, and no more."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard.commands.main import main as airflow_guard
from airflow_guard.core.alerts.facts import AlertKind, Problem
from airflow_guard.core.errors import NotExecuted
from airflow_guard.store.alerts import Alerts
from airflow_guard.store.database import LedgerDatabase
from airflow_guard.store.migrate import migrate
from airflow_guard.store.tables import Tables
from airflow_guard.testing import TestLedger
from tests.databases import databases
from tests.docs.pages import page

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.databases import DatabaseServer

PAGE = "docs/how-to/permissions.md"
ROLES = ("guard_migrations", "guard_tasks", "guard_people", "guard_audit")
FORBIDDEN_TO_ALL = (
    "DELETE FROM guard_execution",
    "UPDATE guard_event SET reason = ''",
    "DELETE FROM guard_event",
    "TRUNCATE TABLE guard_event",
)


class Accounts:
    """A migrated ledger and the four accounts of the page.

    :param urls: by the name of the account on the page.
    """

    def __init__(self, urls: dict[str, str]) -> None:
        self.urls = urls

    def execute(self, account: str, statement: str) -> None:
        """Execute one statement as an account.

        :raises sqlalchemy.exc.DBAPIError: it is refused.
        """
        engine = sa.create_engine(self.urls[account], poolclass=sa.NullPool)
        with engine.begin() as connection:
            connection.exec_driver_sql(statement)


def blocks(*words: str) -> str:
    """Return the SQL of the page that is meant for a database and an account."""
    (text,) = [f.text for f in page(PAGE).fences if f.language == "sql" and f.words == words]
    return text


def statements(text: str) -> Iterator[str]:
    """Yield the statements of a script."""
    for statement in text.split(";"):
        if statement.strip():
            yield statement.strip()


@pytest.fixture
def accounts(database_server: DatabaseServer) -> Iterator[Accounts]:
    """What the page leads to, on the kind of database that this test runs on."""
    make = _on_postgres if database_server.kind.startswith("postgres") else _on_mysql
    yield from make(database_server)


def _on_postgres(server: DatabaseServer) -> Iterator[Accounts]:
    database = server.fresh_database()
    admin = sa.create_engine(database.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    url = sa.make_url(database.url).update_query_dict({"options": "-csearch_path=guard"})
    urls = {role: _rendered(url.set(username=role)) for role in ROLES}
    with admin.connect() as connection:
        try:
            for statement in statements(blocks("postgresql", "admin")):
                connection.exec_driver_sql(statement)
            ledger = LedgerDatabase(urls["guard_migrations"], tables=Tables(schema="guard"))
            migrate(ledger)
            ledger.dispose()
            accounts = Accounts(urls)
            for statement in statements(blocks("postgresql", "migrations")):
                accounts.execute("guard_migrations", statement)
            yield accounts
        finally:
            for role in ROLES:
                connection.exec_driver_sql(f"DROP OWNED BY {role} CASCADE")
                connection.exec_driver_sql(f"DROP ROLE {role}")
    server.drop(database)


def _on_mysql(server: DatabaseServer) -> Iterator[Accounts]:
    database = server.fresh()
    admin = sa.create_engine(database.url, poolclass=sa.NullPool)
    url = sa.make_url(database.url)
    # The server may be shared: its accounts are everybody's.
    tag = secrets.token_hex(4)
    passwords = {role: f"change me {number}" for number, role in enumerate(ROLES, start=1)}

    def here(statement: str) -> str:
        for role in ROLES:
            statement = statement.replace(f"'{role}'", f"'{role}_{tag}'")
        return statement.replace("bank.", f"{url.database}.")

    # No parameters: a percent sign is one.
    with admin.connect().execution_options(no_parameters=True) as connection:
        mine = connection.exec_driver_sql("SHOW GRANTS").scalars().all()
        if not any("GRANT OPTION" in grant for grant in mine):
            pytest.skip("not run: this account may not grant; GUARD_TEST_MYSQL_URL can name one that may")
        try:
            for statement in statements(blocks("mysql", "admin")):
                connection.exec_driver_sql(here(statement))
            urls = {
                role: _rendered(url.set(username=f"{role}_{tag}", password=passwords[role])) for role in ROLES
            }
            ledger = LedgerDatabase(urls["guard_migrations"])
            migrate(ledger)
            ledger.dispose()
            for statement in statements(blocks("mysql", "grants")):
                connection.exec_driver_sql(here(statement))
            yield Accounts(urls)
        finally:
            for role in ROLES:
                connection.exec_driver_sql(f"DROP USER IF EXISTS '{role}_{tag}'@'%'")
    server.drop(database)


def _rendered(url: sa.URL) -> str:
    return url.render_as_string(hide_password=False)


def work(document: str) -> str:
    """What a task does; the answer for B is lost, and L is not done."""
    if document == "B":
        raise TimeoutError("no answer")
    if document == "L":
        raise NotExecuted("closed")
    return document


def tell_of_an_alert(url: str) -> None:
    """What a callback writes."""
    database = LedgerDatabase(url)
    alerts = Alerts(database)
    problem = Problem(deployment="default", dag_id="payments", kind=AlertKind.FAILED, what="a run try 1")
    claim = alerts.claim(problem, "mail", "FAILED")
    assert claim is not None
    assert alerts.delivered(claim)
    database.dispose()


@databases("postgres_embedded", "mariadb")
def test_each_account_can_do_its_work_and_no_more(
    accounts: Accounts, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, Any] = {"key_namespace": "payments", "operation": "send", "deployment": "default"}
    with TestLedger(accounts.urls["guard_tasks"]) as ledger:
        run = ledger.run(work, documents=["A", "B"], **given)
        assert (run.executed, run.in_doubt) == (1, 1)
        ledger.crash(work, at="before", document="C", **given)
        ledger.expire_leases()
        assert ledger.run(work, document="C", **given).executed == 1  # a take-over writes an event
        tell_of_an_alert(accounts.urls["guard_tasks"])

        people = accounts.urls["guard_people"]
        for line in (
            ["show", "payments", "2026-01-31"],
            ["resolve", "payments", "2026-01-31", "send", "B", "--happened", "--reason", "seen", "--yes"],
            ["rename", "payments", "send", "payments", "pay", "--reason", "clearer"],
            ["adopt", "--dag", "payments", "--operation", "pay", "--reason", "before",
             "--sql", "SELECT '2026-01-30' AS business_date, 'Z' AS document"],
        ):  # fmt: skip
            assert airflow_guard([*line, "--ledger", people]) == 0, capsys.readouterr().err
    accounts.execute("guard_audit", "SELECT * FROM guard_event")

    for account in ("guard_tasks", "guard_people", "guard_audit"):
        for statement in FORBIDDEN_TO_ALL:
            with pytest.raises(sa.exc.DBAPIError, match="denied"):
                accounts.execute(account, statement)
    with pytest.raises(sa.exc.DBAPIError, match="denied"):
        accounts.execute("guard_tasks", "DELETE FROM guard_alias")
    with pytest.raises(sa.exc.DBAPIError, match="denied"):
        accounts.execute("guard_audit", "DELETE FROM guard_lease")


@databases("postgres_embedded")
def test_only_the_owner_can_switch_the_trigger_off(accounts: Accounts) -> None:
    with TestLedger(accounts.urls["guard_tasks"]) as ledger:
        ledger.run(work, document="B")
    with pytest.raises(sa.exc.DBAPIError, match="append-only"):
        accounts.execute("guard_migrations", "DELETE FROM guard_event")
    with pytest.raises(sa.exc.DBAPIError, match="must be owner"):
        accounts.execute("guard_people", "ALTER TABLE guard_event DISABLE TRIGGER ALL")
    accounts.execute("guard_migrations", "ALTER TABLE guard_event DISABLE TRIGGER guard_event_append_only")
    accounts.execute("guard_migrations", "DELETE FROM guard_event")


@databases("mariadb")
def test_on_mysql_the_privilege_to_drop_is_what_guards_against_truncate(accounts: Accounts) -> None:
    with TestLedger(accounts.urls["guard_tasks"]) as ledger:
        ledger.run(work, document="B")
    with pytest.raises(sa.exc.DBAPIError, match="append-only"):
        accounts.execute("guard_migrations", "DELETE FROM guard_event")
    with pytest.raises(sa.exc.DBAPIError, match="denied"):
        accounts.execute("guard_migrations", "TRUNCATE TABLE guard_event")
