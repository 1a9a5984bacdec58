"""The receiver of the demo's notifications: a small HTTP server that counts calls.

It stands for the mail gateway of a bank. It never refuses a repetition, although a good receiver would:
it is the referee, and has to see a second call if there is one. With ``--remembers`` it is a good one: a call whose
key it knows is answered as the first was, and not journaled. With ``--loses-answers N`` every Nth call is journaled,
and its answer does not come. Run it with ``python -m demo.receiver --journal FILE``, or from Python as
:class:`Receiver`.

=====================  ======================================================================
``POST /notify``       header ``Idempotency-Key``, JSON with ``statement_no``: writes the call
                       to the journal, then answers ``{"id": …}``
``GET /notified?key=`` ``{"notified": …, "calls": …}`` for a key
``GET /calls``         ``{"total": …, "by_key": {…}, "by_statement": {…}}``
``POST /hold``         ``{"statement_no": …, "point": "before" | "after"}``: such calls hang before or
                       after the journal is written
``GET /held``          ``{"held": [statement_no, …]}``: the calls that hang now
``POST /release``      lets them go on; with ``{"deliver": false}`` they end there, as if the network
                       had lost the call (before) or the answer (after)
=====================  ======================================================================
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import parse_qs, quote, urlsplit

from airflow_guard.core.errors import GuardError
from demo.journal import Calls, Journal, read_journal
from demo.offspring import python_path
from demo.waiting import QUIET_S, wait

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

__all__ = ["Calls", "Manners", "Receiver", "ReceiverClient", "ReceiverError", "read_journal"]

Point = Literal["before", "after"]

_LOOPBACK = "127.0.0.1"
_READY = "receiver ready at "
_LARGEST_BODY = 4_000_000


class ReceiverError(GuardError):
    """The receiver did not start, or refused a call; the message says why. A retry does not help."""


class _Holds:
    """Which calls hang where, and which hang now."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._wanted: set[tuple[str, Point]] = set()
        self._hanging: dict[int, str] = {}
        self._outcomes: dict[int, bool] = {}
        self._next = 0

    def hold(self, statement_no: str, point: Point) -> None:
        with self._changed:
            self._wanted.add((statement_no, point))

    def release(self, *, deliver: bool) -> None:
        with self._changed:
            self._wanted.clear()
            self._outcomes.update(dict.fromkeys(self._hanging, deliver))
            self._hanging.clear()
            self._changed.notify_all()

    def hanging(self) -> list[str]:
        with self._changed:
            return list(self._hanging.values())

    def passes(self, statement_no: str, point: Point) -> bool:
        """Hang here if that is wanted; whether the call goes on afterwards."""
        with self._changed:
            if (statement_no, point) not in self._wanted:
                return True
            self._next += 1
            call = self._next
            self._hanging[call] = statement_no
            self._changed.wait_for(lambda: call in self._outcomes)
            return self._outcomes.pop(call)


@dataclass(frozen=True, slots=True)
class Manners:
    """How a receiver treats its callers.

    :param remembers: a repeated key is answered as before, and is no call.
    :param loses_answers: every so many calls the answer does not come, although the work is done; 0: never.
    :param silence_s: how long such a caller is left waiting before the connection ends.
    """

    remembers: bool = False
    loses_answers: int = 0
    silence_s: float = 5.0


class _Server(ThreadingHTTPServer):
    daemon_threads = True  # A call that hangs must not keep the process alive.
    request_queue_size = 64

    def __init__(self, port: int, journal: Journal, manners: Manners) -> None:
        super().__init__((_LOOPBACK, port), _Handler)
        self.journal = journal
        self.manners = manners
        self.holds = _Holds()


