"""What a callable does to the world: :class:`Database` or :class:`External`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, get_args

from airflow_guard.core.errors import ConfigurationError
from airflow_guard.core.parameters import EffectName, WhenInDoubt, length_of, one_of, seconds

Verify = Callable[..., bool | None]
ASK_TIMEOUT = timedelta(hours=24)
"""How long a question is open by default: somebody of every shift has seen it."""
ASK_FIELDS = ("amount", "currency")


@dataclass(frozen=True, repr=False)
class Database:
    """The effect is rows in the ledger's own database, written through ``connection``.

    Business rows and the ledger's completion commit in one transaction, or neither does, so such an
    effect is never in doubt unless the callable commits by itself.

    :param on_rerun: ``on_rerun(previous_result, connection, …)`` reverses the first effect before a rerun that a
        person has authorised, in the same transaction as the second. Called with what its signature names.
        Without it, a rerun must be authorised without reversal.
    :raises ConfigurationError: ``on_rerun`` is not callable.
    """

    on_rerun: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        _check_on_rerun("Database", self.on_rerun)

    def __repr__(self) -> str:
        return _written(self)


@dataclass(frozen=True, repr=False)
class External:
    """The effect is outside the ledger's database: a payment, a message, a file.

    Durations are a ``timedelta``, or seconds.

    :param verify: ``verify(document, idempotency_key, …) -> True | False | None``: did the effect
        *happen*? Called like ``python_callable`` with what its signature names, never inside a
        transaction. ``None`` means that it cannot be told.
    :param settle_after: the longest that a call can be on its way. A "no" of ``verify`` counts only this
        long after the last sign of life of the attempt. Required with ``verify``: no default fits both a
        web service (minutes) and a payment file (hours).
    :param in_doubt: ``"hold"`` (default) fails, and leaves it to a person; ``"ask"`` asks a person in the Airflow
        UI, and goes on with the answer; ``"retry"`` repeats with the same idempotency key, only within
        ``receiver_remembers``.
    :param safe_errors: exception types that prove that the effect did not happen (a refused connection).
        Empty by default: an exception inside the window normally means in doubt.
    :param receiver_remembers: how long the receiver recognises a repeated idempotency key, counted from
        the first call. Required with ``in_doubt="retry"``.
    :param ask_timeout: how long a question is open with ``in_doubt="ask"``. Default 24 hours. Then the task fails, and
        what is in doubt stays so.
    :param ask_fields: the fields of a mapping document that the question shows. Default ``amount`` and ``currency``.
        They are stored in Airflow's own database.
    :param on_rerun: ``on_rerun(previous_result, previous_idempotency_key, idempotency_key, …)`` reverses the first
        effect before a rerun that a person has authorised. An effect of its own: it has an idempotency key of its own,
        and what is raised in it means in doubt, as in the callable. Without it, a rerun must be authorised without
        reversal.
    :raises ConfigurationError: a combination that cannot work.
    """

    verify: Verify | None = None
    settle_after: timedelta | float | None = None
    in_doubt: WhenInDoubt = "hold"
    safe_errors: Sequence[type[Exception]] = ()
    receiver_remembers: timedelta | float | None = None
    ask_timeout: timedelta | float | None = None
    ask_fields: Sequence[str] | None = None
    on_rerun: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        _check_on_rerun("External", self.on_rerun)
        if self.in_doubt not in get_args(WhenInDoubt):
            words = one_of(get_args(WhenInDoubt))
            raise ConfigurationError(f"External(in_doubt={self.in_doubt!r}): use {words}.")
        self._check_verify()
        self._check_retry()
        self._check_ask()
        self._check_safe_errors()

    def _check_verify(self) -> None:
        if self.verify is None:
            if self.settle_after is not None:
                raise ConfigurationError("External(settle_after=…) has no meaning without verify=.")
            return
        if not callable(self.verify):
            raise ConfigurationError(f"External(verify={self.verify!r}) must be callable.")
        length = length_of(self.settle_after)
        if length is None or length < timedelta(0):
            raise ConfigurationError(
                f"External(verify=…) needs settle_after=timedelta(…), or its seconds, not {self.settle_after!r:.80}: the "
                'longest that a call can be on its way. Before that, a "no" of verify proves nothing.'
            )
        object.__setattr__(self, "settle_after", length)

    def _check_retry(self) -> None:
        length = length_of(self.receiver_remembers)
        if length is not None and length > timedelta(0):
            object.__setattr__(self, "receiver_remembers", length)
        elif self.in_doubt == "retry" or self.receiver_remembers is not None:
            raise ConfigurationError(
                'External(in_doubt="retry") needs receiver_remembers=timedelta(…), or its seconds, not '
                f"{self.receiver_remembers!r:.80}: how long the receiver recognises a repeated idempotency key. After that "
                "a repetition is a second effect."
            )

    def _check_ask(self) -> None:
        if self.in_doubt != "ask" and (self.ask_timeout is not None or self.ask_fields is not None):
            raise ConfigurationError(
                'External(ask_timeout=…, ask_fields=…) have no meaning without in_doubt="ask".'
            )
        if self.ask_timeout is not None:
            object.__setattr__(self, "ask_timeout", check_ask_timeout("External", self.ask_timeout))
        names: Any = self.ask_fields
        if names is None:
            return
        if isinstance(names, str) or not all(isinstance(name, str) and name for name in names):
            raise ConfigurationError(f"External(ask_fields={names!r}) must be a list of names of fields.")
        object.__setattr__(self, "ask_fields", tuple(names))

    def _check_safe_errors(self) -> None:
        given: Any = self.safe_errors
        if isinstance(given, type) or not isinstance(given, Iterable):
            raise ConfigurationError(f"External(safe_errors={given!r}) must be a list of exception classes.")
        errors: tuple[Any, ...] = tuple(given)
        for error in errors:
            if not (isinstance(error, type) and issubclass(error, Exception)):
                raise ConfigurationError(f"External(safe_errors=…): {error!r} is not an exception class.")
            if error in (Exception, OSError, ConnectionError, TimeoutError):
                raise ConfigurationError(
                    f"External(safe_errors=[{error.__name__}]) is too wide: it covers errors after the request "
                    "was sent. Name the errors that prove that nothing was sent."
                )
        object.__setattr__(self, "safe_errors", errors)

    @property
    def next_try(self) -> str | None:
        """What another try does by itself about a doubt, in words; ``None``: nothing, or a person is asked first."""
        if self.in_doubt == "ask":
            return None
        if self.verify is not None:
            return "asks verify"
        return "repeats it with the same idempotency key" if self.in_doubt == "retry" else None

    @property
    def settle_s(self) -> float | None:
        """``settle_after`` in seconds, ``None`` without ``verify``."""
        return None if self.settle_after is None else seconds(self.settle_after)

    @property
    def repeats_s(self) -> float | None:
        """For how many seconds a doubt is settled by a repetition, ``None``: it is not."""
        if self.in_doubt != "retry" or self.receiver_remembers is None:
            return None
        return seconds(self.receiver_remembers)

    @property
    def question_s(self) -> float:
        """How many seconds a question is open."""
        return seconds(ASK_TIMEOUT if self.ask_timeout is None else self.ask_timeout)

    def __repr__(self) -> str:
        return _written(self)


SideEffect = Database | External


def side_effect_of(value: EffectName | SideEffect) -> SideEffect:
    """Return the effect that a parameter means; strings are shorthand.

    :raises ConfigurationError: neither ``"database"``, ``"external"``, nor an instance of the two classes.
    """
    if isinstance(value, (Database, External)):
        return value
    if value == "database":
        return Database()
    if value == "external":
        return External()
    raise ConfigurationError(
        f'side_effect={value!r}: use "external", "database", External(…) or Database(). The classes must be '
        "called: External(), not External."
    )


def _written(effect: SideEffect) -> str:
    """Return an effect as a DAG file writes it, the same in every process: it becomes part of the serialised DAG,
    and a memory address in it would make each parse a new version."""
    given = [(each.name, getattr(effect, each.name)) for each in fields(effect)]
    parts = [f"{name}={_value(value)}" for name, value in given if value not in (None, (), "hold")]
    return f"{type(effect).__name__}({', '.join(parts)})"


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_value(each) for each in value)}]"
    if callable(value):
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    return repr(value)


def check_ask_timeout(owner: str, value: object) -> timedelta:
    """Return how long a question is open.

    :raises ConfigurationError: no duration above zero.
    """
    length = length_of(value)
    if length is None or length <= timedelta(0):
        raise ConfigurationError(
            f"{owner}(ask_timeout={value!r:.80}) must be a timedelta above zero, or its seconds."
        )
    return length


def _check_on_rerun(effect: str, on_rerun: object) -> None:
    if on_rerun is not None and not callable(on_rerun):
        raise ConfigurationError(f"{effect}(on_rerun={on_rerun!r:.80}) must be callable.")
