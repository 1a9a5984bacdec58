"""What a person does in a real browser, inside Airflow's own UI."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.ui.books import LONG
from tests.ui.visiting import links, visit

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import FrameLocator, Page

    from tests.ui.conftest import World

_SERIOUS = ("serious", "critical")
_LIGHT, _DARK = "rgb(255, 255, 255)", "rgb(21, 23, 28)"


def guard(page: Page) -> FrameLocator:
    """Return the pages within Airflow's page, once they have drawn themselves."""
    frame = page.frame_locator('iframe[title="Guard"]')
    expect(frame.locator('html[data-ready="yes"]')).to_have_count(1)
    return frame


def visit_in_browser(page: Page, world: World, path: str) -> None:
    page.goto(f"{world.airflow.pages}{path}")
    expect(page.locator('html[data-ready="yes"]')).to_have_count(1)


def test_log_in_follow_the_navigation_and_filter(
    browser: object, world: World, open_as: Callable[..., Page]
) -> None:
    page = open_as("viewer")
    page.context.clear_cookies()
    page.goto(f"{world.airflow.address}/")
    page.get_by_role("textbox", name="Username").fill("viewer")
    page.locator('input[type="password"]').fill(world.airflow.password("viewer"))
    page.get_by_role("button", name="Sign in").click()
    page.locator('a[href*="/plugin/guard"], a[href*="plugin/guard"]').first.click()
    frame = guard(page)
    expect(frame.get_by_role("heading", name="Ledger core_banking")).to_be_visible()
    frame.get_by_role("link", name="Breaks", exact=True).click()
    expect(frame.get_by_role("heading", name="Breaks")).to_be_visible()
    frame.get_by_label("DAG", exact=True).fill("bank_statements")
    frame.get_by_label("What differs").select_option("missing_in_target")
    frame.get_by_role("button", name="Filter").click()
    expect(frame.get_by_role("row")).to_have_count(2)
    expect(frame.get_by_role("cell", name="DE89370400440532013004/029")).to_be_visible()
    # A filter that says nothing stays out of the address.
    where = page.frames[-1].url
    assert "type=missing_in_target" in where
    assert "age=" not in where
    with page.expect_download() as downloading:
        frame.get_by_role("link", name="Download as CSV").click()
    assert "DE89370400440532013004/029" in downloading.value.path().read_text()


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        ("dags/payments/plugin/guard-dag", "rejected"),
        ("dags/payments/tasks/pay/plugin/guard-task", "E2E-20260130-0018"),
    ],
)
def test_tabs_show_the_data_of_what_they_are_on(
    world: World, open_as: Callable[..., Page], route: str, expected: str
) -> None:
    page = open_as("viewer")
    page.goto(f"{world.airflow.address}/{route}")
    expect(guard(page).get_by_text(expected).first).to_be_visible()


def test_the_colours_follow_airflow_while_the_page_is_open(
    world: World, open_as: Callable[..., Page]
) -> None:
    page = open_as("viewer", color_scheme="light")
    page.goto(f"{world.airflow.address}/plugin/guard")
    root = guard(page).locator("html")
    expect(root).to_have_css("background-color", _LIGHT)
    # As Airflow's own switch does: it stores its choice, and the browser tells every other page of this origin.
    page.evaluate("localStorage.setItem('theme', 'dark')")
    expect(root).to_have_css("background-color", _DARK)
    page.evaluate("localStorage.setItem('theme', 'system')")
    expect(root).to_have_css("background-color", _LIGHT)
    page.emulate_media(color_scheme="dark")
    expect(root).to_have_css("background-color", _DARK)


def test_times_are_in_the_users_zone_and_business_dates_never_move(
    world: World, open_as: Callable[..., Page]
) -> None:
    page = open_as("viewer", timezone_id="Pacific/Kiritimati")
    page.goto(f"{world.airflow.address}/plugin/guard")
    guard(page)
    page.evaluate("localStorage.setItem('timezone', JSON.stringify('America/New_York'))")
    visit_in_browser(page, world, "/day?dag=bank_statements&date=2026-01-29")
    moment = page.locator("time[data-instant]").first
    expect(moment).to_contain_text("E")  # EST or EDT
    assert (moment.get_attribute("title") or "").endswith(" UTC")
    utc = page.evaluate("e => new Date(e.dateTime).toISOString()", moment.element_handle())
    there = page.evaluate("t => new Date(t).toLocaleTimeString('en-GB', {timeZone: 'America/New_York'})", utc)
    expect(moment).to_contain_text(there)
    expect(page.get_by_role("heading", name="business date 2026-01-29")).to_be_visible()


