"""Types of columns, and the columns of the tables that belong to no key: what tries list, checks, breaks, alerts."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from airflow_guard.core.checks import BreakState, CheckOutcome

Instant = (
    sa.DateTime()
    .with_variant(postgresql.TIMESTAMP(timezone=True, precision=6), "postgresql")
    .with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
)
"""UTC instants. PostgreSQL keeps the zone; MySQL, MariaDB and SQLite hold UTC without saying so."""

Hash = (
    sa.CHAR(32)
    .with_variant(mysql.CHAR(32, charset="ascii", collation="ascii_bin"), "mysql", "mariadb")
    .with_variant(sa.String(32, collation="C"), "postgresql")
)
"""32 lower-case hex characters, compared by bytes on every database. Not CHAR on PostgreSQL: drivers send text, and
comparing text with CHAR converts the column, so that its index is not used."""

BigId = sa.BigInteger().with_variant(sqlite.INTEGER(), "sqlite")
LongText = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")

COUNTS = (
    "documents",
    "executed",
    "replayed",
    "own_replays",
    "repeated",
    "blocked",
    "rejected",
    "failed",
    "in_doubt",
    "waiting",
    "released",
    "forgotten",
)
"""The counts of a try. ``first_claims`` is written by its claims, the others when it ends."""


def count_columns() -> list[sa.schema.SchemaItem]:
    """Return the columns of ``guard_task_run`` that say what was expected, listed and done."""
    return [
        *(
            sa.Column(name, sa.Integer, nullable=False, server_default="0")
            for name in (*COUNTS, "first_claims")
        ),
        sa.Column("expected_least", sa.Integer),
        sa.Column("expected_most", sa.Integer),
        sa.Column("expected_total", sa.String(100)),
        sa.Column("listed_total", sa.String(100)),
        sa.Column("map_length", sa.Integer),
    ]


def listed_columns(prefix: str) -> list[sa.schema.SchemaItem]:
    """Return columns, constraints and indexes of ``guard_listed``.

    :param prefix: of the names of indexes and constraints.
    """
    return [
        sa.Column("task_run_id", BigId, nullable=False),
        sa.Column("key_date", sa.Date, nullable=False),
        sa.Column("key_hash", Hash, nullable=False),
        sa.Column("document", sa.String(255)),
        sa.Column("why", sa.String(40)),
        # A try lists a document once here, however often it is mentioned.
        sa.PrimaryKeyConstraint("task_run_id", "key_hash", name=f"{prefix}listed_pk"),
        sa.Index(f"{prefix}listed_key", "key_date", "key_hash"),
    ]


def reconciliation_columns(prefix: str) -> list[sa.schema.SchemaItem]:
    """Return columns, constraints and indexes of ``guard_reconciliation``.

    :param prefix: of the names of indexes and constraints.
    """
    outcomes = ", ".join(f"'{outcome}'" for outcome in CheckOutcome)
    return [
        sa.Column("id", BigId, primary_key=True, autoincrement=True),
        sa.Column("check_hash", Hash, nullable=False),
        sa.Column("ti_id", sa.String(40), nullable=False),
        sa.Column("dag_id", sa.String(250), nullable=False),
        sa.Column("task_id", sa.String(250), nullable=False),
        sa.Column("run_id", sa.String(250), nullable=False),
        sa.Column("map_index", sa.Integer, nullable=False),
        sa.Column("try_number", sa.Integer, nullable=False),
        sa.Column("run_type", sa.String(50), nullable=False),
        sa.Column("run_after_at", Instant),
        sa.Column("deployment", sa.String(250), nullable=False),
        sa.Column("key_namespace", sa.String(250), nullable=False),
        sa.Column("operation", sa.String(250), nullable=False),
        sa.Column("business_date", sa.Date, nullable=False),
        sa.Column("cycle", sa.String(100), nullable=False),
        sa.Column("run_date", sa.Date, nullable=False),
        sa.Column("date_source", sa.String(20), nullable=False),
        sa.Column("date_detail", sa.String(250), nullable=False),
        sa.Column("with_keys", sa.SmallInteger),
        sa.Column("source_count", sa.BigInteger),
        sa.Column("target_count", sa.BigInteger),
        sa.Column("totals", LongText),
        sa.Column("source_read_at", Instant),
        sa.Column("target_read_at", Instant),
        sa.Column("break_count", sa.BigInteger),
        sa.Column("break_cap", sa.Integer),
        sa.Column("capped", sa.SmallInteger),
        sa.Column("poke_count", sa.Integer, nullable=False, server_default="0"),
        sa.Column("same_pokes", sa.Integer, nullable=False, server_default="0"),
        sa.Column("difference", Hash),
        sa.Column("settled", sa.SmallInteger, nullable=False, server_default="0"),
        sa.Column("error_count", sa.Integer, nullable=False, server_default="0"),
        sa.Column("last_error", LongText),
        sa.Column("outcome", sa.String(10)),
        sa.Column("reason", LongText),
        sa.Column("started_at", Instant, nullable=False),
        sa.Column("ended_at", Instant),
        # The digest of who checks which date, unique: a check that goes on after a reschedule finds its row.
        sa.UniqueConstraint("check_hash", name=f"{prefix}reconciliation_check"),
        sa.CheckConstraint(f"outcome IN ({outcomes})", name=f"{prefix}reconciliation_outcome"),
        sa.CheckConstraint("(outcome IS NULL) = (ended_at IS NULL)", name=f"{prefix}reconciliation_ended"),
        sa.Index(f"{prefix}reconciliation_date", "business_date", "key_namespace", "operation"),
        sa.Index(f"{prefix}reconciliation_run", "run_id", "dag_id"),
        sa.Index(f"{prefix}reconciliation_try", "ti_id"),
    ]


def break_columns(prefix: str) -> list[sa.schema.SchemaItem]:
    """Return columns, constraints and indexes of ``guard_break``.

    :param prefix: of the names of indexes and constraints.
    """
    states = ", ".join(f"'{state}'" for state in BreakState)
    unsettled = sa.text("state <> 'resolved'")
    return [
        sa.Column("id", BigId, primary_key=True, autoincrement=True),
        sa.Column("break_hash", Hash, nullable=False),
        sa.Column("deployment", sa.String(250), nullable=False),
        sa.Column("key_namespace", sa.String(250), nullable=False),
        sa.Column("operation", sa.String(250), nullable=False),
        sa.Column("business_date", sa.Date, nullable=False),
        sa.Column("cycle", sa.String(100), nullable=False),
        sa.Column("break_type", sa.String(30), nullable=False),
        sa.Column("group_values", LongText, nullable=False),
        sa.Column("document", LongText),
        sa.Column("field", sa.String(250)),
        sa.Column("source_value", LongText),
        sa.Column("target_value", LongText),
        sa.Column("variance", LongText),
        sa.Column("source_records", sa.BigInteger),
        sa.Column("target_records", sa.BigInteger),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("opened_by_id", BigId, nullable=False),
        sa.Column("seen_by_id", BigId, nullable=False),
        sa.Column("closed_by_id", BigId),
        sa.Column("first_seen_at", Instant, nullable=False),
        sa.Column("last_seen_at", Instant, nullable=False),
        sa.Column("closed_at", Instant),
        sa.Column("actor", sa.String(250)),
        sa.Column("reason", LongText),
        # The digest of what the break is, unique within its date: found again it is the same row.
        sa.UniqueConstraint("business_date", "break_hash", name=f"{prefix}break_what"),
        sa.CheckConstraint(f"state IN ({states})", name=f"{prefix}break_state"),
        sa.CheckConstraint("(state = 'resolved') = (closed_at IS NOT NULL)", name=f"{prefix}break_closed"),
        sa.Index(
            f"{prefix}break_open",
            "state",
            "business_date",
            postgresql_where=unsettled,
            sqlite_where=unsettled,
        ),
    ]


def alert_columns(prefix: str) -> list[sa.schema.SchemaItem]:
    """Return columns, constraints and indexes of ``guard_alert``.

    :param prefix: of the names of indexes and constraints.
    """
    return [
        sa.Column("id", BigId, primary_key=True, autoincrement=True),
        sa.Column("alert_hash", Hash, nullable=False),
        sa.Column("deployment", sa.String(250), nullable=False),
        sa.Column("dag_id", sa.String(250), nullable=False),
        sa.Column("task_id", sa.String(250), nullable=False),
        sa.Column("map_index", sa.Integer, nullable=False),
        sa.Column("run_id", sa.String(250), nullable=False),
        sa.Column("business_date", sa.Date),
        sa.Column("kind", sa.String(30), nullable=False),
        sa.Column("problem", LongText, nullable=False),
        sa.Column("team", sa.String(250), nullable=False),
        sa.Column("transport", sa.String(250), nullable=False),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("stage", sa.String(10), nullable=False),
        sa.Column("subject", LongText, nullable=False),
        sa.Column("opened_at", Instant, nullable=False),
        sa.Column("claim_token", Hash),
        sa.Column("claimed_until_at", Instant),
        sa.Column("sent_at", Instant),
        sa.Column("escalated_at", Instant),
        sa.Column("resolved_at", Instant),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("error", LongText),
        # The digest of problem and transport, unique: two processes that are told at the same moment send once.
        sa.UniqueConstraint("alert_hash", name=f"{prefix}alert_what"),
        sa.CheckConstraint("state IN ('open', 'resolved')", name=f"{prefix}alert_state"),
        sa.Index(f"{prefix}alert_open", "state", "kind"),
        sa.Index(f"{prefix}alert_task", "dag_id", "task_id"),
    ]
