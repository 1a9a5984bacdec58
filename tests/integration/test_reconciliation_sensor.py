"""Reconciliation in Airflow: the same result in every mode, settling, timeouts, earlier dates, what is left behind."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard import (
    BothEmpty,
    BreaksFound,
    ConfigurationError,
    DateChangedError,
    GuardFailure,
    GuardRetry,
    GuardTimeout,
    LedgerUnavailable,
    NeverCompared,
    ReconciliationSensor,
    Side,
    SideInvalid,
    Stopped,
    from_asset_extra,
)
from airflow_guard.acts.break_decisions import decide
from airflow_guard.core.checks import BreakState
from airflow_guard.sensors import check_try
from airflow_guard.triggers import SHORTEST_DEFERRAL_S
from tests.airflow_runs import start_run
from tests.databases import databases
from tests.integration.sides import DAY, GOOD, JANUARY_30, LEDGER, MODES, WHERE, Sides

if TYPE_CHECKING:
    from airflow_guard.store.break_rows import StoredBreak
    from tests.databases import DatabaseServers
    from tests.integration.conftest import Business

pytestmark = [databases("sqlite"), pytest.mark.usefixtures("short_deferrals")]
every_database = databases("sqlite", "postgres_embedded", "mariadb")
every_mode = pytest.mark.parametrize("mode", MODES)


@pytest.fixture
def sides(business: Business) -> Sides:
    return Sides(business)


# ---- The same in every mode --------------------------------------------------------------------------------


@every_database
def test_sides_that_agree_pass(sides: Sides) -> None:
    sides.both()
    run = sides.run(group_by=["currency"])
    assert run.states() == {"reconcile": "success"}
    assert run.result("reconcile") == {
        "business_date": "2026-01-30", "outcome": "passed", "accepted": True, "with_keys": True,
        "source_count": 3, "target_count": 3, "groups": 1, "breaks": 0, "open": 0, "closed": 0, "capped": False,
        "documents": [], "pokes": 1, "errors": 0, "earlier": {},
        "totals": run.result("reconcile")["totals"],
    }  # fmt: skip
    (group,) = run.result("reconcile")["totals"]
    assert group["group"] == {"currency": "EUR"}
    assert group["source"]["records"] == 3
    assert float(group["source"]["amounts"]["amount"]) == 7.5
    (check,) = sides.checks()
    assert (check.outcome, check.with_keys, check.source_count, check.target_count) == ("passed", 1, 3, 3)
    assert check.source_read_at is not None
    assert check.target_read_at is not None
    assert (check.business_date, check.run_date, check.date_source) == (DAY, DAY, "logical")


WRONG = [
    ("amount_mismatch", "D-3", "open"),
    ("duplicate_in_target", "D-2", "open"),
    ("missing_in_source", "D-9", "open"),
    ("missing_in_target", "D-1", "open"),
]


def make_wrong(sides: Sides) -> None:
    sides.add("booked", *GOOD)
    sides.add("posted", ("D-2", "-2.50"), ("D-2", "-2.50"), ("D-3", "0.01"), ("D-9", "1.00"))


@databases("sqlite", "postgres_embedded")
@every_mode
def test_breaks_fail_the_task_and_name_the_documents(sides: Sides, mode: str) -> None:
    make_wrong(sides)
    run = sides.run(mode)
    ended = run.last("reconcile")
    assert (ended.state, type(ended.error), type(ended.cause)) == ("failed", GuardFailure, BreaksFound)
    for document in ("D-1", "D-2", "D-3", "D-9", "2026-01-30"):
        assert document in str(ended.error)
    assert sides.named() == WRONG
    (check,) = sides.checks()
    assert (check.outcome, check.settled, check.poke_count, check.same_pokes) == ("broken", 1, 2, 2)
    assert (check.break_count, check.break_cap, check.capped) == (4, 1000, 0)
    wrong = next(row for row in sides.breaks() if row.document == "D-3")
    assert [float(value) for value in (wrong.source_value, wrong.target_value, wrong.variance)] == [
        0,
        0.01,
        0.01,
    ]
    assert json.loads(wrong.group_values) == {}


def test_all_modes_say_the_same(sides: Sides) -> None:
    make_wrong(sides)
    said = {
        str(sides.run(mode, operation=f"in_{mode}").last("reconcile").error).replace(mode, "…")
        for mode in MODES
    }
    assert len(said) == 1


@databases("sqlite")
def test_the_two_sides_may_be_in_different_databases(
    sides: Sides, database_servers: DatabaseServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = {}
    try:
        for kind in ("postgres_embedded", "mariadb"):
            place = database_servers.get(kind)  # type: ignore[arg-type]
            target[kind] = place.fresh()
            monkeypatch.setenv(f"AIRFLOW_CONN_{kind.upper()}", target[kind].airflow_connection())
            engine = target[kind].engine()
            with engine.begin() as connection:
                connection.execute(
                    sa.text("CREATE TABLE posted (no VARCHAR(50), amt NUMERIC(12, 2), day DATE)")
                )
                rows = [{"n": no, "a": amount, "d": DAY} for no, amount in GOOD]
                connection.execute(sa.text("INSERT INTO posted VALUES (:n, :a, :d)"), rows)

        def side(kind: str) -> Side:
            return Side(
                kind, table="posted", key="no", where="day = :business_date", columns={"amount": "amt"}
            )

        both = {"source": side("postgres_embedded"), "target": side("mariadb")}
        assert sides.run(**both).states() == {"reconcile": "success"}
        with target["mariadb"].engine().begin() as connection:
            connection.execute(sa.text("UPDATE posted SET amt = 0.01 WHERE no = 'D-3'"))
        ended = sides.run("deferrable", **both).last("reconcile")
        assert isinstance(ended.cause, BreaksFound)
        assert sides.named() == [("amount_mismatch", "D-3", "open")]
    finally:
        for place in target.values():
            place.server.drop(place)


# ---- Settling ----------------------------------------------------------------------------------------------


@every_mode
def test_rows_that_arrive_late_are_waited_for(sides: Sides, mode: str) -> None:
    sides.add("booked", *GOOD)
    sides.add("posted", *GOOD[:2])
    late = sides.when(2, lambda: sides.add("posted", GOOD[2]))
    run = sides.run(mode, settle_pokes=1000)
    late.join()
    assert run.states() == {"reconcile": "success"}
    assert run.result("reconcile")["pokes"] >= 3
    assert sides.breaks() == []


@every_mode
def test_a_difference_that_still_changes_when_the_time_is_over_is_a_break(
    sides: Sides, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides.add("booked", *GOOD)
    real = check_try.reconcile

    def moving(*args: Any, **kwargs: Any) -> Any:
        comparison = real(*args, **kwargs)
        sides.add("posted", (f"late {datetime.now(UTC)}", "1.00"))
        return comparison

    monkeypatch.setattr(check_try, "reconcile", moving)
    called: list[Any] = []
    run = sides.run(
        mode, timeout=0.3, on_failure_callback=lambda context: called.append(context["task"].task_id)
    )
    ended = run.last("reconcile")
    assert (ended.state, type(ended.error), type(ended.cause)) == ("failed", GuardTimeout, BreaksFound)
    assert "still changing" in str(ended.error)
    assert called == ["reconcile"]
    (check,) = sides.checks()
    assert (check.outcome, check.settled) == ("broken", 0)
    assert check.poke_count >= 2


def test_the_first_difference_is_a_break_where_nothing_can_arrive_late(sides: Sides) -> None:
    make_wrong(sides)
    sides.run("reschedule", settle_pokes=1)
    assert sides.checks()[0].poke_count == 1


@pytest.mark.parametrize("mode", ["reschedule"])
def test_two_empty_sides_are_no_pass(sides: Sides, mode: str) -> None:
    ended = sides.run(mode).last("reconcile")
    assert (ended.state, type(ended.cause)) == ("failed", BothEmpty)
    assert sides.named() == [("both_empty", "", "open")]
    assert sides.checks()[0].outcome == "empty"
    sides.both()
    assert sides.run(mode).states() == {"reconcile": "success"}
    assert sides.named() == [("both_empty", "", "resolved")]


def test_an_empty_day_may_be_normal(sides: Sides) -> None:
    assert sides.run(allow_empty=True).states() == {"reconcile": "success"}


@pytest.mark.parametrize("empty", ["booked", "posted"])
def test_one_empty_side_is_a_break_for_each_document(sides: Sides, empty: str) -> None:
    sides.add("posted" if empty == "booked" else "booked", *GOOD)
    assert isinstance(sides.run().last("reconcile").cause, BreaksFound)
    expected = "missing_in_source" if empty == "booked" else "missing_in_target"
    assert {kind for kind, _, _ in sides.named()} == {expected}
    assert len(sides.named()) == 3


# ---- Databases that do not answer --------------------------------------------------------------------------

DOWN = json.dumps({"conn_type": "postgres", "host": "127.0.0.1", "port": 9, "login": "x", "schema": "x"})


@every_mode
def test_c19_a_database_that_is_down_at_first_is_looked_at_again(
    sides: Sides, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides.both()
    monkeypatch.setenv("AIRFLOW_CONN_BOOKS", DOWN)
    up = sides.when(
        2, lambda: monkeypatch.setenv("AIRFLOW_CONN_BOOKS", sides.business.database.airflow_connection())
    )
    run = sides.run(mode, source=Side("books", table="booked", key="document_no", where=WHERE))
    up.join()
    assert run.states() == {"reconcile": "success"}
    assert run.result("reconcile")["errors"] >= 2
    assert sides.checks()[0].last_error


@every_mode
def test_c19_a_database_that_stays_down_ends_at_the_timeout_and_fires_the_callback(
    sides: Sides, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_BOOKS", DOWN)
    called: list[Any] = []
    parameters = {
        "timeout": 0.3,
        "source": Side("books", table="booked", key="document_no", where=WHERE),
        "on_failure_callback": lambda context: called.append(context["task"].task_id),
    }
    run = sides.run(mode, **parameters)
    ended = run.last("reconcile")
    assert (ended.state, type(ended.error), type(ended.cause)) == ("failed", GuardTimeout, NeverCompared)
    assert called == ["reconcile"]
    for word in ("2026-01-30", "never read", "looks could not read a side", "books: booked"):
        assert word in str(ended.error)
    (check,) = sides.checks()
    assert check.outcome == "failed"
    assert check.error_count == check.poke_count >= 2

    # Cleared, it gets its whole time again.
    run.clear().go_on()
    first, second = sides.checks()
    assert second.poke_count >= 2
    assert second.started_at > first.ended_at


@every_mode
def test_c19_an_unknown_table_fails_at_once(sides: Sides, mode: str) -> None:
    sides.add("posted", *GOOD)
    run = sides.run(mode, source=Side(LEDGER, table="nowhere", key="document_no", where=WHERE))
    ended = run.last("reconcile")
    assert (ended.state, type(ended.error), type(ended.cause)) == ("failed", GuardFailure, SideInvalid)
    assert "nowhere" in str(ended.error)
    assert "Known: " in str(ended.error)
    assert str(ended.error).startswith(f"{sides.business.dag_id} / reconcile of 2026-01-30: ")
    assert sides.checks()[0].poke_count == 0


def test_a_misspelt_column_or_table_is_named_with_those_that_are_there(sides: Sides) -> None:
    sides.add("posted", *GOOD)
    source = Side(LEDGER, table="posted", key="document_nr", where=WHERE)
    ended = sides.run(source=source, target=source).last("reconcile")
    assert "posted has no column document_nr. Did you mean document_no?" in str(ended.error)
    source = Side(LEDGER, table="postd", key="document_no", where=WHERE)
    ended = sides.run(source=source).last("reconcile")
    assert "There is no table postd. Did you mean posted?" in str(ended.error)


def test_a_connection_of_a_side_that_does_not_exist_is_named_with_dag_and_date(sides: Sides) -> None:
    ended = sides.run(source=Side("nowhere", table="posted", key="document_no", where=WHERE)).last(
        "reconcile"
    )
    assert isinstance(ended.error, GuardFailure)
    assert str(ended.error).startswith(
        f"{sides.business.dag_id} / reconcile of 2026-01-30: There is no connection 'nowhere'"
    )


def test_the_last_figures_are_said_when_a_database_goes_down_for_good(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides.add("booked", *GOOD)
    sides.add("posted", *GOOD[:2])
    monkeypatch.setenv("AIRFLOW_CONN_BOOKS", sides.business.database.airflow_connection())
    down = sides.when(1, lambda: monkeypatch.setenv("AIRFLOW_CONN_BOOKS", DOWN))
    source = Side("books", table="booked", key="document_no", where=WHERE)
    ended = sides.run(source=source, timeout=1, settle_pokes=1000).last("reconcile")
    down.join()
    assert isinstance(ended.cause, NeverCompared)
    assert "Last read: source 3 rows, target 2 rows" in str(ended.error)
    assert sides.breaks() == [], "nothing was confirmed"


@pytest.mark.parametrize("mode", ["reschedule", "deferrable"])
def test_a_table_that_is_dropped_between_two_looks_fails_at_once(sides: Sides, mode: str) -> None:
    sides.add("booked", *GOOD)
    dropped = sides.when(1, lambda: sides.run_sql("DROP TABLE posted"))
    ended = sides.run(mode, settle_pokes=1000).last("reconcile")
    dropped.join()
    assert isinstance(ended.cause, SideInvalid)


@databases("postgres_embedded", "mariadb")
def test_a_table_that_is_locked_is_looked_at_again(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    sides.both()
    monkeypatch.setattr(check_try, "reconcile", partial(check_try.reconcile, lock_timeout_s=1))
    postgres = sides.business.database.kind != "mariadb"
    lock = "LOCK TABLE posted IN ACCESS EXCLUSIVE MODE" if postgres else "LOCK TABLES posted WRITE"
    connection = sides.engine.connect()
    connection.execute(sa.text(lock))

    def unlock() -> None:
        if not postgres:
            connection.execute(sa.text("UNLOCK TABLES"))
        connection.rollback()
        connection.close()

    unlocked = sides.when(1, unlock)
    run = sides.run()
    unlocked.join()
    assert run.states() == {"reconcile": "success"}
    assert run.result("reconcile")["errors"] >= 1


@pytest.mark.parametrize("mode", ["poke", "deferrable"])
def test_a_ledger_that_does_not_answer_is_asked_again(
    sides: Sides, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides.both()
    real, errors = check_try.Reconciliations.states, [LedgerUnavailable("down"), LedgerUnavailable("down")]

    def flaky(self: Any, ti_id: str) -> Any:
        if errors:
            raise errors.pop()
        return real(self, ti_id)

    monkeypatch.setattr(check_try.Reconciliations, "states", flaky)
    assert sides.run(mode).states() == {"reconcile": "success"}


@pytest.mark.parametrize("mode", ["poke", "reschedule"])
def test_a_ledger_that_stays_away_ends_at_the_timeout(
    sides: Sides, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not deferred: dag.test() forgets what a deferral carries, and the ledger is what else would know the time.
    def away(self: Any, ti_id: str) -> Any:
        raise LedgerUnavailable("away")

    monkeypatch.setattr(check_try.Reconciliations, "states", away)
    ended = sides.run(mode, timeout=0.3).last("reconcile")
    assert (ended.state, type(ended.error), type(ended.cause)) == ("failed", GuardTimeout, NeverCompared)


@every_mode
def test_soft_fail_never_hides_a_break(sides: Sides, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wrong(sides)
    assert sides.run(mode, soft_fail=True).states() == {"reconcile": "failed"}
    monkeypatch.setenv("AIRFLOW_CONN_BOOKS", DOWN)
    source = Side("books", table="booked", key="document_no", where=WHERE)
    again = sides.run(mode, soft_fail=True, source=source, timeout=0.2, task_id="other", recheck_days=0)
    assert again.states() == {"other": "skipped"}
    assert sides.checks()[-1].outcome == "failed"


def test_a_triggerer_that_does_not_wake_the_task_is_not_waited_for(sides: Sides) -> None:
    sides.both()
    dag = sides.dag("deferrable")
    task = dag.task_dict["reconcile"]
    task.execute = lambda context: task.resume_execution(  # as Airflow resumes it
        "__fail__", {"error": "Trigger timeout"}, context
    )
    assert start_run(dag, logical_at=JANUARY_30).go_on().states() == {"reconcile": "success"}


@pytest.mark.parametrize("mode", ["reschedule", "deferrable"])
def test_a_short_wait_stays_with_its_worker(sides: Sides, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow may take a task for lost that is back before the scheduler has read that it went."""
    monkeypatch.setattr("airflow_guard.sensors.reconciliation.SHORTEST_DEFERRAL_S", SHORTEST_DEFERRAL_S)
    make_wrong(sides)
    looks: list[Any] = []
    dag = sides.dag(mode)
    dag.task_dict["reconcile"].pre_execute = looks.append
    run = start_run(dag, logical_at=JANUARY_30).go_on()
    assert isinstance(run.last("reconcile").cause, BreaksFound)
    assert len(looks) == 1
    (check,) = sides.checks()
    assert check.poke_count == 2


