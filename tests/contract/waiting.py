"""Waiting for something that will be there soon, without waiting for time to pass."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from demo.waiting import QUIET_S, wait

if TYPE_CHECKING:
    import sqlalchemy as sa

    from airflow_guard.store.ledger import Ledger

PATIENCE_S = QUIET_S
_POSTGRES = "SELECT count(*) >= {} FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
_BLOCKED = re.compile(
    r"---TRANSACTION (?:(?!---TRANSACTION).)*?LOCK WAIT(?:(?!---TRANSACTION).)*?thread id (\d+)", re.DOTALL
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
        return
    engine = ledger.database.engine
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        wait(lambda: len(_blocked(connection)) >= sessions, f"{sessions} sessions that are blocked")


def _blocked(connection: sa.Connection) -> set[int]:
    """Return the sessions of this MariaDB database that wait for a lock.

    By the monitor: InnoDB renews its tables of transactions only if nobody at all has looked at them for a tenth of a
    second, so that several tests that wait at once would never see anything.
    """
    (*_, status) = connection.exec_driver_sql("SHOW ENGINE INNODB STATUS").one()
    mine = connection.exec_driver_sql("SELECT id FROM information_schema.processlist WHERE db = database()")
    return {int(found) for found in _BLOCKED.findall(status)} & set(mine.scalars())
