"""History that is adopted from an uploaded file."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from airflow_guard.acts.adopt import MAX_UPLOAD_BYTES
from airflow_guard.core.keys import KeySpace
from airflow_guard.core.states import State
from tests.contract.attempts import attempt, documents_of
from tests.databases import databases
from tests.ui.auth_manager import LIMITED, ONE_DAG
from tests.ui.forms.site import LEDGER, Site, events, hidden
from tests.ui.visiting import words

# What a form asks of the store is tested on every database there; here what is told by the database itself.
pytestmark = databases("sqlite")
OF_EACH = databases("sqlite", "postgres_embedded", "mariadb")
OPENED = f"/forms/adopt?ledger={LEDGER}"
ROWS = "".join(f"2025-01-{day:02},OLD-{day}\n" for day in range(1, 21))
HISTORY = f"business_date,document\n{ROWS}"


def upload(text: str | bytes) -> dict[str, Any]:
    content = text.encode() if isinstance(text, str) else text
    return {"csv": ("history.csv", content, "text/csv")}


def filled(**more: str) -> dict[str, str]:
    return {
        "namespace": "payments", "operation": "pay", "once_per": "date", "delimiter": "comma",
        "reason": "paid by the old system", **more,
    }  # fmt: skip


def state_of(site: Site, day: date, name: str) -> State | None:
    where = KeySpace("payments", "pay", day)
    (key,) = [document.key_hash for document in documents_of(where, name)]
    row = site.ledger.read(day, [key]).get(key)
    return row.state if row else None


def test_a_file_is_previewed_with_its_first_rows_and_counts_and_adopted(site: Site) -> None:
    page, confirmation = site.preview(OPENED, filled(), files=upload(HISTORY))
    assert "20 rows in the file 20 would be adopted" in words(page)
    assert "OLD-10" in words(page)
    assert "OLD-11" not in words(page), "only the first rows are shown"
    assert state_of(site, date(2025, 1, 1), "OLD-1") is None, "a preview writes nothing"
    assert not events(site.ledger, "adopt")
    assert "All 20 rows of the file are in the ledger" in words(site.post("/forms/adopt", confirmation))
    assert state_of(site, date(2025, 1, 20), "OLD-20") is State.COMPLETED
    (told,) = events(site.ledger, "adopt")
    assert (told.actor, told.reason) == ("op", "paid by the old system")


@OF_EACH
def test_a_double_click_adopts_once(site: Site) -> None:
    _, confirmation = site.preview(OPENED, filled(), files=upload(HISTORY))
    both = site.twice("/forms/adopt", confirmation)
    assert [each.status_code for each in both] == [200, 200]
    assert len(events(site.ledger, "adopt")) == 1


@OF_EACH
def test_what_the_ledger_has_learnt_since_the_preview_is_shown_before_the_rest_is_adopted(site: Site) -> None:
    _, confirmation = site.preview(OPENED, filled(), files=upload(HISTORY))
    attempt(site.ledger, "OLD-3", space=KeySpace("payments", "pay", date(2025, 1, 3))).begin()
    page = site.post("/forms/adopt", confirmation, status=409)
    assert "has changed meanwhile" in words(page)
    assert "19 would be adopted as completed 1 are in the ledger" in words(page)
    assert not events(site.ledger, "adopt")
    site.post("/forms/adopt", hidden(page))
    assert state_of(site, date(2025, 1, 3), "OLD-3") is State.IN_PROGRESS, "left as it is"
    assert len(events(site.ledger, "adopt")) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("business_date,document\nsoon,OLD-1\n2025-01-02,\n", "2 of 2 rows cannot be adopted"),
        ("business_date,documnet\n2025-01-01,OLD-1\n", "unknown columns: documnet"),
        ("business_date;document\n2025-01-01;OLD-1\n", "is its delimiter another one"),
        ("", "CSV file is empty"),
        ("business_date,document\n", "no rows to adopt"),
        ("business_date,document\n2025-01-01,B\xe4r".encode("latin-1"), "not UTF-8"),
        ("business_date,document,result\n2025-01-01,OLD-1,{not json\n", "is not JSON"),
        (b"\x00\x01\x02", "unknown columns"),
        ("business_date,document\n" + "2025-01-01," + "x" * 140_000 + "\n", "line 2"),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_their_lines_as_the_command_names_them(
    site: Site, text: str | bytes, said: str
) -> None:
    page = site.post("/forms/adopt", {**hidden(site.get(OPENED)), **filled()}, files=upload(text), status=422)
    assert said in words(page)
    assert 'value="payments"' in page
    assert not events(site.ledger, "adopt")


def test_other_delimiters_and_the_mark_of_spreadsheets(site: Site) -> None:
    text = "\ufeff" + HISTORY.replace(",", ";").replace("\n", "\r\n")
    page, _ = site.preview(OPENED, filled(delimiter="semicolon"), files=upload(text))
    assert "20 would be adopted" in words(page)


def test_no_file_and_files_that_are_too_large_are_refused(site: Site) -> None:
    form = {**hidden(site.get(OPENED)), **filled()}
    assert "Choose a CSV file" in words(site.post("/forms/adopt", form, status=422))
    line = b"2025-01-01,OLD-1\n"
    large = b"business_date,document\n" + line * (MAX_UPLOAD_BYTES // len(line) + 1)
    page = site.post("/forms/adopt", form, files=upload(large), status=422)
    assert "larger than 5,000,000 bytes" in words(page)
    page = site.post("/forms/adopt", form, files=upload(large * 2 + b"x"), status=413)
    assert "too large" in words(page)


def test_a_confirmation_with_another_file_is_refused(site: Site) -> None:
    _, confirmation = site.preview(OPENED, filled(), files=upload(HISTORY))
    _, other = site.preview(OPENED, filled(), files=upload(HISTORY.replace("OLD", "NEW")))
    page = site.post("/forms/adopt", {**confirmation, "packed": other["packed"]}, status=403)
    assert "not valid any more" in words(page)
    assert not events(site.ledger, "adopt")


def test_nobody_adopts_into_what_others_keep(site: Site) -> None:
    """A key that is adopted is never executed: that would be a way to stop a payment of another DAG."""
    attempt(site.ledger, "X", space=KeySpace("shared", "pay", date(2025, 1, 1)), dag_id="payments")
    form = hidden(site.get(OPENED, LIMITED))
    for namespace in ("payments", "shared", "nobody_has_used_this"):
        refused = {**form, **filled(namespace=namespace)}
        site.post("/forms/adopt", refused, LIMITED, files=upload(HISTORY), status=404)
    page, _ = site.preview(OPENED, filled(namespace=ONE_DAG), LIMITED, files=upload(HISTORY))
    assert "20 would be adopted" in words(page)
    site.get(OPENED, "viewer", status=404)
    site.post("/forms/adopt", {**hidden(site.get(OPENED)), **filled(namespace="new")}, files=upload(HISTORY))


def test_the_template_has_the_header_and_nothing_to_adopt(site: Site) -> None:
    answer = site.client("op").get("/forms/adopt/template.csv")
    assert answer.text == "business_date,document,cycle,result\r\n"
    assert answer.headers["content-disposition"] == 'attachment; filename="history.csv"'
    page = site.post(
        "/forms/adopt", {**hidden(site.get(OPENED)), **filled()}, files=upload(answer.content), status=422
    )
    assert "no rows to adopt" in words(page)


def test_hostile_cells_stay_text(site: Site) -> None:
    hostile = '"<img src=x onerror=alert(1)>"'
    page, _ = site.preview(OPENED, filled(), files=upload(f"business_date,document\n2025-01-01,{hostile}\n"))
    assert "<img src=x onerror=alert(1)>" in words(page)
    assert "<img src=x" not in page
    wrong = site.post(
        "/forms/adopt", {**hidden(site.get(OPENED)), **filled()},
        files=upload("<script>alert(1)</script>\n"), status=422,
    )  # fmt: skip
    assert "<script>alert" not in wrong