def test_a_task_that_is_asked_to_stop_stops_waiting(sides: Sides) -> None:
    make_wrong(sides)
    dag = sides.dag(settle_pokes=1000, poke_interval=60)
    tasks: list[Any] = []
    dag.task_dict["reconcile"].pre_execute = lambda context: tasks.append(context["task"])

    def kill() -> None:
        tasks[0].on_kill()

    killed = sides.when(1, kill)
    ended = start_run(dag, logical_at=JANUARY_30).go().last("reconcile")
    killed.join()
    assert (ended.state, type(ended.error), type(ended.cause)) == ("up_for_retry", GuardRetry, Stopped)


# ---- Breaks over several runs ------------------------------------------------------------------------------


def open_breaks(sides: Sides) -> list[StoredBreak]:
    return sides.store().breaks.unsettled(key_namespace=sides.business.dag_id)


def test_a_break_is_closed_by_the_run_that_no_longer_finds_it(sides: Sides) -> None:
    make_wrong(sides)
    run = sides.run()
    sides.run_sql("DELETE FROM posted")
    sides.add("posted", *GOOD)
    run.clear().go_on()
    assert run.states() == {"reconcile": "success"}
    assert run.result("reconcile")["closed"] == 4
    assert {state for _, _, state in sides.named()} == {"resolved"}


