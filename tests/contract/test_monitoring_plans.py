"""No question that pages ask reads all keys, events or breaks: the plans of PostgreSQL and MariaDB say so."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Self

import pytest
import sqlalchemy as sa

from airflow_guard.reading.monitor import Monitor
from tests import history
from tests.contract.attempts import new_ledger
from tests.databases import databases
from tests.monitor_calls import READERS, calls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_guard.store.ledger import Ledger
    from tests.databases import DatabaseServer, DatabaseServers

LARGE = {"guard_execution", "guard_event", "guard_break"}
KEYS = 100_000
FEWER_KEYS = 27_000
"""On MariaDB, whose history is copied."""


@pytest.fixture(scope="module")
def filled() -> Iterator[dict[str, Any]]:
    """The ledgers with a history, by kind of database."""
    opened: dict[str, Any] = {}
    yield opened
    for database, ledger in opened.values():
        ledger.database.dispose()
        database.server.drop(database)


@pytest.fixture
def ledger(
    database_server: DatabaseServer, database_servers: DatabaseServers, filled: dict[str, Any]
) -> Ledger:
    if database_server.kind not in filled:
        database = database_server.fresh_database()
        made = new_ledger(database.url)
        filled[database_server.kind] = (database, made)
        if database_server.kind == "mariadb":
            _copy_history(database_servers.get("postgres_embedded"), made)
        else:
            history.fill(made, KEYS)
    return filled[database_server.kind][1]


def _copy_history(server: DatabaseServer, target: Ledger) -> None:
    database = server.fresh_database()
    source = new_ledger(database.url)
    history.fill(source, FEWER_KEYS, breaks=30)
    history.copy(source, target)
    source.database.dispose()
    server.drop(database)
    with target.database.engine.connect() as connection:
        for table in target.database.tables.metadata.sorted_tables:
            connection.exec_driver_sql(f"ANALYZE TABLE {table.name}")


class Recorded:
    """The statements that a ledger executes."""

    def __init__(self, ledger: Ledger) -> None:
        self._engine = ledger.database.engine
        self.statements: list[tuple[str, Any]] = []

    def __enter__(self) -> Self:
        sa.event.listen(self._engine, "before_cursor_execute", self._note)
        return self

    def __exit__(self, *error: object) -> None:
        sa.event.remove(self._engine, "before_cursor_execute", self._note)

    def _note(self, connection: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> None:
        # MariaDB is told before each statement how long it may take.
        bare = re.sub(r"^SET STATEMENT .*? FOR (?=SELECT|WITH)", "", statement, flags=re.DOTALL)
        if re.match(r"(SELECT|WITH)\b", bare) and "set_config" not in bare:
            self.statements.append((bare, parameters))


def read_whole(plan: dict[str, Any]) -> set[str]:
    """Return the tables that a plan reads from one end to the other."""
    own = {plan["Relation Name"]} if plan["Node Type"] == "Seq Scan" else set()
    return own.union(*(read_whole(part) for part in plan.get("Plans", ())))


@databases("postgres_server")
def test_no_question_reads_a_large_table_from_end_to_end(ledger: Ledger) -> None:
    whole: dict[str, set[str]] = {}
    for question, ask in calls(Monitor(ledger, limit_s=60)).items():
        for reader, readable in READERS.items():
            with Recorded(ledger) as recorded:
                ask(readable)
            assert recorded.statements
            with ledger.database.engine.connect() as connection:
                for statement, parameters in recorded.statements:
                    explained = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", parameters)
                    found = read_whole(explained.scalar_one()[0]["Plan"]) & LARGE
                    if found:
                        whole[f"{question}, {reader}: {statement[:200]}"] = found
    assert not whole


def looked_through(part: Any) -> set[str]:
    """Return the tables that a plan of MariaDB reads from one end to the other."""
    if isinstance(part, list):
        return set().union(*map(looked_through, part))
    if not isinstance(part, dict):
        return set()
    own = {str(part["table_name"])} if part.get("access_type") == "ALL" else set()
    return own.union(*map(looked_through, part.values()))


def explained(connection: sa.Connection, statement: str, parameters: Any = None) -> Any:
    """Return the plan that MariaDB has for a statement."""
    return json.loads(connection.exec_driver_sql(f"EXPLAIN FORMAT=JSON {statement}", parameters).scalar_one())


@databases("mariadb")
def test_no_question_goes_through_a_large_table_on_mariadb(ledger: Ledger) -> None:
    whole: dict[str, set[str]] = {}
    for question, ask in calls(Monitor(ledger, limit_s=60)).items():
        # Breaks of all states, of 31 of 90 dates: of so much MariaDB reads all rather than a third by its index.
        wanted = {"guard_break"} if question == "breaks, settled too" else set()
        for reader, readable in READERS.items():
            with Recorded(ledger) as recorded:
                ask(readable)
            assert recorded.statements
            with ledger.database.engine.connect() as connection:
                for statement, parameters in recorded.statements:
                    tables = looked_through(explained(connection, statement, parameters))
                    found = {table for table in tables if table.startswith(tuple(LARGE))} - wanted
                    if found:
                        whole[f"{question}, {reader}: {statement[:200]}"] = found
    assert not whole


@databases("mariadb")
def test_the_plans_of_mariadb_are_looked_at(ledger: Ledger) -> None:
    with ledger.database.engine.connect() as connection:
        plan = explained(connection, "SELECT * FROM guard_execution WHERE document = 'x'")
        assert looked_through(plan) == {"guard_execution"}


@databases("postgres_server")
def test_the_plans_are_looked_at(ledger: Ledger) -> None:
    with ledger.database.engine.connect() as connection:
        search = "EXPLAIN (FORMAT JSON) SELECT * FROM guard_execution WHERE document = 'x'"
        assert read_whole(connection.exec_driver_sql(search).scalar_one()[0]["Plan"]) == {"guard_execution"}


@databases("postgres_server")
def test_the_figures_of_the_history_are_what_was_written(ledger: Ledger) -> None:
    m = Monitor(ledger, limit_s=60)
    cells = m.calendar(*history.newest(90), None).cells
    assert len(cells) == 90 * 6
    each = KEYS // (90 * 6)
    assert {cell.documents for cell in cells.values()} == {each}
    with ledger.database.engine.connect() as connection:
        for name, where in {
            "in_doubt": "state = 'in_doubt'", "rejected": "state = 'rejected'", "failed": "state = 'failed'",
            "in_progress": "state = 'in_progress'",
        }.items():  # fmt: skip
            stored = connection.exec_driver_sql(
                f"SELECT count(*) FROM guard_execution WHERE {where}"
            ).scalar_one()
            assert stored
            assert sum(getattr(cell, name) for cell in cells.values()) == stored, name
    found = m.find(history.document(history.DAGS[2], history.LAST, 7), None).keys
    assert [(key.dag_id, key.business_date) for key in found] == [(history.DAGS[2], history.LAST)]
