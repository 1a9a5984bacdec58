"""Checks and breaks in the ledger, on every database: kept while they wait, found again, closed, opened again."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard.acts.break_decisions import decide
from airflow_guard.core.checks import (
    TOTALS_MISMATCH,
    BreakState,
    CheckOutcome,
    FoundBreak,
    Progress,
)
from airflow_guard.core.errors import ResolutionError
from airflow_guard.core.guard import TaskIdentity
from airflow_guard.store.breaks import Changes, Findings
from airflow_guard.store.reconciliations import Check, CheckState, Ending, Figures, Reconciliations
from demo.waiting import QUIET_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_guard.core.keys import KeySpace
    from airflow_guard.store.ledger import Ledger

DAY = date(2026, 1, 30)
READ_AT = datetime(2026, 1, 30, 12, 5, tzinfo=UTC)
LONG_AMOUNT = "-12345678901234567890123456789012345678.90"
WRONG = FoundBreak("amount_mismatch", {"currency": "EUR"}, "D-1", "amount", "1.00", "1.01", "0.01", 1, 1)
MISSING = FoundBreak("missing_in_target", {"currency": None}, "D-2", None, LONG_AMOUNT, None, None, 1, 0)
TOTALS = FoundBreak(TOTALS_MISMATCH, {"currency": "EUR"}, None, None, "3 rows", "2 rows")


class Checks:
    """Checks of one operation, each by a run of its own."""

    def __init__(self, ledger: Ledger, space: KeySpace) -> None:
        self.store = Reconciliations(ledger.database)
        self.ledger = ledger
        self.space = space

    def check(
        self, run: str = "one", *, day: date = DAY, ti: str = "", run_date: date | None = None
    ) -> Check:
        who = TaskIdentity("statements", "reconcile", run, run_type="scheduled", run_after_at=READ_AT)
        space = replace(self.space, business_date=day)
        return Check(f"{ti or run} {space.operation} {space.cycle}", who, space, run_date or day)

    def end(
        self,
        check: Check,
        *found: FoundBreak,
        closes: str = "all",
        outcome: CheckOutcome | None = None,
        totals: Sequence[dict[str, Any]] = (),
    ) -> Changes:
        """Let a check look once and end."""
        state = self.open(check)
        figures = Figures(True, 3, 2, totals, READ_AT, READ_AT, len(found), 1000)
        ending = Ending(
            outcome or (CheckOutcome.BROKEN if found else CheckOutcome.PASSED),
            "why",
            Progress().saw("a" * 32 if found else None),
            settled=bool(found),
            figures=figures,
            findings=Findings(found, closes),
        )
        return self.store.close(check, state, ending)

    def open(self, check: Check) -> CheckState:
        """Begin a check, or go on with it."""
        self.store.begin([check])
        (state,) = [
            each for each in self.store.states(check.ti_id) if each.business_date == check.space.business_date
        ]
        return state

    def states(self) -> dict[str | None, str]:
        b = self.ledger.database.tables.breaks
        query = sa.select(b.c.document, b.c.state).where(b.c.operation == self.space.operation)
        return {
            row.document: row.state for row in self.ledger.database.read(lambda c: c.execute(query).all())
        }

    def events(self) -> list[tuple[str, str, str]]:
        e = self.ledger.database.tables.event
        query = (
            sa.select(e.c.kind, e.c.actor, e.c.reason)
            .where(e.c.key_text.contains(f"/ {self.space.operation} /"))
            .order_by(e.c.id)
        )
        rows = self.ledger.database.read(lambda c: c.execute(query).all())
        return [(row.kind, row.actor, row.reason) for row in rows]

    def open_ids(self) -> list[int]:
        return [each.id for each in self.store.breaks.unsettled(operation=self.space.operation)]


@pytest.fixture
def checks(shared_ledger: Ledger, space: KeySpace) -> Checks:
    return Checks(shared_ledger, space)


# ---- A check that waits ------------------------------------------------------------------------------------


def test_a_check_goes_on_where_it_was(checks: Checks) -> None:
    check = checks.check()
    first = checks.open(check)
    assert first.progress == Progress()
    assert 0 <= first.age_s < 30
    progress = Progress().saw("a" * 32)
    checks.store.note(first, progress, Figures(True, 3, 2, [{"x": "1"}], READ_AT, READ_AT))
    again = checks.open(check)
    assert (again.id, again.progress) == (first.id, progress)

    failed = progress.failed("the server is down 🔥\x00")
    checks.store.note(again, failed)
    third = checks.open(check)
    assert third.progress == replace(failed, last_error="the server is down 🔥\\x00")
    checks.store.close(check, third, Ending(CheckOutcome.FAILED, "down", failed))
    ended = checks.store.last_ended(check.space)
    assert ended is not None
    assert (ended.outcome, ended.reason, ended.progress) == (CheckOutcome.FAILED, "down", third.progress)
    assert ended.figures == Figures(True, 3, 2, [{"x": "1"}], READ_AT, READ_AT)


def test_another_try_and_another_date_begin_anew(checks: Checks) -> None:
    first = checks.open(checks.check())
    checks.store.note(first, Progress().saw("a" * 32))
    for other in (checks.check(ti="second try"), checks.check(day=DAY - timedelta(days=1))):
        state = checks.open(other)
        assert state.id != first.id
        assert state.progress == Progress()


def test_a_check_that_has_ended_stays_as_it_ended(checks: Checks) -> None:
    check = checks.check()
    checks.end(check, WRONG)
    assert checks.open(check).outcome is CheckOutcome.BROKEN
    (ended,) = checks.store.ended(check.ti_id)
    assert ended.settled
    assert ended.figures is not None
    assert (ended.figures.break_count, ended.figures.capped) == (1, False)
    assert checks.store.last_ended(check.space) == ended
    assert checks.store.last_ended(check.space, but=check.ti_id) is None
    (found,) = checks.store.breaks.of_checks([ended.id], [DAY])
    assert (found.found, found.opened_in) == (WRONG, "one")


def test_two_processes_with_one_check_do_not_undo_each_others_looks(checks: Checks) -> None:
    check = checks.check()
    mine = checks.open(check)
    theirs = checks.open(check)
    checks.store.note(mine, Progress().saw("a" * 32))
    checks.store.note(theirs, Progress().saw("b" * 32))  # noted second: the first look stays
    assert checks.open(check).progress.difference == "a" * 32


def test_the_date_of_a_run_is_remembered(checks: Checks) -> None:
    check = checks.check("dated", run_date=DAY)
    who = replace(check.identity, task_id=checks.space.operation)
    checks.open(replace(check, identity=who, date_source="interval", date_detail="d" * 300))
    checks.open(replace(check, identity=who, ti_id="another", run_date=DAY - timedelta(days=9)))
    stored = checks.store.stored_date("statements", "dated", who.task_id)
    assert stored is not None
    assert (stored.date, stored.source, stored.detail) == (DAY, "interval", "d" * 250)
    assert checks.store.stored_date("statements", "other", who.task_id) is None
    previous = checks.store.previous_run("statements", who.task_id, READ_AT + timedelta(hours=1))
    assert previous == ("dated", DAY, READ_AT)
    assert checks.store.previous_run("statements", who.task_id, READ_AT) is None


# ---- Breaks ------------------------------------------------------------------------------------------------


def test_breaks_are_stored_exactly_and_have_an_age(checks: Checks) -> None:
    changes = checks.end(checks.check(), WRONG, MISSING)
    assert (changes.new, changes.known, changes.closed) == ([WRONG, MISSING], [], [])
    stored = checks.store.breaks.unsettled(operation=checks.space.operation, business_date=DAY)
    assert {each.found.document: each.found for each in stored} == {"D-1": WRONG, "D-2": MISSING}
    assert all(each.state is BreakState.OPEN and 0 <= each.age_s < 30 for each in stored)
    assert checks.store.breaks.unsettled(operation="another") == []


def test_a_break_is_found_again_and_not_doubled(checks: Checks) -> None:
    checks.end(checks.check("one"), WRONG)
    worse = replace(WRONG, target_value="1.02", variance="0.02")
    changes = checks.end(checks.check("two"), worse)
    assert (changes.new, changes.known) == ([], [worse])
    (stored,) = checks.store.breaks.unsettled(operation=checks.space.operation)
    assert stored.found == worse
    assert stored.first_seen_at is not None
    assert stored.last_seen_at is not None
    assert stored.last_seen_at > stored.first_seen_at


def test_a_retry_of_the_run_that_found_a_break_finds_it_new(checks: Checks) -> None:
    checks.end(checks.check("one", ti="try 1"), WRONG)
    assert checks.end(checks.check("one", ti="try 2"), WRONG).new == [WRONG]
    assert checks.end(checks.check("two"), WRONG).new == []


def test_a_break_is_closed_when_it_is_gone_and_opened_again_when_it_is_back(checks: Checks) -> None:
    checks.end(checks.check("one"), WRONG, MISSING)
    assert checks.end(checks.check("two"), MISSING).closed == [WRONG]
    assert checks.states() == {"D-1": "resolved", "D-2": "open"}
    assert checks.events() == []
    second = checks.open(checks.check("two")).id
    of_second = checks.store.breaks.of_checks([second], [DAY])
    assert [(each.found, each.closed_by_id) for each in of_second] == [(WRONG, second), (MISSING, None)]

    assert checks.end(checks.check("three"), WRONG, MISSING).new == [WRONG]
    assert checks.states() == {"D-1": "open", "D-2": "open"}
    ((kind, actor, reason),) = checks.events()
    assert kind == "break_reopened"
    assert "run three" in actor
    assert "run two" in reason


@pytest.mark.parametrize(
    ("closes", "left"),
    [
        ("none", {"D-1": "open", None: "open"}),
        ("groups", {"D-1": "open", None: "resolved"}),
        ("all", {"D-1": "resolved", None: "resolved"}),
    ],
)
def test_only_what_was_looked_at_is_closed(checks: Checks, closes: str, left: dict[str | None, str]) -> None:
    checks.end(checks.check("one"), WRONG, TOTALS)
    checks.end(checks.check("two"), closes=closes)
    assert checks.states() == left


def test_the_breaks_of_another_date_cycle_or_operation_are_left_alone(checks: Checks) -> None:
    checks.end(checks.check("one"), WRONG)
    checks.end(checks.check("two", day=DAY + timedelta(days=1)))
    other = Checks(checks.ledger, replace(checks.space, cycle="09:00"))
    other.end(other.check("three"))
    other.end(other.check("four"), WRONG)
    assert len(checks.open_ids()) == 2


def test_a_person_explains_a_break_and_it_stays_explained_while_it_stays_the_same(checks: Checks) -> None:
    checks.end(checks.check("one"), WRONG)
    (explained,) = decide(
        checks.ledger.database,
        BreakState.EXPLAINED,
        checks.open_ids(),
        actor="ann",
        reason="rounding, see T-1",
    )
    assert (explained.state, explained.actor, explained.reason) == (
        BreakState.EXPLAINED, "ann", "rounding, see T-1",
    )  # fmt: skip
    assert checks.events() == [("break_explained", "ann", "rounding, see T-1")]
    again = checks.end(checks.check("two"), WRONG)
    assert (again.explained, again.new) == ([WRONG], [])

    worse = replace(WRONG, target_value="9.00", variance="8.00")
    assert checks.end(checks.check("three"), worse).new == [worse]
    assert checks.states() == {"D-1": "open"}
    assert [kind for kind, _, _ in checks.events()] == ["break_explained", "break_reopened"]
    assert "ann: rounding, see T-1" in checks.events()[-1][2]


def test_a_person_settles_a_break_and_it_is_open_again_if_it_is_still_there(checks: Checks) -> None:
    checks.end(checks.check("one"), WRONG)
    (settled,) = decide(
        checks.ledger.database, BreakState.RESOLVED, checks.open_ids(), actor="ann", reason="booked by hand"
    )
    assert settled.state is BreakState.RESOLVED
    assert settled.closed_at is not None
    assert checks.end(checks.check("two"), WRONG).new == [WRONG]


def test_what_a_person_may_not_do_changes_nothing(checks: Checks) -> None:
    checks.end(checks.check("one"), WRONG, MISSING)
    first, second = checks.open_ids()
    decide(checks.ledger.database, BreakState.RESOLVED, [second], actor="ann", reason="booked")
    with pytest.raises(ResolutionError, match="resolved already by ann: booked"):
        decide(checks.ledger.database, BreakState.EXPLAINED, [first, second], actor="bob", reason="fine")
    with pytest.raises(ResolutionError, match="reason"):
        decide(checks.ledger.database, BreakState.EXPLAINED, [first], actor="bob", reason=" ")
    with pytest.raises(ResolutionError, match="no break 999999999"):
        decide(checks.ledger.database, BreakState.EXPLAINED, [first, 999_999_999], actor="bob", reason="fine")
    assert sorted(checks.states().values()) == ["open", "resolved"]
    # The same decision again, as after a commit whose answer was lost, is no error and no second event.
    decide(checks.ledger.database, BreakState.RESOLVED, [second], actor="ann", reason="booked")
    assert [kind for kind, _, _ in checks.events()] == ["break_resolved"]


def test_two_checks_that_find_one_break_at_the_same_moment_store_it_once(
    checks: Checks, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, found = threading.Barrier(2, timeout=QUIET_S), {}
    real = checks.store.breaks.merge
    arrived: set[str] = set()

    def merge_together(connection: Any, *rest: Any) -> Changes:
        name = threading.current_thread().name
        if name not in arrived and checks.ledger.database.dialect != "sqlite":
            arrived.add(name)
            connection.execute(sa.text("SELECT 1"))
            both.wait()  # neither has inserted anything yet
        return real(connection, *rest)

    monkeypatch.setattr(checks.store.breaks, "merge", merge_together)

    def run(name: str) -> None:
        found[name] = checks.end(checks.check(name), WRONG, MISSING)

    threads = [threading.Thread(target=run, args=(name,), name=name) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(len(each.new) for each in found.values()) == [0, 2]
    assert checks.states() == {"D-1": "open", "D-2": "open"}


# ---- Which dates are looked at again -----------------------------------------------------------------------


def test_the_dates_within_the_window_and_those_with_open_breaks_are_looked_at_again(checks: Checks) -> None:
    def day(back: int) -> date:
        return DAY - timedelta(days=back)

    for back in (1, 2, 3, 9):
        checks.end(checks.check(f"run {back}", day=day(back)))
    checks.end(checks.check("broken", day=day(20)), WRONG)
    checks.end(checks.check("explained", day=day(21)), WRONG)
    decide(
        checks.ledger.database,
        BreakState.EXPLAINED,
        [
            each.id
            for each in checks.store.breaks.unsettled(operation=checks.space.operation)
            if each.business_date == day(21)
        ],
        actor="ann",
        reason="fine",
    )
    checks.end(checks.check("later", day=DAY + timedelta(days=1)), WRONG)
    checks.open(checks.check("running", day=day(4)))

    def dates(days: int) -> list[int]:
        return [
            (DAY - each.business_date).days for each in checks.store.to_recheck(checks.check().space, days)
        ]

    assert dates(2) == [20, 2, 1]
    assert dates(5) == [20, 3, 2, 1]
    assert dates(0) == [20]


def test_the_last_check_of_a_date_is_the_one_that_counts(checks: Checks) -> None:
    checks.end(checks.check("one", day=DAY - timedelta(days=1)), totals=[{"records": 1}])
    checks.end(checks.check("two", day=DAY - timedelta(days=1)), totals=[{"records": 2}])
    (last,) = checks.store.to_recheck(checks.check().space, 3)
    assert last.figures is not None
    assert last.figures.totals == [{"records": 2}]