def test_a_break_that_a_person_has_explained_fails_nothing_until_it_changes(sides: Sides) -> None:
    make_wrong(sides)
    run = sides.run()
    decide(
        sides.business.ledger,
        BreakState.EXPLAINED,
        [each.id for each in open_breaks(sides)],
        actor="ann",
        reason="known, T-1",
    )
    run.clear().go_on()
    assert run.states() == {"reconcile": "success"}
    assert (run.result("reconcile")["outcome"], run.result("reconcile")["accepted"]) == ("broken", True)

    sides.run_sql("UPDATE posted SET amount = '0.02' WHERE document_no = 'D-3'")
    run.clear().go_on()
    assert run.states() == {"reconcile": "failed"}
    assert sides.named().count(("amount_mismatch", "D-3", "open")) == 1
    assert [event.kind for event in sides.business.events()] == ["break_explained"] * 4 + ["break_reopened"]


def test_r15_a_date_that_changed_after_it_passed_is_noticed_by_the_next_run(
    sides: Sides, capsys: pytest.CaptureFixture[str]
) -> None:
    next_day = JANUARY_30 + timedelta(days=1)
    sides.both()
    sides.both(("E-1", "1.00"), day=next_day.date())
    assert sides.run().states() == {"reconcile": "success"}
    sides.add("posted", ("late", "10.00"))

    run = sides.run(at=next_day)
    ended = run.last("reconcile")
    assert (ended.state, type(ended.cause)) == ("failed", BreaksFound)
    assert "2026-01-30 (an earlier date, looked at again): Changed since it passed" in str(ended.error)
    assert "target +1 row, +10.0" in str(ended.error)
    assert sides.named() == [("missing_in_source", "late", "open")]
    own, earlier = sides.checks()[1:]
    assert (own.outcome, own.business_date, earlier.outcome, earlier.business_date, earlier.run_date) == (
        "passed", next_day.date(), "broken", DAY, next_day.date(),
    )  # fmt: skip

    # A retry of this run fails again; a later run knows the break, says so and goes on.
    run.clear().go_on()
    assert run.states() == {"reconcile": "failed"}
    sides.both(("F-1", "1.00"), day=next_day.date() + timedelta(days=1))
    later = sides.run(at=next_day + timedelta(days=1))
    assert later.states() == {"reconcile": "success"}
    assert later.result("reconcile")["earlier"]["2026-01-30"] == {
        "outcome": "broken", "open": 1, "new": 0, "closed": 0,
    }  # fmt: skip
    assert "1 breaks are still open" in capsys.readouterr().out
    # What is known already is not waited for again.
    assert sides.checks()[-1].poke_count == 1

    sides.run_sql("DELETE FROM posted WHERE document_no = 'late'")
    later.clear().go_on()
    assert later.result("reconcile")["earlier"]["2026-01-30"]["closed"] == 1
    assert sides.named() == [("missing_in_source", "late", "resolved")]


