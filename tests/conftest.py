"""Fixtures of the whole suite."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from tests import airflow_environment
from tests.databases import ALL, DatabaseNotReachable, DatabaseServers, chosen, not_run
from tests.processes import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow.models.dagrun import DagRun

    from tests.databases import DatabaseKind, DatabaseServer, DatabaseUnderTest

# Airflow reads its settings when it is first imported, and test modules import it when pytest collects them.
airflow_environment.prepare()

# A database answers when it answers; a slow example is no failure. The same examples each time: a run can be repeated.
hypothesis.settings.register_profile("guard", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("guard")

_SERVERS = pytest.StashKey[DatabaseServers]()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for a database once on every kind, or on those of its mark."""
    if "database_kind" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("databases")
        metafunc.parametrize("database_kind", chosen(mark.args if mark else ALL))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name the databases that the run had and those that it did not."""
    servers = config.stash.get(_SERVERS, None)
    lines = servers.lines() if servers else []
    if lines:
        terminalreporter.section("databases")
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def database_servers(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[DatabaseServers]:
    """The database servers, each started at its first use."""
    servers = DatabaseServers(tmp_path_factory.mktemp("sqlite"))
    pytestconfig.stash[_SERVERS] = servers
    yield servers
    servers.close()


@pytest.fixture
def database_server(database_kind: DatabaseKind, database_servers: DatabaseServers) -> DatabaseServer:
    """The server of the kind that this test runs on."""
    try:
        return database_servers.get(database_kind)
    except DatabaseNotReachable as error:
        not_run(str(error))


@pytest.fixture
def database(database_server: DatabaseServer) -> Iterator[DatabaseUnderTest]:
    """An empty database on the kind that this test runs on."""
    fresh = database_server.fresh()
    yield fresh
    database_server.drop(fresh)


@pytest.fixture(scope="session")
def airflow_home() -> Path:
    """The folder of an Airflow with a migrated metadata database; this package is installed in it."""
    airflow_environment.migrate()
    return Path(os.environ["AIRFLOW_HOME"])


@pytest.fixture
def run_dag_test(airflow_home: Path) -> Callable[..., DagRun]:
    """``run_dag_test(dag, logical_date=…)`` runs a DAG with ``dag.test()`` and returns its run."""
    return airflow_environment.run_dag_test


@pytest.fixture
def start_worker() -> Iterator[Callable[..., Worker]]:
    """``start_worker(function, **kwargs)`` starts a child process, which is gone when the test ends."""
    workers: list[Worker] = []

    def start(function: Callable[..., Any] | str, /, **kwargs: Any) -> Worker:
        workers.append(Worker.start(function, **kwargs))
        return workers[-1]

    yield start
    for worker in workers:
        worker.close()
