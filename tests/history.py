"""A long history in a ledger on PostgreSQL, written by the server itself: a million keys in a minute.

Ninety dates, six DAGs that do the same number of documents each. Most is done. The newest dates have some of everything:
doubts, rejections, failures, a try at work, tries that died, open and explained breaks, duplicates that were blocked.
"""

from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    from airflow_guard.store.ledger import Ledger

DAGS = ("card_settlement", "clearing", "fees", "payments", "payroll", "statements")
LAST = date(2026, 6, 30)
DATES = 90
_AT_ONCE = 5_000
_PREFIX = "length(dag) || ':' || dag || '4:post10:' || day || '0:'"
_CELLS = """
CREATE TEMPORARY TABLE cell AS
SELECT row_number() OVER (ORDER BY day, dag) AS id, day, dag, :last - day AS back
FROM (SELECT (CAST(:last AS date) - n) AS day FROM generate_series(0, :dates - 1) AS n) AS days,
     unnest(string_to_array(:dags, ',')) AS dag
"""
_TRIES = """
INSERT INTO guard_task_run (id, dag_id, task_id, run_id, map_index, try_number, run_type, run_after_at, deployment,
  key_namespace, operation, business_date, date_source, date_detail, cycle, key_shape, mode, host, pid, started_at,
  ended_at, outcome, documents, first_claims, executed, replayed, blocked, in_doubt)
SELECT id * 10 + try, dag, 'post', CASE try WHEN 2 THEN 'manual__' WHEN 3 THEN 'backfill__' ELSE 'scheduled__' END || day,
  -1, CASE try WHEN 1 THEN 2 ELSE 1 END, CASE try WHEN 2 THEN 'manual' WHEN 3 THEN 'backfill' ELSE 'scheduled' END,
  day + interval '1 day', 'default', dag, 'post', day, 'explicit', '', '', 'test', 'enforce', 'worker-1', 1,
  day + interval '1 day' + try * interval '1 hour',
  CASE WHEN (try = 0 AND id % 20 = 0) OR (back = 0 AND try = 1) THEN NULL
       ELSE day + interval '1 day' + try * interval '1 hour' + interval '5 minutes' END,
  CASE WHEN (try = 0 AND id % 20 = 0) OR (back = 0 AND try = 1) THEN NULL
       WHEN try = 0 THEN 'failed' WHEN try = 3 THEN 'failed' ELSE 'success' END,
  :documents, CASE try WHEN 1 THEN :documents ELSE 0 END, CASE try WHEN 1 THEN :documents ELSE 0 END,
  CASE try WHEN 2 THEN :documents ELSE 0 END,
  CASE try WHEN 3 THEN :documents ELSE 0 END, 0
FROM cell, generate_series(0, 3) AS try
WHERE try = 1 OR (try = 0 AND id % 4 = 0) OR (try = 2 AND id % 3 = 0) OR (try = 3 AND id % 10 = 0)
"""
_LEASES = """
INSERT INTO guard_lease (task_run_id, expires_at, renewed_at)
SELECT id, CASE WHEN business_date = :last AND try_number = 2 THEN now() + interval '1 day' ELSE started_at END,
  started_at
FROM guard_task_run WHERE ended_at IS NULL
"""
_KEYS = f"""
INSERT INTO guard_execution (key_date, key_hash, normaliser, key_namespace, operation, business_date, cycle, document,
  deployment, state, phase, follow_up, attempt, generation, owner_token, idempotency_key, task_run_id,
  first_task_run_id, fingerprint, result, error, claimed_at, begun_at, first_begun_at, finished_at)
SELECT day, key_hash, 1, dag, 'post', day, '', document, 'default', state,
  CASE state WHEN 'completed' THEN 'done' WHEN 'in_doubt' THEN 'begun' WHEN 'in_progress' THEN 'begun' ELSE 'none' END,
  CASE WHEN state = 'completed' AND n % 1009 = 7 AND back < 10 THEN 'failed' ELSE 'none' END,
  1, 1, md5('owner' || id), md5(key_hash), id * 10 + 1, id * 10 + 1, md5(key_hash) || ' amount=00000000',
  CASE state WHEN 'completed' THEN '{{"receipt": "' || document || '"}}' END,
  CASE WHEN state IN ('in_doubt', 'rejected', 'failed') THEN 'timeout: the bank did not answer' END,
  day + interval '25 hours', day + interval '25 hours', day + interval '25 hours',
  CASE WHEN state NOT IN ('in_progress', 'in_doubt') THEN day + interval '26 hours' END
FROM (
  SELECT *, left(encode(sha256(convert_to({_PREFIX} || length(document) || ':' || document, 'UTF8')), 'hex'), 32) AS key_hash,
    CASE WHEN back = 0 AND n <= 20 THEN 'in_progress'
         WHEN back < 20 AND n % 997 = 3 THEN 'in_doubt'
         WHEN back < 40 AND n % 997 = 4 THEN 'rejected'
         WHEN back < 20 AND n % 997 = 5 THEN 'failed'
         ELSE 'completed' END AS state
  FROM (SELECT *, dag || '-' || id || '-' || n AS document FROM cell, generate_series(1, :documents) AS n) AS named
) AS each_key ORDER BY id, n
"""
_EVENTS = """
INSERT INTO guard_event (at, kind, key_date, key_hash, key_text, attempt, owner_token, task_run_id, from_state, to_state,
  actor, reason)
SELECT claimed_at + step * interval '1 hour', CASE step WHEN 1 THEN 'doubt' ELSE 'resolve_happened' END, key_date,
  key_hash, document, 1, owner_token, task_run_id, CASE step WHEN 1 THEN 'in_progress' ELSE 'in_doubt' END,
  CASE step WHEN 1 THEN 'in_doubt' ELSE 'completed' END, 'ana', 'the statement of the bank shows it'
FROM guard_execution, generate_series(1, 2) AS step WHERE document LIKE '%7' AND state = 'completed'
"""
_CHECKS = """
INSERT INTO guard_reconciliation (id, check_hash, ti_id, dag_id, task_id, run_id, map_index, try_number, run_type,
  deployment, key_namespace, operation, business_date, cycle, run_date, date_source, date_detail, with_keys,
  source_count, target_count, totals, source_read_at, target_read_at, break_count, break_cap, capped, poke_count,
  same_pokes, settled, outcome, reason, started_at, ended_at)
SELECT id * 10 + again, md5('check' || id || again), 'ti-' || id || '-' || again, dag,
  'reconcile',
  'scheduled__' || (day + again), -1, 1, 'scheduled', 'default', dag, 'reconcile', day, '', day + again, 'explicit', '',
  1, :documents, :documents,
  '[{"group": {"currency": "EUR"}, "source": {"records": 900, "amounts": {"amount": "1000.00"}, "missing": {"amount": 0}},
     "target":
     {"records": 900, "amounts": {"amount": "' || (1000 + id % 7) || '.00"}, "missing": {"amount": 0}}, "reasons": []}]',
  day + interval '30 hours', day + interval '30 hours', :breaks, 1000, 0, 1, 1, 1,
  CASE WHEN back < 15 THEN 'broken' ELSE 'passed' END,
  CASE WHEN id % 50 = 0 AND again = 1 THEN 'Changed since it passed at noon: source +1 row.' ELSE 'why' END,
  day + interval '30 hours', day + interval '31 hours'
FROM cell, generate_series(0, 1) AS again
"""
_BREAKS = """
INSERT INTO guard_break (break_hash, deployment, key_namespace, operation, business_date, cycle, break_type,
  group_values, document, field, source_value, target_value, variance, source_records, target_records, state,
  opened_by_id, seen_by_id, closed_by_id, first_seen_at, last_seen_at, closed_at, actor, reason)
SELECT md5('break' || id || '-' || n), 'default', dag, 'reconcile', day, '',
  CASE n % 3 WHEN 0 THEN 'missing_in_target' ELSE 'amount_mismatch' END, '{"currency": "EUR"}', dag || '-' || id || '-' || n,
  'amount', '100.00', '100.01', '0.01', 1, 1, state, id * 10, id * 10 + 1,
  CASE state WHEN 'resolved' THEN id * 10 + 1 END, day + interval '31 hours', day + interval '55 hours',
  CASE state WHEN 'resolved' THEN day + interval '55 hours' END, NULL, NULL
FROM (SELECT *, CASE WHEN back >= 15 OR n > 20 THEN 'resolved' WHEN n % 4 = 0 THEN 'explained' ELSE 'open' END AS state
      FROM cell, generate_series(1, :breaks) AS n) AS each_break ORDER BY id, n
"""


