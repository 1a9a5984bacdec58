"""Two ledgers of different kinds beside each other: what stands only in the second is found, listed, linked, exported."""

from __future__ import annotations

import csv
import io
import re
from datetime import date, timedelta
from typing import TYPE_CHECKING

import pytest

from airflow_guard.core.keys import KeySpace
from tests.contract.attempts import attempt, new_ledger
from tests.databases import databases
from tests.ui.forms.conftest import PAYMENTS
from tests.ui.forms.site import LEDGER, Site
from tests.ui.forms.test_breaks import broken
from tests.ui.visiting import links, words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_guard.store.ledger import Ledger
    from tests.databases import DatabaseServers, DatabaseUnderTest

pytestmark = databases("postgres_embedded", "mariadb")
SECOND = "second_ledger"
DAY = date(2026, 1, 30)


class Pair:
    """The pages over an SQLite ledger and one of another kind.

    :param first: the SQLite one.
    :param second: on PostgreSQL or MariaDB.
    """

    def __init__(self, site: Site, second: Ledger) -> None:
        self.site, self.first, self.second = site, site.ledger, second

    def get(self, path: str, user: str = "op", *, status: int = 200) -> str:
        return self.site.get(path, user, status=status)

    def cells(self, path: str) -> list[dict[str, str]]:
        """Return the rows of the first table of a page, or of a download."""
        text = self.get(path)
        if path.startswith("/csv"):
            return list(csv.DictReader(io.StringIO(text.removeprefix("\ufeff"))))
        table = re.search(r"<table>.*?</table>", text, re.DOTALL)
        if table is None:
            return []
        rows = [
            [words(cell) for cell in re.findall(r"<t[hd]\b.*?</t[hd]>", row, re.DOTALL)]
            for row in re.findall(r"<tr>.*?</tr>", table[0], re.DOTALL)
        ]
        return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


@pytest.fixture
def pair(
    database: DatabaseUnderTest,
    database_servers: DatabaseServers,
    airflow_users: None,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Pair]:
    """Two ledgers that have nothing yet."""
    server = database_servers.get("sqlite")
    file = server.fresh()
    first, second = new_ledger(file.url), new_ledger(database.url)
    monkeypatch.setenv(f"AIRFLOW_CONN_{LEDGER.upper()}", file.airflow_connection())
    monkeypatch.setenv(f"AIRFLOW_CONN_{SECOND.upper()}", database.airflow_connection())
    monkeypatch.setenv("AIRFLOW__AIRFLOW_GUARD__LEDGER_CONN_IDS", f"{LEDGER}, {SECOND}")
    yield Pair(Site(first), second)
    for ledger in (first, second):
        ledger.database.dispose()
    server.drop(file)


def done(ledger: Ledger, *documents: str, day: date = DAY, run: str = "") -> list[str]:
    """Let a try execute documents, and return their keys."""
    own = attempt(ledger, *documents, space=KeySpace(PAYMENTS, "pay", day), run_id=run or f"scheduled__{day}")
    own.begin().complete("{}")
    ledger.runs.close(
        own.own.task_run_id, "success", {"documents": len(documents), "executed": len(documents)}
    )
    return own.hashes


def in_doubt(ledger: Ledger, *documents: str) -> list[str]:
    own = attempt(ledger, *documents, space=KeySpace(PAYMENTS, "pay", DAY)).begin().doubt("no answer")
    return own.hashes


def held_off(ledger: Ledger, run: str) -> None:
    own = attempt(ledger, f"own of {run}", space=KeySpace(PAYMENTS, "pay", DAY), run_id=run)
    ledger.runs.close(own.own.task_run_id, "success", {"documents": 1, "replayed": 1})


def test_a_search_finds_what_only_the_second_has_and_leads_there(pair: Pair) -> None:
    done(pair.first, "E2E-1")
    (key,) = done(pair.second, "E2E-2")
    for text in ("E2E-2", key[:10]):
        page = pair.get(f"/search?q={text}")
        assert "1 found" in words(page)
        (link,) = links(page, "/key?")
        assert f"ledger={SECOND}" in link
        assert [row["Ledger"] for row in pair.cells(f"/search?q={text}")] == [SECOND]
    life = words(pair.get(link.partition("/airflow-guard")[2]))
    assert "E2E-2" in life
    assert "0 found" in words(pair.get(f"/search?q=E2E-2&ledger={LEDGER}"))
    assert "1 found" in words(pair.get(f"/search?q=E2E-2&ledger={SECOND}"))


