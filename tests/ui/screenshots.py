"""``make screenshots``: a picture of each page for the documentation, made in a real browser.

``python -m tests.ui.screenshots --awkward FOLDER`` takes pictures for whoever changes a page: the longest names, 10,000
rows, no rows, and a window as narrow as a telephone's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playwright.sync_api import expect, sync_playwright

from demo.postgres import EmbeddedPostgres
from tests.contract.attempts import new_ledger
from tests.ui.airflow_with_pages import AirflowWithPages
from tests.ui.books import LONG, crowd, fill
from tests.ui.visiting import links, visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FOLDER = Path(__file__).parents[2] / "docs" / "images"
_WAIT_MS = 120_000
_WIDE = {"width": 1440, "height": 900}
_NARROW = {"width": 390, "height": 844}


def main() -> None:
    """Fill a ledger, serve it, and take the pictures."""
    parser = argparse.ArgumentParser(prog="python -m tests.ui.screenshots", description=main.__doc__)
    parser.add_argument("--awkward", type=Path, metavar="FOLDER", help="what pages look like at their worst")
    awkward: Path | None = parser.parse_args().awkward
    executable = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if executable is None:
        raise SystemExit("There is no Chromium here: apt-get install chromium")
    (awkward or FOLDER).mkdir(parents=True, exist_ok=True)
    with EmbeddedPostgres() as postgres, tempfile.TemporaryDirectory() as folder:
        postgres.create_database("bank")
        ledger = new_ledger(postgres.url("bank"))
        fill(ledger, awkward=awkward is not None)
        if awkward:
            crowd(ledger)
        ledger.database.dispose()
        bank = {"conn_type": "postgres", "host": str(postgres.socket_dir), "port": postgres.port,
                "login": "postgres", "schema": "bank"}  # fmt: skip
        patient = {"AIRFLOW__AIRFLOW_GUARD__PAGE_TIMEOUT_SECONDS": "60"}
        with AirflowWithPages(
            Path(folder), {"core_banking": json.dumps(bank)}, "core_banking", **patient
        ) as airflow:
            airflow.know_dags()
            with sync_playwright() as playwright:
                arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
                expect.set_options(timeout=_WAIT_MS)
                browser = playwright.chromium.launch(executable_path=executable, args=arguments)
                if awkward:
                    _take_awkward(browser, airflow, awkward)
                else:
                    _take(browser, airflow)
                browser.close()


def _opened(browser: Browser, airflow: AirflowWithPages, **options: Any) -> Page:
    context = browser.new_context(timezone_id="Europe/Berlin", **options)
    context.set_default_timeout(_WAIT_MS)
    context.add_cookies([{"name": "_token", "value": airflow.token("op"), "url": airflow.address}])
    return context.new_page()


def _take_awkward(browser: Browser, airflow: AirflowWithPages, folder: Path) -> None:
    for name, window in (("wide", _WIDE), ("narrow", _NARROW)):
        page = _opened(browser, airflow, viewport=window)
        for number, path in enumerate(_awkward_addresses(airflow)):
            page.goto(f"{airflow.pages}{path}")
            expect(page.locator('html[data-ready="yes"]')).to_have_count(1)
            picture = (
                folder
                / f"{number:02}-{re.sub('[^a-z]+', '-', path)[:24].strip('-') or 'overview'}-{name}.png"
            )
            page.screenshot(path=picture, full_page=True)
            print(picture, path[:100])
        page.context.close()


def _awkward_addresses(airflow: AirflowWithPages) -> list[str]:
    with airflow.client("op") as client:

        def first(path: str, part: str) -> str:
            return links(visit(client, path), part)[0].partition("/airflow-guard")[2]

        key = first(f"/keys?dag={LONG}", "/key?")
        return [
            "/?ledger=core_banking", "/?ledger=core_banking&date=2026-01-29", "/attention",
            f"/day?dag={LONG}&date=2026-01-30", "/day?dag=crowd&date=2026-01-30",
            "/day?dag=bank_statements&date=2026-01-29", "/open", "/keys?dag=crowd&page=100", f"/keys?dag={LONG}",
            "/keys?dag=none", key, key.replace("/key?", "/forms/resolve?"), "/breaks?dag=crowd", "/breaks?dag=hostile",
            f"/breaks?dag={LONG}", "/breaks?dag=none", first(f"/breaks?dag={LONG}", "/break?"), "/blocked", "/checks",
            f"/checks?dag={LONG}", first(f"/checks?dag={LONG}", "/check?"), "/changes", "/search?q=letter-0130-010",
            f"/tab/dag?dag_id={LONG}", "/tab/task?dag_id=payments&task_id=pay", "/nothing",
        ]  # fmt: skip


def _take(browser: Browser, airflow: AirflowWithPages) -> None:
    for theme in ("light", "dark"):
        page = _opened(browser, airflow, viewport=_WIDE, color_scheme=theme)
        page.goto(f"{airflow.address}/plugin/guard")
        frame = page.frame_locator('iframe[title="Guard"]')
        expect(frame.locator('html[data-ready="yes"]')).to_have_count(1)
        page.wait_for_load_state("networkidle")
        page.screenshot(path=FOLDER / ("overview.png" if theme == "light" else "overview-dark.png"))
        if theme == "light":
            for name, path in _addresses(airflow).items():
                page.goto(f"{airflow.pages}{path}")
                expect(page.locator('html[data-ready="yes"]')).to_have_count(1)
                page.screenshot(path=FOLDER / f"{name}.png", full_page=True)
                print(FOLDER / f"{name}.png")
        page.context.close()


def _addresses(airflow: AirflowWithPages) -> dict[str, str]:
    with airflow.client("op") as client:

        def first(path: str, part: str) -> str:
            return links(visit(client, path), part)[0].partition("/airflow-guard")[2]

        doubt = first("/search?q=letter-0130-011", "/key?")
        return {
            "day": "/day?dag=bank_statements&date=2026-01-29",
            "key": first("/search?q=letter-0115-003", "/key?"),
            "to-settle": "/open",
            "settle": doubt.replace("/key?", "/forms/resolve?"),
            "breaks": "/breaks",
            "break": first("/breaks?age=7", "/break?"),
            "blocked": "/blocked",
            "checks": "/checks?to=2026-01-31&from=2026-01-24",
            "check": first("/checks?state=broken", "/check?"),
            "tab": "/tab/run?dag_id=payments&run_id=manual__2026-01-29",
        }


if __name__ == "__main__":
    main()
