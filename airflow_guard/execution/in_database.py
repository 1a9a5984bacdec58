"""An effect in the ledger's database: business rows and completion in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_guard.core.errors import (
    LedgerBusy,
    LedgerError,
    OwnershipLost,
    Rejected,
    TransactionError,
    UnknownCommit,
)
from airflow_guard.core.report import Outcome
from airflow_guard.core.results import encode_result
from airflow_guard.core.texts import described
from airflow_guard.execution.units import FirstEffect, Unit, UnitResult, in_doubt, unrecorded
from airflow_guard.execution.writer import PATIENCE_S
from airflow_guard.store.business_transaction import Ending
from airflow_guard.store.changes import BEGIN

if TYPE_CHECKING:
    from airflow_guard.execution.attempt import Attempt, LeaseKeeper
    from airflow_guard.store.business_transaction import BusinessTransaction


class DatabaseEffect:
    """Runs units whose effect is business rows."""

    def __init__(self, attempt: Attempt, keeper: LeaseKeeper) -> None:
        self._try = attempt
        self._keeper = keeper
        self._first = FirstEffect(attempt)

    def run(self, unit: Unit) -> UnitResult:
        """Execute a unit in one transaction."""
        transaction = self._try.ledger.transaction(unit.own, unit.hashes)
        text: str | None = None
        try:
            self._first.check(unit)
            self._keeper.ensure()
            with transaction as connection:
                if self._first.left(unit):
                    self._first.reverse(unit, connection=connection)
                values: dict[str, Any] = {**unit.values(), "connection": connection}
                with self._try.recorder.call(unit) as pushes:
                    value = self._try.callee.call(values)
                text = encode_result(value, self._try.spec.result_max_bytes)
                transaction.complete(
                    text, self._try.recorder.stored(unit, pushes, text, self._try.spec.result_max_bytes)
                )
        except UnknownCommit as error:
            return self._unknown(unit, transaction, text, error)
        except OwnershipLost as error:
            return UnitResult(unit, Outcome.FAILED, error)
        except BaseException as error:  # AirflowTaskTimeout and SystemExit roll back like any other
            return self._rolled_back(unit, transaction, error)
        return UnitResult(unit, Outcome.EXECUTED, text=text)

    def _unknown(
        self, unit: Unit, transaction: BusinessTransaction, text: str | None, error: UnknownCommit
    ) -> UnitResult:
        try:
            ending = transaction.ending()
        except UnknownCommit as still_unknown:
            return UnitResult(unit, Outcome.FAILED, still_unknown)
        if ending is Ending.COMMITTED:
            return UnitResult(unit, Outcome.EXECUTED, text=text)
        return self._rolled_back(unit, transaction, error)

    def _rolled_back(self, unit: Unit, transaction: BusinessTransaction, error: BaseException) -> UnitResult:
        fatal = None if isinstance(error, Exception) else error
        why = described(error)
        if transaction.self_ended:
            return self._self_ended(unit, error, why)
        # Nothing has happened, or the row shows it: nobody waits long for a ledger that is down.
        patience_s = PATIENCE_S / 10
        try:
            if isinstance(error, Rejected):
                outcome = Outcome.REJECTED
                lost = self._try.ledger.reject(unit.own, unit.hashes, error.reason, patience_s=patience_s)
            else:
                outcome = Outcome.FAILED
                lost = self._try.ledger.fail(unit.own, unit.hashes, why, begun=False, patience_s=patience_s)
            if lost and transaction.ending() is Ending.SELF_COMMITTED:
                self._try.ledger.doubt(unit.own, unit.hashes, why, patience_s=PATIENCE_S)
                return UnitResult(unit, Outcome.IN_DOUBT, in_doubt(unit, error), fatal=fatal)
        except Exception as problem:
            # Nothing was committed: the row stays claimed and is taken over once the lease ends.
            unwritten = isinstance(problem, LedgerError)
            failure = _busy(unit, error, problem)
            return UnitResult(unit, Outcome.FAILED, failure, fatal=fatal, unwritten=unwritten)
        return UnitResult(unit, outcome, error, fatal=fatal)

    def _self_ended(self, unit: Unit, error: BaseException, why: str) -> UnitResult:
        """Mark in doubt what may be committed past the ledger; where its rows were rolled back, they show nothing."""
        own, hashes = unit.own, unit.hashes
        if not isinstance(error, TransactionError):
            why += " (before that, the callable had ended the transaction that it was lent)"
        fatal = None if isinstance(error, Exception) else error
        try:
            self._try.ledger.write(
                lambda c: self._try.ledger.apply(c, own, BEGIN, hashes, batch=None), patience_s=PATIENCE_S
            )
            self._try.ledger.doubt(own, hashes, why, patience_s=PATIENCE_S)
        except Exception as problem:
            failure, unwritten = unrecorded(unit, problem), isinstance(problem, LedgerError)
            return UnitResult(unit, Outcome.IN_DOUBT, failure, fatal=fatal, unwritten=unwritten)
        return UnitResult(unit, Outcome.IN_DOUBT, in_doubt(unit, error), fatal=fatal)


def _busy(unit: Unit, error: BaseException, problem: Exception) -> Exception:
    if isinstance(problem, UnknownCommit):
        return unrecorded(unit, problem)
    failure = LedgerBusy(
        f"{unit.text}: rolled back ({described(error)}); that could not be written to "
        f"the ledger ({problem}), so the next attempt waits for the lease to end."
    )
    failure.__cause__ = error
    return failure
