"""Secrets that a failing task meets stay out of what this package writes and sends: the ledger with its audit, alerts,
XComs, and what the command line prints. What Airflow logs is in ``tests/system/test_real_secrets.py``."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from airflow.sdk import DAG, BaseHook, Variable

from airflow_guard import External, GuardNotifier, IdempotentOperator
from airflow_guard.commands.main import main
from tests.airflow_runs import start_run
from tests.alerting import ChatNotifier, MailServer, Webhook, mail
from tests.databases import databases

if TYPE_CHECKING:
    from tests.integration.conftest import Business

pytestmark = databases("sqlite", "postgres_embedded")
JANUARY_30 = datetime(2026, 1, 30, tzinfo=UTC)
BANK, TOKEN, DSN = "pw-of-the-bank-71", "token-of-a-variable-72", "pw-in-a-dsn-73"
SECRETS = (BANK, TOKEN, DSN)


def pay(document: str) -> None:
    """A callable that meets three secrets, and whose library puts them into its message."""
    connection = BaseHook.get_connection("bank")
    token = Variable.get("bank_api_token")
    said = f"login {connection.login}, password={connection.password} refused, token={token}"
    if document == "DOUBT":
        raise TimeoutError(f"{said}, postgresql://guard:{DSN}@bank/ledger does not answer")
    raise ValueError(f"{said}, postgresql://guard:{DSN}@bank/ledger says no")


def whole_ledger(business: Business) -> str:
    """Return every value of every table of the ledger."""
    with business.ledger.engine.connect() as connection:
        rows = [
            dict(row)
            for table in business.ledger.tables.metadata.sorted_tables
            for row in connection.execute(sa.select(table)).mappings()
        ]
    return json.dumps(rows, default=str)


@dataclass(frozen=True)
class Produced:
    """Everything that a failing run left behind."""

    alerts: list[str]
    xcom: str
    ledger: str
    printed: str

    def leaks(self, *places: str) -> list[str]:
        """Return the secrets that are somewhere, and where."""
        texts = {place: str(getattr(self, place)) for place in places}
        return [
            f"{secret} in {place}" for secret in SECRETS for place, text in texts.items() if secret in text
        ]


@pytest.fixture
def produced(
    business: Business, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Produced:
    """Run the DAG, let it tell, and ask the command line about it."""
    bank = {"conn_type": "http", "host": "bank", "login": "guard", "password": BANK}
    monkeypatch.setenv("AIRFLOW_CONN_BANK", json.dumps(bank))
    monkeypatch.setenv("AIRFLOW_VAR_BANK_API_TOKEN", TOKEN)
    with MailServer() as mailbox, closing(Webhook()) as chat:
        monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", mailbox.connection)
        told = GuardNotifier(transports=[mail(), ChatNotifier(chat.url)])
        with DAG(business.dag_id, schedule=None) as dag:
            IdempotentOperator(
                task_id="send", python_callable=pay, documents=["DOUBT", "FAILS"], on_failure_callback=told,
                side_effect=External(safe_errors=[ValueError]), max_workers=2,
            )  # fmt: skip
        run = start_run(dag, logical_at=JANUARY_30).go()
        alerts = [*chat.posted, *mailbox.subjects(), *map(mailbox.body, range(len(mailbox.messages)))]
    assert run.states() == {"send": "failed"}
    capsys.readouterr()
    where = ["--ledger", business.database.url]
    for words in (["show", business.dag_id, "2026-01-30"], ["show", "--state", "unfinished"]):
        assert main([*words, *where]) == 0
        assert main([*words, *where, "--output", "json"]) == 0
    assert main(["export", business.dag_id, "--start", "2026-01-30", *where]) == 0
    xcom = json.dumps(run.result("send"), default=str)
    return Produced(alerts, xcom, whole_ledger(business), capsys.readouterr().out)


def test_alerts_and_xcoms_of_a_failing_task_hold_no_secret(produced: Produced) -> None:
    assert len(produced.alerts) == 3
    assert "says no" in produced.alerts[0] or "does not answer" in produced.alerts[0], "an error is told"
    assert produced.leaks("alerts", "xcom") == []


def test_the_ledger_and_what_reads_it_hold_no_secret_of_a_failing_task(produced: Produced) -> None:
    assert "DOUBT" in produced.ledger
    assert "DOUBT" in produced.printed
    assert produced.leaks("ledger", "printed") == []
