"""Airflow's ``task``, with ``task.idempotent`` as type checkers are to see it.

Airflow's own type of ``@task.…`` says that a task is called with the arguments of its function. A guarded one is called with
``document`` or ``documents``, and what its function names besides comes from the operator. When a DAG is parsed, this
``task`` is Airflow's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import task as _task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import date, timedelta
    from typing import Any, ParamSpec, Protocol, overload

    from airflow.sdk.definitions.decorators import TaskDecoratorCollection

    from airflow_guard.airflow_compat import XComArg
    from airflow_guard.core.dates import BusinessDateRule, RunFacts
    from airflow_guard.core.effects import SideEffect
    from airflow_guard.core.expectations import Expected
    from airflow_guard.core.parameters import (
        CallPer,
        EffectName,
        Mode,
        OncePer,
        OnConcurrent,
        OnDuplicate,
        OnEmpty,
        OnOtherRun,
        OnRepeated,
    )

    P = ParamSpec("P")

    class _Mappable(Protocol[P]):
        function: Callable[..., Any]
        override: Callable[P, IdempotentFunction[P]]

        def partial(self, **kwargs: Any) -> IdempotentFunction[P]: ...

        def expand(self, **kwargs: Any) -> XComArg: ...

        def expand_kwargs(
            self, kwargs: XComArg | Sequence[XComArg | Mapping[str, Any]], *, strict: bool = True
        ) -> XComArg: ...

    class IdempotentFunction(_Mappable[P], Protocol[P]):
        """A function that ``@task.idempotent`` has made a task."""

        def __call__(
            self,
            *args: Any,
            document: Any = None,
            documents: Iterable[Any] | Callable[..., Iterable[Any]] | XComArg | None = None,
            **kwargs: Any,
        ) -> XComArg: ...

    class IdempotentDecorated(_Mappable[P], Protocol[P]):
        """What ``@task.idempotent`` gives: it takes the function if it was given parameters, else it has it."""

        @overload
        def __call__(self, function: Callable[..., Any], /) -> IdempotentFunction[P]: ...

        @overload
        def __call__(
            self,
            *,
            document: Any = None,
            documents: Iterable[Any] | Callable[..., Iterable[Any]] | XComArg | None = None,
            **kwargs: Any,
        ) -> XComArg: ...

    class IdempotentDecorator(Protocol[P]):
        """``@task.idempotent``, with parameters or without."""

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> IdempotentDecorated[P]: ...

    def _parameters(  # those of IdempotentOperator, which a test compares
        python_callable: Callable[..., Any] | None = None,
        /,
        *,
        operation: str | None = None,
        key_namespace: str | None = None,
        business_date: str | date | BusinessDateRule | Callable[[RunFacts], Any] | XComArg | None = None,
        cycle: str | XComArg = "",
        document: Any = None,
        documents: Iterable[Any] | Callable[..., Iterable[Any]] | XComArg | None = None,
        document_key: str | None = None,
        fingerprint_fields: Sequence[str] | None = None,
        once_per: OncePer = "date",
        call_per: CallPer = "document",
        batch_size: int = 500,
        max_workers: int = 1,
        side_effect: EffectName | SideEffect = "external",
        on_duplicate: OnDuplicate = "replay",
        on_concurrent: OnConcurrent = "wait",
        wait_timeout: timedelta | float = 3600,
        poll_interval: timedelta | float = 10,
        deferrable: bool = False,
        on_other_run: OnOtherRun = "fail",
        expected: int | Expected | Callable[..., int | Expected | None] | None = None,
        on_empty: OnEmpty = "warn",
        on_repeated: OnRepeated = "warn",
        stop_on_failure: bool = False,
        max_rejected: int = 0,
        mode: Mode | None = None,
        guarded_from: str | date | None = None,
        retired_operations: Sequence[str] = (),
        ledger_conn_id: str | None = None,
        lease: timedelta | float | None = None,
        max_hold: timedelta | float | None = None,
        **kwargs: Any,
    ) -> None: ...

    def _decorator(parameters: Callable[P, None]) -> IdempotentDecorator[P]: ...

    class Tasks(TaskDecoratorCollection):
        """``task`` with all of Airflow's decorators, and this one."""

        idempotent = _decorator(_parameters)

    task: Tasks
else:
    task = _task
