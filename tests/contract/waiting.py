"""Waiting for something that will be there soon, without waiting for time to pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_guard.demo.waiting import QUIET_S, wait

if TYPE_CHECKING:
    import sqlalchemy as sa

    from airflow_guard.store.ledger import Ledger

PATIENCE_S = QUIET_S
_POSTGRES = "SELECT count(*) >= {} FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
_MYSQL = (
    "SELECT count(*) >= {} FROM information_schema.innodb_trx t JOIN information_schema.processlist p "
    "ON p.id = t.trx_mysql_thread_id WHERE t.trx_state = 'LOCK WAIT' AND p.db = database()"
)


def wait_until(engine: sa.Engine, condition: str, *, pause_s: float = 0.02) -> None:
    """Return when a query says true.

    :raises TimeoutError: it has not for so long that something hangs.
    """
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        wait(lambda: bool(connection.exec_driver_sql(condition).scalar_one()), condition, every_s=pause_s)


def wait_until_blocked(ledger: Ledger, sessions: int = 1) -> None:
    """Return when so many sessions of this ledger's database wait for a lock."""
    if ledger.database.dialect == "postgresql":
        wait_until(ledger.database.engine, _POSTGRES.format(sessions))
    else:
        # InnoDB renews that view only if nobody has looked at it for a tenth of a second.
        wait_until(ledger.database.engine, _MYSQL.format(sessions), pause_s=0.15)
