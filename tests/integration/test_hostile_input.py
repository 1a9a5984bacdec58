"""Documents and conf of somebody who wants to do harm, through a whole run: they are data, or they are refused."""

from __future__ import annotations

import itertools
import logging
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_guard import BusinessDateError, GuardError, IdempotentOperator
from tests.airflow_runs import AirflowRun, start_run
from tests.databases import databases

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from tests.integration.conftest import Business

pytestmark = databases("sqlite")
everywhere = databases("sqlite", "postgres_embedded", "mariadb")
JANUARY_30 = datetime(2026, 1, 30, tzinfo=UTC)
_minutes = itertools.count()

HARMFUL = (
    "x'); DELETE FROM guard_execution;--",
    '"; DROP TABLE posting; --',
    "\\'; SHUTDOWN; #",
    "%(password)s %s %d {0} {x.__class__}",
    "{{ conn.guard_ledger.password }} {% raw %}",
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "../../../../etc/passwd",
    "=cmd|'/c calc'!A1",
    "$(touch pwned) `touch pwned` ; touch pwned",
    "__proto__",
    "🧾" * 255,
)
REFUSED = ("a\nsent: 1 executed", "a\x1b[2J", "a\x00b", "a\u200bb", "\u202eabc", "", "   ", "x" * 256)


def posting(business: Business, **parameters: Any) -> DAG:
    """A DAG whose documents are in the conf of its run, and so are in the hands of who triggers it."""
    from airflow.sdk import DAG

    def listing(dag_run: Any) -> list[Any]:
        listed: list[Any] = dag_run.conf["documents"]
        return listed

    def post(connection: Any, business_date: date, document: str) -> str:
        business.post(connection, "post", document, business_date)
        return document

    given = {"documents": listing, "side_effect": "database", "task_id": "post", "python_callable": post}
    with DAG(business.dag_id, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        IdempotentOperator(**{**given, **parameters})
    return dag


def asked(business: Business, conf: dict[str, Any], **parameters: Any) -> AirflowRun:
    """Run it as somebody with the right to trigger asks for it."""
    dag = posting(business, **parameters)
    at = JANUARY_30 + timedelta(minutes=next(_minutes))
    return start_run(dag, run_type="manual", logical_at=at, conf=conf).go()


def refusal(run: AirflowRun) -> GuardError:
    """Return the error of this package that ended the task."""
    ended = run.last("post")
    assert ended.state == "failed", ended
    assert isinstance(ended.cause, GuardError), ended
    return ended.cause


@everywhere
def test_c33_hostile_documents_and_conf_of_a_run_are_data(
    business: Business, caplog: pytest.LogCaptureFixture, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO, logger="airflow_guard")
    for _ in range(2):
        run = asked(business, {"documents": list(HARMFUL), "table": "x; DROP TABLE posting"})
        assert run.states() == {"post": "success"}
    assert sorted(map(str, business.documents())) == sorted(HARMFUL), "each once, as it was written"
    rows = business.ledger_rows()
    assert sorted(row.document for row in rows) == sorted(HARMFUL)
    assert {row.state for row in rows} == {"completed"}
    assert list(tmp_path.iterdir()) == [], "nothing was taken for a command or a path"


@pytest.mark.parametrize("document", REFUSED, ids=ascii)
def test_what_could_forge_a_line_or_hide_in_one_is_refused_and_the_others_go_on(
    business: Business, caplog: pytest.LogCaptureFixture, document: str
) -> None:
    caplog.set_level(logging.INFO, logger="airflow_guard")
    run = asked(business, {"documents": ["good", document]})
    said = str(refusal(run))
    assert business.documents() == ["good"]
    assert len(said) < 5000
    for line in [said, *caplog.messages]:
        assert not any(character in line for character in "\x1b\x00\u200b\u202e")
        assert "\nsent: 1 executed" not in line


@pytest.mark.parametrize(
    "documents",
    [{"a": 1}, "one text", 17, None, [["nested"]], [None], [{"no": {"deep": "x"}}], [True]],
    ids=repr,
)
def test_documents_of_another_shape_are_refused_with_a_message(business: Business, documents: Any) -> None:
    assert refusal(asked(business, {"documents": documents}))
    assert business.documents() == []


@pytest.mark.parametrize(
    "written",
    ["2026-01-30'; DROP TABLE posting;--", "{{ ds }}", ["2026-01-30"], {"$ne": None}, "9" * 100_000, True,
     "\uff12\uff10\uff12\uff16-01-30"],
    ids=lambda value: ascii(value)[:30],
)  # fmt: skip
def test_a_business_date_in_conf_is_a_date_or_refused(business: Business, written: Any) -> None:
    run = asked(business, {"documents": ["A"], "business_date": written})
    error = refusal(run)
    assert isinstance(error, BusinessDateError)
    assert len(str(error)) < 2000
    assert business.documents() == []
    assert business.ledger_rows() == []


def test_a_document_from_conf_is_rendered_once(business: Business, monkeypatch: pytest.MonkeyPatch) -> None:
    """A template in what a template gave stays text: who may trigger a run must not read Variables through it."""
    monkeypatch.setenv("AIRFLOW_VAR_SECRET", "the-secret")
    conf = {"no": "{{ var.value.secret }}"}
    run = asked(business, conf, documents=None, document="{{ dag_run.conf['no'] }}")
    assert run.states() == {"post": "success"}
    assert business.documents() == ["{{ var.value.secret }}"]


def test_conf_changes_nothing_but_the_date(business: Business) -> None:
    """Names of parameters in conf are not parameters."""
    conf = {
        "documents": ["A"], "operation": "other", "key_namespace": "other", "on_duplicate": "execute",
        "once_per": "document", "cycle": "2", "guarded_from": "2000-01-01", "mode": "observe",
    }  # fmt: skip
    asked(business, conf)
    (row,) = business.ledger_rows()
    assert (row.key_namespace, row.operation, row.cycle) == (business.dag_id, "post", "")
    again = asked(business, {**conf, "cycle": "3"})
    assert again.states() == {"post": "success"}
    assert business.documents() == ["A"]
