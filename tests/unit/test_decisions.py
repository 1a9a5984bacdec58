"""What may be decided about a key, for every combination of state, phase, follow-up and lease."""

from __future__ import annotations

import doctest
from dataclasses import dataclass, replace
from itertools import product

import pytest

from airflow_guard.core import commands
from airflow_guard.core.decisions import (
    CONSEQUENCES,
    DECISIONS_OF,
    MAX_REASON_CHARACTERS,
    Decision,
    Situation,
    check_words,
    decisions_of,
    explanation,
    situation_of,
)
from airflow_guard.core.errors import ResolutionError
from airflow_guard.core.states import PHASES_OF_STATE, TRANSITIONS, Event, FollowUp, Phase, State


@dataclass(frozen=True)
class Row:
    state: State
    phase: Phase = Phase.NONE
    follow_up: FollowUp = FollowUp.NONE
    lease_over: bool = True
    offered: str | None = None


def possible() -> list[Row]:
    """Every row that the database lets in, with the lease alive and over."""
    return [
        Row(state, phase, follow_up, over)
        for state, phases in PHASES_OF_STATE.items()
        for phase, follow_up, over in product(phases, FollowUp, (True, False))
        if follow_up is FollowUp.NONE or state is State.COMPLETED
    ]


def test_every_possible_row_stands_somewhere_and_that_is_explained() -> None:
    assert {situation_of(row) for row in possible()} == set(Situation)
    assert all(explanation(situation) for situation in Situation)


@pytest.mark.parametrize("phase", [Phase.BEGUN, Phase.IN_TRANSACTION])
def test_lease_over_with_the_effect_begun_is_in_doubt_whoever_has_written_it(phase: Phase) -> None:
    assert situation_of(Row(State.IN_PROGRESS, phase)) is Situation.IN_DOUBT
    assert situation_of(Row(State.IN_PROGRESS, phase, lease_over=False)) is Situation.RUNNING
    assert situation_of(Row(State.IN_DOUBT, phase, lease_over=False)) is Situation.IN_DOUBT


def test_nothing_can_be_decided_about_a_row_whose_attempt_may_be_alive() -> None:
    for row in possible():
        in_hand = row.state is State.IN_PROGRESS or row.follow_up is FollowUp.PENDING
        if in_hand and not row.lease_over:
            assert situation_of(row) not in DECISIONS_OF


def test_every_decision_is_a_transition_of_the_state_machine() -> None:
    events = {
        Decision.HAPPENED: Event.RESOLVE_HAPPENED, Decision.DID_NOT_HAPPEN: Event.RESOLVE_NOT_HAPPENED,
        Decision.WAIVE: Event.WAIVE, Decision.SEND_AGAIN: Event.SEND_AGAIN,
    }  # fmt: skip
    targets = {transition.event: transition.target for transition in TRANSITIONS}
    for decision, event in events.items():
        assert CONSEQUENCES[decision].target is targets[event]
        assert CONSEQUENCES[decision].event == event.value
    assert set(CONSEQUENCES) == set(Decision)
    whatever_the_content = {d for several in DECISIONS_OF.values() for d in several}
    assert set(Decision) - whatever_the_content == {Decision.CONTENT_STANDS}


def test_other_content_can_be_accepted_only_where_something_stands_for_it() -> None:
    for row in possible():
        offered = replace(row, offered="print")
        more = set(decisions_of(offered)) - set(decisions_of(row))
        stands = situation_of(row) in (Situation.DONE, Situation.REJECTED)
        assert more == ({Decision.CONTENT_STANDS} if stands else set())
        assert set(decisions_of(row)) == set(DECISIONS_OF.get(situation_of(row), ()))


def test_decisions_are_read_with_either_kind_of_dash() -> None:
    assert Decision.of("did-not-happen") is Decision.of("did_not_happen") is Decision.DID_NOT_HAPPEN
    assert Decision.DID_NOT_HAPPEN.option == "--did-not-happen"
    with pytest.raises(ResolutionError, match="there_is_none"):
        Decision.of("there_is_none")


@pytest.mark.parametrize(
    ("actor", "reason"),
    [
        ("ana", ""),
        ("ana", " \n"),
        ("", "x"),
        ("  ", "x"),
        ("a" * 251, "x"),
        ("ana", "x" * (MAX_REASON_CHARACTERS + 1)),
    ],
)
def test_who_and_why_must_be_said(actor: str, reason: str) -> None:
    with pytest.raises(ResolutionError):
        check_words(actor, reason)


def test_who_and_why_are_stored_without_white_space_around_them() -> None:
    assert check_words(" ana ", "seen\n") == ("ana", "seen")


def test_the_examples_of_the_commands_module_are_right() -> None:
    assert doctest.testmod(commands).failed == 0


@pytest.mark.parametrize(
    ("url", "printed"),
    [
        ("postgresql://guard:p@ss:w0rd@db/ledger", "postgresql://guard:***@db/ledger"),
        ("postgresql://db/l?user=guard&password=w0rd&x=1", "postgresql://db/l?user=guard&password=***&x=1"),
        ("postgresql://guard@db/ledger", "postgresql://guard@db/ledger"),
        ("sqlite:////var/ledger.db", "sqlite:////var/ledger.db"),
        ("core_banking", "core_banking"),
    ],
)
def test_a_password_is_never_printed(url: str, printed: str) -> None:
    assert commands.without_password(url) == printed
    assert "w0rd" not in commands.show_command("ab" * 16, ledger=url)
