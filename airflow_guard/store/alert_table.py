"""The table ``guard_alert``: one row for each problem and transport that was to tell of it."""

from __future__ import annotations

import sqlalchemy as sa

from airflow_guard.store.column_types import BigId, Hash, Instant, LongText


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
