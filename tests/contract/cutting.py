"""A proxy that cuts the connection to a database before, during or after a COMMIT, or holds the COMMIT back."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from typing import TYPE_CHECKING, Literal, Self

import sqlalchemy as sa

if TYPE_CHECKING:
    from types import TracebackType

When = Literal["before", "during", "after", "held"]
_COMMIT = re.compile(rb"(?<!AUTO)COMMIT(?!TED)")
PATIENCE_S = 60.0


class Proxy:
    """Passes everything on, and cuts at the next COMMIT when told to.

    ``before``: the server never gets it, and sees the connection end. ``during``: it gets it, and nobody waits for
    its answer. ``after``: it has answered, and the answer is lost. ``held``: the client is cut off, and the server
    gets the COMMIT when the test lets it go.

    :param url: of the database, over TCP or a Unix socket.
    """

    def __init__(self, url: str | sa.URL) -> None:
        self._url = sa.make_url(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._armed: When | None = None
        self._cut = threading.Event()
        self._let_go = threading.Event()
        self._landed = threading.Event()
        self._clients: list[socket.socket] = []
        self._servers: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._let_go.set()
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

    def was_cut(self) -> bool:
        """Return whether the COMMIT came and was cut."""
        return self._cut.wait(PATIENCE_S)

    def let_go(self) -> None:
        """Let a held COMMIT reach the server; return when it has answered."""
        self._let_go.set()
        assert self._landed.wait(PATIENCE_S)

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
            server = self._connect()
            self._clients.append(client)
            self._servers.append(server)
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
                when = self._armed
                if when is None or not _COMMIT.search(data):
                    server.sendall(data)
                    continue
                self._armed = None
                self._cut_at(when, data, client, server, swallow)
                return
        # The client has gone: the server sees it go, unless it holds a commit for it.
        _close(server)

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
