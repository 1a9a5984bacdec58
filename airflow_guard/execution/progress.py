"""How far a task over many documents is, in its log: a line now and then, by time."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

EVERY_S = 20.0
"""Between two lines. A task that is done sooner says nothing of it."""


class Progress:
    """Counts the documents that are through, whatever became of them, and says so now and then.

    :param of: how many the listing has, if that is known.
    :param clock: seconds that never go back.
    """

    def __init__(self, of: int | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.of = of
        self._clock = clock
        self._through = 0
        self._said = (clock(), 0)

    def more(self, count: int) -> None:
        """Count documents that are through."""
        self.reached(self._through + count)

    def reached(self, count: int) -> None:
        """Note how many documents are through in all."""
        self._through = count
        now, (before, had) = self._clock(), self._said
        if now - before >= EVERY_S:
            log.info(progress_words(count, self.of, (count - had) / (now - before)))
            self._said = (now, count)


def progress_words(through: int, of: int | None, per_second: float) -> str:
    """Return how far a task is.

    >>> progress_words(12_500, 100_000, 41.6)
    '12,500 of 100,000 documents are through, 41.6 per second, 87,500 left, about 35 min at this rate.'
    >>> progress_words(12_500, None, 0.25)
    '12,500 documents are through, 0.25 per second.'
    >>> progress_words(3, 4, 0.0)
    '3 of 4 documents are through, 0 per second, 1 left.'
    """
    rate = f"{per_second:.3g}" if per_second < 100 else f"{per_second:,.0f}"
    if of is None:
        return f"{through:,} documents are through, {rate} per second."
    left = max(of - through, 0)
    time_left = f", about {_duration(left / per_second)} at this rate" if left and per_second else ""
    return f"{through:,} of {of:,} documents are through, {rate} per second, {left:,} left{time_left}."


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
