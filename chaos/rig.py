"""Everything that the work needs, as real parts on this machine: two databases, an Airflow, four receivers.

The metadata database and the business database are two servers, so that each can fail alone. The tasks reach the
business database through a proxy. Nothing of it survives the process that started it, however that ends.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil
import psycopg
from psycopg.rows import dict_row

from airflow_guard.store.database import LedgerDatabase
from airflow_guard.store.migrate import migrate
from chaos import clock, paper, sabotage
from chaos.broker import Broker
from chaos.cutting import Proxy
from chaos.plan import PLAN_FILE, Plan
from chaos.small_disk import SmallDisk
from demo.airflow_client import AirflowClient
from demo.offspring import carries, marked
from demo.postgres import EmbeddedPostgres
from demo.receiver import Manners, Receiver
from demo.stack import COMPONENTS, AirflowStack

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DATABASE = "business"
_IDLE = "LocalExecutor: <idle>"  # as LocalExecutor names its processes
LEASE_S = 6
HEARTBEAT_TIMEOUT_S = 15
#: The longest that the rig lets anything stand still. The tasks' settle_after is longer.
LONGEST_STALL_S = 20.0
RECEIVERS = {
    "mailer": Manners(loses_answers=53, silence_s=4),
    "bank": Manners(remembers=True, loses_answers=47, silence_s=4),
    "filer": Manners(loses_answers=23, silence_s=4),
    "printer": Manners(loses_answers=19, silence_s=4),
}
_METADATA_SETTINGS = {
    "max_connections": "300",
    # The children of a killed scheduler hold its connections, and with them the locks of the runs that it looked at.
    "idle_in_transaction_session_timeout": f"{LONGEST_STALL_S + 5:.0f}s",
}
_RUNNING = """
    SELECT id, pid, dag_id, task_id, run_id, map_index, try_number, business_date, cycle, EXISTS (
        SELECT 1 FROM guard_execution WHERE task_run_id = guard_task_run.id AND state = 'in_progress' AND phase = 'begun'
    ) AS begun
    FROM guard_task_run WHERE ended_at IS NULL ORDER BY id
