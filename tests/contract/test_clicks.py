"""Decisions of people on pages: looked at before they are made, clicked twice, and made on a page that is out of date."""

from __future__ import annotations

import itertools
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard.acts import adoption, history, rerun, reruns
from airflow_guard.acts.break_decisions import decide
from airflow_guard.acts.purging import Purge
from airflow_guard.acts.renaming import rename
from airflow_guard.acts.rerun import Request
from airflow_guard.core.checks import BreakState
from airflow_guard.core.errors import ResolutionError, StaleResolution
from airflow_guard.core.states import FollowUp, State
from airflow_guard.reading import listing
from airflow_guard.store.resolution import Judged, resolve, resolve_many
from tests.contract.attempts import held_before_commit, in_thread
from tests.contract.monitored import DAY, MISSING, WRONG, World
from tests.databases import databases

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_guard.acts.rerun_plan import RerunPlan
    from airflow_guard.store.ledger import Ledger
    from tests.contract.attempts import Attempt
    from tests.databases import DatabaseUnderTest

_numbers = itertools.count(1)
ANA = {"actor": "ana", "reason": "the bank's statement shows it"}
BOB = {"actor": "bob", "reason": "the bank's statement shows it"}


@pytest.fixture
def world(shared_ledger: Ledger) -> World:
    number = next(_numbers)
    return World(shared_ledger, f"alpha_{number}", f"beta_{number}")


def events(world: World, *kinds: str) -> list[tuple[str, str]]:
    """Return kind and actor of the events of this world, oldest first."""
    event = world.ledger.database.tables.event
    found = sa.select(event.c.kind, event.c.actor).where(
        event.c.kind.in_(kinds), event.c.key_text.like(f"%{world.a}%")
    )
    with world.ledger.database.engine.connect() as connection:
        return [(row[0], row[1]) for row in connection.execute(found.order_by(event.c.id))]


def together(database: DatabaseUnderTest, world: World, click: Callable[[Ledger], Any]) -> tuple[Any, Any]:
    """Let two sessions make the same decision at the same moment: the second begins while the first is uncommitted."""
    with held_before_commit(database, click) as (release, first):
        second = in_thread(lambda: click(world.ledger))
        release()
        return first(), second()


KEY_DECISIONS: dict[str, tuple[Callable[[Attempt], Attempt], str, State]] = {
    "happened": (lambda one: one.doubt("timeout"), "resolve_happened", State.COMPLETED),
    "did_not_happen": (lambda one: one.doubt("timeout"), "resolve_not_happened", State.FAILED),
    "waive": (lambda one: one.reject("limit"), "waive", State.COMPLETED),
    "send_again": (lambda one: one.reject("limit"), "send_again", State.FAILED),
    "followed_up": (
        lambda one: one.complete(follow_up=FollowUp.FAILED),
        "follow_up_settled",
        State.COMPLETED,
    ),
}


@pytest.fixture(params=KEY_DECISIONS)
def decided(request: pytest.FixtureRequest, world: World) -> tuple[Attempt, str, str, State]:
    end, kind, state = KEY_DECISIONS[request.param]
    return end(world.attempt("INV-1").begin()), request.param, kind, state


def test_a_dry_run_says_what_a_decision_comes_to_and_changes_nothing(
    world: World, decided: tuple[Attempt, str, str, State]
) -> None:
    one, decision, kind, state = decided
    before = one.row()
    (would,) = resolve(world.ledger, DAY, one.hashes[0], one.own.token, decision, **ANA, dry_run=True)
    assert (would.after, would.repeated) == (state, False)
    assert (one.row().state, one.row().follow_up) == (before.state, before.follow_up)
    assert events(world, kind) == []


def test_a_second_click_on_a_decision_changes_nothing_and_is_no_error(
    world: World, decided: tuple[Attempt, str, str, State]
) -> None:
    one, decision, kind, state = decided
    judged = [Judged(DAY, one.hashes[0], one.own.token)]
    (first,) = resolve_many(world.ledger, judged, decision, **ANA).settled
    (second,) = resolve_many(world.ledger, judged, decision, **ANA).settled
    assert (first.after, second.after, first.repeated, second.repeated) == (state, state, False, True)
    assert first.before is second.before
    assert events(world, kind) == [(kind, "ana")]


def test_another_person_who_decides_on_a_page_that_is_out_of_date_is_told_so(
    world: World, decided: tuple[Attempt, str, str, State]
) -> None:
    one, decision, kind, _ = decided
    resolve(world.ledger, DAY, one.hashes[0], one.own.token, decision, **ANA)
    with pytest.raises(StaleResolution, match="settled already"):
        resolve(world.ledger, DAY, one.hashes[0], one.own.token, decision, **BOB)
    with pytest.raises(StaleResolution, match="earlier attempt"):
        resolve(world.ledger, DAY, one.hashes[0], "0" * 32, decision, **ANA)
    assert events(world, kind) == [(kind, "ana")]


