"""No statement on keys reads the ledger: not on one that was never analysed, nor when it was empty, nor when it is large.

A connection keeps the plan of a statement for as long as it lives, so the plan that matters is the one that is made while
the ledger is small: the generic one, of a prepared statement, as well as that for known values.
"""

from __future__ import annotations

import os
import re
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard.store import dialects
from airflow_guard.store.by_keys import ByKeys
from airflow_guard.store.driver import OnDriver
from airflow_guard.store.statements import statements_of
from tests.contract.attempts import new_ledger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_guard.store.ledger import Ledger
    from tests.databases import DatabaseServer

KEYS = int(os.environ.get("GUARD_TEST_PLAN_KEYS", "100000"))
"""In the large one. GUARD_TEST_PLAN_KEYS=1000000 takes a minute or two for each database."""
CHUNK = 500
"""The first claim of a task with many documents."""
DAY = date(2026, 1, 30)
STAGES = ("never analysed", "analysed when empty", "analysed when large")


def hash_of(number: int) -> str:
    return f"{number:032x}"


def values(dialect: str) -> dict[str, Any]:
    """What the statements' parameters may hold."""
    few = [hash_of(number) for number in (1, 2)]
    return {
        "d": DAY, "h": few[0], "hashes": dialects.list_value(dialect, few), "token": hash_of(7), "run": 1, "why": "why",
        "outcome": "{}", "outcomes": dialects.list_value(dialect, ["{}", None]), "pushed": None, "follow": "none",
        "print_": "p", "batch": None, "position": 0, "receiver_key": hash_of(8), "batch_ids": few,
    }  # fmt: skip


@pytest.fixture(scope="module")
def opened() -> Iterator[dict[str, Any]]:
    """The databases that this module has made."""
    made: dict[str, Any] = {}
    yield made
    for database, ledger in made.values():
        ledger.database.dispose()
        database.server.drop(database)


@pytest.fixture(params=STAGES)
def ledger(request: pytest.FixtureRequest, database_server: DatabaseServer, opened: dict[str, Any]) -> Ledger:
    stage, kind = request.param, database_server.kind
    name = f"{kind}, {stage}"
    if name not in opened:
        database = database_server.fresh_database()
        made = new_ledger(database.url)
        opened[name] = (database, made)
        prepare(made, stage)
    return opened[name][1]


def prepare(ledger: Ledger, stage: str) -> None:
    if ledger.database.dialect == dialects.POSTGRES:
        execute(ledger, "ALTER TABLE guard_execution SET (autovacuum_enabled = off)")
    if stage == "analysed when empty":
        analyse(ledger)
    fill(ledger, KEYS if stage == "analysed when large" else CHUNK)
    if stage == "analysed when large":
        analyse(ledger)


def execute(ledger: Ledger, statement: str) -> None:
    with ledger.database.engine.begin() as connection:
        connection.exec_driver_sql(statement)


def analyse(ledger: Ledger) -> None:
    words = {dialects.POSTGRES: "ANALYZE guard_execution", dialects.MYSQL: "ANALYZE TABLE guard_execution"}
    execute(ledger, words.get(ledger.database.dialect, "ANALYZE"))


_NUMBERS = {
    dialects.POSTGRES: "SELECT n, lpad(to_hex(n), 32, '0') AS h FROM generate_series(1, {keys}) AS n",
    dialects.MYSQL: "SELECT seq AS n, LPAD(LOWER(HEX(seq)), 32, '0') AS h FROM seq_1_to_{keys}",
    dialects.SQLITE: (
        "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {keys}) "
        "SELECT n, printf('%032x', n) AS h FROM s"
    ),
}


def fill(ledger: Ledger, keys: int) -> None:
    """Write keys that one try has claimed, all of one date: the first documents of a task."""
    names = (
        "key_date, key_hash, normaliser, key_namespace, operation, business_date, cycle, document, deployment, state, phase, "
        "follow_up, attempt, generation, owner_token, idempotency_key, task_run_id, first_task_run_id, claimed_at"
    )
    chosen = (
        f"'{DAY}', h, 1, 'statements', 'post', '{DAY}', '', h, 'default', 'in_progress', 'none', "
        f"'none', 1, 1, '{hash_of(7)}', h, 1, 1, CURRENT_TIMESTAMP"
    )
    numbers = _NUMBERS[ledger.database.dialect].format(keys=keys)
    if ledger.database.dialect == dialects.POSTGRES:
        chosen = chosen.replace(f"'{DAY}'", f"DATE '{DAY}'")
    execute(ledger, f"INSERT INTO guard_execution ({names}) SELECT {chosen} FROM ({numbers}) AS numbers")


