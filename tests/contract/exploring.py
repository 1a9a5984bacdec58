"""Explores every interleaving of several actors at one key of a real ledger.

An actor is a small program; a step of it is one call of the ledger, or the effect. The explorer goes through all
orders of all steps, depth first. Two orders that lead to the same row, leases, actors and history have the same
future, so that it is explored once; and a call finds nothing but the row and the leases, so that the same call on
the same row and leases is made once. :meth:`Explorer.replay` makes all calls of one order, one after another at
one key, and so checks that nothing else connects them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import sqlalchemy as sa

from airflow_guard.core.states import State
from airflow_guard.store.changes import Ownership
from tests.contract.attempts import SPACE, documents_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_guard.core.documents import Document
    from airflow_guard.core.guard import LedgerRow
    from airflow_guard.store.ledger import Ledger

_keys = itertools.count(1)
LONG_AGO, FAR_OFF = datetime(2001, 1, 1, tzinfo=UTC), datetime(2101, 1, 1, tzinfo=UTC)
COPIED = (
    "state",
    "phase",
    "follow_up",
    "attempt",
    "generation",
    "owner_token",
    "result",
    "error",
    "batch_id",
)
INSTANTS = ("begun_at", "first_begun_at", "last_sign_at")
LEASES = 5


class Row(NamedTuple):
    """What of a row decides anything: its columns, which instants are set, and whether a rerun of it is authorised."""

    columns: tuple[Any, ...]
    instants: tuple[bool, ...]
    authorised: bool = False

    @property
    def state(self) -> str:
        return str(self.columns[0])

    @property
    def owner(self) -> int:
        return int(self.columns[COPIED.index("owner_token")][0])


class World(NamedTuple):
    """Everything that a future can depend on.

    :param actors: where each actor stands.
    :param over: the actors whose lease is over.
    :param effects: the tokens of the attempts whose effect has happened.
    :param disowned: the tokens of the attempts of which somebody said that their effect did not happen, and the
        ledger accepted it.
    :param history: what else is to be remembered for the checks.
    """

    row: Row | None
    actors: tuple[Any, ...]
    over: frozenset[int] = frozenset()
    effects: tuple[str, ...] = ()
    disowned: frozenset[str] = frozenset()
    history: frozenset[str] = frozenset()

    def actor(self, index: int, at: Any) -> World:
        """Return the same world with one actor elsewhere."""
        return self._replace(actors=(*self.actors[:index], at, *self.actors[index + 1 :]))


class Call(Protocol):
    """Makes one call of the ledger: the name of an operation, and what it is called with."""

    def __call__(self, name: str, /, *arguments: Any) -> Any: ...


class Program(Protocol):
    """What an actor does."""

    def start(self) -> Any:
        """Return where it begins."""

    def moves(self, world: World, index: int) -> Sequence[str]:
        """Return what it may do next; nothing: it has ended."""

    def step(self, call: Call, world: World, index: int, move: str) -> World:
        """Do it with at most one call, and return the world; its row is looked up afterwards."""


Schedule = tuple[tuple[int, str], ...]


class Violation(AssertionError):
    """A schedule that breaks a promise; the message lists its steps."""


def token_of(index: int, turn: int) -> str:
    return f"{index}{turn}" * 16


@dataclass
class Key:
    """One key of the ledger, as the operations get it."""

    ledger: Ledger
    document: Document
    runs: Sequence[int]

    def own(self, index: int, turn: int) -> Ownership:
        """Return the ownership of an actor's claim; a new claim is a new turn."""
        return Ownership(SPACE.key_date, token_of(index, turn), self.runs[index], f"actor {index}")

    @property
    def hashes(self) -> list[str]:
        return [self.document.key_hash]

    def read(self) -> LedgerRow | None:
        return self.ledger.read(SPACE.key_date, self.hashes).get(self.document.key_hash)


