"""What no form may let through, tried at every form."""

from __future__ import annotations

import json
import os
import re
import secrets
from datetime import date, timedelta
from typing import Any

import pytest

from airflow_guard.acts import reruns
from airflow_guard.core.keys import KeySpace
from airflow_guard.pages.forms.posted import MAX_BYTES
from airflow_guard.pages.forms.route import forms
from airflow_guard.pages.forms.sealing import LASTS_S, Tokens
from airflow_guard.pages.ledgers import Ledgers
from airflow_guard.store import resolution
from tests.contract.attempts import attempt, documents_of
from tests.databases import databases
from tests.ui.auth_manager import LIMITED, ONE_DAG
from tests.ui.forms.site import LEDGER, SAME, SECRET, Site, hidden
from tests.ui.forms.test_breaks import broken
from tests.ui.visiting import words

# What a form asks of the store is tested on every database there; here what is told by the database itself.
pytestmark = databases("sqlite")
DAY = date(2026, 1, 30)
PAY = KeySpace("payments", "pay", DAY)
CSV = {"csv": ("history.csv", b"business_date,document\n2025-01-31,OLD-1\n", "text/csv")}
REASON = {"reason": "ticket 4711"}


def _settle(site: Site) -> tuple[str, dict[str, Any]]:
    own = attempt(site.ledger, "E2E-1", space=PAY).begin().doubt("timeout")
    return f"/forms/settle?ledger={LEDGER}&pick={DAY}.{own.hashes[0]}", {"decision": "happened", **REASON}


def _resolve(site: Site) -> tuple[str, dict[str, Any]]:
    own = attempt(site.ledger, "E2E-1", space=PAY).begin().doubt("timeout")
    return f"/forms/resolve?ledger={LEDGER}&date={DAY}&key={own.hashes[0]}", {
        "decision": "happened",
        **REASON,
    }


def _break(site: Site) -> tuple[str, dict[str, Any]]:
    (row,) = broken(site.ledger, "payments", 1)
    return f"/forms/break?ledger={LEDGER}&id={row}", {"decision": "explain", **REASON}


def _rerun(site: Site) -> tuple[str, dict[str, Any]]:
    attempt(site.ledger, "E2E-1", space=PAY).begin().complete("1")
    where = f"dag=payments&operation=pay&start={DAY}"
    return f"/forms/rerun?ledger={LEDGER}&{where}", {
        "dag": "payments", "operation": "pay", "start": str(DAY), "expires": "24h", "without_reversal": "yes", **REASON
    }  # fmt: skip


def _withdraw(site: Site) -> tuple[str, dict[str, Any]]:
    _rerun(site)
    (key,) = documents_of(PAY, "E2E-1")
    token = site.ledger.read(DAY, [key.key_hash])[key.key_hash].owner_token
    judged = [resolution.Judged(DAY, key.key_hash, token)]
    reruns.authorise(site.ledger, judged, actor="ada", reason="again", expires=timedelta(hours=1))
    return f"/forms/withdraw?ledger={LEDGER}", {"namespace": "payments", "operation": "pay", **REASON}


def _adopt(site: Site) -> tuple[str, dict[str, Any]]:
    return f"/forms/adopt?ledger={LEDGER}", {
        "namespace": "payments", "operation": "pay", "once_per": "date", "delimiter": "comma", **REASON
    }  # fmt: skip


def _rename(site: Site) -> tuple[str, dict[str, Any]]:
    attempt(site.ledger, "E2E-1", space=PAY).begin().complete("1").die()
    return f"/forms/rename?ledger={LEDGER}", {
        "old_namespace": "payments", "old_operation": "pay", "new_namespace": "payments", "new_operation": "pay_out",
        **REASON,
    }  # fmt: skip


def _purge(site: Site) -> tuple[str, dict[str, Any]]:
    attempt(site.ledger, "E2E-1", space=PAY).begin().complete("1").die()
    return f"/forms/purge?ledger={LEDGER}", {
        "namespace": "payments",
        "operation": "pay",
        "until": str(DAY),
        **REASON,
    }


def _drop(site: Site) -> tuple[str, dict[str, Any]]:
    attempt(site.ledger, "E2E-1", space=PAY).begin().fail("closed")
    return f"/forms/drop?ledger={LEDGER}", {
        "namespace": "payments", "operation": "pay", "date": str(DAY), "cycle": "", "which": "named",
        "documents": "E2E-1", **REASON,
    }  # fmt: skip


