"""The ledger behind PgBouncer in transaction mode, where every transaction may run in another session (C25)."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard.core.guard import Asking, TaskIdentity, Verdict, judge
from airflow_guard.core.states import State
from airflow_guard.store.business_transaction import Ending
from airflow_guard.store.changes import BEGIN
from airflow_guard.store.database import LedgerDatabase
from airflow_guard.store.ledger import Ledger
from demo.stack import free_port
from demo.waiting import Patience, cpu_used
from tests.contract.attempts import SPACE, attempt, documents_of, new_ledger
from tests.contract.waiting import PATIENCE_S
from tests.databases import databases, not_run
from tests.processes import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.databases import DatabaseUnderTest
    from tests.processes import Worker

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
ASKING = Asking(TaskIdentity("statements", "post", "manual__1"), "default")
SESSIONS = 2
_SETTINGS = """
[databases]
{name} = host={host} port={port} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {sessions}
pidfile =
"""


@pytest.fixture
def pooled(database: DatabaseUnderTest) -> Iterator[sa.URL]:
    """The URL of a whole migrated database behind a real PgBouncer with two server sessions."""
    if PGBOUNCER is None:
        not_run("pgbouncer is not installed")
    own = database.server.fresh_database()
    new_ledger(own.url).database.dispose()
    url = sa.make_url(own.url)
    listen = free_port()
    settings = _SETTINGS.format(
        name=url.database,
        host=url.query.get("host", url.host),
        port=url.query.get("port", url.port),
        user=url.username,
        listen=listen,
        sessions=SESSIONS,
    )
    through = sa.URL.create("postgresql+psycopg", url.username, None, "127.0.0.1", listen, url.database)
    # A folder that the user may enter that PgBouncer runs as.
    with tempfile.TemporaryDirectory(prefix="guard-pgbouncer-") as folder:
        Path(folder).chmod(0o755)
        file = Path(folder, "pgbouncer.ini")
        file.write_text(settings)
        with Path(folder, "log").open("wb") as log:
            process = subprocess.Popen([PGBOUNCER, str(file)], stdout=log, stderr=log, **_not_root())
        try:
            _wait_for(through, process)
            yield through
        finally:
            process.terminate()
            process.wait()
            database.server.drop(own)


def _not_root() -> dict[str, Any]:
    """PgBouncer does not run as root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _wait_for(url: sa.URL, process: subprocess.Popen[bytes]) -> None:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    patience = Patience("pgbouncer", lambda: cpu_used(process.pid))
    while True:
        patience.check()
        try:
            engine.connect().close()
            return
        except sa.exc.OperationalError:
            with contextlib.suppress(subprocess.TimeoutExpired):
                raise AssertionError(f"pgbouncer ended by itself: {process.wait(0.05)}") from None


def advisory_locks(url: sa.URL) -> int:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        return int(
            connection.exec_driver_sql(
                # Of this database: other tests migrate theirs on the same server meanwhile.
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' "
                "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            ).scalar_one()
        )


def execute(ledger: Ledger, name: str) -> str:
    """Do one key in every way that there is, and return the session that the last statement ran in."""
    one = attempt(ledger, name).begin()
    one.complete(f'"{name}"')
    assert one.row().state is State.COMPLETED
    posting = attempt(ledger, f"{name} posted")
    business = ledger.transaction(posting.own, posting.hashes)
    with business as connection:
        session = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        business.complete(None)
    assert business.ending() is Ending.COMMITTED
    both = attempt(ledger, f"{name} first", f"{name} second")
    ledger.begin(both.own, both.hashes[:1])
    directly = ledger.database.at_once()
    assert ledger.complete_and_begin(both.own, {both.hashes[0]: "1"}, both.hashes[1:], directly)
    directly.close()
    ledger.runs.renew(one.own.task_run_id, 60)
    ledger.runs.close(one.own.task_run_id, "success", {})
    return str(session)


def claim_and_wait(url: str) -> None:
    ledger = Ledger(LedgerDatabase(url))
    attempt(ledger, "killed")
    checkpoint("has claimed")


@databases("postgres_server", "postgres_embedded")
def test_c25_every_key_is_done_and_nothing_of_a_session_is_left(
    pooled: sa.URL, start_worker: Callable[..., Worker]
) -> None:
    ledger = Ledger(LedgerDatabase(pooled))
    for number in range(20):
        execute(ledger, f"sequential {number}")
    with ThreadPoolExecutor(5) as pool:
        sessions = set(pool.map(lambda number: execute(ledger, f"concurrent {number}"), range(5)))
    assert len(sessions) <= SESSIONS
    worker = start_worker(claim_and_wait, url=pooled.render_as_string(hide_password=False))
    worker.wait_for("has claimed")
    worker.kill()
    (document,) = documents_of(SPACE, "killed")
    row = ledger.read(SPACE.key_date, [document.key_hash])[document.key_hash]
    assert judge(row, ASKING).verdict is Verdict.ELSEWHERE
    ledger.runs.close(row.task_run_id or 0, "killed", {})
    again = attempt(ledger, "killed", known=True).begin().complete("1")
    assert (again.row().state, again.row().attempt) == (State.COMPLETED, 2)
    ledger.database.dispose()
    assert advisory_locks(pooled) == 0


@databases("postgres_server", "postgres_embedded")
def test_c25_a_session_that_dies_behind_it_is_told_as_the_ledger_down(pooled: sa.URL) -> None:
    ledger = Ledger(LedgerDatabase(pooled))
    one = attempt(ledger, "a")
    admin = sa.create_engine(pooled, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with admin.connect() as connection:
        connection.exec_driver_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    assert (
        ledger.write(lambda c: ledger.apply(c, one.own, BEGIN, one.hashes, batch=None), patience_s=PATIENCE_S)
        == set()
    )
    one.complete("1")
    assert one.row().state is State.COMPLETED
    ledger.database.dispose()
    admin.dispose()