@dataclass
class Bench:
    """Lays out keys in a ledger and makes calls at them.

    :param operations: what can be called, by name; each gets the key first and returns a hashable value.
    :param calls: how many calls were made in the database.
    """

    ledger: Ledger
    operations: Mapping[str, Callable[..., Any]]
    calls: int = 0
    _made: dict[tuple[Any, ...], tuple[Any, Row | None]] = field(default_factory=dict)

    def make(self, world: World, name: str, *arguments: Any) -> tuple[Any, Row | None]:
        """Make a call in a world and return what it gave and the row that it left."""
        made = (world.row, world.over, name, arguments)
        if made not in self._made:
            key = self.lay_out(world)
            self._made[made] = (self.make_at(key, name, arguments), self.row_of(key))
        return self._made[made]

    def make_at(self, key: Key, name: str, arguments: tuple[Any, ...]) -> Any:
        self.calls += 1
        return self.operations[name](key, *arguments)

    def lay_out(self, world: World) -> Key:
        """Write the row and the leases of a world under a new key."""
        number = next(_keys)
        (document,) = documents_of(SPACE, f"key {number}")
        key = Key(self.ledger, document, [number * 10 + index for index in range(LEASES)])
        tables = self.ledger.database.tables
        ends = [LONG_AGO if index in world.over else FAR_OFF for index in range(LEASES)]
        leases = [
            {"task_run_id": run, "expires_at": end, "renewed_at": LONG_AGO}
            for run, end in zip(key.runs, ends, strict=True)
        ]
        with self.ledger.database.engine.begin() as connection:
            connection.execute(sa.insert(tables.lease), leases)
            if world.row is not None:
                connection.execute(sa.insert(tables.execution), _values(world.row, key))
                if world.row.authorised:
                    connection.execute(sa.insert(tables.rerun), _authorisation(world.row, key))
        return key

    def set_leases(self, key: Key, over: frozenset[int]) -> None:
        lease = self.ledger.database.tables.lease
        with self.ledger.database.engine.begin() as connection:
            for ended in (True, False):
                runs = [run for index, run in enumerate(key.runs) if (index in over) == ended]
                moved = sa.update(lease).where(lease.c.task_run_id.in_(runs))
                connection.execute(moved.values(expires_at=LONG_AGO if ended else FAR_OFF))

    def row_of(self, key: Key) -> Row | None:
        """Read back what a call has left."""
        e = self.ledger.database.tables.execution
        found = sa.select(e).where(e.c.key_date == SPACE.key_date, e.c.key_hash == key.document.key_hash)
        row = self.ledger.database.read(lambda connection: connection.execute(found).first())
        if row is None:
            return None
        columns = tuple(getattr(row, name) for name in COPIED)
        known = key.read() if row.state == State.COMPLETED else None
        authorised = known is not None and known.rerun is not None
        return Row(columns, tuple(getattr(row, name) is not None for name in INSTANTS), authorised)


def _values(row: Row, key: Key) -> dict[str, Any]:
    owner = key.runs[row.owner]
    return {
        "key_date": SPACE.key_date, "key_hash": key.document.key_hash, "normaliser": 1,
        "key_namespace": SPACE.key_namespace, "operation": SPACE.operation, "business_date": SPACE.business_date,
        "cycle": "", "document": key.document.name, "deployment": "default", "task_run_id": owner,
        "first_task_run_id": owner, "idempotency_key": key.document.idempotency_key, "claimed_at": LONG_AGO,
        "finished_at": None if row.state in (State.IN_PROGRESS, State.IN_DOUBT) else LONG_AGO,
        **dict(zip(COPIED, row.columns, strict=True)),
        **{name: LONG_AGO if known else None for name, known in zip(INSTANTS, row.instants, strict=True)},
    }  # fmt: skip


def _authorisation(row: Row, key: Key) -> dict[str, Any]:
    known = dict(zip(COPIED, row.columns, strict=True))
    return {
        "key_date": SPACE.key_date, "key_hash": key.document.key_hash, "generation": known["generation"] + 1,
        "owner_token": known["owner_token"], "request_id": "f" * 32, "actor": "ada", "reason": "authorised",
        "without_reversal": 1, "authorised_at": LONG_AGO, "expires_at": FAR_OFF, "reversal": "none",
    }  # fmt: skip


@dataclass
class Explorer:
    """Explores one set of actors.

    :param check: called with the bench, for further calls, with every world, and with whether it is an end; raises
        ``AssertionError`` for a broken promise.
    :param ends: the schedules that lead to an end, with the world there.
    """

    bench: Bench
    programs: Sequence[Program]
    check: Callable[[Bench, World, bool], None]
    worlds: int = 0
    steps: int = 0
    ends: list[tuple[Schedule, World]] = field(default_factory=list)

    def start(self) -> World:
        return World(None, tuple(program.start() for program in self.programs))

    def explore(self) -> Explorer:
        """Go through all schedules.

        :raises Violation: one of them breaks a promise.
        """
        seen, open_worlds = {self.start()}, [(self.start(), ())]
        while open_worlds:
            world, schedule = open_worlds.pop()
            moves = [
                (index, move)
                for index, program in enumerate(self.programs)
                for move in program.moves(world, index)
            ]
            self._examine(world, schedule, end=not moves)
            for index, move in moves:
                after = self.step(world, index, move)
                if after not in seen:
                    seen.add(after)
                    open_worlds.append((after, (*schedule, (index, move))))
        self.worlds = len(seen)
        return self

    def step(self, world: World, index: int, move: str) -> World:
        self.steps += 1
        row = world.row

        def call(name: str, /, *arguments: Any) -> Any:
            nonlocal row
            value, row = self.bench.make(world, name, *arguments)
            return value

        return self.programs[index].step(call, world, index, move)._replace(row=row)

    def replay(self, schedule: Schedule) -> tuple[World, Key]:
        """Take the steps of a schedule at one new key, and return the world that the database shows then."""
        world = self.start()
        key = self.bench.lay_out(world)
        for index, move in schedule:
            step = self.programs[index].step
            after = step(
                lambda name, *arguments: self.bench.make_at(key, name, arguments), world, index, move
            )
            if after.over != world.over:
                self.bench.set_leases(key, after.over)
            world = after._replace(row=self.bench.row_of(key))
        return world, key

    def _examine(self, world: World, schedule: Schedule, *, end: bool) -> None:
        if end:
            self.ends.append((schedule, world))
        try:
            self.check(self.bench, world, end)
        except AssertionError as broken:
            steps = "\n".join(f"  actor {index}: {move}" for index, move in schedule)
            raise Violation(f"{broken}\nafter\n{steps}\nin {world}") from broken