def _fail_over(site: Site) -> tuple[str, dict[str, Any]]:
    attempt(site.ledger, "E2E-1", space=PAY).begin()
    return f"/forms/fail-over?ledger={LEDGER}", {
        "action": "record",
        "lost_since": "2026-01-30T02:10:00",
        **REASON,
    }


FORMS = {
    "settle": _settle, "resolve": _resolve, "break": _break, "rerun": _rerun, "withdraw": _withdraw, "adopt": _adopt,
    "rename": _rename,
    "purge": _purge, "fail-over": _fail_over, "drop": _drop,
}  # fmt: skip

OF_A_ROW = {"settle", "resolve", "break", "rerun"}


def everything(site: Site) -> dict[str, list[Any]]:
    """Return what a change would leave traces in."""
    t = site.ledger.database.tables
    with site.ledger.database.engine.connect() as connection:
        return {
            table.name: [tuple(row) for row in connection.execute(table.select())]
            for table in (t.execution, t.event, t.breaks, t.rerun, t.alias, t.horizon, t.fail_over, t.listed)
        }


def files(name: str) -> dict[str, Any] | None:
    return CSV if name == "adopt" else None


def test_every_form_is_tried() -> None:
    paths = {route.path for route in forms().routes if "POST" in route.methods}
    assert {path.removeprefix("/forms/") for path in paths} == {*FORMS, "reversal"}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_lets_nothing_through_that_it_must_not(site: Site, name: str) -> None:
    opened, filled = FORMS[name](site)
    path = f"/forms/{name}"
    form = hidden(site.get(opened))
    _, confirmation = site.preview(opened, filled, files=files(name))
    foreign = hidden(site.preview(opened, filled, "admin", files=files(name))[0])["token"]
    before = everything(site)
    # Only with the cookie: another site, no word of where it comes from, another origin.
    for headers in ({}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": "null"},
                    {"origin": "https://evil.example"}):  # fmt: skip
        page = site.post(path, confirmation, headers=headers, status=403)
        assert "did not come from a page of Airflow" in words(page)
    for token in ("", "x.y.z", foreign, form["token"]):
        page = site.post(path, {**confirmation, "token": token}, status=403)
        assert "not valid any more" in words(page)
    site.later_s = LASTS_S + 1
    for sent in (confirmation, {**form, **filled}):
        assert "not valid any more" in words(site.post(path, sent, status=403, files=files(name)))
    site.later_s = 0
    # Something else than what was previewed.
    site.post(path, {**confirmation, "reason": "another one"}, status=403)
    assert everything(site) == before
    # Who may not edit it, and who may not read it.
    assert site.client("viewer").get(opened).status_code in (403, 404)
    limited = site.client(LIMITED).get(opened).status_code
    assert limited == {**dict.fromkeys(OF_A_ROW, 404), "fail-over": 403}.get(name, 200)
    for user in ("viewer", LIMITED, "no_plugins"):
        site.post(path, confirmation, user, status=403)
    # Nor with a token of their own, as if the permission had been taken away after the form was opened.
    hidden_from = {"fail-over": 403, "withdraw": 422}.get(name, 404)
    for user, status in (("viewer", 403), (LIMITED, hidden_from)):
        token = Tokens(SECRET.encode()).issue(user, name.replace("-", "_"), "")
        site.post(path, {**form, **filled, "token": token}, user, files=files(name), status=status)
    assert everything(site) == before
    # Too large.
    page = site.post(path, {**form, **filled, "reason": "x" * (11 * MAX_BYTES)}, status=413)
    assert "too large" in words(page)
    assert everything(site) == before
    # And the very same confirmation, by who may, is good.
    site.post(path, confirmation)
    assert everything(site) != before


@pytest.mark.parametrize("name", ["adopt", "purge", "rename"])
def test_who_may_not_edit_the_dags_of_an_operation_cannot_change_it(site: Site, name: str) -> None:
    """With a token of his own: the form is the same for all, what is filled in is not."""
    opened, filled = FORMS[name](site)
    path = f"/forms/{name}"
    before = everything(site)
    form = hidden(site.get(opened, LIMITED))
    missing = {field: value.replace("payments", "no_such_dag") for field, value in filled.items()}
    refused = site.post(path, {**form, **filled}, LIMITED, files=files(name), status=404)
    absent = site.post(path, {**form, **missing}, LIMITED, files=files(name), status=404)
    assert words(refused) == words(absent), "forbidden and missing are the same"
    assert everything(site) == before


