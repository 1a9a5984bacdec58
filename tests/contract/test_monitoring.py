"""What people are shown, on every database: the calendar, a date, keys, tries, and what may not be seen."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard.acts import adoption
from airflow_guard.acts.break_decisions import decide
from airflow_guard.acts.renaming import rename
from airflow_guard.core.checks import TOTALS_MISMATCH, BreakState
from airflow_guard.core.decisions import Decision, Situation
from airflow_guard.core.errors import LedgerBusy, LedgerNotMigrated, LedgerUnavailable
from airflow_guard.core.states import FollowUp, State
from airflow_guard.reading.calendar_records import CellStatus
from airflow_guard.reading.lists import AttentionFilters, AttentionKind, KeyFilters, TryFilters
from airflow_guard.reading.monitor import Monitor
from airflow_guard.store import resolution
from airflow_guard.store.database import LedgerDatabase
from airflow_guard.store.ledger import Ledger
from tests.contract.monitored import DAY, MISSING, NEXT, WRONG, World
from tests.databases import databases

if TYPE_CHECKING:
    from datetime import date

    from airflow_guard.reading.calendar_records import DayCell
    from tests.databases import DatabaseUnderTest

_numbers = itertools.count(1)
PERSON = {"actor": "ana", "reason": "the bank's statement shows it"}
HOSTILE = "<img src=x onerror=alert(1)>'\"; DROP TABLE guard_event; -- %s {{ x }}"


@pytest.fixture
def world(shared_ledger: Ledger) -> World:
    number = next(_numbers)
    return World(shared_ledger, f"alpha_{number}", f"beta_{number}")


def cell(world: World, day: date = DAY, dag: str | None = None) -> DayCell:
    return world.monitor.calendar(day, day, world.both).cells[dag or world.a, day]


# -- the calendar ----------------------------------------------------------------------------------------------


def test_a_date_that_is_done_and_one_that_never_ran(world: World) -> None:
    world.done("INV-1", "INV-2", "INV-3")
    found = world.monitor.calendar(DAY, NEXT, world.only_a)
    assert list(found.cells) == [(world.a, DAY)]
    done = found.cells[world.a, DAY]
    assert (done.status, done.documents, done.executed, done.replayed, done.blocked) == (
        CellStatus.DONE,
        3,
        3,
        0,
        0,
    )
    assert found.of_date(NEXT) == []
    (volume,) = found.volumes
    assert (volume.business_date, volume.dag_id, volume.documents, volume.executed) == (DAY, world.a, 3, 3)


def test_a_cell_counts_what_duplicates_did_and_lists_its_documents_once(world: World) -> None:
    world.done("INV-1", "INV-2")
    world.asked(run="backfill__1", run_type="backfill", counts={"documents": 2, "replayed": 2})
    world.asked(run="manual__2", counts={"documents": 2, "replayed": 1, "blocked": 1}, outcome="failed")
    world.asked(run="manual__3", counts={"documents": 2, "replayed": 2})
    seen = cell(world)
    assert (seen.documents, seen.executed, seen.replayed, seen.blocked) == (2, 2, 5, 1)
    assert seen.status is CellStatus.DONE, "the last try came through"


@pytest.mark.parametrize(
    ("end", "status", "counted"),
    [
        (lambda one: one.doubt("timeout"), CellStatus.IN_DOUBT, {"in_doubt": 1}),
        (lambda one: one.reject("limit"), CellStatus.REJECTED, {"rejected": 1}),
        (lambda one: one.fail("refused"), CellStatus.FAILED, {"failed": 1}),
        (lambda one: one.complete(follow_up=FollowUp.FAILED), CellStatus.FAILED, {"follow_up": 1}),
        (lambda one: one, CellStatus.IN_PROGRESS, {"in_progress": 1}),
        (lambda one: one.die(), CellStatus.IN_DOUBT, {"in_doubt": 1, "died": 1}),
    ],
    ids=["in doubt", "rejected", "failed", "follow-up failed", "running", "killed while it was at it"],
)
def test_a_cell_is_as_bad_as_its_worst_key(world: World, end: Any, status: CellStatus, counted: Any) -> None:
    world.done("INV-1")
    end(world.attempt("INV-2").begin())
    seen = cell(world)
    assert seen.status is status
    for name in ("in_doubt", "rejected", "failed", "follow_up", "in_progress", "died"):
        assert getattr(seen, name) == counted.get(name, 0), name


def test_a_try_that_died_before_its_effect_leaves_nothing_in_doubt(world: World) -> None:
    world.attempt("INV-1").die()
    seen = cell(world)
    assert (seen.in_doubt, seen.failed, seen.died, seen.status) == (0, 1, 1, CellStatus.FAILED)


def test_a_try_that_ended_with_keys_in_its_hands_does_not_hide_them(world: World) -> None:
    # The ledger was away when the effect had begun, and back when the task ended.
    lost = world.attempt("INV-1", "INV-2").begin()
    world.end(lost, "failed")
    assert (cell(world).in_doubt, cell(world).status) == (2, CellStatus.IN_DOUBT)
    assert lost.row().lease_over, "nobody waits for it"


def test_a_key_that_is_held_is_found_under_its_new_name(world: World) -> None:
    world.attempt("INV-1").begin().die()
    rename(world.ledger, (world.a, "post"), (world.a, "pay"), **PERSON)
    assert cell(world).in_doubt == 1
    (row,) = world.monitor.keys(world.only_a, KeyFilters(situations=frozenset({Situation.IN_DOUBT}))).rows
    assert (row.operation, row.document) == ("pay", "INV-1")


def test_a_key_once_per_document_is_held_by_a_try_of_a_later_date(world: World) -> None:
    world.end(world.attempt("INV-1", once_per="document").begin().fail("refused"), "failed")
    world.attempt("INV-1", once_per="document", known=True, business_date=NEXT).begin().die()
    (row,) = world.monitor.keys(world.only_a, KeyFilters(situations=frozenset({Situation.IN_DOUBT}))).rows
    assert (row.once_per, row.business_date, row.document) == ("document", DAY, "INV-1")
    assert cell(world).in_doubt == 1


def test_breaks_come_first_and_have_the_age_of_the_oldest(world: World) -> None:
    world.done("INV-1").row()
    world.attempt("INV-2").begin().doubt("timeout")
    world.check(MISSING, WRONG)
    world.age(
        world.ledger.database.tables.breaks, "first_seen_at", 7200, key_namespace=world.a, document="INV-3"
    )
    seen = cell(world)
    assert (seen.status, seen.breaks_open, seen.in_doubt, seen.check) == (CellStatus.BREAK, 2, 1, "broken")
    assert 7190 < (seen.oldest_break_age_s or 0) < 7300


def test_explained_breaks_are_counted_and_do_not_make_a_date_bad(world: World) -> None:
    world.done("INV-1")
    world.check(MISSING)
    (row,) = world.monitor.breaks(world.only_a).rows

    decide(world.ledger.database, BreakState.EXPLAINED, [row.id], **PERSON)
    seen = cell(world)
    assert (seen.status, seen.breaks_open, seen.breaks_explained) == (CellStatus.DONE, 0, 1)


def test_r15_a_date_that_changed_after_it_was_reconciled_is_stale(world: World) -> None:
    world.done("INV-1")
    world.check()
    assert not cell(world).stale
    world.check(
        MISSING, run="recon__2", reason="Changed since it passed at 2025-03-31 12:05 UTC: source +1 row.\n…"
    )
    assert cell(world).stale
    world.check(run="recon__3")
    assert not cell(world).stale, "looked at once more, and nothing changed since"


def test_a_date_on_which_something_was_executed_after_the_check_is_stale(world: World) -> None:
    world.done("INV-1")
    at = world.ledger.database.tables.reconciliation
    world.check()
    world.age(at, "target_read_at", 60, key_namespace=world.a)
    assert cell(world).stale


def test_adopted_history_is_done_and_belongs_to_its_namespace(world: World) -> None:
    rows = [
        adoption.HistoryRow(str(n), {"business_date": str(DAY), "document": f"OLD-{n}"}) for n in range(3)
    ]
    adoption.adopt(world.ledger, adoption.Operation(world.a, "post"), rows, **PERSON)
    seen = cell(world)
    assert (seen.status, seen.adopted, seen.documents) == (CellStatus.DONE, 3, 3)
    assert not world.monitor.calendar(DAY, DAY, frozenset({world.b})).cells
    day = world.monitor.day(world.a, DAY, world.only_a)
    assert day is not None
    assert [each.documents for each in day.operations] == [3]
    assert world.monitor.keys(world.only_a).total == 3, (
        "no task has ever run, so the dates are those of the keys"
    )


# -- one date --------------------------------------------------------------------------------------------------


def test_a_day_shows_operations_tries_duplicates_checks_and_breaks(world: World) -> None:
    world.done("INV-1", "INV-2")
    world.done("N-1", operation="notify", task="notify")
    world.attempt("INV-3").begin().doubt("timeout")
    by = world.asked(
        run="manual__7", counts={"documents": 3, "replayed": 2, "blocked": 1}, outcome="failed", error="why"
    )
    check = world.check(MISSING)
    day = world.monitor.day(world.a, DAY, world.only_a)
    assert day is not None
    counts = {each.operation: dict(each.counts) for each in day.operations}
    assert counts == {"notify": {Situation.DONE: 1}, "post": {Situation.DONE: 2, Situation.IN_DOUBT: 1}}
    assert (day.tries.total, [each.id for each in day.duplicates.rows]) == (4, [by])
    (duplicate,) = day.duplicates.rows
    assert (duplicate.identity.run_id, duplicate.identity.run_type) == ("manual__7", "manual")
    assert (duplicate.replayed, duplicate.blocked, duplicate.error) == (2, 1, "why")
    assert ([each.id for each in day.checks.rows], [each.found for each in day.breaks.rows]) == (
        [check],
        [MISSING],
    )


def test_forbidden_and_missing_are_the_same(world: World) -> None:
    one = world.done("INV-1")
    world.check(MISSING)
    (row,) = world.monitor.breaks(world.only_a).rows
    check = row.seen_by_id
    forbidden = frozenset({world.b})
    for readable, there in ((world.only_a, True), (None, True), (forbidden, False), (frozenset(), False)):
        seen = (
            world.monitor.day(world.a, DAY, readable),
            world.monitor.key(DAY, one.hashes[0], readable),
            world.monitor.break_(row.id, readable),
            world.monitor.check(check, readable),
        )
        assert [each is not None for each in seen] == [there] * 4
    assert world.monitor.day(world.a, NEXT, world.only_a) is None
    assert world.monitor.key(DAY, "0" * 32, None) is None
    assert world.monitor.break_(10**12, None) is None


def test_totals_do_not_tell_of_other_dags(world: World) -> None:
    for dag, count in ((world.a, 2), (world.b, 5)):
        world.done(*(f"INV-{n}" for n in range(count)), dag=dag)
        world.attempt("X-1", "X-2", dag=dag).begin().doubt("timeout")
        world.asked(dag=dag, counts={"documents": count, "replayed": count})
        world.check(*(replace(MISSING, document=f"INV-{n}") for n in range(count)), dag=dag)
    m, mine = world.monitor, world.only_a
    assert (m.keys(mine).total, m.keys(world.both).total) == (4, 11)
    assert (
        m.keys(mine, KeyFilters(dag_id=world.b)).total,
        m.tries(mine, TryFilters(dag_id=world.b)).total,
    ) == (0, 0)
    assert {row.dag_id for row in m.keys(mine).rows} == {world.a}
    assert (m.tries(mine).total, m.blocked(mine).total, m.blocked(world.both).total) == (3, 1, 2)
    assert (m.breaks(mine).total, m.breaks(world.both).total, m.checks(mine).total) == (2, 7, 1)
    assert {item.dag_id for item in m.attention(mine).rows} == {world.a}
    assert m.calendar(DAY, DAY, mine).dag_ids == [world.a]
    assert {point.dag_id for point in m.calendar(DAY, DAY, mine).volumes} == {world.a}
    assert {point.dag_id for point in m.variance_over_time(DAY, DAY, mine)} == {world.a}
    assert len(m.find("INV-0", mine).keys) == 1
    assert len(m.find("INV-0", world.both).keys) == 2
    assert not m.find("INV-4", mine).keys
    for nobody in (frozenset[str](), frozenset({"another"})):
        assert not m.calendar(DAY, DAY, nobody).cells
        assert [
            page.total for page in (m.keys(nobody), m.tries(nobody), m.breaks(nobody), m.attention(nobody))
        ] == [0] * 4


def test_a_row_belongs_to_the_dag_of_its_try_and_not_to_the_name_of_its_keys(world: World) -> None:
    one = world.done("INV-1", runs_in=world.b)
    assert world.monitor.key(DAY, one.hashes[0], world.only_a) is None
    life = world.monitor.key(DAY, one.hashes[0], frozenset({world.b}))
    assert life is not None
    assert (life.key.dag_id, life.key.key_namespace) == (world.b, world.a)
    assert world.monitor.keys(world.only_a).total == 0
    assert world.monitor.keys(frozenset({world.b}), KeyFilters(dag_id=world.b)).total == 1
    assert not world.monitor.find("INV-1", world.only_a).keys
    assert [key.key_hash for key in world.monitor.find("INV-1", frozenset({world.b})).keys] == one.hashes


# -- lists of keys ---------------------------------------------------------------------------------------------


def test_pages_of_keys_keep_their_order_and_give_each_key_once(world: World) -> None:
    for day in (DAY, NEXT):
        world.done(*(f"INV-{n:02}" for n in range(7)), business_date=day)
        world.done(*(f"INV-{n:02}" for n in range(3)), business_date=day, cycle="2", operation="notify")
    pages = [world.monitor.keys(world.only_a, limit=3, offset=start) for start in range(0, 21, 3)]
    rows = [row for page in pages for row in page.rows]
    assert len({row.key_hash for row in rows}) == len(rows) == 20
    assert [row.business_date for row in rows] == [NEXT] * 10 + [DAY] * 10
    assert [row.document for row in rows if row.operation == "post"][:7] == [f"INV-{n:02}" for n in range(7)]
    assert [(page.total, page.more) for page in pages] == [(20, True)] * 6 + [(20, False)]
    assert (pages[0].start, pages[0].end) == (DAY, NEXT)
    assert world.monitor.keys(world.only_a, offset=500).rows == []


def test_keys_are_narrowed_down(world: World) -> None:
    world.done("INV-1", "INV-2", run="scheduled__a")
    world.done("INV-3", cycle="2", run="scheduled__b")
    doubted = world.attempt("INV-4", run="scheduled__b", business_date=NEXT).begin().doubt("timeout")

    def documents(**filters: Any) -> list[str | None]:
        return [row.document for row in world.monitor.keys(world.only_a, KeyFilters(**filters)).rows]

    assert documents(dag_id=world.a, start=DAY, end=DAY) == ["INV-1", "INV-2", "INV-3"]
    assert documents(cycle="2") == ["INV-3"]
    assert documents(situations=frozenset({Situation.DONE}), cycle="") == ["INV-1", "INV-2"]
    assert documents(situations=frozenset({Situation.IN_DOUBT, Situation.FAILED})) == ["INV-4"]
    assert documents(situations=frozenset({Situation.IN_DOUBT, Situation.DONE})) == [
        "INV-4",
        "INV-1",
        "INV-2",
        "INV-3",
    ]
    assert documents(dag_id=world.a, run_id="scheduled__b") == ["INV-4", "INV-3"]
    assert documents(dag_id=world.a, run_id="scheduled__b", try_number=2) == []
    assert documents(operation="other") == []
    (row,) = world.monitor.keys(world.only_a, KeyFilters(start=NEXT)).rows
    assert (row.row.owner_token, row.decisions) == (
        doubted.own.token,
        (Decision.HAPPENED, Decision.DID_NOT_HAPPEN),
    )


# -- search ----------------------------------------------------------------------------------------------------


def test_a_document_is_found_on_every_date_cycle_and_operation(world: World) -> None:
    name = f"INV-{world.a}"
    world.done(name)
    world.done(name, business_date=NEXT, cycle="evening")
    world.done(name, operation="notify", once_per="document", business_date=NEXT)
    world.done("other")
    found = world.monitor.find(f" {name} ", world.only_a)
    assert found.since is None
    assert sorted((row.business_date, row.operation, row.cycle, row.once_per) for row in found.keys) == [
        (DAY, "post", "", "date"), (NEXT, "notify", "", "document"), (NEXT, "post", "evening", "date"),
    ]  # fmt: skip
    assert [row.business_date for row in world.monitor.find(name, world.only_a, business_date=DAY).keys] == [
        DAY
    ]
    assert len(world.monitor.find(name, world.only_a, limit=2).keys) == 2
    assert world.monitor.find(name, world.only_a, limit=2).more


def test_a_document_is_found_after_a_rename_and_an_adoption(world: World) -> None:
    world.done(f"INV-{world.a}", cycle="1")
    rename(world.ledger, (world.a, "post"), (world.a, "pay"), **PERSON)
    history = [adoption.HistoryRow("1", {"business_date": "2024-01-31", "document": f"INV-{world.a}"})]
    adoption.adopt(world.ledger, adoption.Operation(world.a, "pay"), history, **PERSON)
    found = world.monitor.find(f"INV-{world.a}", world.only_a)
    assert [(row.operation, row.business_date.year) for row in found.keys] == [("pay", 2025), ("pay", 2024)]


def test_a_key_is_found_by_its_beginning_and_by_what_the_receiver_was_given(world: World) -> None:
    one = world.attempt("INV-1", "INV-2").begin(batch=True).complete()
    row, m = one.row(), world.monitor
    for text in (one.hashes[0], one.hashes[0][:8].upper(), row.idempotency_key):
        assert [key.key_hash for key in m.find(text, world.only_a).keys] == [one.hashes[0]], text
        assert not m.find(text, frozenset({world.b})).keys
    assert {key.key_hash for key in m.find(str(row.batch_id), world.only_a).keys} == set(one.hashes)
    assert [
        key.key_hash for key in m.find(row.idempotency_key, world.only_a, business_date=DAY).keys
    ] == one.hashes[:1]
    assert not m.find(row.idempotency_key, world.only_a, business_date=NEXT).keys
    assert not m.find(one.hashes[0][:5], world.only_a).keys, "too short for a key, and no document"
    assert not m.find("\x00", world.only_a).keys
    assert not m.find("x" * 1000, world.only_a).keys


def test_a_search_that_looked_at_the_newest_dates_only_says_so(world: World) -> None:
    world.done("INV-1")
    assert world.monitor.find("f" * 32, world.only_a).since is not None
    assert world.monitor.find("f" * 32, world.only_a, business_date=DAY).since is None


# -- one key ---------------------------------------------------------------------------------------------------


def test_the_life_of_a_key_is_told_from_its_first_claim_on(world: World) -> None:
    one = world.attempt("INV-1", run="scheduled__1").begin().doubt("timeout: no answer")
    world.end(one, "failed", documents=1, in_doubt=1)
    said = resolution.resolve(world.ledger, DAY, one.hashes[0], one.own.token, "did_not_happen", **PERSON)
    assert said[0].after is State.FAILED
    again = world.attempt("INV-1", known=True, run="scheduled__1", try_number=2).begin().complete('{"id": 7}')
    world.end(again, documents=1, executed=1)
    world.asked(run="backfill__1", run_type="backfill", counts={"documents": 1, "replayed": 1})
    life = world.monitor.key(DAY, one.hashes[0], world.only_a)
    assert life is not None
    kinds = [entry.kind for entry in life.timeline]
    assert kinds == ["first_claimed", "doubt", "resolve_happened".replace("happened", "not_happened"), "claimed",
                     "begun", "finished", "asked_again"]  # fmt: skip
    assert [entry.at for entry in life.timeline] == sorted(entry.at for entry in life.timeline)
    resolved = life.timeline[2]
    assert (resolved.actor, resolved.reason, resolved.to_state) == (*PERSON.values(), "failed")
    asked = life.timeline[-1]
    assert asked.by is not None
    assert (asked.by.run_id, asked.reason) == ("backfill__1", "1 done already")
    assert (life.key.row.result, life.key.row.attempt, life.key.situation) == ('{"id": 7}', 2, Situation.DONE)
    assert len(life.tries) == 3


def test_hostile_text_stays_text(world: World) -> None:
    one = world.attempt(HOSTILE, cycle="'; --").begin().doubt(HOSTILE)
    world.end(one, "failed")
    (row,) = world.monitor.find(HOSTILE, world.only_a).keys
    assert (row.document, row.row.error, row.cycle) == (HOSTILE, HOSTILE, "'; --")
    (item,) = world.monitor.attention(world.only_a).rows
    assert item.samples == (HOSTILE,)
    assert world.monitor.keys(world.only_a, KeyFilters(operation=HOSTILE)).total == 0
    assert not world.monitor.find("%", world.only_a).keys
    assert not world.monitor.find("INV_1", world.only_a).keys


# -- what needs a person ---------------------------------------------------------------------------------------


def test_what_needs_a_person_is_the_worst_first_and_then_the_oldest(world: World) -> None:
    t = world.ledger.database.tables
    world.end(world.attempt("F-1", operation="fails").begin().fail("refused"), "failed")
    world.end(world.attempt("R-1", operation="rejects").begin().reject("limit"), "success")
    world.end(world.attempt("U-1", operation="follows").begin().complete(follow_up=FollowUp.FAILED), "failed")
    world.check(MISSING, WRONG, reason="Changed since it passed at noon: source +1 row.\nmore")
    world.end(world.attempt("D-1", "D-2").begin().doubt("timeout"), "failed")
    world.attempt("D-3", operation="other").begin().die()
    for name in ("begun_at", "claimed_at"):
        world.age(t.execution, name, 3600, key_namespace=world.a, operation="other")
    items = world.monitor.attention(world.only_a).rows
    kind = AttentionKind
    assert [(item.kind, item.operation, item.count) for item in items] == [
        (kind.IN_DOUBT, "other", 1), (kind.IN_DOUBT, "post", 2), (kind.BREAK, "reconcile", 2), (kind.FOLLOW_UP, "follows", 1),
        (kind.REJECTED, "rejects", 1), (kind.STALE, "reconcile", 1), (kind.DIED, "other", 1), (kind.FAILED, "fails", 1),
    ]  # fmt: skip
    alone, two = items[0], items[1]
    assert alone.key is not None
    assert world.monitor.key(*alone.key, world.only_a) is not None
    assert (two.key, two.samples) == (None, ("D-1", "D-2"))
    assert 3590 < (alone.age_s or 0) < 3700
    page = world.monitor.attention(world.only_a, limit=2, offset=1)
    assert ([item.kind for item in page.rows], page.total) == ([kind.IN_DOUBT, kind.BREAK], 8)
    doubts = AttentionFilters(kinds=frozenset({kind.IN_DOUBT}), start=NEXT)
    assert world.monitor.attention(world.only_a, doubts).total == 0


def test_several_breaks_are_counted_by_type_and_the_first_documents_are_named(world: World) -> None:
    wrong = [replace(WRONG, document=f"INV-{number}") for number in range(1, 6)]
    missing = [MISSING, replace(MISSING, document="INV-9")]
    world.check(*missing, *wrong, replace(WRONG, break_type=TOTALS_MISMATCH, document=None))
    (item,) = world.monitor.attention(world.only_a).rows
    assert (item.kind, item.count, item.ref) == (AttentionKind.BREAK, 8, None)
    assert item.samples == (
        "5 amount mismatch: INV-1 and 4 more", "2 missing in target: INV-2, INV-9", "1 totals mismatch",
    )  # fmt: skip


def test_a_single_break_is_named_and_leads_to_its_page(world: World) -> None:
    world.check(MISSING)
    (item,) = world.monitor.attention(world.only_a).rows
    assert (item.count, item.samples) == (1, ("1 missing in target: INV-2",))
    assert item.ref is not None
    assert world.monitor.break_(item.ref, world.only_a) is not None


def test_a_try_that_others_came_after_needs_nobody(world: World) -> None:
    world.attempt("INV-1").die()
    assert [item.kind for item in world.monitor.attention(world.only_a).rows] == [
        AttentionKind.DIED,
        AttentionKind.FAILED,
    ]
    world.end(world.attempt("INV-1", known=True, try_number=2).begin().complete(), documents=1, executed=1)
    assert world.monitor.attention(world.only_a).total == 0
    assert cell(world).status is CellStatus.DONE


def test_keys_that_are_half_marked_are_one_item(world: World) -> None:
    one = world.attempt("INV-1", "INV-2").begin()
    world.ledger.doubt(one.own, one.hashes[:1], "timeout")
    one.die()
    (item, died) = world.monitor.attention(world.only_a).rows
    assert (item.kind, item.count, item.samples, died.kind) == (
        AttentionKind.IN_DOUBT, 2, ("INV-1", "INV-2"), AttentionKind.DIED,
    )  # fmt: skip


# -- series ----------------------------------------------------------------------------------------------------


def test_series_have_a_point_for_each_date_and_exact_amounts(world: World) -> None:
    world.done("INV-1", "INV-2")
    world.done("INV-1", business_date=NEXT)
    world.asked(counts={"documents": 2, "replayed": 2})
    world.check()
    world.check(run="recon__2")
    volumes = world.monitor.calendar(DAY, NEXT, world.only_a).volumes
    assert [(each.business_date, each.documents, each.executed, each.replayed) for each in volumes] == [
        (DAY, 2, 2, 2), (NEXT, 1, 1, 0),
    ]  # fmt: skip
    (point,) = world.monitor.variance_over_time(DAY, NEXT, world.only_a)
    assert (point.group, point.amount, point.variance) == ({"currency": "EUR"}, "amount", Decimal("-10.005"))
    assert (point.source, point.target) == (Decimal("60.00"), Decimal("49.995"))


# -- a ledger that does not answer -----------------------------------------------------------------------------


def slow(connection: sa.Connection) -> Any:
    """Read for as long as it is let."""
    count = "SELECT count(*) FROM n AS a, n AS b, n AS c, n AS d"
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900) "
    if connection.dialect.name in ("mysql", "mariadb"):
        return connection.exec_driver_sql("SELECT SLEEP(30)").scalar_one()
    return connection.exec_driver_sql(numbers + count).scalar_one()


def test_a_read_that_takes_too_long_is_ended_and_leaves_nothing_behind(shared_ledger: Ledger) -> None:
    began = time.monotonic()
    with pytest.raises(LedgerBusy):
        shared_ledger.database.read(slow, limit_s=0.5)
    assert time.monotonic() - began < 10
    engine = shared_ledger.database.engine
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    if engine.dialect.name == "postgresql":
        with engine.connect() as connection:
            assert connection.exec_driver_sql("SHOW statement_timeout").scalar_one() == "0"
            assert connection.exec_driver_sql("SHOW jit").scalar_one() == "on"
    count = sa.select(sa.func.count()).select_from(shared_ledger.database.tables.execution)
    assert shared_ledger.database.read(lambda connection: connection.execute(count).scalar_one()) >= 0


@databases("postgres_server", "mariadb")
def test_a_ledger_that_is_down_and_one_without_tables_say_so(database: DatabaseUnderTest) -> None:
    empty = LedgerDatabase(database.url)
    with pytest.raises(LedgerNotMigrated, match="airflow-guard migrate"):
        Monitor(Ledger(empty)).calendar(DAY, DAY, None)
    empty.dispose()
    gone = LedgerDatabase(sa.make_url(database.url).set(host="127.0.0.1", port=1))
    with pytest.raises(LedgerUnavailable):
        Monitor(Ledger(gone)).attention(None)
