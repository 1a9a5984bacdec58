"""What the callable gives to other tasks beside its result: noted call by call, stored with it, and given again."""

from __future__ import annotations

import contextlib
import logging
import threading
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from airflow_guard.core.results import Pushes, encode_result, in_order, winners

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_guard.core.guard import LedgerRow

log = logging.getLogger(__name__)


class Called(Protocol):
    """What a call is for: a unit of work."""

    @property
    def position(self) -> int:
        """Where its first document is in the listing."""

    @property
    def task_run_id(self) -> int:
        """Of the try that calls."""

    @property
    def text(self) -> str:
        """How messages call it."""


@dataclass(slots=True, eq=False)
class Call:
    """A call that runs.

    :param events: its own outlet events, and what they were when it first asked for them.
    """

    pushes: Pushes
    events: Any = None
    events_before: Any = None


class Recorder:
    """Notes what calls push, and what is pushed again for calls of earlier tries. Any thread may push.

    Here it knows of no Airflow: it keeps XComs to itself, and there are no outlet events.
    """

    def __init__(self) -> None:
        self._current: ContextVar[Call | None] = ContextVar("airflow_guard_call", default=None)
        self._active: list[Call] = []
        self._calls: dict[tuple[int, str], Pushes] = {}
        self._last: dict[str, Pushes] = {}
        self._to_go_on: dict[str, Pushes] = {}
        self._lock = threading.Lock()
        self.given: dict[str, Any] = {}

    @contextlib.contextmanager
    def call(self, unit: Called, *, goes_on: bool = False) -> Iterator[Pushes]:
        """Note what is pushed inside.

        :param goes_on: whether another call for the unit follows, which adds to it: its first effect is reversed before.
        """
        before = self._to_go_on.pop(unit.text, None) if self._to_go_on else None
        call = Call(before or Pushes(unit.position, unit.task_run_id))
        token = self._current.set(call)
        self._active.append(call)
        try:
            yield call.pushes
        finally:
            self._active.remove(call)
            self._current.reset(token)
            if call.events is not None:
                self._end_events(call)
            if goes_on:
                self._to_go_on[unit.text] = call.pushes

    def running(self) -> Call | None:
        """Return the call that asks: by its thread or coroutine, or because there is no other."""
        call = self._current.get()
        if call is None and len(self._active) == 1:
            call = self._active[0]  # a thread that the callable has started
        return call

    def push(self, key: str, value: Any) -> None:
        """Give a value to other tasks at once, and note it."""
        self._give(key, value)
        call = self.running()
        if call is None:
            if self._active:
                log.warning(
                    "The XCom %r was pushed on a thread of its own, beside several calls: it is not known whose it is, and a "
                    "replay will not give it again.",
                    key,
                )
            return
        with self._lock:
            self._last[key] = call.pushes
        name = f"the XCom {key!r}"
        call.pushes.lost.pop(name, None)
        try:
            stored = self._as_stored(value)
            encode_result(stored)
        except Exception as error:  # of a serialiser of the user's too
            call.pushes.xcoms.pop(key, None)
            call.pushes.lost[name] = str(error)
        else:
            call.pushes.xcoms[key] = stored

    def stored(self, unit: Called, pushes: Pushes, result: str | None, max_bytes: int) -> str | None:
        """Return what is stored beside a result, ``None`` if nothing was pushed.

        :param result: as it is stored; both share the limit.
        """
        if not pushes:
            return None
        text = pushes.stored(max_bytes - len(result or ""))
        self._tell(unit.text, pushes)
        with self._lock:
            self._calls[(pushes.task_run_id, text or "")] = pushes
        return text

    def replay(self, name: str, row: LedgerRow) -> None:
        """Note what the call of an earlier try has pushed: :meth:`finish` gives it again."""
        if row.pushed is None:
            return
        key = (row.task_run_id or 0, row.pushed)
        if key not in self._calls:  # the members of a batch share one call
            self._calls[key] = Pushes.of(row.pushed, row.task_run_id)
            self._tell(name, self._calls[key])

    def finish(self) -> None:
        """Let other tasks see what they would see if all calls had been made now, in the order of the listing."""
        calls = list(self._calls.values())
        for key, value, call in winners(calls):
            if self._last.get(key) is call:
                continue
            try:
                given = self._from_stored(value)
            except Exception as error:  # a class that is gone, or that Airflow may not read any more
                log.warning(
                    "The XCom %r of an earlier try cannot be read, and is not given again: %s", key, error
                )
                continue
            self._give(key, given)
        self._give_events(in_order(calls))

    @staticmethod
    def _tell(name: str, pushes: Pushes) -> None:
        for what, why in pushes.lost.items():
            log.warning("%s: %s is not stored, so a replay does not give it again: %s", name, what, why)

    def _give(self, key: str, value: Any) -> None:
        self.given[key] = value

    def _as_stored(self, value: Any) -> Any:
        return value

    def _from_stored(self, value: Any) -> Any:
        return value

    def _end_events(self, call: Call) -> None:
        """Note what a call has changed of the outlet events."""

    def _give_events(self, calls: list[Pushes]) -> None:
        """Change the outlet events as calls have done, in this order."""
