"""Actors at one key: task tries that read, judge and act as the execution does, a person, and the end of a lease."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from airflow_guard.acts import reruns
from airflow_guard.core.errors import ResolutionError
from airflow_guard.core.guard import CLAIMABLE, Asking, TaskIdentity, Verdict, judge
from airflow_guard.store import resolution
from tests.contract.attempts import SPACE
from tests.contract.exploring import LEASES, token_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.contract.exploring import Bench, Call, Key, World

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


EVERYBODY = frozenset(range(LEASES))
SOMEBODY_NEW = LEASES - 1


class Seen(NamedTuple):
    """What an actor sees of the row."""

    verdict: Verdict
    known: bool
    token: str


def look(key: Key) -> Seen:
    """Read the row and judge it."""
    row = key.read()
    return Seen(judge(row, ASKING).verdict, row is not None, "" if row is None else row.owner_token)


def claim(key: Key, index: int, turn: int, known: bool) -> bool:
    new, old = ([], [key.document]) if known else ([key.document], [])
    return bool(key.ledger.claim(key.own(index, turn), SPACE, new, old))


def claim_again(key: Key, index: int, turn: int) -> bool:
    """Claim a key whose rerun is authorised."""
    return bool(key.ledger.claim(key.own(index, turn), SPACE, [], [], reruns=[key.document]))


def authorise(key: Key, token: str) -> bool:
    """Authorise a rerun of the attempt that was judged; return whether the ledger accepted it."""
    judged = [resolution.Judged(SPACE.key_date, key.document.key_hash, token)]
    try:
        reruns.authorise(
            key.ledger,
            judged,
            actor="ada",
            reason="authorised",
            expires=timedelta(hours=1),
            without_reversal=True,
        )
    except ResolutionError:
        return False
    return True


def release(key: Key, index: int, turn: int) -> bool:
    return not key.ledger.fail(key.own(index, turn), key.hashes, "stopped", begun=True)


def begin(key: Key, index: int, turn: int) -> bool:
    return not key.ledger.begin(key.own(index, turn), key.hashes)


def complete(key: Key, index: int, turn: int) -> bool:
    own = key.own(index, turn)
    return not key.ledger.complete(own, key.hashes, f'"{own.token}"')


def doubt(key: Key, index: int, turn: int) -> bool:
    return not key.ledger.doubt(key.own(index, turn), key.hashes, "raised")


def fail(key: Key, index: int, turn: int) -> bool:
    return not key.ledger.fail(key.own(index, turn), key.hashes, "proved", begun=True)


def reject(key: Key, index: int, turn: int) -> bool:
    return not key.ledger.reject(key.own(index, turn), key.hashes, "refused")


def expire(key: Key, token: str) -> bool:
    """Mark what was judged in doubt, if it is there still and its lease is over."""
    row = key.read()
    return (
        row is not None
        and row.owner_token == token
        and key.ledger.expire(SPACE.key_date, [row], "actor") == 1
    )


def resolve(key: Key, token: str, decision: str) -> bool:
    """Settle the attempt that was judged; return whether the ledger accepted it."""
    (key_hash,) = key.hashes
    try:
        settled = resolution.resolve(
            key.ledger, SPACE.key_date, key_hash, token, decision, actor="ada", reason="asked"
        )
    except ResolutionError:
        return False
    return not settled[0].repeated


OPERATIONS = {
    operation.__name__: operation
    for operation in (
        look,
        claim,
        claim_again,
        authorise,
        release,
        begin,
        complete,
        doubt,
        fail,
        reject,
        expire,
        resolve,
    )
}
EFFECT_ENDS = {
    "it is done": ("complete", True),
    "it raises, done": ("doubt", True),
    "it raises, not done": ("doubt", False),
    "it proves that nothing happened": ("fail", False),
    "it is refused": ("reject", False),
}
DECISIONS = {
    "says it happened": "happened",
    "says it did not happen": "did_not_happen",
    "waives it": "waive",
    "sends it again": "send_again",
}


class TaskTry:
    """A task try with an external effect.

    :param verify: whether it can ask what became of an attempt in doubt; the answer is the truth of that moment.
    :param ends: how its effect can end, of ``EFFECT_ENDS``.
    :param turns: how often it looks again after something changed under its hands.
    """

    def __init__(
        self, *, verify: bool = True, ends: Sequence[str] = tuple(EFFECT_ENDS), turns: int = 2
    ) -> None:
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

    def step(self, call: Call, world: World, index: int, move: str) -> World:
        at: At = world.actors[index]
        take = {"read": self._read, "claim": self._claim, "begin": self._begin, "effect": self._effect,
                "ask": self._ask, "claim again": self._claim_again,
                "settle yes": self._settle, "settle no": self._settle}  # fmt: skip
        return take.get(at.place, self._report)(call, world, index, move)

    def _go(self, world: World, index: int, place: str, **more: object) -> World:
        return world.actor(index, world.actors[index]._replace(place=place, **more))

    def _read(self, call: Call, world: World, index: int, move: str) -> World:
        seen: Seen = call("look")
        if seen.verdict in CLAIMABLE:
            return self._go(world, index, "claim", known=seen.known)
        if seen.verdict is Verdict.DOUBT:
            return self._go(world, index, "ask", judged=seen.token)
        if seen.verdict is Verdict.RERUN:
            return self._go(world, index, "claim again", judged=seen.token)
        return self._go(world, index, "end")

    def _claim_again(self, call: Call, world: World, index: int, move: str) -> World:
        at: At = world.actors[index]
        if not call("claim_again", index, at.turn):
            return self._go(world, index, "end")
        # The token that was judged is the token that was authorised: no other attempt can have come in between.
        world = world._replace(history=world.history | {f"rerun of {at.judged}"})
        return self._go(world, index, "begin")

    def _claim(self, call: Call, world: World, index: int, move: str) -> World:
        at: At = world.actors[index]
        return self._go(world, index, "begin" if call("claim", index, at.turn, at.known) else "end")

    def _begin(self, call: Call, world: World, index: int, move: str) -> World:
        turn = world.actors[index].turn
        if move != "begin":
            call("release", index, turn)
            return self._go(world, index, "end")
        return self._go(world, index, "effect" if call("begin", index, turn) else "end")

    def _effect(self, call: Call, world: World, index: int, move: str) -> World:
        place, happened = EFFECT_ENDS[move]
        world = self._go(world, index, place)
        if not happened:
            return world
        token = token_of(index, world.actors[index].turn)
        return world._replace(effects=tuple(sorted((*world.effects, token))))

    def _report(self, call: Call, world: World, index: int, move: str) -> World:
        at: At = world.actors[index]
        accepted = call(at.place, index, at.turn)
        told = f"{at.place} of {token_of(index, at.turn)} {'accepted' if accepted else 'too late'}"
        return self._go(world, index, "end")._replace(history=world.history | {told})

    def _ask(self, call: Call, world: World, index: int, move: str) -> World:
        judged = world.actors[index].judged
        if move == "verify":
            return self._go(world, index, "settle yes" if judged in world.effects else "settle no")
        call("expire", judged)
        return self._go(world, index, "end")

    def _settle(self, call: Call, world: World, index: int, move: str) -> World:
        at: At = world.actors[index]
        happened = at.place == "settle yes"
        if call("resolve", at.judged, "happened" if happened else "did_not_happen"):
            if happened:
                return self._go(world, index, "end")
            world = world._replace(disowned=world.disowned | {at.judged})
            return self._go(world, index, "claim", known=True)
        turn = at.turn + 1
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

    def step(self, call: Call, world: World, index: int, move: str) -> World:
        at: At = world.actors[index]
        if at.place == "look":
            seen: Seen = call("look")
            place = {Verdict.DOUBT: "doubt", Verdict.REJECTED: "rejected"}.get(seen.verdict, "end")
            return world.actor(index, At(place, "" if place == "end" else seen.token))
        decision = DECISIONS[move]
        world = world.actor(index, At("end"))
        if not call("resolve", at.judged, decision):
            return world
        if decision == "did_not_happen":
            return world._replace(disowned=world.disowned | {at.judged})
        return world._replace(history=world.history | {f"{decision} by a person"})


class Authoriser:
    """Somebody who looks at the key at some moment, and later authorises a rerun of what was done there."""

    def start(self) -> At:
        return At("look")

    def moves(self, world: World, index: int) -> Sequence[str]:
        place = world.actors[index].place
        return () if place == "end" else (place,)

    def step(self, call: Call, world: World, index: int, move: str) -> World:
        at: At = world.actors[index]
        if move == "look":
            seen: Seen = call("look")
            return world.actor(
                index, At("authorise", seen.token) if seen.verdict is Verdict.DONE else At("end")
            )
        told = "accepted" if call("authorise", at.judged) else "refused"
        return world.actor(index, At("end"))._replace(
            history=world.history | {f"authorise of {at.judged} {told}"}
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

    def step(self, call: Call, world: World, index: int, move: str) -> World:
        at: int = world.actors[index]
        over = world.over | {self._of} if at == 0 else world.over - {self._of}
        return world.actor(index, at + 1)._replace(over=over)


def superseded(world: World) -> frozenset[str]:
    """Return the tokens of attempts that were executed once more on purpose."""
    return frozenset(told.removeprefix("rerun of ") for told in world.history if told.startswith("rerun of "))


def never_twice(bench: Bench, world: World, end: bool) -> None:
    """Assert that the effect has happened once at most, or somebody had said that it did not.

    :raises AssertionError: it has happened twice.
    """
    standing = [token for token in world.effects if token not in world.disowned | superseded(world)]
    assert len(standing) <= 1, "executed twice, and nobody had said that the first did not happen"


def keeps_the_promise(bench: Bench, world: World, end: bool) -> None:
    """Assert what must hold in every world, whoever is killed there: never twice, never lost.

    :raises AssertionError: it does not.
    """
    never_twice(bench, world, end)
    again = superseded(world)
    assert {f"authorise of {token} accepted" for token in again} <= world.history, (
        "a rerun that nobody authorised"
    )
    accepted = [
        told
        for told in world.history
        if told.startswith("complete") and told.endswith("accepted") and told.split()[2] not in again
    ]
    assert len(accepted) <= 1, "two attempts were told that theirs is the one"
    if world.row is None:
        assert not world.effects, "an effect that the ledger does not know"
        return
    gone = world._replace(over=EVERYBODY)  # as if all were killed here
    seen, _ = bench.make(gone, "look")
    if seen.verdict in CLAIMABLE:
        assert set(world.effects) <= world.disowned | again, (
            "an effect is forgotten: the key can be claimed again"
        )
        won, _ = bench.make(gone, "claim", SOMEBODY_NEW, 0, True)
        assert won, "the key is lost: it looks claimable and cannot be claimed"
    elif seen.verdict is Verdict.RERUN:
        won, _ = bench.make(gone, "claim_again", SOMEBODY_NEW, 0)
        assert won, "what is authorised cannot be claimed"
    elif seen.verdict is Verdict.DONE:
        said = {"happened by a person", "waive by a person"} & world.history
        assert world.effects or said, "completed without an effect, and nobody said so"
    elif seen.verdict is Verdict.DOUBT:
        for decision in ("happened", "did_not_happen"):
            settled, _ = bench.make(gone, "resolve", seen.token, decision)
            assert settled, f"the key is lost: in doubt, and nobody can say {decision}"
    else:
        assert seen.verdict is Verdict.REJECTED, f"the key is lost: {seen.verdict} with nobody at work"
