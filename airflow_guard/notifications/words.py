"""The sentences and figures of a message, from what the ledger and Airflow say."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

from airflow_guard.core.amounts import variance
from airflow_guard.core.errors import GuardError
from airflow_guard.core.report import said
from airflow_guard.reconciling.check_report import group_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_REASONS = {
    "task_failure": "A task of the run failed.",
    "timed_out": "The run took longer than its dagrun_timeout.",
    "all_tasks_deadlocked": "The run cannot go on: its remaining tasks wait for each other.",
}


def exception_in_words(error: object) -> str | None:
    """Return what an exception, or its text, says; ``None`` if it says nothing.

    An error of this package speaks for itself, also behind the one that Airflow was given.
    """
    if error is None:
        return None
    if not isinstance(error, BaseException):
        return str(error).strip() or None
    cause = error.__cause__
    if isinstance(cause, GuardError):
        return said(cause)
    return said(error) if str(error) else type(error).__name__


def reason_in_words(reason: object) -> str | None:
    """Return Airflow's reason for the end of a run as a sentence."""
    text = str(reason).strip() if reason is not None else ""
    return _REASONS.get(text, text) or None


def totals_in_words(totals: Sequence[Mapping[str, Any]], allowed: str | None) -> list[str]:
    """Return a line for each group whose totals differ: both sides, variance and what is allowed.

    :param totals: as ``guard_reconciliation`` has them; amounts are exact texts.
    :param allowed: the tolerances in words, ``None`` if they are not known.
    """
    differing = [each for each in totals if each["reasons"]] or list(totals)
    return [_group(each, allowed) for each in differing]


def tolerances_in_words(rules: Any) -> str:
    """Return the tolerances of a reconciliation.

    >>> from airflow_guard.reconciling.rules import Rules
    >>> tolerances_in_words(Rules(absolute_tolerance="0.05", count_tolerance=1))
    '1 row, 0.05'
    >>> tolerances_in_words(Rules())
    'nothing'
    """
    count = rules.count_tolerance
    parts = [f"{count:,} row{'' if count == 1 else 's'}"] if count else []
    parts += [f"{rules.absolute_tolerance:f}"] if rules.absolute_tolerance else []
    parts += [f"{rules.relative_tolerance * 100:f} % of the source"] if rules.relative_tolerance else []
    return ", ".join(parts) or "nothing"


def _group(each: Mapping[str, Any], allowed: str | None) -> str:
    sides = [each["source"], each["target"]]
    rows = [0 if side is None else side["records"] for side in sides]
    parts = [f"{rows[0]:,} / {rows[1]:,} rows"]
    names = dict.fromkeys(name for side in sides if side for name in side["amounts"])
    for name in names:
        amounts = [(side or {"amounts": {}})["amounts"].get(name) for side in sides]
        by = variance(*(Decimal(amount or 0) for amount in amounts))
        shown = " / ".join("none" if amount is None else amount for amount in amounts)
        parts.append(f"{f'{name} ' if len(names) > 1 else ''}{shown} (variance {by:+f})")
    limit = "" if allowed is None else f"; allowed: {allowed}"
    return f"{group_text(each['group'])}: source / target {', '.join(parts)}{limit}"
