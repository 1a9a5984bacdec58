"""What is about whole operations: other names, and what is done and old."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_guard.acts.purging import Purge
from airflow_guard.acts.renaming import rename
from airflow_guard.core.keys import KeySpace
from airflow_guard.core.states import State
from airflow_guard.store import aliases
from tests.contract.attempts import Attempt, attempt, documents_of
from tests.databases import databases
from tests.ui.auth_manager import LIMITED, ONE_DAG
from tests.ui.forms.site import LEDGER, Site, events, hidden
from tests.ui.visiting import words

# What a form asks of the store is tested on every database there; here what is told by the database itself.
pytestmark = databases("sqlite")
OF_EACH = databases("sqlite", "postgres_embedded", "mariadb")
DAY = date(2025, 1, 30)
RENAME, PURGE = f"/forms/rename?ledger={LEDGER}", f"/forms/purge?ledger={LEDGER}"
NAMES = {
    "old_namespace": "payments", "old_operation": "pay", "new_namespace": "payments", "new_operation": "pay_out",
    "reason": "the task was renamed",
}  # fmt: skip
OLD = {"namespace": "payments", "operation": "pay", "until": str(DAY), "reason": "kept for a year"}


def done(site: Site, *names: str, day: date = DAY, operation: str = "pay", **who: Any) -> Attempt:
    where = KeySpace("payments", operation, day)
    return attempt(site.ledger, *names, space=where, **who).begin().complete("1").die()


def count(site: Site) -> int:
    e = site.ledger.database.tables.execution
    with site.ledger.database.engine.connect() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(e)).scalar_one())


def moved(site: Site, name: str) -> bool:
    where = KeySpace("payments", "pay_out", DAY)
    hashes = [document.key_hash for document in documents_of(where, name)]
    return [row.state for row in site.ledger.read(DAY, hashes).values()] == [State.COMPLETED]


def test_an_operation_is_renamed_after_a_preview(site: Site) -> None:
    done(site, "E2E-1", "E2E-2")
    page, confirmation = site.preview(RENAME, NAMES)
    assert "Keys 2 (2 completed)" in words(page)
    assert not moved(site, "E2E-1")
    assert "Renamed" in words(site.post("/forms/rename", confirmation))
    assert moved(site, "E2E-1")
    (told,) = events(site.ledger, "rename")
    assert (told.actor, told.reason) == ("op", "the task was renamed")
    assert aliases.resolve(site.ledger.database, "payments", "pay") == ("payments", "pay_out")


@OF_EACH
def test_a_purged_date_reads_purged_in_the_calendar(site: Site) -> None:
    done(site, "E2E-1", day=DAY - timedelta(days=1))
    done(site, "E2E-2", day=DAY + timedelta(days=2))
    assert "purged" not in words(site.get("/"))
    list(Purge(site.ledger, DAY, "ada", "kept for a year").run())
    text = words(site.get("/"))
    assert text.count("purged") == 31 - 2 + 1, "each date up to the horizon, and the legend"
    assert text.count("never ran") == 1 + 1, "the date between, and the legend"


@OF_EACH
def test_a_double_click_renames_once(site: Site) -> None:
    done(site, "E2E-1", "E2E-2")
    _, confirmation = site.preview(RENAME, NAMES)
    both = site.twice("/forms/rename", confirmation)
    # The second finds less than was previewed, or the keys locked.
    assert {each.status_code for each in both} <= {200, 409, 503}
    assert 200 in {each.status_code for each in both}
    assert "Renamed" in words(site.post("/forms/rename", confirmation)), "and sent again it is done"
    assert len(events(site.ledger, "rename")) == 1


def test_a_rename_that_somebody_else_made_otherwise_is_named(site: Site) -> None:
    done(site, "E2E-1")
    _, confirmation = site.preview(RENAME, NAMES)
    rename(site.ledger, ("payments", "pay"), ("payments", "send_money"), actor="ada", reason="ours")
    page = site.post("/forms/rename", confirmation, status=409)
    assert "by ada (ours)" in words(page)
    assert len(events(site.ledger, "rename")) == 1


@OF_EACH
def test_keys_that_came_since_the_preview_are_shown_first(site: Site) -> None:
    done(site, "E2E-1")
    _, confirmation = site.preview(RENAME, NAMES)
    done(site, "E2E-2")
    page = site.post("/forms/rename", confirmation, status=409)
    assert "Keys 2 (2 completed)" in words(page)
    assert not events(site.ledger, "rename")
    site.post("/forms/rename", hidden(page))
    assert moved(site, "E2E-2")


def test_what_is_being_worked_on_and_misspelt_names_are_refused(site: Site) -> None:
    attempt(site.ledger, "E2E-1", space=KeySpace("payments", "pay", DAY)).begin()
    form = hidden(site.get(RENAME))
    assert "is being worked on" in words(site.post("/forms/rename", {**form, **NAMES}, status=422))
    own = {
        "old_namespace": ONE_DAG,
        "old_operation": "snd",
        "new_namespace": ONE_DAG,
        "new_operation": "mail",
    }
    page = site.post(
        "/forms/rename", {**hidden(site.get(RENAME, LIMITED)), **own, "reason": "x"}, LIMITED, status=422
    )
    assert "knows no operation" in words(page)
    assert "payments" not in page, "names of other DAGs are not offered"
    missing = {**NAMES, "old_operation": "pya"}
    assert "payments / pya" in words(site.post("/forms/rename", {**form, **missing}, status=422))


def test_keys_are_not_moved_into_a_namespace_of_another_dag_nor_out_of_it(site: Site) -> None:
    done(site, "E2E-1")
    where = KeySpace(ONE_DAG, "send", DAY)
    attempt(site.ledger, "L-1", space=where).begin().complete("1").die()
    form = hidden(site.get(RENAME, LIMITED))
    own = {
        "old_namespace": ONE_DAG,
        "old_operation": "send",
        "new_namespace": ONE_DAG,
        "new_operation": "mail",
    }
    for wrong in ({"new_namespace": "payments"}, {"old_namespace": "payments", "old_operation": "pay"}):
        fields = {**form, **own, **wrong, "reason": "x"}
        assert "may not edit" in words(site.post("/forms/rename", fields, LIMITED, status=403))
    page, _ = site.preview(RENAME, {**own, "reason": "x"}, LIMITED)
    assert "Keys 1" in words(page)


def test_what_is_done_and_old_goes_and_a_horizon_stays(site: Site) -> None:
    done(site, "E2E-1", "E2E-2")
    done(site, "E2E-3", day=DAY + timedelta(days=1))
    attempt(site.ledger, "E2E-4", space=KeySpace("payments", "pay", DAY)).begin().doubt("x")
    page, confirmation = site.preview(PURGE, OLD)
    assert "payments / pay 2" in words(page)
    assert "cannot be taken back" in words(page)
    assert count(site) == 4
    assert "Removed" in words(site.post("/forms/purge", confirmation))
    assert count(site) == 2, "what is younger, and what is in doubt, stays"
    (begun,), (told,) = events(site.ledger, "purge"), events(site.ledger, "purged")
    assert (begun.actor, begun.reason, told.actor) == ("op", "kept for a year", "op")
    assert "2 keys" in told.key_text


@OF_EACH
def test_a_double_click_removes_once_and_sent_again_it_goes_on(site: Site) -> None:
    done(site, *(f"E2E-{number}" for number in range(30)))
    _, confirmation = site.preview(PURGE, OLD)
    both = site.twice("/forms/purge", confirmation)
    # The second finds less than was previewed, or the keys locked.
    assert {each.status_code for each in both} <= {200, 409, 503}
    assert 200 in {each.status_code for each in both}
    assert count(site) == 0
    assert len(events(site.ledger, "purge")) == 1
    site.post("/forms/purge", confirmation)
    assert len(events(site.ledger, "purge")) == 1


@OF_EACH
def test_a_preview_that_is_no_longer_true_is_shown_anew(site: Site) -> None:
    done(site, "E2E-1")
    _, confirmation = site.preview(PURGE, OLD)
    done(site, "E2E-2")
    page = site.post("/forms/purge", confirmation, status=409)
    assert "payments / pay 2" in words(page)
    assert count(site) == 2
    site.post("/forms/purge", hidden(page))
    assert count(site) == 0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"until": "2999-01-01"}, "not over yet"), ({"until": "x"}, "x"), ({"reason": ""}, "A reason is missing"),
     ({"until": "2020-01-01"}, "nothing to remove")],
)  # fmt: skip
def test_what_cannot_be_removed(site: Site, wrong: dict[str, str], said: str) -> None:
    done(site, "E2E-1")
    page = site.post("/forms/purge", {**hidden(site.get(PURGE)), **OLD, **wrong}, status=422)
    assert said in words(page)
    assert count(site) == 1


@OF_EACH
def test_an_operation_of_two_dags_needs_both(site: Site) -> None:
    where = KeySpace(ONE_DAG, "send", DAY)
    attempt(site.ledger, "L-1", space=where).begin().complete("1").die()
    attempt(site.ledger, "L-2", space=where, dag_id="payments").begin().complete("1").die()
    form = hidden(site.get(PURGE, LIMITED))
    fields = {**OLD, "namespace": ONE_DAG, "operation": "send"}
    page = site.post("/forms/purge", {**form, **fields}, LIMITED, status=403)
    assert "may not edit" in words(page)
    assert "payments" not in words(page), "a DAG that may not be read is not named"
    site.preview(PURGE, fields)


def test_all_operations_at_once(site: Site) -> None:
    done(site, "E2E-1")
    done(site, "E2E-2", operation="refund")
    _, confirmation = site.preview(PURGE, {**OLD, "namespace": "", "operation": ""})
    site.post("/forms/purge", confirmation)
    assert count(site) == 0
    assert len(events(site.ledger, "purge")) == 2
