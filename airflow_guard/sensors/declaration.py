"""What a DAG file declares about a reconciliation, checked when the DAG is parsed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, get_args

from airflow_guard.core.effects import ASK_TIMEOUT, check_ask_timeout
from airflow_guard.core.errors import ConfigurationError
from airflow_guard.core.keys import KeySpace
from airflow_guard.core.parameters import OnBreak, one_of
from airflow_guard.reconciling.rules import Rules
from airflow_guard.reconciling.sides import Side, is_template

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from airflow.sdk import BaseSensorOperator, XComArg

    from airflow_guard.hooks.settings import GuardSettings

    _Base = BaseSensorOperator
else:
    _Base = object

DEFAULT_RECHECK_DAYS = 3
"""Long enough for a Monday to look at the Friday before."""
_BOUND_DATE = re.compile(r"(?<![:\\\w]):business_date\b")


class ReconciliationTask(_Base):
    """What a reconciliation has beside what every sensor has. ``ReconciliationSensor`` is it; this is what its parts know.

    Its parameters are described there.
    """

    source: Side
    target: Side
    operation: str | None
    key_namespace: str | None
    business_date: Any
    cycle: str | XComArg
    ledger_conn_id: str | None
    guard_settings: GuardSettings
    sensor_spec: SensorSpec


@dataclass(frozen=True)
class SensorSpec:
    """The rules of one reconciliation task.

    :param recheck_days: how many earlier dates to look at again, ``None``: as the sides allow.
    :param ask_timeout: how long a question is open.
    """

    rules: Rules
    settle_pokes: int
    recheck_days: int | None
    on_break: OnBreak
    ask_timeout: timedelta = ASK_TIMEOUT

    @staticmethod
    def of(values: Mapping[str, Any]) -> SensorSpec:
        """Return the rules that the parameters of a sensor declare.

        :raises ConfigurationError: a value or combination that cannot work.
        """
        names = (
            "group_by",
            "compare",
            "count_tolerance",
            "absolute_tolerance",
            "relative_tolerance",
            "allow_empty",
            "allow_missing_amounts",
            "max_breaks",
        )
        rules = Rules(**{name: values[name] for name in names})
        source, target = (_side(name, values[name]) for name in ("source", "target"))
        _check_keys(source, target, rules)
        recheck_days = values["recheck_days"]
        if recheck_days is not None:
            _whole("recheck_days", recheck_days, 0)
            if recheck_days and not _undecided(source, target):
                recheckable(source, target, recheck_days)
        _whole("settle_pokes", values["settle_pokes"], 1)
        on_break = values["on_break"]
        if on_break not in get_args(OnBreak):
            raise ConfigurationError(f"on_break={on_break!r}: use {one_of(get_args(OnBreak))}.")
        ask_timeout = values.get("ask_timeout")
        if ask_timeout is not None and on_break != "ask":
            raise ConfigurationError('ask_timeout=… has no meaning without on_break="ask".')
        open_for = (
            ASK_TIMEOUT if ask_timeout is None else check_ask_timeout("ReconciliationSensor", ask_timeout)
        )
        return SensorSpec(rules, values["settle_pokes"], recheck_days, on_break, open_for)


def check_sensor_words(**words: Any) -> None:
    """Refuse what of Airflow's sensors would hide a break.

    :raises ConfigurationError: names the parameter.
    """
    for name in ("never_fail", "silent_fail"):
        if words.get(name):
            raise ConfigurationError(
                f"{name}=True would hide breaks and mistakes. The sensor tolerates databases that are down by itself, "
                'until timeout. For breaks that fail nothing use on_break="warn".'
            )


def check_names(task_id: str, dag_id: str | None, values: Mapping[str, Any], deployment: str) -> None:
    """Refuse names that cannot be those of an operation.

    :raises ConfigurationError: says which.
    """
    for name in ("operation", "key_namespace"):
        value = values.get(name)
        if value is not None and (not isinstance(value, str) or "{{" in value):
            raise ConfigurationError(f"{name}={value!r}: a fixed text. Breaks are found again by it.")
    cycle = values.get("cycle") or ""
    fixed = cycle if isinstance(cycle, str) and "{{" not in cycle else ""
    KeySpace(
        values.get("key_namespace") or dag_id or "dag",
        values.get("operation") or task_id,
        date(2000, 1, 1),
        fixed,
        deployment=deployment,
    )


def recheckable(source: Side, target: Side, days: int | None) -> int | None:
    """Return how many earlier dates can be looked at again, ``None`` if none can: the sides are about no date.

    :param days: what was asked for, ``None``: nothing.
    :raises ConfigurationError: it was asked for, and cannot be done.
    """
    unbound = [name for name, side in (("source", source), ("target", target)) if not _binds_date(side)]
    if not unbound:
        return DEFAULT_RECHECK_DAYS if days is None else days
    if days:
        raise ConfigurationError(
            f"recheck_days={days}: an earlier date can only be looked at again if both sides name :business_date, and "
            f'{" and ".join(unbound)} does not. Write where="business_date = :business_date" (not a template, '
            "which is rendered for one date), or set recheck_days=0."
        )
    return None


def _binds_date(side: Side) -> bool:
    text = side.sql or side.where or ""
    return bool(_BOUND_DATE.search(text)) and "business_date" not in side.parameters


def _undecided(*sides: Side) -> bool:
    """Return whether only rendering tells what a side binds."""
    return any(is_template(side.sql or side.where or "") for side in sides)


def _side(name: str, value: object) -> Side:
    if not isinstance(value, Side):
        raise ConfigurationError(f"{name}={value!r:.80} is not a Side(conn_id=…, table=… or sql=…).")
    return value


def _check_keys(source: Side, target: Side, rules: Rules) -> None:
    if len(source.keys) != len(target.keys):
        raise ConfigurationError(
            f"The source has key={list(source.keys)}, the target key={list(target.keys)}: documents can only be "
            "compared by keys of as many columns on both sides. Leave key out on both for totals only."
        )
    if rules.compare and not source.keys:
        raise ConfigurationError(
            f"compare={list(rules.compare)} compares document by document, and the sides have no key=."
        )


def _whole(name: str, value: object, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ConfigurationError(f"{name}={value!r} must be a whole number from {low}.")
