"""Causes, named from what was read."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from airflow_guard.core.diagnosis import Cause, Evidence, Key, Run, Try, conclusion, diagnose

AT = datetime(2026, 1, 31, 2, 0, tzinfo=UTC)


def one(
    number: int = 1, *, begins: int = 0, takes: int | None = 60, state: str = "success", task: str = "post"
) -> Try:
    started = AT + timedelta(seconds=begins)
    return Try(
        task,
        -1,
        number,
        state,
        started,
        None if takes is None else started + timedelta(seconds=takes),
        "host",
    )


def run(*tries: Try, run_id: str = "scheduled__1", cleared: int = 0) -> Run:
    return Run(run_id, "scheduled", "success", cleared, "", tries)


def causes(evidence: Evidence) -> list[Cause]:
    return [finding.cause for finding in diagnose(evidence)]


DONE = (Key("post", "S-1", "done", 1), Key("post", "S-2", "done", 1))
GOOD = Evidence((run(one()),), DONE, rows={"S-1": 1, "S-2": 1})


def test_what_ran_once_has_nothing_wrong() -> None:
    assert causes(GOOD) == [Cause.NOTHING_WRONG]


def test_several_runs_are_duplicate_triggering_and_several_tries_duplicate_execution() -> None:
    twice = replace(GOOD, runs=(run(one()), run(one(begins=3600), run_id="manual__2")))
    assert causes(twice) == [Cause.DUPLICATE_TRIGGERING]
    again = replace(GOOD, runs=(run(one(), one(2, begins=100), one(task="notify", begins=300)),))
    assert causes(again) == [Cause.DUPLICATE_EXECUTION]
    assert "post 2 tries" in diagnose(again)[0].evidence


def test_a_run_that_was_cleared_with_all_its_tasks_is_a_batch_rerun_whole() -> None:
    tries = (one(), one(2, begins=100), one(task="notify"), one(2, task="notify", begins=200))
    assert causes(replace(GOOD, runs=(run(*tries, cleared=1),))) == [Cause.RERUN_WHOLE]


def test_a_try_that_began_before_another_had_ended_overlapped() -> None:
    tries = (one(takes=600), one(2, begins=120, takes=60))
    assert causes(replace(GOOD, runs=(run(*tries),))) == [Cause.DUPLICATE_EXECUTION, Cause.OVERLAP]
    never = (one(takes=None), one(2, begins=120))
    assert Cause.OVERLAP in causes(replace(GOOD, runs=(run(*never),)))
    after = (one(takes=120), one(2, begins=120))
    assert Cause.OVERLAP not in causes(replace(GOOD, runs=(run(*after),)))


def test_a_duration_near_its_limit_is_named_before_it_is_over_it() -> None:
    limits = {"post": timedelta(seconds=100)}
    near = replace(GOOD, runs=(run(one(takes=80)),), execution_timeouts=limits)
    assert causes(near) == [Cause.NEAR_TIMEOUT]
    assert causes(replace(near, runs=(run(one(takes=79)),))) == [Cause.NOTHING_WRONG]
    lost = replace(GOOD, runs=(run(one(takes=290, state="failed")),))
    assert causes(lost) == [Cause.NEAR_HEARTBEAT]
    assert causes(replace(GOOD, runs=(run(one(takes=2900)),))) == [Cause.NOTHING_WRONG]


def test_the_order_is_fixed_and_the_business_rows_win() -> None:
    runs = (run(one()), run(one(begins=3600), run_id="manual__2"))
    doubled = Evidence(runs, DONE, replayed=2, rows={"S-1": 2, "S-2": 1})
    found = diagnose(doubled)
    assert [finding.source for finding in found] == ["scheduling log", "ledger", "business rows"]
    assert "doubled" in conclusion(found, doubled)
    harmless = replace(doubled, rows={"S-1": 1, "S-2": 1})
    assert "did no harm" in conclusion(diagnose(harmless), harmless)
    unasked = replace(doubled, rows=None)
    assert "was not asked" in conclusion(diagnose(unasked), unasked)
    unguarded = Evidence(runs)
    assert "not guarded" in conclusion(diagnose(unguarded), unguarded)


def test_what_ledger_and_rows_say_of_each_other() -> None:
    evidence = replace(GOOD, rows={"S-1": 1, "S-9": 1})
    assert causes(evidence) == [Cause.LOST, Cause.UNKNOWN_TO_LEDGER]
    assert "disagree" in conclusion(diagnose(evidence), evidence)
    doubt = Evidence((run(one()),), (Key("send", "P-1", "in doubt", 1), Key("send", "P-2", "rejected", 1)))
    assert causes(doubt) == [Cause.IN_DOUBT, Cause.NOT_DONE]
    assert "Settle the doubt" in conclusion(diagnose(doubt), doubt)


def test_a_date_without_a_run_never_ran() -> None:
    assert causes(Evidence()) == [Cause.NEVER_RAN]


def test_a_purged_date_is_not_said_never_to_have_run() -> None:
    evidence = Evidence(purged=["statements / post was purged up to 2024-12-31 by ada (two years)"])
    assert causes(evidence) == [Cause.PURGED]
    assert "purged" in conclusion(diagnose(evidence), evidence)


def test_a_guarded_task_that_listed_nothing_is_not_said_to_be_unguarded() -> None:
    evidence = Evidence((run(one()),), guarded_tries=1)
    assert causes(evidence) == [Cause.LISTED_NOTHING]
    said = conclusion(diagnose(evidence), evidence)
    assert "listed no document" in said
    assert "not guarded" not in said


def test_d04_documents_that_another_key_namespace_has_done_are_a_finding_with_the_ways_out():
    said = "a / post has done documents that b / post lists in its first run (N1). If DAG 'b' is a copy, set key_namespace='a'."
    evidence = Evidence(elsewhere=[said], keys=[Key("post", "N1", "done", 1)], guarded_tries=1)
    found = [each for each in diagnose(evidence) if each.cause is Cause.NAMESAKE]
    assert [(each.source, each.evidence, each.remedy) for each in found] == [
        (
            "ledger",
            "a / post has done documents that b / post lists in its first run (N1).",
            "If DAG 'b' is a copy, set key_namespace='a'.",
        )
    ]
    assert "done twice" in conclusion(diagnose(evidence), evidence)
