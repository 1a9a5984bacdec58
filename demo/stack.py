"""A real Airflow of one's own: scheduler, DAG processor, triggerer and API server as child processes."""

from __future__ import annotations

import base64
import json
import os
import random
import secrets
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import httpx
import psutil  # type: ignore[import-untyped]

from airflow_guard.core.errors import GuardError
from demo.airflow_client import AirflowClient, NoSuchTask
from demo.offspring import Offspring, is_running, python_path
from demo.waiting import cpu_used, sizes, wait

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

__all__ = ["COMPONENTS", "AirflowStack", "Component", "StackFailed", "free_port"]

#: The components of a small Airflow, with the arguments of ``airflow`` that start them.
COMPONENTS: Mapping[str, Sequence[str]] = {
    "api-server": ["api-server"],
    # Logs of running tasks are read from the disk; a server for them would need a port more.
    "scheduler": ["scheduler", "--skip-serve-logs"],
    "dag-processor": ["dag-processor"],
    "triggerer": ["triggerer", "--skip-serve-logs"],
}
#: Health as the API names it, for the components that report it. The API server reports by answering.
_HEALTH_NAMES = {"metadatabase", "scheduler", "dag_processor", "triggerer"}
_SETTINGS_OF_OTHERS = (
    "AIRFLOW__",
    "AIRFLOW_CONN_",
    "AIRFLOW_VAR_",
    "_AIRFLOW",
    "AIRFLOW_HOME",
    "AIRFLOW_CONFIG",
)
_LOG_TAIL_LINES = 40
_PORTS, _PORTS_TRIED = range(20_000, 32_000), 100


class StackFailed(GuardError):
    """A part of Airflow did not start, or has ended; the message holds the end of its log."""


