"""Reconciliation: checks of two sides, and the breaks that they found.

Revision: 0002
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql, sqlite

from airflow_guard.core.errors import ConfigurationError

revision = "0002"
down_revision = "0001"
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
    """Create both tables."""
    metadata = sa.MetaData(schema=schema)
    for define in (_reconciliation, _break):
        _create(define(metadata, prefix))


def downgrade(prefix: str, schema: str | None) -> None:
    """Refuse: the ledger is the memory of what was done, and no migration throws that away."""
    raise ConfigurationError(f"The ledger {schema or ''}.{prefix}* cannot go back before {revision}.")


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


def _reconciliation(metadata: sa.MetaData, prefix: str) -> sa.Table:
    return sa.Table(
        f"{prefix}reconciliation",
        metadata,
        sa.Column("id", _BIG_ID, primary_key=True, autoincrement=True),
        sa.Column("check_hash", _HASH, nullable=False),
        sa.Column("ti_id", sa.String(40), nullable=False),
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
        sa.Column("cycle", sa.String(100), nullable=False),
        sa.Column("run_date", sa.Date, nullable=False),
        sa.Column("date_source", sa.String(20), nullable=False),
        sa.Column("date_detail", sa.String(250), nullable=False),
        sa.Column("with_keys", sa.SmallInteger),
        sa.Column("source_count", sa.BigInteger),
        sa.Column("target_count", sa.BigInteger),
        sa.Column("totals", _LONG_TEXT),
        sa.Column("source_read_at", _INSTANT),
        sa.Column("target_read_at", _INSTANT),
        sa.Column("break_count", sa.BigInteger),
        sa.Column("break_cap", sa.Integer),
        sa.Column("capped", sa.SmallInteger),
        sa.Column("poke_count", sa.Integer, nullable=False, server_default="0"),
        sa.Column("same_pokes", sa.Integer, nullable=False, server_default="0"),
        sa.Column("difference", _HASH),
        sa.Column("settled", sa.SmallInteger, nullable=False, server_default="0"),
        sa.Column("error_count", sa.Integer, nullable=False, server_default="0"),
        sa.Column("last_error", _LONG_TEXT),
        sa.Column("outcome", sa.String(10)),
        sa.Column("reason", _LONG_TEXT),
        sa.Column("started_at", _INSTANT, nullable=False),
        sa.Column("ended_at", _INSTANT),
        sa.UniqueConstraint("check_hash", name=f"{prefix}reconciliation_check"),
        sa.CheckConstraint(
            "outcome IN ('passed', 'broken', 'empty', 'failed')", name=f"{prefix}reconciliation_outcome"
        ),
        sa.CheckConstraint("(outcome IS NULL) = (ended_at IS NULL)", name=f"{prefix}reconciliation_ended"),
        sa.Index(f"{prefix}reconciliation_date", "business_date", "key_namespace", "operation"),
        sa.Index(f"{prefix}reconciliation_run", "run_id", "dag_id"),
        sa.Index(f"{prefix}reconciliation_try", "ti_id"),
        **_OPTIONS,
    )


def _break(metadata: sa.MetaData, prefix: str) -> sa.Table:
    unsettled = sa.text("state <> 'resolved'")
    return sa.Table(
        f"{prefix}break",
        metadata,
        sa.Column("id", _BIG_ID, primary_key=True, autoincrement=True),
        sa.Column("break_hash", _HASH, nullable=False),
        sa.Column("deployment", sa.String(250), nullable=False),
        sa.Column("key_namespace", sa.String(250), nullable=False),
        sa.Column("operation", sa.String(250), nullable=False),
        sa.Column("business_date", sa.Date, nullable=False),
        sa.Column("cycle", sa.String(100), nullable=False),
        sa.Column("break_type", sa.String(30), nullable=False),
        sa.Column("group_values", _LONG_TEXT, nullable=False),
        sa.Column("document", _LONG_TEXT),
        sa.Column("field", sa.String(250)),
        sa.Column("source_value", _LONG_TEXT),
        sa.Column("target_value", _LONG_TEXT),
        sa.Column("variance", _LONG_TEXT),
        sa.Column("source_records", sa.BigInteger),
        sa.Column("target_records", sa.BigInteger),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("opened_by_id", _BIG_ID, nullable=False),
        sa.Column("seen_by_id", _BIG_ID, nullable=False),
        sa.Column("closed_by_id", _BIG_ID),
        sa.Column("first_seen_at", _INSTANT, nullable=False),
        sa.Column("last_seen_at", _INSTANT, nullable=False),
        sa.Column("closed_at", _INSTANT),
        sa.Column("actor", sa.String(250)),
        sa.Column("reason", _LONG_TEXT),
        sa.UniqueConstraint("business_date", "break_hash", name=f"{prefix}break_what"),
        sa.CheckConstraint("state IN ('open', 'explained', 'resolved')", name=f"{prefix}break_state"),
        sa.CheckConstraint("(state = 'resolved') = (closed_at IS NOT NULL)", name=f"{prefix}break_closed"),
        sa.Index(
            f"{prefix}break_open",
            "state",
            "business_date",
            postgresql_where=unsettled,
            sqlite_where=unsettled,
        ),
        **_OPTIONS,
    )
