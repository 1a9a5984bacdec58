"""One try of a guarded task as all of its parts see it: its values, its lease, how far it is, and whether to stop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from airflow_guard.core.errors import LedgerError, Stopped
from airflow_guard.core.report import Report
from airflow_guard.execution.pushing import Recorder
from airflow_guard.store.changes import Ownership

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import TracebackType

    from airflow_guard.core.guard import TaskIdentity
    from airflow_guard.core.keys import KeySpace
    from airflow_guard.execution.spec import Callee, GuardSpec
    from airflow_guard.store.port import LedgerPort, Settle
    from airflow_guard.store.task_runs import TaskTry

log = logging.getLogger(__name__)

Listing = Callable[[], Iterable[Any]]
"""Gives a fresh iterable of what a task lists: ids or mappings."""

EVERY_S = 20.0
"""Between two lines of progress. A task that is done sooner says nothing of it."""
_HELD = "max_hold is over"


class StopFlag:
    """Why nothing new may begin."""

    def __init__(self) -> None:
        # No lock: a signal handler sets it, perhaps while the thread that it interrupts does so too.
        self._is_set = False
        self.reason = ""

    def set(self, reason: str) -> None:
        """Let documents in hand finish and begin no other."""
        self.reason = self.reason or reason
        self._is_set = True

    def __bool__(self) -> bool:
        return self._is_set


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


@dataclass(frozen=True, eq=False)
class Attempt:
    """What all parts of one try share. Made when the try begins, and made anew once the ledger has recorded it.

    :param ledger: migrated.
    :param settle: settles in it what is in doubt.
    :param spec: the rules.
    :param task_try: who asks, with the resolved business date in its key space.
    :param callee: the user's callable.
    :param verify: ``External.verify``, where given.
    :param on_rerun: ``on_rerun`` of the side effect, where given.
    :param dag_task_ids: the tasks that the DAG has now, for the key-drift check.
    :param others_to_come: tells whether other instances of a mapped task are still to list their documents.
    :param recorder: notes what the callable pushes, and what is to be pushed again.
    :param stop: says why nothing new may begin.
    :param report: takes what becomes of each document.
    :param progress: takes how many documents are through.
    :param task_run_id: of the try in the ledger, 0 until it is recorded.
    :param resumed: whether the try goes on after a deferral: what it did before counts as executed.
    """

    ledger: LedgerPort
    settle: Settle
    spec: GuardSpec
    task_try: TaskTry
    callee: Callee
    verify: Callee | None = None
    on_rerun: Callee | None = None
    dag_task_ids: Collection[str] = ()
    others_to_come: Callable[[], bool] = lambda: False
    recorder: Recorder = field(default_factory=Recorder)
    stop: StopFlag = field(default_factory=StopFlag)
    report: Report = field(default_factory=lambda: Report(single=False))
    progress: Progress = field(default_factory=Progress)
    task_run_id: int = 0
    resumed: bool = False

    @property
    def identity(self) -> TaskIdentity:
        """Who asks."""
        return self.task_try.identity

    @cached_property
    def space(self) -> KeySpace:
        """Which keys it has."""
        return self.task_try.space

    @cached_property
    def actor(self) -> str:
        """Who asks, in words."""
        return self.task_try.identity.describe()

    @property
    def compares_runs(self) -> bool:
        """Whether a key of another automatic run counts as done by others."""
        return self.spec.once_per == "date" and self.spec.on_other_run == "fail"

    def new_ownership(self) -> Ownership:
        """Return what the writes after a claim of this try carry."""
        return Ownership.new(self.space.key_date, self.task_run_id, self.actor)


class LeaseKeeper:
    """Renews the lease of a task try in the background, at a third of its length, for at most ``max_hold``.

    Only the database's clock decides when a lease is over; this process's monotonic clock decides when to ask for
    more, which does no harm if it is wrong.

    Once ``max_hold`` is over, the try is to stop.

    ``failures`` counts the renewals that failed, ``lapses`` those that were answered so late that the lease may have
    been over before.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._try = attempt
        self._lease_s = attempt.spec.lease.total_seconds()
        self._max_hold_s = attempt.spec.max_hold.total_seconds()
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
            self._try.stop.set(_HELD)
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
                self._try.stop.set(_HELD)
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
        self._try.ledger.runs.renew(self._try.task_run_id, self._lease_s, create=True)
        if time.monotonic() > self._renewed + self._lease_s:
            self.lapses += 1
        self._renewed = asked


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
