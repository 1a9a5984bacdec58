"""The ledger's tables, for any prefix and schema.

``guard_execution`` one row per key; ``guard_lease`` one row per task try, small and often renewed;
``guard_task_run`` one row per task try with its counts; ``guard_listed`` what a try listed and has not claimed;
``guard_event`` the append-only audit;
``guard_alias`` what ``rename`` leaves behind; ``guard_reconciliation`` one row per check of two sides;
``guard_break`` one row per difference that such a check found; ``guard_alert`` what was told to whom;
``guard_rerun`` what people authorised to be executed once more; ``guard_horizon`` up to which date ``purge`` has removed
keys; ``guard_fail_over`` which fail-overs may have lost commits.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from airflow_guard.core.errors import ConfigurationError
from airflow_guard.core.states import PHASES_OF_STATE, FollowUp, State
from airflow_guard.store.columns import (
    BigId,
    Hash,
    Instant,
    LongText,
    alert_columns,
    break_columns,
    count_columns,
    listed_columns,
    reconciliation_columns,
)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}\Z")
_MYSQL: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    # A server that came from MySQL 5.6 may still default to COMPACT, which these rows do not fit.
    "mysql_row_format": "DYNAMIC",
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_bin",
    "mariadb_row_format": "DYNAMIC",
}


ATTENTION = (
    "CASE WHEN state IN ('in_doubt', 'rejected', 'failed') THEN state "
    "WHEN follow_up IN ('pending', 'failed') THEN 'follow_up' END"
)
"""What of a row may want somebody's attention; NULL for what is in progress or done."""


def _standing() -> sa.ColumnElement[bool]:
    """Return the check of what a row's state, phase and follow-up can be together.

    One list of words, since PostgreSQL prepares each check anew for each statement: with a check for each rule that
    took longer than the update of a key.
    """
    words = [
        f"{state} {phase} {end}"
        for state, phases in PHASES_OF_STATE.items()
        for phase in sorted(phases)
        for end in (FollowUp if state is State.COMPLETED else [FollowUp.NONE])
    ]
    columns = [sa.column(name, sa.String) for name in ("state", "phase", "follow_up")]
    return (columns[0] + " " + columns[1] + " " + columns[2]).in_(words)


@lru_cache(maxsize=16)
def ledger_tables(prefix: str = "guard_", schema: str | None = None) -> Tables:
    """Return the tables of these names, made once for a process. Nothing may change them.

    :param prefix: as for :class:`Tables`.
    :param schema: as for :class:`Tables`.
    :raises ConfigurationError: prefix or schema is not a plain identifier; a retry does not help.
    """
    return Tables(prefix, schema)


