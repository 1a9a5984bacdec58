"""An effect outside the ledger's database: the callable, the window that it may open, and how each ending is written."""

from __future__ import annotations

import contextlib
import logging
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

from airflow_guard.core.commands import resolve_command
from airflow_guard.core.errors import (
    ConfigurationError,
    FollowUpFailed,
    InDoubt,
    LedgerError,
    NotExecuted,
    OwnershipLost,
    Rejected,
    ResultError,
)
from airflow_guard.core.report import Outcome
from airflow_guard.core.results import UNSTORED, encode_result, unfinished
from airflow_guard.core.states import FollowUp
from airflow_guard.core.texts import described
from airflow_guard.execution.units import (
    FirstEffect,
    Unit,
    UnitResult,
    ended_elsewhere,
    in_doubt,
    in_doubt_note,
    not_ours,
    taken,
    unrecorded,
    unstored,
)
from airflow_guard.execution.writer import PATIENCE_S, Writer

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from airflow_guard.core.results import Pushes
    from airflow_guard.execution.attempt import Attempt, LeaseKeeper
    from airflow_guard.store.port import LedgerPort

log = logging.getLogger(__name__)


class Reached(StrEnum):
    """How far a callable got with its window."""

    BEFORE = "before"
    INSIDE = "inside"
    REFUTED = "refuted"
    DONE = "done"


class EffectWindow:
    """What a callable gets as ``effect``.

    Entering commits "begun"; leaving normally commits "completed", the follow-up pending; leaving with an error that
    proves that nothing happened (``NotExecuted``, ``Rejected``, ``safe_errors``) allows to enter again; any other
    error means in doubt.

    :param begin: commits the begin mark, or finds it committed; raises if the key is no longer ours.
    :param done: commits the completion.
    :param safe_errors: see :class:`~airflow_guard.core.effects.External`; empty for batches.
    """

    def __init__(
        self,
        begin: Callable[[], None],
        done: Callable[[], None],
        safe_errors: tuple[type[Exception], ...] = (),
    ) -> None:
        self._begin = begin
        self._done = done
        self._harmless: tuple[type[BaseException], ...] = (NotExecuted, Rejected, *safe_errors)
        self.reached = Reached.BEFORE

    def __enter__(self) -> Self:
        if self.reached in (Reached.INSIDE, Reached.DONE):
            raise ConfigurationError(
                f'"with effect:" was entered again ({self.reached.value}). One document has one effect: split the '
                "task, or put both calls into one window."
            )
        # Also when it is entered again: the key may have gone to another attempt while nothing was under way.
        self._begin()
        self.reached = Reached.INSIDE
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._done()
            self.reached = Reached.DONE
        elif isinstance(error, self._harmless):
            self.reached = Reached.REFUTED


