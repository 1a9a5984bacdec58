"""What an operator asks for, checked once."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, get_args

from airflow_guard.core.effects import Database, External, SideEffect
from airflow_guard.core.errors import ConfigurationError
from airflow_guard.core.expectations import expected_of
from airflow_guard.core.parameters import (
    CallPer,
    Mode,
    OncePer,
    OnConcurrent,
    OnDuplicate,
    OnEmpty,
    OnOtherRun,
    OnRepeated,
)
from airflow_guard.core.results import MAX_RESULT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CLAIM_CHUNK = 500
"""Keys per lookup and claim: large enough that round trips do not count, small enough for a short transaction."""

INJECTED = (
    "document",
    "payload",
    "documents",
    "batch_id",
    "business_date",
    "cycle",
    "idempotency_key",
    "attempt",
    "generation",
    "previous_result",
    "previous_idempotency_key",
    "connection",
    "effect",
)
"""Names that a callable may take besides the Airflow context."""

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "once_per": get_args(OncePer),
    "call_per": get_args(CallPer),
    "on_duplicate": get_args(OnDuplicate),
    "on_concurrent": get_args(OnConcurrent),
    "on_other_run": get_args(OnOtherRun),
    "on_empty": get_args(OnEmpty),
    "on_repeated": get_args(OnRepeated),
    "mode": get_args(Mode),
}


@dataclass(frozen=True)
class GuardSpec:
    """The rules of one guarded task. Field meanings and defaults are the operator's parameters.

    :raises ConfigurationError: a value or combination that cannot work.
    """

    side_effect: SideEffect = field(default_factory=External)
    once_per: OncePer = "date"
    call_per: CallPer = "document"
    batch_size: int = CLAIM_CHUNK
    document_key: str | None = None
    fingerprint_fields: tuple[str, ...] | None = None
    on_duplicate: OnDuplicate = "replay"
    on_concurrent: OnConcurrent = "wait"
    on_other_run: OnOtherRun = "fail"
    on_empty: OnEmpty = "warn"
    on_repeated: OnRepeated = "warn"
    expected: Any = None
    stop_on_failure: bool = False
    max_rejected: int = 0
    max_workers: int = 1
    mode: Mode = "enforce"
    guarded_from: date | None = None
    retired_operations: tuple[str, ...] = ()
    lease: timedelta = timedelta(seconds=60)
    max_hold: timedelta = timedelta(hours=24)
    result_max_bytes: int = MAX_RESULT_BYTES
    ledger: str | None = None
    """The connection that commands in messages must name, ``None`` if it is the configured one."""

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ConfigurationError(
                    f"{name}={value!r}: use {' or '.join(repr(choice) for choice in allowed)}. If no operator of "
                    "yours sets this, look at the DAG's default_args."
                )
        if not callable(self.expected):
            object.__setattr__(self, "expected", expected_of(self.expected))
        for name in ("batch_size", "max_workers"):
            _check_integer(name, getattr(self, name), 1)
        _check_integer("max_rejected", self.max_rejected, 0)
        if self.lease < timedelta(seconds=3):
            raise ConfigurationError(
                f"lease={self.lease}: at least 3 seconds, it is renewed at a third of its length."
            )
        if self.max_hold < self.lease:
            raise ConfigurationError(f"max_hold={self.max_hold} is shorter than lease={self.lease}.")

    @property
    def database(self) -> bool:
        """Whether business rows are written in the ledger's database."""
        return isinstance(self.side_effect, Database)

    @property
    def asks(self) -> bool:
        """Whether a person is asked about what is in doubt."""
        effect = self.side_effect
        return isinstance(effect, External) and effect.in_doubt == "ask" and self.mode == "enforce"

    @property
    def next_try(self) -> str | None:
        """What another try does by itself about an effect in doubt, in words; ``None``: nothing."""
        effect = self.side_effect
        return effect.next_try if isinstance(effect, External) and self.mode == "enforce" else None

    @property
    def external(self) -> External:
        """The external effect.

        :raises TypeError: it is a database effect.
        """
        if not isinstance(self.side_effect, External):
            raise TypeError("the side effect is in the database")
        return self.side_effect


@dataclass(frozen=True)
class Callee:
    """The user's callable as the execution sees it.

    :param call: called with the injected values by name; picks what the signature names.
    :param names: parameter names that the signature spells out.
    :param any_name: whether it takes ``**kwargs``.
    """

    call: Callable[[Mapping[str, Any]], Any]
    names: frozenset[str]
    any_name: bool = False

    @staticmethod
    def of(function: Callable[..., Any]) -> Callee:
        """Return the callee for a plain function (outside Airflow)."""
        parameters = inspect.signature(function).parameters.values()
        names = frozenset(p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL))
        wildcard = any(p.kind is p.VAR_KEYWORD for p in parameters)

        def call(values: Mapping[str, Any]) -> Any:
            return function(**(values if wildcard else {n: v for n, v in values.items() if n in names}))

        return Callee(call, names, wildcard)

    def takes(self, name: str) -> bool:
        """Return whether the callable is given a value of this name."""
        return name in self.names or self.any_name

    def check(self, spec: GuardSpec) -> None:
        """Refuse a signature that cannot work with the effect.

        :raises ConfigurationError: for example a database effect without ``connection``.
        """
        if spec.database and not self.takes("connection"):
            raise ConfigurationError(
                'side_effect="database": the callable must take a parameter "connection" and write its rows through '
                "it. Rows written over a connection of its own would not commit together with the ledger; for such a "
                'callable use side_effect="external".'
            )
        if spec.database and "effect" in self.names:
            raise ConfigurationError(
                '"effect" belongs to an external effect; in database mode the transaction is it.'
            )
        if not spec.database and "connection" in self.names:
            raise ConfigurationError(
                '"connection" is given only with side_effect="database"; this task has an external effect.'
            )
        wrong = {"document": "documents", "payload": "documents"} if spec.call_per == "batch" else {}
        for name, instead in wrong.items():
            if name in self.names:
                raise ConfigurationError(f'call_per="batch" gives "{instead}", not "{name}".')
        if spec.call_per == "document":
            for name in ("documents", "batch_id"):
                if name in self.names:
                    raise ConfigurationError(f'"{name}" is given only with call_per="batch".')


def _check_integer(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigurationError(f"{name}={value!r}: a whole number, at least {least}.")
