"""How a check of two sides ends, what state a break is in, and when a difference has settled.

A difference is no break yet: rows may arrive late. It settles when it was seen the same way so many times in a
row, or when the time is over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class CheckOutcome(StrEnum):
    """How a check ended.

    ``PASSED``: both sides were read and agree. ``BROKEN``: they differ. ``EMPTY``: neither has a row, and
    nobody said that this is right. ``FAILED``: they could not be compared.
    """

    PASSED = "passed"
    BROKEN = "broken"
    EMPTY = "empty"
    FAILED = "failed"


class BreakState(StrEnum):
    """State of a break.

    ``OPEN``: somebody has to look at it. ``EXPLAINED``: a person accepts it as it is, with a reason; another
    amount opens it again. ``RESOLVED``: it is gone, or a person has settled it; found again it is open again.
    """

    OPEN = "open"
    EXPLAINED = "explained"
    RESOLVED = "resolved"


class Step(StrEnum):
    """What to do after one look at the two sides."""

    PASS = "pass"  # noqa: S105 - the two sides agree
    WAIT = "wait"
    SETTLED = "settled"
    TIME_OVER = "time_over"


@dataclass(frozen=True)
class Progress:
    """What the looks so far have seen. Kept between them, wherever the task waits.

    :param pokes: looks so far.
    :param same: how many of the last ones saw the same difference, 0 if the last one saw none.
    :param difference: digest of that difference.
    :param errors: looks that could not read a side.
    :param last_error: what the last of them said.
    """

    pokes: int = 0
    same: int = 0
    difference: str | None = None
    errors: int = 0
    last_error: str | None = None

    def saw(self, difference: str | None) -> Progress:
        """Return the progress after a look that read both sides.

        :param difference: digest of all that differs, ``None`` if nothing does.
        """
        same = 0 if difference is None else self.same + 1 if difference == self.difference else 1
        return replace(self, pokes=self.pokes + 1, same=same, difference=difference)

    def failed(self, error: str) -> Progress:
        """Return the progress after a look that could not read a side. It says nothing about the difference."""
        return replace(self, pokes=self.pokes + 1, errors=self.errors + 1, last_error=error)


def step_after(progress: Progress, *, compared: bool, settle_pokes: int, time_over: bool) -> Step:
    """Return what to do after a look.

    :param progress: with that look in it.
    :param compared: whether it read both sides.
    :param settle_pokes: how often in a row the same difference must be seen.
    :param time_over: whether ``timeout`` has passed since the first look.
    """
    if compared and progress.difference is None:
        return Step.PASS
    if compared and progress.same >= settle_pokes:
        return Step.SETTLED
    return Step.TIME_OVER if time_over else Step.WAIT
