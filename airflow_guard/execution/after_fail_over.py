"""After a fail-over that lost commits: which keys may have been executed although the ledger does not say so."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_guard.store import fail_overs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_guard.core.documents import Document
    from airflow_guard.core.fail_over import FailOver
    from airflow_guard.execution.spec import GuardSpec
    from airflow_guard.execution.units import Unit
    from airflow_guard.store.ledger import Ledger
    from airflow_guard.store.task_runs import TaskTry

log = logging.getLogger(__name__)


class AfterFailOver:
    """What an open fail-over means for the claims of one task try.

    Nothing where the effect is in the ledger's own database, which lost the effect and its key together, and nothing in
    observe mode, which holds nothing back.
    """

    def __init__(self, ledger: Ledger, spec: GuardSpec, task_try: TaskTry) -> None:
        self._ledger = ledger
        self._key_date = task_try.space.key_date
        self._fail_over: FailOver | None = None
        self.newest: int | None = None
        """The open fail-over that the claims of this try know of, see :meth:`Ledger.claim`."""
        if spec.database or spec.mode == "observe":
            return
        self._fail_over = fail_overs.open_one(ledger.database)
        self.newest = self._fail_over.id if self._fail_over else 0
        compare_runs = spec.once_per == "date" and spec.on_other_run == "fail"
        self._forgets = self._fail_over is not None and self._fail_over.may_forget(
            task_try.identity, compare_runs=compare_runs
        )
        if self._fail_over is not None:
            log.warning("%s: %s", task_try.space.operation, self._fail_over.why)

    def unsure(self, new: Sequence[Document], known: Sequence[Document]) -> set[str]:
        """Return the keys that may have been executed. Asked before the claim, which makes them look new."""
        if self._fail_over is None:
            return set()
        forgotten = {document.key_hash for document in new} if self._forgets else set()
        hashes = [document.key_hash for document in known]
        return forgotten | fail_overs.not_trusted(self._ledger, self._key_date, hashes)

    def put_in_doubt(self, unit: Unit) -> set[str]:
        """Mark a claimed unit as in doubt since the fail-over, and return the keys that are no longer ours."""
        if self._fail_over is None:
            return set()
        return fail_overs.put_in_doubt(self._ledger, unit.own, unit.hashes, unit.batch_id, self._fail_over)
