"""A Redis of the rig's own, for CeleryExecutor."""

from __future__ import annotations

import shutil
import socket
from typing import TYPE_CHECKING, Self

from airflow_guard.core.errors import ConfigurationError
from demo.offspring import Offspring
from demo.stack import free_port
from demo.waiting import NothingMoves, sizes, wait

if TYPE_CHECKING:
    from pathlib import Path

WORKERS = ("worker-1", "worker-2")
#: Shorter than a task: when a worker stands still, the broker gives its task to a second one. A healthy worker renews it.
VISIBILITY_TIMEOUT_S = 5
_CONCURRENCY = 4


class Broker:
    """A Redis on a free port, without a password and without a disk.

    :param folder: of its log.
    """

    def __init__(self, folder: Path) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise ConfigurationError("Redis is not installed. On Debian: apt-get install redis-server")
        self._program = program
        self._folder = folder
        self._offspring: Offspring | None = None
        self.port = free_port()

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._offspring = Offspring(str(self._folder))
        options = {
            "port": self.port,
            "bind": "127.0.0.1",
            "save": "",
            "appendonly": "no",
            "set-proc-title": "no",
            "dir": self._folder,
        }
        command = [
            self._program,
            *(str(part) for name, value in options.items() for part in (f"--{name}", value)),
        ]
        self._offspring.start(command, log=self._folder / "redis.log")
        log = self._folder / "redis.log"
        try:
            wait(lambda: self._ask("PING") == "+PONG", f"Redis to answer, see {log}", lambda: sizes(log))
        except NothingMoves:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._offspring is not None:
            self._offspring.end()
            self._offspring = None

    @property
    def url(self) -> str:
        """Where it is."""
        return f"redis://127.0.0.1:{self.port}/0"

    def flush(self) -> bool:
        """Forget everything and end all connections, as a Redis without a disk that is started again; whether it did.

        Were the connections to stay, the workers would not declare their queue again, and nobody could send to it.
        """
        return self._ask("FLUSHALL") == "+OK" and self._ask("CLIENT KILL TYPE normal").startswith(":")

    def _ask(self, command: str) -> str:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(f"{command}\r\n".encode())
                return connection.recv(100).decode().strip()
        except OSError:
            return ""

    def components(self, folder: Path) -> dict[str, list[str]]:
        """Return the workers, as components of Airflow."""
        return {
            name: [
                "celery", "worker", "--celery-hostname", name, "--concurrency", str(_CONCURRENCY), "--skip-serve-logs",
                "--without-mingle", "--without-gossip", "--pid", str(folder / f"{name}.pid"),
            ]
            for name in WORKERS
        }  # fmt: skip

    def settings(self, metadata_url: str) -> dict[str, str]:
        """Return Airflow's settings for it.

        :param metadata_url: where results are kept.
        """
        return {
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
            "AIRFLOW__CELERY__BROKER_URL": self.url,
            "AIRFLOW__CELERY__RESULT_BACKEND": f"db+{metadata_url}",
            "AIRFLOW__CELERY__WORKER_PREFETCH_MULTIPLIER": "1",
            "AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__VISIBILITY_TIMEOUT": str(VISIBILITY_TIMEOUT_S),
        }
