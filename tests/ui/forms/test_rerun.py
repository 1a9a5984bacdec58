"""Reruns that a person authorises at a page, and reversals of which nobody saw the end."""

from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard.acts import reruns
from airflow_guard.core.keys import KeySpace
from airflow_guard.core.reruns import Reversal
from airflow_guard.core.states import State
from airflow_guard.store import resolution
from tests.contract.attempts import attempt, documents_of, opened
from tests.databases import databases
from tests.ui.auth_manager import LIMITED, ONE_DAG
from tests.ui.books import HOSTILE_REASON
from tests.ui.forms.site import LEDGER, Site, events, hidden
from tests.ui.visiting import links, words

if TYPE_CHECKING:
    from airflow_guard.store.ledger import Ledger
    from tests.contract.attempts import Attempt

# What a form asks of the store is tested on every database there; here what is told by the database itself.
pytestmark = databases("sqlite")
OF_EACH = databases("sqlite", "postgres_embedded", "mariadb")
DAY = date(2026, 1, 29)
SPACE = KeySpace("payments", "pay", DAY)
ASKED = f"/forms/rerun?ledger={LEDGER}&dag=payments&start={DAY}"


def filled(**more: str) -> dict[str, str]:
    return {
        "dag": "payments", "operation": "pay", "start": str(DAY), "end": str(DAY + timedelta(days=1)),
        "expires": "24h", "without_reversal": "yes", "reason": "the file had the wrong date", **more,
    }  # fmt: skip


def done(ledger: Ledger, *names: str, day: date = DAY, dag_id: str = "payments") -> Attempt:
    where = KeySpace(dag_id, "pay", day)
    return (
        attempt(ledger, *names, space=where, run_id=f"scheduled__{day}")
        .begin()
        .complete('{"status": "ACSC"}')
    )


def authorised(ledger: Ledger) -> list[Any]:
    r = ledger.database.tables.rerun
    with ledger.database.engine.connect() as connection:
        return list(connection.execute(sa.select(r).order_by(r.c.id)))


def test_a_range_of_dates_is_previewed_authorised_and_the_command_is_shown(site: Site) -> None:
    first = done(site.ledger, "E2E-1", "E2E-2")
    done(site.ledger, "E2E-3", day=DAY + timedelta(days=1))
    attempt(site.ledger, "E2E-4", space=SPACE).begin().doubt("timeout")
    page, confirmation = site.preview(ASKED, filled())
    assert "3 keys of 2026-01-29 to 2026-01-30" in words(page)
    assert "not done: 1 in doubt" in words(page)
    assert "the second ones come on top" in words(page)
    assert not authorised(site.ledger)
    page = site.post("/forms/rerun", confirmation)
    assert (
        "airflow backfill create --dag-id payments --from-date 2026-01-29 --to-date 2026-01-30T23:59:59"
        in words(page)
    )
    rows = authorised(site.ledger)
    assert len(rows) == 3
    assert {(row.actor, row.reason, row.without_reversal) for row in rows} == {
        ("op", "the file had the wrong date", 1)
    }
    assert {each.actor for each in events(site.ledger, "rerun_authorised")} == {"op"}
    # And a task that comes then executes one of them, once.
    own = reruns_used(site.ledger, first)
    assert own == {first.hashes[0]}
    assert reruns_used(site.ledger, first) == set()


def reruns_used(ledger: Ledger, before: Attempt) -> set[str]:
    from airflow_guard.store.changes import Ownership

    own = Ownership.new(DAY, opened(ledger, SPACE, "backfill__1"), "again")
    with ledger.database.engine.begin() as connection:
        return ledger.reruns.use(connection, own, SPACE, before.hashes[:1])


def test_one_key_is_authorised_from_its_own_page(site: Site) -> None:
    own = done(site.ledger, "E2E-1", "E2E-2")
    key = site.get(f"/key?ledger={LEDGER}&date={DAY}&key={own.hashes[0]}")
    (url,) = links(key, "/forms/rerun?")
    _, confirmation = site.preview(
        url.partition("/airflow-guard")[2],
        {"expires": "4h", "without_reversal": "no", "reason": "wrong account"},
    )
    site.post("/forms/rerun", confirmation)
    (row,) = authorised(site.ledger)
    assert (row.key_hash, row.without_reversal) == (own.hashes[0], 0)


def test_some_documents_of_a_date(site: Site) -> None:
    done(site.ledger, "E2E-1", "E2E-2", "E2E-3")
    page, confirmation = site.preview(ASKED, filled(end="", documents="E2E-1\r\nE2E-3\r\n"))
    assert "2 keys" in words(page)
    site.post("/forms/rerun", confirmation)
    assert len(authorised(site.ledger)) == 2
    page = site.post(
        "/forms/rerun", {**hidden(site.get(ASKED)), **filled(documents="E2E-1\nNO-SUCH")}, status=422
    )
    assert "NO-SUCH" in words(page)


