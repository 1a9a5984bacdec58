"""What a try lists: the counts in ``guard_task_run``, and the table ``guard_listed`` of what nobody has claimed for it."""

from __future__ import annotations

import sqlalchemy as sa

from airflow_guard.store.column_types import BigId, Hash

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
