"""Second looks at a business date: against the run, what was stored, the run before, and the schedule when a DAG is parsed.

A rule that skips a run leaves its date to another one: the run of Monday works on Friday, whose Saturday was
skipped. Where the schedule has no such run, the date would never be worked on, and no task would be red.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

from airflow_guard.core.calendar_rules import BusinessDay, BusinessMonthEnd, PreviousBusinessDay
from airflow_guard.core.date_rules import MonthEnd, OwnDateRule, same_day
from airflow_guard.core.errors import BusinessDateError, DateChangedError
from airflow_guard.core.run_facts import DateSource, NoBusinessDate, ResolvedDate, RunFacts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import TypeIs


# -- Second looks at a business date: against what the run says, what was stored, and the run before ---------

ABOUT_A_DAY = timedelta(hours=20)
"""Runs due less than this apart may well share a business date: a schedule within the day, with cycles.
Shorter than the shortest local day (23 h), longer than twice daily."""

A_YEAR_OF_DAYS = 366
"""A business date further ahead is a slip of the pen."""


@dataclass(frozen=True)
class DatedRun:
    """An earlier run of the same DAG and task, as the ledger remembers it.

    :param run_id: the run.
    :param date: its business date.
    :param due_at: when it was due (Airflow's ``run_after``), an aware instant.
    """

    run_id: str
    date: date
    due_at: datetime


def disagreement(explicit: ResolvedDate, derived: ResolvedDate | None) -> str | None:
    """Return a line for the log if a date that somebody wrote differs from the one that the run says.

    The written one is used: this warns, it does not decide. Only ``conf`` and the operator's text or date are
    compared. A rule, an asset event or a partition exists to give another date than the run's own, so a line
    each time would teach people to read past it.

    :param explicit: the date in use.
    :param derived: what the run would have had otherwise, or ``None``.
    """
    if explicit.source not in (DateSource.CONF, DateSource.EXPLICIT):
        return None
    if derived is None or derived.date == explicit.date:
        return None
    return (
        f"Business date {explicit.date} ({explicit.detail}) differs from {derived.date} ({derived.detail}); "
        f"{explicit.date} is used."
    )


def check_stored_date(
    resolved: ResolvedDate | NoBusinessDate,
    stored: ResolvedDate | None,
    *,
    dag_id: str,
    run_id: str,
    task_id: str,
) -> None:
    """Refuse another date than the one that an earlier try of the same task in the same run had.

    A run that now has no date, where it had one, is refused too: skipping it would leave the old date
    unfinished in silence. Where the date came from may change, as long as the date stays.

    :param resolved: what the run resolves to now.
    :param stored: what was stored at its first try, ``None`` if this is the first.
    :param dag_id: the DAG, for the message.
    :param run_id: the run, for the message.
    :param task_id: the task, for the message.
    :raises DateChangedError: the dates differ. A retry does not help.
    """
    if stored is None or (isinstance(resolved, ResolvedDate) and resolved.date == stored.date):
        return
    if isinstance(resolved, NoBusinessDate):
        now, why, sources, then = "none", resolved.reason, {DateSource.RULE}, ""
    else:
        now, why = str(resolved.date), f"{resolved.source}: {resolved.detail}"
        sources = {stored.source, resolved.source}
        then = f' If {now} is right, leave this run and trigger one with conf {{"business_date": "{now}"}}.'
    cause = "Calendar or rule" if DateSource.RULE in sources else "Business date"
    raise DateChangedError(
        f"{cause} changed {stored.date} → {now}: task {task_id!r} of run {run_id!r} of DAG {dag_id!r} was "
        f"dated {stored.date} ({stored.source}: {stored.detail}) and would now be dated {now} ({why}). "
        f"Nothing was done. If {stored.date} is right, restore what gave it (the rule, the release of the "
        f"calendar library, or a calendar= of your own that answers as before) and clear again.{then}"
    )


def in_the_future(resolved: ResolvedDate, facts: RunFacts, now: datetime) -> str | None:
    """Return a line for the log if a run is about a day that has not begun, or whose data interval is not over.

    :param resolved: its business date.
    :param facts: what the run offers.
    :param now: the present instant.
    :raises BusinessDateError: the date lies more than a year ahead: a slip of the pen. A retry does not help.
    """
    today = facts.local_date(now)
    ahead = (resolved.date - today).days
    if ahead > A_YEAR_OF_DAYS:
        raise BusinessDateError(
            f"Business date {resolved.date} ({resolved.detail}) of {facts} lies {ahead} days in the future (today is "
            f"{today}). Nothing was done. Trigger a run with the right date."
        )
    if ahead > 0:
        return (
            f"Business date {resolved.date} ({resolved.detail}) of {facts} lies in the future (today is {today}). What "
            "is done now for that date is not done again when it comes."
        )
    end = facts.interval_end_at
    if resolved.source is DateSource.INTERVAL and end is not None and end > now:
        return (
            f"The data interval of {facts} ends in the future, at {end.isoformat()}: business date {resolved.date} is "
            "not over. What is listed later for that date needs a run of its own."
        )
    return None


def repeated_or_jumped(
    previous: DatedRun | None,
    facts: RunFacts,
    resolved: ResolvedDate,
    business_date: object = None,
) -> str | None:
    """Return a line for the log if two consecutive scheduled runs repeat, go back from or jump a business
    date.

    That is how a change of timetable shows: a cron string that gave data intervals before Airflow 3 and gives
    none since.

    * *Repeated*: the same date, although the runs were due about a day or more apart.
    * *Gone back*: an earlier date, although the run was due later.
    * *Jumped*: the day on which the previous run was due would have a date of its own under the same rule,
      which lies between the two and which neither of them has. In a steady schedule it never does, whichever
      days are left out: where a run is dated by the day on which it is due, that day gives the previous run's
      date; where it is dated by the start of its data interval, that day starts the next interval and gives
      this run's. Only looked for if the date is the run's own or follows from it by a rule, and not for
      partitions.

    :param previous: the scheduled run before, ``None`` if there is none.
    :param facts: what this run offers.
    :param resolved: its business date.
    :param business_date: the operator's value.
    """
    if previous is None or facts.run_type != "scheduled" or facts.run_after_at is None:
        return None
    if previous.run_id == facts.run_id or previous.due_at >= facts.run_after_at:
        return None
    runs = f"{previous.run_id!r} ({previous.date}) and {facts.run_id!r} ({resolved.date})"
    advice = (
        f"Was the timetable of DAG {facts.dag_id!r} changed, or the DAG paused? A CronTriggerTimetable or "
        "CronDataIntervalTimetable in place of a cron string keeps its dates when Airflow is upgraded."
    )
    if resolved.date < previous.date:
        return f"The business date goes back between the consecutive scheduled runs {runs}. {advice}"
    if resolved.date == previous.date and facts.run_after_at - previous.due_at >= ABOUT_A_DAY:
        return f"The business date is repeated by the consecutive scheduled runs {runs}. {advice}"
    skipped = _date_of_due_day(previous, facts, business_date)
    if skipped is not None and previous.date < skipped < resolved.date:
        return (
            f"The business date {skipped} is jumped between the consecutive scheduled runs {runs}. {advice}"
        )
    return None


def _date_of_due_day(previous: DatedRun, facts: RunFacts, business_date: object) -> date | None:
    rule = same_day() if business_date is None else business_date
    if (
        not isinstance(rule, OwnDateRule)
        or facts.partition_date is not None
        or facts.partition_key is not None
    ):
        return None
    try:
        day = rule.date_for(facts.local_date(previous.due_at))
    except BusinessDateError:
        return None
    return None if isinstance(day, NoBusinessDate) else day


def date_of_then(at: datetime, facts: RunFacts, business_date: object) -> date | None:
    """Return the date that an earlier run would have by the rule and zone of now; ``None`` if that cannot be said.

    :param at: what its date was made from.
    :param facts: of the run of now, for the zone.
    :param business_date: the operator's value now.
    """
    rule = same_day() if business_date is None else business_date
    if not isinstance(rule, OwnDateRule):
        return None
    try:
        day = rule.date_for(facts.local_date(at))
    except (BusinessDateError, OverflowError):
        return None
    return None if isinstance(day, NoBusinessDate) else day


# -- Whether a schedule gives every business date of a rule a run, found out when the DAG is parsed ----------

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
