"""The pages in this process, over databases of every kind, asked as Airflow's users.

Everything is real: the app behind its gate, Airflow's auth manager with its tokens, the ledger. Only the network is not.
"""

from __future__ import annotations

import html
import re
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from airflow_guard.hooks.ledger import ledger_to_look_at
from airflow_guard.pages.access import Gate
from airflow_guard.pages.app import MAX_CONNECTIONS, ungated_app
from airflow_guard.pages.forms.sealing import Tokens
from airflow_guard.pages.ledgers import Ledgers
from tests.contract.attempts import in_thread
from tests.ui.airflow_with_pages import PAGES
from tests.ui.auth_manager import USERS
from tests.ui.visiting import words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import httpx

    from airflow_guard.store.ledger import Ledger

LEDGER = "ledger_of_forms"
_PATIENCE_S = 30.0
SECRET = "of-forms-that-are-thrown-away"
SAME = {"sec-fetch-site": "same-origin"}
Fields = dict[str, "str | list[str]"]


@dataclass
class Site:
    """The pages, and clients that are logged in.

    :param ledger: what they show, as the tests read it.
    :param later_s: by how much the clock of the forms' tokens is ahead.
    """

    ledger: Ledger
    later_s: float = 0.0
    _clients: dict[str, TestClient] = field(default_factory=dict)

    def __post_init__(self) -> None:
        app = ungated_app()
        # A machine that is busy with other tests makes a ledger look slow, which is tested elsewhere.
        app.state.ledgers = Ledgers(
            partial(ledger_to_look_at, max_connections=MAX_CONNECTIONS), patience_s=_PATIENCE_S
        )
        app.state.tokens = lambda: Tokens(SECRET.encode(), now=lambda: time.time() + self.later_s)
        self._app = Starlette(routes=[Mount(PAGES, app=Gate(app))])

    def client(self, user: str) -> TestClient:
        """Return a client with the cookie of a user, as a browser has it."""
        if user not in self._clients:
            client = TestClient(
                self._app, base_url=f"http://testserver{PAGES}", cookies={"_token": token_of(user)}
            )
            self._clients[user] = client
        return self._clients[user]

    def browser(self, user: str = "op") -> TestClient:
        """Return a client that gets the page of an error, as browsers do; the others raise it."""
        cookies = {"_token": token_of(user)}
        return TestClient(
            self._app, base_url=f"http://testserver{PAGES}", cookies=cookies, raise_server_exceptions=False
        )

    def get(self, path: str, user: str = "op", *, status: int = 200) -> str:
        """Return a page."""
        answer = patiently(lambda: self.client(user).get(path))
        assert answer.status_code == status, (path, answer.status_code, words(answer.text))
        return answer.text

    def post(
        self, path: str, fields: Mapping[str, Any], user: str = "op", *, status: int = 200, **more: Any
    ) -> str:
        """Send a form and return the page that answers."""
        answer = self.send(path, fields, user, **more)
        assert answer.status_code == status, (path, answer.status_code, words(answer.text))
        return answer.text

    def send(
        self,
        path: str,
        fields: Mapping[str, Any],
        user: str = "op",
        *,
        files: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Send a form as a browser does, and follow where it leads."""
        sent = SAME if headers is None else headers
        return patiently(
            lambda: self.client(user).post(path, data=dict(fields), files=files, headers=dict(sent))
        )

    def twice(self, path: str, fields: Mapping[str, Any], user: str = "op") -> list[httpx.Response]:
        """Send a form twice at the same moment: a double click."""
        clients = [
            TestClient(self._app, base_url=f"http://testserver{PAGES}", cookies={"_token": token_of(user)})
            for _ in range(2)
        ]
        waits = [in_thread(partial(client.post, path, data=dict(fields), headers=SAME)) for client in clients]
        return [wait() for wait in waits]

    def preview(
        self,
        opened: str,
        filled: Mapping[str, Any],
        user: str = "op",
        *,
        files: Mapping[str, Any] | None = None,
    ) -> tuple[str, Fields]:
        """Open a form, fill it in, and return its preview and what the confirmation would send.

        :param opened: the address of the form, with its query.
        """
        path = opened.partition("?")[0]
        page = self.post(path, {**hidden(self.get(opened, user)), **filled}, user, files=files)
        assert "Nothing is changed yet" in words(page)
        return page, hidden(page)


def patiently(ask: Callable[[], httpx.Response]) -> httpx.Response:
    """Return an answer; while the database ends reads that take too long, ask again."""
    for _ in range(20):
        answer = ask()
        if "does not answer in time" not in answer.text:
            break
    return answer


def token_of(user: str) -> str:
    """Return a token of a user, as Airflow's login gives it."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    return str(get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=user, role=USERS[user])))


def hidden(page: str) -> Fields:
    """Return the hidden fields of a page's form that is sent, several of one name as a list."""
    (form,) = re.findall(r'<form class="form".*?</form>', page, flags=re.DOTALL)
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', form):
        found.setdefault(name, []).append(html.unescape(value))
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


def events(ledger: Ledger, kind: str) -> Sequence[Any]:
    """Return the entries of the audit of one kind, oldest first."""
    import sqlalchemy as sa

    event = ledger.database.tables.event
    with ledger.database.engine.connect() as connection:
        return connection.execute(sa.select(event).where(event.c.kind == kind).order_by(event.c.id)).all()
