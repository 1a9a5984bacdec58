"""A Redis of the test session's own, on a socket in a temporary folder."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import redis


class RedisNotInstalled(Exception):
    """There is no ``redis-server``."""


class RedisServer:
    """A server that keeps nothing on disk, and ends with :meth:`close`.

    :raises RedisNotInstalled: there is none to start.
    """

    def __init__(self) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise RedisNotInstalled("redis-server is not installed (Debian: apt-get install redis-server)")
        # A short path: sockets have about a hundred characters.
        self._folder = Path(tempfile.mkdtemp(prefix="guard_redis_"))
        self.socket = str(self._folder / "redis.sock")
        self._process = subprocess.Popen(
            [program, "--port", "0", "--unixsocket", self.socket, "--save", "", "--appendonly", "no"],
            cwd=self._folder, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def client(self) -> redis.Redis:
        """Return a connection to it."""
        return redis.Redis(unix_socket_path=self.socket, decode_responses=True)

    def close(self) -> None:
        """End the server and remove its folder."""
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait(self) -> None:
        for _ in range(500):
            try:
                self.client().ping()
            except redis.exceptions.ConnectionError:
                threading.Event().wait(0.02)
            else:
                return
        raise TimeoutError("redis-server does not answer")
