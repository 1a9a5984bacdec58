"""``@task.idempotent``: a function whose effect happens once, however often its task runs."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from airflow_guard.airflow_compat import (
    KNOWN_CONTEXT_KEYS,
    DecoratedOperator,
    MappedOperator,
    TaskDecorator,
    XComArg,
    task_decorator_class,
)
from airflow_guard.core.errors import ConfigurationError
from airflow_guard.execution.spec import INJECTED
from airflow_guard.operators.idempotent import IdempotentOperator
from airflow_guard.operators.mapping import MOVED, checked, undecorated

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence


class IdempotentDecoratedOperator(DecoratedOperator, IdempotentOperator):
    """The operator behind ``@task.idempotent``.

    The arguments ``document`` and ``documents`` of a call are the operator's; all others are ``op_kwargs``.
    """

    template_fields: Sequence[str] = IdempotentOperator.template_fields
    template_fields_renderers = IdempotentOperator.template_fields_renderers
    shallow_copy_attrs: Sequence[str] = IdempotentOperator.shallow_copy_attrs
    custom_operator_name: str = "@task.idempotent"

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        function = undecorated(python_callable)
        arguments = _by_name(function, op_args or (), op_kwargs or {})
        for name in MOVED:
            if name not in arguments:
                continue
            if kwargs.get(name) is not None:
                raise ConfigurationError(
                    f"{name} is given to the decorator (or override) and to the call: give it once."
                )
            kwargs[name] = arguments.pop(name)
        object.__setattr__(self, "_given_here", self._given_here | (set(MOVED) & set(kwargs)))
        upstream = {"python_callable": function, "op_args": (), "op_kwargs": arguments}
        super().__init__(
            kwargs_to_upstream=upstream,
            python_callable=shown_to_airflow(function),
            op_args=(),
            op_kwargs=arguments,
            **kwargs,
        )

    def _hook_apply_defaults(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        # Airflow fills parameters of the function from default_args; those that the operator gives are not
        # meant.
        defaults = kwargs.get("default_args") or {}
        kwargs["default_args"] = {name: value for name, value in defaults.items() if name not in INJECTED}
        args, kwargs = super()._hook_apply_defaults(*args, **kwargs)  # type: ignore[no-untyped-call]
        kwargs["default_args"] = defaults
        return args, kwargs


class IdempotentTaskDecorator(task_decorator_class):  # type: ignore[type-arg]
    """What ``@task.idempotent`` returns. ``override``, ``partial`` and ``expand`` are Airflow's."""

    def expand(self, **map_kwargs: Any) -> XComArg:
        """See Airflow's ``expand``.

        :raises ConfigurationError: the task cannot work, or another task of the DAG has its key.
        """
        return _checked(super().expand(**map_kwargs))

    def expand_kwargs(
        self, kwargs: XComArg | Sequence[XComArg | Mapping[str, Any]], *, strict: bool = True
    ) -> XComArg:
        """See Airflow's ``expand_kwargs``.

        :raises ConfigurationError: the task cannot work, or another task of the DAG has its key.
        """
        return _checked(super().expand_kwargs(kwargs, strict=strict))


def idempotent_task(
    python_callable: Callable[..., Any] | None = None,
    multiple_outputs: bool | None = None,  # noqa: FBT001 - as Airflow's own decorators have it
    **kwargs: Any,
) -> TaskDecorator:
    """Make a function a task whose effect happens once. Also ``@task.idempotent``.

    ::

        @task.idempotent(operation="notify", document_key="statement_no", max_workers=8)
        def notify(payload, idempotency_key): ...

        notify(documents=posted_statements)

    :param python_callable: the function. What the operator gives it by name is no argument of the call.
    :param multiple_outputs: as for ``@task``.
    :param kwargs: parameters of :class:`~airflow_guard.operators.idempotent.IdempotentOperator`.
    :raises ConfigurationError: when the DAG is parsed, for what cannot work.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        outputs: dict[str, Any] = {} if multiple_outputs is None else {"multiple_outputs": multiple_outputs}
        return IdempotentTaskDecorator(
            function=shown_to_airflow(function),
            operator_class=IdempotentDecoratedOperator,
            kwargs=kwargs,
            **outputs,
        )

    if python_callable is None:
        return decorate  # type: ignore[return-value]
    if not callable(python_callable):
        raise TypeError(
            "No positional arguments allowed while using @task.idempotent, use named arguments instead"
        )
    return decorate(python_callable)  # type: ignore[no-any-return]


def shown_to_airflow(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with the arguments that a call in the DAG may have.

    Airflow reads the signature to check the call: what the operator will give is not in it, ``document`` and
    ``documents`` are. All are named, so that their order does not matter where some have defaults.
    """
    if undecorated(function) is not function:
        return function
    signature = inspect.signature(function)
    left = [
        parameter
        if parameter.kind is parameter.VAR_KEYWORD
        else parameter.replace(kind=parameter.KEYWORD_ONLY)
        for name, parameter in signature.parameters.items()
        if name not in INJECTED and parameter.kind is not parameter.VAR_POSITIONAL
    ]
    moved = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in MOVED]
    by_kind = sorted([*left, *moved], key=lambda parameter: parameter.kind)

    @functools.wraps(function)
    def shown(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    shown.__signature__ = signature.replace(parameters=by_kind)  # type: ignore[attr-defined]
    shown.airflow_guard_function = function  # type: ignore[attr-defined]
    return shown


def _by_name(
    function: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by name; those by position fill the parameters that nothing else
    fills."""
    free = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        and name not in INJECTED
        and name not in KNOWN_CONTEXT_KEYS
    ]
    if len(args) > len(free):
        raise TypeError(
            f"{function.__name__}() takes {len(free)} arguments by position ({', '.join(free) or 'none'}), "
            f"not {len(args)}. What the operator gives is no argument of the call: {', '.join(INJECTED)}."
        )
    named = dict(zip(free, args, strict=False))
    twice = sorted(set(named) & set(kwargs))
    if twice:
        raise TypeError(f"{function.__name__}() got {', '.join(twice)} by position and by name.")
    return {**named, **kwargs}


def _checked(argument: XComArg) -> XComArg:
    operator = next(operator for operator, _ in argument.iter_references())
    if isinstance(operator, MappedOperator):
        checked(operator)
    return argument
