"""Fail-overs that a person records and closes at a page."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from airflow_guard.acts import lost_commits
from airflow_guard.core.keys import KeySpace
from airflow_guard.core.states import State
from airflow_guard.store import fail_overs
from tests.contract.attempts import attempt
from tests.databases import databases
from tests.ui.auth_manager import LIMITED
from tests.ui.books import HOSTILE_REASON
from tests.ui.forms.site import LEDGER, Site, events, hidden
from tests.ui.visiting import words

# What a form asks of the store is tested on every database there; here what is told by the database itself.
pytestmark = databases("sqlite")
OF_EACH = databases("sqlite", "postgres_embedded", "mariadb")
OPENED = f"/forms/fail-over?ledger={LEDGER}"
SPACE = KeySpace("payments", "pay", date(2026, 1, 30))
SINCE = datetime(2026, 1, 30, 2, 10, tzinfo=UTC)
RECORD = {"action": "record", "lost_since": "2026-01-30T02:10:00", "reason": "db2 took over"}
CLOSE = {"action": "close", "lost_since": "", "reason": "compared with the bank"}


def test_it_is_previewed_recorded_listed_and_closed(site: Site) -> None:
    begun = attempt(site.ledger, "E2E-1", space=SPACE).begin()
    attempt(site.ledger, "E2E-2", space=SPACE)
    page, confirmation = site.preview(OPENED, RECORD)
    assert "1 effects that have begun would be in doubt; 1 claims" in words(page)
    assert begun.row().state is State.IN_PROGRESS
    assert not fail_overs.listed(site.ledger.database)
    assert "Recorded" in words(site.post("/forms/fail-over", confirmation))
    assert begun.row().state is State.IN_DOUBT
    (open_,) = fail_overs.listed(site.ledger.database)
    assert (open_.lost_since, open_.actor, open_.reason) == (SINCE, "op", "db2 took over")
    assert "db2 took over" in words(site.get(OPENED))
    _, confirmation = site.preview(OPENED, CLOSE)
    assert "Closed" in words(site.post("/forms/fail-over", confirmation))
    assert not fail_overs.listed(site.ledger.database)
    (told,) = events(site.ledger, "fail_over_closed")
    assert (told.actor, told.reason) == ("op", "compared with the bank")
    assert "compared with the bank" in words(site.get(OPENED)), "what was closed is listed too"


@OF_EACH
@pytest.mark.parametrize("action", ["record", "close"])
def test_a_double_click_counts_once(site: Site, action: str) -> None:
    attempt(site.ledger, "E2E-1", space=SPACE).begin()
    fields = RECORD
    if action == "close":
        lost_commits.record(site.ledger, SINCE, actor="ada", reason="db2 took over")
        fields = CLOSE
    _, confirmation = site.preview(OPENED, fields)
    both = site.twice("/forms/fail-over", confirmation)
    assert {each.status_code for each in both} <= {200, 503}
    assert 200 in {each.status_code for each in both}
    site.post("/forms/fail-over", confirmation)
    assert len(events(site.ledger, "fail_over")) == 1
    assert len(events(site.ledger, "fail_over_closed")) == (1 if action == "close" else 0)


def test_what_somebody_else_recorded_meanwhile_is_shown_first(site: Site) -> None:
    _, confirmation = site.preview(OPENED, RECORD)
    lost_commits.record(site.ledger, SINCE, actor="ada", reason="I saw it too")
    page = site.post("/forms/fail-over", confirmation, status=409)
    assert "by ada: I saw it too" in words(page)
    assert len(events(site.ledger, "fail_over")) == 1
    site.post("/forms/fail-over", hidden(page))
    assert len(fail_overs.listed(site.ledger.database)) == 2, "a person may insist"


def test_what_somebody_else_closed_is_not_closed_again(site: Site) -> None:
    lost_commits.record(site.ledger, SINCE, actor="ada", reason="db2 took over")
    _, confirmation = site.preview(OPENED, CLOSE)
    lost_commits.close(site.ledger, actor="ada", reason="done")
    page = site.post("/forms/fail-over", confirmation, status=409)
    assert "No fail-over is open" in words(page)
    assert len(events(site.ledger, "fail_over_closed")) == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"lost_since": ""}, "since when"), ({"lost_since": "2999-01-01T00:00"}, "has not come yet"),
     ({"reason": ""}, "A reason is missing"), ({"action": "close"}, "No fail-over is open")],
)  # fmt: skip
def test_what_cannot_be_recorded(site: Site, wrong: dict[str, str], said: str) -> None:
    page = site.post("/forms/fail-over", {**hidden(site.get(OPENED)), **RECORD, **wrong}, status=422)
    assert said in words(page)
    assert not events(site.ledger, "fail_over")


def test_only_who_may_edit_every_dag_sees_and_records(site: Site) -> None:
    form = hidden(site.get(OPENED))
    for user in ("viewer", LIMITED):
        assert "every DAG" in words(site.get(OPENED, user, status=403))
        site.post("/forms/fail-over", {**form, **RECORD}, user, status=403)
    assert not events(site.ledger, "fail_over")


def test_hostile_text_stays_text(site: Site) -> None:
    lost_commits.record(site.ledger, SINCE, actor="<b>x</b>", reason=HOSTILE_REASON)
    page, _ = site.preview(OPENED, {**RECORD, "reason": HOSTILE_REASON})
    for text in (page, site.get(OPENED)):
        assert "<script>alert" not in text
        assert "<b>" not in text
