"""One thread that writes begin marks and completions, as many as are pending in one commit.

No effect begins before its mark is committed: :meth:`GroupWriter.begin` returns after the commit. A completion never
waits for a begin: its write is queued, and what it came to is read from a future. A group that fails is redone one by
one, so that one bad row fails alone.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType

import sqlalchemy as sa

from airflow_guard.core.errors import OwnershipLost
from airflow_guard.core.states import FollowUp
from airflow_guard.store.ledger import BEGIN, COMPLETE, Ledger, Ownership

PATIENCE_S = 300.0
"""How long a completion is tried when the ledger is down: the effect has happened and must be recorded. Begin marks
get a tenth of it: nothing has happened yet."""
MAX_GROUP = 128
LINGER_S = 0.002


@dataclass(slots=True)
class _Entry:
    own: Ownership
    key_hash: str
    begins: bool
    outcome: str | None = None
    follow_up: FollowUp = FollowUp.NONE
    why: str | None = None
    written: Future[bool] = field(default_factory=Future)

    @property
    def is_plain(self) -> bool:
        """Whether it is a completion with a result and nothing else: those share one statement."""
        return self.why is None and self.follow_up is FollowUp.NONE and self.outcome is not None


class GroupWriter:
    """Context manager around the begin marks and completions of one task try.

    :param ledger: where to write.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._queue: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="airflow-guard-writer", daemon=True)

    def __enter__(self) -> GroupWriter:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._queue.put(None)
        self._thread.join()

    def begin(self, own: Ownership, key_hash: str) -> None:
        """Mark one effect as begun; return when that is committed.

        :raises OwnershipLost: another attempt owns the key now; do not execute (retryable).
        :raises LedgerUnavailable: do not execute (retryable).
        """
        entry = _Entry(own, key_hash, begins=True)
        self._queue.put(entry)
        if not entry.written.result():
            raise OwnershipLost("Another attempt has taken this key over, or a person has resolved it. Not executed.")

    def complete(
        self,
        own: Ownership,
        key_hash: str,
        outcome: str | None,
        *,
        follow_up: FollowUp = FollowUp.NONE,
        why: str | None = None,
    ) -> Future[bool]:
        """Queue one completion. The future gives whether the key was still ours, or raises a LedgerError."""
        entry = _Entry(own, key_hash, begins=False, outcome=outcome, follow_up=follow_up, why=why)
        self._queue.put(entry)
        return entry.written

    def _work(self) -> None:
        while True:
            entry = self._queue.get()
            if entry is None:
                return
            group, last = self._gather(entry)
            self._write_group(group)
            if last:
                return

    def _gather(self, entry: _Entry) -> tuple[list[_Entry], bool]:
        """Return what is pending, and whether the end was reached.

        Completions alone linger for a moment: the same worker's next begin mark is usually microseconds away, and
        one commit then serves both.
        """
        group, until = [entry], time.monotonic() + LINGER_S
        while len(group) < MAX_GROUP:
            only_completions = not any(pending.begins for pending in group)
            left = until - time.monotonic() if only_completions else 0.0
            try:
                more = self._queue.get(timeout=left) if left > 0 else self._queue.get_nowait()
            except queue.Empty:
                break
            if more is None:
                return group, True
            group.append(more)
        return group, False

    def _write_group(self, group: Sequence[_Entry]) -> None:
        if len(group) > 1:
            try:
                lost = self._ledger.write(lambda connection: self._apply(connection, group))
            except Exception:  # noqa: S110 - redone one by one below, where each gets its own error
                pass
            else:
                for entry in group:
                    entry.written.set_result(id(entry) not in lost)
                return
        # Completions first: their effects have happened, and they must not wait behind a begin that does.
        started = time.monotonic()
        for entry in sorted(group, key=lambda entry: entry.begins):
            self._write_one(entry, started)

    def _write_one(self, entry: _Entry, started: float) -> None:
        patience = PATIENCE_S / 10 if entry.begins else PATIENCE_S
        left = max(0.0, started + patience - time.monotonic())
        try:
            lost = self._ledger.write(lambda connection: self._apply(connection, [entry]), patience_s=left)
        except BaseException as error:  # handed to whoever waits for the future
            entry.written.set_exception(error)
        else:
            entry.written.set_result(not lost)

    def _apply(self, connection: sa.Connection, group: Sequence[_Entry]) -> set[int]:
        """Write a group in one transaction and return the ids of the entries whose keys are no longer ours."""
        lost: set[int] = set()
        for own in {entry.own.token: entry.own for entry in group}.values():
            mine = [entry for entry in group if entry.own.token == own.token]
            done = [entry for entry in mine if not entry.begins]
            plain = [entry for entry in done if entry.is_plain]
            lost |= self._apply_plain(connection, own, plain)
            for entry in done:
                if entry.is_plain:
                    continue
                if self._ledger.apply(
                    connection, own, COMPLETE, [entry.key_hash],
                    outcome=entry.outcome, follow=entry.follow_up.value, why=entry.why,
                ):  # fmt: skip
                    lost.add(id(entry))
            begins = {entry.key_hash: id(entry) for entry in mine if entry.begins}
            if begins:
                gone = self._ledger.apply(connection, own, BEGIN, list(begins), batch=None)
                lost |= {begins[key_hash] for key_hash in gone}
        return lost

    def _apply_plain(self, connection: sa.Connection, own: Ownership, plain: Sequence[_Entry]) -> set[int]:
        if not plain:
            return set()
        outcomes = {entry.key_hash: entry.outcome or "" for entry in plain}
        gone = self._ledger.complete_each(connection, own, outcomes)
        return {id(entry) for entry in plain if entry.key_hash in gone}
