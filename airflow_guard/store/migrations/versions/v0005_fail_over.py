"""Fail-overs that may have lost commits.

Revision: 0005
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql, sqlite

from airflow_guard.core.errors import ConfigurationError

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_INSTANT = (
    sa.DateTime()
    .with_variant(postgresql.TIMESTAMP(timezone=True, precision=6), "postgresql")
    .with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
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
    """Create the table."""
    _create(_fail_over(sa.MetaData(schema=schema), prefix))


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


def _fail_over(metadata: sa.MetaData, prefix: str) -> sa.Table:
    return sa.Table(
        f"{prefix}fail_over",
        metadata,
        sa.Column("id", _BIG_ID, primary_key=True, autoincrement=True),
        sa.Column("lost_since_at", _INSTANT, nullable=False),
        sa.Column("recorded_at", _INSTANT, nullable=False),
        sa.Column("actor", sa.String(250), nullable=False),
        sa.Column("reason", _LONG_TEXT, nullable=False),
        sa.Column("closed_at", _INSTANT),
        sa.Column("closed_by", sa.String(250)),
        sa.Column("close_reason", _LONG_TEXT),
        sa.CheckConstraint("(closed_at IS NULL) = (closed_by IS NULL)", name=f"{prefix}fail_over_closed"),
        **_OPTIONS,
    )
