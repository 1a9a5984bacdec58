"""Waiting until other attempts let go of keys, without holding a worker."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypedDict

from airflow.sdk import BaseHook
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_guard.airflow_compat import AirflowNotFoundException
from airflow_guard.core.errors import GuardError, LedgerError
from airflow_guard.hooks.ledger import ledger_of, not_found, still_held
from airflow_guard.hooks.settings import GuardSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from airflow_guard.store.ledger import Ledger

log = logging.getLogger(__name__)

MAX_WATCHED = 50
"""Keys that one trigger watches. A task that waits for more looks again when these are free."""


class LedgerEvent(TypedDict):
    """What the trigger reports. It carries all that the task needs to go on.

    ``task_run_id`` of the try that waits; ``deadline_at`` of its wait, ISO 8601; ``held``: how many of the
    watched keys are still held, more than 0 only if the deadline has come; ``error``: why the ledger could
    not be asked.
    """

    task_run_id: int
    deadline_at: str
    held: int
    error: str | None


class LedgerTrigger(BaseTrigger):
    """Fires when none of the keys is held by another attempt any more, or when the deadline has come.

    A ledger that does not answer is asked again until the deadline.

    :param ledger_conn_id: connection of the ledger.
    :param key_date: the keys' date in the ledger, ISO 8601.
    :param hashes: the keys, at most 50.
    :param task_run_id: of the try that waits.
    :param deadline_at: when to give up, ISO 8601 with offset.
    :param poll_interval_s: seconds between two looks.
    :param first_pause_s: seconds before the first look.
    """

    def __init__(
        self,
        *,
        ledger_conn_id: str,
        key_date: str,
        hashes: Sequence[str],
        task_run_id: int,
        deadline_at: str,
        poll_interval_s: float,
        first_pause_s: float = 0.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ledger_conn_id = ledger_conn_id
        self.key_date = key_date
        self.hashes = list(hashes)
        self.task_run_id = task_run_id
        self.deadline_at = deadline_at
        self.poll_interval_s = poll_interval_s
        self.first_pause_s = first_pause_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the trigger as Airflow stores it: small plain values, and no secret."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "ledger_conn_id": self.ledger_conn_id,
                "key_date": self.key_date,
                "hashes": self.hashes,
                "task_run_id": self.task_run_id,
                "deadline_at": self.deadline_at,
                "poll_interval_s": self.poll_interval_s,
                "first_pause_s": self.first_pause_s,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look at the ledger until the keys are free or the deadline has come."""
        deadline = datetime.fromisoformat(self.deadline_at)
        ledger: Ledger | None = None
        await asyncio.sleep(self.first_pause_s)
        while True:
            error = None
            try:
                held = 0
                if self.hashes:
                    ledger = ledger or await self._open()
                    held = len(await self._held(ledger))
            except GuardError as problem:
                held, error = len(self.hashes), str(problem)
                if isinstance(problem, LedgerError) and problem.retryable:
                    log.warning("The ledger does not answer, asking again: %s", problem)
                else:
                    # No later look will be better: the task fails with the same error and its own words.
                    held, deadline = 0, datetime.now(UTC)
            left = deadline - datetime.now(UTC)
            if not held or left <= timedelta(0):
                yield TriggerEvent(dict(self._event(held, error)))  # type: ignore[no-untyped-call]
                return
            await asyncio.sleep(min(self.poll_interval_s, left.total_seconds()))

    async def _open(self) -> Ledger:
        try:
            connection = await BaseHook.aget_connection(self.ledger_conn_id)
        except AirflowNotFoundException as error:
            raise not_found(self.ledger_conn_id) from error
        # Opening asks the database, which must not hold up the other triggers of this process.
        return await asyncio.to_thread(ledger_of, connection, GuardSettings.read())

    async def _held(self, ledger: Ledger) -> dict[str, str]:
        return await asyncio.to_thread(still_held, ledger, date.fromisoformat(self.key_date), self.hashes)

    def _event(self, held: int, error: str | None) -> LedgerEvent:
        return {
            "task_run_id": self.task_run_id,
            "deadline_at": self.deadline_at,
            "held": held,
            "error": error,
        }
