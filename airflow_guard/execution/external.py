"""Executing an effect outside the ledger's database."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from airflow_guard.core.commands import resolve_command, show_command
from airflow_guard.core.errors import (
    ConfigurationError,
    FollowUpFailed,
    InDoubt,
    InDoubtUnsettled,
    LedgerError,
    NotExecuted,
    OwnershipLost,
    Rejected,
    ResultError,
)
from airflow_guard.core.report import Outcome
from airflow_guard.core.results import UNSTORED, encode_result
from airflow_guard.core.states import FollowUp
from airflow_guard.core.texts import described
from airflow_guard.execution.reversal import in_doubt_note
from airflow_guard.execution.units import Unit, UnitResult
from airflow_guard.execution.window import EffectWindow, Reached
from airflow_guard.execution.writer import PATIENCE_S, Writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_guard.core.results import Pushes
    from airflow_guard.execution.lease import LeaseKeeper
    from airflow_guard.execution.pushing import Recorder
    from airflow_guard.execution.reversal import FirstEffect
    from airflow_guard.execution.spec import Callee, GuardSpec
    from airflow_guard.store.ledger import Ledger

log = logging.getLogger(__name__)


class ExternalEffect:
    """Runs units whose effect is outside.

    :param callee: the user's callable.
    :param keeper: the lease that must live when an effect begins.
    """

    def __init__(
        self, ledger: Ledger, spec: GuardSpec, callee: Callee, writer: Writer, keeper: LeaseKeeper,
        first: FirstEffect, *, recorder: Recorder,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._spec = spec
        self._callee = callee
        self._writer = writer
        self._keeper = keeper
        self._first = first
        self._recorder = recorder
        self._safe = tuple(spec.external.safe_errors)
        self._narrowed = "effect" in callee.names

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
            with self._recorder.call(unit) as pushes:
                value = self._callee.call(unit.values(unit.space.business_date))
        except BaseException as error:  # AirflowTaskTimeout and SystemExit count too
            return self._failed(unit, error, entered=entered)
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
            self._ledger.begin_together(unit.own, unit.hashes, unit.batch_id)
        self._check_in_time(unit, lapses)

    def _check_in_time(self, unit: Unit, lapses: int) -> None:
        if self._keeper.may_have_lapsed(lapses):
            raise NotExecuted(
                f"{unit.name}: the ledger noted the beginning so late that the lease may be over. Nothing was begun."
            )

    def _done(self, unit: Unit, value: Any, pushes: Pushes) -> UnitResult:
        text, why = self._encode(value)
        pushed = self._recorder.stored(unit, pushes, text, self._spec.result_max_bytes)
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
                not self._ledger.complete(
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
            return encode_result(value, self._spec.result_max_bytes), None
        except ResultError as error:
            return None, f"{UNSTORED}: {error}"

    def _recorded(
        self,
        unit: Unit,
        write: Callable[[], bool],
        result: UnitResult,
        lost: Callable[[Unit, Ledger], OwnershipLost] | None = None,
    ) -> UnitResult:
        """Write an ending; if that fails, the unit counts as in doubt, which the row shows once its lease ends.

        :param lost: makes the error for a key that is another attempt's now; by default that of an effect.
        """
        try:
            if write():
                return result
            error = (lost or not_ours)(unit, self._ledger)
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
            lost = self._ledger.fail(unit.own, unit.hashes, why, begun=True, patience_s=PATIENCE_S / 10)
        except Exception as problem:
            log.warning(
                "%s could not be given back; others wait for the lease to end: %s", unit.name, problem
            )
            result.unwritten = isinstance(problem, LedgerError)
        else:
            if lost:
                result.error = taken(unit, self._ledger)
                result.error.__cause__ = error
        return result

    def _failed(self, unit: Unit, error: BaseException, *, entered: bool) -> UnitResult:
        fatal = None if isinstance(error, Exception) else error
        if isinstance(error, Rejected):
            return self._recorded(
                unit,
                lambda: not self._ledger.reject(unit.own, unit.hashes, error.reason, patience_s=PATIENCE_S),
                UnitResult(unit, Outcome.REJECTED, error, fatal=fatal),
                taken,
            )
        if not entered:
            return self._not_entered(unit, error)
        why = described(error)
        if self._is_safe(unit, error):
            return self._recorded(
                unit,
                lambda: not self._ledger.fail(unit.own, unit.hashes, why, begun=True, patience_s=PATIENCE_S),
                UnitResult(unit, Outcome.FAILED, error, fatal=fatal),
                taken,
            )
        doubtful = UnitResult(unit, Outcome.IN_DOUBT, in_doubt(unit, error), fatal=fatal)
        if self._spec.mode == "observe":
            # Recorded as what it is, but nothing is held back: the task fails as it would without the guard.
            doubtful = UnitResult(unit, Outcome.FAILED, error, fatal=fatal)
        return self._recorded(
            unit,
            lambda: not self._ledger.doubt(unit.own, unit.hashes, why, patience_s=PATIENCE_S),
            doubtful,
            ended_elsewhere,
        )

    # -- callables that take ``effect`` ---------------------------------------------------------------------

    def _run_narrowed(self, unit: Unit) -> UnitResult:
        window = EffectWindow(
            lambda: self._begin(unit), lambda: self._window_done(unit), () if unit.batch_id else self._safe
        )
        try:
            with self._recorder.call(unit) as pushes:
                value = self._callee.call({**unit.values(unit.space.business_date), "effect": window})
        except BaseException as error:
            if window.reached is Reached.DONE:
                return self._follow_up_failed(unit, error)
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
            ours = not self._ledger.complete(
                unit.own, unit.hashes, None, follow_up=FollowUp.PENDING, patience_s=PATIENCE_S
            )
        if not ours:
            raise not_ours(unit, self._ledger)

    def _follow_up_done(self, unit: Unit, value: Any, pushes: Pushes) -> UnitResult:
        text, why = self._encode(value)
        pushed = self._recorder.stored(unit, pushes, text, self._spec.result_max_bytes)
        problem = unstored(unit, why) if why is not None else None
        try:
            self._ledger.end_follow_up(
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

    def _follow_up_failed(self, unit: Unit, error: BaseException) -> UnitResult:
        why = described(error)
        try:
            self._ledger.end_follow_up(
                unit.own, unit.hashes, outcome=None, failed=True, why=why, patience_s=PATIENCE_S
            )
        except Exception:
            log.exception("The failed follow-up could not be recorded; it shows as pending")
        failure = FollowUpFailed(
            f"{unit.space.describe(unit.name)}: the effect is done, what follows it failed: {why}. It is not executed "
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


def in_doubt(unit: Unit, error: BaseException) -> InDoubt:
    """Return the error for a unit whose effect may or may not have happened."""
    ask = f"sk the receiver about {unit.receiver_key}, then: {resolve_command(unit.hashes[0], ledger=unit.ledger)}"
    what = f"{unit.space.describe(unit.name)} is in doubt: {described(error)}. The effect may or may not have happened"
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    failure = (
        InDoubt(f"{what}, and is not repeated. A{ask} (or --did-not-happen){notes}")
        if unit.next_try is None
        else InDoubtUnsettled(
            f"{what}. The next try {unit.next_try}. To settle it before that, a{ask} (or --did-not-happen){notes}"
        )
    )
    failure.__cause__ = error
    return failure


def unstored(unit: Unit, why: str) -> ResultError:
    """Return the error for an effect that is done, and whose result nobody can have.

    :param why: as the ledger notes it.
    """
    return ResultError(
        f"{unit.space.describe(unit.name)}: the effect is done, {why} It is not executed again, also not after a clear: "
        f"the task fails until a person settles it: "
        f"{resolve_command(unit.hashes[0], decision='followed_up', ledger=unit.ledger)}. Then the task returns None for it."
    )


def not_ours(unit: Unit, ledger: Ledger) -> OwnershipLost:
    """Return the error for an effect that happened while its key went to another attempt, or was settled."""
    return _lost(unit, ledger, "executed, but", "It may have happened twice; compare with the receiver.")


def ended_elsewhere(unit: Unit, ledger: Ledger) -> OwnershipLost:
    """Return the error for an effect that may have happened while its key went to another attempt, or was settled."""
    return _lost(
        unit, ledger, "ended inside its effect, and", "It may have happened twice; compare with the receiver."
    )


def taken(unit: Unit, ledger: Ledger) -> OwnershipLost:
    """Return the error for a key that went to another attempt, or was settled, before anything was done here."""
    return _lost(unit, ledger, "nothing was executed here, and", "")


def _lost(unit: Unit, ledger: Ledger, here: str, then: str) -> OwnershipLost:
    return OwnershipLost(
        f"{unit.space.describe(unit.name)}: {here} the key is no longer this attempt's: "
        f"{ledger.let_go_by(unit.own, unit.hashes[0])}. {then}{' ' if then else ''}See: "
        f"{show_command(unit.hashes[0], ledger=unit.ledger)}"
    )


def unrecorded(unit: Unit, problem: Exception) -> InDoubt:
    """Return the error for an ending that could not be written."""
    text = (
        f"{unit.space.describe(unit.name)}: how it ended could not be written to the ledger ({problem}). The row shows "
        "it as in doubt once its lease is over."
    )
    failure = (
        InDoubt(text)
        if unit.next_try is None
        else InDoubtUnsettled(f"{text} Then the next try {unit.next_try}.")
    )
    failure.__cause__ = problem
    return failure
