"""The state machine itself: complete, closed, and nothing in it is lost."""

from __future__ import annotations

import re

import pytest

from airflow_guard.core.states import PHASES_OF_STATE, TRANSITIONS, Event, FollowUp, Phase, State
from airflow_guard.store.tables import Tables

BY_THE_OWNER = {Event.BEGIN, Event.COMPLETE, Event.REJECT, Event.FAIL, Event.DOUBT, Event.LATE_REPORT}
BY_A_JUDGE = {Event.RESOLVE_HAPPENED, Event.RESOLVE_NOT_HAPPENED, Event.WAIVE, Event.SEND_AGAIN}


def targets(*sources: State | None, by: set[Event] | None = None) -> set[State]:
    return {
        transition.target
        for transition in TRANSITIONS
        if transition.source in sources and (by is None or transition.event in by)
    }


def test_every_state_has_phases_and_every_phase_a_state():
    assert PHASES_OF_STATE.keys() == set(State)
    assert all(PHASES_OF_STATE.values())
    assert frozenset().union(*PHASES_OF_STATE.values()) == set(Phase)


def test_no_transition_is_written_twice_and_every_event_has_one():
    assert len(set(TRANSITIONS)) == len(TRANSITIONS)
    assert {transition.event for transition in TRANSITIONS} == set(Event)


def test_every_state_is_reached_from_a_key_that_nobody_knew():
    known: set[State | None] = {None}
    while more := targets(*known) - known:
        known |= more
    assert known == {None, *State}


@pytest.mark.parametrize("state", State)
def test_no_key_is_lost_every_state_leads_to_completed(state):
    reached = {state}
    while more := targets(*reached) - reached:
        reached |= more
    assert State.COMPLETED in reached


def test_completed_is_left_only_by_a_rerun_that_a_person_has_authorised():
    assert {t.event for t in TRANSITIONS if t.source is State.COMPLETED} == {Event.RERUN}


def test_what_is_in_doubt_or_rejected_becomes_claimable_only_by_a_judge_or_its_own_attempt():
    assert {t.event for t in TRANSITIONS if t.source is State.REJECTED} <= BY_A_JUDGE
    assert {t.event for t in TRANSITIONS if t.source is State.IN_DOUBT} <= BY_A_JUDGE | BY_THE_OWNER


def test_only_a_failed_or_abandoned_key_can_be_claimed():
    claims = {(t.source, t.target) for t in TRANSITIONS if t.event in (Event.CLAIM, Event.TAKE_OVER)}
    assert claims == {
        (None, State.IN_PROGRESS),
        (State.FAILED, State.IN_PROGRESS),
        (State.IN_PROGRESS, State.IN_PROGRESS),
    }


def test_an_effect_that_began_is_never_forgotten_by_its_state():
    """Only states without an open effect can say phase "none": those that a claim may start from."""
    assert Phase.BEGUN not in PHASES_OF_STATE[State.FAILED] | PHASES_OF_STATE[State.COMPLETED]
    assert Phase.NONE not in PHASES_OF_STATE[State.IN_DOUBT]
    assert Phase.DONE in PHASES_OF_STATE[State.COMPLETED]


def test_the_database_checks_exactly_these_pairs():
    table = Tables().execution
    (check,) = (each for each in table.constraints if each.name == "guard_execution_standing")
    text = str(check.sqltext.compile(compile_kwargs={"literal_binds": True}))  # type: ignore[attr-defined]
    written = {tuple(words.split()) for words in re.findall(r"'(\w+ \w+ \w+)'", text)}
    ends = {state: [*FollowUp] if state is State.COMPLETED else [FollowUp.NONE] for state in State}
    assert written == {
        (state, phase, end)
        for state, phases in PHASES_OF_STATE.items()
        for phase in phases
        for end in ends[state]
    }


def test_words_are_stored_as_they_are_written():
    """They are in the database for years."""
    assert [*State, *Phase, *FollowUp] == [
        "in_progress", "completed", "failed", "rejected", "dropped", "in_doubt",
        "none", "in_transaction", "begun", "done",
        "none", "pending", "failed", "settled",
    ]  # fmt: skip
