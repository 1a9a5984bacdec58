"""Partitions of the ledger on PostgreSQL: made of a plain ledger, added ahead, pruned, and dropped by a purge."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard.acts.purging import Purge
from airflow_guard.core.errors import BeforeHorizon, ConfigurationError, LedgerBusy
from airflow_guard.core.keys import DATELESS, KeySpace
from airflow_guard.store.changes import Ownership
from airflow_guard.store.database import LedgerDatabase
from airflow_guard.store.ledger import Ledger
from airflow_guard.store.migrate import partition
from airflow_guard.store.partition_drop import PartitionDrop
from airflow_guard.store.partitions import Partition, Split, is_partitioned, partitions_of
from airflow_guard.store.resolution import resolve
from demo.waiting import QUIET_S
from tests.contract.attempts import attempt, documents_of, opened
from tests.databases import POSTGRES, databases
from tests.docs.pages import page
from tests.ledgers import migrated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.databases import DatabaseUnderTest

pytestmark = databases(*POSTGRES)

JANUARY, MARCH = date(2025, 1, 31), date(2025, 3, 31)
OLD = KeySpace("statements", "post", JANUARY)
ONCE = KeySpace("payments", "send", MARCH, once_per="document")


@pytest.fixture
def ledger(database: DatabaseUnderTest) -> Iterator[Ledger]:
    """A plain, migrated ledger."""
    opened = LedgerDatabase(database.url)
    migrated(opened)
    yield Ledger(opened)
    opened.dispose()


def parts(ledger: Ledger) -> dict[str, Partition]:
    """Return the partitions, by the end of their names."""
    table = ledger.database.tables.execution
    found = ledger.database.read(lambda c: partitions_of(c, table))
    return {each.name.removeprefix(f"{table.name}_"): each for each in found}


def where(ledger: Ledger) -> dict[str, str]:
    """Return in which partition each document is."""
    query = sa.text(
        "SELECT document, CAST(CAST(tableoid AS regclass) AS text) FROM guard_execution ORDER BY 1"
    )
    rows = ledger.database.read(lambda c: c.execute(query).all())
    return {row[0]: row[1].removeprefix("guard_execution_") for row in rows}


def this_month(ledger: Ledger, more: int = 0) -> date:
    query = sa.text(
        "SELECT CAST(date_trunc('month', now() AT TIME ZONE 'UTC') + make_interval(months => :n) AS date)"
    )
    day: date = ledger.database.read(lambda c: c.execute(query, {"n": more}).scalar_one())
    return day


def named(first: date) -> str:
    return f"p{first:%Y%m}"


# -- made ------------------------------------------------------------------------------------------------


def test_a_new_ledger_gets_a_partition_for_each_month_and_for_keys_without_date(ledger: Ledger) -> None:
    made = partition(ledger.database, ahead=2)
    assert isinstance(made, Split)
    assert (made.history, made.moved) == (None, 0)
    months = [named(this_month(ledger, n)) for n in range(3)]
    assert list(parts(ledger)) == ["dateless", *months, "default"]
    now = replace(OLD, business_date=this_month(ledger))
    for document, space in (("now", now), ("old", OLD), ("once", ONCE)):
        attempt(ledger, document, space=space).begin().complete("1")
    assert where(ledger) == {"now": months[0], "old": "default", "once": "dateless"}


def test_what_a_ledger_held_stays_the_same_keys(ledger: Ledger) -> None:
    one = attempt(ledger, "done", space=OLD).begin().complete('"paid"')
    doubt = attempt(ledger, "doubt", space=OLD).begin().doubt("no answer")
    once = attempt(ledger, "once", space=ONCE).begin().complete("1")
    running = attempt(ledger, "running", space=OLD).begin()
    before = [each.row() for each in (one, doubt, once)]
    made = partition(ledger.database)
    assert isinstance(made, Split)
    assert made.history is not None
    assert made.moved == 1
    assert where(ledger) == {"done": "history", "doubt": "history", "once": "dateless", "running": "history"}
    stand = [replace(each.row(), last_sign_age_s=0, first_begun_age_s=0) for each in (one, doubt, once)]
    assert stand == [replace(each, last_sign_age_s=0, first_begun_age_s=0) for each in before]
    # An attempt that was at work meanwhile ends as it would have.
    running.complete("2")
    for done in (one, once):
        own = Ownership.new(done.space.key_date, opened(ledger, done.space, "another"), "test")
        assert not ledger.claim(own, done.space, done.documents, []), "claimed once more it is not won"


def test_a_second_time_adds_only_what_is_missing(ledger: Ledger) -> None:
    partition(ledger.database, ahead=1)
    assert partition(ledger.database, ahead=1) == ()
    assert partition(ledger.database, ahead=3) == tuple(
        f"guard_execution_{named(this_month(ledger, n))}" for n in (2, 3)
    )


def test_a_month_takes_what_the_default_partition_holds_of_it(ledger: Ledger) -> None:
    partition(ledger.database, ahead=0)
    later = replace(OLD, business_date=this_month(ledger, 2) + timedelta(days=4))
    one = attempt(ledger, "early", space=later).begin()
    assert where(ledger) == {"early": "default"}
    partition(ledger.database, ahead=2)
    assert where(ledger) == {"early": named(this_month(ledger, 2))}
    one.complete("1")
    assert one.row().attempt == 1


def test_grants_owner_storage_and_checks_come_along(ledger: Ledger, database: DatabaseUnderTest) -> None:
    role = f"guard_reader_{database.schema}"[:60]
    with database.engine().begin() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {role}")
        connection.exec_driver_sql(f"GRANT SELECT, UPDATE ON guard_execution TO {role}")
    try:
        partition(ledger.database, ahead=1)
        with database.engine().begin() as connection:
            rights = connection.exec_driver_sql(
                "SELECT privilege_type FROM information_schema.role_table_grants "
                f"WHERE table_name = 'guard_execution' AND grantee = '{role}' AND table_schema = current_schema() "
                "ORDER BY 1"
            )
            assert rights.scalars().all() == ["SELECT", "UPDATE"]
            fill = connection.exec_driver_sql(
                "SELECT DISTINCT CAST(reloptions AS text) FROM pg_class WHERE relkind = 'r' AND "
                "relnamespace = CAST(current_schema() AS regnamespace) AND relname LIKE 'guard_execution%%'"
            )
            assert fill.scalars().all() == ["{fillfactor=35}"]
        attempt(ledger, "A", space=replace(OLD, business_date=this_month(ledger)))
        with database.engine().begin() as connection, pytest.raises(sa.exc.IntegrityError, match="standing"):
            connection.exec_driver_sql("UPDATE guard_execution SET phase = 'nonsense'")
    finally:
        with database.engine().begin() as connection:
            connection.exec_driver_sql(f"DROP OWNED BY {role}")
            connection.exec_driver_sql(f"DROP ROLE {role}")


def test_views_of_the_table_are_named_and_nothing_is_changed(
    ledger: Ledger, database: DatabaseUnderTest
) -> None:
    with database.engine().begin() as connection:
        connection.exec_driver_sql("CREATE VIEW my_report AS SELECT count(*) FROM guard_execution")
    with pytest.raises(ConfigurationError, match="my_report"):
        partition(ledger.database)
    assert not ledger.database.read(lambda c: is_partitioned(c, ledger.database.tables.execution))


def test_a_table_that_is_held_is_not_waited_for_for_ever_and_nothing_is_changed(
    ledger: Ledger, database: DatabaseUnderTest
) -> None:
    with database.engine().begin() as holder:
        holder.exec_driver_sql("LOCK TABLE guard_execution IN ROW EXCLUSIVE MODE")
        with pytest.raises(LedgerBusy):
            partition(ledger.database, patience_s=0)
    assert not ledger.database.read(lambda c: is_partitioned(c, ledger.database.tables.execution))
    assert isinstance(partition(ledger.database), Split)


def test_tasks_go_on_while_the_ledger_is_partitioned(ledger: Ledger) -> None:
    """Two threads execute keys over open connections, before, meanwhile and afterwards."""
    begun = threading.Barrier(3, timeout=QUIET_S)

    def execute(name: str) -> None:
        for number in range(60):
            if number == 20:
                begun.wait()
            attempt(ledger, f"{name}-{number}", f"{name}-{number}b", space=OLD).begin().complete("1")

    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(execute, name) for name in ("one", "two")]
        begun.wait()
        made = partition(ledger.database)
        for end in ends:
            end.result(timeout=QUIET_S)
    assert isinstance(made, Split)
    stored = where(ledger)
    assert len(stored) == 240
    assert set(stored.values()) == {"history"}
    e = ledger.database.tables.execution
    states = sa.select(e.c.state, e.c.attempt, sa.func.count()).group_by(e.c.state, e.c.attempt)
    assert ledger.database.read(lambda c: c.execute(states).all()) == [("completed", 1, 240)]


@databases("sqlite", "mariadb")
def test_on_other_databases_it_is_refused(ledger: Ledger) -> None:
    with pytest.raises(ConfigurationError, match="Only a ledger on PostgreSQL"):
        partition(ledger.database)


# -- pruned ----------------------------------------------------------------------------------------------


def _fill(ledger: Ledger, months: int) -> None:
    """Put some thousand done keys into each of the next months."""
    with ledger.database.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO guard_execution (key_date, key_hash, normaliser, key_namespace, operation, business_date, "
            "cycle, deployment, state, phase, follow_up, attempt, generation, owner_token, idempotency_key, claimed_at, "
            "finished_at) SELECT day, md5(CAST(n AS text)), 1, 'history', 'op', day, '', 'default', 'completed', 'done', "
            "'none', 1, 1, md5('o'), md5('k'), now(), now() FROM generate_series(1, 3000) n, (SELECT CAST("
            "date_trunc('month', now() AT TIME ZONE 'UTC') + make_interval(months => m) AS date) AS day "
            f"FROM generate_series(0, {months - 1}) m) days"
        )


def plan_nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for each in plan.get("Plans", ()):
        yield from plan_nodes(each)


def test_a_month_is_frozen_and_packed_as_the_page_says(ledger: Ledger, database: DatabaseUnderTest) -> None:
    partition(ledger.database, ahead=1)
    _fill(ledger, months=1)
    size = sa.text("SELECT pg_table_size(CAST(:name AS regclass))")
    month = f"guard_execution_{named(this_month(ledger))}"
    blocks = [f.text for f in page("docs/scale.md").fences if f.words == ("postgresql", "partitions")]
    assert len(blocks) == 2
    with database.engine(isolation_level="AUTOCOMMIT").connect() as connection:
        before = connection.execute(size, {"name": month}).scalar_one()
        for statement in "".join(blocks).split(";"):
            if statement.strip():
                connection.exec_driver_sql(statement.replace("guard_execution_p202601", month))
        assert connection.execute(size, {"name": month}).scalar_one() < before / 2


@pytest.mark.parametrize("count", [1, 500])
@pytest.mark.parametrize("name", ["read", "lookup", "lock", "take", "begin", "complete", "owners"])
def test_statements_on_keys_read_one_partition_by_its_primary_key(
    ledger: Ledger, name: str, count: int
) -> None:
    partition(ledger.database, ahead=6)
    _fill(ledger, months=4)
    day = this_month(ledger, 1)
    space = replace(OLD, business_date=day)
    one = attempt(ledger, *(f"D-{n}" for n in range(count)), space=space)
    statement, seen = getattr(ledger.statements, name), list[Any]()

    def explained(connection: sa.Connection) -> None:
        @sa.event.listens_for(connection, "before_cursor_execute", retval=True)
        def explain(_c: Any, cursor: Any, text: str, parameters: Any, *_: Any) -> tuple[str, Any]:
            return f"EXPLAIN (ANALYZE, FORMAT JSON) {text}", parameters

        values = {"token": one.own.token, "run": one.own.task_run_id, "batch": None, "why": None, "outcome": None,
                  "pushed": None, "follow": "none"}  # fmt: skip
        found = statement.run(connection, space.key_date, one.hashes, **values)
        seen.append(json.loads(json.dumps(found.cursor.fetchone()[0])))

    with ledger.database.engine.connect() as connection:
        explained(connection)
        connection.rollback()
    touched = {
        node["Relation Name"]
        for node in plan_nodes(seen[0][0]["Plan"])
        if node.get("Relation Name", "").startswith("guard_execution") and node.get("Actual Loops", 0) > 0
        and node["Node Type"] != "ModifyTable"
    }  # fmt: skip
    assert touched == {f"guard_execution_{named(day)}"}
    scans = {
        node["Node Type"]
        for node in plan_nodes(seen[0][0]["Plan"])
        if node.get("Relation Name") in touched and node["Node Type"] != "ModifyTable"
    }
    assert "Seq Scan" not in scans


# -- dropped ---------------------------------------------------------------------------------------------


@pytest.fixture
def aged(ledger: Ledger) -> Ledger:
    """A partitioned ledger whose history is of 2025 and has keys in every state."""
    for document in ("done", "done too"):
        attempt(ledger, document, space=OLD).begin().complete("1")
    attempt(ledger, "doubt", space=OLD).begin().doubt("no answer")
    attempt(ledger, "rejected", space=OLD).reject("no account")
    attempt(ledger, "other", space=replace(OLD, operation="notify")).begin().complete("1")
    attempt(ledger, "once", space=ONCE).begin().complete("1")
    partition(ledger.database, ahead=0)
    _history_ends(ledger, date(2025, 4, 1))
    return ledger


def _history_ends(ledger: Ledger, after: date) -> None:
    """Let the history be one that was cut in April 2025."""
    with ledger.database.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE guard_execution DETACH PARTITION guard_execution_history")
        connection.exec_driver_sql(
            "ALTER TABLE guard_execution ATTACH PARTITION guard_execution_history "
            f"FOR VALUES FROM ('1900-01-02') TO ('{after}')"
        )


def purged(ledger: Ledger, until: date, **more: Any) -> dict[str, int]:
    return {each.name[1]: each.keys for each in Purge(ledger, until, "ada", "two years", **more).run()}


def test_a_purge_drops_what_lies_behind_it_and_moves_out_what_is_not_done(aged: Ledger) -> None:
    assert purged(aged, MARCH) == {"notify": 1, "post": 2, "send": 0}
    assert "history" not in parts(aged)
    assert where(aged) == {"doubt": "default", "rejected": "default", "once": "dateless"}
    with pytest.raises(BeforeHorizon):
        attempt(aged, "done", space=OLD)
    e = aged.database.tables.event
    texts = aged.database.read(
        lambda c: c.execute(sa.select(e.c.key_text).where(e.c.kind == "purged")).scalars().all()
    )
    (told,) = [text for text in texts if "partition" in text]
    assert "3 keys are gone with it, 2 that are not done were moved to guard_execution_default" in told
    # What was moved is settled as ever, and goes with a later purge.
    (doubtful,) = documents_of(OLD, "doubt")
    row = aged.read(OLD.key_date, [doubtful.key_hash])[doubtful.key_hash]
    resolve(aged, OLD.key_date, doubtful.key_hash, row.owner_token, "happened", actor="ada", reason="seen")
    assert purged(aged, MARCH)["post"] == 1


def test_a_partition_that_reaches_beyond_the_date_is_emptied_row_by_row(aged: Ledger) -> None:
    assert purged(aged, JANUARY) == {"notify": 1, "post": 2}
    assert "history" in parts(aged)
    assert where(aged) == {"doubt": "history", "rejected": "history", "once": "dateless"}


def test_a_purge_of_one_operation_drops_nothing_of_others(aged: Ledger) -> None:
    assert purged(aged, MARCH, operation="post") == {"post": 2}
    assert where(aged) == {"doubt": "history", "other": "history", "rejected": "history", "once": "dateless"}


def test_an_operation_that_came_after_the_plan_keeps_its_rows(aged: Ledger) -> None:
    """Its horizon is not set: without one, its keys would look new."""
    purge = Purge(aged, MARCH, "ada", "two years")
    for planned in purge.plan():
        aged.database.write(lambda c, planned=planned: purge._set_horizon(c, planned.name, planned))
    attempt(aged, "late", space=replace(OLD, operation="new")).begin().complete("1")
    drop = PartitionDrop(aged, parts(aged)["history"], "ada", "two years", purge._may_go)
    gone = aged.database.write(drop.run)
    assert gone == {("statements", "post"): 2, ("statements", "notify"): 1}
    assert where(aged)["late"] == "default"


def test_what_would_take_too_long_to_move_is_not_dropped(
    aged: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_guard.store.partition_drop.MOST_MOVED", 1)
    assert purged(aged, MARCH) == {"notify": 1, "post": 2, "send": 0}
    assert where(aged) == {"doubt": "history", "rejected": "history", "once": "dateless"}


def test_keys_without_date_are_never_dropped(aged: Ledger) -> None:
    purged(aged, this_month(aged) - timedelta(days=1))
    assert parts(aged)["dateless"].first == DATELESS
    assert where(aged)["once"] == "dateless"
