"""Guarded tasks of a DAG, mapped ones included: what is declared about each, and that no two have one key."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from airflow_guard.airflow_compat import (
    DecoratedMappedOperator,
    MappedOperator,
    OperatorPartial,
    default_args_of,
    expanded_names,
)
from airflow_guard.core.errors import ConfigurationError
from airflow_guard.hooks.settings import GuardSettings
from airflow_guard.operators.business_date import refuse_undated_runs
from airflow_guard.operators.declaration import Declaration, not_mapped, refuse_leaked
from airflow_guard.operators.endings import as_airflow

if TYPE_CHECKING:
    from airflow.providers.standard.operators.python import PythonOperator
    from airflow.sdk import DAG, XComArg

    from airflow_guard.execution.spec import GuardSpec

    _Base = PythonOperator
else:
    _Base = object

P = ParamSpec("P")
R = TypeVar("R")


class GuardedOperator(_Base):
    """What a guarded task has beside what every task has. ``IdempotentOperator`` is it; this is what its parts know of it.

    Its parameters are described there.
    """

    operation: str | None
    key_namespace: str | None
    business_date: Any
    cycle: str | XComArg
    document: Any
    documents: Any
    ledger_conn_id: str | None
    names_one_document: bool
    names_many_documents: bool
    guard_settings: GuardSettings
    guard_spec: GuardSpec

    @property
    def names_documents(self) -> bool:
        """Whether the task has documents, rather than standing for the run as a whole."""
        return self.names_one_document or self.names_many_documents

    @property
    def declared_date(self) -> object:
        """``business_date`` as the DAG file has it: a template is not rendered."""
        raise NotImplementedError

    @property
    def declaration(self) -> Declaration:
        """What the DAG file declares about the task."""
        raise NotImplementedError


class GuardedPartial(OperatorPartial):
    """What ``IdempotentOperator.partial()`` returns: checks the task when it is expanded, not when it
    runs."""

    def expand(self, **mapped_kwargs: Any) -> MappedOperator:
        """See ``OperatorPartial.expand``.

        :raises ConfigurationError: the task cannot work, or another task of the DAG has its key.
        """
        return checked(super().expand(**mapped_kwargs))

    def expand_kwargs(
        self, kwargs: XComArg | Sequence[XComArg | Mapping[str, Any]], *, strict: bool = True
    ) -> MappedOperator:
        """See ``OperatorPartial.expand_kwargs``.

        :raises ConfigurationError: the task cannot work, or another task of the DAG has its key.
        """
        return checked(super().expand_kwargs(kwargs, strict=strict))


def taking(
    init: Callable[Concatenate[Any, P], None],
) -> Callable[[Callable[..., R]], Callable[Concatenate[Any, P], R]]:
    """Let a method have the parameters of another for type checkers; it stays what it is."""
    del init
    return lambda method: method


def checked(operator: MappedOperator) -> MappedOperator:
    """Return a mapped guarded task after all that can be checked before it is mapped.

    :raises ConfigurationError: the task cannot work, or another task of the DAG has its key.
    """
    defaults = default_args_of(operator.dag, operator.task_group)
    expanded = expanded_names(operator)
    given = {*operator.partial_kwargs, *_moved(operator.partial_kwargs), *(expanded or ())}
    refuse_leaked(defaults, given)
    declaration = declaration_of(operator)
    for role in ROLES:
        if getattr(operator, f"is_{role}"):
            raise ConfigurationError(no_role(operator.task_id, role))
    declaration.check(GuardSettings.read())
    if operator.dag is not None:
        refuse_second_key(operator.dag, declaration)
        if "business_date" not in declaration.mapped | declaration.perhaps:
            refuse_undated_runs(operator.dag, operator.task_id, declaration.values.get("business_date"))
    # Airflow makes the operator itself, so it cannot be asked for another class.
    operator.__class__ = (
        _GuardedDecorated if isinstance(operator, DecoratedMappedOperator) else _GuardedMapped
    )
    return operator


def _refused(role: str) -> property:
    """Return the property of a role that a guarded task cannot have."""

    def set_role(self: MappedOperator, value: bool) -> None:  # noqa: FBT001 - as a property is set
        if value:
            raise ConfigurationError(no_role(self.task_id, role))

    return property(lambda _: False, set_role, doc=f"Whether it is a {role}, which it cannot be.")


class _GuardedMapped(MappedOperator):
    """A mapped guarded task: refuses what Airflow says about it only after it was checked."""

    __slots__ = ()

    is_setup = _refused("setup")
    is_teardown = _refused("teardown")

    def unmap(self, resolve: Mapping[str, Any]) -> Any:
        """See ``MappedOperator.unmap``.

        :raises GuardFailure: a list that only the run could tell maps over what is part of every key of the task.
        """
        fixed = [name for name in _FIXED_KEY if name in resolve]
        if fixed:
            error = ConfigurationError(not_mapped(fixed[0], resolve[fixed[0]]))
            raise as_airflow(error) from error
        return super().unmap(resolve)


class _GuardedDecorated(DecoratedMappedOperator):
    """The same for a decorated function, which is mapped over its arguments alone."""

    __slots__ = ()

    is_setup = _GuardedMapped.is_setup
    is_teardown = _GuardedMapped.is_teardown


def declaration_of(operator: MappedOperator) -> Declaration:
    """Return what is declared about a mapped guarded task."""
    parameters = _parameters(operator.operator_class)
    defaults = default_args_of(operator.dag, operator.task_group)
    values = {name: value for name, value in defaults.items() if name in parameters}
    values.update(operator.partial_kwargs)
    expanded = expanded_names(operator)
    mapped, perhaps = expanded or frozenset(), _NOTHING if expanded is not None else parameters - _FIXED
    function = getattr(operator, "python_callable", None)
    if function is not None:
        # A decorated function: it is mapped over its arguments, and the operator's documents among them.
        values.update(_moved(operator.partial_kwargs))
        arguments = {*operator.partial_kwargs.get("op_kwargs", ()), *mapped}
        values["op_kwargs"] = dict.fromkeys(sorted(arguments - set(MOVED)))
        values["python_callable"] = undecorated(function)
        mapped = mapped & set(MOVED)
        perhaps = frozenset({*MOVED, "op_kwargs"}) if expanded is None else _NOTHING
    elif _has_parameters_of_its_own(operator.operator_class):
        perhaps = parameters
    dag_id = operator.dag.dag_id if operator.dag is not None else None
    return Declaration(operator.task_id, dag_id, values, mapped, perhaps, is_mapped=True)


MOVED = ("document", "documents")
"""Arguments of a decorated function's call that are the operator's parameters."""

_NOTHING: frozenset[str] = frozenset()
_FIXED_KEY = ("operation", "key_namespace")
_FIXED = frozenset({*_FIXED_KEY, "python_callable"})
"""What a task is not mapped over."""


def _has_parameters_of_its_own(operator_class: type) -> bool:
    """Return whether a subclass may give parameters that its tasks do not name."""
    ours = next(each for each in operator_class.__mro__ if GuardedOperator in each.__bases__)
    return operator_class.__init__ is not ours.__init__  # type: ignore[misc]


def undecorated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that the user wrote, behind the one that ``@task.idempotent`` shows to Airflow."""
    original: Callable[..., Any] = getattr(function, "airflow_guard_function", function)
    return original


