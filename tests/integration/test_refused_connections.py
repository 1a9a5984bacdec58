"""A server that answers and refuses the connection: said at once, with the connection's name, and never tried again."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from airflow.sdk import DAG

from airflow_guard import GuardFailure, GuardRetry, GuardWatchOperator, LedgerRefused, Side, SideInvalid
from airflow_guard.commands.main import main
from airflow_guard.store import database as database_module
from tests.airflow_runs import AirflowRun, start_run
from tests.alerting import ChatNotifier
from tests.databases import DatabaseUnderTest, databases
from tests.integration.conftest import LEDGER, Business
from tests.integration.sides import MODES, WHERE, Sides
from tests.integration.test_operator_outcomes import run_of

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [
    databases("postgres_embedded", "postgres_server", "mariadb"),
    pytest.mark.usefixtures("short_deferrals"),
]


def without_database(connection: dict[str, Any]) -> dict[str, Any]:
    return connection | {"schema": "no_such_database"}


def without_account(connection: dict[str, Any]) -> dict[str, Any]:
    """With an account that does not exist, and a password that must not be printed."""
    return connection | {"login": "nobody_knows_me", "password": "s3cret!/%"}


refusals = pytest.mark.parametrize("wrong", [without_database, without_account])


@pytest.fixture
def refused(business: Business, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Make a connection to the server of the test that it refuses, and return its id."""

    def make(wrong: Callable[[dict[str, Any]], dict[str, Any]], conn_id: str) -> str:
        content = wrong(json.loads(business.database.airflow_connection()))
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(content))
        return conn_id

    return make


def check_final(run: AirflowRun, task: str, kind: type[Exception], name: str) -> None:
    ended = run.last(task)
    assert (ended.state, type(ended.error), type(ended.cause)) == ("failed", GuardFailure, kind)
    assert name in str(ended.error)
    assert "refuses the connection" in str(ended.error)
    assert "s3cret" not in str(ended.error)


@refusals
def test_a_task_fails_at_once(business: Business, refused: Callable[..., str], wrong: Any) -> None:
    refused(wrong, LEDGER)
    run = run_of(business, lambda: business.act("act"), retries=3)
    check_final(run, "act", LedgerRefused, f"'{LEDGER}' (")
    assert business.rows() == []


@refusals
def test_a_task_that_only_observes_works_on(
    business: Business, refused: Callable[..., str], wrong: Any
) -> None:
    refused(wrong, LEDGER)
    run = run_of(business, lambda document: business.act("act", document), documents=["A"], mode="observe")
    assert run.states() == {"act": "success"}
    assert business.documents() == ["A"]


@refusals
@pytest.mark.parametrize("mode", MODES)
def test_d16_a_side_that_refuses_fails_at_once(
    business: Business, refused: Callable[..., str], wrong: Any, mode: str
) -> None:
    sides = Sides(business)
    sides.both()
    books = refused(wrong, "books")
    source = Side(books, table="booked", key="document_no", where=WHERE)
    run = sides.run(mode, source=source, timeout=600, recheck_days=0)
    check_final(run, "reconcile", SideInvalid, "books: booked")


@refusals
@pytest.mark.parametrize("mode", MODES)
def test_a_sensor_does_not_wait_for_a_ledger_that_refuses(
    business: Business, refused: Callable[..., str], wrong: Any, mode: str
) -> None:
    sides = Sides(business)
    sides.both()
    ledger = refused(wrong, "other_ledger")
    check_final(
        sides.run(mode, ledger_conn_id=ledger, timeout=600), "reconcile", LedgerRefused, "'other_ledger' ("
    )


@refusals
def test_the_watch_says_so(business: Business, refused: Callable[..., str], wrong: Any) -> None:
    refused(wrong, LEDGER)
    with DAG(f"watch_{business.dag_id}", schedule=None) as dag:
        GuardWatchOperator(task_id="watch", transports=[ChatNotifier("http://127.0.0.1:9")], retries=3)
    run = start_run(dag, logical_at=datetime(2026, 1, 30, tzinfo=UTC)).go()
    check_final(run, "watch", LedgerRefused, f"'{LEDGER}' (")


@refusals
def test_a_command_says_so(
    business: Business, refused: Callable[..., str], wrong: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (["show", "statements"], ["migrate"]):
        assert main([*arguments, "--ledger", refused(wrong, "other_ledger")]) == 1
        printed = capsys.readouterr().err
        assert "'other_ledger' (" in printed
        assert "refuses the connection" in printed
        assert "s3cret" not in printed


@refusals
def test_a_command_with_a_url_says_so(
    database: DatabaseUnderTest, wrong: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = wrong({})
    names = {"schema": "database", "login": "username", "password": "password"}
    url = sa.make_url(database.url).set(**{names[name]: value for name, value in parts.items()})
    assert main(["show", "statements", "--ledger", url.render_as_string(hide_password=False)]) == 1
    printed = capsys.readouterr().err
    assert str(url.host) in printed or "host=" in printed
    assert "refuses the connection" in printed
    assert "s3cret" not in printed


@pytest.mark.parametrize("where", [{"host": "127.0.0.1", "port": 1}, {"host": "ledger.invalid"}])
def test_a_ledger_that_goes_away_is_named(
    business: Business, where: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Down, or a host that no name server knows for the moment: named as well, and tried again."""
    content = json.loads(business.database.airflow_connection()) | where | {"extra": {}}
    monkeypatch.setenv(f"AIRFLOW_CONN_{LEDGER.upper()}", json.dumps(content))
    ended = run_of(business, lambda: business.act("act"), retries=1).last("act")
    assert (ended.state, type(ended.error)) == ("up_for_retry", GuardRetry)
    assert f"The ledger '{LEDGER}' (" in str(ended.error)
    assert "cannot be reached" in str(ended.error)
    assert business.rows() == []


def test_writes_are_not_repeated_into_a_refusal(
    business: Business, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_guard.hooks.ledger import open_database

    refused(without_database, "other_ledger")
    slept: list[float] = []
    monkeypatch.setattr(database_module.time, "sleep", slept.append)
    with pytest.raises(LedgerRefused):
        open_database("other_ledger").write(lambda _: None, patience_s=600)
    assert slept == []
