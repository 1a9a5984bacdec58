"""Writing begin marks and completions, as many as are pending in one commit.

No effect begins before its mark is committed: ``begin`` returns after the commit. A completion never waits for a begin
of another document; what became of it is asked from its :class:`Mark`. A group that fails is redone one by one, so that
one bad row fails alone.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, Protocol, Self

from airflow_guard.core.errors import OwnershipLost
from airflow_guard.core.states import FollowUp
from airflow_guard.store.changes import BEGIN, COMPLETE, Ownership

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    import sqlalchemy as sa

    from airflow_guard.store.port import LedgerPort

PATIENCE_S = 300.0
"""How long a completion is tried when the ledger is down: the effect has happened and must be recorded. Begin marks
get a tenth of it: nothing has happened yet."""
MAX_GROUP = 128
LINGER_S = 0.002


class Mark:
    """One begin mark or completion on its way to the ledger.

    A lock is the cheapest thing that one thread can wait on for another, and there are two marks a document.
    """

    __slots__ = (
        "_done",
        "_error",
        "_lost",
        "begins",
        "follow_up",
        "key_hash",
        "outcome",
        "own",
        "pushed",
        "why",
    )

    def __init__(
        self,
        own: Ownership,
        key_hash: str,
        *,
        begins: bool,
        outcome: str | None = None,
        follow_up: FollowUp = FollowUp.NONE,
        why: str | None = None,
        pushed: str | None = None,
    ) -> None:
        self.own = own
        self.key_hash = key_hash
        self.begins = begins
        self.outcome = outcome
        self.follow_up = follow_up
        self.why = why
        self.pushed = pushed
        self._done = threading.Lock()
        self._done.acquire()
        self._lost = False
        self._error: BaseException | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it is a completion with a result and nothing else: those share one statement."""
        only = self.why is None and self.pushed is None and self.follow_up is FollowUp.NONE
        return only and self.outcome is not None

    def ours(self) -> bool:
        """Wait until it is written; return whether the key was still ours.

        :raises LedgerError: it could not be written.
        """
        with self._done:
            if self._error is not None:
                raise self._error
            return not self._lost

    def settle(self, *, lost: bool = False, error: BaseException | None = None) -> None:
        """Tell whoever waits (called by the writer; again if a timeout struck between two writes of the same mark)."""
        self._lost, self._error = lost, error
        if self._done.locked():
            self._done.release()


class Writer(Protocol):
    """What executes begin marks and completions."""

    def begin(self, own: Ownership, key_hash: str) -> None: ...

    def complete(
        self,
        own: Ownership,
        key_hash: str,
        outcome: str | None,
        *,
        follow_up: FollowUp = FollowUp.NONE,
        why: str | None = None,
        pushed: str | None = None,
    ) -> Mark: ...

    def flush(self) -> None: ...


_TAKEN = "Another attempt has taken this key over, or a person has resolved it. Not executed."


class InlineWriter:
    """For one worker: the completion of a document and the begin mark of the next share a commit, in this thread.

    :param ledger: where to write.
    """

    def __init__(self, ledger: LedgerPort) -> None:
        self._groups = _Groups(ledger)
        self._pending: list[Mark] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.flush()
        finally:
            self._groups.close()

    def begin(self, own: Ownership, key_hash: str) -> None:
        """Mark one effect as begun; return when that is committed.

        :raises OwnershipLost: another attempt owns the key now; do not execute (retryable).
        :raises LedgerUnavailable: do not execute (retryable).
        """
        mark = Mark(own, key_hash, begins=True)
        # If a task timeout strikes here, the completions stay pending and are written again: they can be repeated.
        self._groups.write([*self._pending, mark])
        self._pending.clear()
        if not mark.ours():
            raise OwnershipLost(_TAKEN)

    def complete(
        self,
        own: Ownership,
        key_hash: str,
        outcome: str | None,
        *,
        follow_up: FollowUp = FollowUp.NONE,
        why: str | None = None,
        pushed: str | None = None,
    ) -> Mark:
        """Keep one completion for the next commit."""
        mark = Mark(own, key_hash, begins=False, outcome=outcome, follow_up=follow_up, why=why, pushed=pushed)
        self._pending.append(mark)
        return mark

    def flush(self) -> None:
        """Write what is pending."""
        pending, self._pending = self._pending, []
        if pending:
            self._groups.write(pending)