def test_r15_a_date_that_changed_alike_on_both_sides_passes_and_is_said(
    sides: Sides, capsys: pytest.CaptureFixture[str]
) -> None:
    sides.both()
    sides.run()
    sides.both(("late", "10.00"))
    sides.both(("E-1", "1.00"), day=DAY + timedelta(days=1))
    run = sides.run(at=JANUARY_30 + timedelta(days=1))
    assert run.states() == {"reconcile": "success"}
    assert "Changed since it passed" in capsys.readouterr().out


def test_r15_a_row_that_is_committed_between_the_two_reads_is_gone_at_the_next_look(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides.both()
    real, looks = check_try.reconcile, []

    def between(source: Side, target: Side, *rest: Any, **kwargs: Any) -> Any:
        # As if the row came after the source was read and before the target was.
        looks.append(1)
        if len(looks) == 1:
            sides.add("posted", ("new", "1.00"))
            comparison = real(source, target, *rest, **kwargs)
            sides.add("booked", ("new", "1.00"))
            return comparison
        return real(source, target, *rest, **kwargs)

    monkeypatch.setattr(check_try, "reconcile", between)
    run = sides.run()
    assert run.states() == {"reconcile": "success"}
    assert run.result("reconcile")["pokes"] == 2
    assert sides.breaks() == []


def test_dates_are_not_looked_at_again_where_the_sides_are_about_no_date(sides: Sides) -> None:
    sides.both()
    sides.both(("E-1", "1.00"), day=DAY + timedelta(days=1))
    everything = {name: Side(LEDGER, table=name, key="document_no") for name in ("booked", "posted")}
    parameters = {"source": everything["booked"], "target": everything["posted"]}
    sides.run(**parameters)
    run = sides.run(at=JANUARY_30 + timedelta(days=1), **parameters)
    assert run.result("reconcile")["earlier"] == {}


def test_more_breaks_than_are_named_are_said_and_none_is_closed(sides: Sides) -> None:
    sides.add("booked", *[(f"D-{number}", "1.00") for number in range(9)])
    sides.add("posted", ("D-0", "1.00"))
    run = sides.run(max_breaks=5)
    error = str(run.last("reconcile").error)
    assert "max_breaks" in error
    assert (sides.checks()[0].break_count, sides.checks()[0].capped) == (5, 1)
    sides.add("posted", ("D-1", "1.00"), ("D-2", "1.00"))
    run.clear().go_on()
    assert "resolved" not in {state for _, _, state in sides.named()}


# ---- Without keys, and what is left behind -----------------------------------------------------------------


def test_without_keys_there_are_totals_only_and_the_result_says_so(sides: Sides) -> None:
    sides.add("booked", *GOOD)
    sides.add("posted", *GOOD[:2])
    totals = {
        name: Side(LEDGER, table=table, where=WHERE)
        for name, table in (("source", "booked"), ("target", "posted"))
    }
    run = sides.run(**totals)
    error = str(run.last("reconcile").error)
    assert "Totals only" in error
    assert sides.named() == [("totals_mismatch", "", "open")]
    sides.add("posted", GOOD[2])
    run.clear().go_on()
    assert run.result("reconcile")["with_keys"] is False
    assert sides.named() == [("totals_mismatch", "", "resolved")]


def test_a_warning_is_enough_where_it_is_asked_for(sides: Sides, capsys: pytest.CaptureFixture[str]) -> None:
    make_wrong(sides)
    run = sides.run(on_break="warn")
    assert run.states() == {"reconcile": "success"}
    assert (run.result("reconcile")["outcome"], run.result("reconcile")["open"]) == ("broken", 4)
    assert "D-9" in capsys.readouterr().out
    assert sides.named() == WRONG


def test_the_log_has_a_table_that_a_person_can_read(sides: Sides, capsys: pytest.CaptureFixture[str]) -> None:
    make_wrong(sides)
    sides.run(group_by=["currency"])
    said = capsys.readouterr().out
    lines = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in said.splitlines() if line[:1] == "|"
    ]
    assert ["currency EUR", "3", "7.5", "4", "-3.99", "differs"] in lines
    assert any(line[:4] == ["missing_in_target", "currency EUR", "D-1", ""] for line in lines)


