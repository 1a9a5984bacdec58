"""A TCP proxy before a database, to be cut and restored."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Self

import sqlalchemy as sa

from demo.waiting import QUIET_S

if TYPE_CHECKING:
    from types import TracebackType


class Proxy:
    """Passes connections on to a database until it is cut. Use as a context manager.

    :param url: of the database behind it: over TCP, or over a Unix socket (``host`` in the query).
    """

    def __init__(self, url: str) -> None:
        self._url = sa.make_url(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._changed = threading.Condition()
        self._open: set[socket.socket] = set()
        self._down = False
        self._refused = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        self._drop()

    @property
    def url(self) -> str:
        """The URL of the same database through the proxy."""
        host, port = self._listener.getsockname()
        query = {name: value for name, value in self._url.query.items() if name not in ("host", "port")}
        return self._url.set(host=host, port=port, query=query).render_as_string(hide_password=False)

    def cut(self) -> None:
        """Break all connections, and refuse new ones from now on."""
        with self._changed:
            self._down = True
        self._drop()

    def restore(self) -> None:
        """Pass connections on again."""
        with self._changed:
            self._down = False

    def wait_for_refusals(self, count: int, timeout_s: float = QUIET_S) -> None:
        """Return when so many connections were refused since it was made."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._refused >= count, timeout_s):
                raise TimeoutError(f"{self._refused} of {count} connections were tried")

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed at the end
            while True:
                client, _ = self._listener.accept()
                with self._changed:
                    down = self._down
                    self._refused += down
                    self._changed.notify_all()
                if down:
                    client.close()
                else:
                    self._pass_on(client)

    def _pass_on(self, client: socket.socket) -> None:
        server = self._connect()
        with self._changed:
            self._open |= {client, server}
        for source, target in ((client, server), (server, client)):
            threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

    def _connect(self) -> socket.socket:
        folder = self._url.query.get("host")
        if isinstance(folder, str) and folder.startswith("/"):
            server = socket.socket(socket.AF_UNIX)
            server.connect(f"{folder}/.s.PGSQL.{self._url.query.get('port', 5432)}")
            return server
        return socket.create_connection((self._url.host or "127.0.0.1", self._url.port or 5432))

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        self._close(source)
        self._close(target)

    def _drop(self) -> None:
        with self._changed:
            dropped, self._open = self._open, set()
        for each in dropped:
            self._close(each)

    def _close(self, each: socket.socket) -> None:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
