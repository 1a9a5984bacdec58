"""``diagnose``: why something happened twice: the scheduling log first, the business rows second, and these win."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_guard.acts import keys
from airflow_guard.acts.arguments import UsageError
from airflow_guard.commands import output
from airflow_guard.commands.ledgers import open_ledger, source_engine
from airflow_guard.commands.log_sources import scheduling_log
from airflow_guard.core.diagnosis import Evidence, Key, conclusion, diagnose
from airflow_guard.reading import listing
from airflow_guard.reading.listing import Selection
from airflow_guard.reading.spaces import horizons
from airflow_guard.store.business_rows import rows_by_document
from airflow_guard.store.events import namesakes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from datetime import date

    from airflow_guard.acts.act import Opened
    from airflow_guard.core.diagnosis import Finding

_KEYS = 100_000


def run(given: argparse.Namespace) -> None:
    """Read, name the causes, and say whether harm was done."""
    if bool(given.table) != bool(given.table_key):
        raise UsageError("--table and --table-key belong together")
    day = keys.date_of(given.date)
    with open_ledger(given) as opened:
        evidence, read_from = _evidence(opened, given, day)
    findings = diagnose(evidence)
    _print(findings, conclusion(findings, evidence), read_from, given.output)


def _evidence(opened: Opened, given: argparse.Namespace, day: date) -> tuple[Evidence, str]:
    """Return what is known of a date, and where the scheduling log was read."""
    ledger = opened.ledger
    found = listing.keys(ledger, Selection(dag=given.dag, business_date=day, limit=_KEYS))
    tries = ledger.runs.of_date(given.dag, day)
    tables = ledger.database.tables
    purged = ledger.database.read(lambda c: horizons(c, tables, given.dag, day))
    elsewhere = ledger.database.read(lambda c: namesakes(c, tables, given.dag, day))
    with scheduling_log(given) as source:
        log = source.log
        runs = log.runs(given.dag, day, {each.run_id for each in tries}, given.timezone)
        timeouts = log.execution_timeouts(given.dag)
    rows = None
    if given.table:
        business = source_engine(opened.ledger, given.conn_id, given.source_url)
        try:
            rows = rows_by_document(business, given.table, given.table_key, given.date_column, day)
        finally:
            if business is not ledger.database.business_engine:
                business.dispose()
    evidence = Evidence(
        runs,
        [
            Key(
                view.operation, view.row.document, view.situation.value, view.row.attempt, view.row.generation
            )
            for view in found.keys
        ],
        len(tries),
        [each.describe() for each in purged],
        elsewhere,
        sum(each.replayed for each in tries),
        sum(each.blocked + each.waiting for each in tries),
        rows,
        timeouts,
        timedelta(seconds=source.heartbeat_s),
    )
    return evidence, source.where


def _print(findings: Sequence[Finding], said: str, read_from: str, form: str) -> None:
    rows: list[dict[str, Any]] = [
        {"source": each.source, "cause": each.cause.value, "evidence": each.evidence, "remedy": each.remedy}
        for each in findings
    ]
    if form in ("json", "yaml"):
        output.record({"findings": rows, "conclusion": said, "scheduling_log": read_from}, form)
        return
    if form == "plain":
        output.records(rows, form)
        return
    for each in findings:
        output.say(f"{each.source}: {each.cause}", "bold")
        output.block([("evidence", each.evidence), ("remedy", each.remedy)])
    output.say()
    output.say(said, "bold")
