"""A break that is accepted, a history that is uploaded, a rerun that is authorised, in a real browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.ui.test_browser import visit_in_browser

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

    from tests.ui.conftest import World

FORMS = ("rerun", "adopt", "rename", "purge", "fail-over")


def test_a_history_is_uploaded_by_keyboard_and_adopted(world: World, open_as: Callable[..., Page]) -> None:
    page = open_as("op")
    visit_in_browser(page, world, "/changes?ledger=core_banking")
    page.get_by_role("link", name="Adopt history").focus()
    page.keyboard.press("Enter")
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Download an empty file with the header").click()
    header = downloading.value.path().read_text()
    page.get_by_label("DAG, or key namespace").fill("payments")
    page.get_by_label("Operation").fill("pay")
    page.get_by_label("Reason").fill("paid by the old system")
    empty = {"name": "history.csv", "mimeType": "text/csv", "buffer": header.encode()}
    page.get_by_label("CSV file, in UTF-8").set_input_files([empty])
    page.get_by_role("button", name="Preview").press("Enter")
    # What is wrong has the focus, and what was filled in is still there.
    expect(page.locator("#problem")).to_be_focused()
    expect(page.locator("#problem")).to_contain_text("no rows to adopt")
    expect(page.get_by_label("DAG, or key namespace")).to_have_value("payments")
    rows = "".join(f"2024-06-{day:02},OLD-{day},,\r\n" for day in range(1, 16))
    filled = {"name": "history.csv", "mimeType": "text/csv", "buffer": (header + rows).encode()}
    page.get_by_label("CSV file, in UTF-8").set_input_files([filled])
    page.get_by_role("button", name="Preview").press("Enter")
    expect(page.get_by_role("heading", name="Preview: adopt 15 keys")).to_be_visible()
    expect(page.get_by_role("cell", name="OLD-10")).to_be_visible()
    page.get_by_role("button", name="Adopt them").dblclick()
    expect(page.get_by_role("status")).to_contain_text("All 15 rows of the file are in the ledger")
    page.get_by_role("link", name="The keys of these dates").click()
    expect(page.get_by_role("link", name="OLD-15")).to_be_visible()


def test_a_rerun_is_authorised_from_a_key(world: World, open_as: Callable[..., Page]) -> None:
    page = open_as("op")
    visit_in_browser(page, world, "/search?q=E2E-20260129-0003&ledger=core_banking")
    page.get_by_role("link", name="E2E-20260129-0003").first.click()
    page.get_by_role("link", name="Execute it again").click()
    page.get_by_label("It stays.").check()
    page.get_by_label("It may be used for").select_option("4 hours")
    page.get_by_label("Reason").fill("the bank lost it, ticket 4713")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("Nothing is changed yet")).to_be_visible()
    page.get_by_role("button", name="Authorise it").click()
    expect(page.get_by_role("status")).to_contain_text("1 key may be executed once more until")
    page.get_by_role("link", name="E2E-20260129-0003").click()
    expect(page.get_by_role("region", name="Reruns")).to_contain_text("the bank lost it, ticket 4713")


def test_a_break_is_accepted_and_stays_in_the_list_with_its_reason(
    world: World, open_as: Callable[..., Page]
) -> None:
    document = "CH9300762011623852957/022"
    page = open_as("op")
    visit_in_browser(page, world, f"/breaks?document={document}&ledger=core_banking")
    row = page.get_by_role("row").filter(has_text=document)
    expect(row).to_contain_text("open")
    row.get_by_role("checkbox").check()
    page.get_by_role("button", name="Settle what is chosen").click()
    page.get_by_label("Explained: it stays as it is.").check()
    page.get_by_label("Reason").fill("a rounding of the card scheme, ticket 4714")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("Nothing is changed yet")).to_be_visible()
    expect(page.get_by_role("cell", name="CHF")).to_be_visible()
    page.get_by_role("button", name="Record it").dblclick()
    expect(page.get_by_role("status")).to_have_text("1 break is explained.")
    page.get_by_role("link", name="The break as it stands now").click()
    expect(page.get_by_role("heading", name=document)).to_contain_text("explained")
    life = page.get_by_role("listitem").filter(has_text="ticket 4714")
    expect(life).to_have_count(1)
    expect(life).to_contain_text("op")
    # The date has it still, and as no open break.
    visit_in_browser(page, world, "/day?dag=bank_statements&date=2026-01-22&ledger=core_banking")
    expect(page.get_by_role("region", name="Breaks")).to_contain_text("explained")


def test_rows_are_chosen_with_the_keyboard(world: World, open_as: Callable[..., Page]) -> None:
    page = open_as("op")
    visit_in_browser(page, world, "/open?dag=hostile&ledger=core_banking")
    page.get_by_role("button", name="Choose all on this page").press("Enter")
    expect(page.get_by_role("checkbox", checked=True)).to_have_count(6)
    page.get_by_role("button", name="Settle what is chosen").press("Enter")
    expect(page.get_by_role("heading", name="Settle 6 keys")).to_be_visible()
    violations = Axe().run(page).response["violations"]
    assert not [each["id"] for each in violations if each["impact"] in ("serious", "critical")]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_forms_and_nothing_overflows(
    world: World, open_as: Callable[..., Page], theme: str
) -> None:
    page = open_as("op", color_scheme=theme)
    for name in ("changes", *(f"forms/{form}" for form in FORMS)):
        visit_in_browser(page, world, f"/{name}?ledger=core_banking")
        violations = Axe().run(page).response["violations"]
        found = [each for each in violations if each["impact"] in ("serious", "critical")]
        assert not found, (name, [(each["id"], each["nodes"][0]["html"]) for each in found])
        page.set_viewport_size({"width": 390, "height": 900})
        assert page.evaluate(
            "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        ), name
        page.set_viewport_size({"width": 1280, "height": 900})