class _BadRequestError(Exception):
    """What the caller sent cannot be used."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        calls = self.server.journal.calls()
        if url.path == "/calls":
            self._answer({"total": calls.total, "by_key": calls.by_key, "by_statement": calls.by_statement})
        elif url.path == "/notified":
            count = calls.by_key.get("".join(parse_qs(url.query).get("key", [])), 0)
            self._answer({"notified": count > 0, "calls": count})
        elif url.path == "/held":
            self._answer({"held": self.server.holds.hanging()})
        else:
            self._answer({"error": f"there is nothing at {url.path}"}, status=404)

    def do_POST(self) -> None:
        actions = {"/notify": self._notify, "/hold": self._hold, "/release": self._release}
        action = actions.get(self.path)
        if action is None:
            self._answer({"error": f"there is nothing at {self.path}"}, status=404)
            return
        try:
            answer = action(self._body())
        except _BadRequestError as error:
            self._answer({"error": str(error)}, status=400)
            return
        if answer is not None:
            self._answer(answer)

    def log_message(self, *arguments: object) -> None:
        """Say nothing: the journal is the log."""

    def _notify(self, body: dict[str, Any]) -> dict[str, Any] | None:
        key = self.headers.get("Idempotency-Key", "").strip()
        if not key:
            raise _BadRequestError("the header Idempotency-Key is missing")
        statement_no = _text(body, "statement_no")
        if not self.server.holds.passes(statement_no, "before"):
            return None
        manners = self.server.manners
        number = self.server.journal.append(key, statement_no, once=manners.remembers)
        if number is None:
            return {"id": f"notification-{key}"}
        if manners.loses_answers and number % manners.loses_answers == 0:
            time.sleep(manners.silence_s)
            self.close_connection = True
            return None
        if not self.server.holds.passes(statement_no, "after"):
            return None
        return {"id": f"notification-{key if manners.remembers else format(number, '06d')}"}

    def _hold(self, body: dict[str, Any]) -> dict[str, Any]:
        point = _text(body, "point")
        if point not in ("before", "after"):
            raise _BadRequestError(f'point is "before" or "after", not {point!r}')
        self.server.holds.hold(_text(body, "statement_no"), "before" if point == "before" else "after")
        return {"hold": True}

    def _release(self, body: dict[str, Any]) -> dict[str, Any]:
        self.server.holds.release(deliver=body.get("deliver", True) is not False)
        return {"hold": False}

    def _body(self) -> dict[str, Any]:
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 <= length <= _LARGEST_BODY:
            raise _BadRequestError(f"a body has at most {_LARGEST_BODY} bytes")
        try:
            body = json.loads(self.rfile.read(length) or b"{}")
        except ValueError as error:
            raise _BadRequestError(f"the body is not JSON: {error}") from error
        if not isinstance(body, dict):
            raise _BadRequestError("the body is not a JSON object")
        return body

    def _answer(self, answer: dict[str, Any], *, status: int = 200) -> None:
        body = json.dumps(answer).encode("ascii")
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:
            # The caller was killed meanwhile, which is what the demo does to it.
            self.close_connection = True


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise _BadRequestError(f"the body has no {name}")
    return value


class ReceiverClient:
    """Talks to a receiver.

    :param address: as the receiver prints it, ``http://127.0.0.1:PORT``.
    :param timeout_s: seconds that an answer may take. A call that timed out may have arrived.
    """

    def __init__(self, address: str, *, timeout_s: float = 60) -> None:
        self.address = address
        self._timeout_s = timeout_s

    def notify(self, payload: Mapping[str, Any], idempotency_key: str) -> str:
        """Notify the customer of one statement; returns the receiver's id of the notification.

        :param payload: JSON-able, with ``statement_no``.
        :param idempotency_key: what ``notified`` is asked with afterwards.
        :raises ReceiverError: the receiver refused the call; it was not counted.
        :raises OSError: the connection failed or the answer did not come: it may have been counted.
        """
        return str(self._call("POST", "/notify", payload, {"Idempotency-Key": idempotency_key})["id"])

    def notified(self, idempotency_key: str) -> bool:
        """Whether a call with this key has arrived."""
        return bool(self._call("GET", f"/notified?key={quote(idempotency_key, safe='')}")["notified"])

    def calls(self) -> Calls:
        """Count what has arrived."""
        return Calls(**self._call("GET", "/calls"))

    def hold(self, statement_no: str, point: Point) -> None:
        """Let the calls for a statement hang, before or after they are counted, until :meth:`release`."""
        self._call("POST", "/hold", {"statement_no": statement_no, "point": point})

    def release(self, *, deliver: bool = True) -> None:
        """Hold nothing any more, and end what hangs.

        :param deliver: whether the calls that hang go on; if not, the call or its answer is lost.
        """
        self._call("POST", "/release", {"deliver": deliver})

    def held(self) -> list[str]:
        """Return the statement numbers of the calls that hang now."""
        return list(self._call("GET", "/held")["held"])

    def wait_until_held(
        self, statement_no: str, signs: Callable[[], object] = lambda: None, *, quiet_s: float = QUIET_S
    ) -> None:
        """Wait until a call for this statement hangs.

        :param signs: what moves besides what arrives here, see :class:`~demo.waiting.Patience`.
        :raises NothingMoves: none does.
        """
        wait(
            lambda: statement_no in self.held(),
            f"a call for {statement_no} to reach the receiver",
            lambda: (self.calls().total, signs()),
            every_s=0.02,
            quiet_s=quiet_s,
        )

    def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        # Not urllib: it would send the call through a proxy that the environment names.
        connection = HTTPConnection(urlsplit(self.address).netloc, timeout=self._timeout_s)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            answer: dict[str, Any] = json.loads(response.read())
        except (HTTPException, ValueError) as error:
            raise ConnectionError(f"{self.address} did not finish its answer to {path}") from error
        finally:
            connection.close()
        if response.status != 200:
            raise ReceiverError(f"{method} {path} was refused: {answer.get('error', response.status)}")
        return answer


class Receiver(ReceiverClient):
    """A receiver as a process of its own, which ends with this one, even if this one is killed.

    :param journal: file of the calls; an existing one is continued.
    :param port: 0 takes a free one.
    :param timeout_s: as for :class:`ReceiverClient`.
    :param manners: how it treats its callers; default: it answers each, and counts repetitions.
    :raises ReceiverError: it did not start, for example because the port is taken.
    """

    def __init__(
        self, journal: Path, *, port: int = 0, timeout_s: float = 60, manners: Manners | None = None
    ) -> None:
        self.journal = journal
        manners = manners or Manners()
        options = ["--port", str(port), "--journal", str(journal), "--with-parent"]
        options += ["--loses-answers", str(manners.loses_answers), "--silence", str(manners.silence_s)]
        options += ["--remembers"] if manners.remembers else []
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "demo.receiver", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": python_path()},
        )
        first_line = self._process.stdout.readline().strip() if self._process.stdout else ""
        if not first_line.startswith(_READY):
            self._process.communicate()
            raise ReceiverError(f"the receiver ended with exit code {self._process.returncode} at its start")
        super().__init__(first_line.removeprefix(_READY), timeout_s=timeout_s)

    def stop(self) -> None:
        """End the process; the journal stays. Once more does nothing."""
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
        with self._process:  # Closes the pipes and waits.
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _end_with_parent() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Run a receiver until it is told to end."""
    parser = argparse.ArgumentParser(prog="python -m demo.receiver", description=main.__doc__)
    parser.add_argument("--port", type=int, default=0, help="0, the default, takes a free one")
    parser.add_argument(
        "--journal", type=Path, required=True, help="file of the calls; continued if it exists"
    )
    parser.add_argument("--with-parent", action="store_true", help="end when standard input closes")
    parser.add_argument("--remembers", action="store_true", help="a repeated key is answered as before")
    parser.add_argument(
        "--loses-answers", type=int, default=0, metavar="N", help="every Nth call gets no answer"
    )
    parser.add_argument(
        "--silence", type=float, default=5.0, metavar="SECONDS", help="how long such a call waits"
    )
    arguments = parser.parse_args()
    manners = Manners(arguments.remembers, arguments.loses_answers, arguments.silence)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    with _Server(arguments.port, Journal(arguments.journal), manners) as server:
        if arguments.with_parent:
            threading.Thread(target=_end_with_parent, daemon=True).start()
        print(f"{_READY}http://{_LOOPBACK}:{server.server_address[1]}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
