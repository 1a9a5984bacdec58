"""Keeping a lease while a task works."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Self

from airflow_guard.core.errors import LedgerError, Stopped

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from types import TracebackType

    from airflow_guard.store.task_runs import TaskRuns

log = logging.getLogger(__name__)
_HELD = "max_hold is over"


class LeaseKeeper:
    """Renews the lease of a task try in the background, at a third of its length, for at most ``max_hold``.

    Only the database's clock decides when a lease is over; this process's monotonic clock decides when to ask for
    more, which does no harm if it is wrong.

    :param runs: where leases are.
    :param task_run_id: whose lease.
    :param over: told why nothing new may begin, once ``max_hold`` is over.

    ``failures`` counts the renewals that failed, ``lapses`` those that were answered so late that the lease may have
    been over before.
    """

    def __init__(
        self,
        runs: TaskRuns,
        task_run_id: int,
        lease: timedelta,
        max_hold: timedelta,
        over: Callable[[str], None],
    ) -> None:
        self._runs = runs
        self._over = over
        self._task_run_id = task_run_id
        self._lease_s = lease.total_seconds()
        self._max_hold_s = max_hold.total_seconds()
        self.failures = 0
        self.lapses = 0
        self._stop = threading.Event()
        self._started = self._renewed = time.monotonic()
        self._thread = threading.Thread(target=self._keep, name="airflow-guard-lease", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    @property
    def held_too_long(self) -> bool:
        """Whether ``max_hold`` is over: nothing new may begin."""
        return self._hold_left_s <= 0

    @property
    def _hold_left_s(self) -> float:
        return self._started + self._max_hold_s - time.monotonic()

    def ensure(self) -> None:
        """Renew now if the last renewal is older than a lease (the process was stopped, or the ledger was down).

        :raises LedgerUnavailable: the lease cannot be renewed: begin nothing (retryable).
        :raises Stopped: ``max_hold`` is over: begin nothing (retryable).
        """
        if self.held_too_long:
            self._over(_HELD)
            raise Stopped(f"{_HELD}: nothing new begins.")
        if time.monotonic() - self._renewed > self._lease_s * 0.8:
            self._renew()

    def may_have_lapsed(self, lapses: int) -> bool:
        """Whether the lease may have been over, or is now, since ``lapses`` was read.

        A lease that was over for a moment is enough: others may have acted on it, and :meth:`ensure` does not see that.
        """
        return self.lapses != lapses or time.monotonic() > self._renewed + self._lease_s

    def _keep(self) -> None:
        while not self._stop.wait(min(self._lease_s / 3, self._hold_left_s)):
            if self.held_too_long:
                log.warning(
                    "The lease was held for max_hold and is not renewed any more; nothing new begins."
                )
                self._over(_HELD)
                return
            try:
                self._renew()
            except LedgerError as error:
                self.failures += 1
                log.warning("The lease could not be renewed, trying again: %s", error)
            except Exception:
                self.failures += 1
                log.exception("The lease could not be renewed, trying again")

    def _renew(self) -> None:
        asked = time.monotonic()
        self._runs.renew(self._task_run_id, self._lease_s, create=True)
        if time.monotonic() > self._renewed + self._lease_s:
            self.lapses += 1
        self._renewed = asked
