"""A real mail server and a real web server that keep what they were sent, and a notifier for each."""

from __future__ import annotations

import email
import json
import socket
import threading
from dataclasses import dataclass, field
from email import policy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

from aiosmtpd.controller import Controller
from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk import BaseNotifier

if TYPE_CHECKING:
    from collections.abc import Sequence
    from email.message import EmailMessage
    from typing import Self


@dataclass
class MailServer:
    """An SMTP server on a free port.

    :param refuse: answer of the server to every message instead of taking it.
    """

    refuse: str | None = None
    messages: list[EmailMessage] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._controller = _OnAFreePort(self)
        self._controller.start()
        return self

    def __exit__(self, *ignored: object) -> None:
        self._controller.stop()

    @property
    def port(self) -> int:
        return int(self._controller.port)

    @property
    def connection(self) -> str:
        """The value of an ``AIRFLOW_CONN_…`` variable."""
        extra = {"disable_ssl": True, "disable_tls": True, "retry_limit": 1, "timeout": 5}
        given = {"conn_type": "smtp", "host": "127.0.0.1", "port": self.port, "extra": extra}
        return json.dumps(given)

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's name
        if self.refuse:
            return self.refuse
        self.messages.append(email.message_from_bytes(envelope.content, policy=policy.default))
        return "250 OK"

    def subjects(self) -> list[str]:
        return [str(message["Subject"]) for message in self.messages]

    def body(self, number: int = -1) -> str:
        part = self.messages[number].get_body(("html",))
        assert part is not None
        return str(part.get_content())


class _OnAFreePort(Controller):
    def __init__(self, handler: Any) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        super().__init__(handler, hostname="127.0.0.1", port=self.socket.getsockname()[1])

    def _create_server(self) -> Any:
        return self.loop.create_server(self._factory_invoker, sock=self.socket)


class Webhook:
    """A web server on a free port that keeps what is posted to it, as a chat does."""

    def __init__(self) -> None:
        posted: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                posted.append(json.loads(body)["text"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self.posted = posted
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/hook"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class ChatNotifier(BaseNotifier):
    """Posts a text to a web address, as the notifiers of chats do."""

    template_fields: Sequence[str] = ("text",)

    def __init__(self, url: str, text: str = "{{ alert.text }}", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.url = url
        self.text = text

    def notify(self, context: Any) -> None:
        data = json.dumps({"text": self.text}).encode()
        with urlopen(Request(self.url, data, {"Content-Type": "application/json"}), timeout=5):
            pass


def mail() -> SmtpNotifier:
    """Airflow's own notifier, with nothing but addresses."""
    return SmtpNotifier(from_email="airflow@example.com", to="oncall@example.com")
