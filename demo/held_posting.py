"""Holding a posting still in its middle, so that a process can be killed there for certain."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Self

from sqlalchemy import insert, text

from demo.books import balance

if TYPE_CHECKING:
    from datetime import date

    from sqlalchemy import Connection, Engine

__all__ = ["HeldPosting"]


class HeldPosting:
    """Lets the posting of one statement stand still between its lines and its balance (PostgreSQL).

    The row of the balance is inserted in a transaction that is not committed. The posting then waits for that
    row, all of its lines being written and none committed.

    :param bank: the business database.
    :param account: of the statement.
    :param business_date: of the statement.
    """

    def __init__(self, bank: Engine, account: str, business_date: date) -> None:
        self._bank = bank
        self._row = {
            "account": account,
            "business_date": business_date,
            "currency": "",
            "closing": Decimal(0),
            "transactions": 0,
        }
        self._holder: Connection
        self._backend: int

    def __enter__(self) -> Self:
        self._holder = self._bank.connect()
        self._holder.execute(insert(balance), self._row)
        self._backend = self._holder.execute(text("SELECT pg_backend_pid()")).scalar_one()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self._holder.close()

    def reached(self) -> bool:
        """Whether the posting stands there now."""
        waiting = text("SELECT count(*) FROM pg_stat_activity WHERE :holder = ANY(pg_blocking_pids(pid))")
        with self._bank.connect() as connection:
            return bool(connection.execute(waiting, {"holder": self._backend}).scalar_one())

    def release(self) -> None:
        """Take the row back; the posting goes on."""
        self._holder.rollback()