def fill(ledger: Ledger, keys: int, *, dates: int = DATES, breaks: int = 100) -> None:
    """Write so many keys, with the tries, leases, events, checks and breaks that belong to them.

    :param keys: about so many: the same number for each DAG and date.
    :param breaks: of each DAG and date.
    """
    given: dict[str, Any] = {
        "last": LAST, "dates": dates, "dags": ",".join(DAGS), "documents": keys // (dates * len(DAGS)), "breaks": breaks,
    }  # fmt: skip
    with ledger.database.engine.begin() as connection:
        for statement in (_CELLS, _TRIES, _LEASES, _KEYS, _EVENTS, _CHECKS, _BREAKS):
            named = sa.text(statement)
            connection.execute(named, {name: given[name] for name in named._bindparams})
        connection.execute(sa.text("DROP TABLE cell"))
        for table in ("task_run", "reconciliation"):
            # The ids were given: what is written next must not meet them.
            name = f"guard_{table}"
            connection.execute(
                sa.text(
                    f"SELECT setval(pg_get_serial_sequence('{name}', 'id'), (SELECT max(id) FROM {name}))"
                )
            )
    with ledger.database.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(sa.text("VACUUM ANALYZE"))


def copy(source: Ledger, target: Ledger) -> None:
    """Write what one ledger has into another, which may be of another kind, and is empty."""
    with source.database.engine.connect() as reading, target.database.engine.begin() as writing:
        for table in source.database.tables.metadata.sorted_tables:
            columns = [column for column in table.c if column.computed is None]
            rows = reading.execution_options(yield_per=_AT_ONCE).execute(sa.select(*columns)).mappings()
            for part in rows.partitions():
                writing.execute(sa.insert(_same(target, table.name)), [dict(row) for row in part])


def _same(ledger: Ledger, name: str) -> sa.Table:
    return ledger.database.tables.metadata.tables[name]


def document(dag: str, business_date: date, number: int, *, dates: int = DATES) -> str:
    """Return a document of the history."""
    day = dates - 1 - (LAST - business_date).days
    return f"{dag}-{day * len(DAGS) + DAGS.index(dag) + 1}-{number}"


def newest(days: int) -> tuple[date, date]:
    """Return the range of the newest dates."""
    return LAST - timedelta(days=days - 1), LAST
