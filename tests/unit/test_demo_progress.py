"""What the demo shows: which step of how many, and what it waits for where no bar can move."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from demo import progress
from demo.progress import Screen


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the screen, which the test sets."""
    seconds = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds[0])
    return seconds


def test_steps_are_numbered_and_a_wait_is_said_now_and_then(now: list[float]) -> None:
    out = io.StringIO()
    screen = Screen(Console(file=out, width=200), 2)
    screen.waiting("nothing, between two steps")
    with screen.step("The month is posted") as step:
        for _ in range(40):
            now[0] += 1
            step.count(7, 31)
            screen.waiting("the backfill to end")
        step.note("done with it")
    with screen.step("It is counted"):
        now[0] += 3
    # Some releases of rich leave an empty line where a bar was.
    assert [line for line in out.getvalue().splitlines() if line] == [
        "1/2 The month is posted",
        "  · 15 s, waits for the backfill to end, 7 of 31",
        "  · 30 s, waits for the backfill to end, 7 of 31",
        "  · done with it",
        "  ✓ 40 s",
        "2/2 It is counted",
        "  ✓ 3 s",
    ]
