"""Who gets in: nobody without a user of Airflow, to no route, by no method; and nobody to more than its DAGs.

Cases C37, C38 and R19.
"""

from __future__ import annotations

import csv
import io
import re
import sys
import time
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import httpx
import jwt
import pytest
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from airflow_guard.pages.access import Gate
from airflow_guard.pages.app import ungated_app
from demo.waiting import QUIET_S
from tests.ui.auth_manager import LIMITED, NO_DAGS, NO_PLUGINS, ONE_DAG
from tests.ui.books import HOSTILE_DOCUMENTS
from tests.ui.visiting import links, visit, words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.ui.conftest import World

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
KNOWN = (
    "bank_statements",
    "balance_letters",
    "payments",
    "core_banking",
    "letter-",
    "E2E-",
    "notify_customer",
)
OTHERS = (
    "",
    "docs",
    "redoc",
    "openapi.json",
    "static/guard.css",
    "static/nothing",
    "no/such/page",
    "static/../app.py",
)


def paths(routes: Iterable[Any], prefix: str = "") -> list[str]:
    """Return every path of an app, also those of apps that are mounted in it."""
    found: list[str] = []
    for route in routes:
        if isinstance(route, Mount):
            found += [f"{prefix}{route.path}", *paths(route.routes or (), f"{prefix}{route.path}")]
        else:
            found.append(f"{prefix}{route.path}")
    return found


