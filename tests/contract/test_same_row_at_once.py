"""Two processes look for a row, find none, and both insert it: the slower one finds it there, and neither fails."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard.acts.purging import Purge
from airflow_guard.acts.renaming import rename
from airflow_guard.core.alerts.facts import AlertKind, Problem
from airflow_guard.core.errors import LedgerBusy
from airflow_guard.core.guard import TaskIdentity
from airflow_guard.store.alerts import Alerts
from airflow_guard.store.reconciliations import Check, Reconciliations
from airflow_guard.store.task_runs import TaskTry
from tests.contract.attempts import attempt, new_ledger, opened
from tests.databases import databases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_guard.core.keys import KeySpace
    from airflow_guard.store.ledger import Ledger
    from tests.databases import DatabaseUnderTest

# SQLite has one writer at a time: between its look and its insert there is nobody.
pytestmark = databases("postgres_embedded", "mariadb")

OLD = date(2020, 1, 31)


@pytest.fixture
def other(shared_database: DatabaseUnderTest) -> Iterator[Ledger]:
    """Another process's connection to the same ledger."""
    other = new_ledger(shared_database.url)
    yield other
    other.database.dispose()


@contextmanager
def faster(ledger: Ledger, verb: str, table: str, does: Callable[[], object]) -> Iterator[list[str]]:
    """Let somebody else be done with it just before the first such statement. Yields the statements that came."""
    came: list[str] = []

    def before(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith(f"{verb} {table}"):
            came.append(statement)
            if len(came) == 1:
                does()

    engine = ledger.database.engine
    sa.event.listen(engine, "before_cursor_execute", before)
    try:
        yield came
    finally:
        sa.event.remove(engine, "before_cursor_execute", before)


def rows(ledger: Ledger, table: str, **values: Any) -> list[Any]:
    found = ledger.database.tables.metadata.tables[f"guard_{table}"]
    query = sa.select(found).where(*(found.c[name] == value for name, value in values.items()))
    return list(ledger.database.read(lambda connection: connection.execute(query).all()))


def test_two_purges_of_an_operation(shared_ledger: Ledger, other: Ledger, space: KeySpace) -> None:
    old = replace(space, business_date=OLD)
    for number in range(3):
        attempt(shared_ledger, f"INV-{number}", space=old).begin().complete("1").die()

    def purge(ledger: Ledger, until: date) -> list[Any]:
        return list(Purge(ledger, until, "ada", "old", operation=space.operation).run())

    # The faster one removes less: what the slower one asked for is done, and the horizon is the later date.
    with faster(
        shared_ledger, "INSERT INTO", "guard_horizon", lambda: purge(other, date(2020, 1, 30))
    ) as came:
        attempt(
            shared_ledger, "INV-9", space=replace(space, business_date=date(2020, 1, 30))
        ).begin().complete("1").die()
        (done,) = purge(shared_ledger, OLD)
    assert came
    assert done.keys == 3
    assert [each.business_date for each in rows(shared_ledger, "horizon", operation=space.operation)] == [OLD]
    assert rows(shared_ledger, "execution", operation=space.operation) == []


def test_a_rename_while_the_new_name_gets_a_horizon(
    shared_ledger: Ledger, other: Ledger, space: KeySpace
) -> None:
    """Nothing is renamed, and it can be tried again."""
    new = replace(space, operation=f"{space.operation}_new")
    for each in (space, new):
        attempt(shared_ledger, "INV-1", space=replace(each, business_date=OLD)).begin().complete("1").die()
    list(Purge(shared_ledger, OLD, "ada", "old", operation=space.operation).run())
    attempt(shared_ledger, "INV-2", space=space).begin().complete("1").die()
    names = [(each.key_namespace, each.operation) for each in (space, new)]

    def purge() -> None:
        with suppress(LedgerBusy):  # its horizon stands; the keys are the rename's at the moment
            list(Purge(other, OLD, "ada", "old", operation=new.operation).run())

    with (
        faster(shared_ledger, "UPDATE", "guard_horizon", purge),
        pytest.raises(LedgerBusy, match="nothing was written"),
    ):
        rename(shared_ledger, *names, actor="ada", reason="clearer")
    assert len(rows(shared_ledger, "execution", operation=space.operation)) == 1
    rename(shared_ledger, *names, actor="ada", reason="clearer")
    assert rows(shared_ledger, "execution", operation=space.operation) == []


@pytest.mark.parametrize("how", ["renewed", "resumed"])
def test_a_lease_that_was_gone(shared_ledger: Ledger, other: Ledger, space: KeySpace, how: str) -> None:
    run = opened(shared_ledger, space)
    shared_ledger.runs.close(run, "waiting", {})
    assert rows(shared_ledger, "lease", task_run_id=run) == []

    def renewed(ledger: Ledger) -> None:
        assert ledger.runs.renew(run, 60, create=True)

    def resumed(ledger: Ledger) -> None:
        who = TaskIdentity(space.key_namespace, "post", "scheduled__2025-03-31", run_type="scheduled")
        assert ledger.runs.open(TaskTry(who, space, key_shape="test"), 60, resumed=run) == run

    with faster(shared_ledger, "INSERT INTO", "guard_lease", lambda: renewed(other)) as came:
        (renewed if how == "renewed" else resumed)(shared_ledger)
    assert came
    assert len(rows(shared_ledger, "lease", task_run_id=run)) == 1


def test_two_alerts_of_a_problem(shared_ledger: Ledger, other: Ledger, space: KeySpace) -> None:
    problem = Problem(
        deployment="production", dag_id=f"dag_{space.operation}", task_id="post", kind=AlertKind.FAILED, what="run try 1"
    )  # fmt: skip
    claims = []

    def claim(ledger: Ledger) -> None:
        claims.append(Alerts(ledger.database).claim(problem, "mail", "subject"))

    with faster(shared_ledger, "INSERT INTO", "guard_alert", lambda: claim(other)) as came:
        claim(shared_ledger)
    assert came
    assert [each is None for each in claims] == [False, True]


def test_two_beginnings_of_a_check(shared_ledger: Ledger, other: Ledger, space: KeySpace) -> None:
    who = TaskIdentity("statements", "reconcile", "one", run_type="scheduled", run_after_at=datetime.now(UTC))
    check = Check(f"one {space.operation}", who, space, space.business_date)

    def begin(ledger: Ledger) -> None:
        Reconciliations(ledger.database).begin([check])

    with faster(shared_ledger, "INSERT INTO", "guard_reconciliation", lambda: begin(other)) as came:
        begin(shared_ledger)
    assert came
    assert len(rows(shared_ledger, "reconciliation", operation=space.operation)) == 1
