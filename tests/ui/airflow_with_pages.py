"""A real API server with the plugin, real users and real ledgers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

import httpx

from demo.stack import COMPONENTS, AirflowStack
from demo.waiting import QUIET_S
from tests.ui.auth_manager import USERS

if TYPE_CHECKING:
    from collections.abc import Mapping

_REPOSITORY = Path(__file__).parents[2]
_DAGS = Path(__file__).with_name("dags")
PAGES = "/airflow-guard"


class AirflowWithPages:
    """An API server, and clients that are logged in as its users.

    :param home: ``AIRFLOW_HOME``.
    :param connections: Airflow connections by id, as JSON.
    :param ledgers: ids of the connections whose ledgers are shown.
    :param dags: folder of the DAGs that Airflow knows.
    """

    def __init__(
        self,
        home: Path,
        connections: Mapping[str, str],
        ledgers: str,
        *,
        dags: Path = _DAGS,
        **settings: str,
    ) -> None:
        self._tokens: dict[str, str] = {}
        self.stack = AirflowStack(
            home,
            dags,
            f"sqlite:///{home / 'airflow.db'}",
            connections=connections,
            components={"api-server": COMPONENTS["api-server"]},
            settings={
                "AIRFLOW__CORE__AUTH_MANAGER": "tests.ui.auth_manager.OneDagAuthManager",
                "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(
                    f"{name}:{role}" for name, role in USERS.items()
                ),
                "AIRFLOW__AIRFLOW_GUARD__LEDGER_CONN_IDS": ledgers,
                "PYTHONPATH": str(_REPOSITORY),
                **settings,
            },
        )

    @property
    def address(self) -> str:
        return self.stack.address

    @property
    def pages(self) -> str:
        """Where the pages are."""
        return f"{self.address}{PAGES}"

    def __enter__(self) -> Self:
        self.stack.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.__exit__(*error)

    def password(self, user: str) -> str:
        return str(json.loads((self.stack.home / "passwords.json").read_text())[user])

    def token(self, user: str) -> str:
        """Return a token of a user."""
        if user not in self._tokens:
            answer = httpx.post(
                f"{self.address}/auth/token",
                json={"username": user, "password": self.password(user)},
                trust_env=False,
            )
            answer.raise_for_status()
            self._tokens[user] = str(answer.json()["access_token"])
        return self._tokens[user]

    def client(self, user: str | None) -> httpx.Client:
        """Return a client of the pages with the cookie of a user, as a browser has it."""
        cookies = {"_token": self.token(user)} if user else {}
        return httpx.Client(base_url=self.pages, cookies=cookies, timeout=QUIET_S, trust_env=False)

    def know_dags(self) -> None:
        """Let Airflow read the DAG files."""
        subprocess.run(
            [sys.executable, "-m", "airflow", "dags", "reserialize"],
            env=self.stack.environment,
            check=True,
            capture_output=True,
        )