"""
_ROOT = Path(__file__).parents[1]
_DAG_FILE = Path(__file__).parent / "dags" / "work.py"
_PLUGINS = Path(__file__).parent / "plugins"
_TABLES = (
    "CREATE TABLE posting (id bigserial, operation text NOT NULL, business_date date NOT NULL, document text NOT NULL, "
    "amount numeric(12, 2) NOT NULL, edition integer NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())"
)
_SETTINGS = {
    "AIRFLOW__CORE__PARALLELISM": "6",
    "AIRFLOW__CORE__MAX_ACTIVE_TASKS_PER_DAG": "6",
    "AIRFLOW__CORE__HOSTNAME_CALLABLE": "chaos.hosts.name",
    "AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "5",
    "AIRFLOW__CORE__PLUGINS_FOLDER": str(_PLUGINS),
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": str(HEARTBEAT_TIMEOUT_S),
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "15",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "45",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT_CHECK_INTERVAL": "10",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "10",
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "3",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15",
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
    "AIRFLOW__AIRFLOW_GUARD__LEDGER_CONN_ID": "ledger",
}


@dataclass(frozen=True, slots=True)
class Taken:
    """A run whose tasks a person has taken away, by a clear or a mark, and when."""

    dag_id: str
    run_id: str
    since: datetime
    until: datetime


class Rig:
    """Starts the parts when entered, ends them when left.

    :param folder: where everything lies, empty.
    :param plan: how far the work reaches at first.
    :param celery: with CeleryExecutor, two workers and a Redis instead of LocalExecutor.
    :param broken: what of the package is broken on purpose, see :mod:`chaos.sabotage`.
    """

    with_small_disk = True

    def __init__(self, folder: Path, plan: Plan, *, celery: bool = False, broken: str | None = None) -> None:
        self.folder = folder.resolve()
        self.celery = celery
        self._broken = broken
        self._plan = plan
        self._cleanup = ExitStack()
        self.disk: SmallDisk | None = None
        self.broker: Broker | None = None
        self.ledger: EmbeddedPostgres
        self.metadata: EmbeddedPostgres
        self.proxy: Proxy
        self.receivers: dict[str, Receiver] = {}
        self.airflow: AirflowStack
        self.host = "host-1"
        self.began = datetime.now(UTC)
        self.struck: set[int] = set()
        self.taken: list[Taken] = []
        self._keeping = threading.Event()
        self._lock = threading.RLock()
        self._down_until: dict[str, float] = {}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._cleanup.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    # -- the parts ------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "dags").mkdir(exist_ok=True)
        self._plan.write(self.plan_file)
        self.alerts_file.touch()
        self._start_databases()
        for name, manners in RECEIVERS.items():
            journal = self.journal(name)
            self.receivers[name] = self._cleanup.enter_context(Receiver(journal, manners=manners))
        shutil.copy(_DAG_FILE, self.dag_file)
        if self._broken == "worker-clock":
            self.skew_file.touch()  # a clock that is right breaks nothing
        self._start_airflow()

    def _start_databases(self) -> None:
        self.metadata = self._cleanup.enter_context(
            EmbeddedPostgres(self.folder / "metadata", settings=_METADATA_SETTINGS)
        )
        self.metadata.create_database("airflow")
        if self.with_small_disk:
            self.disk = SmallDisk.mounted(self.folder / "small-disk")
        if self.disk is not None:
            self._cleanup.callback(self.disk.unmount)
        self.ledger = self._cleanup.enter_context(
            EmbeddedPostgres(self.folder / "business", settings={"max_connections": "400"})
        )
        if self.disk is not None:
            self.disk.give_to(self.ledger)
        self.ledger.create_database(DATABASE)
        with self.connect() as connection:
            connection.execute(_TABLES)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        database = LedgerDatabase(self.ledger.url(DATABASE))
        migrate(database)
        database.dispose()
        self.proxy = self._cleanup.enter_context(Proxy(self.ledger.url(DATABASE)))

    def _start_airflow(self) -> None:
        components: dict[str, Sequence[str]] = {
            name: command for name, command in COMPONENTS.items() if name != "scheduler"
        }
        components |= {f"scheduler-{number}": COMPONENTS["scheduler"] for number in (1, 2)}
        settings = self._settings()
        if self.celery:
            self.broker = self._cleanup.enter_context(Broker(self.folder / "redis"))
            components |= self.broker.components(self.folder)
            settings |= self.broker.settings(self.metadata.url("airflow"))
        self.airflow = AirflowStack(
            self.folder / "airflow",
            self.folder / "dags",
            self.metadata.url("airflow"),
            connections=self._connections(),
            settings=settings,
            components=components,
        )
        self._cleanup.enter_context(self.airflow)
        self.client = AirflowClient(
            self.airflow.address,
            self.airflow.user,
            self.airflow.password,
            signs=self.airflow.signs_of_life,
            timeout_s=10,
            changes_timeout_s=10,
        )
        self._cleanup.enter_context(self.client)
        keeper = threading.Thread(target=self._keep, name="keeper", daemon=True)
        keeper.start()
        self._cleanup.callback(keeper.join, 10)
        self._cleanup.callback(self._keeping.set)

    def _connections(self) -> dict[str, str]:
        url = self.proxy.url
        # An end that is gone without a word is noticed at last: as a careful deployment has it.
        extra = {"sslmode": "disable", "gssencmode": "disable", "connect_timeout": 5}
        ledger = {
            "conn_type": "postgres", "host": url.host, "port": url.port, "login": url.username,
            "schema": DATABASE, "extra": extra,
        }  # fmt: skip
        found = {"ledger": json.dumps(ledger)}
        for name, receiver in self.receivers.items():
            port = int(receiver.address.rpartition(":")[2])
            found[name] = json.dumps({"conn_type": "http", "host": "127.0.0.1", "port": port})
        return found

    def _settings(self) -> dict[str, str]:
        settings = {
            **_SETTINGS,
            "PYTHONPATH": str(_ROOT),
            PLAN_FILE: str(self.plan_file),
            paper.ALERTS_FILE: str(self.alerts_file),
            clock.SKEW_FILE: str(self.skew_file),
        }
        return {**settings, sabotage.SABOTAGE: self._broken} if self._broken else settings

    # -- files ----------------------------------------------------------------------------------------------

    @property
    def plan_file(self) -> Path:
        """How far the work reaches."""
        return self.folder / "plan.json"

    @property
    def alerts_file(self) -> Path:
        """What people were told."""
        return self.folder / "alerts.jsonl"

    @property
    def skew_file(self) -> Path:
        """While it exists, the clocks of new tasks are hours off."""
        return self.folder / "skew"

    @property
    def dag_file(self) -> Path:
        """The DAGs, as Airflow reads them."""
        return self.folder / "dags" / "work.py"

    def journal(self, receiver: str) -> Path:
        """What arrived at a receiver."""
        return self.folder / f"{receiver}.journal"

    # -- the work -------------------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """How far the work reaches now."""
        return self._plan

    def extend(self, *, days: int = 0, hours: int = 0) -> None:
        """Let the schedules reach further. The DAGs change by that, as they are edited in the life of others."""
        self._plan = replace(self._plan, days=self._plan.days + days, hours=self._plan.hours + hours)
        self._plan.write(self.plan_file)

    def connect(self) -> psycopg.Connection[dict[str, Any]]:
        """Connect to the business database, not through the proxy."""
        return psycopg.connect(
            host=str(self.ledger.socket_dir), port=self.ledger.port, user="postgres", dbname=DATABASE,
            row_factory=dict_row, autocommit=True, connect_timeout=5,
        )  # fmt: skip

    def rows(self, query: str, **values: Any) -> list[dict[str, Any]]:
        """Return the rows of a query over the business database; no rows while it is down."""
        try:
            with self.connect() as connection:
                return connection.execute(query, values).fetchall()
        except psycopg.OperationalError:
            return []

    def running_tries(self) -> list[dict[str, Any]]:
        """Return the guarded tries whose process runs, oldest first, and whether an effect of theirs is under way."""
        mark = str(self.airflow.home)
        return [row for row in self.rows(_RUNNING) if carries(row["pid"], mark)]

    @contextlib.contextmanager
    def taking(self, dag_id: str, run_id: str) -> Iterator[None]:
        """Remember that a person clears or marks a run meanwhile, also if Airflow's answer does not come."""
        since = datetime.now(UTC)
        try:
            yield
        finally:
            self.taken.append(Taken(dag_id, run_id, since, datetime.now(UTC)))

    # -- components -----------------------------------------------------------------------------------------

    def hold_down(self, name: str, seconds: float) -> None:
        """Do not start a component again before so many seconds are over."""
        with self._lock:
            self._down_until[name] = time.monotonic() + seconds

    def _keep(self) -> None:
        """Start again what has ended, as systemd or Kubernetes does."""
        while not self._keeping.wait(0.5):
            with self._lock:
                for name, component in list(self.airflow.components.items()):
                    late = time.monotonic() >= self._down_until.get(name, 0)
                    if component.process.poll() is not None and late and not self._keeping.is_set():
                        self._down_until[name] = time.monotonic() + 2
                        self._end_idle_orphans()
                        self.airflow.start_component(name, {"CHAOS_HOST": self.host})

    def _end_idle_orphans(self) -> None:
        """End what a killed scheduler has left and what will never have work again. Its tasks go on."""
        parents = {component.pid for component in self.airflow.components.values()}
        for process in marked(str(self.airflow.home)):
            with contextlib.suppress(psutil.Error):
                idle = " ".join(process.cmdline()).rstrip().endswith(_IDLE)
                if idle and process.ppid() not in parents:
                    process.kill()

    def describe(self) -> str:
        """Say what runs."""
        parts = ", ".join(sorted(self.airflow.components))
        disk = "a small disk for the ledger" if self.disk else "no small disk (it needs root)"
        return f"2 PostgreSQL, {len(self.receivers)} receivers, {parts}, {disk}"

    def begin(self) -> None:
        """Wait until the work has begun."""
        self.began = datetime.now(UTC)
        self.airflow.wait_for_dag("books", "payments", "files", "letters", "standing", "watch")
        self.client.wait(lambda: bool(self.running_tries()), "the first guarded task to run")


def first_plan(documents: int, pause_s: float) -> Plan:
    """Return a plan of one day and a few hours."""
    now = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=60)
    return Plan("2025-03-01", 2, 4, documents, pause_s, now.isoformat())
