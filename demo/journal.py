"""The journal of a receiver: what arrived, in the order in which it arrived."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Calls", "Journal", "read_journal"]


@dataclass(frozen=True, slots=True)
class Calls:
    """What arrived: the number of calls, in total, per idempotency key and per statement."""

    total: int
    by_key: dict[str, int]
    by_statement: dict[str, int]


def read_journal(path: Path) -> Calls:
    """Count the calls in a journal; works while the receiver runs and after it has ended.

    :param path: the journal; none yet counts as no calls.
    """
    text = path.read_text(encoding="ascii") if path.exists() else ""
    # What follows the last line end is being written, and not answered yet.
    entries = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    keys, statements = (Counter(entry[name] for entry in entries) for name in ("key", "statement_no"))
    return Calls(len(entries), dict(keys), dict(statements))


class Journal:
    """One JSON line per call, on disk before the call is answered.

    :param path: an existing file is continued.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._file = path.open("a+b")
        self._drop_torn_line()
        calls = read_journal(path)
        self._total, self._by_key = calls.total, Counter(calls.by_key)
        self._by_statement = Counter(calls.by_statement)

    def append(self, key: str, statement_no: str, *, once: bool = False) -> int | None:
        """Write a call down and return its number.

        :param once: not if the key is known: ``None``.
        """
        entry = {"time": datetime.now(UTC).isoformat(), "key": key, "statement_no": statement_no}
        with self._lock:
            if once and key in self._by_key:
                return None
            self._file.write(json.dumps(entry).encode("ascii") + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
            self._total += 1
            self._by_key[key] += 1
            self._by_statement[statement_no] += 1
            return self._total

    def calls(self) -> Calls:
        """Count what was written."""
        with self._lock:
            return Calls(self._total, dict(self._by_key), dict(self._by_statement))

    def _drop_torn_line(self) -> None:
        # The receiver was killed while it wrote: that call was never answered, and it is not recorded.
        self._file.seek(0)
        content = self._file.read()
        self._file.truncate(content.rfind(b"\n") + 1)
