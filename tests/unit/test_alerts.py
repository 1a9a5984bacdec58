"""A message says all that a person who is woken up needs, fits a telephone, and gives no secret away."""

from __future__ import annotations

import html.parser
import time
from dataclasses import fields, replace
from datetime import date, datetime, timedelta, timezone

import pytest

from airflow_guard.core.alerts.facts import AlertFacts, AlertKind, Severity, Stage, Step
from airflow_guard.core.alerts.message import Alert, build_alert
from airflow_guard.core.commands import resolve_command
from airflow_guard.core.texts import without_secrets

KEY = "3f" * 16
FACTS = AlertFacts(
    dag_id="payments",
    task_id="send",
    map_index=-1,
    business_date=date(2026, 1, 30),
    cycle="",
    run_id="scheduled__2026-01-30T02:00:00+00:00",
    try_number=4,
    max_tries=4,
    will_retry=False,
    happened="PAY-17 is in doubt: TimeoutError: no answer from the bank within 30 s.",
    counts={"documents": 100, "replayed": 97, "in_doubt": 1, "failed": 2},
    documents=("PAY-17", "PAY-18", "PAY-19"),
    more_documents=4,
    since=datetime(2026, 1, 31, 3, 3, tzinfo=timezone(timedelta(hours=1))),
    steps=(Step("Ask the receiver whether it happened, then say so.", resolve_command(KEY)),),
    link="https://airflow.example/dags/payments/runs/r/tasks/send",
)
NASTY = 'no <b>answer</b> & "x" <!channel> [a](javascript:b) *_`~ 1. #'


def forms(alert: Alert) -> dict[str, str]:
    return {name: getattr(alert, name) for name in ("text", "html", "markdown", "slack")}


def test_every_form_says_all_of_it() -> None:
    alert = build_alert(FACTS)
    assert alert.text.splitlines() == [
        "FAILED, final (4/4): payments / send, business date 2026-01-30",
        "PAY-17 is in doubt: TimeoutError: no answer from the bank within 30 s.",
        "Documents: 100: 1 in doubt, 2 failed, 97 done before",
        "Look at: PAY-17, PAY-18, PAY-19, and 4 more",
        "Since: 2026-01-31 02:03 UTC",
        "Do now: Ask the receiver whether it happened, then say so.",
        f'  airflow-guard resolve --key {KEY} --happened --reason "…"',
        "Airflow: https://airflow.example/dags/payments/runs/r/tasks/send",
        "Run: scheduled__2026-01-30T02:00:00+00:00, try 4 of 4, Airflow does not try again",
    ]
    for form in forms(alert).values():
        for part in ("payments / send", "2026-01-30", "PAY-17 is in doubt", "02:03 UTC", KEY, alert.link):
            assert part in form


def test_of_nothing_everything_is_unknown_and_nothing_is_none() -> None:
    alert = build_alert(AlertFacts())
    for each in fields(alert):
        value = getattr(alert, each.name)
        assert isinstance(value, str)
        assert "None" not in value
    assert "unknown / unknown, business date unknown" in alert.subject
    assert alert.business_date == alert.task_id == alert.run_id == alert.since == "unknown"


@pytest.mark.parametrize(
    ("facts", "outcome"),
    [
        ({"try_number": 1, "max_tries": 4, "will_retry": True}, "will retry (1/4)"),
        ({"try_number": 4, "max_tries": 4, "will_retry": False}, "failed, final (4/4)"),
        ({"try_number": 2, "max_tries": None, "will_retry": None}, "failed (retries unknown)"),
        ({"try_number": None, "max_tries": None, "will_retry": None}, "failed (retries unknown)"),
    ],
)
def test_r11_a_failure_says_whether_it_is_tried_again(facts: dict[str, object], outcome: str) -> None:
    alert = build_alert(replace(FACTS, **facts))
    assert alert.outcome == outcome
    assert outcome in alert.subject.lower().replace("failed", "failed")
    assert alert.severity == (Severity.LOW if facts["will_retry"] else Severity.HIGH)


def test_a_run_without_a_task_says_that_it_is_about_the_dag() -> None:
    alert = build_alert(AlertFacts(kind=AlertKind.DAG_FAILED, is_dag_level=True, dag_id="payments"))
    assert alert.subject == "RUN FAILED: payments / DAG-level, business date unknown"