class ExternalEffect:
    """Runs units whose effect is outside.

    :param keeper: the lease that must live when an effect begins.
    """

    def __init__(self, attempt: Attempt, writer: Writer, keeper: LeaseKeeper) -> None:
        self._try = attempt
        self._writer = writer
        self._keeper = keeper
        self._first = FirstEffect(attempt)
        self._safe = tuple(attempt.spec.external.safe_errors)
        self._narrowed = "effect" in attempt.callee.names

    def run(self, unit: Unit) -> UnitResult:
        """Execute a unit; every ending is written to the ledger before this returns, or is pending."""
        if unit.generation > 1:
            ended = self._reverse_first(unit)
            if ended is not None:
                return ended
        if self._narrowed:
            return self._run_narrowed(unit)
        entered = False
        try:
            self._begin(unit)
            entered = True
            with self._try.recorder.call(unit) as pushes:
                value = self._try.callee.call(unit.values())
        except BaseException as error:  # AirflowTaskTimeout and SystemExit count too
            return self._failed(unit, error, entered=entered)
        if (why := unfinished(value)) is not None:
            return self._failed(
                unit, ConfigurationError(f"{why}. Let it return when it is done."), entered=True
            )
        return self._done(unit, value, pushes)

    def _reverse_first(self, unit: Unit) -> UnitResult | None:
        """Reverse the first effect before the second; return how the unit ended if that was the end of it.

        The keys stay begun from before the reversal until after the second effect: what dies in between is in doubt.
        """
        entered = False
        try:
            self._first.check(unit)
            if not self._first.left(unit):
                return None
            self._keeper.ensure()
            lapses = self._keeper.lapses
            self._first.begin(unit)
            entered = True  # from here on the ledger says so
            self._check_in_time(unit, lapses)
            self._first.reverse(unit)
            self._first.done(unit, patience_s=PATIENCE_S)
        except BaseException as error:
            if entered and self._is_safe(unit, error):
                with contextlib.suppress(LedgerError):  # it stays begun, and a person says what became of it
                    self._first.refuted(unit, patience_s=PATIENCE_S)
            elif entered:
                error.add_note(in_doubt_note(unit))
            return self._failed(unit, error, entered=entered)
        return None

    def _is_safe(self, unit: Unit, error: BaseException) -> bool:
        # A batch is one effect for many documents: once inside, one refused connection proves nothing for all.
        proven = isinstance(error, (NotExecuted, Rejected))
        return proven or (unit.batch_id is None and isinstance(error, self._safe))

    def _begin(self, unit: Unit) -> None:
        """Commit the begin mark.

        :raises NotExecuted: the answer came so late that the lease may be over: to others the effect may have happened
            since, and ``verify`` may have told them that it did not. A retry helps.
        """
        self._keeper.ensure()
        lapses = self._keeper.lapses
        if unit.batch_id is None:
            self._writer.begin(unit.own, unit.hashes[0])
        else:
            self._try.ledger.begin_together(unit.own, unit.hashes, unit.batch_id)
        self._check_in_time(unit, lapses)

    def _check_in_time(self, unit: Unit, lapses: int) -> None:
        if self._keeper.may_have_lapsed(lapses):
            raise NotExecuted(
                f"{unit.name}: the ledger noted the beginning so late that the lease may be over. Nothing was begun."
            )

    def _done(self, unit: Unit, value: Any, pushes: Pushes) -> UnitResult:
        text, why = self._encode(value)
        pushed = self._try.recorder.stored(unit, pushes, text, self._try.spec.result_max_bytes)
        problem, follow_up = None, FollowUp.NONE
        if why is not None:
            problem, follow_up = unstored(unit, why), FollowUp.FAILED
        if unit.batch_id is None:
            pending = self._writer.complete(
                unit.own, unit.hashes[0], text, follow_up=follow_up, why=why, pushed=pushed
            )
            return UnitResult(unit, Outcome.EXECUTED, problem, text, pending)
        return self._recorded(
            unit,
            lambda: (
                not self._try.ledger.complete(
                    unit.own,
                    unit.hashes,
                    text,
                    follow_up=follow_up,
                    why=why,
                    pushed=pushed,
                    patience_s=PATIENCE_S,
                )
            ),
            UnitResult(unit, Outcome.EXECUTED, problem, text),
        )

    def _encode(self, value: Any) -> tuple[str | None, str | None]:
        """Return what is stored of a result, and why it cannot be, as the note of its key."""
        try:
            return encode_result(value, self._try.spec.result_max_bytes), None
        except ResultError as error:
            return None, f"{UNSTORED}: {error}"

    def _recorded(
        self,
        unit: Unit,
        write: Callable[[], bool],
        result: UnitResult,
        lost: Callable[[Unit, LedgerPort], OwnershipLost] | None = None,
    ) -> UnitResult:
        """Write an ending; if that fails, the unit counts as in doubt, which the row shows once its lease ends.

        :param lost: makes the error for a key that is another attempt's now; by default that of an effect.
        """
        try:
            if write():
                return result
            error = (lost or not_ours)(unit, self._try.ledger)
        except Exception as problem:  # of the driver too: a trigger or a full disk may refuse one row
            return UnitResult(
                unit,
                Outcome.IN_DOUBT,
                unrecorded(unit, problem),
                fatal=result.fatal,
                unwritten=isinstance(problem, LedgerError),
            )
        # Not the doubt: its advice is for a key that is still this attempt's.
        error.__cause__ = result.error.__cause__ if isinstance(result.error, InDoubt) else result.error
        return UnitResult(unit, Outcome.FAILED, error, fatal=result.fatal)

    def _not_entered(self, unit: Unit, error: BaseException) -> UnitResult:
        """Give back what was not begun. Nothing has happened, so nobody waits long for a ledger that is down."""
        result = UnitResult(
            unit, Outcome.FAILED, error, fatal=None if isinstance(error, Exception) else error
        )
        if isinstance(error, OwnershipLost):
            return result
        why = described(error)
        try:
            lost = self._try.ledger.fail(unit.own, unit.hashes, why, begun=True, patience_s=PATIENCE_S / 10)
        except Exception as problem:
            log.warning(
                "%s could not be given back; others wait for the lease to end: %s", unit.name, problem
            )
            result.unwritten = isinstance(problem, LedgerError)
        else:
            if lost:
                result.error = taken(unit, self._try.ledger)
                result.error.__cause__ = error
        return result

    def _failed(self, unit: Unit, error: BaseException, *, entered: bool) -> UnitResult:
        fatal = None if isinstance(error, Exception) else error
        if isinstance(error, Rejected):
            return self._recorded(
                unit,
                lambda: (
                    not self._try.ledger.reject(unit.own, unit.hashes, error.reason, patience_s=PATIENCE_S)
                ),
                UnitResult(unit, Outcome.REJECTED, error, fatal=fatal),
                taken,
            )
        if not entered:
            return self._not_entered(unit, error)
        why = described(error)
        if self._is_safe(unit, error):
            return self._recorded(
                unit,
                lambda: (
                    not self._try.ledger.fail(unit.own, unit.hashes, why, begun=True, patience_s=PATIENCE_S)
                ),
                UnitResult(unit, Outcome.FAILED, error, fatal=fatal),
                taken,
            )
        doubtful = UnitResult(unit, Outcome.IN_DOUBT, in_doubt(unit, error), fatal=fatal)
        if self._try.spec.mode == "observe":
            # Recorded as what it is, but nothing is held back: the task fails as it would without the guard.
            doubtful = UnitResult(unit, Outcome.FAILED, error, fatal=fatal)
        return self._recorded(
            unit,
            lambda: not self._try.ledger.doubt(unit.own, unit.hashes, why, patience_s=PATIENCE_S),
            doubtful,
            ended_elsewhere,
        )

    # -- callables that take ``effect`` ---------------------------------------------------------------------

    def _run_narrowed(self, unit: Unit) -> UnitResult:
        pushes: Pushes | None = None
        window = EffectWindow(
            lambda: self._begin(unit), lambda: self._window_done(unit), () if unit.batch_id else self._safe
        )
        try:
            with self._try.recorder.call(unit) as pushes:
                value = self._try.callee.call({**unit.values(), "effect": window})
        except BaseException as error:
            if window.reached is Reached.DONE:
                return self._follow_up_failed(unit, error, pushes)
            inside = window.reached is Reached.INSIDE
            if not inside and not isinstance(error, Rejected):
                return self._not_reached(unit, error)
            return self._failed(unit, error, entered=inside)
        if window.reached is Reached.INSIDE:
            return self._failed(unit, ConfigurationError("the effect window was never left"), entered=True)
        if window.reached is not Reached.DONE:
            return self._not_reached(unit, ConfigurationError(_NEVER_ENTERED))
        return self._follow_up_done(unit, value, pushes)

    def _not_reached(self, unit: Unit, error: BaseException) -> UnitResult:
        return self._failed(unit, error, entered=False)

    def _window_done(self, unit: Unit) -> None:
        if unit.batch_id is None:
            mark = self._writer.complete(unit.own, unit.hashes[0], None, follow_up=FollowUp.PENDING)
            self._writer.flush()
            ours = mark.ours()
        else:
            ours = not self._try.ledger.complete(
                unit.own, unit.hashes, None, follow_up=FollowUp.PENDING, patience_s=PATIENCE_S
            )
        if not ours:
            raise not_ours(unit, self._try.ledger)

    def _follow_up_done(self, unit: Unit, value: Any, pushes: Pushes) -> UnitResult:
        text, why = self._encode(value)
        pushed = self._try.recorder.stored(unit, pushes, text, self._try.spec.result_max_bytes)
        problem = unstored(unit, why) if why is not None else None
        try:
            self._try.ledger.end_follow_up(
                unit.own,
                unit.hashes,
                outcome=text,
                failed=why is not None,
                why=why,
                pushed=pushed,
                patience_s=PATIENCE_S,
            )
        except Exception as error:
            unwritten = isinstance(error, LedgerError)
            return UnitResult(unit, Outcome.FAILED, unrecorded(unit, error), unwritten=unwritten)
        return UnitResult(unit, Outcome.EXECUTED, problem, text)

    def _follow_up_failed(self, unit: Unit, error: BaseException, pushes: Pushes | None) -> UnitResult:
        why, pushed = described(error), None
        if pushes is not None:
            pushed = self._try.recorder.stored(unit, pushes, None, self._try.spec.result_max_bytes)
        try:
            self._try.ledger.end_follow_up(
                unit.own,
                unit.hashes,
                outcome=None,
                failed=True,
                why=why,
                pushed=pushed,
                patience_s=PATIENCE_S,
            )
        except Exception:
            log.exception("The failed follow-up could not be recorded; it shows as pending")
        failure = FollowUpFailed(
            f"{unit.text}: the effect is done, what follows it failed: {why}. It is not executed "
            f"again. Finish the follow-up by hand, then: "
            f"{resolve_command(unit.hashes[0], decision='followed_up', ledger=unit.ledger)}"
        )
        failure.__cause__ = error
        return UnitResult(
            unit, Outcome.BLOCKED, failure, fatal=None if isinstance(error, Exception) else error
        )


_NEVER_ENTERED = (
    'the callable takes "effect" and returned without "with effect:": nothing was executed. Enter the window around '
    'the call, raise Rejected or NotExecuted, or do not take "effect".'
)