class GroupWriter:
    """For several workers: one thread writes what they have pending.

    :param ledger: where to write.
    """

    def __init__(self, ledger: LedgerPort) -> None:
        self._groups = _Groups(ledger)
        self._queue: queue.SimpleQueue[Mark | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="airflow-guard-writer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._queue.put(None)
        self._thread.join()
        self._groups.close()

    def begin(self, own: Ownership, key_hash: str) -> None:
        """Mark one effect as begun; return when that is committed. Raises as :meth:`InlineWriter.begin` does."""
        mark = Mark(own, key_hash, begins=True)
        self._queue.put(mark)
        if not mark.ours():
            raise OwnershipLost(_TAKEN)

    def complete(
        self,
        own: Ownership,
        key_hash: str,
        outcome: str | None,
        *,
        follow_up: FollowUp = FollowUp.NONE,
        why: str | None = None,
        pushed: str | None = None,
    ) -> Mark:
        """Queue one completion."""
        mark = Mark(own, key_hash, begins=False, outcome=outcome, follow_up=follow_up, why=why, pushed=pushed)
        self._queue.put(mark)
        return mark

    def flush(self) -> None:
        """Nothing to do: the thread writes."""

    def _work(self) -> None:
        ended = False
        while not ended:
            first = self._queue.get()
            if first is None:
                return
            group, ended = self._gather(first)
            self._groups.write(group)

    def _gather(self, first: Mark) -> tuple[list[Mark], bool]:
        """Return what is pending, and whether the end was reached.

        Completions alone linger for a moment: the same worker's next begin mark is usually microseconds away, and
        one commit then serves both.
        """
        group, until, begins = [first], time.monotonic() + LINGER_S, first.begins
        while len(group) < MAX_GROUP:
            left = 0.0 if begins else until - time.monotonic()
            try:
                more = self._queue.get(timeout=left) if left > 0 else self._queue.get_nowait()
            except queue.Empty:
                break
            if more is None:
                return group, True
            begins = begins or more.begins
            group.append(more)
        return group, False


class _Groups:
    """Writes groups of marks, and tells each what became of it."""

    def __init__(self, ledger: LedgerPort) -> None:
        self._ledger = ledger
        self._directly = ledger.at_once()

    def close(self) -> None:
        """Give the connection back."""
        self._directly.close()

    def write(self, group: Sequence[Mark]) -> None:
        """Write a group in one commit; if that fails, one by one."""
        try:
            at_once = self._at_once(group)
        except Exception:  # as below
            at_once = False
        if at_once:
            for mark in group:
                mark.settle()
            return
        if len(group) > 1:
            try:
                lost = self._ledger.write(lambda connection: self._apply(connection, group))
            except Exception:  # noqa: S110 - redone one by one below, where each gets its own error
                pass
            else:
                for mark in group:
                    mark.settle(lost=id(mark) in lost)
                return
        # Completions first: their effects have happened, and they must not wait behind a begin that does.
        started = time.monotonic()
        for mark in sorted(group, key=lambda mark: mark.begins):
            self._write_one(mark, started)

    def _at_once(self, group: Sequence[Mark]) -> bool:
        if any(not (mark.begins or mark.is_plain) or mark.own is not group[0].own for mark in group):
            return False
        outcomes = {mark.key_hash: mark.outcome or "" for mark in group if not mark.begins}
        begins = [mark.key_hash for mark in group if mark.begins]
        return self._ledger.complete_and_begin(group[0].own, outcomes, begins, self._directly)

    def _write_one(self, mark: Mark, started: float) -> None:
        patience = PATIENCE_S / 10 if mark.begins else PATIENCE_S
        left = max(0.0, started + patience - time.monotonic())
        try:
            lost = self._ledger.write(lambda connection: self._apply(connection, [mark]), patience_s=left)
        except Exception as error:
            mark.settle(error=error)  # raised where somebody waits for it
        else:
            mark.settle(lost=bool(lost))

    def _apply(self, connection: sa.Connection, group: Sequence[Mark]) -> set[int]:
        """Write a group in one transaction and return the ids of the marks whose keys are no longer ours."""
        lost: set[int] = set()
        for own in {mark.own.token: mark.own for mark in group}.values():
            mine = [mark for mark in group if mark.own.token == own.token]
            done = [mark for mark in mine if not mark.begins]
            lost |= self._apply_plain(connection, own, [mark for mark in done if mark.is_plain])
            for mark in done:
                if not mark.is_plain and self._ledger.apply(
                    connection,
                    own,
                    COMPLETE,
                    [mark.key_hash],
                    outcome=mark.outcome,
                    follow=mark.follow_up.value,
                    why=mark.why,
                    pushed=mark.pushed,
                ):
                    lost.add(id(mark))
            begins = {mark.key_hash: id(mark) for mark in mine if mark.begins}
            if begins:
                gone = self._ledger.apply(connection, own, BEGIN, list(begins), batch=None)
                lost |= {begins[key_hash] for key_hash in gone}
        return lost

    def _apply_plain(self, connection: sa.Connection, own: Ownership, plain: Sequence[Mark]) -> set[int]:
        if not plain:
            return set()
        outcomes = {mark.key_hash: mark.outcome or "" for mark in plain}
        gone = self._ledger.complete_each(connection, own, outcomes)
        return {id(mark) for mark in plain if mark.key_hash in gone}
