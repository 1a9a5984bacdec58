"""What became of one run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_guard.core.report import Outcome, Report

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_guard.core.errors import GuardError


@dataclass(frozen=True)
class Run:
    """What became of one run.

    :param report: counts and samples, see :class:`~airflow_guard.core.report.Report`.
    :param error: what would fail the task, ``None`` if it succeeded.
    :param summary: what a task with several documents returns.
    """

    report: Report
    error: GuardError | None
    summary: Mapping[str, Any]

    @property
    def result(self) -> Any:
        """What the task returns: the result of one document or of the whole run, else the summary."""
        return self.report.result if self.report.single else self.summary

    @property
    def retryable(self) -> bool:
        """Whether the task failed so that another try can help without a person."""
        return self.error is not None and self.error.retryable

    @property
    def lines(self) -> list[str]:
        """What the task's log says: one line per outcome and explanation."""
        return list(self.report.log_lines())

    @property
    def errors(self) -> Sequence[tuple[str | None, BaseException]]:
        """Documents that did not come through and why; the first few."""
        return self.report.errors

    @property
    def executed(self) -> int:
        """How many documents the callable was called for, with success."""
        return self._count(Outcome.EXECUTED, Outcome.OBSERVED)

    @property
    def replayed(self) -> int:
        """How many were done before (with ``on_duplicate="skip"`` too)."""
        return self._count(Outcome.REPLAYED, Outcome.SKIPPED)

    @property
    def rejected(self) -> int:
        """How many the business refused, now or before."""
        return self._count(Outcome.REJECTED)

    @property
    def failed(self) -> int:
        """How many failed where nothing has happened."""
        return self._count(Outcome.FAILED)

    @property
    def in_doubt(self) -> int:
        """How many may or may not have happened."""
        return self._count(Outcome.IN_DOUBT)

    @property
    def blocked(self) -> int:
        """How many the ledger forbids: another run's, changed content, a failed follow-up, …"""
        return self._count(Outcome.BLOCKED)

    @property
    def waiting(self) -> int:
        """How many another attempt is at work on. The operator would wait for them; a test run does not."""
        return self._count(Outcome.WAITING)

    def _count(self, *outcomes: Outcome) -> int:
        return sum(self.report.counts[outcome] for outcome in outcomes)
