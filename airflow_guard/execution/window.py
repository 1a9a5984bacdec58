"""The effect window: ``with effect:`` in a callable narrows what counts as "may have happened"."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Self

from airflow_guard.core.errors import ConfigurationError, NotExecuted, Rejected

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


class Reached(StrEnum):
    """How far a callable got with its window."""

    BEFORE = "before"
    INSIDE = "inside"
    REFUTED = "refuted"
    DONE = "done"


class EffectWindow:
    """What a callable gets as ``effect``.

    Entering commits "begun"; leaving normally commits "completed", the follow-up pending; leaving with an error that
    proves that nothing happened (``NotExecuted``, ``Rejected``, ``safe_errors``) allows to enter again; any other
    error means in doubt.

    :param begin: commits the begin mark, or finds it committed; raises if the key is no longer ours.
    :param done: commits the completion.
    :param safe_errors: see :class:`~airflow_guard.core.effects.External`; empty for batches.
    """

    def __init__(
        self,
        begin: Callable[[], None],
        done: Callable[[], None],
        safe_errors: tuple[type[Exception], ...] = (),
    ) -> None:
        self._begin = begin
        self._done = done
        self._harmless: tuple[type[BaseException], ...] = (NotExecuted, Rejected, *safe_errors)
        self.reached = Reached.BEFORE

    def __enter__(self) -> Self:
        if self.reached in (Reached.INSIDE, Reached.DONE):
            raise ConfigurationError(
                f'"with effect:" was entered again ({self.reached.value}). One document has one effect: split the '
                "task, or put both calls into one window."
            )
        # Also when it is entered again: the key may have gone to another attempt while nothing was under way.
        self._begin()
        self.reached = Reached.INSIDE
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._done()
            self.reached = Reached.DONE
        elif isinstance(error, self._harmless):
            self.reached = Reached.REFUTED
