"""Keys that a person settles: one, or several at once, all of them or none."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

import pytest

from airflow_guard.core.keys import KeySpace
from airflow_guard.core.states import State
from airflow_guard.store import resolution
from tests.contract.attempts import attempt
from tests.databases import databases
from tests.ui.auth_manager import LIMITED, ONE_DAG
from tests.ui.books import HOSTILE_DOCUMENTS, HOSTILE_REASON
from tests.ui.forms.site import LEDGER, Site, events, hidden
from tests.ui.visiting import links, words

if TYPE_CHECKING:
    from tests.contract.attempts import Attempt

# What a form asks of the store is tested on every database there; here what is told by the database itself.
pytestmark = databases("sqlite")
OF_EACH = databases("sqlite", "postgres_embedded", "mariadb")
DAY = date(2026, 1, 30)
SPACE = KeySpace("payments", "pay", DAY)


def doubts(site: Site, *names: str, space: KeySpace = SPACE) -> Attempt:
    own = attempt(site.ledger, *names, space=space).begin()
    return own.doubt("ReadTimeout: no answer within 30 s")


def opened(own: Attempt) -> str:
    picks = "&".join(f"pick={own.space.key_date}.{key}" for key in own.hashes)
    return f"/forms/settle?ledger={LEDGER}&{picks}"


def answer(decision: str = "happened", reason: str = "the bank has them, ticket 4711") -> dict[str, str]:
    return {"decision": decision, "reason": reason}


def states(own: Attempt) -> set[State]:
    rows = own.ledger.read(own.space.key_date, own.hashes)
    return {row.state for row in rows.values()}


def test_several_keys_are_chosen_in_the_list_previewed_and_settled_together(site: Site) -> None:
    own = doubts(site, "E2E-1", "E2E-2", "E2E-3")
    listed = site.get("/open")
    assert listed.count('type="checkbox"') == 3
    assert all(f"{DAY}.{key}" in listed for key in own.hashes)
    form = site.get(opened(own))
    assert "It happened" in words(form)
    assert "ReadTimeout" in words(form)
    page, confirmation = site.preview(opened(own), answer())
    assert all(name in words(page) for name in own_names(own))
    assert states(own) == {State.IN_DOUBT}, "a preview changes nothing"
    assert "3 keys are settled" in words(site.post("/forms/settle", confirmation))
    assert states(own) == {State.COMPLETED}
    told = events(site.ledger, "resolve_happened")
    assert {(each.actor, each.reason) for each in told} == {("op", "the bank has them, ticket 4711")}
    assert {each.key_hash for each in told} == set(own.hashes)


def test_nothing_can_be_chosen_by_who_may_not_settle_it_and_where_nothing_is_to_be_settled(
    site: Site,
) -> None:
    own = doubts(site, "E2E-1")
    read = site.get("/open", "viewer")
    assert "E2E-1" in words(read)
    assert "Choose" not in words(read)
    assert "Settle what is chosen" not in words(read)
    site.post("/forms/settle", site.preview(opened(own), answer())[1])
    assert "Choose" not in words(site.get("/keys"))


def own_names(own: Attempt) -> list[str]:
    return [str(document.name) for document in own.documents]


def test_if_one_of_several_has_changed_none_is_settled_and_the_page_says_how_they_stand(site: Site) -> None:
    own = doubts(site, "E2E-1", "E2E-2")
    _, confirmation = site.preview(opened(own), answer())
    resolution.resolve(
        site.ledger, DAY, own.hashes[1], own.own.token, "did_not_happen", actor="ada", reason="asked the bank"
    )
    page = site.post("/forms/settle", confirmation, status=409)
    assert "settled already" in words(page)
    assert "None of the 2 keys was changed" in words(page)
    assert "E2E-1: in doubt" in words(page)
    assert "E2E-2: failed" in words(page)
    assert len(links(page, "/key?")) == 2
    assert states(own) == {State.IN_DOUBT, State.FAILED}
    assert not events(site.ledger, "resolve_happened")


@OF_EACH
def test_a_double_click_settles_once_and_both_answers_say_so(site: Site) -> None:
    own = doubts(site, "E2E-1", "E2E-2")
    _, confirmation = site.preview(opened(own), answer())
    both = site.twice("/forms/settle", confirmation)
    assert [each.status_code for each in both] == [200, 200]
    assert states(own) == {State.COMPLETED}
    assert len(events(site.ledger, "resolve_happened")) == 2, "one for each key"


@OF_EACH
def test_a_double_click_on_one_key_settles_once(site: Site) -> None:
    own = doubts(site, "E2E-1")
    one = f"/forms/resolve?ledger={LEDGER}&date={DAY}&key={own.hashes[0]}"
    _, confirmation = site.preview(one, answer())
    both = site.twice("/forms/resolve", confirmation)
    assert [each.status_code for each in both] == [200, 200]
    assert "Recorded" in words(both[0].text)
    assert len(events(site.ledger, "resolve_happened")) == 1


@OF_EACH
def test_a_stale_page_about_one_key_links_to_how_it_stands(site: Site) -> None:
    own = doubts(site, "E2E-1")
    one = f"/forms/resolve?ledger={LEDGER}&date={DAY}&key={own.hashes[0]}"
    _, confirmation = site.preview(one, answer("did_not_happen"))
    resolution.resolve(
        site.ledger, DAY, own.hashes[0], own.own.token, "happened", actor="ada", reason="it is there"
    )
    page = site.post("/forms/resolve", confirmation, status=409)
    assert "ada" in words(page)
    assert links(page, f"key={own.hashes[0]}")
    assert states(own) == {State.COMPLETED}


@pytest.mark.parametrize(
    ("decision", "after", "kind"),
    [("waive", State.COMPLETED, "waive"), ("send_again", State.FAILED, "send_again")],
)
def test_rejected_keys_are_waived_or_sent_again(site: Site, decision: str, after: State, kind: str) -> None:
    own = attempt(site.ledger, "E2E-1", "E2E-2", space=SPACE).begin().reject("AC04: the account is closed")
    form = words(site.get(opened(own)))
    assert "It is settled another way" in form
    assert "It happened" not in form
    _, confirmation = site.preview(opened(own), answer(decision))
    site.post("/forms/settle", confirmation)
    assert states(own) == {after}
    assert [each.actor for each in events(site.ledger, kind)] == ["op", "op"]


@OF_EACH
def test_keys_of_two_states_have_no_common_answer(site: Site) -> None:
    own = doubts(site, "E2E-1")
    other = attempt(site.ledger, "E2E-2", space=SPACE).begin().reject("AC04")
    page = site.get(f"{opened(own)}&pick={DAY}.{other.hashes[0]}")
    assert "no answer that fits all of them" in words(page)


def test_members_of_a_batch_are_named_before_they_are_settled_with_it(site: Site) -> None:
    own = attempt(site.ledger, "E2E-1", "E2E-2", "E2E-3", space=SPACE).begin(batch=True).doubt("timeout")
    one = f"/forms/settle?ledger={LEDGER}&pick={DAY}.{own.hashes[0]}"
    page, confirmation = site.preview(one, answer())
    assert words(page).count("of the same batch as one that was chosen") == 2
    site.post("/forms/settle", confirmation)
    assert states(own) == {State.COMPLETED}


def test_without_a_reason_nothing_is_settled_and_the_problem_has_the_focus(site: Site) -> None:
    own = doubts(site, "E2E-1")
    page = site.post("/forms/settle", {**hidden(site.get(opened(own))), **answer(reason="  ")}, status=422)
    assert "A reason is missing" in words(page)
    assert 'class="problem" role="alert" tabindex="-1" autofocus' in page
    assert "<title>Problem: " in page
    assert 'value="happened" required checked' in page, "what was chosen stays chosen"


def test_what_verify_said_stands_on_the_form(site: Site) -> None:
    own = doubts(site, "E2E-1")
    run = own.own.task_run_id
    site.ledger.runs.close(run, "failed", {"in_doubt": 1}, "E2E-1 is in doubt. verify could not tell.")
    one = f"/forms/resolve?ledger={LEDGER}&date={DAY}&key={own.hashes[0]}"
    assert "verify could not tell" in words(site.get(one))


def test_hostile_text_stays_text(site: Site) -> None:
    own = attempt(site.ledger, *HOSTILE_DOCUMENTS, space=SPACE).begin().doubt("<img src=x onerror=alert(1)>")
    page, confirmation = site.preview(opened(own), answer(reason=HOSTILE_REASON))
    resolution.resolve(
        site.ledger, DAY, own.hashes[0], own.own.token, "happened", actor="<b>x</b>", reason=HOSTILE_REASON
    )
    stale = site.post("/forms/settle", confirmation, status=409)
    for text in (site.get(opened(own)), page, stale):
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert "<b>" not in text
    assert HOSTILE_REASON in words(page)


def test_keys_of_another_dag_are_not_there(site: Site) -> None:
    own = doubts(site, "E2E-1")
    mine = doubts(site, "L-1", space=KeySpace(ONE_DAG, "send", DAY))
    for url in (opened(own), f"{opened(mine)}&pick={DAY}.{own.hashes[0]}"):
        site.get(url, LIMITED, status=404)
    _, confirmation = site.preview(opened(mine), answer(), LIMITED)
    stolen = {**confirmation, "pick": f"{DAY}.{own.hashes[0]}.{own.own.token}"}
    site.post("/forms/settle", stolen, LIMITED, status=403)
    assert states(own) == {State.IN_DOUBT}
    assert 'type="checkbox"' in site.get("/open", LIMITED)
    assert 'type="checkbox"' not in site.get("/open", "viewer"), "who may not edit is not asked to choose"
