"""Running units, one after another or on threads, and giving back what is not begun when the task must stop."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

from airflow_guard.core.errors import FollowUpFailed, LedgerError
from airflow_guard.core.report import Outcome
from airflow_guard.core.results import decode_result
from airflow_guard.execution.units import Unit, UnitResult, in_doubt, not_ours, unrecorded
from airflow_guard.execution.writer import PATIENCE_S, Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from airflow_guard.core.documents import Document
    from airflow_guard.execution.attempt import Attempt, StopFlag

log = logging.getLogger(__name__)
_NO_ANSWER = "the ledger does not answer"
STOPPED_BY_FAILURE = "stop_on_failure"
GRACE_S = 60.0
"""After a task timeout: how long documents in hand on other threads may take to finish."""


class Effect(Protocol):
    """Executes one unit; never raises."""

    def run(self, unit: Unit) -> UnitResult: ...


class Workers:
    """Runs the units of a task try and reports them.

    One worker works in the calling thread, so that Airflow's ``execution_timeout`` can interrupt the callable.

    :param keep_doubt: takes a unit that ended in doubt, in place of the report.
    """

    def __init__(
        self,
        attempt: Attempt,
        effect: Effect,
        writer: Writer,
        keep_doubt: Callable[[UnitResult], None] | None = None,
    ) -> None:
        self._try = attempt
        self._keep_doubt = keep_doubt
        self._effect = effect
        self._writer = writer
        alone = attempt.spec.database and attempt.ledger.one_writer
        self._threads = 1 if alone else attempt.spec.max_workers
        self._pending: list[UnitResult] = []
        self.result_error: BaseException | None = None

    def run(self, units: Sequence[Unit]) -> dict[str, Outcome]:
        """Run units and return what became of each key.

        :raises BaseException: what must end the task (a timeout, an exit), after everything else is settled.
        """
        outcomes: dict[str, Outcome] = {}
        fatal: BaseException | None = None
        results = self._in_turn(units) if self._threads == 1 else self._on_threads(units)
        for result in results:
            fatal = fatal or result.fatal
            self._note(result)
            self._try.progress.more(len(result.unit.documents))
            outcomes.update((document.key_hash, result.outcome) for document in result.unit.documents)
        self._collect()
        if fatal is not None:
            raise fatal
        return outcomes

    def _in_turn(self, units: Sequence[Unit]) -> Iterator[UnitResult]:
        for position, unit in enumerate(units):
            if self._try.stop:
                self._release(units[position:])
                return
            result = self._effect.run(unit)
            if result.fatal is not None:
                self._try.stop.set(f"{type(result.fatal).__name__}")
            yield result

    def _on_threads(self, units: Sequence[Unit]) -> Iterator[UnitResult]:
        threads = _Threads(self._effect, units, min(self._threads, len(units)), self._try.stop)
        try:
            yield from threads.results()
        except BaseException as error:
            # A task timeout strikes this thread, not the workers: let them finish what they have begun.
            self._try.stop.set(f"{type(error).__name__}")
            yield from threads.results(time.monotonic() + GRACE_S)
            for unit in threads.in_hand():
                self._try.ledger.doubt(
                    unit.own, unit.hashes, f"still at work {GRACE_S:.0f} s after the task had to end"
                )
            raise
        finally:
            self._release(threads.not_begun())

    def _release(self, units: Sequence[Unit]) -> None:
        """Give back units of one claim that have not begun, in one write."""
        if not units:
            return
        # What has happened first: whoever asked for the stop may soon kill the process.
        self._collect()
        why = f"released before it began: {self._try.stop.reason}"
        hashes = [key_hash for unit in units for key_hash in unit.hashes]
        try:
            self._try.ledger.fail(units[0].own, hashes, why, begun=False, patience_s=PATIENCE_S / 10)
        except Exception as error:
            log.warning("Could not release %d keys; others wait for the lease to end: %s", len(hashes), error)
        names = [document.name for unit in units for document in unit.documents]
        self._try.report.add_many(Outcome.RELEASED, names, self._try.stop.reason, "failed")
        self._try.report.retryable = True

    def _note(self, result: UnitResult) -> None:
        if result.outcome is Outcome.EXECUTED:
            if result.error is not None:
                self.result_error = self.result_error or result.error
                self._try.stop.set("a result cannot be stored")
            self._pending.append(result)
            return
        if result.unwritten:
            self._try.stop.set(_NO_ANSWER)
        if self._try.spec.stop_on_failure and result.outcome is not Outcome.REJECTED:
            self._try.stop.set(f"{STOPPED_BY_FAILURE}: {result.unit.name}")
        if result.outcome is Outcome.IN_DOUBT and self._keep_doubt is not None:
            self._keep_doubt(result)
            return
        for document in result.unit.documents:
            self._report_one(result, document)

    def _report_one(self, result: UnitResult, document: Document) -> None:
        if result.outcome is Outcome.REJECTED:
            self._try.report.add(Outcome.REJECTED, document.name, f"rejected now: {result.error}")
        elif result.error is not None:
            done = "done" if isinstance(result.error, FollowUpFailed) else None
            self._try.report.add_error(result.outcome, document.name, result.error, figure=done)

    def _collect(self) -> None:
        """Wait for the completions that were queued, and report their units."""
        self._writer.flush()
        for result in self._pending:
            problem = self._unwritten(result)
            names = [document.name for document in result.unit.documents]
            if problem is None:
                self._try.report.add_many(Outcome.EXECUTED, names)
            else:
                for name in names:
                    self._try.report.add_error(Outcome.IN_DOUBT, name, problem)
            if self._try.report.single and problem is None and result.text is not None:
                self._try.report.set_result(decode_result(result.text))
        self._pending.clear()

    def _unwritten(self, result: UnitResult) -> BaseException | None:
        if result.pending is None:
            return None
        try:
            return None if result.pending.ours() else not_ours(result.unit, self._try.ledger)
        except Exception as error:  # of the driver too: a trigger or a full disk may refuse one row
            if isinstance(error, LedgerError):
                self._try.stop.set(_NO_ANSWER)
            return unrecorded(result.unit, error)


class _Threads:
    """Threads that take units from one deque and put what became of them into one queue."""

    def __init__(self, effect: Effect, units: Sequence[Unit], count: int, stop: StopFlag) -> None:
        self._effect = effect
        self._stop = stop
        self._waiting = deque(units)
        self._results: queue.SimpleQueue[UnitResult | None] = queue.SimpleQueue()
        self._in_hand: dict[int, Unit] = {}
        self._alive = count
        for position in range(count):
            name = f"airflow-guard-worker-{position}"
            threading.Thread(target=self._work, args=(position,), name=name, daemon=True).start()

    def _work(self, position: int) -> None:
        while not self._stop:
            try:
                unit = self._waiting.popleft()
            except IndexError:
                break
            self._in_hand[position] = unit
            try:
                result = self._effect.run(unit)
            except (
                BaseException
            ) as error:  # an effect reports its errors; what it does not know about is a doubt
                result = UnitResult(unit, Outcome.IN_DOUBT, in_doubt(unit, error))
            if result.fatal is not None:
                self._stop.set(type(result.fatal).__name__)
            elif result.unwritten:
                self._stop.set(_NO_ANSWER)
            self._results.put(result)
            self._in_hand.pop(position, None)
        self._results.put(None)

    def results(self, deadline: float | None = None) -> Iterator[UnitResult]:
        """Yield results until all threads are done, or until a deadline (monotonic)."""
        while self._alive:
            try:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                result = self._results.get(timeout=left)
            except queue.Empty:
                return
            if result is None:
                self._alive -= 1
            else:
                yield result

    def in_hand(self) -> list[Unit]:
        """Return the units that threads are still at work on."""
        return list(self._in_hand.values())

    def not_begun(self) -> list[Unit]:
        """Take the units that no thread has taken."""
        units = []
        with contextlib.suppress(IndexError):
            while True:
                units.append(self._waiting.popleft())
        return units