def test_a_link_leads_out_of_the_frame_to_airflow(world: World, open_as: Callable[..., Page]) -> None:
    page = open_as("viewer")
    page.goto(f"{world.airflow.address}/plugin/guard")
    frame = guard(page)
    frame.get_by_role("link", name="payments, 2026-01-29, rejected").click()
    frame.get_by_role("link", name="The DAG in Airflow").click()
    page.wait_for_url("**/dags/payments*")


def test_a_doubt_is_resolved(world: World, open_as: Callable[..., Page]) -> None:
    with world.airflow.client("op") as client:
        key = links(visit(client, "/search?q=letter-0130-010"), "/key?")[0].partition("/airflow-guard")[2]
    page = open_as("op")
    visit_in_browser(page, world, key)
    page.get_by_role("link", name="Settle it").click()
    page.get_by_label("It happened").check()
    page.get_by_label("Reason").fill("the print shop has it, ticket 4712")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("Nothing is changed yet")).to_be_visible()
    page.get_by_role("button", name="Record it").click()
    expect(page.get_by_role("status")).to_have_text("Recorded. This is how the key stands now.")
    life = page.get_by_role("listitem").filter(has_text="Resolved: it happened")
    expect(life).to_contain_text("op")
    expect(life).to_contain_text("ticket 4712")


def test_keyboard_reaches_the_content_and_the_calendar(world: World, open_as: Callable[..., Page]) -> None:
    page = open_as("viewer")
    visit_in_browser(page, world, "/?ledger=core_banking")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#content")).to_be_focused()
    cell = page.get_by_role("link", name="payments, 2026-01-29, rejected")
    cell.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="payments, business date 2026-01-29")).to_be_visible()


PAGES = {
    "overview": "/?ledger=core_banking",
    "both ledgers": "/",
    "day": "/day?dag=bank_statements&date=2026-01-29",
    "to settle": "/open",
    "keys": "/keys",
    "no keys": "/keys?dag=none",
    "breaks": "/breaks",
    "blocked": "/blocked",
    "checks": "/checks",
    "attention": "/attention",
    "search": "/search?q=E2E-20260129-0018",
    "tab of a DAG": "/tab/dag?dag_id=bank_statements",
    "tab of a task": "/tab/task?dag_id=payments&task_id=pay",
    "long names": f"/tab/dag?dag_id={LONG}",
    "long names in lists": f"/breaks?dag={LONG}",
    "not found": "/nothing",
    "key": "key?",
    "break": "break?",
    "check": "check?",
    "form": "forms/resolve?",
}


def address(world: World, name: str) -> str:
    """Return where a page is; of one key, break or check: the first in its list."""
    path = PAGES[name]
    if path.startswith("/"):
        return path
    listed = {"key?": "/open?dag=payments", "forms/resolve?": "/open?dag=payments"}.get(
        path, f"/{path[:-1]}s"
    )
    part = "key?" if path == "forms/resolve?" else path
    with world.airflow.client("op") as client:
        found = links(visit(client, listed), f"/{part}")[0].partition("/airflow-guard")[2]
    return found.replace("/key?", f"/{path}")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious_and_nothing_overflows(
    world: World, open_as: Callable[..., Page], theme: str
) -> None:
    page = open_as("op", color_scheme=theme)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    axe = Axe()
    for name in PAGES:
        path = address(world, name)
        complaints.clear()
        visit_in_browser(page, world, path)
        assert not [each for each in complaints if "status of 4" not in each and "status of 5" not in each], (
            name
        )
        found = [v for v in axe.run(page).response["violations"] if v["impact"] in _SERIOUS]
        assert not found, (
            name,
            [(v["id"], v["nodes"][0]["html"], v["nodes"][0]["failureSummary"]) for v in found],
        )
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            over = page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert over <= 0, f"{name} is {over} pixels too wide for a window of {width}"
