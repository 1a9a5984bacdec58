"""What a person is asked, and how an answer is read."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from airflow_guard.core.documents import Document, DocumentReader
from airflow_guard.core.doubts import (
    LEAVE_ALL,
    SETTLE,
    Answer,
    AskedKey,
    Doubt,
    Response,
    break_question,
    doubt_question,
    reason_problem,
)
from airflow_guard.core.guard import LedgerRow, TaskIdentity
from airflow_guard.core.keys import KeySpace
from airflow_guard.core.states import FollowUp, Phase, State

SPACE = KeySpace("payments", "send", date(2026, 1, 30), "2")
ASKED_AT = datetime(2026, 1, 30, 14, tzinfo=UTC)
UNTIL = ASKED_AT + timedelta(hours=24)
KEY = AskedKey("PAY-1", date(2026, 1, 30), "ab" * 16, "cd" * 16)


def row(**changes):
    values = {
        "key_hash": "ab" * 16, "document": "PAY-1", "state": State.IN_DOUBT, "phase": Phase.BEGUN,
        "follow_up": FollowUp.NONE, "attempt": 2, "generation": 1, "owner_token": "cd" * 16,
        "idempotency_key": "ef" * 16, "deployment": "default", "lease_over": True, "last_sign_age_s": 60.0,
        "first_begun_age_s": 3600.0, "error": "TimeoutError: no answer",
        "last_run": TaskIdentity("payments", "send", "scheduled__1", try_number=2),
    }  # fmt: skip
    return LedgerRow(**{**values, **changes})


def document(payload="PAY-1") -> Document:
    return DocumentReader(SPACE.hasher(), "no").read_one(payload)


def question(doubt, shown=("amount", "currency")):
    return doubt_question([doubt], [KEY], SPACE, shown=shown, asked_at=ASKED_AT, until=UNTIL)


def test_the_question_gives_the_facts_in_the_order_in_which_they_are_read():
    asked = question(
        Doubt([document({"no": "PAY-1", "amount": "10.00", "x": "secret"})], row(), "could not tell")
    )
    assert asked.subject == "In doubt: PAY-1 (payments / send of 2026-01-30, cycle 2)"
    facts = [line.strip().replace("\\", "") for line in asked.body.splitlines() if line.startswith("   - ")]
    assert facts == [
        "- amount: 10.00",
        f"- idempotency key: {'ef' * 16}",
        "- what went wrong: TimeoutError: no answer",
        "- verify: could not tell",
        "- begun: 2026-01-30 13:00:00 UTC",
        "- last sign of life: 2026-01-30 13:59:00 UTC",
        "- by: attempt 2, run scheduled__1, payments.send try 2",
        f"- key in the ledger: {'ab' * 16}",
    ]
    assert (
        "It is not known whether it happened: PAY-1 (payments / send of 2026-01-30, cycle 2)."
        in asked.body.replace("\\", "")
    )
    assert "Choose this when you are not sure." in asked.body
    assert "until 2026-01-31 14:00:00 UTC" in asked.body
    assert list(asked.options) == [SETTLE, LEAVE_ALL]
    assert asked.fields[KEY.field_name]["description"] == "amount 10.00; attempt 2"


@pytest.mark.parametrize("payload", ["PAY-1", {"no": "PAY-1", "sum": "1"}], ids=["an id", "no such field"])
def test_what_is_not_known_is_said_to_be_unknown(payload):
    asked = question(Doubt([document(payload)], row(first_begun_age_s=None, error=None), "there is none"))
    for fact in ("amount: unknown", "begun: unknown", "what went wrong: unknown"):
        assert fact in asked.body


def test_what_others_have_written_is_neither_markup_nor_a_secret():
    error = "<img src=x> [click](http://evil) password=hunter2 " + "x" * 5000
    asked = question(
        Doubt([document({"no": "*PAY* `1`", "amount": "<b>"})], row(error=error), "there is none")
    )
    assert "hunter2" not in asked.body
    assert "\\<img" in asked.body
    assert "\\[click\\]" in asked.body
    assert "\\*PAY\\*" in asked.body
    assert len(asked.body) < 3000


def test_a_batch_is_named_by_its_id():
    documents = [document(f"PAY-{number}") for number in range(5)]
    asked = question(Doubt(documents, row(batch_id="12" * 16), "there is none"))
    assert f"batch id: {'12' * 16}" in asked.body
    assert "documents: PAY-0, PAY-1, PAY-2 and 2 more" in asked.body


def test_the_field_of_another_attempt_has_another_name():
    other = AskedKey("PAY-1", KEY.key_date, KEY.key_hash, "00" * 16)
    assert KEY.field_name != other.field_name
    assert KEY.field_name == AskedKey("another name", KEY.key_date, KEY.key_hash, KEY.owner_token).field_name


def test_many_breaks_are_counted_and_the_first_are_shown():
    breaks = [f"missing D-{number}" for number in range(25)]
    asked = break_question(
        "a / b of 2026-01-30",
        ["2 rows differ\n- missing D-0, said here too"],
        breaks,
        until=UNTIL,
        ledger_command="airflow-guard breaks",
        name="Q 1",
    )
    assert asked.subject == "25 breaks: a / b of 2026-01-30"
    assert asked.body.count("\n- missing") == 20
    assert "2 rows differ" in asked.body
    assert "said here too" not in asked.body
    assert "and 5 more: `airflow-guard breaks`" in asked.body
    assert asked.body.endswith("Q 1")
    assert list(asked.fields) == ["reason"]


EVENT = {
    "chosen_options": ["Settle"],
    "params_input": {"reason": " seen "},
    "responded_by_user": {"id": "1", "name": "jane"},
}


@pytest.mark.parametrize(
    ("event", "user", "problem"),
    [
        (EVENT, "jane (id 1)", None),
        (EVENT | {"responded_by_user": {"id": "jane", "name": "jane"}}, "jane", None),
        (EVENT | {"responded_by_user": {"id": "7", "name": ""}}, "7", None),
        (EVENT | {"responded_by_user": None}, None, None),
        (EVENT | {"timedout": True}, None, None),
        ({"error": "over", "error_type": "timeout"}, None, None),
        ({"error": "Invalid input for param", "error_type": "validation"}, None, "Invalid input for param"),
    ],
)
def test_who_has_answered_is_read_from_what_airflow_reports(event, user, problem):
    response = Response.of(event)
    assert (response.user, response.problem) == (user, problem)


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"reason": "seen"}, None),
        ({}, "is missing"),
        ({"reason": "  "}, "is missing"),
        ({"reason": None}, "is missing"),
        ({"reason": "x" * 2001}, "this one has 2001"),
        (None, "is missing"),
        ("text", "is missing"),
    ],
)
def test_a_reason_is_mandatory(inputs, says):
    problem = reason_problem(Response.of(EVENT | {"params_input": inputs}))
    assert (problem is None) if says is None else says in problem


def test_only_two_answers_decide():
    assert [answer.decision for answer in Answer] == [None, "happened", "did_not_happen"]
