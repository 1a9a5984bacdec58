"""Where a job works and what it does there: one payment order, told to the bank and written into the books."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cached_property
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tests.chaos.books import DAY, Receiver
from tests.processes import checkpoint

if TYPE_CHECKING:
    import redis

# What is done to one document in a list: its number and its amount.
Listed = tuple[str, str]


@dataclass(frozen=True)
class Start:
    """One start of the job, as its scheduler words it.

    :param documents: the list that the job reads.
    :param machine: which of the machines it is, for those who divide the work among them.
    """

    documents: tuple[Listed, ...]
    day: date = DAY
    run_id: str = "scheduled__1"
    run_type: str = "scheduled"
    try_number: int = 1
    machine: int = 0
    machines: int = 2

    @property
    def next_day(self) -> date:
        """The day after."""
        return self.day + timedelta(days=1)


_metadata = sa.MetaData()
PAID = sa.Table(
    "approach_paid",
    _metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("job", sa.String(100)),
    sa.Column("document", sa.String(50)),
)
PAID_ONCE = sa.Table(
    "approach_paid_once",
    _metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("job", sa.String(100)),
    sa.Column("document", sa.String(50)),
    sa.UniqueConstraint("job", "document"),
)
TASK = sa.Table(
    "approach_task",
    _metadata,
    sa.Column("job", sa.String(100), primary_key=True),
    # A fixed date where the job has one row for all dates.
    sa.Column("day", sa.Date, primary_key=True),
    sa.Column("status", sa.String(10), nullable=False),
    # Set in the past by a test that lets time pass.
    sa.Column("started_ago_s", sa.Integer, nullable=False),
)


@dataclass(frozen=True)
class Place:
    """One job's part of the business database, its bank and its Redis. It can be sent to another process.

    :param url: the business database, with a migrated ledger in it.
    :param job: the name of the job; each test has its own.
    :param path: the file of the bank.
    :param redis_socket: of the Redis server.
    """

    url: str
    job: str
    path: str
    redis_socket: str

    @property
    def bank(self) -> Receiver:
        """Who is told to pay."""
        return Receiver(self.path)

    @cached_property
    def engine(self) -> sa.Engine:
        """The business database."""
        return sa.create_engine(self.url, poolclass=sa.NullPool)

    @cached_property
    def redis(self) -> redis.Redis:
        """The lock server."""
        import redis

        return redis.Redis(unix_socket_path=self.redis_socket, decode_responses=True)

    def create(self) -> None:
        """Make the tables."""
        _metadata.create_all(self.engine)

    def act(self, document: str) -> None:
        """Pay: an order to the bank, and a row in the books. A test can hold or kill it at both sides."""
        checkpoint("before")
        self.bank.call(document)
        with self.engine.begin() as connection:
            connection.execute(PAID.insert().values(job=self.job, document=document))
        checkpoint("after")

    def rows(self, document: str, table: sa.Table = PAID) -> int:
        """Count the rows of a document in the books."""
        found = sa.select(sa.func.count()).where(table.c.job == self.job, table.c.document == document)
        with self.engine.connect() as connection:
            return int(connection.execute(found).scalar_one())

    def calls(self, document: str) -> int:
        """Count the orders for a document at the bank."""
        return self.bank.documents().count(document)

    def empty(self, *tables: sa.Table) -> None:
        """Remove the job's rows, as a backup from before the run does that is restored."""
        with self.engine.begin() as connection:
            for table in tables:
                connection.execute(table.delete().where(table.c.job == self.job))


def share_of(document: str, machines: int) -> int:
    """Return which of the machines has a document, where the work is divided by a hash."""
    return zlib.crc32(document.encode()) % machines
