"""The ledger: executions, leases, task runs, events, aliases.

Revision: 0001
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql, sqlite

from airflow_guard.core.errors import ConfigurationError
from airflow_guard.store.migrations.append_only import create_triggers, existing_triggers

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_INSTANT = (
    sa.DateTime()
    .with_variant(postgresql.TIMESTAMP(timezone=True, precision=6), "postgresql")
    .with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
)
_HASH = (
    sa.CHAR(32)
    .with_variant(mysql.CHAR(32, charset="ascii", collation="ascii_bin"), "mysql", "mariadb")
    .with_variant(sa.String(32, collation="C"), "postgresql")
)
_BIG_ID = sa.BigInteger().with_variant(sqlite.INTEGER(), "sqlite")
_FILLFACTOR = 35
_LONG_TEXT = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
# The table's own character set, collation and row format: the defaults of database and server do not matter.
_OPTIONS: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (
        ("engine", "InnoDB"),
        ("charset", "utf8mb4"),
        ("collate", "utf8mb4_bin"),
        ("row_format", "DYNAMIC"),
    )
}


def upgrade(prefix: str, schema: str | None) -> None:
    """Create all tables, and the triggers that keep the event table append-only."""
    metadata = sa.MetaData(schema=schema)
    for define in (_task_run, _lease, _execution, _event, _alias):
        _create(define(metadata, prefix))
    context = op.get_context()
    if context.dialect.name == "postgresql":
        _leave_room(metadata.tables[f"{schema}.{prefix}execution" if schema else f"{prefix}execution"])
    existing: set[str] = set()
    if not context.as_sql and _commits_ddl():
        existing = existing_triggers(op.get_bind(), prefix, schema)
    create_triggers(op.execute, context.dialect, prefix, schema, existing)


def downgrade(prefix: str, schema: str | None) -> None:
    """Refuse: the ledger is the memory of what was done, and no migration throws that away."""
    raise ConfigurationError(f"The ledger {schema or ''}.{prefix}* has no version before {revision}.")


def _commits_ddl() -> bool:
    return op.get_context().dialect.name in {"mysql", "mariadb"}


def _create(table: sa.Table) -> None:
    """Create a table and its indexes.

    MySQL and MariaDB commit each statement, so a migration that was interrupted goes on where it stopped.
    """
    offline = op.get_context().as_sql
    found, found_indexes = (False, set[str | None]()) if offline else _existing(table)
    if not found:
        op.execute(sa.schema.CreateTable(table))
    for index in sorted(table.indexes, key=lambda index: str(index.name)):
        if index.name not in found_indexes:
            op.execute(sa.schema.CreateIndex(index))


def _leave_room(table: sa.Table) -> None:
    """Let the versions of a row stay on its page (PostgreSQL).

    A row is written three times within seconds: claimed, begun, completed. With room for that, no step writes an
    index entry (a HOT update), and the log gets only what changed.
    """
    name = op.get_context().dialect.identifier_preparer.format_table(table)
    op.execute(f"ALTER TABLE {name} SET (fillfactor = {_FILLFACTOR})")


def _existing(table: sa.Table) -> tuple[bool, set[str | None]]:
    inspector = sa.inspect(op.get_bind())
    if not inspector.has_table(table.name, schema=table.schema):
        return False, set()
    columns = {column["name"] for column in inspector.get_columns(table.name, schema=table.schema)}
    if not _commits_ddl() or columns != set(table.columns.keys()):
        raise ConfigurationError(
            f"The table {table.fullname} exists, but no migration of this ledger made it. Give the ledger a "
            "free prefix or schema: [airflow_guard] table_prefix, schema."
        )
    return True, {index["name"] for index in inspector.get_indexes(table.name, schema=table.schema)}


def _task_run(metadata: sa.MetaData, prefix: str) -> sa.Table:
    counts = ("documents", "executed", "replayed", "blocked", "rejected", "failed", "in_doubt", "waiting")
    return sa.Table(
        f"{prefix}task_run",
        metadata,
        sa.Column("id", _BIG_ID, primary_key=True, autoincrement=True),
        sa.Column("dag_id", sa.String(250), nullable=False),
        sa.Column("task_id", sa.String(250), nullable=False),
        sa.Column("run_id", sa.String(250), nullable=False),
        sa.Column("map_index", sa.Integer, nullable=False),
        sa.Column("try_number", sa.Integer, nullable=False),
        sa.Column("run_type", sa.String(50), nullable=False),
        sa.Column("run_after_at", _INSTANT),
        sa.Column("deployment", sa.String(250), nullable=False),
        sa.Column("key_namespace", sa.String(250), nullable=False),
        sa.Column("operation", sa.String(250), nullable=False),
        sa.Column("business_date", sa.Date, nullable=False),
        sa.Column("date_source", sa.String(20), nullable=False),
        sa.Column("date_detail", sa.String(250), nullable=False),
        sa.Column("cycle", sa.String(100), nullable=False),
        sa.Column("key_shape", sa.String(120), nullable=False),
        sa.Column("mode", sa.String(10), nullable=False),
        sa.Column("host", sa.String(250), nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("started_at", _INSTANT, nullable=False),
        sa.Column("ended_at", _INSTANT),
        sa.Column("outcome", sa.String(20)),
        sa.Column("error", _LONG_TEXT),
        *(sa.Column(name, sa.Integer, nullable=False, server_default="0") for name in counts),
        sa.Index(f"{prefix}task_run_run", "run_id", "dag_id"),
        sa.Index(f"{prefix}task_run_date", "business_date", "dag_id"),
        sa.Index(f"{prefix}task_run_operation", "key_namespace", "operation"),
        **_OPTIONS,
    )


def _lease(metadata: sa.MetaData, prefix: str) -> sa.Table:
    return sa.Table(
        f"{prefix}lease",
        metadata,
        sa.Column("task_run_id", _BIG_ID, primary_key=True, autoincrement=False),
        sa.Column("expires_at", _INSTANT, nullable=False),
        sa.Column("renewed_at", _INSTANT, nullable=False),
        **_OPTIONS,
    )


_ATTENTION = (
    "CASE WHEN state IN ('in_doubt', 'rejected', 'failed') THEN state "
    "WHEN follow_up IN ('pending', 'failed') THEN 'follow_up' END"
)


def _execution(metadata: sa.MetaData, prefix: str) -> sa.Table:
    return sa.Table(
        f"{prefix}execution",
        metadata,
        sa.Column("key_date", sa.Date, nullable=False),
        sa.Column("key_hash", _HASH, nullable=False),
        sa.Column("normaliser", sa.SmallInteger, nullable=False),
        sa.Column("key_namespace", sa.String(250), nullable=False),
        sa.Column("operation", sa.String(250), nullable=False),
        sa.Column("business_date", sa.Date, nullable=False),
        sa.Column("cycle", sa.String(100), nullable=False),
        sa.Column("document", sa.String(255)),
        sa.Column("deployment", sa.String(250), nullable=False),
        sa.Column("state", sa.String(12), nullable=False),
        sa.Column("phase", sa.String(16), nullable=False),
        sa.Column("follow_up", sa.String(8), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("owner_token", _HASH, nullable=False),
        sa.Column("idempotency_key", _HASH, nullable=False),
        sa.Column("batch_id", _HASH),
        sa.Column("task_run_id", _BIG_ID),
        sa.Column("first_task_run_id", _BIG_ID),
        sa.Column("fingerprint", _LONG_TEXT),
        sa.Column("result", _LONG_TEXT),
        sa.Column("error", _LONG_TEXT),
        sa.Column("claimed_at", _INSTANT, nullable=False),
        sa.Column("begun_at", _INSTANT),
        sa.Column("first_begun_at", _INSTANT),
        sa.Column("last_sign_at", _INSTANT),
        sa.Column("finished_at", _INSTANT),
        sa.Column("attention", sa.String(12), sa.Computed(_ATTENTION, persisted=True)),
        *_execution_constraints(prefix),
        *_execution_indexes(prefix),
        **_OPTIONS,
    )


_STANDINGS = [
    "in_progress begun none",
    "in_progress in_transaction none",
    "in_progress none none",
    "completed done none",
    "completed done pending",
    "completed done failed",
    "completed done settled",
    "completed none none",
    "completed none pending",
    "completed none failed",
    "completed none settled",
    "failed none none",
    "rejected none none",
    "in_doubt begun none",
    "in_doubt in_transaction none",
]


def _execution_constraints(prefix: str) -> list[sa.Constraint]:
    state, phase, follow_up = (sa.column(name, sa.String) for name in ("state", "phase", "follow_up"))
    return [
        sa.PrimaryKeyConstraint("key_date", "key_hash", name=f"{prefix}execution_pk"),
        sa.CheckConstraint(
            (state + " " + phase + " " + follow_up).in_(_STANDINGS), name=f"{prefix}execution_standing"
        ),
        sa.CheckConstraint(
            "(state IN ('in_progress', 'in_doubt')) = (finished_at IS NULL)",
            name=f"{prefix}execution_finished",
        ),
        sa.CheckConstraint("attempt >= 0 AND generation >= 1", name=f"{prefix}execution_attempt"),
    ]


def _execution_indexes(prefix: str) -> list[sa.Index]:
    wanted = sa.text("attention IS NOT NULL")
    batched = sa.text("batch_id IS NOT NULL")
    return [
        sa.Index(f"{prefix}execution_date", "business_date", "key_namespace", "operation"),
        sa.Index(
            f"{prefix}execution_open",
            "attention",
            "business_date",
            postgresql_where=wanted,
            sqlite_where=wanted,
        ),
        sa.Index(f"{prefix}execution_batch", "batch_id", postgresql_where=batched, sqlite_where=batched),
    ]


def _event(metadata: sa.MetaData, prefix: str) -> sa.Table:
    return sa.Table(
        f"{prefix}event",
        metadata,
        sa.Column("id", _BIG_ID, primary_key=True, autoincrement=True),
        sa.Column("at", _INSTANT, nullable=False),
        sa.Column("kind", sa.String(30), nullable=False),
        sa.Column("key_date", sa.Date),
        sa.Column("key_hash", _HASH),
        sa.Column("key_text", _LONG_TEXT, nullable=False),
        sa.Column("attempt", sa.Integer),
        sa.Column("owner_token", _HASH),
        sa.Column("task_run_id", _BIG_ID),
        sa.Column("from_state", sa.String(12)),
        sa.Column("to_state", sa.String(12)),
        sa.Column("actor", sa.String(250), nullable=False),
        sa.Column("reason", _LONG_TEXT, nullable=False),
        sa.Index(f"{prefix}event_key", "key_date", "key_hash"),
        sa.Index(f"{prefix}event_at", "at"),
        **_OPTIONS,
    )


def _alias(metadata: sa.MetaData, prefix: str) -> sa.Table:
    return sa.Table(
        f"{prefix}alias",
        metadata,
        sa.Column("id", _BIG_ID, primary_key=True, autoincrement=True),
        sa.Column("old_hash", _HASH, nullable=False),
        sa.Column("old_namespace", sa.String(250), nullable=False),
        sa.Column("old_operation", sa.String(250), nullable=False),
        sa.Column("new_namespace", sa.String(250), nullable=False),
        sa.Column("new_operation", sa.String(250), nullable=False),
        sa.Column("created_at", _INSTANT, nullable=False),
        sa.Column("actor", sa.String(250), nullable=False),
        sa.Column("reason", _LONG_TEXT, nullable=False),
        sa.UniqueConstraint("old_hash", name=f"{prefix}alias_old"),
        **_OPTIONS,
    )