class Tables:
    """SQLAlchemy tables of one ledger. See :func:`ledger_tables`.

    :param prefix: of every table name, default ``guard_``.
    :param schema: database schema, ``None`` for the connection's default.
    :raises ConfigurationError: prefix or schema is not a plain identifier.
    """

    def __init__(self, prefix: str = "guard_", schema: str | None = None) -> None:
        for name, value in (("table_prefix", prefix), ("schema", schema)):
            if value is not None and not _NAME.match(value):
                raise ConfigurationError(
                    f"[airflow_guard] {name}={value!r}: letters, digits and underscores only, at most 40, not "
                    "starting with a digit."
                )
        self.prefix = prefix
        self.schema = schema
        self.metadata = sa.MetaData(schema=schema)
        self.task_run = self._task_run()
        self.listed = self._table("listed", *listed_columns(prefix))
        self.lease = self._lease()
        self.execution = self._execution()
        self.event = self._event()
        self.alias = self._alias()
        self.reconciliation = self._table("reconciliation", *reconciliation_columns(prefix))
        self.breaks = self._table("break", *break_columns(prefix))
        self.alert = self._table("alert", *alert_columns(prefix))
        self.rerun = self._rerun()
        self.horizon = self._horizon()
        self.fail_over = self._fail_over()

    def _table(self, name: str, *parts: Any) -> sa.Table:
        return sa.Table(f"{self.prefix}{name}", self.metadata, *parts, **_MYSQL)

    def _name(self, name: str) -> str:
        return f"{self.prefix}{name}"

    def _task_run(self) -> sa.Table:
        return self._table(
            "task_run",
            sa.Column("id", BigId, primary_key=True, autoincrement=True),
            *(sa.Column(name, sa.String(250), nullable=False) for name in ("dag_id", "task_id", "run_id")),
            *(sa.Column(name, sa.Integer, nullable=False) for name in ("map_index", "try_number")),
            sa.Column("run_type", sa.String(50), nullable=False),
            sa.Column("run_after_at", Instant),
            sa.Column("producers", Hash),
            sa.Column("deployment", sa.String(250), nullable=False),
            sa.Column("key_namespace", sa.String(250), nullable=False),
            sa.Column("operation", sa.String(250), nullable=False),
            sa.Column("business_date", sa.Date, nullable=False),
            sa.Column("date_source", sa.String(20), nullable=False),
            sa.Column("date_detail", sa.String(250), nullable=False),
            sa.Column("own_at", Instant),
            sa.Column("cycle", sa.String(100), nullable=False),
            sa.Column("key_date", sa.Date),
            sa.Column("key_shape", sa.String(250), nullable=False),
            sa.Column("mode", sa.String(10), nullable=False),
            sa.Column("host", sa.String(250), nullable=False),
            sa.Column("pid", sa.Integer, nullable=False),
            sa.Column("started_at", Instant, nullable=False),
            sa.Column("ended_at", Instant),
            sa.Column("outcome", sa.String(20)),
            sa.Column("error", LongText),
            *count_columns(),
            sa.Index(self._name("task_run_run"), "run_id", "dag_id"),
            sa.Index(self._name("task_run_date"), "business_date", "dag_id"),
            sa.Index(self._name("task_run_operation"), "key_namespace", "operation"),
            sa.Index(self._name("task_run_shape"), "dag_id", "key_date", "key_shape"),
        )

    def _lease(self) -> sa.Table:
        return self._table(
            "lease",
            sa.Column("task_run_id", BigId, primary_key=True, autoincrement=False),
            sa.Column("expires_at", Instant, nullable=False),
            sa.Column("renewed_at", Instant, nullable=False),
        )

    def _execution(self) -> sa.Table:
        wanted = sa.text("attention IS NOT NULL")
        return self._table(
            "execution",
            sa.Column("key_date", sa.Date, nullable=False),
            sa.Column("key_hash", Hash, nullable=False),
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
            sa.Column("owner_token", Hash, nullable=False),
            sa.Column("idempotency_key", Hash, nullable=False),
            sa.Column("batch_id", Hash),
            sa.Column("batch_position", sa.Integer),
            sa.Column("task_run_id", BigId),
            sa.Column("first_task_run_id", BigId),
            sa.Column("fingerprint", LongText),
            # In this order: MySQL sets columns one after the other, and the first is made of the second.
            sa.Column("content_accepted", LongText),
            sa.Column("content_offered", LongText),
            sa.Column("result", LongText),
            sa.Column("pushed", LongText),
            sa.Column("error", LongText),
            sa.Column("claimed_at", Instant, nullable=False),
            sa.Column("begun_at", Instant),
            sa.Column("first_begun_at", Instant),
            sa.Column("last_sign_at", Instant),
            sa.Column("finished_at", Instant),
            # An index on the state itself would make PostgreSQL write a new index entry for each step of each key
            # (no HOT update); this column stays NULL on an ordinary key's way.
            sa.Column("attention", sa.String(12), sa.Computed(ATTENTION, persisted=True)),
            sa.PrimaryKeyConstraint("key_date", "key_hash", name=self._name("execution_pk")),
            sa.CheckConstraint(_standing(), name=self._name("execution_standing")),
            sa.CheckConstraint(
                "(state IN ('in_progress', 'in_doubt')) = (finished_at IS NULL)",
                name=self._name("execution_finished"),
            ),
            sa.CheckConstraint("attempt >= 0 AND generation >= 1", name=self._name("execution_attempt")),
            sa.Index(self._name("execution_date"), "business_date", "key_namespace", "operation"),
            sa.Index(
                self._name("execution_open"),
                "attention",
                "business_date",
                postgresql_where=wanted,
                sqlite_where=wanted,
            ),
            # Ascending, so that a key enters it at its end. Leases lead through it to the keys that nobody has finished.
            sa.Index(self._name("execution_try"), "task_run_id"),
            sa.Index(
                self._name("execution_batch"),
                "batch_id",
                postgresql_where=sa.text("batch_id IS NOT NULL"),
                sqlite_where=sa.text("batch_id IS NOT NULL"),
            ),
        )

    def _event(self) -> sa.Table:
        return self._table(
            "event",
            sa.Column("id", BigId, primary_key=True, autoincrement=True),
            sa.Column("at", Instant, nullable=False),
            sa.Column("kind", sa.String(30), nullable=False),
            sa.Column("key_date", sa.Date),
            sa.Column("key_hash", Hash),
            sa.Column("key_text", LongText, nullable=False),
            sa.Column("attempt", sa.Integer),
            sa.Column("owner_token", Hash),
            sa.Column("task_run_id", BigId),
            sa.Column("from_state", sa.String(12)),
            sa.Column("to_state", sa.String(12)),
            sa.Column("actor", sa.String(250), nullable=False),
            sa.Column("reason", LongText, nullable=False),
            sa.Index(self._name("event_key"), "key_date", "key_hash"),
            sa.Index(self._name("event_at"), "at"),
        )

    def _alias(self) -> sa.Table:
        return self._table(
            "alias",
            sa.Column("id", BigId, primary_key=True, autoincrement=True),
            sa.Column("old_hash", Hash, nullable=False),
            sa.Column("old_namespace", sa.String(250), nullable=False),
            sa.Column("old_operation", sa.String(250), nullable=False),
            sa.Column("new_namespace", sa.String(250), nullable=False),
            sa.Column("new_operation", sa.String(250), nullable=False),
            sa.Column("created_at", Instant, nullable=False),
            sa.Column("actor", sa.String(250), nullable=False),
            sa.Column("reason", LongText, nullable=False),
            # The digest of the old pair, unique: two renames of one name, or one after another, cannot race.
            sa.UniqueConstraint("old_hash", name=self._name("alias_old")),
        )

    def _rerun(self) -> sa.Table:
        return self._table(
            "rerun",
            sa.Column("id", BigId, primary_key=True, autoincrement=True),
            sa.Column("key_date", sa.Date, nullable=False),
            sa.Column("key_hash", Hash, nullable=False),
            sa.Column("generation", sa.Integer, nullable=False),
            sa.Column("owner_token", Hash, nullable=False),
            sa.Column("request_id", Hash, nullable=False),
            sa.Column("actor", sa.String(250), nullable=False),
            sa.Column("reason", LongText, nullable=False),
            sa.Column("without_reversal", sa.SmallInteger, nullable=False),
            sa.Column("authorised_at", Instant, nullable=False),
            sa.Column("expires_at", Instant, nullable=False),
            sa.Column("used_at", Instant),
            sa.Column("used_by_id", BigId),
            sa.Column("previous_result", LongText),
            sa.Column("previous_idempotency_key", Hash),
            sa.Column("previous_task_run_id", BigId),
            sa.Column("reversal", sa.String(8), nullable=False, server_default="none"),
            # One for each generation: a key cannot be authorised twice at once, and what is used is used.
            sa.UniqueConstraint("key_date", "key_hash", "generation", name=self._name("rerun_key")),
            sa.CheckConstraint("reversal IN ('none', 'begun', 'done')", name=self._name("rerun_reversal")),
            sa.CheckConstraint(
                "(used_at IS NULL) = (previous_idempotency_key IS NULL)", name=self._name("rerun_used")
            ),
            sa.Index(self._name("rerun_open"), "key_date", "used_at"),
        )

    def _horizon(self) -> sa.Table:
        return self._table(
            "horizon",
            sa.Column("name_hash", Hash, primary_key=True),
            sa.Column("key_namespace", sa.String(250), nullable=False),
            sa.Column("operation", sa.String(250), nullable=False),
            sa.Column("business_date", sa.Date, nullable=False),
            sa.Column("set_at", Instant, nullable=False),
            sa.Column("actor", sa.String(250), nullable=False),
            sa.Column("reason", LongText, nullable=False),
        )

    def _fail_over(self) -> sa.Table:
        return self._table(
            "fail_over",
            sa.Column("id", BigId, primary_key=True, autoincrement=True),
            sa.Column("lost_since_at", Instant, nullable=False),
            sa.Column("recorded_at", Instant, nullable=False),
            sa.Column("actor", sa.String(250), nullable=False),
            sa.Column("reason", LongText, nullable=False),
            sa.Column("closed_at", Instant),
            sa.Column("closed_by", sa.String(250)),
            sa.Column("close_reason", LongText),
            sa.CheckConstraint(
                "(closed_at IS NULL) = (closed_by IS NULL)", name=self._name("fail_over_closed")
            ),
        )
