"""Documents that were listed and are not done are dropped: seen before, with a reason, once."""

from __future__ import annotations

from datetime import date

from airflow_guard.core.keys import KeySpace
from airflow_guard.core.states import State
from tests.contract.attempts import attempt
from tests.databases import databases
from tests.ui.forms.site import LEDGER, Site, events, hidden
from tests.ui.visiting import words

pytestmark = databases("sqlite")
DAY = date(2025, 1, 30)
DROP = f"/forms/drop?ledger={LEDGER}"
FILLED = {
    "namespace": "payments", "operation": "pay", "date": str(DAY), "cycle": "", "which": "named", "documents": "E2E-1",
    "reason": "withdrawn by the customer",
}  # fmt: skip


def test_d03_documents_are_dropped_after_a_preview(site: Site) -> None:
    space = KeySpace("payments", "pay", DAY)
    failed = attempt(site.ledger, "E2E-1", "E2E-2", space=space).begin().fail("closed")
    page, confirmation = site.preview(DROP, FILLED)
    assert "1 document would be dropped" in words(page)
    assert {row.state for row in site.ledger.read(DAY, failed.hashes).values()} == {State.FAILED}
    assert "Dropped" in words(site.post("/forms/drop", confirmation))
    states = {row.document: row.state for row in site.ledger.read(DAY, failed.hashes).values()}
    assert states == {"E2E-1": State.DROPPED, "E2E-2": State.FAILED}
    (told,) = events(site.ledger, "drop")
    assert (told.actor, told.reason) == ("op", "withdrawn by the customer")
    site.post("/forms/drop", {**hidden(site.get(DROP)), **FILLED, "documents": "E2E-9"}, status=422)
