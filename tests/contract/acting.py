"""Actors at one key: task tries that read, judge and act as the execution does, a person, and the end of a lease."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from airflow_guard.core.errors import ResolutionError
from airflow_guard.core.guard import CLAIMABLE, Asking, LedgerRow, TaskIdentity, Verdict, judge
from airflow_guard.core.states import State
from airflow_guard.store import resolution
from tests.contract.attempts import SPACE
from tests.contract.exploring import token_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.contract.exploring import Key, World

ASKING = Asking(TaskIdentity("statements", "post", "manual__1"), "default")


class At(NamedTuple):
    """Where an actor stands.

    :param judged: the token of the attempt that it judges.
    :param turn: how often it has begun anew.
    :param known: whether the ledger had the key when it looked.
    """

    place: str
    judged: str = ""
    turn: int = 0
    known: bool = False


def verdict_on(row: LedgerRow | None) -> Verdict:
    return judge(row, ASKING).verdict


def resolve(key: Key, token: str, decision: str, actor: str) -> bool:
    """Settle the attempt that was judged; return whether the ledger accepted it."""
    (key_hash,) = key.hashes
    try:
        resolution.resolve(key.ledger, SPACE.key_date, key_hash, token, decision, actor=actor, reason="asked")
    except ResolutionError:
        return False
    return True


EFFECT_ENDS = {
    "it is done": ("complete", True),
    "it raises, done": ("doubt", True),
    "it raises, not done": ("doubt", False),
    "it proves that nothing happened": ("fail", False),
    "it is refused": ("reject", False),
}


class TaskTry:
    """A task try with an external effect.

    :param verify: whether it can ask what became of an attempt in doubt; the answer is the truth of that moment.
    :param ends: how its effect can end, of ``EFFECT_ENDS``.
    :param turns: how often it looks again after something changed under its hands.
    """

    def __init__(self, *, verify: bool = True, ends: Sequence[str] = tuple(EFFECT_ENDS), turns: int = 2) -> None:
        self._verify, self._ends, self._turns = verify, ends, turns

    def start(self) -> At:
        return At("read")

    def moves(self, world: World, index: int) -> Sequence[str]:
        at: At = world.actors[index]
        return {
            "end": (),
            "effect": self._ends,
            "begin": ("begin", "stop before it begins"),
            "ask": ("verify", "verify cannot tell") if self._verify else ("verify cannot tell",),
        }.get(at.place, (at.place,))

    def step(self, key: Key, world: World, index: int, move: str) -> World:
        at: At = world.actors[index]
        return getattr(self, f"_{at.place}".replace(" ", "_"))(key, world, index, move)

    def _go(self, world: World, index: int, place: str, **more: object) -> World:
        return world.actor(index, world.actors[index]._replace(place=place, **more))

    def _read(self, key: Key, world: World, index: int, move: str) -> World:
        row = key.read()
        verdict = verdict_on(row)
        if verdict in CLAIMABLE:
            return self._go(world, index, "claim", known=row is not None)
        if verdict is Verdict.DOUBT and row is not None:
            return self._go(world, index, "ask", judged=row.owner_token)
        return self._go(world, index, "end")

    def _claim(self, key: Key, world: World, index: int, move: str) -> World:
        at: At = world.actors[index]
        new, known = ([], [key.document]) if at.known else ([key.document], [])
        won = key.ledger.claim(key.own(index, at.turn), SPACE, new, known)
        return self._go(world, index, "begin" if won else "end")

    def _begin(self, key: Key, world: World, index: int, move: str) -> World:
        own = key.own(index, world.actors[index].turn)
        if move != "begin":
            key.ledger.fail(own, key.hashes, "stopped", begun=True)
            return self._go(world, index, "end")
        lost = key.ledger.begin(own, key.hashes)
        return self._go(world, index, "end" if lost else "effect")

    def _effect(self, key: Key, world: World, index: int, move: str) -> World:
        place, happened = EFFECT_ENDS[move]
        world = self._go(world, index, place)
        if not happened:
            return world
        token = token_of(index, world.actors[index].turn)
        return world._replace(effects=tuple(sorted((*world.effects, token))))

    def _complete(self, key: Key, world: World, index: int, move: str) -> World:
        own = key.own(index, world.actors[index].turn)
        lost = key.ledger.complete(own, key.hashes, f'"{own.token}"')
        told = {f"{'conflict of' if lost else 'completed by'} {own.token}"}
        return self._go(world, index, "end")._replace(history=world.history | told)

    def _doubt(self, key: Key, world: World, index: int, move: str) -> World:
        key.ledger.doubt(key.own(index, world.actors[index].turn), key.hashes, "raised")
        return self._go(world, index, "end")

    def _fail(self, key: Key, world: World, index: int, move: str) -> World:
        key.ledger.fail(key.own(index, world.actors[index].turn), key.hashes, "proved", begun=True)
        return self._go(world, index, "end")

    def _reject(self, key: Key, world: World, index: int, move: str) -> World:
        key.ledger.reject(key.own(index, world.actors[index].turn), key.hashes, "refused")
        return self._go(world, index, "end")

    def _ask(self, key: Key, world: World, index: int, move: str) -> World:
        judged = world.actors[index].judged
        if move == "verify":
            return self._go(world, index, "settle yes" if judged in world.effects else "settle no")
        row = key.read()
        if row is not None and row.state is State.IN_PROGRESS and row.owner_token == judged:
            key.ledger.expire(SPACE.key_date, [row], f"actor {index}")
        return self._go(world, index, "end")

    def _settle_yes(self, key: Key, world: World, index: int, move: str) -> World:
        accepted = resolve(key, world.actors[index].judged, "happened", "verify")
        return self._go(world, index, "end") if accepted else self._again(world, index)

    def _settle_no(self, key: Key, world: World, index: int, move: str) -> World:
        if resolve(key, world.actors[index].judged, "did_not_happen", "verify"):
            return self._go(world, index, "claim", known=True)._replace(noes=world.noes + 1)
        return self._again(world, index)

    def _again(self, world: World, index: int) -> World:
        turn = world.actors[index].turn + 1
        return self._go(world, index, "read" if turn < self._turns else "end", turn=turn, judged="")


class Person:
    """Somebody who looks at the key at some moment, and says later what became of the attempt that was there."""

    def start(self) -> At:
        return At("look")

    def moves(self, world: World, index: int) -> Sequence[str]:
        return {
            "end": (),
            "look": ("look",),
            "doubt": ("says it happened", "says it did not happen"),
            "rejected": ("waives it", "sends it again"),
        }[world.actors[index].place]

    def step(self, key: Key, world: World, index: int, move: str) -> World:
        at: At = world.actors[index]
        if at.place == "look":
            row = key.read()
            place = {Verdict.DOUBT: "doubt", Verdict.REJECTED: "rejected"}.get(verdict_on(row), "end")
            return world.actor(index, At(place, row.owner_token if row is not None and place != "end" else ""))
        decision = {
            "says it happened": "happened",
            "says it did not happen": "did_not_happen",
            "waives it": "waive",
            "sends it again": "send_again",
        }[move]
        accepted = resolve(key, at.judged, decision, "ada")
        world = world.actor(index, At("end"))
        if not accepted:
            return world
        return world._replace(
            noes=world.noes + (decision == "did_not_happen"), history=world.history | {f"{decision} by a person"}
        )


class Lease:
    """The lease of an actor, which ends at any moment, and may be renewed after that.

    :param of: the index of the actor.
    :param renewed: whether a renewal may follow.
    """

    def __init__(self, of: int, *, renewed: bool = False) -> None:
        self._of, self._last = of, 2 if renewed else 1

    def start(self) -> int:
        return 0

    def moves(self, world: World, index: int) -> Sequence[str]:
        at: int = world.actors[index]
        return () if at == self._last else (f"lease of {self._of} {'ends' if at == 0 else 'is renewed'}",)

    def step(self, key: Key, world: World, index: int, move: str) -> World:
        at: int = world.actors[index]
        over = world.over | {self._of} if at == 0 else world.over - {self._of}
        return world.actor(index, at + 1)._replace(over=over)
