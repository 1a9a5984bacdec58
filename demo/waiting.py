"""Waiting for as long as anything moves: a slow machine is no failure, and what has stopped is one.

A wait ends as failed only when nothing has moved for a long while: no new line in a log, no new row, no other state.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["QUIET_S", "NothingMoves", "Patience", "cpu_used", "sizes", "wait"]

QUIET_S = 240.0
"""Without any sign of life for so long, something has stopped. The longest that a starved machine was seen to need for one
line of a log is a tenth of it."""


class NothingMoves(TimeoutError):
    """What was waited for has not come, and nothing has moved for a long while."""


class Patience:
    """Lasts as long as the signs of life change.

    :param what: what is waited for, "the run to end".
    :param signs: returns what moves while work is done: sizes of logs, numbers of rows, states. Another value is a sign of
        life. What the waiting itself moves must not be among it.
    :param quiet_s: how long nothing may move.
    :param clock: seconds that never go back.
    """

    def __init__(
        self,
        what: str,
        signs: Callable[[], object] = lambda: None,
        *,
        quiet_s: float = QUIET_S,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._what = what
        self._signs = signs
        self._quiet_s = quiet_s
        self._clock = clock or time.monotonic
        self._began = self._moved = self._clock()
        self._seen = signs()

    def check(self) -> None:
        """Return while there is reason to wait.

        :raises NothingMoves: there is none any more.
        """
        now, seen = self._clock(), self._signs()
        if seen != self._seen:
            self._seen, self._moved = seen, now
        elif now - self._moved > self._quiet_s:
            raise NothingMoves(
                f"waited {now - self._began:.0f} s for {self._what}; nothing has moved for the last "
                f"{now - self._moved:.0f} s"
            )


def wait(
    done: Callable[[], bool],
    what: str,
    signs: Callable[[], object] = lambda: None,
    *,
    every_s: float = 0.05,
    quiet_s: float = QUIET_S,
) -> None:
    """Wait until something is so.

    :param done: asked again and again.
    :param what: see :class:`Patience`, as ``signs`` and ``quiet_s``.
    :raises NothingMoves: it is still not so, and nothing moves.
    """
    patience = Patience(what, signs, quiet_s=quiet_s)
    while not done():
        patience.check()
        time.sleep(every_s)


def sizes(*places: Path) -> tuple[int, int]:
    """Return how many files there are in some places, below folders too, and how large they are: they grow with each line."""
    files = [file for place in places for file in (place.rglob("*") if place.is_dir() else [place])]
    found = [file.stat().st_size for file in files if file.is_file()]
    return len(found), sum(found)


def cpu_used(pid: int) -> float | None:
    """Return the seconds of processor time that a process has used, rounded to tenths; ``None`` if it is gone."""
    import psutil  # type: ignore[import-untyped]

    try:
        used = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return None
    return round(float(used.user + used.system), 1)