def on_keys(ledger: Ledger) -> Iterator[tuple[str, Any]]:
    """All statements that name keys."""
    statements = statements_of(ledger.database.tables, ledger.database.dialect)
    for name, value in sorted(vars(statements).items()):
        if isinstance(value, ByKeys):
            yield f"{name}, one", value.one
            yield f"{name}, many", value.many
        elif isinstance(value, OnDriver):
            yield name, value.statement
        elif name in {"batch_members", "begin_member"}:
            yield name, value


def test_every_statement_on_keys_probes_the_primary_key(ledger: Ledger) -> None:
    dialect = ledger.database.dialect
    read = {dialects.POSTGRES: postgres_plans, dialects.MYSQL: mysql_plans, dialects.SQLITE: sqlite_plans}[
        dialect
    ]
    wrong, seen = [], 0
    for name, statement in on_keys(ledger):
        for kind, plan, probes in read(ledger, statement):
            seen += 1
            if not probes:
                wrong.append(f"{name} ({kind}):\n{plan}")
    assert not wrong, "\n\n".join(wrong)
    assert seen > 50


# -- how each database says it -------------------------------------------------------------------------------


_PROBE = re.compile(r"Index Cond: \(\(key_date = .*\) AND \(\(key_hash\)::text = ")
_BATCHES = re.compile(r"Index Cond: .*batch_id")


def sent(ledger: Ledger, statement: Any, words: str) -> tuple[str, Any, list[Any]]:
    """Return what goes to the driver, its parameters, and what the database answers with these words before it."""
    given = values(ledger.database.dialect)
    named = statement.compile(dialect=ledger.database.engine.dialect).params
    seen: list[tuple[str, Any]] = []

    def explain(
        conn: Any, cursor: Any, text: str, parameters: Any, context: Any, many: bool
    ) -> tuple[str, Any]:
        seen.append((text, parameters))
        return f"{words} {text}", parameters

    with ledger.database.engine.connect() as connection:
        sa.event.listen(connection, "before_cursor_execute", explain, retval=True)
        result = connection.execute(statement, {name: given[name] for name in named if name in given})
        rows = list(result.cursor.fetchall()) if result.cursor is not None else []
        connection.rollback()
    text, parameters = seen[0]
    return text, parameters, rows


def postgres_plans(ledger: Ledger, statement: Any) -> Iterator[tuple[str, str, bool]]:
    text, given, _ = sent(ledger, statement, "EXPLAIN")
    order: list[str] = []

    def numbered(match: re.Match[str]) -> str:
        if match[1] not in order:
            order.append(match[1])
        return f"${order.index(match[1]) + 1}"

    prepared = re.sub(r"%\((\w+)\)s", numbered, text).replace("%%", "%")
    literals = ", ".join(_literal(given[name]) for name in order)
    with ledger.database.engine.connect() as connection:
        connection.exec_driver_sql(f"PREPARE asked AS {prepared}", execution_options={"no_parameters": True})
        for mode in ("force_generic_plan", "force_custom_plan"):
            connection.exec_driver_sql(f"SET LOCAL plan_cache_mode = {mode}")
            asked = f"EXPLAIN EXECUTE asked({literals})"
            rows = connection.exec_driver_sql(asked, execution_options={"no_parameters": True}).scalars()
            plan = "\n".join(rows)
            probes = _PROBE.search(plan) or _BATCHES.search(plan)
            yield mode, plan, bool(probes) and "Seq Scan on guard_execution" not in plan
        connection.exec_driver_sql("DEALLOCATE asked")


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"


def mysql_plans(ledger: Ledger, statement: Any) -> Iterator[tuple[str, str, bool]]:
    rows = sent(ledger, statement, "EXPLAIN")[2]
    plan = "\n".join(str(row) for row in rows)
    ours = [row for row in rows if row[2] == "guard_execution"]
    yield "plan", plan, bool(ours) and all(row[3] in {"const", "eq_ref", "ref", "range"} for row in ours)


def sqlite_plans(ledger: Ledger, statement: Any) -> Iterator[tuple[str, str, bool]]:
    rows = sent(ledger, statement, "EXPLAIN QUERY PLAN")[2]
    plan = "\n".join(str(row[3]) for row in rows)
    probes = "(key_date=? AND key_hash=?)" in plan or "(batch_id=?" in plan
    yield "plan", plan, probes and "SCAN guard_execution" not in plan
