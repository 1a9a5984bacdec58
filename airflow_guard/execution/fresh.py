"""Effects that came into doubt in this very try: before a person is asked about them, ``verify`` is."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_guard.core.doubts import Doubt
from airflow_guard.core.errors import GuardError, LedgerError, NotExecuted
from airflow_guard.core.report import Outcome, Report
from airflow_guard.core.states import State

if TYPE_CHECKING:
    from airflow_guard.core.keys import KeySpace
    from airflow_guard.execution.doubt import DoubtSettler
    from airflow_guard.execution.units import Unit, UnitResult
    from airflow_guard.store.ledger import Ledger

log = logging.getLogger(__name__)


class FreshDoubts:
    """Keeps units that ended in doubt out of the report until everything else is done.

    :param settler: asks ``verify``.
    """

    def __init__(self, ledger: Ledger, space: KeySpace, report: Report, settler: DoubtSettler) -> None:
        self._ledger = ledger
        self._space = space
        self._report = report
        self._settler = settler
        self._kept: list[UnitResult] = []

    def keep(self, result: UnitResult) -> None:
        """Take a unit that ended in doubt."""
        self._kept.append(result)

    def report_as_they_are(self) -> None:
        """Report what is kept, without asking anybody: the task ends at once."""
        for result in self._kept:
            self._in_doubt(result.unit, result.error)
        self._kept.clear()

    def settle(self) -> None:
        """Ask ``verify``, and report what became of each."""
        while self._kept:
            result = self._kept.pop(0)
            try:
                self._settle(result)
            except LedgerError as error:
                log.warning("%s stays in doubt, the ledger does not answer: %s", result.unit.name, error)
                self._in_doubt(result.unit, result.error)

    def _settle(self, result: UnitResult) -> None:
        unit = result.unit
        rows = self._ledger.read(self._space.key_date, unit.hashes)
        mine = [rows[key] for key in unit.hashes if key in rows and rows[key].state is State.IN_DOUBT]
        if len(mine) != len(unit.hashes) or any(row.owner_token != unit.own.token for row in mine):
            self._in_doubt(unit, result.error)  # it could not be written down, or somebody was faster
            return
        settled = self._settler.settle(self._space.key_date, unit.documents, mine)
        if settled.verdict == "happened":
            for document in unit.documents:
                self._report.add(Outcome.REPLAYED, document.name, "verify: this attempt had done it")
        elif settled.verdict == "not_happened":
            error = NotExecuted(
                f"{self._space.describe(unit.name)}: verify answered that it did not happen ({result.error}). "
                "Another try executes it."
            )
            error.__cause__ = result.error
            for document in unit.documents:
                self._report.add_error(Outcome.FAILED, document.name, error)
        elif settled.error is None:
            self._in_doubt(unit, result.error)
        else:
            self._report.add_doubt(Doubt(unit.documents, mine[0], settled.verify))
            self._in_doubt(unit, _caused(settled.error, result.error))

    def _in_doubt(self, unit: Unit, error: BaseException | None) -> None:
        for document in unit.documents:
            if error is not None:
                self._report.add_error(Outcome.IN_DOUBT, document.name, error)


def _caused(error: GuardError, cause: BaseException | None) -> GuardError:
    """Return an error that shows what the callable raised as its cause."""
    error.__cause__ = cause.__cause__ if isinstance(cause, GuardError) else cause
    return error