def test_check_results_are_left_as_airflows_sql_checks_leave_them(sides: Sides) -> None:
    from airflow.providers.common.sql.operators.sql import SQLCheckResult

    make_wrong(sides)
    dag = sides.dag(group_by=["currency"])
    tasks: list[Any] = []
    dag.task_dict["reconcile"].on_failure_callback = [lambda context: tasks.append(context["task"])]
    start_run(dag, logical_at=JANUARY_30).go_on()
    (result,) = tasks[0].check_results
    assert isinstance(result, SQLCheckResult)
    assert (result.name, result.check_type, result.success, result.severity) == (
        "reconcile: currency EUR", "reconciliation", False, "error",
    )  # fmt: skip
    assert result.params["business_date"] == "2026-01-30"


def test_a_task_that_fails_leaves_its_summary_in_xcom(sides: Sides) -> None:
    make_wrong(sides)
    run = sides.run()
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    with create_session() as session:
        query = sa.select(XComModel).where(XComModel.run_id == run.run_id, XComModel.dag_id == run.dag.dag_id)
        values = {row.key: XComModel.deserialize_value(row) for row in session.scalars(query)}
    # Airflow keeps the links of the operator there too.
    assert [key for key in values if not key.startswith("_link_")] == ["reconciliation"]
    assert (values["reconciliation"]["outcome"], values["reconciliation"]["open"]) == ("broken", 4)