class Tags(HTMLParser):
    """What a browser makes of a page: its tags and their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))


EVERYTHING = sorted({path.removeprefix("/") for path in paths(ungated_app().routes)} | set(OTHERS))


def test_the_walk_finds_pages_forms_files_and_downloads() -> None:
    assert {"", "day", "key", "breaks", "static", "csv/keys", "tab/task_instance", "forms/resolve"} <= set(
        EVERYTHING
    )


@pytest.fixture(scope="module")
def expired(world: World) -> str:
    """A token of the administrator that was good until a moment ago."""
    good = world.airflow.token("admin")
    claims = jwt.decode(good, options={"verify_signature": False})
    claims |= {"iat": int(time.time()) - 900, "nbf": int(time.time()) - 900, "exp": int(time.time()) - 600}
    secret = world.airflow.stack.environment["AIRFLOW__API_AUTH__JWT_SECRET"]
    header = jwt.get_unverified_header(good)
    return jwt.encode(claims, secret, algorithm=header["alg"], headers=header)


@pytest.mark.parametrize(
    "how", ["nobody", "garbage", "garbage header", "expired", "expired header", "forged"]
)
def test_c37_nobody_gets_in_without_a_user(world: World, expired: str, how: str) -> None:
    forged = jwt.encode(
        {"sub": "admin", "role": "admin", "exp": int(time.time()) + 600}, "x" * 64, algorithm="HS512"
    )
    cookies = {"garbage": "x.y.z", "expired": expired, "forged": forged}
    bearers = {"garbage header": "x.y.z", "expired header": expired}
    headers = {"authorization": f"Bearer {bearers[how]}"} if how in bearers else {}
    sent = {"cookie": f"_token={cookies[how]}"} if how in cookies else {}
    with httpx.Client(
        base_url=world.airflow.pages, headers={**headers, **sent}, timeout=QUIET_S, trust_env=False
    ) as client:
        for path in EVERYTHING:
            for method in METHODS:
                answer = client.request(method, f"/{path}")
                assert answer.status_code in (401, 403), (method, path, answer.status_code)
                assert not [name for name in KNOWN if name in answer.text], (method, path)


def test_c37_a_viewer_reads_every_page(world: World) -> None:
    with world.airflow.client("viewer") as client:
        start = visit(client, "/?ledger=core_banking")
        key = links(visit(client, "/search?q=letter-0130-011"), "/key?")[0].partition("/airflow-guard")[2]
        break_ = links(visit(client, "/breaks"), "/break?")[0].partition("/airflow-guard")[2]
        check = links(visit(client, "/checks"), "/check?")[0].partition("/airflow-guard")[2]
        cut = "dag_id=payments&run_id=manual__2026-01-29&task_id=pay"
        for path in (
            key, break_, check, "/open", "/keys", "/blocked", "/attention", "/day?dag=payments&date=2026-01-29",
            f"/tab/dag?{cut}", f"/tab/run?{cut}", f"/tab/task?{cut}", f"/tab/task_instance?{cut}&map_index={{MAP_INDEX}}",
            "/csv/keys", "/csv/open", "/csv/breaks", "/csv/blocked", "/csv/checks", "/csv/attention",
            "/static/guard.css", "/static/guard.js", "/static/appearance.js", "/static/icon.svg",
        ):  # fmt: skip
            visit(client, path)
    assert "balance_letters" in start


def test_documentation_and_schema_are_not_there_even_for_an_administrator(world: World) -> None:
    with world.airflow.client("admin") as client:
        for path in ("/docs", "/redoc", "/openapi.json", "/docs/oauth2-redirect"):
            assert client.get(path).status_code == 404


def test_c37_a_route_that_is_added_later_is_behind_the_gate_too() -> None:
    app = ungated_app()
    app.router.routes.append(Route("/later", lambda request: PlainTextResponse("secret")))
    app.mount("/mounted", PlainTextResponse("secret"))
    client = TestClient(Gate(app))
    for path in ("/later", "/mounted", "/mounted/x"):
        answer = client.get(path)
        assert answer.status_code in (401, 403)
        assert "secret" not in answer.text


def test_a_route_without_its_gate_refuses() -> None:
    client = TestClient(ungated_app())
    for path in EVERYTHING:
        if not path.startswith("static"):
            assert client.get(f"/{path}").status_code == 403, path


def test_c37_everything_is_denied_if_airflows_security_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "airflow.api_fastapi.core_api.security", None)
    client = TestClient(Gate(ungated_app()))
    for path in EVERYTHING:
        for method in METHODS:
            assert client.request(method, f"/{path}").status_code == 403, (method, path)


def test_a_websocket_is_refused() -> None:
    with (
        pytest.raises(WebSocketDisconnect) as refused,
        TestClient(Gate(ungated_app())).websocket_connect("/ws"),
    ):
        pytest.fail("it was accepted")
    assert refused.value.code == 1008


def test_r19_who_may_not_see_plugins_has_no_access_and_airflow_is_unharmed(world: World) -> None:
    with world.airflow.client(NO_PLUGINS) as client:
        answer = client.get("/")
        assert answer.status_code == 403
        assert "No access" in words(answer.text)
        assert not [name for name in KNOWN if name in answer.text]
        core = httpx.get(
            f"{world.airflow.address}/ui/config",
            cookies={"_token": world.airflow.token(NO_PLUGINS)},
            trust_env=False,
        )
        assert core.status_code == 200


def test_who_may_read_no_dag_is_told_so(world: World) -> None:
    with world.airflow.client(NO_DAGS) as client:
        assert "No access" in words(visit(client, "/"))
        assert "No key fits" in words(visit(client, "/keys"))
        assert visit(client, "/csv/keys").strip("\ufeff") == ""


def test_rows_of_other_dags_are_not_there_and_totals_do_not_tell(world: World) -> None:
    with world.airflow.client(LIMITED) as limited, world.airflow.client("admin") as admin:
        for path in ("/?ledger=core_banking", "/open", "/keys", "/breaks", "/blocked", "/checks", "/attention",
                     "/csv/keys", "/csv/breaks", "/csv/checks", "/csv/blocked", "/csv/attention"):  # fmt: skip
            page = visit(limited, path)
            for other in ("bank_statements", "payments", "hostile", "E2E-"):
                assert other not in page, (path, other)
        mine = words(visit(limited, f"/open?dag={ONE_DAG}"))
        assert words(visit(limited, "/open")).count("in doubt") == mine.count("in doubt")
        assert "1 to 4 of 4" in words(visit(limited, "/open"))
        assert "1 to 14 of 14" in words(visit(admin, "/open"))


def test_forbidden_and_missing_are_the_same(world: World) -> None:
    with world.airflow.client("admin") as admin, world.airflow.client(LIMITED) as limited:
        forbidden = {
            links(visit(admin, "/search?q=E2E-20260129-0018"), "/key?")[0]: "key=" + "0" * 32,
            links(visit(admin, "/breaks"), "/break?")[0]: "id=99999999",
            links(visit(admin, "/checks"), "/check?")[0]: "id=99999999",
            "/airflow-guard/day?dag=payments&date=2026-01-29": "dag=no_such_dag",
            "/airflow-guard/tab/run?dag_id=payments&run_id=manual__2026-01-29": "dag_id=no_such_dag",
        }
        for url, absent in forbidden.items():
            path = url.partition("/airflow-guard")[2]
            name = absent.partition("=")[0]
            missing = re.sub(rf"\b{name}=[^&]*", absent, path)
            assert visit(admin, path)
            first, second = limited.get(path), limited.get(missing)
            assert first.status_code == second.status_code == 404
            assert first.text == second.text
        assert words(visit(limited, "/search?q=E2E-20260129-0018")).startswith("Search")
        assert "0 found" in words(visit(limited, "/search?q=E2E-20260129-0018"))


def test_every_answer_has_the_headers(world: World) -> None:
    with world.airflow.client("viewer") as client, world.airflow.client(None) as nobody:
        for answer in (client.get("/"), client.get("/nothing"), client.get("/csv/keys"), client.get("/static/guard.js"),
                       nobody.get("/")):  # fmt: skip
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'self'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "same-origin"
        assert client.get("/").headers["cache-control"] == "no-store"
        assert "private" in client.get("/static/guard.js").headers["cache-control"]


def test_c38_what_the_ledger_holds_is_text_and_nothing_else(world: World) -> None:
    seen: set[str] = set()
    with world.airflow.client("admin") as client:
        lists = ["/open?dag=hostile", "/keys?dag=hostile", "/breaks?dag=hostile", "/checks?dag=hostile",
                 "/attention?dag=hostile", "/?ledger=core_banking", "/day?dag=hostile&date=2026-01-30",
                 "/tab/dag?dag_id=hostile", "/tab/task?dag_id=hostile&task_id=post"]  # fmt: skip
        pages = [visit(client, path) for path in lists]
        details = {
            each for page in pages for part in ("/key?", "/break?", "/check?") for each in links(page, part)
        }
        hostile = [each.partition("/airflow-guard")[2] for each in details]
        pages += [visit(client, path) for path in hostile]
        for document in HOSTILE_DOCUMENTS:
            pages += [
                client.get("/search", params={"q": document}).text,
                client.get("/keys", params={"dag": document, "state": document, "from": document}).text,
                client.get("/breaks", params={"group": document, "type": document, "age": document}).text,
                client.get("/", params={"ledger": document}).text,
                client.get("/day", params={"dag": document, "date": document}).text,
            ]
    for page in pages:
        parsed = Tags()
        parsed.feed(page)
        assert not {"img", "b", "i", "u", "iframe", "style"} & {tag for tag, _ in parsed.tags}
        for tag, attributes in parsed.tags:
            assert not [name for name in attributes if name.startswith("on") or name == "style"], (
                tag,
                attributes,
            )
            assert tag != "script" or attributes["src"].startswith("/airflow-guard/static/")
            for name in ("href", "src", "action"):
                address = attributes.get(name, "/")
                assert address.startswith(("/", "#")), "links lead to these pages and to Airflow"
        seen |= {document for document in HOSTILE_DOCUMENTS if document in words(page)}
    assert seen == set(HOSTILE_DOCUMENTS), "each payload was shown, as text"


def test_c38_cells_of_a_download_are_no_formulas(world: World) -> None:
    with world.airflow.client("admin") as client:
        for path in ("/csv/keys?dag=hostile", "/csv/breaks?dag=hostile", "/csv/attention?dag=hostile"):
            answer = client.get(path)
            assert answer.headers["content-type"] == "text/csv; charset=utf-8"
            assert answer.headers["content-disposition"].startswith("attachment")
            rows = list(csv.reader(io.StringIO(answer.text.removeprefix("\ufeff"))))
            assert len(rows) > 1
            cells = [cell for row in rows for cell in row]
            assert not [cell for cell in cells if cell[:1] in "=+@" and cell], path
            assert not [cell for cell in cells if cell.startswith("-") and not re.fullmatch(r"-[\d.]+", cell)]
