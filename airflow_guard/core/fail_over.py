"""After a fail-over that lost commits: what the ledger may have forgotten, and what follows for a key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_guard.core.errors import ResolutionError

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_guard.core.guard import TaskIdentity


@dataclass(frozen=True, slots=True)
class FailOver:
    """A fail-over that a person has recorded and not closed; several are read as one.

    :param id: of the newest.
    :param lost_since: commits since then may be lost.
    :param recorded_at: when it was recorded, by the clock of the database that took over. What the ledger says of
        a time after it is trusted again.
    """

    id: int
    lost_since: datetime
    recorded_at: datetime

    def may_forget(self, identity: TaskIdentity, *, compare_runs: bool) -> bool:
        """Return whether a key that the ledger does not know may have been executed by a try that it lost.

        Not in an automatic run that was due after the recording, where two automatic runs never share a key: any
        earlier try would have belonged to this run.

        :param compare_runs: whether another automatic run with the same key is refused.
        """
        due = identity.run_after_at
        return not (compare_runs and identity.automatic and due is not None and due > self.recorded_at)

    @property
    def why(self) -> str:
        """What stands in a row that is put in doubt."""
        return (
            f"a fail-over was recorded ({self.recorded_at:%Y-%m-%d %H:%M} UTC) that may have lost what the ledger knew since "
            f"{self.lost_since:%Y-%m-%d %H:%M:%S} UTC: this may have been executed then"
        )


def check_lost_since(lost_since: datetime, now: datetime | None = None) -> None:
    """Refuse an instant that cannot be meant.

    :param now: the database's clock, where it is known already.
    :raises ResolutionError: it has no zone, or it is in the future.
    """
    if lost_since.tzinfo is None:
        raise ResolutionError(f"{lost_since.isoformat()} has no zone: add one, such as Z for UTC.")
    if now is not None and lost_since > now:
        raise ResolutionError(
            f"{lost_since.isoformat()} has not come yet ({now:%Y-%m-%d %H:%M:%S} UTC by the ledger's clock): nothing was "
            "lost then."
        )