def test_a_user_of_one_dag_may_change_that_one(site: Site) -> None:
    own = attempt(site.ledger, "L-1", space=KeySpace(ONE_DAG, "send", DAY)).begin().complete("1").die()
    filled = {"namespace": ONE_DAG, "operation": "send", "until": str(DAY), **REASON}
    _, confirmation = site.preview(f"/forms/purge?ledger={LEDGER}", filled, LIMITED)
    assert "Removed" in words(site.post("/forms/purge", confirmation, LIMITED))
    assert not site.ledger.read(DAY, own.hashes)


@pytest.mark.parametrize("part", ["operation", "namespace"])
def test_a_purge_across_operations_is_for_who_may_edit_every_dag(site: Site, part: str) -> None:
    filled = {"namespace": ONE_DAG, "operation": "send", "until": str(DAY), **REASON, part: ""}
    form = hidden(site.get(f"/forms/purge?ledger={LEDGER}", LIMITED))
    page = site.post("/forms/purge", {**form, **filled}, LIMITED, status=403)
    assert "every DAG" in words(page)


def test_the_list_of_changes_shows_what_somebody_may_do(site: Site) -> None:
    assert "Fail-overs" in words(site.get("/changes"))
    assert "Fail-overs" not in words(site.get("/changes", LIMITED))
    assert "Adopt history" in words(site.get("/changes", LIMITED))
    assert "nothing that you can change" in words(site.get("/changes", "viewer"))


def test_each_input_of_a_form_has_a_label(site: Site) -> None:
    attempt(site.ledger, "E2E-1", space=PAY).begin().doubt("timeout")
    for path in ("rerun", "adopt", "rename", "purge", "fail-over"):
        page = site.get(f"/forms/{path}?ledger={LEDGER}")
        for tag in re.findall(r"<(?:input|textarea|select)\b[^>]*>", page):
            if 'type="hidden"' in tag or 'type="radio"' in tag:
                continue
            (identity,) = re.findall(r'\bid="([^"]+)"', tag)
            assert f'<label for="{identity}"' in page or f'for="{identity}">' in page, tag
        assert page.count("<fieldset>") == page.count("<legend>")


@databases("postgres_embedded")
def test_a_ledger_that_may_only_be_read_says_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, filled = _settle(site)
    role = f"reader_{secrets.token_hex(4)}"
    engine = site.ledger.database.engine
    with engine.begin() as connection:
        schema = connection.exec_driver_sql("SELECT current_schema()").scalar_one()
        connection.exec_driver_sql(f"CREATE ROLE {role} LOGIN")
        connection.exec_driver_sql(f'GRANT USAGE ON SCHEMA "{schema}" TO {role}')
        connection.exec_driver_sql(f'GRANT SELECT ON ALL TABLES IN SCHEMA "{schema}" TO {role}')
    variable = f"AIRFLOW_CONN_{LEDGER.upper()}"
    monkeypatch.setenv(variable, json.dumps({**json.loads(os.environ[variable]), "login": role}))
    before = everything(site)
    page = site.post("/forms/settle", {**hidden(site.get(opened)), **filled}, status=403)
    assert "The ledger does not allow it" in words(page)
    assert role not in page
    assert everything(site) == before
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP OWNED BY {role}")
        connection.exec_driver_sql(f"DROP ROLE {role}")


def test_a_page_that_fails_claims_only_what_it_knows(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, filled = _settle(site)
    sent = {**hidden(site.get(opened)), **filled}

    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr(Ledgers, "ask", fails)
    client = site.browser()
    read = client.get(opened)
    assert (read.status_code, "Nothing was changed." in words(read.text)) == (500, True)
    written = client.post("/forms/settle", data=sent, headers=SAME)
    assert written.status_code == 500
    text = words(written.text)
    assert "Nothing was changed" not in text
    assert "It is not known whether what you sent was recorded" in text
    assert "look there before you send it again" in text
