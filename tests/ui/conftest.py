"""A real API server with the pages, and a real browser: started at first use, ended with the session."""

from __future__ import annotations

import json
import os
import shutil
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from airflow_guard.store.ledger import Ledger  # noqa: TC001 - of a dataclass's field
from demo.postgres import EmbeddedPostgres
from tests.contract.attempts import new_ledger
from tests.databases import not_run
from tests.ui.airflow_with_pages import AirflowWithPages
from tests.ui.books import fill

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, BrowserContext, Page

CHROMIUM_VARIABLE = "GUARD_TEST_CHROMIUM"
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_WAIT_MS = 60_000
# A machine that is busy with other tests makes any database look slow; what a page says then has tests of its own.
_PATIENT = {"AIRFLOW__AIRFLOW_GUARD__PAGE_TIMEOUT_SECONDS": "60"}


@dataclass(frozen=True)
class World:
    """An Airflow with the pages, and the ledger ``core_banking`` that they show.

    :param connection: makes an Airflow connection to a database of the same server.
    """

    airflow: AirflowWithPages
    ledger: Ledger
    connection: Callable[[str], str]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the tests in a browser come last: people settle there what the others count."""
    items.sort(key=lambda item: "tests/ui/test_browser" in item.nodeid)


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL server of the session's own."""
    with EmbeddedPostgres() as server:
        yield server


@pytest.fixture(scope="session")
def world(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The pages over two ledgers: ``core_banking`` with a month of work, ``cards`` with nothing yet."""
    for name in ("ui_bank", "ui_cards"):
        postgres.create_database(name)
    ledger = new_ledger(postgres.url("ui_bank"))
    fill(ledger)
    new_ledger(postgres.url("ui_cards")).database.dispose()

    def connection(database: str) -> str:
        where = {
            "host": str(postgres.socket_dir),
            "port": postgres.port,
            "login": "postgres",
            "schema": database,
        }
        return json.dumps({"conn_type": "postgres", **where})

    home = tmp_path_factory.mktemp("pages")
    connections = {"core_banking": connection("ui_bank"), "cards": connection("ui_cards")}
    with AirflowWithPages(home, connections, "core_banking, cards", **_PATIENT) as airflow:
        airflow.know_dags()
        yield World(airflow, ledger, connection)
    ledger.database.dispose()


@pytest.fixture(scope="session")
def troubled(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AirflowWithPages]:
    """The pages over ledgers that have nothing to show: not migrated, nobody listens, never answers, no connection."""
    postgres.create_database("ui_bare")
    with socket.socket() as silent, socket.socket() as closed:
        # Connections are accepted by the kernel, and nobody ever says a word.
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)
        closed.bind(("127.0.0.1", 0))
        bare = {"conn_type": "postgres", "host": str(postgres.socket_dir), "port": postgres.port,
                "login": "postgres", "schema": "ui_bare"}  # fmt: skip

        def at(port: int) -> str:
            return json.dumps(
                {"conn_type": "postgres", "host": "127.0.0.1", "port": port, "login": "x", "schema": "x"}
            )

        connections = {
            "bare": json.dumps(bare),
            "down": at(closed.getsockname()[1]),
            "silent": at(silent.getsockname()[1]),
        }
        home = tmp_path_factory.mktemp("troubled")
        with AirflowWithPages(home, connections, "bare,down,silent,absent") as airflow:
            airflow.know_dags()
            yield airflow


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The installed Chromium, headless."""
    executable = os.environ.get(CHROMIUM_VARIABLE) or next(filter(None, map(shutil.which, _NAMES)), None)
    if executable is None:
        not_run(f"no Chromium: apt-get install chromium, or name one in {CHROMIUM_VARIABLE}")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=_WAIT_MS)
    with sync_playwright() as playwright:
        # As root, as in a container, Chromium's own sandbox does not start.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        started = playwright.chromium.launch(executable_path=executable, args=arguments)
        yield started
        started.close()


@pytest.fixture
def open_as(browser: Browser, world: World) -> Iterator[Callable[..., Page]]:
    """``open_as("viewer")`` returns a blank tab of a browser in which that user is logged in."""
    contexts: list[BrowserContext] = []

    def open_(user: str, **options: Any) -> Page:
        options.setdefault("viewport", {"width": 1280, "height": 900})
        context = browser.new_context(**options)
        context.set_default_timeout(_WAIT_MS)
        cookie = {"name": "_token", "value": world.airflow.token(user), "url": world.airflow.address}
        context.add_cookies([cookie])
        contexts.append(context)
        return context.new_page()

    yield open_
    for context in contexts:
        context.close()
