"""A process that dies at its effect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

import sqlalchemy as sa

from airflow_guard.core.errors import ConfigurationError, LedgerError
from airflow_guard.execution.spec import Callee, GuardSpec

if TYPE_CHECKING:
    from types import TracebackType

    from airflow_guard.store.database import LedgerDatabase

Moment = Literal["before", "inside", "after", "follow_up"]
"""When a process dies: ``before`` its effect begins; ``inside``: begun, but nothing was sent; ``after`` the
effect, before the ledger knows of it; in the ``follow_up`` that comes after ``with effect:``.

With a database effect the rows are written where it dies ``inside`` or ``after``, and not committed."""

_MOMENTS = ("before", "inside", "after", "follow_up")


class Killed(BaseException):
    """Raised where a process dies. Code that catches even this lives on without its ledger."""


class _Dead(LedgerError):
    """What a dead process still tries to tell the ledger."""


class DyingProcess:
    """The ledger as one process sees it: from its death on, nothing that it does reaches the database.

    :param database: its own connections.
    :param at: when it dies.
    :param of: at which document; ``None``: the first.
    :param document_key: the field of a mapping that is its identity.
    :raises ConfigurationError: there is no such moment.
    """

    def __init__(
        self, database: LedgerDatabase, at: Moment, of: object = None, document_key: str | None = None
    ) -> None:
        if at not in _MOMENTS:
            raise ConfigurationError(f"at={at!r}: use one of {', '.join(_MOMENTS)}.")
        self.at = at
        self._of = of
        self._document_key = document_key
        self._dead = False
        for engine in (database.engine, database.business_engine):
            for event in ("begin", "commit"):
                sa.event.listen(engine, event, self._refuse, insert=True)

    def around(self, callee: Callee, spec: GuardSpec) -> Callee:
        """Return a callee with this process's death in it.

        :raises ConfigurationError: its effect has no such moment.
        """
        if self.at == "follow_up" and (spec.database or "effect" not in callee.names):
            raise ConfigurationError(
                'at="follow_up": nothing follows the effect, unless the callable takes "effect" and goes on '
                "after its window."
            )
        if spec.database:
            return Callee(lambda given: self._in_transaction(callee, given), callee.names, callee.any_name)
        # A window also for callables that take none: it shows the moments around their call.
        names = callee.names | {"effect"}
        return Callee(lambda given: self._in_window(callee, given), names, callee.any_name)

    def die(self) -> NoReturn:
        """End here."""
        self._dead = True
        raise Killed

    def _refuse(self, *_: object) -> None:
        if self._dead:
            raise _Dead("The process is dead.")

    def _in_transaction(self, callee: Callee, given: Mapping[str, Any]) -> Any:
        if not self._is_meant(given):
            return callee.call(given)
        if self.at != "before":
            callee.call(given)
        return self.die()

    def _in_window(self, callee: Callee, given: Mapping[str, Any]) -> Any:
        window = _DyingWindow(given["effect"], self) if self._is_meant(given) else given["effect"]
        if "effect" in callee.names:
            return callee.call({**given, "effect": window})
        with window:
            return callee.call({name: value for name, value in given.items() if name != "effect"})

    def _is_meant(self, given: Mapping[str, Any]) -> bool:
        if self._of is None:
            return True
        listed = given["documents"] if "documents" in given else [given["document"]]
        key = self._document_key
        return self._of in [item[key] if isinstance(item, Mapping) and key else item for item in listed]


class _DyingWindow:
    """The effect window of a process that dies."""

    def __init__(self, window: Any, process: DyingProcess) -> None:
        self._window = window
        self._process = process

    def __enter__(self) -> Self:
        if self._process.at == "before":
            self._process.die()
        self._window.__enter__()
        if self._process.at == "inside":
            self._process.die()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._process.at == "after":
            self._process.die()
        self._window.__exit__(kind, error, trace)
        if error is None:
            self._process.die()