def _moved(partial_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    arguments = partial_kwargs.get("op_kwargs")
    if not isinstance(arguments, Mapping):
        return {}
    return {name: arguments[name] for name in MOVED if name in arguments}


@cache
def _parameters(operator_class: type) -> frozenset[str]:
    names: set[str] = set()
    for each in operator_class.__mro__:
        if "__init__" in vars(each):
            names.update(inspect.signature(each.__init__).parameters)  # type: ignore[misc]
    return frozenset(names - {"self", "kwargs", "args"})


def refuse_second_key(dag: DAG, declaration: Declaration) -> None:
    """Refuse a task whose key another guarded task of the DAG has: one of them would replay the other's
    results.

    :raises ConfigurationError: names both.
    """
    for other in _guarded(dag):
        if other.task_id != declaration.task_id and other.key == declaration.key and None not in other.key:
            namespace, operation, cycle = declaration.key
            in_cycle = f", cycle {cycle!r}" if cycle else ""
            raise ConfigurationError(
                f"Tasks {other.task_id!r} and {declaration.task_id!r} have one key (key_namespace "
                f"{namespace!r}, operation {operation!r}{in_cycle}): the second would take the first one's "
                "results for its own. Give each its own operation, or list all documents in one task. A "
                'decorated function that is called twice gets another one by notify.override(task_id="…", '
                'operation="…")(…).'
            )


ROLES = {
    "setup": "a setup is run again whenever a task that needs it is cleared",
    "teardown": "a teardown is run again whenever its setup is cleared, and a run is green although it has failed",
}
"""What Airflow can make of a task, and why a guarded one cannot be it."""


def no_role(task_id: str, role: str) -> str:
    """Return the message for a guarded task that is to be a setup or a teardown."""
    instead = "upstream" if role == "setup" else "downstream"
    return (
        f"Task {task_id!r} cannot be a {role}: {ROLES[role]}. A guarded task is done once, and what fails in it must be "
        f"seen. Make it an ordinary {instead} task."
    )


def _guarded(dag: DAG) -> Iterator[Declaration]:
    for task in dag.task_dict.values():
        if isinstance(task, GuardedOperator):
            yield task.declaration
        elif isinstance(task, MappedOperator) and issubclass(task.operator_class, GuardedOperator):
            yield declaration_of(task)