def test_one_document_in_both_is_shown_twice(pair: Pair) -> None:
    done(pair.first, "E2E-1")
    done(pair.second, "E2E-1")
    assert [row["Ledger"] for row in pair.cells("/search?q=E2E-1")] == [LEDGER, SECOND]


@pytest.mark.parametrize("way", ["page", "csv"])
@pytest.mark.parametrize("which", ["keys", "open", "breaks", "blocked", "checks", "attention"])
def test_every_list_and_download_has_the_rows_of_both(pair: Pair, which: str, way: str) -> None:
    for ledger, name in ((pair.first, "one"), (pair.second, "two")):
        done(ledger, f"done {name}")
        in_doubt(ledger, f"doubtful {name}")
        broken(ledger, PAYMENTS, 1, run=name)
        held_off(ledger, f"manual__{name}")
    path = f"/csv/{which}" if way == "csv" else f"/{which}"
    column = "ledger" if way == "csv" else "Ledger"
    if which == "attention" and way == "page":
        text = pair.get(path)
        found = {name: len(links(text, f"ledger={name}")) for name in (LEDGER, SECOND)}
        assert found[LEDGER] == found[SECOND] == 2
        assert f"ledger {LEDGER}, for" in words(text)
        assert f"ledger {SECOND}, for" in words(text)
        return
    assert {row[column] for row in pair.cells(path)} == {LEDGER, SECOND}
    for name in (LEDGER, SECOND):
        alone = pair.cells(f"{path}?ledger={name}")
        assert alone
        assert {row.get(column, name) for row in alone} == {name}


def test_a_list_of_one_ledger_has_no_column_for_it_and_its_links_name_it(pair: Pair) -> None:
    done(pair.second, "E2E-2")
    (row,) = pair.cells(f"/keys?ledger={SECOND}")
    assert "Ledger" not in row
    (link,) = links(pair.get("/keys"), "/key?")
    assert f"ledger={SECOND}" in link


def test_parts_of_a_list_over_both_have_one_order_and_leave_nothing_out(pair: Pair) -> None:
    """60 keys here and 60 there, some of the same date: each row once, in one order, whatever part is asked first."""
    wanted = []
    for number in range(60):
        day = DAY - timedelta(days=number % 7)
        done(pair.first, f"A-{number:02}", day=day, run=f"scheduled__{number}")
        done(pair.second, f"B-{number:02}", day=day, run=f"scheduled__{number}")
        wanted += [f"A-{number:02}", f"B-{number:02}"]
    parts = [pair.cells(f"/keys?page={number}") for number in (3, 1, 2)]
    third, first, second = parts
    assert [len(first), len(second), len(third)] == [50, 50, 20]
    rows = [*first, *second, *third]
    assert sorted(row["Document"] for row in rows) == sorted(wanted)
    dates = [row["Business date"] for row in rows]
    assert dates == sorted(dates, reverse=True)
    for name, prefix in ((LEDGER, "A"), (SECOND, "B")):
        alone = [row["Document"] for part in (1, 2) for row in pair.cells(f"/keys?ledger={name}&page={part}")]
        assert [row["Document"] for row in rows if row["Ledger"] == name] == alone
        assert all(document.startswith(prefix) for document in alone)
    text = words(pair.get("/keys?page=2"))
    assert "51 to 100 of 120" in text
    exported = pair.cells("/csv/keys")
    assert [row["document"] for row in exported] == [row["Document"] for row in rows]


def test_dates_that_were_looked_at_are_said_of_each_ledger_where_they_differ(pair: Pair) -> None:
    done(pair.first, "old", day=date(2025, 6, 30))
    done(pair.second, "new")
    text = words(pair.get("/keys"))
    assert f"{LEDGER}: business dates 2025-06-30 to 2025-06-30" in text
    assert f"{SECOND}: business dates 2026-01-30 to 2026-01-30" in text
    assert "old" in text
    assert "new" in text


def test_an_address_without_a_ledger_leads_to_the_one_that_has_it(pair: Pair) -> None:
    (only,) = done(pair.second, "E2E-2")
    assert "E2E-2" in words(pair.get(f"/key?date={DAY}&key={only}"))
    day = pair.get(f"/day?dag={PAYMENTS}&date={DAY}")
    assert f"ledger={SECOND}" in links(day, "/key?")[0]
    (number,) = broken(pair.second, PAYMENTS, 1)
    assert "amount mismatch" in words(pair.get(f"/break?id={number}")).lower()
    assert "Not found" in words(pair.get(f"/key?date={DAY}&key={'0' * 32}", status=404))