@databases("sqlite", "postgres_server", "mariadb")
def test_two_clicks_at_the_same_moment_settle_a_key_once(
    shared_database: DatabaseUnderTest, world: World, decided: tuple[Attempt, str, str, State]
) -> None:
    one, decision, kind, state = decided

    def click(ledger: Ledger) -> Any:
        return resolve(ledger, DAY, one.hashes[0], one.own.token, decision, **ANA)

    outcomes = together(shared_database, world, click)
    assert [[(each.after, each.repeated) for each in outcome] for outcome in outcomes] == [
        [(state, False)],
        [(state, True)],
    ]
    assert (one.row().state, events(world, kind)) == (state, [(kind, "ana")])


@databases("sqlite", "postgres_server", "mariadb")
def test_of_two_people_with_opposite_answers_one_is_told_that_it_is_settled(
    shared_database: DatabaseUnderTest, world: World
) -> None:
    one = world.attempt("INV-1").begin().doubt("timeout")
    answers = iter([("happened", ANA), ("did_not_happen", BOB)])

    def click(ledger: Ledger) -> Any:
        decision, who = next(answers)
        return resolve(ledger, DAY, one.hashes[0], one.own.token, decision, **who)

    first, second = together(shared_database, world, click)
    assert first[0].after is State.COMPLETED
    assert isinstance(second, StaleResolution)
    assert one.row().state is State.COMPLETED


def test_a_second_click_after_a_late_report_is_told_that_it_no_longer_stands(world: World) -> None:
    one = world.attempt("INV-1").begin().doubt("timeout")
    resolve(world.ledger, DAY, one.hashes[0], one.own.token, "did_not_happen", **ANA)
    assert world.ledger.complete(one.own, one.hashes, '"late"') == set()
    with pytest.raises(StaleResolution):
        resolve(world.ledger, DAY, one.hashes[0], one.own.token, "did_not_happen", **ANA)


# -- breaks ----------------------------------------------------------------------------------------------------


def seen(world: World) -> dict[int, str]:
    return {row.id: row.version for row in world.monitor.breaks(world.only_a).rows}


@pytest.mark.parametrize("decision", ["explain", "resolve"])
def test_breaks_are_looked_at_decided_once_and_clicked_twice(world: World, decision: str) -> None:
    world.check(MISSING, WRONG)
    looked_at, database = seen(world), world.ledger.database
    state = BreakState.EXPLAINED if decision == "explain" else BreakState.RESOLVED
    assert {
        each.state for each in decide(database, state, looked_at, **ANA, seen=looked_at, dry_run=True)
    } == {BreakState.OPEN}
    assert events(world, f"break_{state}") == []
    for _ in range(2):
        assert {each.state for each in decide(database, state, looked_at, **ANA, seen=looked_at)} == {state}
    assert events(world, f"break_{state}") == [(f"break_{state}", "ana")] * 2
    with pytest.raises(StaleResolution, match=rf"it is {state} by ana"):
        decide(database, state, looked_at, **BOB, seen=looked_at)
    with pytest.raises(ResolutionError):
        decide(database, BreakState.EXPLAINED, looked_at, **BOB)


def test_a_break_whose_amount_changed_while_somebody_looked_at_it_is_not_explained(world: World) -> None:
    world.check(MISSING, WRONG)
    looked_at = seen(world)
    from dataclasses import replace

    world.check(MISSING, replace(WRONG, target_value="9.00", variance="8.00"), run="recon__2")
    with pytest.raises(StaleResolution, match="no longer as it was looked at"):
        decide(world.ledger.database, BreakState.EXPLAINED, looked_at, **ANA, seen=looked_at)
    assert {row.state for row in world.monitor.breaks(world.only_a).rows} == {BreakState.OPEN}, "none of them"


@databases("sqlite", "postgres_server", "mariadb")
def test_two_clicks_at_the_same_moment_explain_a_break_once(
    shared_database: DatabaseUnderTest, world: World
) -> None:
    world.check(MISSING)
    looked_at = seen(world)

    def click(ledger: Ledger) -> Any:
        return [
            each.state
            for each in decide(ledger.database, BreakState.EXPLAINED, looked_at, **ANA, seen=looked_at)
        ]

    assert together(shared_database, world, click) == ([BreakState.EXPLAINED],) * 2
    assert events(world, "break_explained") == [("break_explained", "ana")]


# -- reruns ----------------------------------------------------------------------------------------------------


def wanted(**who: str) -> Request:
    return Request(who["actor"], who["reason"], timedelta(days=1))


