"""A worker whose clock is hours off.

Only the clock that says what time it is: in one process, from one moment on, and without harm to the timers that measure
how long something takes. libfaketime (0.9.10) cannot do that: with its monotonic clock left alone, every sleep fails.
"""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import time_machine

SKEW_FILE = "CHAOS_SKEW"
_OFFSETS = (timedelta(hours=3), timedelta(hours=-5), timedelta(hours=26), timedelta(minutes=-40))


def leave_the_right_time(who: str) -> None:
    """Put the clock of this process wrong from now on, if the rig wants that of new tasks.

    :param who: decides by how much.
    """
    if Path(os.environ[SKEW_FILE]).is_file():
        number = hashlib.sha256(who.encode()).digest()[0]
        time_machine.travel(datetime.now(UTC) + _OFFSETS[number % len(_OFFSETS)], tick=True).start()
