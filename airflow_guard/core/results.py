"""What a callable leaves: its result as it is stored, and what it gave to other tasks beside it.

Stored beside the result, so that a replay gives them again. ``at`` is the place of the document in the listing: of two
calls that push one key, the later in the listing wins, in a replay as in a first run, whoever worked on them.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_guard.core.errors import ResultError

if TYPE_CHECKING:
    from collections.abc import Sequence


# -- Results of callables as they are stored: ASCII JSON with a size limit -----------------------------------

MAX_RESULT_BYTES = 32_768
"""Default limit of a stored result. A result is a receipt (an id, a count), not the data."""

_ENCODER = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"))


UNSTORED = "its result cannot be stored"
"""How the note of an effect begins that is done, and whose result is not in the ledger."""


def encode_result(value: Any, max_bytes: int = MAX_RESULT_BYTES) -> str:
    """Return the text that is stored for a result.

    :param value: a JSON value: ``None``, bool, int, float (finite), str, list, dict.
    :param max_bytes: size limit of the text, in bytes (ASCII: one byte a character).
    :raises ResultError: not JSON, not finite or too large. A retry does not help: change what the callable
        returns.
    """
    try:
        text = _ENCODER.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ResultError(
            f"The result ({type(value).__name__}) cannot be stored as JSON: {error}. Return a JSON value, for "
            "example str(amount) for a Decimal and .isoformat() for a date."
        ) from error
    if len(text) > max_bytes:
        raise ResultError(
            f"The result is {len(text)} bytes as JSON, more than {max_bytes}. Return a receipt (an id, a count), "
            "not the data, or raise [airflow_guard] result_max_bytes."
        )
    return text


def decode_result(text: str | None) -> Any:
    """Return the stored value; ``None`` also where no result is stored (ask :func:`has_result`)."""
    return None if text is None else json.loads(text)


def has_result(text: str | None) -> bool:
    """Return whether a result is stored: the stored ``None`` is one, a missing one is not."""
    return text is not None


def unfinished(value: object) -> str | None:
    """Return what is wrong with a result that stands for work to be done still, ``None`` if it does not.

    >>> unfinished(map(print, "AB"))
    'the callable returned a map, and nothing says that what is behind it has run'
    """
    if not isinstance(value, (Iterator, AsyncIterator, Awaitable, Future)):
        return None
    return f"the callable returned a {type(value).__name__}, and nothing says that what is behind it has run"


# -- What a callable gave to other tasks beside its result: XComs that it pushed, and extras of its outlet events --


@dataclass(slots=True)
class Pushes:
    """What one call pushed.

    :param at: the place of its (first) document in the listing.
    :param task_run_id: of the try that called; later tries have higher ones.
    :param xcoms: by key, the last value of each, as it is stored.
    :param events: changes of outlet events, JSON values.
    :param lost: what cannot be stored, in words, and why.
    """

    at: int = 0
    task_run_id: int = 0
    xcoms: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.xcoms or self.events or self.lost)

    @property
    def order(self) -> tuple[int, int]:
        """What decides which of two calls is the later one."""
        return (self.at, self.task_run_id)

    def stored(self, max_bytes: int) -> str | None:
        """Return the text that is stored, ``None`` if nothing was pushed; what does not fit goes to ``lost``.

        :param max_bytes: what the result has left of the limit.
        """
        if not self:
            return None
        kept: dict[str, Any] = {}
        for key, value in self.xcoms.items():
            max_bytes -= self._size(f"the XCom {key!r}", value, max_bytes)
            if f"the XCom {key!r}" not in self.lost:
                kept[key] = value
        events = []
        for event in self.events:
            name = f"the extra of outlet event {event.get('alias') or event.get('name')!r}"
            max_bytes -= self._size(name, event, max_bytes)
            if name not in self.lost:
                events.append(event)
        parts = {"at": self.at, "xcoms": kept, "events": events, "lost": self.lost}
        return json.dumps(
            {name: part for name, part in parts.items() if part or name == "at"}, allow_nan=False
        )

    def _size(self, name: str, value: Any, max_bytes: int) -> int:
        if name in self.lost:
            return 0
        try:
            return len(encode_result(value, max(max_bytes, 0)))
        except ResultError as error:
            self.lost[name] = str(error)
            return 0

    @staticmethod
    def of(text: str, task_run_id: int | None) -> Pushes:
        """Return what is stored.

        :param task_run_id: of the row.
        """
        known = json.loads(text)
        return Pushes(
            known.get("at", 0),
            task_run_id or 0,
            known.get("xcoms", {}),
            known.get("events", []),
            known.get("lost", {}),
        )


def in_order(calls: Sequence[Pushes]) -> list[Pushes]:
    """Return calls in the order in which their documents were listed."""
    return sorted(calls, key=lambda call: call.order)


def winners(calls: Sequence[Pushes]) -> Iterator[tuple[str, Any, Pushes]]:
    """Yield each key with the value that stands in the end, and the call that it is of."""
    last = {key: call for call in in_order(calls) for key in call.xcoms}
    for key, call in last.items():
        yield key, call.xcoms[key], call