def test_another_dag_takes_the_business_date_from_the_asset_event(sides: Sides) -> None:
    from airflow.models.asset import AssetEvent
    from airflow.sdk import DAG, Asset, task
    from airflow.utils.session import create_session

    from airflow_guard import business_date_of

    sides.both()
    asset = Asset(f"reconciled_{sides.business.dag_id}")
    sides.run(outlets=[asset])
    with create_session() as session:
        (extra,) = session.scalars(
            sa.select(AssetEvent.extra).where(AssetEvent.source_dag_id == sides.business.dag_id)
        ).all()
    assert extra == {
        "business_date": "2026-01-30", "reconciled": True, "breaks": 0, "open": 0, "source_count": 3,
        "target_count": 3,
    }  # fmt: skip

    found: list[date] = []
    with DAG(
        f"{sides.business.dag_id}_after", schedule=[asset], start_date=datetime(2025, 1, 1, tzinfo=UTC)
    ) as dag:

        @task
        def notify(**context: Any) -> None:
            found.append(business_date_of(context, from_asset_extra()))

        notify()
    start_run(dag, run_type="asset_triggered", asset_extras=[extra]).go()
    assert found == [DAY]


# ---- Dates -------------------------------------------------------------------------------------------------


def test_the_business_date_follows_the_rules_of_the_operator(sides: Sides) -> None:
    from airflow_guard import previous_day

    sides.both(day=DAY - timedelta(days=1))
    run = sides.run(business_date=previous_day())
    assert run.result("reconcile")["business_date"] == "2026-01-29"
    conf = start_run(
        sides.dag(),
        run_type="manual",
        logical_at=JANUARY_30 + timedelta(hours=9),
        conf={"business_date": "2026-01-29"},
    ).go_on()
    assert conf.result("reconcile")["business_date"] == "2026-01-29"


