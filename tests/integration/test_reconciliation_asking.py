"""``on_break="ask"``: a person accepts breaks in the Airflow UI, with a reason, or lets the task fail."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_guard import BothEmpty, BreaksFound, ConfigurationError
from airflow_guard.acts.break_decisions import decide
from airflow_guard.core.checks import BreakState
from tests.airflow_runs import AirflowRun, start_run
from tests.databases import databases
from tests.integration.sides import GOOD, JANUARY_30, MODES, Sides

if TYPE_CHECKING:
    from tests.integration.conftest import Business

pytestmark = databases("postgres_embedded")

WAITING = {"awaiting_input", "deferred"}
ACCEPT, FAIL = "Accept the breaks", "Fail"
WHY = {"reason": "fee booked by hand, ticket 77"}


@pytest.fixture
def sides(business: Business) -> Sides:
    return Sides(business)


def asked(sides: Sides, mode: str = "poke", **parameters: Any) -> AirflowRun:
    """Run such a DAG until its task asks."""
    dag = sides.dag(mode, on_break="ask", settle_pokes=1, **parameters)
    run = start_run(dag, logical_at=JANUARY_30).go(run_triggers=False)
    assert run.states()["reconcile"] in WAITING, run.ended
    return run


def differing(sides: Sides) -> None:
    sides.add("booked", *GOOD)
    sides.add("posted", *GOOD[:-1], ("D-9", "4.00"))


def told(sides: Sides, *kinds: str) -> list[tuple[str, str, str]]:
    return [
        (event.kind, event.actor, event.reason) for event in sides.business.events() if event.kind in kinds
    ]


@pytest.mark.parametrize("mode", MODES)
def test_accepted_breaks_pass_with_the_name_and_the_reason(sides: Sides, mode: str) -> None:
    differing(sides)
    run = asked(sides, mode)
    question = run.question("reconcile")
    assert question.subject == f"2 breaks: {sides.business.dag_id} / reconcile of 2026-01-30"
    body = question.body.replace("\\", "")
    for text in ("D-3", "D-9", "missing_in_source", "missing_in_target"):
        assert text in body
    assert (question.options, list(question.params)) == ([ACCEPT, FAIL], ["reason"])
    run.answer("reconcile", ACCEPT, WHY)
    assert run.states() == {"reconcile": "success"}
    assert {row.state for row in sides.breaks()} == {"explained"}
    assert {(row.actor, row.reason) for row in sides.breaks()} == {("jane", WHY["reason"])}
    result = run.result("reconcile")
    assert (result["accepted"], result["open"], result["outcome"]) == (True, 0, "broken")
    assert told(sides, "break_explained") == [("break_explained", "jane", WHY["reason"])] * 2
    assert [check.outcome for check in sides.checks()] == ["broken"], "what was found stays what it was"


@pytest.mark.parametrize(("option", "kind"), [(FAIL, "answer_left"), (None, "ask_timeout")])
def test_fail_and_silence_leave_the_breaks_open(sides: Sides, option: str | None, kind: str) -> None:
    differing(sides)
    run = asked(sides, retries=2)
    run.answer("reconcile", option, {})
    assert run.states() == {"reconcile": "failed"}
    assert isinstance(run.last("reconcile").cause, BreaksFound)
    assert {row.state for row in sides.breaks()} == {"open"}
    assert [each[0] for each in told(sides, "answer_left", "ask_timeout")] == [kind]


def test_without_a_reason_the_question_opens_again(sides: Sides) -> None:
    differing(sides)
    run = asked(sides)
    run.answer("reconcile", ACCEPT, {"reason": " "})
    assert run.states()["reconcile"] in WAITING
    assert {row.state for row in sides.breaks()} == {"open"}
    (refused,) = told(sides, "answer_refused")
    assert refused == ("answer_refused", "jane", "not accepted: a reason is missing")
    run.answer("reconcile", ACCEPT, WHY, user="joe")
    assert run.states() == {"reconcile": "success"}
    assert {row.actor for row in sides.breaks()} == {"joe"}


def test_a_break_that_changed_meanwhile_is_not_accepted(sides: Sides) -> None:
    """A later run looks at the date again and finds another amount: what the person has seen is not that."""
    sides.add("booked", ("D-1", "10.00"))
    sides.add("posted", ("D-1", "12.00"))
    run = asked(sides)
    sides.run_sql("UPDATE posted SET amount = 99")
    sides.run(at=JANUARY_30 + timedelta(days=1), settle_pokes=1, allow_empty=True)
    run.answer("reconcile", ACCEPT, WHY)
    assert run.states() == {"reconcile": "failed"}
    assert [row.state for row in sides.breaks()] == ["open"]
    (refused,) = told(sides, "answer_refused")
    assert "changed since it was shown" in refused[2]


def test_a_break_that_a_later_run_found_again_as_it_was_is_accepted(sides: Sides) -> None:
    differing(sides)
    run = asked(sides)
    sides.run(at=JANUARY_30 + timedelta(days=1), settle_pokes=1, allow_empty=True)
    run.answer("reconcile", ACCEPT, WHY)
    assert run.states() == {"reconcile": "success"}
    assert {row.state for row in sides.breaks()} == {"explained"}


def test_what_somebody_explained_or_corrected_meanwhile_is_no_obstacle(sides: Sides) -> None:
    differing(sides)
    run = asked(sides)
    first, second = (row.id for row in sides.breaks())
    decide(sides.business.ledger, BreakState.EXPLAINED, [first], actor="ann", reason="known")
    decide(sides.business.ledger, BreakState.RESOLVED, [second], actor="ann", reason="posted by hand")
    run.answer("reconcile", ACCEPT, WHY)
    assert run.states() == {"reconcile": "success"}
    assert [(row.state, row.actor) for row in sides.breaks()] == [("explained", "ann"), ("resolved", "ann")]
    (refused,) = told(sides, "answer_refused")
    assert "already by ann: known" in refused[2]
    assert "(and 1 more)" in refused[2]


def test_both_sides_empty_can_be_accepted(sides: Sides) -> None:
    run = asked(sides)
    assert run.question("reconcile").subject.startswith("1 break: ")
    run.answer("reconcile", ACCEPT, {"reason": "a holiday"})
    assert run.states() == {"reconcile": "success"}


def test_after_a_clear_the_same_breaks_are_asked_again_and_others_are_not(sides: Sides) -> None:
    differing(sides)
    run = asked(sides)
    run.answer("reconcile", FAIL, {})
    assert run.clear().go(run_triggers=False).states()["reconcile"] in WAITING, (
        "the same breaks, the same question"
    )
    run.answer("reconcile", FAIL, {})
    sides.add("posted", ("D-77", "1.00"))
    run.clear().go(run_triggers=False)
    assert run.states() == {"reconcile": "failed"}, "Airflow would show the old question about two"
    assert {row.state for row in sides.breaks()} == {"open"}


def test_more_breaks_than_are_named_cannot_be_accepted(sides: Sides) -> None:
    differing(sides)
    dag = sides.dag(on_break="ask", settle_pokes=1, max_breaks=1)
    run = start_run(dag, logical_at=JANUARY_30).go(run_triggers=False)
    assert run.states() == {"reconcile": "failed"}
    assert run.question("reconcile") is None


def test_sides_that_agree_ask_nobody(sides: Sides) -> None:
    sides.both()
    run = start_run(sides.dag(on_break="ask"), logical_at=JANUARY_30).go(run_triggers=False)
    assert run.states() == {"reconcile": "success"}
    assert run.question("reconcile") is None


def test_empty_sides_fail_as_before_when_nobody_answers(sides: Sides) -> None:
    run = asked(sides)
    run.answer("reconcile", None)
    assert isinstance(run.last("reconcile").cause, BothEmpty)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"on_break": "ask", "ask_timeout": 0}, "above zero"),
        ({"on_break": "fail", "ask_timeout": timedelta(hours=1)}, "no meaning without"),
        ({"on_break": "Ask"}, "'fail', 'warn' or 'ask'"),
    ],
)
def test_what_cannot_be_asked_is_refused(sides: Sides, parameters: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        sides.dag(**parameters)
