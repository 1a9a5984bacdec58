"""Calling the user's functions: each gets what its signature names, as with ``PythonOperator``."""

from __future__ import annotations

import asyncio
import functools
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_guard.airflow_compat import KNOWN_CONTEXT_KEYS, AirflowFailException, AirflowSkipException
from airflow_guard.core.errors import ConfigurationError
from airflow_guard.execution.spec import INJECTED, Callee, GuardSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

GIVEN_TO_ALL = frozenset({"business_date", "cycle"})
"""What every function of a task may take: it is the same for all documents."""

_SKIP = (
    "AirflowSkipException does not say that nothing happened: raise it before the effect window (take effect, and put "
    '"with effect:" around the call), or raise NotExecuted.'
)
"""Shown only where it was raised inside the window."""

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Function:
    """A function of the user and what its signature says.

    :param what: the parameter that it was given as, for messages: ``python_callable``.
    :param names: parameters that are filled by name.
    :param required: those of them without a default.
    :param any_name: whether it takes ``**kwargs``.
    :param filled: parameters that ``op_args`` fill by position.
    """

    what: str
    call: Callable[..., Any]
    names: frozenset[str]
    required: frozenset[str]
    any_name: bool
    filled: frozenset[str]

    @staticmethod
    def of(what: str, call: Any, args: Sequence[Any] = ()) -> Function:
        """Read the signature of a function.

        :param args: the ``op_args``, only counted.
        :raises ConfigurationError: it cannot be called by name.
        """
        if not callable(call):
            raise ConfigurationError(f"{what}={call!r:.80} is not callable.")
        try:
            parameters = list(inspect.signature(call).parameters.values())
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"The signature of {what}={call!r:.80} cannot be read: {error}."
            ) from error
        by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        filled = frozenset(p.name for p in by_position[: len(args)])
        left = [p for p in parameters if p.kind not in _VARIADIC and p.name not in filled]
        nameless = [p.name for p in left if p.kind is p.POSITIONAL_ONLY]
        if nameless:
            raise ConfigurationError(
                f"{what}: {', '.join(nameless)} can only be given by position. Its values are given by name."
            )
        return Function(
            what,
            call,
            frozenset(p.name for p in left),
            frozenset(p.name for p in left if p.default is p.empty),
            any(p.kind is p.VAR_KEYWORD for p in parameters),
            filled,
        )

    @property
    def is_async(self) -> bool:
        """Whether a call gives a coroutine."""
        function = inspect.unwrap(_without_partial(self.call))
        return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(type(function), "__call__", None)  # noqa: B004 - not asked whether it can be called
        )

    def check_arguments(self, known: Collection[str] | None, gives: Collection[str] = INJECTED) -> None:
        """Refuse, when the DAG is parsed, what would fail when the function is called.

        :param known: names in ``op_kwargs``, ``None`` if only the run will tell.
        :param gives: names that the operator gives to it.
        :raises ConfigurationError: for example a parameter that nothing fills.
        """
        injected = sorted(self.filled & set(INJECTED))
        if injected:
            raise ConfigurationError(
                f"{self.what}: op_args fill {', '.join(injected)} by position, which the operator gives. Use "
                "op_kwargs, or name other parameters first."
            )
        if known is None:
            return
        given = sorted(set(known) & set(INJECTED))
        if given:
            raise ConfigurationError(
                f"op_kwargs hold {', '.join(given)}, which the operator gives to {self.what}. Use another "
                "name."
            )
        missing = sorted(self.required - set(gives) - set(known) - KNOWN_CONTEXT_KEYS - {"templates_dict"})
        if missing:
            raise ConfigurationError(
                f"{self.what} requires {', '.join(missing)}, which nothing gives: neither the operator "
                f"({', '.join(each for each in INJECTED if each in gives)}), nor Airflow's context, nor op_kwargs."
            )

    def callee(
        self,
        shared: Mapping[str, Any],
        args: Sequence[Any] = (),
        *,
        gives: Collection[str],
        adapt: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function,
    ) -> Callee:
        """Return the function as the execution calls it.

        :param shared: what is the same in all calls: context, ``op_kwargs`` and ``templates_dict``.
        :param args: the ``op_args``.
        :param gives: names that the execution will give in each call.
        :param adapt: wraps the function once.
        :raises ConfigurationError: a required parameter has no value in this run; better said now than inside
            the effect, where it could not be told from an effect that happened.
        """
        taken = sorted(self.filled & set(shared))
        if taken:
            raise ConfigurationError(
                f"{self.what}: op_args fill {', '.join(taken)} by position, but that is a name of Airflow's "
                "context or of op_kwargs. Use op_kwargs."
            )
        missing = sorted(self.required - set(shared) - set(gives))
        if missing:
            raise ConfigurationError(
                f"{self.what} requires {', '.join(missing)}, which this run does not have (asset-triggered "
                "runs, for example, have no logical date). Give the parameter a default, or a value in "
                "op_kwargs."
            )
        static = {name: value for name, value in shared.items() if self.any_name or name in self.names}
        call, names, any_name = adapt(self.call), self.names, self.any_name

        def invoke(values: Mapping[str, Any]) -> Any:
            own = values if any_name else {name: value for name, value in values.items() if name in names}
            try:
                value = call(*args, **{**static, **own})
                return asyncio.run(_finished(value)) if inspect.iscoroutine(value) else value
            except AirflowFailException as error:
                # Airflow's word for "do not retry" keeps its meaning.
                error.retryable = False  # type: ignore[attr-defined]
                raise
            except AirflowSkipException as error:
                error.add_note(_SKIP)
                raise

        return Callee(invoke, names, any_name)


def given_to_callable(spec: GuardSpec) -> set[str]:
    """Return the names that the execution gives to ``python_callable``."""
    return _given_to_each(spec) | {"connection" if spec.database else "effect"}


def given_to_on_rerun(spec: GuardSpec) -> set[str]:
    """Return the names that the execution gives to ``on_rerun``."""
    return _given_to_each(spec) | ({"connection"} if spec.database else set())


def _given_to_each(spec: GuardSpec) -> set[str]:
    names = {
        *GIVEN_TO_ALL,
        "idempotency_key",
        "attempt",
        "generation",
        "previous_result",
        "previous_idempotency_key",
    }
    return names | ({"documents", "batch_id"} if spec.call_per == "batch" else {"document", "payload"})


def given_to_verify(spec: GuardSpec) -> set[str]:
    """Return the names that the execution gives to ``External.verify``."""
    names = {*GIVEN_TO_ALL, "idempotency_key", "attempt", "generation", "document", "payload"}
    return names | ({"documents", "batch_id"} if spec.call_per == "batch" else set())


async def _finished(coroutine: Any) -> Any:
    return await coroutine


def _without_partial(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function
