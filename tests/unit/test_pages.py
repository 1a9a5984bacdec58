"""The parts of the pages that need no Airflow."""

from __future__ import annotations

import ast
import doctest
import subprocess
import sys
import threading
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from starlette.requests import Request

from airflow_guard.core.checks import CheckOutcome
from airflow_guard.core.errors import ConfigurationError, LedgerUnavailable, ResolutionError
from airflow_guard.pages import charts, wording
from airflow_guard.pages.airflow_plugin import LazyApp
from airflow_guard.pages.forms.posted import is_same_origin
from airflow_guard.pages.forms.sealing import LASTS_S, TokenRefused, Tokens
from airflow_guard.pages.ledgers import AT_ONCE, Ledgers, LedgerTrouble
from airflow_guard.reading.check_records import VariancePoint, VolumePoint
from airflow_guard.reading.key_records import TimelineEntry

DAY = date(2026, 1, 30)


def test_airflow_imports_the_plugin_without_anything_heavy() -> None:
    code = (
        "import sys; import airflow.plugins_manager; before = set(sys.modules); "
        "import airflow_guard.pages.airflow_plugin; print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    new = ast.literal_eval(done.stdout.strip().splitlines()[-1])
    assert [name for name in new if not name.startswith("airflow_guard")] == []
    assert {"airflow_guard.pages.airflow_plugin"} <= set(new)
    assert not [name for name in new if name.startswith(("airflow_guard.store", "airflow_guard.hooks"))]


def test_the_examples_of_the_words_are_right() -> None:
    assert doctest.testmod(wording).failed == 0


def test_an_instant_is_utc_and_marked_for_the_users_zone() -> None:
    at = datetime(2026, 1, 30, 22, 5, 7, tzinfo=UTC)
    assert wording.instant(at) == (
        '<time datetime="2026-01-30T22:05:07Z" data-instant>2026-01-30 22:05:07 UTC</time>'
    )
    assert wording.instant(None) == wording.NOTHING


# --- an app that is built late --------------------------------------------------------------------------


def answers(app: LazyApp) -> list[dict[str, Any]]:
    import asyncio

    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    asyncio.run(app({"type": "http", "path": "/"}, receive, send))
    return sent


def test_an_app_that_cannot_be_built_says_so_and_is_tried_again() -> None:
    app = LazyApp("airflow_guard.no_such_module:build")
    for _ in range(2):
        start, body = answers(app)
        assert start["status"] == 503
        assert b"could not start" in body["body"]


# --- asking ledgers -------------------------------------------------------------------------------------


def test_a_ledger_that_hangs_is_given_up_and_the_others_answer() -> None:
    release = threading.Event()

    def question(name: Any) -> str:
        if name == "hangs":
            release.wait(60)
        if name == "down":
            raise LedgerUnavailable("host db7, user x")
        return f"answer of {name}"

    ledgers = Ledgers(lambda name: name, patience_s=0.2)  # type: ignore[arg-type,return-value]
    try:
        found = ledgers.ask_all(["hangs", "works", "down"], question)
        assert found["works"] == "answer of works"
        assert isinstance(found["hangs"], LedgerTrouble)
        assert "does not answer in time" in found["hangs"].title
        assert isinstance(found["down"], LedgerTrouble)
        assert "db7" not in str(found["down"])
        # No more than so many wait for it; the next is told at once, and starts no thread.
        for _ in range(AT_ONCE + 3):
            with pytest.raises(LedgerTrouble):
                ledgers.ask("hangs", question)
        hanging = [each for each in threading.enumerate() if each.name == "guard-page-hangs"]
        assert len(hanging) == AT_ONCE
    finally:
        release.set()


def test_what_a_change_refuses_is_no_trouble_of_the_ledger() -> None:
    def refuse(_: Any) -> None:
        raise ResolutionError("settled already")

    ledgers = Ledgers(lambda name: name, patience_s=5)  # type: ignore[arg-type,return-value]
    with pytest.raises(ResolutionError, match="settled already"):
        ledgers.ask("one", refuse)


# --- what a form carries --------------------------------------------------------------------------------


def test_a_token_is_for_one_user_form_and_version_and_a_while() -> None:
    now = [1000.0]
    tokens = Tokens(b"secret", now=lambda: now[0])
    token = tokens.issue("ada", "resolve", "v1")
    tokens.check(token, "ada", "resolve", "v1")
    for other in (
        ("bob", "resolve", "v1"),
        ("ada", "purge", "v1"),
        ("ada", "resolve", "v2"),
        ("adaresolve", "", "v1"),
    ):
        with pytest.raises(TokenRefused):
            tokens.check(token, *other)
    for forged in ("", "x", "1.2.3", token[:-1], "9999999999" + token[token.index(".") :], "\u00e9" * 40):
        with pytest.raises(TokenRefused):
            tokens.check(forged, "ada", "resolve", "v1")
    with pytest.raises(TokenRefused):
        Tokens(b"another secret", now=lambda: now[0]).check(token, "ada", "resolve", "v1")
    now[0] += LASTS_S + 1
    with pytest.raises(TokenRefused):
        tokens.check(token, "ada", "resolve", "v1")


def test_without_a_secret_there_are_no_forms() -> None:
    with pytest.raises(ConfigurationError, match="secret_key"):
        Tokens(b"")


@pytest.mark.parametrize(
    ("headers", "same"),
    [
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "cross-site", "origin": "http://airflow.example"}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"origin": "https://airflow.example"}, True),
        ({"origin": "https://airflow.example.evil"}, False),
        ({"origin": "https://evil@airflow.example"}, False),
        ({"origin": "null"}, False),
        ({"referer": "https://airflow.example/"}, False),
        ({}, False),
    ],
)
def test_only_a_page_of_this_origin_may_change_anything(headers: dict[str, str], same: bool) -> None:
    pairs = [
        (name.encode(), value.encode()) for name, value in {"host": "airflow.example", **headers}.items()
    ]
    request = Request({"type": "http", "method": "POST", "path": "/", "headers": pairs})
    assert is_same_origin(request) is same