@OF_EACH
def test_a_double_click_authorises_once_and_both_answers_show_the_command(site: Site) -> None:
    done(site.ledger, "E2E-1", "E2E-2")
    _, confirmation = site.preview(ASKED, filled())
    both = site.twice("/forms/rerun", confirmation)
    assert [each.status_code for each in both] == [200, 200]
    assert all("airflow backfill create" in each.text for each in both)
    assert len(authorised(site.ledger)) == 2
    assert len(events(site.ledger, "rerun_authorised")) == 2, "one for each key"


@OF_EACH
def test_what_was_done_since_the_preview_is_not_authorised_unseen(site: Site) -> None:
    done(site.ledger, "E2E-1")
    _, confirmation = site.preview(ASKED, filled())
    done(site.ledger, "E2E-2")
    page = site.post("/forms/rerun", confirmation, status=409)
    assert "2 keys" in words(page)
    assert not authorised(site.ledger)
    site.post("/forms/rerun", hidden(page))
    assert len(authorised(site.ledger)) == 2


def test_what_somebody_else_has_authorised_is_named(site: Site) -> None:
    own = done(site.ledger, "E2E-1")
    judged = [resolution.Judged(DAY, own.hashes[0], own.own.token)]
    _, confirmation = site.preview(ASKED, filled())
    reruns.authorise(site.ledger, judged, actor="ada", reason="mine", expires=timedelta(hours=1))
    page = site.post("/forms/rerun", confirmation, status=422)
    assert "authorised already, by ada" in words(page)
    assert len(authorised(site.ledger)) == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"start": "soon"}, "soon"), ({"end": "2026-01-01"}, "lies before"), ({"reason": " "}, "A reason is missing"),
     ({"operation": ""}, "which operation"), ({"expires": "90d"}, "31 days"), ({"operation": "other"}, "No key")],
)  # fmt: skip
def test_what_cannot_be_is_said_beside_what_was_filled_in(
    site: Site, wrong: dict[str, str], said: str
) -> None:
    done(site.ledger, "E2E-1")
    page = site.post("/forms/rerun", {**hidden(site.get(ASKED)), **filled(**wrong)}, status=422)
    assert said in words(page)
    assert 'value="payments"' in page


def test_who_may_edit_another_dag_only_authorises_nothing(site: Site) -> None:
    done(site.ledger, "E2E-1")
    done(site.ledger, "L-1", dag_id=ONE_DAG)
    form = hidden(site.get(f"/forms/rerun?ledger={LEDGER}", LIMITED))
    site.post("/forms/rerun", {**form, **filled()}, LIMITED, status=404)
    site.get(ASKED, "viewer", status=403)
    page, _ = site.preview(f"/forms/rerun?ledger={LEDGER}&dag={ONE_DAG}", filled(dag=ONE_DAG), LIMITED)
    assert "1 key of" in words(page)


def test_keys_that_another_dag_made_in_the_same_namespace_stay_unseen(site: Site) -> None:
    """A namespace may be shared; who may read one of its DAGs learns nothing of the others' keys."""
    done(site.ledger, "L-1", dag_id=ONE_DAG)
    where = KeySpace(ONE_DAG, "pay", DAY)
    attempt(site.ledger, "P-1", space=where, dag_id="payments").begin().complete("1")
    attempt(site.ledger, "P-2", space=where, dag_id="payments").begin().doubt("x")
    page, confirmation = site.preview(
        f"/forms/rerun?ledger={LEDGER}&dag={ONE_DAG}", filled(dag=ONE_DAG), LIMITED
    )
    assert "P-1" not in page
    assert "in doubt" not in words(page)
    site.post("/forms/rerun", confirmation, LIMITED)
    assert len(authorised(site.ledger)) == 1
    attempt(site.ledger, "P-3", space=KeySpace(ONE_DAG, "book", DAY), dag_id="payments").begin().doubt("x")
    form = hidden(site.get(f"/forms/rerun?ledger={LEDGER}", LIMITED))
    page = site.post("/forms/rerun", {**form, **filled(dag=ONE_DAG, operation="book")}, LIMITED, status=422)
    assert "is done" in words(page)
    assert "in doubt" not in words(page), "nor how many of them there are"


def test_hostile_text_stays_text(site: Site) -> None:
    done(site.ledger, "<img src=x onerror=alert(1)>")
    page, confirmation = site.preview(ASKED, filled(reason=HOSTILE_REASON))
    for text in (page, site.post("/forms/rerun", confirmation)):
        assert "<script>alert" not in text
        assert "<img src=x" not in text


