"""What the pages say, over HTTP."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

import pytest

from demo.waiting import Patience
from tests.ui.books import LONG
from tests.ui.visiting import links, visit, words

if TYPE_CHECKING:
    from collections.abc import Collection

    import httpx

    from tests.ui.airflow_with_pages import AirflowWithPages
    from tests.ui.conftest import World


def path_of(url: str) -> str:
    return url.partition("/airflow-guard")[2]


def test_the_start_page_says_whether_anything_needs_a_person(world: World) -> None:
    with world.airflow.client("viewer") as client:
        both = words(visit(client, "/"))
        assert "Ledger core_banking" in both
        assert "Ledger cards Nothing has run under guard yet" in both
        page = visit(client, "/?ledger=core_banking")
        text = words(page)
        assert "11 matters need a person. The newest business date is 2026-01-31." in text
        assert text.index("3 documents of balance_letters / notify_customer, 2026-01-30") < text.index(
            "1 break of"
        )
        day = words(visit(client, "/?ledger=core_banking&date=2026-01-29"))
        assert "Business date 2026-01-29" in day
        assert "5 open breaks" in day
        assert "2026-01-20, done: 8 documents, 8 duplicates held off" in page
        assert "2026-01-27, done" in page
        assert "changed since it was reconciled" in page
        assert 'aria-label="Documents per business date' in page
        assert "2026-01-29: -1,250.00" in page
        earlier = path_of(links(page, "until=2025")[0])
        assert "Nothing ran for these dates" in words(visit(client, earlier))


def test_a_cell_leads_to_its_date(world: World) -> None:
    with world.airflow.client("viewer") as client:
        start = visit(client, "/?ledger=core_banking")
        (cell,) = links(start, "day?ledger=core_banking&dag=bank_statements&date=2026-01-29")
        text = words(visit(client, path_of(cell)))
        assert "bank_statements, business date 2026-01-29 breaks" in text
        assert (
            "amount mismatch in amount DE89370400440532013001/029 currency EUR 1,234,567.89 1,233,317.89 -1,250.00 2 d 3 h"
            in text
        )
        assert "post_statement 12 12 done" in text
        assert "Nobody tried anything twice" in text
        twice = words(visit(client, "/day?ledger=core_banking&dag=bank_statements&date=2026-01-26"))
        assert "Duplicates that were held off" in twice
        assert "manual__2026-01-26_second, try 1" in twice


def test_a_key_is_a_timeline(world: World) -> None:
    with world.airflow.client("viewer") as client:
        found = visit(client, "/search?q=letter-0115-003")
        text = words(visit(client, path_of(links(found, "/key?")[0])))
    life = ("Claimed", "The effect began", "In doubt:", "Resolved: it happened", "Asked for again")
    places = [text.index(each, text.index("Its life")) for each in life]
    assert places == sorted(places)
    assert "ada" in text[places[3] : places[4]]
    assert "ticket 4711" in text[places[3] : places[4]]
    assert "Who may edit" not in text, "nothing is to be decided"


@pytest.mark.parametrize("path", ["/key", "/key?date=2026-01-30", "/break?id=x", "/check?id=-1", "/day?dag=payments", "/tab/dag",
                                  "/?ledger=other", "/keys?ledger=other", "/day?dag=payments&date=2026-02-31"])  # fmt: skip
def test_an_address_that_means_nothing_is_not_found(world: World, path: str) -> None:
    with world.airflow.client("admin") as client:
        assert "There is nothing here, or you may not see it" in words(visit(client, path, status=404))


def test_filters_are_in_the_address_and_in_the_download(world: World) -> None:
    with world.airflow.client("viewer") as client:
        page = visit(client, "/breaks?type=amount_mismatch&dag=bank_statements&age=3")
        assert "CH9300762011623852957/022" in page
        assert "1 to 1 of 1" in words(page)
        (download,) = links(page, "csv/breaks")
        rows = list(csv.DictReader(io.StringIO(visit(client, path_of(download)).removeprefix("\ufeff"))))
        assert [row["document"] for row in rows] == ["CH9300762011623852957/022"]
        assert "currency none" in words(visit(client, "/breaks?group=currency=none"))
        assert "1 to 2 of 2" in words(visit(client, "/keys?state=rejected&from=2026-01-29&to=2026-01-29"))
        assert "1 to 12 of 12" in words(visit(client, "/keys?run=manual__2026-01-15&dag=balance_letters"))


def test_a_filter_that_cannot_be_read_is_said(world: World) -> None:
    with world.airflow.client("viewer") as client:
        text = words(visit(client, "/breaks?from=2026-02-31&age=x&type=other&group=EUR&state=gone"))
        for problem in ("'2026-02-31' is no date", "Age 'x'", "no type of break 'other'", "'EUR' is no group",
                        "no state 'gone'"):  # fmt: skip
            assert problem in text


def test_lists_have_pages_of_fifty(world: World) -> None:
    with world.airflow.client("viewer") as client:
        first = visit(client, "/keys?dag=balance_letters")
        assert "1 to 50 of" in words(first)
        (following,) = set(links(first, "page=2"))
        second = visit(client, path_of(following))
        assert "51 to 100 of" in words(second)
        assert not set(links(first, "/key?")) & set(links(second, "/key?"))
        assert visit(client, "/keys?page=999999")
        assert visit(client, "/keys?page=-1")


def test_tabs_cut_to_run_task_and_instance(world: World) -> None:
    cut = "dag_id=payments&run_id=manual__2026-01-29"
    with world.airflow.client("viewer") as client:
        run = words(visit(client, f"/tab/run?{cut}"))
        assert "E2E-20260129-0018" in run
        assert "E2E-20260130" not in run
        # A task that is not mapped has this in its address, literally.
        instance = words(visit(client, f"/tab/task_instance?{cut}&task_id=pay&map_index={{MAP_INDEX}}"))
        assert "E2E-20260129-0018" in instance
        assert "instance" not in instance.partition("Documents whose")[0].partition("payments, run")[2]
        mapped = words(visit(client, f"/tab/task_instance?{cut}&task_id=pay&map_index=3"))
        assert "The ledger knows nothing of this" in mapped
        task = words(visit(client, "/tab/task?dag_id=payments&task_id=pay"))
        assert "E2E-20260130-0018" in task
        long = visit(client, f"/tab/task?dag_id={LONG}&task_id={'t' * 250}")
        assert "D" * 255 in long


def test_search_finds_documents_keys_and_dates(world: World) -> None:
    with world.airflow.client("viewer") as client:
        found = visit(client, "/search?q=E2E-20260129-0018")
        key = links(found, "/key?")[0].rpartition("key=")[2]
        assert "1 found" in words(found)
        assert "E2E-20260129-0018" in visit(client, f"/search?q={key[:10]}")
        assert "is a business date" in words(visit(client, "/search?q=2026-01-29"))
        assert "0 found" in words(visit(client, "/search?q=nothing-like-it"))
        assert "Give a document" in words(visit(client, "/search"))


SAID = {
    "bare": "Ledger bare: Its tables are not there, or of another version",
    "down": "Ledger down: Its database cannot be reached",
    "silent": "Ledger silent: Its database does not answer in time",
    "absent": "Ledger absent: There is no such connection",
}


def test_ledgers_in_trouble_say_so_each_alone(troubled: AirflowWithPages) -> None:
    with troubled.client("viewer") as client:
        text = said(client, "/", SAID.values())
        assert "airflow-guard migrate --ledger bare" in text
        assert "127.0.0.1" not in text, "where databases are is not for everybody"
        for ledger, words_of_it in SAID.items():
            assert said(client, f"/keys?ledger={ledger}", [words_of_it], status=503)


def said(client: httpx.Client, path: str, wanted: Collection[str], *, status: int = 200) -> str:
    """Return what a page says as soon as it says all that is wanted: a busy machine makes any database look slow."""
    text = ""
    patience = Patience(f"{path} to say {wanted}", lambda: text)
    while not all(each in text for each in wanted):
        patience.check()
        text = words(visit(client, path, status=status))
    return text


def test_threads_that_hang_do_not_pile_up_and_airflow_goes_on(troubled: AirflowWithPages) -> None:
    with troubled.client("viewer") as client:
        for _ in range(10):
            assert client.get("/keys?ledger=silent").status_code == 503
        health = client.get(f"{troubled.address}/api/v2/monitor/health")
        assert health.status_code == 200