def test_what_both_have_is_asked_for(pair: Pair) -> None:
    for ledger in (pair.first, pair.second):
        (key,) = done(ledger, "E2E-1")
    page = pair.get(f"/key?date={DAY}&key={key}", status=300)
    assert "Which ledger?" in words(page)
    for name in (LEDGER, SECOND):
        (link,) = {each for each in links(page, f"ledger={name}") if "/key?" in each}
        assert "E2E-1" in words(pair.get(link.partition("/airflow-guard")[2]))
    assert "Which ledger?" in words(pair.get("/forms/rename", status=300))


def test_tabs_and_the_link_of_a_task_show_both(pair: Pair) -> None:
    done(pair.first, "E2E-1", run="scheduled__a")
    done(pair.second, "E2E-2", run="scheduled__b")
    text = words(
        pair.get(f"/tab/task_instance?dag_id={PAYMENTS}&run_id=scheduled__b&task_id=post&map_index=-1")
    )
    assert "E2E-2" in text
    both = words(pair.get(f"/tab/task?dag_id={PAYMENTS}&task_id=post"))
    assert "E2E-1" in both
    assert "E2E-2" in both
    one = words(pair.get(f"/tab/task?dag_id={PAYMENTS}&task_id=post&ledger={SECOND}"))
    assert "E2E-1" not in one


def test_the_calendar_and_the_changes_show_both(pair: Pair) -> None:
    done(pair.first, "E2E-1")
    done(pair.second, "E2E-2")
    for path in ("/", f"/tab/dag?dag_id={PAYMENTS}"):
        cells = links(pair.get(path), f"/day?ledger={LEDGER}") + links(
            pair.get(path), f"/day?ledger={SECOND}"
        )
        assert len(cells) == 2
    changes = pair.get("/changes")
    for name in (LEDGER, SECOND):
        assert len(links(changes, f"forms/rerun?ledger={name}")) == 1


def test_what_is_chosen_in_a_list_of_both_is_settled_in_its_own_ledger(pair: Pair) -> None:
    in_doubt(pair.first, "E2E-1")
    (key,) = in_doubt(pair.second, "E2E-2")
    page = pair.get("/open")
    forms = dict(
        re.findall(r'<form class="tools start" id="([^"]+)".*?name="ledger" value="([^"]+)"', page, re.DOTALL)
    )
    boxes = re.findall(r'type="checkbox" form="([^"]+)" name="pick" value="([^"]+)"', page)
    assert sorted(forms.values()) == sorted([LEDGER, SECOND])
    assert len(boxes) == 2
    ((form, pick),) = [(form, pick) for form, pick in boxes if pick.endswith(key)]
    assert forms[form] == SECOND
    assert f"Settle what is chosen in {SECOND}" in words(page)
    opened = f"/forms/settle?ledger={SECOND}&pick={pick}"
    answer = {"decision": "happened", "reason": "the bank has it"}
    _, confirmation = pair.site.preview(opened, answer)
    assert "1 keys are settled" in words(pair.site.post("/forms/settle", confirmation))
    assert [row["Document"] for row in pair.cells("/open")] == ["E2E-1"]


def test_a_ledger_that_is_down_hides_nothing_of_the_other_and_is_said(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(pair.second, "E2E-2")
    down = '{"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "login": "x", "schema": "x"}'
    monkeypatch.setenv(f"AIRFLOW_CONN_{LEDGER.upper()}", down)
    for path in ("/keys", "/search?q=E2E-2", "/"):
        text = words(pair.get(path))
        assert f"Ledger {LEDGER}: Its database cannot be reached" in text
        assert "E2E-2" in text or path == "/"
    # A file that lacks a ledger's rows would be taken for all of them; and what was not found may be there.
    pair.get("/csv/keys", status=503)
    pair.get(f"/key?date={DAY}&key={'0' * 32}", status=503)
    monkeypatch.setenv(f"AIRFLOW_CONN_{SECOND.upper()}", down)
    pair.get("/keys", status=503)


def test_nobody_sees_rows_of_dags_that_they_may_not_read_in_any_ledger(pair: Pair) -> None:
    done(pair.second, "E2E-2")
    assert "E2E-2" not in words(pair.get("/keys", "limited"))
    assert "0 found" in words(pair.get("/search?q=E2E-2", "limited"))
