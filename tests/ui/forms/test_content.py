"""A key that was listed again with other content: a person says on its page that what is stored stands for it, too."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard.core.content import fingerprint
from airflow_guard.core.keys import KeySpace
from tests.contract.attempts import attempt
from tests.databases import databases
from tests.ui.forms.site import LEDGER, Site, events
from tests.ui.visiting import words

if TYPE_CHECKING:
    from tests.contract.attempts import Attempt

pytestmark = databases("sqlite", "postgres_embedded", "mariadb")
DAY = date(2026, 1, 30)
SPACE = KeySpace("payments", "pay", DAY)
REASON = "only the reference line was corrected"


def listed_again(site: Site, amount: str, own: Attempt | None = None) -> Attempt:
    """Have a payment over 100 done, and list it with another amount."""
    if own is None:
        own = attempt(site.ledger, "E2E-1", space=SPACE).begin().complete('"receipt"')
        e = site.ledger.database.tables.execution
        with site.ledger.database.engine.begin() as connection:
            connection.execute(sa.update(e).values(fingerprint=fingerprint({"amount": "100"})))
    row = own.row()
    site.ledger.offer(DAY, [(row, fingerprint({"amount": amount}))])
    return own


def form_of(own: Attempt) -> str:
    return f"/forms/resolve?ledger={LEDGER}&date={DAY}&key={own.hashes[0]}"


def accept(reason: str = REASON) -> dict[str, Any]:
    return {"decision": "content_stands", "reason": reason}


def test_the_stored_result_is_said_to_stand_for_the_content_that_was_shown(site: Site) -> None:
    own = listed_again(site, "200")
    page = site.get(f"/key?ledger={LEDGER}&date={DAY}&key={own.hashes[0]}")
    assert "listed again with other content" in words(page)
    assert "Changed: amount" in words(page)
    assert "Settle it" in words(page)
    form = words(site.get(form_of(own)))
    assert "It stands for the other content too" in form
    assert "It happened" not in form
    _, confirmation = site.preview(form_of(own), accept())
    assert own.row().accepted == (), "a preview changes nothing"
    both = site.twice("/forms/resolve", confirmation)
    assert [each.status_code for each in both] == [200, 200], "a double click"
    assert own.row().accepted == (fingerprint({"amount": "200"}),)
    assert own.row().offered is None
    [event] = events(site.ledger, "content_accepted")
    assert (event.actor, event.reason, event.to_state) == ("op", REASON, "completed")
    after = words(both[0].text)
    assert "Accepted: it stands for other content too" in after
    assert "listed again with other content" not in after


def test_content_that_was_listed_after_the_page_was_opened_is_not_accepted(site: Site) -> None:
    own = listed_again(site, "200")
    _, confirmation = site.preview(form_of(own), accept())
    listed_again(site, "9999", own)
    page = site.post("/forms/resolve", confirmation, status=409)
    assert "yet another content" in words(page)
    assert own.row().accepted == ()
    assert events(site.ledger, "content_accepted") == []


def test_several_are_accepted_together_each_for_its_own_content(site: Site) -> None:
    own = listed_again(site, "200")
    version = own.row().owner_token + "." + str(own.row().content)
    opened = f"/forms/settle?ledger={LEDGER}&pick={DAY}.{own.hashes[0]}"
    assert f"{own.hashes[0]}.{version}" in site.get(opened)
    _, confirmation = site.preview(opened, accept())
    site.post("/forms/settle", confirmation)
    assert len(own.row().accepted) == 1


def test_who_may_not_edit_the_dag_accepts_nothing_and_a_reason_is_needed(site: Site) -> None:
    own = listed_again(site, "200")
    site.get(form_of(own), "viewer", status=403)
    fields = {"ledger": LEDGER, "date": str(DAY), "key": own.hashes[0], "step": "confirm", **accept()}
    site.post("/forms/resolve", fields, "viewer", status=403)
    with pytest.raises(AssertionError):
        site.preview(form_of(own), accept(reason=" "))
    assert own.row().accepted == ()
