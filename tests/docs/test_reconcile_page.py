"""The page about two databases: what it shows is what the sensor writes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tests.airflow_runs import start_run
from tests.databases import databases
from tests.docs import assumed
from tests.docs.pages import page
from tests.docs.test_snippets import execute
from tests.docs.test_tutorial import occurs

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.databases import DatabaseServer

PAGE = "docs/how-to/reconcile-two-databases.md"
DAY = datetime(2026, 1, 30, tzinfo=UTC)

POSTINGS = """
CREATE SCHEMA gl;
CREATE TABLE gl.posting (document_no text PRIMARY KEY, business_date date, currency text, amount numeric(12, 2));
INSERT INTO gl.posting SELECT 'P-20260130-' || lpad(n::text, 4, '0'), '2026-01-30', CASE WHEN n > 1000 THEN 'USD' ELSE 'EUR' END,
  CASE n WHEN 417 THEN 10.00 WHEN 720 THEN 1.00 ELSE n / 10.0 END FROM generate_series(1, 1204) n;
"""
FACTS = """
CREATE TABLE dim_currency (currency_id int PRIMARY KEY, iso_code text);
INSERT INTO dim_currency VALUES (1, 'EUR'), (2, 'USD');
CREATE TABLE fact_posting (doc_ref text PRIMARY KEY, currency_id int, amt numeric(12, 2), booked_on date);
INSERT INTO fact_posting SELECT 'P-20260130-' || lpad(n::text, 4, '0'), CASE WHEN n > 1000 THEN 2 ELSE 1 END,
  CASE n WHEN 720 THEN 1.01 ELSE n / 10.0 END, '2026-01-30' FROM generate_series(1, 1204) n WHERE n <> 417;
"""


@databases("postgres_embedded")
def test_the_page_shows_what_the_sensor_writes(
    database_server: DatabaseServer, airflow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides = {"CORE_BANKING": POSTINGS, "WAREHOUSE": FACTS}
    made = {name: database_server.fresh_database() for name in sides}
    for name, database in made.items():
        with database.engine().begin() as connection:
            connection.execute(sa.text(sides[name]))
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", database.airflow_connection())
    migrated(made["CORE_BANKING"].url)
    namespace, dags = assumed.names(tmp_path), []
    shown = page(PAGE)
    for fence in [each for each in shown.fences if each.language == "python"][:2]:
        dags += execute(fence, namespace)
    (dag,) = dags
    dag.task_dict["reconcile"].poke_interval = 0.01
    run = start_run(dag, logical_at=DAY).go()
    written = str(run.last("reconcile").error)
    (sample,) = [each for each in shown.fences if each.language == "text"]
    for line in sample.text.splitlines():
        assert occurs(line, written), f"{line!r} is not in:\n{written}"
    for database in made.values():
        database_server.drop(database)


def migrated(url: str) -> None:
    """Make the ledger's tables."""
    from airflow_guard.store.database import LedgerDatabase
    from airflow_guard.store.migrate import migrate

    ledger = LedgerDatabase(url)
    migrate(ledger)
    ledger.dispose()
