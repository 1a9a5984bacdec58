"""``diagnose``: why something happened twice: the scheduling log first, the business rows second, and these win."""

from __future__ import annotations

import os
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.cli import keys, output
from airflow_guard.cli.airflow_rest import RestLog, open_rest
from airflow_guard.cli.definitions import UsageError
from airflow_guard.cli.ledgers import database_at, is_url, open_ledger, source_engine
from airflow_guard.core.diagnosis import Evidence, Key, conclusion, diagnose
from airflow_guard.core.errors import ResolutionError
from airflow_guard.store import listing
from airflow_guard.store.business_rows import rows_by_document
from airflow_guard.store.listing import Selection
from airflow_guard.store.scheduling_log import SchedulingLog
from airflow_guard.store.tables import Tables

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence
    from datetime import date

    from airflow_guard.cli.ledgers import Opened
    from airflow_guard.core.diagnosis import Finding

_KEYS = 100_000
_HEARTBEAT_S = 300
FROM_ENVIRONMENT = "AIRFLOW_GUARD_API_TOKEN"
"""The environment variable with the token for ``--airflow-url``: on a command line everybody could read it."""


def run(given: argparse.Namespace) -> None:
    """Read, name the causes, and say whether harm was done."""
    if given.airflow_url and given.airflow_db:
        raise UsageError("give --airflow-url or --airflow-db")
    if bool(given.table) != bool(given.table_key):
        raise UsageError("--table and --table-key belong together")
    day = keys.date_of(given.date)
    with open_ledger(given) as opened:
        evidence = _evidence(opened, given, day)
    findings = diagnose(evidence)
    _print(findings, conclusion(findings, evidence), given.output)


def _evidence(opened: Opened, given: argparse.Namespace, day: date) -> Evidence:
    ledger = opened.ledger
    found = listing.keys(ledger, Selection(dag=given.dag, business_date=day, limit=_KEYS))
    tries = ledger.runs.of_date(given.dag, day)
    with _scheduling_log(given) as (log, heartbeat_s):
        runs = log.runs(given.dag, day, {each.run_id for each in tries}, given.timezone)
        timeouts = log.execution_timeouts(given.dag)
    rows = None
    if given.table:
        business = source_engine(given, opened)
        try:
            rows = rows_by_document(business, given.table, given.table_key, given.date_column, day)
        finally:
            if business is not ledger.database.business_engine:
                business.dispose()
    return Evidence(
        runs,
        [
            Key(
                view.operation, view.row.document, view.situation.value, view.row.attempt, view.row.generation
            )
            for view in found.keys
        ],
        sum(each.replayed for each in tries),
        sum(each.blocked + each.waiting for each in tries),
        rows,
        timeouts,
        timedelta(seconds=heartbeat_s),
    )


@contextmanager
def _scheduling_log(given: argparse.Namespace) -> Iterator[tuple[RestLog | SchedulingLog, int]]:
    """Give what reads runs and tries, and the heartbeat timeout."""
    if given.airflow_url:
        with open_rest(given.airflow_url, os.environ.get(FROM_ENVIRONMENT)) as client:
            yield RestLog(client), _HEARTBEAT_S
        return
    engine, heartbeat_s = _metadata(given)
    try:
        yield SchedulingLog(engine), heartbeat_s
    finally:
        engine.dispose()


def _metadata(given: argparse.Namespace) -> tuple[sa.Engine, int]:
    """Return an engine of Airflow's metadata database, and the heartbeat timeout."""
    if given.airflow_db:
        if not is_url(given.airflow_db):
            raise UsageError("--airflow-db is a URL, such as postgresql://user@host/airflow")
        return database_at(given.airflow_db, Tables(), create=False).business_engine, _HEARTBEAT_S
    try:
        from airflow.configuration import conf
    except ImportError:
        raise ResolutionError("Airflow is not installed here: give --airflow-url or --airflow-db.") from None
    url = conf.get("database", "sql_alchemy_conn")
    heartbeat = conf.getint("scheduler", "task_instance_heartbeat_timeout", fallback=_HEARTBEAT_S)
    return sa.create_engine(url), heartbeat


def _print(findings: Sequence[Finding], said: str, form: str) -> None:
    rows: list[dict[str, Any]] = [
        {"source": each.source, "cause": each.cause.value, "evidence": each.evidence, "remedy": each.remedy}
        for each in findings
    ]
    if form in ("json", "yaml"):
        output.record({"findings": rows, "conclusion": said}, form)
        return
    if form == "plain":
        output.records(rows, form)
        return
    for each in findings:
        output.say(f"{each.source}: {each.cause}", "bold")
        output.block([("evidence", each.evidence), ("remedy", each.remedy)])
    output.say()
    output.say(said, "bold")