def test_a_rerun_is_looked_at_authorised_once_and_clicked_twice(world: World) -> None:
    one = world.done("INV-1", result='"receipt"')
    seen = listing.named(world.ledger, [(DAY, one.hashes[0])])

    def authorise(*, dry_run: bool = False, **who: str) -> RerunPlan:
        return rerun.authorise(world.ledger, seen, {}, wanted(**who), dry_run=dry_run)

    plan = authorise(**ANA, dry_run=True)
    assert ([done.row.result for done in plan.keys], plan.until) == (['"receipt"'], None)
    assert events(world, "rerun_authorised") == []
    ends = [authorise(**ANA).until for _ in range(2)]
    assert ends[0] is not None
    assert ends[0] == ends[1], "a second click does not make it hold for longer"
    assert events(world, "rerun_authorised") == [("rerun_authorised", "ana")]
    with pytest.raises(ResolutionError, match="authorised already, by ana"):
        authorise(**BOB)
    (row,) = world.monitor.key(DAY, one.hashes[0], world.only_a).reruns  # type: ignore[union-attr]
    assert (row.actor, row.open, row.used_at, row.generation) == ("ana", True, None, 2)


def test_a_rerun_of_an_attempt_that_is_no_longer_the_last_is_refused(world: World) -> None:
    one = world.done("INV-1")
    stale = [Judged(DAY, one.hashes[0], "0" * 32)]
    for dry_run in (True, False):
        with pytest.raises(StaleResolution, match="newer attempt"):
            reruns.authorise(world.ledger, stale, **ANA, expires=timedelta(days=1), dry_run=dry_run)


@databases("sqlite", "postgres_server", "mariadb")
def test_two_clicks_at_the_same_moment_authorise_a_rerun_once(
    shared_database: DatabaseUnderTest, world: World
) -> None:
    one = world.done("INV-1")
    judged = [Judged(DAY, one.hashes[0], one.own.token)]

    def click(ledger: Ledger) -> Any:
        return reruns.authorise(ledger, judged, **ANA, expires=timedelta(days=1))[0].generation

    assert together(shared_database, world, click) == (2, 2)
    assert events(world, "rerun_authorised") == [("rerun_authorised", "ana")]


# -- adoption, purge, rename -------------------------------------------------------------------------------------

CSV = "business_date,document\n2024-01-31,OLD-1\n2024-01-31,OLD-2\n".encode("utf-8-sig")


def adopted(ledger: Ledger, name: str, **options: Any) -> tuple[int, int]:
    rows = history.uploaded_rows(CSV)
    done = adoption.adopt(ledger, adoption.Operation(name, "post"), rows, **ANA, **options)
    return done.adopted, done.known


def test_a_file_is_looked_at_adopted_once_and_clicked_twice(world: World) -> None:
    assert adopted(world.ledger, world.a, dry_run=True) == (2, 0)
    assert world.monitor.find("OLD-1", world.only_a).keys == []
    assert [adopted(world.ledger, world.a) for _ in range(2)] == [(2, 0), (0, 2)]
    assert events(world, "adopt") == [("adopt", "ana")]
    with pytest.raises(ResolutionError, match="not UTF-8"):
        history.uploaded_rows(b"business_date\n\xff\xfe")


@databases("sqlite", "postgres_server", "mariadb")
def test_two_clicks_at_the_same_moment_adopt_a_file_once(
    shared_database: DatabaseUnderTest, world: World
) -> None:
    first, second = together(shared_database, world, lambda ledger: adopted(ledger, world.a))
    assert (first, second) == ((2, 0), (0, 2))
    assert events(world, "adopt") == [("adopt", "ana")]


def test_a_purge_is_looked_at_made_once_and_clicked_twice(world: World) -> None:
    world.done("INV-1", "INV-2")
    purge = Purge(world.ledger, DAY, **ANA, key_namespace=world.a)
    assert [each.keys for each in purge.plan()] == [2]
    assert world.monitor.keys(world.only_a).total == 2
    assert [each.keys for each in purge.run()] == [2]
    assert not any(each.found for each in purge.run())
    assert events(world, "purge", "purged") == [("purge", "ana"), ("purged", "ana")]
    with pytest.raises(ResolutionError, match="not over yet"):
        Purge(world.ledger, date(2999, 1, 1), **ANA, key_namespace=world.a).plan()


def test_a_rename_is_looked_at_made_once_and_clicked_twice(world: World) -> None:
    world.done("INV-1")
    names = ((world.a, "post"), (world.a, "pay"))
    assert rename(world.ledger, *names, **ANA, dry_run=True).count == 1
    assert world.monitor.keys(world.only_a).rows[0].operation == "post"
    assert [rename(world.ledger, *names, **ANA).count for _ in range(2)] == [1, 0]
    assert events(world, "rename") == [("rename", "ana")]


@databases("sqlite", "postgres_server", "mariadb")
def test_two_clicks_at_the_same_moment_rename_once(shared_database: DatabaseUnderTest, world: World) -> None:
    world.done("INV-1")
    names = ((world.a, "post"), (world.a, "pay"))
    outcomes = together(shared_database, world, lambda ledger: rename(ledger, *names, **ANA).count)
    assert outcomes == (1, 0)
    assert events(world, "rename") == [("rename", "ana")]
