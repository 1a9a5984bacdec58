"""Explores every interleaving of several actors at one key of a real ledger.

An actor is a small program; a step of it is one call of the ledger, or the effect. The explorer goes through all
orders of all steps, depth first. Two orders that lead to the same row, leases, actors and history have the same
future, so it is explored once. Before each step the key is laid out afresh, under a new hash and with new leases,
as the steps before have left it: nothing else connects the actors.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import sqlalchemy as sa

from airflow_guard.core.states import State
from airflow_guard.store.ledger import Ledger, Ownership
from tests.contract.attempts import SPACE, documents_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_guard.core.documents import Document
    from airflow_guard.core.guard import LedgerRow

_keys = itertools.count(1)
LONG_AGO, FAR_OFF = datetime(2001, 1, 1, tzinfo=UTC), datetime(2101, 1, 1, tzinfo=UTC)
INSTANTS = ("begun_at", "first_begun_at", "last_sign_at")
COPIED = ("state", "phase", "follow_up", "attempt", "generation", "owner_token", "result", "error", "batch_id")


class Row(NamedTuple):
    """What of a row decides anything: its columns, and which instants are set."""

    columns: tuple[Any, ...]
    instants: tuple[bool, ...]

    @property
    def state(self) -> str:
        return str(self.columns[0])

    @property
    def token(self) -> str:
        return str(self.columns[COPIED.index("owner_token")])


class World(NamedTuple):
    """Everything that a future can depend on.

    :param actors: where each actor stands.
    :param over: the actors whose lease is over.
    :param effects: the tokens of the attempts whose effect has happened.
    :param noes: how many answers "it did not happen" the ledger has accepted.
    :param history: what else is to be remembered for the checks.
    """

    row: Row | None
    actors: tuple[Any, ...]
    over: frozenset[int] = frozenset()
    effects: tuple[str, ...] = ()
    noes: int = 0
    history: frozenset[str] = frozenset()

    def actor(self, index: int, state: Any) -> World:
        """Return the same world with one actor elsewhere."""
        return self._replace(actors=(*self.actors[:index], state, *self.actors[index + 1 :]))


class Program(Protocol):
    """What an actor does."""

    def start(self) -> Any:
        """Return where it begins."""

    def moves(self, world: World, index: int) -> Sequence[str]:
        """Return what it may do next; nothing: it has ended."""

    def step(self, key: Key, world: World, index: int, move: str) -> World:
        """Do it, and return the world without its row."""


class Violation(AssertionError):
    """A schedule that breaks a promise; the message lists its steps."""


@dataclass
class Key:
    """One laid-out key."""

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


def token_of(index: int, turn: int) -> str:
    return f"{index}{turn}" * 16


@dataclass
class Explorer:
    """Explores one set of actors.

    :param check: called with every world and whether it is an end; raises ``AssertionError`` for a broken promise.
    :param limit: stop after so many steps, where the whole would take too long.
    """

    ledger: Ledger
    programs: Sequence[Program]
    check: Callable[[Key, World, bool], None]
    limit: int | None = None
    worlds: int = 0
    steps: int = 0
    ends: int = 0

    def explore(self) -> Explorer:
        """Go through all schedules.

        :raises Violation: one of them breaks a promise.
        """
        start = World(None, tuple(program.start() for program in self.programs))
        seen, open_worlds = {start}, [(start, ())]
        while open_worlds and (self.limit is None or self.steps < self.limit):
            world, schedule = open_worlds.pop()
            moves = [
                (index, move) for index, program in enumerate(self.programs) for move in program.moves(world, index)
            ]
            self._checked(world, schedule, end=not moves)
            for index, move in moves:
                after = self._step(world, index, move)
                if after not in seen:
                    seen.add(after)
                    open_worlds.append((after, (*schedule, (index, move))))
        self.worlds = len(seen)
        return self

    def _step(self, world: World, index: int, move: str) -> World:
        self.steps += 1
        key = self.lay_out(world)
        after = self.programs[index].step(key, world, index, move)
        return after._replace(row=self.row_of(key))

    def _checked(self, world: World, schedule: tuple[tuple[int, str], ...], *, end: bool) -> None:
        self.ends += end
        try:
            self.check(self.lay_out(world) if end else None, world, end)
        except AssertionError as broken:
            steps = "\n".join(f"  actor {index}: {move}" for index, move in schedule)
            raise Violation(f"{broken}\nafter\n{steps}\nin {world}") from broken

    def lay_out(self, world: World) -> Key:
        """Write the row and the leases of a world under a new key."""
        number = next(_keys)
        (document,) = documents_of(SPACE, f"key {number}")
        runs = [number * 10 + index for index in range(len(self.programs))]
        tables = self.ledger.database.tables
        leases = [
            {"task_run_id": run, "expires_at": LONG_AGO if index in world.over else FAR_OFF, "renewed_at": LONG_AGO}
            for index, run in enumerate(runs)
        ]
        with self.ledger.database.engine.begin() as connection:
            connection.execute(sa.insert(tables.lease), leases)
            if world.row is not None:
                connection.execute(sa.insert(tables.execution), self._values(world.row, document, runs))
        return Key(self.ledger, document, runs)

    def _values(self, row: Row, document: Document, runs: Sequence[int]) -> dict[str, Any]:
        owner = runs[int(row.token[0])]
        return {
            "key_date": SPACE.key_date, "key_hash": document.key_hash, "normaliser": 1,
            "key_namespace": SPACE.key_namespace, "operation": SPACE.operation, "business_date": SPACE.business_date,
            "cycle": "", "document": document.name, "deployment": "default", "task_run_id": owner,
            "first_task_run_id": owner, "idempotency_key": document.idempotency_key, "claimed_at": LONG_AGO,
            "finished_at": None if row.state in (State.IN_PROGRESS, State.IN_DOUBT) else LONG_AGO,
            **dict(zip(COPIED, row.columns, strict=True)),
            **{name: LONG_AGO if known else None for name, known in zip(INSTANTS, row.instants, strict=True)},
        }  # fmt: skip

    def row_of(self, key: Key) -> Row | None:
        """Read back what a step has left."""
        e = self.ledger.database.tables.execution
        found = sa.select(e).where(e.c.key_date == SPACE.key_date, e.c.key_hash == key.document.key_hash)
        with self.ledger.database.engine.connect() as connection:
            row = connection.execute(found).first()
        if row is None:
            return None
        columns = tuple(getattr(row, name) for name in COPIED)
        return Row(columns, tuple(getattr(row, name) is not None for name in INSTANTS))
