"""A proxy that cuts the connection to a database around a COMMIT, holds the COMMIT back, is slow, or falls silent."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from typing import TYPE_CHECKING, Literal, Self

import sqlalchemy as sa

from demo.waiting import QUIET_S

if TYPE_CHECKING:
    from types import TracebackType

When = Literal["before", "during", "after", "held"]
_COMMIT = re.compile(rb"(?<!AUTO)COMMIT(?!TED)")
PATIENCE_S = QUIET_S


class Proxy:
    """Passes everything on, and cuts at the next COMMIT when told to.

    ``before``: the server never gets it, and sees the connection end. ``during``: it gets it, and nobody waits for
    its answer. ``after``: it has answered, and the answer is lost. ``held``: the client is cut off, and the server
    gets the COMMIT when the test lets it go.

    ``latency_s`` delays whatever passes. While :meth:`silence` lasts nothing passes and nothing ends, as if packets
    were lost: each side waits for the other.

    :param url: of the database, over TCP or a Unix socket.
    """

    latency_s = 0.0

    def __init__(self, url: str | sa.URL) -> None:
        self._url = sa.make_url(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._armed: When | None = None
        self._cut = threading.Event()
        self._let_go = threading.Event()
        self._landed = threading.Event()
        self._clients: list[socket.socket] = []
        self._servers: list[socket.socket] = []
        self._speaks = threading.Event()
        self._speaks.set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._let_go.set()
        self._speaks.set()
        for each in (self._listener, *self._clients, *self._servers):
            _close(each)

    @property
    def url(self) -> sa.URL:
        """The database's URL through this proxy."""
        url = self._url.set(host="127.0.0.1", port=self._listener.getsockname()[1])
        if url.get_backend_name() != "postgresql":
            return url
        plain = url.difference_update_query(["host", "port"])
        return plain.update_query_dict({"sslmode": "disable", "gssencmode": "disable"})

    def cut_at_commit(self, when: When) -> None:
        """Cut at the next COMMIT of any connection."""
        self._cut.clear()
        self._let_go.clear()
        self._landed.clear()
        self._armed = when

    def was_cut(self, timeout_s: float = PATIENCE_S) -> bool:
        """Return whether the COMMIT came and was cut."""
        return self._cut.wait(timeout_s)

    def let_go(self) -> None:
        """Let a held COMMIT reach the server; return when it has answered."""
        self._let_go.set()
        assert self._landed.wait(PATIENCE_S)

    def disarm(self) -> bool:
        """Cut at no COMMIT any more; return whether none had come."""
        armed, self._armed = self._armed, None
        return armed is not None

    def silence(self) -> None:
        """Let nothing pass from now on, in either direction."""
        self._speaks.clear()

    def speak(self, *, late: bool) -> None:
        """End the silence.

        :param late: what was held back arrives now; otherwise all connections end, and it is lost.
        """
        if not late:
            for each in (*self._clients, *self._servers):
                _close(each)
        self._speaks.set()

    def let_nobody_in(self) -> None:
        """Refuse new connections from now on."""
        _close(self._listener)

    def cut_clients(self) -> None:
        """Cut all clients off now; the server's side stays as it is."""
        for client in self._clients:
            _close(client)
        self._clients.clear()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = self._connect()
            except OSError:  # the database is down: so is the proxy
                _close(client)
                continue
            # A list that only grows would hold every connection of a long run.
            self._clients[:] = [each for each in self._clients if each.fileno() >= 0] + [client]
            self._servers[:] = [each for each in self._servers if each.fileno() >= 0] + [server]
            swallow = threading.Event()
            threading.Thread(target=self._to_server, args=(client, server, swallow), daemon=True).start()
            threading.Thread(target=self._to_client, args=(server, client, swallow), daemon=True).start()

    def _connect(self) -> socket.socket:
        host = self._url.query.get("host", self._url.host)
        port = self._url.query.get("port", self._url.port)
        if str(host).startswith("/"):
            server = socket.socket(socket.AF_UNIX)
            server.connect(f"{host}/.s.PGSQL.{port}")
            return server
        return socket.create_connection((str(host), int(str(port))))

    def _to_server(self, client: socket.socket, server: socket.socket, swallow: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                self._on_its_way()
                when = self._armed
                if when is None or not _COMMIT.search(data):
                    server.sendall(data)
                    continue
                self._armed = None
                self._cut_at(when, data, client, server, swallow)
                return
        # The client has gone: the server sees it go, unless it holds a commit for it.
        _close(server)

    def _on_its_way(self) -> None:
        if self.latency_s:
            time.sleep(self.latency_s)
        self._speaks.wait()

    def _cut_at(
        self, when: When, data: bytes, client: socket.socket, server: socket.socket, swallow: threading.Event
    ) -> None:
        if when == "after":
            swallow.set()
            server.sendall(data)
            return
        if when == "held":
            swallow.set()
            _close(client)
            self._cut.set()
            if self._let_go.wait(PATIENCE_S):
                server.sendall(data)
            return
        if when == "during":
            swallow.set()
            server.sendall(data)
        _close(client)
        _close(server)
        self._cut.set()

    def _to_client(self, server: socket.socket, client: socket.socket, swallow: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                self._on_its_way()
                if swallow.is_set():
                    break
                client.sendall(data)
        _close(client)
        _close(server)
        if swallow.is_set():  # else it is another connection that has ended
            self._cut.set()
            self._landed.set()


def _close(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
