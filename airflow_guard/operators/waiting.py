"""Waiting for keys that another attempt is at work on."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from airflow_guard.core.errors import InProgressElsewhere, LedgerError
from airflow_guard.core.report import Outcome, Report
from airflow_guard.hooks.ledger import still_held
from airflow_guard.triggers import SHORTEST_DEFERRAL_S
from airflow_guard.triggers.ledger import MAX_WATCHED, LedgerTrigger

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_guard.store.ledger import Ledger

log = logging.getLogger(__name__)

_MARGIN_S = 0.05
"""So much longer than asked a pause lasts: the clock that it is compared with is the database's."""
_BACK = timedelta(seconds=30)
"""So long a task may need to come back from a wait for its doubts."""
_SLICE_S = 0.5
"""How long a sleep may last before a request to stop is noticed."""
BACKSTOP = timedelta(minutes=15)
"""How much longer than its trigger a task waits: a triggerer that is down must not keep it forever."""


def pause(length_s: float, stopped: Callable[[], bool]) -> None:
    """Sleep in this process, as long as the task is not asked to stop."""
    # In slices, and not on an event: the handler that would set it runs in this same thread.
    until = time.monotonic() + length_s
    while (left := until - time.monotonic()) > 0 and not stopped():
        time.sleep(min(left, _SLICE_S))


@dataclass(frozen=True)
class Wait:
    """The wait of one task try.

    :param deadline_at: when it is over, however often it was interrupted.
    :param poll_interval: between two looks at the ledger.
    :param settles_in_s: before so many seconds are over, nothing can have changed.
    """

    deadline_at: datetime
    poll_interval: timedelta
    settles_in_s: float = 0.0

    @staticmethod
    def of(timeout: timedelta, poll_interval: timedelta, deadline_at: str | None = None) -> Wait:
        """Return the wait that begins now, or goes on until a deadline that was set before a deferral."""
        deadline = datetime.fromisoformat(deadline_at) if deadline_at else datetime.now(UTC) + timeout
        return Wait(deadline, poll_interval)

    def until_settled(self, left_s: float) -> Wait:
        """Return the wait that lasts at least until the doubts of a task can be settled.

        However long that is: how long a call can be on its way, the task itself has said (``settle_after``).
        """
        if left_s <= 0:
            return replace(self, settles_in_s=0.0)
        pause = left_s + _MARGIN_S
        deadline = datetime.now(UTC) + timedelta(seconds=pause) + max(self.poll_interval, _BACK)
        return replace(self, deadline_at=max(self.deadline_at, deadline), settles_in_s=pause)

    @property
    def left(self) -> timedelta:
        """How long it may last still."""
        return max(self.deadline_at - datetime.now(UTC), timedelta(0))

    @property
    def is_long(self) -> bool:
        """Whether it may be the triggerer's: a wait that ends sooner stays with its worker."""
        return self.left.total_seconds() >= SHORTEST_DEFERRAL_S

    def here(self, ledger: Ledger, key_date: date, report: Report, stopped: Callable[[], bool]) -> bool:
        """Wait in this process until the keys are free.

        :param stopped: whether the task was asked to stop.
        :return: whether to look again; otherwise the time is over, or the task is to stop.
        """
        hashes = watched(report)
        held = True
        while held and self.left:
            # First a pause: that the keys are held was read a moment ago.
            self._pause(stopped, others=bool(hashes))
            if stopped():
                return False
            try:
                held = bool(hashes and still_held(ledger, key_date, hashes))
            except LedgerError as error:
                if not error.retryable:
                    raise
                log.warning("The ledger does not answer, asking again: %s", error)
        return not held

    def trigger(self, conn_id: str, key_date: date, report: Report, task_run_id: int) -> LedgerTrigger:
        """Return the trigger that waits in place of this process."""
        return LedgerTrigger(
            ledger_conn_id=conn_id,
            key_date=key_date.isoformat(),
            hashes=watched(report),
            task_run_id=task_run_id,
            deadline_at=self.deadline_at.isoformat(),
            poll_interval_s=self.poll_interval.total_seconds(),
            first_pause_s=max(SHORTEST_DEFERRAL_S, self.settles_in_s),
        )

    def _pause(self, stopped: Callable[[], bool], *, others: bool) -> None:
        pause_s = max(self.settles_in_s, self.poll_interval.total_seconds() if others else 0.0)
        pause(min(pause_s, self.left.total_seconds()), stopped)


def watched(report: Report) -> list[str]:
    """Return the keys to wait for. When they are free, the task looks at all of its documents again."""
    return [held.key_hash for held in report.waiting[:MAX_WATCHED]]


def wait_over(report: Report, what: str, timeout: timedelta, *, stopped: bool) -> InProgressElsewhere:
    """Return the error for a wait that ended without result. Names who holds the keys.

    :param stopped: whether it ended because the task was asked to stop.
    """
    count = report.counts[Outcome.WAITING]
    held = report.waiting[0]
    first = f"document {held.document}" if held.document is not None else "the whole run"
    more = f" (and {count - 1:,} more)" if count > 1 else ""
    when = "when the task was asked to stop" if stopped else f"after a wait of {timeout} (wait_timeout)"
    return InProgressElsewhere(
        f"{what}: still in progress elsewhere {when}: {first}{more}, held by "
        f"{held.holder}. Nothing of it was executed here; another try finds its result."
    )
