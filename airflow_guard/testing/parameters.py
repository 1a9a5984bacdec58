"""What a test run is given, and what the execution makes of it."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypedDict

from airflow_guard.core.effects import side_effect_of
from airflow_guard.core.expectations import expected_now
from airflow_guard.core.keys import KeySpace
from airflow_guard.core.parameters import duration
from airflow_guard.core.run_facts import parse_business_date
from airflow_guard.execution.spec import Callee, GuardSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import date, datetime, timedelta

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
    from airflow_guard.execution.attempt import Listing


class Parameters(TypedDict, total=False):
    """The operator's parameters, with their names and defaults, and what Airflow would say of the run.

    ``business_date`` is a date or its text, by default 2026-01-31; ``operation`` is by default the callable's
    name. ``try_number`` counts by itself. What only says how Airflow waits, or finds the ledger, is accepted
    and unused, so that a test can take the parameters of a DAG as they are.
    """

    document: Any
    documents: Iterable[Any] | Callable[..., Iterable[Any]]
    document_key: str | None
    operation: str | None
    key_namespace: str | None
    business_date: str | date
    cycle: str
    op_kwargs: Mapping[str, Any] | None
    side_effect: EffectName | SideEffect
    fingerprint_fields: Sequence[str] | None
    once_per: OncePer
    call_per: CallPer
    batch_size: int
    max_workers: int
    on_duplicate: OnDuplicate
    on_concurrent: OnConcurrent
    on_other_run: OnOtherRun
    expected: int | Expected | Callable[..., int | Expected | None] | None
    on_empty: OnEmpty
    on_repeated: OnRepeated
    stop_on_failure: bool
    max_rejected: int
    mode: Mode
    guarded_from: str | date | None
    retired_operations: Sequence[str]
    lease: timedelta | float
    max_hold: timedelta | float
    result_max_bytes: int
    task_id: str
    run_id: str
    run_type: str
    run_after_at: datetime | None
    try_number: int
    deployment: str
    ledger_conn_id: str | None
    wait_timeout: timedelta | float
    poll_interval: timedelta | float
    deferrable: bool


def refuse_unknown(parameters: Parameters) -> None:
    """Refuse misspelt parameters.

    :raises TypeError: names them.
    """
    unknown = sorted(set(parameters) - set(Parameters.__annotations__))
    if unknown:
        raise TypeError(f"There is no parameter {', '.join(unknown)}.")


def spec_of(parameters: Parameters) -> GuardSpec:
    """Return the rules of a run.

    :raises ConfigurationError: a value or combination that cannot work.
    """
    known = {each.name for each in fields(GuardSpec)}
    rules: dict[str, Any] = {name: value for name, value in parameters.items() if name in known}
    rules["side_effect"] = side_effect_of(rules.get("side_effect", "external"))
    if rules.get("fingerprint_fields") is not None:
        rules["fingerprint_fields"] = tuple(rules["fingerprint_fields"])
    if rules.get("guarded_from") is not None:
        rules["guarded_from"] = parse_business_date(rules["guarded_from"], source="guarded_from")
    rules |= {name: duration(name, rules[name]) for name in ("lease", "max_hold") if name in rules}
    rules["retired_operations"] = tuple(rules.get("retired_operations", ()))
    return GuardSpec(**rules)


def space_of(parameters: Parameters, operation: str, key_namespace: str) -> KeySpace:
    """Return the key space of a run.

    :param operation: where none is given.
    :param key_namespace: where none is given.
    :raises BusinessDateError: not a date.
    """
    return KeySpace(
        parameters.get("key_namespace") or key_namespace,
        parameters.get("operation") or operation,
        parse_business_date(parameters.get("business_date", "2026-01-31"), source="business_date"),
        parameters.get("cycle") or "",
        parameters.get("once_per", "date"),
        parameters.get("deployment", "test"),
    )


def listing_of(parameters: Parameters, space: KeySpace) -> Listing | None:
    """Return what lists the documents, ``None`` where there is one or none."""
    documents = parameters.get("documents")
    if documents is None:
        return None
    if not callable(documents):
        return lambda: documents
    callee = callee_of(documents, parameters.get("op_kwargs") or {})
    return lambda: callee.call({"business_date": space.business_date, "cycle": space.cycle})


def expected_by(parameters: Parameters, space: KeySpace) -> Expected | None:
    """Return what the listing should bring; functions are called as the one that lists."""
    given = {"business_date": space.business_date, "cycle": space.cycle}
    return expected_now(
        parameters.get("expected"),
        lambda function: callee_of(function, parameters.get("op_kwargs") or {}).call(given),
    )


def callee_of(function: Callable[..., Any], given: Mapping[str, Any]) -> Callee:
    """Return a function of the user as the execution calls it; coroutines are run to their end.

    :param given: the ``op_kwargs``.
    """
    plain = Callee.of(function)

    def call(values: Mapping[str, Any]) -> Any:
        value = plain.call({**given, **values})
        return asyncio.run(_finished(value)) if inspect.iscoroutine(value) else value

    return Callee(call, plain.names, plain.any_name)


async def _finished(coroutine: Any) -> Any:
    return await coroutine
