"""Whether a schedule gives every business date of a rule a run, found out when the DAG is parsed.

A rule that skips a run leaves its date to another one: the run of Monday works on Friday, whose Saturday was
skipped. Where the schedule has no such run, the date would never be worked on, and no task would be red.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, TypeAlias

from airflow_guard.core.calendar_rules import BusinessDay, BusinessMonthEnd, PreviousBusinessDay
from airflow_guard.core.date_rules import MonthEnd
from airflow_guard.core.run_facts import NoBusinessDate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import TypeIs

_SKIPPING = (BusinessDay, BusinessMonthEnd, MonthEnd, PreviousBusinessDay)
SkippingRule: TypeAlias = BusinessDay | BusinessMonthEnd | MonthEnd | PreviousBusinessDay


def skips(rule: object) -> TypeIs[SkippingRule]:
    """Return whether a rule skips days by a calendar that can be asked when a DAG is parsed: rules and calendars
    of the user's are not, as what they cost is not known.

    :param rule: the operator's ``business_date``.
    """
    if not isinstance(rule, _SKIPPING) or rule.otherwise != "skip":
        return False
    return isinstance(rule, MonthEnd) or rule.calendar is None


def lost_date(rule: SkippingRule, own_dates: Sequence[date]) -> tuple[date, date] | None:
    """Return the own date of a run that a rule skips, and the business date that no other run works on.

    :param own_dates: those of a schedule, long enough to have everything in it.
    :raises CalendarError: see ``HolidayCalendar``.
    """
    anyhow = {"otherwise": "run" if isinstance(rule, PreviousBusinessDay) else "previous"}
    instead: SkippingRule = replace(rule, **anyhow)  # type: ignore[arg-type]
    days = {own: rule.date_for(own) for own in own_dates}
    given = set(days.values())
    for own, found in days.items():
        left = instead.date_for(own) if isinstance(found, NoBusinessDate) else None
        if isinstance(left, date) and left >= own_dates[0] and left not in given:
            return own, left
    return None
