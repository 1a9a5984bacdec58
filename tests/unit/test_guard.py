"""The decision: each verdict, and which question comes before which."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import product

import pytest

from airflow_guard.core.content import fingerprint
from airflow_guard.core.guard import (
    AUTOMATIC_RUN_TYPES,
    CLAIMABLE,
    Asking,
    LedgerRow,
    TaskIdentity,
    Verdict,
    judge,
)
from airflow_guard.core.states import PHASES_OF_STATE, FollowUp, Phase, State

ME = TaskIdentity("bank", "post", "scheduled__1", run_type="scheduled", host="worker-1", pid=42)
ASKING = Asking(ME, "production")
OLD, NEW = fingerprint({"amount": "1"}), fingerprint({"amount": "2"})


def row(state: State = State.COMPLETED, phase: Phase | None = None, **changes) -> LedgerRow:
    if phase is None:
        phase = {State.COMPLETED: Phase.DONE, State.IN_DOUBT: Phase.BEGUN}.get(state, Phase.NONE)
    known = LedgerRow(
        key_hash="k" * 32, document="S-1", state=state, phase=phase, follow_up=FollowUp.NONE, attempt=1,
        generation=1, owner_token="t" * 32, idempotency_key="i" * 32, deployment="production", lease_over=True,
        last_sign_age_s=60.0, fingerprint=OLD, first_run=ME, last_run=ME,
    )  # fmt: skip
    return replace(known, **changes)


def verdict(known: LedgerRow | None, asking: Asking = ASKING, content: str | None = OLD) -> Verdict:
    return judge(known, asking, content).verdict


# -- each verdict ------------------------------------------------------------------------------------------


def test_a_key_that_nobody_knows_may_be_claimed():
    assert verdict(None) is Verdict.CLAIM


def test_a_key_that_nobody_knows_from_before_the_watch_may_not():
    assert verdict(None, replace(ASKING, not_guarded=True)) is Verdict.NOT_GUARDED


def test_a_known_key_was_guarded_whatever_its_date():
    assert verdict(row(), replace(ASKING, not_guarded=True)) is Verdict.DONE
    assert verdict(row(State.FAILED), replace(ASKING, not_guarded=True)) is Verdict.CLAIM


@pytest.mark.parametrize(
    ("state", "phase", "lease_over", "expected"),
    [
        (State.FAILED, Phase.NONE, True, Verdict.CLAIM),
        (State.FAILED, Phase.NONE, False, Verdict.CLAIM),
        (State.IN_PROGRESS, Phase.NONE, False, Verdict.ELSEWHERE),
        (State.IN_PROGRESS, Phase.BEGUN, False, Verdict.ELSEWHERE),
        (State.IN_PROGRESS, Phase.IN_TRANSACTION, False, Verdict.ELSEWHERE),
        (State.IN_PROGRESS, Phase.NONE, True, Verdict.TAKE_OVER),
        (State.IN_PROGRESS, Phase.BEGUN, True, Verdict.DOUBT),
        (State.IN_PROGRESS, Phase.IN_TRANSACTION, True, Verdict.DOUBT),
        (State.IN_DOUBT, Phase.BEGUN, False, Verdict.DOUBT),
        (State.IN_DOUBT, Phase.IN_TRANSACTION, True, Verdict.DOUBT),
        (State.REJECTED, Phase.NONE, True, Verdict.REJECTED),
        (State.REJECTED, Phase.NONE, False, Verdict.REJECTED),
        (State.COMPLETED, Phase.DONE, True, Verdict.DONE),
        (State.COMPLETED, Phase.DONE, False, Verdict.DONE),
        (State.COMPLETED, Phase.NONE, True, Verdict.DONE),
    ],
)
def test_the_verdict_on_each_state(state, phase, lease_over, expected):
    assert verdict(row(state, phase, lease_over=lease_over)) is expected


def test_c01_the_same_run_and_try_is_elsewhere_all_the_same():
    """A redelivered task has the identity of the first; only the owner token tells them apart."""
    assert verdict(row(State.IN_PROGRESS, lease_over=False, last_run=ME)) is Verdict.ELSEWHERE


# -- done --------------------------------------------------------------------------------------------------


def test_changed_content_is_never_replayed_and_names_its_fields():
    judgement = judge(row(), ASKING, NEW)
    assert judgement.verdict is Verdict.CHANGED
    assert tuple(judgement.fields) == ("amount",)


@pytest.mark.parametrize(("stored", "current"), [(None, NEW), (OLD, None), (None, None)])
def test_without_two_contents_nothing_has_changed(stored, current):
    assert verdict(row(fingerprint=stored), content=current) is Verdict.DONE


@pytest.mark.parametrize(
    ("follow_up", "lease_over", "expected"),
    [
        (FollowUp.PENDING, False, Verdict.ELSEWHERE),
        (FollowUp.PENDING, True, Verdict.FOLLOW_UP),
        (FollowUp.FAILED, True, Verdict.FOLLOW_UP),
        (FollowUp.FAILED, False, Verdict.FOLLOW_UP),
        (FollowUp.SETTLED, True, Verdict.DONE),
        (FollowUp.NONE, True, Verdict.DONE),
    ],
)
def test_r03_a_follow_up_that_is_missing_is_not_done(follow_up, lease_over, expected):
    assert verdict(row(follow_up=follow_up, lease_over=lease_over)) is expected


def test_a_missing_follow_up_comes_before_changed_content():
    assert verdict(row(follow_up=FollowUp.FAILED), content=NEW) is Verdict.FOLLOW_UP


@pytest.mark.parametrize("state", [State.FAILED, State.IN_PROGRESS, State.IN_DOUBT])
def test_content_that_has_changed_is_told_whatever_the_state(state):
    """What is not settled is claimed, waited for or settled first, for what was sent."""
    judgement = judge(row(state), ASKING, NEW)
    assert judgement.verdict is verdict(row(state), content=OLD)
    assert judgement.fields == ["amount"]
    assert judge(row(state), ASKING, OLD).fields is None


def test_d10_a_rejection_was_of_the_content_that_was_rejected():
    assert verdict(row(State.REJECTED), content=OLD) is Verdict.REJECTED
    assert verdict(row(State.REJECTED), content=NEW) is Verdict.CHANGED


def test_accepted_content_is_as_good_as_the_stored_one_and_no_other():
    accepted = row(accepted=(NEW,))
    assert verdict(accepted, content=NEW) is verdict(accepted, content=OLD) is Verdict.DONE
    assert verdict(accepted, content=fingerprint({"amount": "3"})) is Verdict.CHANGED
    assert verdict(row(State.REJECTED, accepted=(NEW,)), content=NEW) is Verdict.REJECTED


# -- whose key it is ---------------------------------------------------------------------------------------

OTHER_RUN = replace(ME, run_id="backfill__2", run_type="backfill")
EVERY_ROW = [row(state, phase) for state, phases in PHASES_OF_STATE.items() for phase in sorted(phases)]


@pytest.mark.parametrize("known", EVERY_ROW, ids=lambda known: f"{known.state}-{known.phase}")
def test_another_deployments_key_is_never_touched_whatever_its_state(known):
    assert verdict(known, replace(ASKING, deployment="laptop")) is Verdict.OTHER_DEPLOYMENT


@pytest.mark.parametrize("known", EVERY_ROW, ids=lambda known: f"{known.state}-{known.phase}")
@pytest.mark.parametrize("lease_over", [True, False])
def test_another_automatic_run_is_told_whatever_the_state(known, lease_over):
    known = replace(known, first_run=OTHER_RUN, lease_over=lease_over)
    assert verdict(known, content=NEW) is Verdict.OTHER_RUN


def test_another_deployment_comes_before_another_run():
    known = row(first_run=OTHER_RUN, deployment="laptop")
    assert verdict(known) is Verdict.OTHER_DEPLOYMENT


@pytest.mark.parametrize("first", sorted(AUTOMATIC_RUN_TYPES))
@pytest.mark.parametrize("second", sorted(AUTOMATIC_RUN_TYPES))
def test_two_automatic_runs_of_any_kind_are_unclear(first, second):
    known = row(first_run=replace(OTHER_RUN, run_type=first))
    assert verdict(known, replace(ASKING, identity=replace(ME, run_type=second))) is Verdict.OTHER_RUN


@pytest.mark.parametrize(
    ("first", "second"), [("manual", "scheduled"), ("scheduled", "manual"), ("manual", "manual")]
)
def test_a_run_that_a_person_started_replays(first, second):
    known = row(first_run=replace(OTHER_RUN, run_type=first))
    assert verdict(known, replace(ASKING, identity=replace(ME, run_type=second))) is Verdict.DONE


def test_a_cleared_or_backfilled_run_is_the_same_run():
    """Reprocessing clears the existing run and rewrites its type; the run id stays."""
    reprocessed = replace(ME, run_type="backfill", try_number=7, map_index=3)
    assert verdict(row(), replace(ASKING, identity=reprocessed)) is Verdict.DONE


def test_a_run_of_another_dag_with_the_same_id_is_another_run():
    """Scheduled runs of two DAGs often have equal ids."""
    assert verdict(row(first_run=replace(ME, dag_id="copy_of_bank"))) is Verdict.OTHER_RUN


def test_another_task_of_the_same_run_is_the_same_run():
    assert verdict(row(first_run=replace(ME, task_id="renamed"))) is Verdict.DONE


def test_the_first_run_counts_not_the_last():
    assert verdict(row(first_run=ME, last_run=OTHER_RUN)) is Verdict.DONE
    assert verdict(row(first_run=OTHER_RUN, last_run=ME)) is Verdict.OTHER_RUN


def test_adopted_history_has_no_first_run():
    assert verdict(row(phase=Phase.NONE, first_run=None, last_run=None)) is Verdict.DONE


def test_where_relisting_is_normal_runs_are_not_compared():
    assert verdict(row(first_run=OTHER_RUN), replace(ASKING, compare_runs=False)) is Verdict.DONE


# -- safety, over everything -------------------------------------------------------------------------------


def everything():
    for known, lease_over, follow_up, first_run, deployment in product(
        EVERY_ROW, (True, False), FollowUp, (ME, OTHER_RUN, None), ("production", "laptop")
    ):
        if follow_up is FollowUp.NONE or known.state is State.COMPLETED:
            yield replace(
                known, lease_over=lease_over, follow_up=follow_up, first_run=first_run, deployment=deployment
            )


def test_nothing_is_claimable_but_what_has_certainly_not_happened():
    claimable = [known for known in everything() if verdict(known) in CLAIMABLE]
    assert claimable
    for known in claimable:
        abandoned = known.state is State.IN_PROGRESS and known.phase is Phase.NONE and known.lease_over
        assert known.state is State.FAILED or abandoned
        assert known.deployment == ASKING.deployment
        assert known.first_run is not OTHER_RUN


def test_nothing_is_lost_every_row_has_a_verdict_that_somebody_can_act_on():
    """With all leases over, no key may wait for an attempt that is gone."""
    for known in everything():
        assert verdict(replace(known, lease_over=True)) is not Verdict.ELSEWHERE


# -- words -------------------------------------------------------------------------------------------------


def test_an_identity_reads_well():
    at = datetime(2025, 3, 31, 4, 5, 6, 789, tzinfo=UTC)
    described = replace(ME, map_index=3, try_number=2, started_at=at).describe()
    assert described == "run scheduled__1, bank.post [3] try 2 at 2025-03-31 04:05:06 UTC on worker-1 pid 42"
    assert TaskIdentity("d", "t", "r").describe() == "run r, d.t try 1"


def test_who_did_it_is_said_for_adopted_history_too():
    assert row().done_by.startswith("run scheduled__1")
    assert "adoption" in row(last_run=None).done_by
