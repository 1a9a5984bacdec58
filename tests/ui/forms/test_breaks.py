"""Breaks that a person explains or resolves, one or several."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard.acts.break_decisions import decide
from airflow_guard.core.checks import BreakState, CheckOutcome, FoundBreak, Progress
from airflow_guard.core.guard import TaskIdentity
from airflow_guard.core.keys import KeySpace
from airflow_guard.store.breaks import Findings
from airflow_guard.store.reconciliations import Check, Ending, Figures, Reconciliations
from tests.databases import databases
from tests.ui.auth_manager import LIMITED
from tests.ui.books import HOSTILE_DOCUMENTS, HOSTILE_REASON
from tests.ui.forms.site import LEDGER, Site, events, hidden
from tests.ui.visiting import words

if TYPE_CHECKING:
    from airflow_guard.store.ledger import Ledger

# What a form asks of the store is tested on every database there; here what is told by the database itself.
pytestmark = databases("sqlite")
OF_EACH = databases("sqlite", "postgres_embedded", "mariadb")
DAY = date(2026, 1, 30)
FOUND = FoundBreak(
    "amount_mismatch", {"currency": "EUR"}, "DE89", "amount", "100.00", "90.00", "-10.00", 1, 1
)
RULE = {"reason": "the bank charges a fee"}


def broken(ledger: Ledger, dag_id: str, count: int, *, run: str = "1", **values: str) -> list[int]:
    """Let a check find breaks; return their ids."""
    found = [replace(FOUND, document=f"DE89/{number}", **values) for number in range(count)]
    return check(ledger, dag_id, found, run)


def check(ledger: Ledger, dag_id: str, found: list[FoundBreak], run: str = "1") -> list[int]:
    where, store, at = (
        KeySpace(dag_id, "reconcile", DAY),
        Reconciliations(ledger.database),
        datetime.now(UTC),
    )
    who = TaskIdentity(dag_id, "reconcile", f"scheduled__{run}", run_type="scheduled", run_after_at=at)
    looked = Check(f"{dag_id} {run}"[:40], who, where, DAY)
    store.begin([looked])
    (state,) = store.states(looked.ti_id)
    figures = Figures(True, len(found), len(found), [], at, at, len(found), 1000)
    ending = Ending(
        CheckOutcome.BROKEN, "breaks", Progress().saw("a" * 32), settled=True, figures=figures,
        findings=Findings(found),
    )  # fmt: skip
    store.close(looked, state, ending)
    return [row.id for row in rows(ledger)]


def rows(ledger: Ledger) -> list[Any]:
    b = ledger.database.tables.breaks
    with ledger.database.engine.connect() as connection:
        return list(connection.execute(sa.select(b).order_by(b.c.id)))


def opened(ids: list[int]) -> str:
    return f"/forms/break?ledger={LEDGER}&" + "&".join(f"id={each}" for each in ids)


def states(ledger: Ledger) -> list[tuple[str, Any, Any]]:
    return [(row.state, row.actor, row.reason) for row in rows(ledger)]


def test_a_key_of_several_columns_reads_as_one(site: Site) -> None:
    (row,) = check(site.ledger, "payments", [replace(FOUND, document='["ACME <b>", "2026-01"]')])
    for path in ("/breaks", f"/break?ledger={LEDGER}&id={row}", ""):
        page = site.get(path)
        assert "ACME &lt;b&gt; / 2026-01" in page, path
        assert "[&#34;ACME" not in page, path


@pytest.mark.parametrize(("decision", "state"), [("explain", "explained"), ("resolve", "resolved")])
def test_several_breaks_are_chosen_previewed_and_settled_together(
    site: Site, decision: str, state: str
) -> None:
    ids = broken(site.ledger, "payments", 3)
    assert site.get("/breaks").count('type="checkbox"') == 3
    page, confirmation = site.preview(opened(ids), {"decision": decision, **RULE})
    assert "100.00" in words(page)
    assert {each[0] for each in states(site.ledger)} == {"open"}
    assert f"3 breaks are {state}" in words(site.post("/forms/break", confirmation))
    assert states(site.ledger) == [(state, "op", RULE["reason"])] * 3
    told = events(site.ledger, f"break_{state}")
    assert [(each.actor, each.reason) for each in told] == [("op", RULE["reason"])] * 3


@OF_EACH
def test_a_double_click_settles_once(site: Site) -> None:
    ids = broken(site.ledger, "payments", 2)
    _, confirmation = site.preview(opened(ids), {"decision": "explain", **RULE})
    assert [each.status_code for each in site.twice("/forms/break", confirmation)] == [200, 200]
    assert len(events(site.ledger, "break_explained")) == 2, "one for each break"


def test_a_break_that_grew_after_the_preview_is_not_accepted(site: Site) -> None:
    ids = broken(site.ledger, "payments", 2)
    _, confirmation = site.preview(opened(ids), {"decision": "explain", **RULE})
    broken(site.ledger, "payments", 2, run="2", target_value="0.00", variance="-100.00")
    page = site.post("/forms/break", confirmation, status=409)
    assert "has changed meanwhile" in words(page)
    assert "-100.00" in words(page), "the page says what is true now"
    assert {each[0] for each in states(site.ledger)} == {"open"}
    site.post("/forms/break", hidden(page))
    assert {each[0] for each in states(site.ledger)} == {"explained"}, "seen anew, it can be accepted"


def test_what_somebody_else_has_resolved_stays_so(site: Site) -> None:
    ids = broken(site.ledger, "payments", 2)
    _, confirmation = site.preview(opened(ids), {"decision": "explain", **RULE})
    decide(site.ledger.database, BreakState.RESOLVED, ids[:1], actor="ada", reason="booked again")
    page = site.post("/forms/break", confirmation, status=409)
    assert "resolved by ada: booked again" in words(page)
    assert "There is nothing left to do with all of them" in words(page)
    assert [each[0] for each in states(site.ledger)] == ["resolved", "open"], "all or none"


def test_breaks_of_another_dag_are_not_there_and_a_viewer_is_told(site: Site) -> None:
    ids = broken(site.ledger, "payments", 1)
    site.get(opened(ids), LIMITED, status=404)
    site.get(opened(ids), "viewer", status=403)
    assert "Settle it" not in words(site.get(f"/break?ledger={LEDGER}&id={ids[0]}", "viewer"))
    assert "Settle it" in words(site.get(f"/break?ledger={LEDGER}&id={ids[0]}"))


def test_hostile_text_stays_text(site: Site) -> None:
    found = [
        replace(FOUND, document=each, group={each: each}, source_value="<script>alert(1)</script>")
        for each in HOSTILE_DOCUMENTS
    ]
    ids = check(site.ledger, "payments", found)
    page, _ = site.preview(opened(ids), {"decision": "explain", "reason": HOSTILE_REASON})
    for text in (page, site.get(opened(ids))):
        assert "<script>alert" not in text
        assert "<img src=x" not in text
    assert HOSTILE_REASON in words(page)
