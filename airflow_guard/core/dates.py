"""The business date of a run: resolved once, before the ledger is touched.

Order: ``conf["business_date"]`` (not in scheduled and backfill runs), the operator's ``business_date``, the
run's partition date, the start of its data interval unless that is empty, its logical date; in the DAG's time
zone. Nothing there is an error. It is never today's date, and the time zone of the process plays no part.

This module is the door to the subject; the names of its neighbours can be imported from here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from airflow_guard.core.calendar_rules import (
    BusinessCalendar,
    HolidayCalendar,
    business_day,
    business_month_end,
    previous_business_day,
)
from airflow_guard.core.date_checks import DatedRun, check_stored_date, disagreement, repeated_or_jumped
from airflow_guard.core.date_rules import (
    BusinessDateRule,
    OwnDateRule,
    from_asset_extra,
    month_end,
    previous_day,
    same_day,
)
from airflow_guard.core.errors import BusinessDateError
from airflow_guard.core.run_facts import (
    RUN_TYPES_WITHOUT_CONF,
    DateSource,
    NoBusinessDate,
    ResolvedDate,
    RunFacts,
    own_date,
    parse_business_date,
)

if TYPE_CHECKING:
    from datetime import date

__all__ = [
    "CONF_KEY",
    "BusinessCalendar",
    "BusinessDateRule",
    "DateSource",
    "DatedRun",
    "HolidayCalendar",
    "NoBusinessDate",
    "OwnDateRule",
    "ResolvedDate",
    "RunFacts",
    "business_day",
    "business_month_end",
    "check_stored_date",
    "date_warnings",
    "derived_date",
    "disagreement",
    "from_asset_extra",
    "month_end",
    "own_date",
    "parse_business_date",
    "previous_business_day",
    "previous_day",
    "repeated_or_jumped",
    "resolve_business_date",
    "same_day",
]

CONF_KEY = "business_date"

DateCallable: TypeAlias = Callable[[RunFacts], "date | str | NoBusinessDate"]
OperatorDate: TypeAlias = "str | date | BusinessDateRule | DateCallable | None"
"""What an operator's ``business_date`` may be, after rendering."""


def resolve_business_date(facts: RunFacts, business_date: OperatorDate) -> ResolvedDate | NoBusinessDate:
    """Return the business date of a run, or that a rule says to skip it.

    A date in ``conf`` wins over the operator's rule, but must be one that the rule could give: no other run would
    ever meet the keys of another, and the work would be done twice.

    :param facts: what the run offers.
    :param business_date: the operator's value: ``None`` (absent), a ``date``, text (a rendered template), a
        rule, or a callable that takes the facts and returns a date, ISO text or ``NoBusinessDate``.
    :raises BusinessDateError: no date, or one that cannot be read. A retry does not help.
    """
    given = _from_conf(facts)
    if given is None:
        return _without_conf(facts, business_date)
    refusal = business_date.refusal(given.date) if isinstance(business_date, BusinessDateRule) else None
    if refusal is not None:
        raise BusinessDateError(
            f"{given.detail} of {facts} is refused: {refusal}, so business_date={business_date} gives that "
            "date to no other run. Give a date that it can give."
        )
    return given


def derived_date(facts: RunFacts, business_date: OperatorDate, resolved: ResolvedDate) -> ResolvedDate | None:
    """Return the date that the run would have had without the word of a person or template that dated it.

    For a date from ``conf`` that is what the operator's value gives, for one from the operator the run's own
    date. ``None`` for every other source, or if there would have been none. Callables are not called again.

    :param facts: what the run offers.
    :param business_date: the operator's value.
    :param resolved: what ``resolve_business_date`` returned.
    """
    try:
        if resolved.source is DateSource.EXPLICIT:
            return own_date(facts)
        if resolved.source is not DateSource.CONF or callable(business_date):
            return None
        instead = _without_conf(facts, business_date)
    except BusinessDateError:
        return None
    return instead if isinstance(instead, ResolvedDate) else None


def date_warnings(facts: RunFacts, business_date: OperatorDate, resolved: ResolvedDate) -> list[str]:
    """Return what the log should warn of, a line each: a date in ``conf`` that is passed over, and a date of
    a person or template that differs from the run's.

    :param facts: what the run offers.
    :param business_date: the operator's value.
    :param resolved: what ``resolve_business_date`` returned.
    """
    lines = []
    ignored = facts.conf.get(CONF_KEY)
    if ignored is not None and facts.run_type in RUN_TYPES_WITHOUT_CONF:
        lines.append(
            f"conf[{CONF_KEY!r}] = {ignored!r:.80} is ignored: {facts} shares its conf with other runs, "
            f"which would all get one business date. Its own is {resolved.date} ({resolved.detail})."
        )
    differs = disagreement(resolved, derived_date(facts, business_date, resolved))
    return lines if differs is None else [*lines, differs]


def _from_conf(facts: RunFacts) -> ResolvedDate | None:
    if facts.run_type in RUN_TYPES_WITHOUT_CONF:
        return None
    value = facts.conf.get(CONF_KEY)
    if value is None:
        return None
    day = parse_business_date(value, source=f"conf[{CONF_KEY!r}] of {facts}")
    return ResolvedDate(day, DateSource.CONF, f"conf[{CONF_KEY!r}] = {day}")


def _without_conf(facts: RunFacts, business_date: OperatorDate) -> ResolvedDate | NoBusinessDate:
    if isinstance(business_date, BusinessDateRule):
        return business_date.date_of_run(facts)
    if callable(business_date):
        return _called(facts, business_date)
    if business_date is not None:
        day = parse_business_date(business_date, source=f"business_date of the operator in {facts}")
        return ResolvedDate(day, DateSource.EXPLICIT, f"business_date={day} of the operator")
    own = own_date(facts)
    if own is None:
        raise BusinessDateError(
            f"No business date for {facts}: it has no partition date, no data interval and no logical date, "
            "and today's date is never taken. Supply one in one of three ways: trigger the run with conf "
            '{"business_date": "YYYY-MM-DD"}; set business_date= on the operator (a template that has a '
            "value in such runs, a rule such as from_asset_extra(), or a callable); or give the run a "
            "logical date."
        )
    return own


def _called(facts: RunFacts, choose: DateCallable) -> ResolvedDate | NoBusinessDate:
    name = getattr(choose, "__qualname__", type(choose).__qualname__)
    value = choose(facts)
    if isinstance(value, NoBusinessDate):
        return value
    day = parse_business_date(value, source=f"What business_date={name} returned for {facts}")
    return ResolvedDate(day, DateSource.RULE, f"business_date={name} returned {day}")
