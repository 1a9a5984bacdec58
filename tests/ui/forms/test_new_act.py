"""The act that CONTRIBUTING.md shows is one file: with it there are a form, an entry among the changes and a command."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

import airflow_guard.acts
from airflow_guard.acts.registry import acts
from airflow_guard.commands import main as front
from airflow_guard.store.ledger import Ledger
from tests.databases import databases
from tests.docs.pages import page
from tests.ui.auth_manager import LIMITED
from tests.ui.forms.site import LEDGER, Site, events
from tests.ui.visiting import words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.databases import DatabaseUnderTest

# What is alike for all acts is tried with theirs on every database; here that a new one has it.
pytestmark = databases("sqlite")
REMARK = f"/forms/remark?ledger={LEDGER}"
FILLED = {"dag": "payments", "reason": "moved to the new bank"}
Told = list[tuple[str, str, str]]


@pytest.fixture
def remark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The act of the page, as a module of the folder."""
    (block,) = [fence for fence in page("CONTRIBUTING.md").fences if fence.language == "python"]
    (tmp_path / "remark.py").write_text(block.text)
    monkeypatch.setattr(airflow_guard.acts, "__path__", [*airflow_guard.acts.__path__, str(tmp_path)])
    acts.cache_clear()
    (act,) = [each for each in acts() if each.path == "remark"]
    monkeypatch.setattr(front, "COMMANDS", (*front.COMMANDS, act.command))
    yield act
    acts.cache_clear()
    del sys.modules["airflow_guard.acts.remark"], airflow_guard.acts.remark  # type: ignore[attr-defined]


@pytest.fixture
def told(site: Site) -> Callable[[], Told]:
    return lambda: [(each.key_text, each.actor, each.reason) for each in events(site.ledger, "remark")]


def test_its_form_is_listed_previewed_and_confirmed_once(
    remark: Any, site: Site, told: Callable[[], Told]
) -> None:
    site = Site(site.ledger)
    assert "Leave a remark" in words(site.get("/changes"))
    shown, confirmation = site.preview(REMARK, FILLED)
    assert "payments has 0 remarks." in words(shown)
    assert told() == [], "a preview writes nothing"
    for _ in range(2):
        assert "The remark on payments is recorded." in words(site.post("/forms/remark", confirmation))
    assert told() == [("payments", "op", FILLED["reason"])], "a second click changes nothing"


def test_its_form_refuses_who_may_not_and_shows_what_has_changed(
    remark: Any, site: Site, told: Callable[[], Told]
) -> None:
    site = Site(site.ledger)
    _, first = site.preview(REMARK, FILLED)
    _, second = site.preview(REMARK, {**FILLED, "reason": "and back"}, "admin")
    site.post("/forms/remark", {**first, "dag": "balance_letters"}, status=403)
    site.post("/forms/remark", first)
    assert "payments has 1 remarks." in words(site.post("/forms/remark", second, "admin", status=409))
    with pytest.raises(AssertionError, match="404"):
        site.preview(REMARK, FILLED, LIMITED)
    assert told() == [("payments", "op", FILLED["reason"])]


def test_its_command_has_a_dry_run_formats_and_exit_codes(
    remark: Any,
    database: DatabaseUnderTest,
    site: Site,
    told: Callable[[], Told],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = front.main(["remark", "payments", "--actor", "ada", "--ledger", database.url, *arguments])
        said = capsys.readouterr()
        return code, f"{said.out}{said.err}"

    assert run() == (
        1,
        "ResolutionError: A reason is missing: say why, for the person who reads the ledger next year.\n",
    )
    code, out = run("--reason", "moved", "--dry-run", "-o", "json")
    assert (code, json.loads(out)) == (0, {"dag": "payments", "dry_run": True})
    assert told() == []
    assert run("--reason", "moved") == (0, "The remark on payments is recorded.\n")
    assert told() == [("payments", "ada", "moved")]
    assert isinstance(site.ledger, Ledger)
