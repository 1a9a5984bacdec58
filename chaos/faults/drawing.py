"""Which faults there are, and which one comes next.

A seed decides the order of the faults and each one's own numbers, so that a run can be repeated as far as real
processes can: the same faults in the same order, at the same places in the same lists.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from chaos.rig import Rig

_PATIENCE_S = 5.0
_Item = TypeVar("_Item")


class NothingToHit(Exception):
    """The fault finds no victim at this moment."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault.

    :param strike: does it, and returns what was hit.
    :param stalls: something stands still meanwhile. One such fault at a time: two after another could last longer than
        ``settle_after``, which the tasks were promised.
    :param often: how many of them are in each deck.
    :param celery: only where tasks run in Celery's workers.
    """

    name: str
    strike: Callable[[Strike], str]
    stalls: bool = False
    often: int = 1
    celery: bool = False


FAULTS: dict[str, Fault] = {}


def fault(
    name: str, *, stalls: bool = False, often: int = 1, celery: bool = False
) -> Callable[[Callable[[Strike], str]], Callable[[Strike], str]]:
    """Register a function as a fault."""

    def register(function: Callable[[Strike], str]) -> Callable[[Strike], str]:
        FAULTS[name] = Fault(name, function, stalls, often, celery)
        return function

    return register


@dataclass
class Strike:
    """One fault as it is carried out.

    :param after: does something after so many seconds, which ends the fault.
    :param later: the same, and no other fault lets anything stand still before.
    """

    rig: Rig
    draw: random.Random
    after: Callable[[float, Callable[[], None]], None]
    later: Callable[[float, Callable[[], None]], None]

    def choose(self, items: Sequence[_Item]) -> _Item:
        """Choose one.

        :raises NothingToHit: there is none.
        """
        if not items:
            raise NothingToHit
        return items[self.draw.randrange(len(items))]

    def seconds(self, least: float, most: float) -> float:
        """Draw a time."""
        return round(self.draw.uniform(least, most), 1)


def drawn(seed: int, faults: Sequence[Fault]) -> Iterator[tuple[Fault, float, random.Random]]:
    """Yield faults for ever: the fault, how long to wait before it, and its own numbers.

    They are dealt from shuffled decks, so that each kind comes as often as it is meant to. Of each deck each kind comes
    once before any comes again: a short run sees most kinds.
    """
    draw = random.Random(seed)
    number = 0
    while True:
        once, again = list(faults), [each for each in faults for _ in range(each.often - 1)]
        draw.shuffle(once)
        draw.shuffle(again)
        for each in once + again:
            number += 1
            yield each, round(draw.uniform(0.3, 4.0), 1), random.Random(f"{seed}/{number}")


@dataclass
class Chaos:
    """Carries out faults one after another, and ends them when their time is over."""

    rig: Rig
    seed: int
    faults: Sequence[Fault]
    say: Callable[[str], None]
    done: dict[str, int] = field(default_factory=dict)
    _pending: list[threading.Timer] = field(default_factory=list)
    _stalled_until: float = 0.0
    _began: float = field(default_factory=time.monotonic)

    @property
    def count(self) -> int:
        """How many faults were carried out."""
        return sum(self.done.values())

    def carry_out(self, number: int, deadline: float, enough: Callable[[], bool] = lambda: False) -> None:
        """Carry out so many faults, or fewer if the time is over or it is enough."""
        for each, pause_s, draw in drawn(self.seed, self.faults):
            if self.count >= number or time.monotonic() > deadline or enough():
                return
            time.sleep(pause_s)
            if each.stalls:
                time.sleep(max(0.0, self._stalled_until - time.monotonic()))
            self._strike(each, draw)

    def _strike(self, each: Fault, draw: random.Random) -> None:
        strike = Strike(self.rig, draw, self._after, self._later)
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            began = time.monotonic() - self._began
            try:
                target = each.strike(strike)
            except NothingToHit:
                if time.monotonic() > deadline:
                    self.say(f"{began:7.1f} s       {each.name}: nothing to hit, not counted")
                    return
                time.sleep(0.3)
            else:
                self.done[each.name] = self.done.get(each.name, 0) + 1
                self.say(f"{began:7.1f} s  {self.count:4}  {each.name}: {target}")
                return

    def _later(self, seconds: float, undo: Callable[[], None]) -> None:
        self._stalled_until = max(self._stalled_until, time.monotonic() + seconds + 1)
        self._after(seconds, undo)

    def _after(self, seconds: float, undo: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, undo)
        timer.daemon = True
        timer.start()
        self._pending.append(timer)

    def end(self) -> None:
        """Wait until every fault is over."""
        for timer in self._pending:
            timer.join()
        self._pending.clear()


def described(row: dict[str, Any]) -> str:
    """Name a task try."""
    mapped = "" if row["map_index"] < 0 else f" [{row['map_index']}]"
    return f"{row['dag_id']}.{row['task_id']}{mapped} of {row['run_id']}, try {row['try_number']}"