# --- charts and the life of a key -----------------------------------------------------------------------


def test_a_chart_escapes_what_it_shows_and_draws_both_signs() -> None:
    def point(day: int, variance: str, currency: str = "<svg onload=alert(1)>") -> VariancePoint:
        amounts = (Decimal(10), Decimal(10) + Decimal(variance), Decimal(variance))
        return VariancePoint(
            DAY.replace(day=day),
            "dag",
            "dag",
            "check",
            "",
            {"currency": currency},
            "amount",
            *amounts,
            CheckOutcome.BROKEN,
        )

    points = [
        point(1, "0"),
        point(2, "1.50"),
        point(3, "-3.00"),
        point(3, "0", "EUR"),
        point(3, "9.99", "CHF"),
    ]
    drawn = charts.variances(points, at_most=5)
    assert [chart.title.partition(")")[0] for chart in drawn] == [
        "Variance of amount (currency CHF",
        "Variance of amount (currency <svg onload=alert(1",
    ]
    svg = drawn[1].svg
    assert svg.count("<rect") == 3
    assert svg.count("<svg") == 1
    assert "2026-01-03: -3.00" in svg
    assert "2026-01-02: +1.50" in svg
    assert "style=" not in svg
    assert len(charts.variances(points, at_most=1)) == 1


def test_volume_is_added_up_over_dags() -> None:
    points = [VolumePoint(DAY.replace(day=day), dag, 1000, 1, 0, 0) for day in (1, 2) for dag in ("a", "b")]
    chart = charts.volume(points)
    assert chart is not None
    assert "2026-01-01: 2,000 documents" in chart.svg
    assert charts.volume(points[:2]) is None


@pytest.mark.parametrize(
    ("kind", "to_state", "drawn"),
    [
        ("resolve_happened", "completed", "person"),
        ("doubt", "in_doubt", "bad"),
        ("finished", "completed", "good"),
        ("asked_again", None, "held"),
        ("claimed", None, ""),
        ("something new", None, ""),
    ],
)
def test_a_moment_of_a_life_has_words_and_a_look(kind: str, to_state: str | None, drawn: str) -> None:
    entry = TimelineEntry(datetime.now(UTC), kind, to_state=to_state)
    assert wording.kind_of(entry) == drawn
    assert wording.words(entry)
    assert "_" not in wording.words(entry)
