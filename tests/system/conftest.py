"""A real Airflow for the tests under the real scheduler: started at first use, ended with the last of them."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, create_engine

from airflow_guard.store.database import LedgerDatabase
from airflow_guard.store.migrate import migrate
from demo.books import create_books
from demo.postgres import EmbeddedPostgres
from demo.receiver import Receiver
from demo.stack import AirflowStack
from tests.alerting import MailServer, Webhook

if TYPE_CHECKING:
    from collections.abc import Iterator

# Beside the administrator: one who may answer questions, and one who may only look. Their passwords are Airflow's.
_PEOPLE = {"AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,jane:op,visitor:viewer"}
DAGS = Path(__file__).parent / "dags"
# A task that has lost its supervisor, or its API server, is noticed quickly.
_IMPATIENT = {
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "15",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
}

VAULT_PASSWORD, VAULT_TOKEN = "pw-of-the-vault-81", "token-of-the-vault-82"


@dataclass(frozen=True)
class RealAirflow:
    """A real Airflow and what its DAGs work on.

    The DAGs lie in ``tests/system/dags``. They find the ledger and the business tables by the connection
    ``core_banking``, the receiver by the connection ``mailer``, the mail server by ``smtp_default``, and
    the chat by the environment variable ``CHAT_ADDRESS``. ``vault`` and the Variable ``vault_api_token`` are
    secrets.
    """

    airflow: AirflowStack
    bank: Engine
    receiver: Receiver
    mailbox: MailServer
    chat: Webhook


def connections(
    server: EmbeddedPostgres, database: str, receiver: Receiver, mailbox: MailServer
) -> dict[str, str]:
    """What the DAGs name, by id."""
    core_banking = {
        "conn_type": "postgres",
        "host": str(server.socket_dir),
        "port": server.port,
        "login": "postgres",
        "schema": database,
    }
    port = int(receiver.address.rpartition(":")[2])
    return {
        "core_banking": json.dumps(core_banking),
        "smtp_default": mailbox.connection,
        "mailer": json.dumps({"conn_type": "http", "host": "127.0.0.1", "port": port}),
    }


@pytest.fixture(scope="package")
def postgres_server() -> Iterator[EmbeddedPostgres]:
    """An embedded PostgreSQL server of these tests' own."""
    with EmbeddedPostgres(settings={"max_connections": "200"}) as server:
        yield server


@pytest.fixture(scope="package")
def real_airflow(
    postgres_server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealAirflow]:
    """A real Airflow: scheduler, DAG processor, triggerer, API server, LocalExecutor."""
    server = postgres_server
    folder = tmp_path_factory.mktemp("airflow")
    for name in ("system_bank", "system_airflow"):
        server.create_database(name)
    bank = create_engine(server.url("system_bank"))
    create_books(bank)
    ledger = LedgerDatabase(server.url("system_bank"))
    migrate(ledger)
    ledger.dispose()
    with (
        Receiver(folder / "journal") as receiver,
        MailServer() as mailbox,
        contextlib.closing(Webhook()) as chat,
    ):
        stack = AirflowStack(
            folder / "home",
            DAGS,
            server.url("system_airflow"),
            connections=connections(server, "system_bank", receiver, mailbox)
            | {"vault": json.dumps({"conn_type": "http", "host": "vault", "password": VAULT_PASSWORD})},
            settings=_IMPATIENT
            | _PEOPLE
            | {"CHAT_ADDRESS": chat.url, "AIRFLOW_VAR_VAULT_API_TOKEN": VAULT_TOKEN},
        )
        with stack:
            yield RealAirflow(stack, bank, receiver, mailbox, chat)
    bank.dispose()