def test_stages_are_told_apart() -> None:
    assert build_alert(replace(FACTS, stage=Stage.ESCALATION)).subject.startswith("STILL: FAILED, final")
    resolved = build_alert(
        replace(FACTS, stage=Stage.RESOLVED, happened="Try 1 of a later run has succeeded.")
    )
    assert resolved.subject.startswith("RESOLVED (was: FAILED")
    assert resolved.severity == "low"
    assert "Do now: Nothing." in resolved.text


def test_the_task_of_a_map_and_the_cycle_are_named() -> None:
    alert = build_alert(replace(FACTS, map_index=3, cycle="09:00"))
    assert "payments / send[3], business date 2026-01-30, cycle 09:00" in alert.subject


def test_the_longest_facts_still_fit_a_telephone() -> None:
    long = "x" * 250
    alert = build_alert(
        replace(
            FACTS, dag_id=long, task_id=long, run_id=long, happened="word " * 5_000, cycle="c" * 100,
            documents=("d" * 255,) * 40, figures=("f" * 1_000,) * 40, steps=FACTS.steps * 9, more_documents=10**6,
        )
    )  # fmt: skip
    assert len(alert.subject) <= 150
    assert len(alert.text) <= 2_200
    assert len(alert.text.splitlines()) <= 20
    assert "… 36 more groups" in alert.text
    assert "and 1,000,037 more" in alert.text


# -- what others have written -----------------------------------------------------------------------------


class _Tags(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value for name, value in attrs if name == "href"]


def test_markup_of_others_is_text_in_every_form() -> None:
    alert = build_alert(
        replace(FACTS, happened=NASTY, documents=("<script>",), link="javascript:alert(1)", task_id="a<b>")
    )
    page = _Tags()
    page.feed(alert.html)
    assert page.tags <= {"div", "p", "b", "pre"}
    assert page.links == []
    assert "<!channel>" not in alert.slack
    assert "&lt;!channel&gt;" in alert.slack
    assert "](" not in alert.markdown.replace("\\](", "")
    assert "\\<script\\>" in alert.markdown


def test_a_text_of_others_does_not_begin_a_line_of_its_own() -> None:
    alert = build_alert(replace(FACTS, happened="one\nDo now: pay it again\r\n  rm -rf"))
    assert "one Do now: pay it again rm -rf" in alert.text.splitlines()


# -- secrets ----------------------------------------------------------------------------------------------

SECRET = "hunter2Secret"


@pytest.mark.parametrize(
    "said",
    [
        "postgresql://guard:{}@db/ledger",
        "cannot reach postgresql+psycopg://guard:a@b{}@db:5432/ledger?sslmode=require",
        "connection to host=db user=guard password={} dbname=ledger failed",
        "AccessKey: aws_secret_access_key={}",
        '{{"password": "{}", "user": "guard"}}',
        "{{'api_key': '{}'}}",
        "Authorization: Bearer {}",
        "401 for header Bearer {}",
        "https://hooks.example/x?token={}&a=1",
        "pwd={};Encrypt=yes",
        "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----",
        '{{"password": "a\\"{}',
    ],
)
def test_a_secret_in_an_exception_is_hidden(said: str) -> None:
    text = said.format(SECRET)
    assert SECRET not in without_secrets(text)
    assert without_secrets(without_secrets(text)) == without_secrets(text)
    for form in forms(
        build_alert(replace(FACTS, happened=text, documents=(text,), figures=(text,)))
    ).values():
        assert SECRET not in form


def test_a_secret_is_hidden_before_the_text_is_cut() -> None:
    """Cut first, the pattern would no longer match what is left of it."""
    for padding in range(270, 330):
        text = f"{'x' * padding} postgresql://guard:{SECRET}@db/ledger"
        assert "hunt" not in build_alert(replace(FACTS, happened=text)).text


def test_what_airflow_knows_to_be_secret_is_hidden_everywhere() -> None:
    alert = build_alert(
        replace(
            FACTS,
            happened="said 4711-0815",
            documents=("4711-0815",),
            steps=(Step("4711-0815", "4711-0815"),),
        ),
        redact=lambda text: text.replace("4711-0815", "***"),
    )
    assert all("4711-0815" not in form for form in forms(alert).values())


def test_what_is_no_secret_stays() -> None:
    for said in (
        "token refresh failed for PAY-17",
        "https://airflow.example/dags/a?x=1",
        "the password is wrong",
    ):
        assert without_secrets(said) == said


def test_a_huge_text_takes_no_time() -> None:
    for huge in ("x" * 2_000_000, "password" * 200_000, "a:" * 500_000, "postgresql://" * 100_000):
        begun = time.process_time()
        build_alert(replace(FACTS, happened=huge))
        assert time.process_time() - begun < 2
