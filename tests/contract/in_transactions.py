"""Actors whose effect is a business transaction, explored with their transactions open.

An open transaction cannot be laid out anew, so that every schedule is taken from its beginning at a key of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import sqlalchemy as sa

from airflow_guard.core.errors import GuardError, LedgerBusy, OwnershipLost, TransactionError
from airflow_guard.core.guard import CLAIMABLE, Verdict
from airflow_guard.store import database as database_module
from airflow_guard.store.business_transaction import BusinessTransaction, Ending
from tests.contract.acting import EVERYBODY, SOMEBODY_NEW, At, Lease, claim, look
from tests.contract.attempts import SPACE
from tests.contract.exploring import Bench, Key, Schedule, Violation, World, token_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from airflow_guard.store.ledger import Ledger


@dataclass
class LiveKey(Key):
    """A key with the transactions that are open at it."""

    open: dict[int, tuple[BusinessTransaction, sa.Connection]] = field(default_factory=dict)

    def kill(self) -> None:
        """End all transactions as the server does when their processes are gone."""
        for transaction, _ in self.open.values():
            transaction.__exit__(None, None, None)
        self.open.clear()


class DatabaseTry:
    """A task try with a database effect: every failure is handled as the execution does."""

    def start(self) -> At:
        return At("read")

    def moves(self, world: World, index: int) -> Sequence[str]:
        at: At = world.actors[index]
        return {
            "end": (),
            "inside": ("returns", "raises", "commits by itself", "rolls back by itself"),
        }.get(at.place, (at.place,))

    def step(self, key: LiveKey, world: World, index: int, move: str) -> World:
        at: At = world.actors[index]
        take = {"read": self._read, "claim": self._claim, "enter": self._enter, "inside": self._inside}
        place, known = take.get(at.place, self._report)(key, at, index, move)
        return world.actor(index, At(place, known=known))

    def _read(self, key: LiveKey, at: At, index: int, move: str) -> tuple[str, bool]:
        seen = look(key)
        return ("claim" if seen.verdict in CLAIMABLE else "end"), seen.known

    def _claim(self, key: LiveKey, at: At, index: int, move: str) -> tuple[str, bool]:
        try:
            return ("enter" if claim(key, index, 0, at.known) else "end"), True
        except LedgerBusy:
            return "end", True

    def _enter(self, key: LiveKey, at: At, index: int, move: str) -> tuple[str, bool]:
        transaction = key.ledger.transaction(key.own(index, 0), key.hashes)
        try:
            connection = transaction.__enter__()
        except (OwnershipLost, LedgerBusy):
            return "end", True
        key.open[index] = transaction, connection
        values = {"key": key.document.key_hash, "token": token_of(index, 0)}
        connection.execute(sa.text("INSERT INTO posting VALUES (:key, :token)"), values)
        return "inside", True

    def _inside(self, key: LiveKey, at: At, index: int, move: str) -> tuple[str, bool]:
        transaction, connection = key.open[index]
        if move == "commits by itself":
            connection.exec_driver_sql("COMMIT")
        elif move == "rolls back by itself":
            connection.exec_driver_sql("ROLLBACK")
        failed = move == "raises"
        try:
            if not failed:
                transaction.complete(None)
        except TransactionError:
            failed = True
        del key.open[index]
        transaction.__exit__(None, None, None)
        return ("report" if failed else "end"), True

    def _report(self, key: LiveKey, at: At, index: int, move: str) -> tuple[str, bool]:
        own = key.own(index, 0)
        try:
            lost = key.ledger.fail(own, key.hashes, "raised", begun=False)
            ending = key.ledger.transaction(own, key.hashes).ending
            if lost and ending() is Ending.SELF_COMMITTED:
                key.ledger.doubt(own, key.hashes, "committed by itself")
        except GuardError:
            pass  # the ledger is busy: the row stays as it is
        return "end", True


@dataclass
class LiveExplorer:
    """Explores programs whose steps leave transactions open."""

    ledger: Ledger
    programs: Sequence[Any]
    monkeypatch: pytest.MonkeyPatch
    worlds: int = 0
    ends: list[World] = field(default_factory=list)

    def __enter__(self) -> Self:
        # Nobody waits: the one who would be waited for is stepped by the same thread.
        self.monkeypatch.setattr(database_module, "LOCK_TIMEOUT_S", 0 if self._sqlite else 1)
        self.ledger.database.dispose()
        with self.ledger.database.engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE posting (key_hash CHAR(32), token CHAR(32))")
        self._bench = Bench(self.ledger, {})
        return self

    def __exit__(self, *_: object) -> None:
        self.ledger.database.dispose()

    @property
    def _sqlite(self) -> bool:
        return self.ledger.database.dialect == "sqlite"

    def explore(self) -> None:
        """Go through all schedules.

        :raises Violation: one of them breaks a promise.
        """
        seen: set[World] = set()
        schedules: list[Schedule] = [()]
        while schedules:
            schedule = schedules.pop()
            world, key = self._replay(schedule)
            moves = self._moves(world, key) if world not in seen else ()
            key.kill()
            if world in seen:
                continue
            seen.add(world)
            if not moves:
                self.ends.append(world)
            self._examine(key, schedule)
            schedules += [(*schedule, move) for move in moves]
        self.worlds = len(seen)

    def _moves(self, world: World, key: LiveKey) -> Sequence[tuple[int, str]]:
        # SQLite has one writer: there, the end of a lease cannot be written while a transaction is open.
        stuck = self._sqlite and bool(key.open)
        return [
            (index, move)
            for index, program in enumerate(self.programs)
            if not (stuck and isinstance(program, Lease))
            for move in program.moves(world, index)
        ]

    def _replay(self, schedule: Schedule) -> tuple[World, LiveKey]:
        world = World(None, tuple(program.start() for program in self.programs))
        plain = self._bench.lay_out(world)
        key = LiveKey(plain.ledger, plain.document, plain.runs)
        for index, move in schedule:
            after = self.programs[index].step(key, world, index, move)
            if after.over != world.over:
                self._bench.set_leases(key, after.over)
            world = after
        return world._replace(row=self._bench.row_of(key), effects=self._postings(key)), key

    def _postings(self, key: Key) -> tuple[str, ...]:
        found = sa.text("SELECT token FROM posting WHERE key_hash = :key ORDER BY token")
        values = {"key": key.document.key_hash}
        return self.ledger.database.read(
            lambda connection: tuple(connection.execute(found, values).scalars())
        )

    def _examine(self, key: LiveKey, schedule: Schedule) -> None:
        """Assert what must hold when all processes are killed here, and their transactions rolled back."""
        try:
            self._bench.set_leases(key, EVERYBODY)
            posted, row = len(self._postings(key)), self._bench.row_of(key)
            assert posted <= 1, "posted twice"
            if row is None:
                assert not posted, "posted without the ledger"
                return
            verdict = look(key).verdict
            if verdict in CLAIMABLE:
                assert not posted, "posted, and claimable again"
                assert claim(key, SOMEBODY_NEW, 0, True), "the key is lost"
            elif verdict is Verdict.DONE:
                assert posted == 1, "completed without a posting"
            else:
                assert verdict is Verdict.DOUBT, f"the key is lost: {verdict}"
                assert any(move == "commits by itself" for _, move in schedule), (
                    "in doubt, and nobody committed"
                )
        except AssertionError as broken:
            steps = "\n".join(f"  actor {index}: {move}" for index, move in schedule)
            raise Violation(f"{broken}\nafter\n{steps}\nat {SPACE.describe(key.document.name)}") from broken