@dataclass(slots=True)
class Component:
    """One of Airflow's processes."""

    name: str
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def freeze(self) -> None:
        """Stop it and its children with SIGSTOP; to the others it looks hung."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on after :meth:`freeze`."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        parent = psutil.Process(self.pid)
        for process in (parent, *parent.children(recursive=True)):
            process.send_signal(number)


class AirflowStack:
    """One Airflow in one folder, with LocalExecutor unless ``settings`` name another.

    ::

        with AirflowStack(folder, dags, server.url("airflow")) as airflow:
            airflow.wait_for_dag("bank_statements")
            run_id = airflow.client.trigger("bank_statements", conf={"business_date": "2026-01-15"})
            airflow.client.wait_for_run("bank_statements", run_id)

    Nothing of it survives the process that started it, even if that one is killed.

    :param home: ``AIRFLOW_HOME``, made if absent; the logs lie below it.
    :param dags_folder: where the DAGs are.
    :param metadata_url: SQLAlchemy URL of an existing, empty or migrated database.
    :param connections: Airflow connections by id, as URI or JSON.
    :param variables: Airflow variables by name.
    :param settings: environment variables that are added to, or replace, those of :meth:`environment`.
    :param components: what is started, by name; a component can be there twice, under two names. Without a scheduler
        nothing runs.
    :param user: name of the user who is an administrator.
    :param password: default: a new one.

    ``signs`` takes what moves besides the logs of tasks while this Airflow works.
    """

    def __init__(
        self,
        home: Path,
        dags_folder: Path,
        metadata_url: str,
        *,
        connections: Mapping[str, str] | None = None,
        variables: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
        components: Mapping[str, Sequence[str]] = COMPONENTS,
        user: str = "admin",
        password: str | None = None,
    ) -> None:
        self.home = home.resolve()
        self.dags_folder = dags_folder.resolve()
        self.user = user
        self.password = password or secrets.token_urlsafe(9)
        self.port = free_port()
        self.client = AirflowClient(
            self.address, self.user, self.password, alive=self.check, signs=self.signs_of_life
        )
        self.signs: list[Callable[[], object]] = []
        self.components: dict[str, Component] = {}
        self._commands = dict(components)
        self._metadata_url = metadata_url
        self._named = {
            **{f"AIRFLOW_CONN_{name.upper()}": value for name, value in (connections or {}).items()},
            **{f"AIRFLOW_VAR_{name.upper()}": value for name, value in (variables or {}).items()},
            **(settings or {}),
        }
        self._secrets = {
            "AIRFLOW__CORE__FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            "AIRFLOW__API__SECRET_KEY": secrets.token_hex(16),
            "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
        }
        self._offspring: Offspring | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """Where the UI and the API are."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log_folder(self) -> Path:
        """Where the logs of the components are; those of the tasks lie in ``tasks`` below it."""
        return self.home / "logs"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of every component; ``airflow`` commands work in it too."""
        mine = {name: value for name, value in os.environ.items() if not name.startswith(_SETTINGS_OF_OTHERS)}
        # The DAGs and the processes beside them import this project, whatever folder they are started in.
        path = {"PYTHONPATH": python_path()}
        return {**mine, **path, **self._settings(), **self._secrets, **self._named}

    def _settings(self) -> dict[str, str]:
        return {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__API__BASE_URL": self.address,
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags_folder),
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.address}/execution/",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PARALLELISM": "8",
            # What takes long on a machine that is busy with other things is no failure.
            "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "900",
            "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "1200",
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
            "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "7200",
            "AIRFLOW__EXECUTION_API__JWT_EXPIRATION_TIME": "7200",
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(self.home / "plugins"),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{self.user}:admin",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self._passwords),
            # The DAG files are all there at the start: reading them over and over takes half a processor.
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "60",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "60",
            "AIRFLOW__DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self._metadata_url,
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(self.log_folder / "tasks"),
            "AIRFLOW__LOGGING__DAG_PROCESSOR_CHILD_PROCESS_LOG_DIRECTORY": str(self.log_folder / "dags"),
            "AIRFLOW__SCHEDULER__JOB_HEARTBEAT_SEC": "2",
            "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
            "AIRFLOW__SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "2",
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            # macOS looks up a proxy for every connection, which is not safe in forked processes.
            "NO_PROXY": "*",
            "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES",
            "PYTHONUNBUFFERED": "1",
        }

    @property
    def _passwords(self) -> Path:
        return self.home / "passwords.json"

    # -- life -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Migrate the metadata database, start all components, and return when all report to be healthy.

        :raises StackFailed: one of them did not start; the message holds the end of its log.
        """
        for folder in ("plugins", "logs"):
            (self.home / folder).mkdir(parents=True, exist_ok=True)
        self._passwords.touch(mode=0o600)
        self._passwords.write_text(json.dumps({self.user: self.password}))
        self._offspring = Offspring(str(self.home))
        self._migrate()
        for name in self._commands:
            self.start_component(name)
        self.wait_healthy()

    def start_component(self, name: str, settings: Mapping[str, str] | None = None) -> Component:
        """Start a component, also once more after it was killed.

        :param name: one of ``components``, such as ``api-server`` or ``scheduler``.
        :param settings: environment variables of this component alone.
        """
        log = self.log_folder / f"{name}.log"
        self.components[name] = Component(name, log, self._start(self._commands[name], log, settings))
        return self.components[name]

    def stop(self, *, grace_s: float = 3.0) -> None:
        """End everything that was started, tasks included; the logs stay.

        :param grace_s: seconds that the components get to end by themselves.
        """
        self.client.close()
        if self._offspring is not None:
            self._offspring.end(grace_s=grace_s)
            self._offspring = None
        self.components.clear()

    def check(self) -> None:
        """Do nothing if all components run.

        :raises StackFailed: one has ended.
        """
        for component in self.components.values():
            code = component.process.poll()
            if code is not None:
                raise StackFailed(_failure(component.name, code, component.log))

    def signs_of_life(self) -> object:
        """Return what moves while this Airflow works: the logs of its tasks, and ``signs``.

        Not the logs of its components: some write a line each minute, and the API server one for each question.
        """
        return sizes(self.log_folder / "tasks"), [sign() for sign in self.signs]

    def wait_healthy(self) -> None:
        """Wait until every component reports to be healthy.

        :raises StackFailed: one has ended.
        :raises NothingMoves: one does nothing.
        """
        starting = [self.log_folder / f"{name}.log" for name in self.components if "api-server" not in name]
        self.client.wait(self.healthy, "Airflow's components to be healthy", signs=lambda: sizes(*starting))

    def healthy(self) -> bool:
        """Whether every component reports to be healthy."""
        try:
            health = self.client.health()
        except (httpx.TransportError, GuardError):
            return False
        started = {command[0].replace("-", "_") for command in self._commands.values()}
        expected = _HEALTH_NAMES & {"metadatabase", *started}
        return all(health.get(name) == "healthy" for name in expected)

    def wait_for_dag(self, *dag_ids: str) -> None:
        """Wait until DAGs can run.

        :raises StackFailed: a DAG file does not import; the message holds its error.
        :raises NothingMoves: no other DAG has appeared for a long while.
        """
        there: set[str] = set()

        def parsed() -> bool:
            errors = self.client.import_errors()
            if errors:
                raise StackFailed(
                    "\n\n".join(f"{name} does not import:\n{why}" for name, why in errors.items())
                )
            there.update(self.client.dag_ids())
            return set(dag_ids) <= there

        self.client.wait(parsed, f"the DAGs {', '.join(dag_ids)}", signs=lambda: len(there))

    # -- processes ------------------------------------------------------------------------------------------

    def kill_task(self, dag_id: str, run_id: str, task_id: str, *, map_index: int = -1) -> int:
        """Kill the process of a running task with SIGKILL; return its id when it is dead.

        Its supervisor lives on and reports the end of the try.

        :raises NoSuchTask: the task does not run.
        """
        pid = self.task_pid(dag_id, run_id, task_id, map_index=map_index)
        os.kill(pid, signal.SIGKILL)
        self.client.wait(lambda: not is_running(pid), f"process {pid} to be dead", every_s=0.02)
        return pid

    def task_pid(self, dag_id: str, run_id: str, task_id: str, *, map_index: int = -1) -> int:
        """Return the id of the process that executes a task; its parent is its supervisor.

        :raises NoSuchTask: the task does not run.
        """
        task = self.client.task(dag_id, run_id, task_id, map_index)
        if task.state != "running" or task.pid is None or not is_running(task.pid):
            raise NoSuchTask(f"task {task_id} of run {run_id} does not run: it is {task.state}")
        return task.pid

    def _migrate(self) -> None:
        log = self.log_folder / "db-migrate.log"
        process = self._start(["db", "migrate"], log)
        what = "Airflow's database to be migrated"
        wait(
            lambda: process.poll() is not None, what, lambda: (sizes(log), cpu_used(process.pid)), every_s=0.2
        )
        code = process.wait()
        if code != 0:
            raise StackFailed(_failure("db migrate", code, log))

    def _start(
        self, arguments: Sequence[str], log: Path, settings: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        if self._offspring is None:
            raise StackFailed("Airflow was not started, or is stopped: start() it first.")
        command = [sys.executable, "-m", "airflow", *arguments]
        environment = {**self.environment, **(settings or {})}
        return self._offspring.start(command, log=log, environment=environment)


def _failure(what: str, code: int, log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
    return "\n".join([f"airflow {what} ended with exit code {code}. The end of its log {log}:", *lines])


def free_port() -> int:
    """Return a TCP port of the loopback interface that nobody uses now.

    It is none of those that the system gives to connections by itself (from 32768 on Linux): a program that gets it
    starts some seconds later, or is killed and started again, and a connection could have taken it meanwhile.

    :raises StackFailed: there is none.
    """
    for port in random.sample(_PORTS, _PORTS_TRIED):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise StackFailed(f"None of {_PORTS_TRIED} ports from {_PORTS.start} to {_PORTS.stop} is free.")