def half_reversed(site: Site) -> Attempt:
    """A key whose rerun began to reverse the first effect, and died in it."""
    from airflow_guard.store.changes import Ownership

    own = done(site.ledger, "E2E-1")
    judged = [resolution.Judged(DAY, own.hashes[0], own.own.token)]
    reruns.authorise(site.ledger, judged, actor="ada", reason="again", expires=timedelta(hours=1))
    documents = documents_of(SPACE, "E2E-1")
    second = Ownership.new(DAY, opened(site.ledger, SPACE, "backfill__1"), "again")
    with site.ledger.database.engine.begin() as connection:
        site.ledger.reruns.use(connection, second, SPACE, own.hashes)
    assert site.ledger.claim(second, SPACE, [], documents)
    r = site.ledger.database.tables.rerun
    with site.ledger.database.engine.begin() as connection:
        connection.execute(sa.update(r).values(reversal=Reversal.BEGUN.value))
    site.ledger.fail(second, own.hashes, "died in on_rerun", begun=False)
    return own


@pytest.mark.parametrize(("happened", "after"), [("yes", "done"), ("no", "none")])
def test_a_reversal_in_doubt_is_settled_once(site: Site, happened: str, after: str) -> None:
    own = half_reversed(site)
    key = site.get(f"/key?ledger={LEDGER}&date={DAY}&key={own.hashes[0]}")
    (url,) = links(key, "/forms/reversal?")
    form = url.partition("/airflow-guard")[2]
    site.get(form, "viewer", status=403)
    site.get(form, LIMITED, status=404)
    _, confirmation = site.preview(form, {"happened": happened, "reason": "asked the bank"})
    assert [each.status_code for each in site.twice("/forms/reversal", confirmation)] == [200, 200]
    assert [row.reversal for row in authorised(site.ledger)] == [after]
    (told,) = events(site.ledger, "reversal_settled")
    assert told.actor == "op"
    assert "asked the bank" in told.reason
    page = site.post("/forms/reversal", {**hidden_again(site, form, happened), "reason": "other"}, status=403)
    assert "not valid any more" in words(page)
    assert site.ledger.read(DAY, own.hashes)[own.hashes[0]].state is State.FAILED


def hidden_again(site: Site, form: str, happened: str) -> dict[str, Any]:
    assert "No reversal of this key is in doubt" in words(site.get(form))
    return {"ledger": LEDGER, "step": "confirm", "happened": happened, "token": "x.y.z"}


def test_what_is_authorised_is_taken_back_once(site: Site) -> None:
    own = done(site.ledger, "E2E-1", "E2E-2")
    _, confirmation = site.preview(ASKED, filled())
    site.post("/forms/rerun", confirmation)
    key = site.get(f"/key?ledger={LEDGER}&date={DAY}&key={own.hashes[0]}")
    assert links(key, "/forms/withdraw?")
    opened_at = f"/forms/withdraw?ledger={LEDGER}"
    page, confirmation = site.preview(
        opened_at, {"namespace": "payments", "operation": "pay", "reason": "the correction was wrong"}
    )
    assert "take 2 authorisations back" in words(page)
    assert len(authorised(site.ledger)) == 2
    both = site.twice("/forms/withdraw", confirmation)
    assert [each.status_code for each in both] == [200, 200]
    assert not authorised(site.ledger)
    told = events(site.ledger, "rerun_withdrawn")
    assert len(told) == 2, "one for each key"
    assert all(each.actor == "op" and "the correction was wrong" in each.reason for each in told)


def test_what_was_used_meanwhile_is_not_taken_back(site: Site) -> None:
    own = done(site.ledger, "E2E-1", "E2E-2")
    _, confirmation = site.preview(ASKED, filled())
    site.post("/forms/rerun", confirmation)
    picked = f"/forms/withdraw?ledger={LEDGER}" + "".join(f"&pick={DAY}.{key}" for key in own.hashes)
    _, confirmation = site.preview(picked, {"reason": "stop"})
    assert reruns_used(site.ledger, own) == {own.hashes[0]}
    page = site.post("/forms/withdraw", confirmation, status=409)
    assert "was used meanwhile" in words(page)
    assert "take 1 authorisation back" in words(page)
    assert len(authorised(site.ledger)) == 2, "all or none"
    site.post("/forms/withdraw", hidden(page))
    assert len(authorised(site.ledger)) == 1


def test_authorisations_of_other_dags_are_not_there(site: Site) -> None:
    done(site.ledger, "E2E-1")
    _, confirmation = site.preview(ASKED, filled())
    site.post("/forms/rerun", confirmation)
    form = hidden(site.get(f"/forms/withdraw?ledger={LEDGER}", LIMITED))
    fields = {**form, "namespace": "payments", "operation": "pay", "reason": "x"}
    refused = words(site.post("/forms/withdraw", fields, LIMITED, status=422))
    absent = words(site.post("/forms/withdraw", {**fields, "namespace": "none"}, LIMITED, status=422))
    assert "Nothing of that is authorised" in refused
    assert "Nothing of that is authorised" in absent
    assert len(authorised(site.ledger)) == 1
