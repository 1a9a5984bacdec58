"""Waits last as long as anything moves, by a clock that the test sets."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from demo import waiting
from demo.waiting import QUIET_S, NothingMoves, Patience, cpu_used, sizes, wait

if TYPE_CHECKING:
    from pathlib import Path


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_patience_has_no_end_while_something_moves() -> None:
    clock, rows = Clock(), [0]
    patience = Patience("the month", lambda: rows[0], clock=clock)
    for _ in range(100):
        clock.now += QUIET_S - 1
        rows[0] += 1
        patience.check()
    assert clock.now > 6 * 3600


def test_patience_ends_when_nothing_has_moved_for_long_and_says_for_what() -> None:
    clock, rows = Clock(), [0]
    patience = Patience("the month", lambda: rows[0], clock=clock)
    clock.now = 1000
    rows[0] = 1
    patience.check()
    clock.now += QUIET_S
    patience.check()
    clock.now += 1
    with pytest.raises(
        NothingMoves, match=f"waited 1241 s for the month; nothing has moved for the last {QUIET_S + 1:.0f} s"
    ):
        patience.check()


def test_a_wait_ends_with_what_it_waits_for_or_with_its_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, asked = Clock(), [0]
    monkeypatch.setattr(waiting.time, "monotonic", clock)
    monkeypatch.setattr(waiting.time, "sleep", lambda seconds: setattr(clock, "now", clock.now + seconds))

    def third_time() -> bool:
        asked[0] += 1
        return asked[0] == 3

    wait(third_time, "the third time", every_s=7)
    assert (asked, clock.now) == ([3], 14)

    def never() -> bool:
        return False

    with pytest.raises(NothingMoves):
        wait(never, "nothing", every_s=1, quiet_s=30)
    assert 44 < clock.now < 48


def test_a_line_in_any_log_below_a_folder_is_a_sign_of_life(tmp_path: Path) -> None:
    log = tmp_path / "dag" / "run" / "attempt=1.log"
    log.parent.mkdir(parents=True)
    seen = [sizes(tmp_path, tmp_path / "not there")]
    for line in ("began\n", "went on\n"):
        with log.open("a") as file:
            file.write(line)
        seen.append(sizes(tmp_path, tmp_path / "not there"))
    assert len(set(seen)) == 3


def test_processor_time_of_a_process_that_is_gone_is_none() -> None:
    assert cpu_used(os.getpid()) is not None
    assert cpu_used(2**22 + 1) is None