def test_a_run_without_a_date_looks_at_nothing(sides: Sides) -> None:
    run = start_run(sides.dag(business_date="{{ ds }}"), run_type="asset_triggered").go_on()
    assert "business_date" in str(run.last("reconcile").error)
    assert sides.checks() == []


def test_a_cleared_run_that_would_get_another_date_fails(sides: Sides) -> None:
    from airflow_guard import previous_day

    sides.both()
    run = sides.run()
    run.clear().go(sides.dag(business_date=previous_day()))
    ended = run.go_on().last("reconcile")
    assert isinstance(ended.cause, DateChangedError)
    assert "2026-01-30" in str(ended.error)
    assert "2026-01-29" in str(ended.error)


def test_a_cycle_has_breaks_of_its_own_and_the_sides_can_name_it(sides: Sides) -> None:
    make_wrong(sides)
    side = {"conn_id": LEDGER, "key": "document_no", "where": f"{WHERE} AND account = :cycle"}
    both = {"source": Side(table="booked", **side), "target": Side(table="posted", **side)}
    run = sides.run(cycle="{{ 'A' }}", **both)
    assert isinstance(run.last("reconcile").cause, BreaksFound)
    assert {row.cycle for row in sides.breaks()} == {"A"}


# ---- Refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"on_break": "ignore"}, "on_break"),
        ({"settle_pokes": 0}, "settle_pokes"),
        ({"recheck_days": -1}, "recheck_days"),
        ({"recheck_days": 2, "source": Side(LEDGER, table="booked", key="document_no")}, ":business_date"),
        ({"source": "booked"}, "Side"),
        ({"source": Side(LEDGER, table="booked", where=WHERE)}, "key"),
        ({"absolute_tolerance": 0.01}, "float"),
        ({"operation": "{{ ds }}"}, "operation"),
        ({"never_fail": True}, "never_fail"),
        ({"silent_fail": True}, "silent_fail"),
        ({"default_args": {"operation": "shared"}}, "default_args"),
    ],
)
def test_what_cannot_work_is_refused_when_the_dag_is_parsed(
    sides: Sides, parameters: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        sides.dag(**parameters)


def test_the_mode_of_guarded_tasks_in_default_args_is_not_the_sensor_s(sides: Sides) -> None:
    sides.both()
    parameters: dict[str, Any] = {
        "mode": None,
        "default_args": {"mode": "observe", "business_date": "2026-01-30"},
    }
    dag = sides.dag(**{name: value for name, value in parameters.items() if value})
    assert dag.task_dict["reconcile"].mode == "poke"


def test_two_sensors_with_one_operation_are_refused(sides: Sides) -> None:
    dag = sides.dag()
    first = dag.task_dict["reconcile"]
    with dag, pytest.raises(ConfigurationError, match="close the breaks of the other"):
        ReconciliationSensor(task_id="again", operation="reconcile", source=first.source, target=first.target)


def test_a_mapped_sensor_needs_an_operation(sides: Sides) -> None:
    from airflow.sdk import DAG

    sides.both()
    first = sides.dag().task_dict["reconcile"]
    states = {}
    for operation in (None, "by_date"):
        with DAG(
            f"{sides.business.dag_id}_{operation}", schedule=None, start_date=datetime(2025, 1, 1, tzinfo=UTC)
        ) as dag:
            ReconciliationSensor.partial(
                task_id="reconcile", operation=operation, source=first.source, target=first.target,
                poke_interval=0.02, settle_pokes=1,
            ).expand(business_date=["2026-01-30"])  # fmt: skip
        states[operation] = start_run(dag, logical_at=JANUARY_30).go_on().states()
    assert states == {None: {"reconcile[0]": "failed"}, "by_date": {"reconcile[0]": "success"}}


def test_the_dag_survives_serialisation(sides: Sides) -> None:
    from airflow.serialization import serialized_objects

    serialization = getattr(serialized_objects, "DagSerialization", None) or serialized_objects.SerializedDAG
    stored = serialization.serialize_dag(sides.dag("reschedule", group_by=["currency"]))
    task = serialization.deserialize_dag(json.loads(json.dumps(stored))).task_dict["reconcile"]
    assert task.reschedule
