"""Rules about business days: those that need a calendar. ``date_rules`` says what they start from."""

from __future__ import annotations

from calendar import monthrange
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from airflow_guard.core.calendars import BusinessCalendar, HolidayCalendar
from airflow_guard.core.date_rules import OffDay, OwnDateRule
from airflow_guard.core.errors import CalendarError, ConfigurationError
from airflow_guard.core.run_facts import NoBusinessDate, days_from

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import date

OnHoliday = Literal["run", "skip", "error"]

_LONGEST_CLOSURE_DAYS = 366


@dataclass(frozen=True, repr=False)
class _CalendarRule(OwnDateRule):
    """What the rules about business days have in common: a calendar and how it is written."""

    country: str | None
    subdivision: str | None = None
    otherwise: str = ""
    calendar: BusinessCalendar | None = None

    def __post_init__(self) -> None:
        if self.calendar is None:
            if self.country is None:
                raise ConfigurationError(
                    f"{self._constructor}() needs a country such as 'DE', or a calendar=."
                )
            # A code of the wrong shape fails when the DAG is parsed.
            HolidayCalendar(self.country, self.subdivision)
        elif isinstance(self.calendar, type) or not isinstance(self.calendar, BusinessCalendar):
            raise ConfigurationError(
                f"calendar= of {self._constructor}() is a {type(self.calendar).__name__}, which has no "
                "method is_business_day(date)."
            )

    def _days(self) -> BusinessCalendar:
        if self.calendar is not None:
            return self.calendar
        if self.country is None:  # __post_init__ refuses this
            raise ConfigurationError(f"{self._constructor}() has neither a country nor a calendar.")
        return HolidayCalendar(self.country, self.subdivision)

    def _closed(self, day: date) -> str | None:
        """Say that a day is no business day, or nothing."""
        days = self._days()
        if days.is_business_day(day):
            return None
        return f"{day} is not a business day ({self.country or _written(days)})"

    def _nearest(self, start: date, step: int) -> date:
        """Return the first business day from ``start``, which is not looked at, in steps of ``step`` days."""
        days, day = self._days(), start
        for _ in range(_LONGEST_CLOSURE_DAYS):
            day = days_from(day, step)
            if days.is_business_day(day):
                return day
        where = "before" if step < 0 else "after"
        raise CalendarError(f"{self}: its calendar has no business day in the year {where} {start}.")

    def _edition(self) -> str:
        days = self._days()
        return f" [{days.edition()}]" if isinstance(days, HolidayCalendar) else ""

    def _arguments(self) -> list[str]:
        country = [] if self.country is None else [repr(self.country)]
        calendar = [] if self.calendar is None else [f"calendar={_written(self.calendar)}"]
        return [*country, *self._changed("subdivision", "otherwise"), *calendar]


@dataclass(frozen=True, repr=False)
class BusinessDay(_CalendarRule):
    """See ``business_day``."""

    otherwise: OffDay = "skip"
    _constructor: ClassVar[str] = "business_day"

    def __post_init__(self) -> None:
        self._check_word("otherwise", OffDay)
        super().__post_init__()

    def date_for(self, own: date) -> date | NoBusinessDate:
        """Return the own date if it is a business day, else what ``otherwise`` says."""
        closed = self._closed(own)
        if closed is None:
            return own
        if self.otherwise in ("previous", "next"):
            return self._nearest(own, -1 if self.otherwise == "previous" else 1)
        return self._off_day(closed, skip=self.otherwise == "skip")

    def refusal(self, given: date) -> str | None:
        """Refuse other days: the rule never gives them, so their keys would meet those of no other run."""
        return self._closed(given)


@dataclass(frozen=True, repr=False)
class PreviousBusinessDay(_CalendarRule):
    """See ``previous_business_day``."""

    otherwise: OnHoliday = "skip"
    _constructor: ClassVar[str] = "previous_business_day"

    def __post_init__(self) -> None:
        self._check_word("otherwise", OnHoliday)
        super().__post_init__()

    def date_for(self, own: date) -> date | NoBusinessDate:
        """Return the last business day before the own date, unless ``otherwise`` minds that one being off."""
        closed = None if self.otherwise == "run" else self._closed(own)
        if closed is None:
            return self._nearest(own, -1)
        return self._off_day(closed, skip=self.otherwise == "skip")

    def refusal(self, given: date) -> str | None:
        """Refuse days off: the rule never gives them, so their keys would meet those of no other run."""
        return self._closed(given)


@dataclass(frozen=True, repr=False)
class BusinessMonthEnd(_CalendarRule):
    """See ``business_month_end``."""

    otherwise: OffDay = "skip"
    _constructor: ClassVar[str] = "business_month_end"

    def __post_init__(self) -> None:
        self._check_word("otherwise", OffDay)
        super().__post_init__()

    def date_for(self, own: date) -> date | NoBusinessDate:
        """Return the own date if it is its month's last business day, else what ``otherwise`` says."""
        reason = self.refusal(own)
        if reason is None:
            return own
        if self.otherwise not in ("previous", "next"):
            return self._off_day(reason, skip=self.otherwise == "skip")
        last = self._last_of_month(own)
        if self.otherwise == "previous":
            return last if last < own else self._nearest(own.replace(day=1), -1)
        return last if last > own else self._last_of_month(days_from(_month_end(own), 1))

    def refusal(self, given: date) -> str | None:
        """Refuse other days: the rule never gives them, so their keys would meet those of no other run."""
        last = self._last_of_month(given)
        if given == last:
            return None
        where = self.country or _written(self._days())
        return f"{given} is not the last business day of its month ({where}), which is {last}"

    def _last_of_month(self, day: date) -> date:
        return self._nearest(days_from(_month_end(day), 1), -1)


def business_day(
    country: str | None = None,
    *,
    subdivision: str | None = None,
    otherwise: OffDay = "skip",
    calendar: BusinessCalendar | None = None,
) -> OwnDateRule:
    """Return the rule "the run's own date, if it is a business day".

    It goes with ``CronDataIntervalTimetable``, whose own date is the day that has just ended.

    >>> business_day("DE")
    business_day('DE')

    :param country: code of a country or market, see ``HolidayCalendar``. May be left out with ``calendar``.
    :param subdivision: a region with holidays of its own, such as ``"BY"``.
    :param otherwise: on other days: ``"skip"`` skips the task (default), ``"error"`` fails it, ``"previous"``
        and ``"next"`` give the nearest business day before or after. With these two, several runs share a date.
    :param calendar: asked in place of the library.
    :raises ConfigurationError: another word, or neither country nor calendar.
    :raises CalendarError: the country is not shaped like a code.
    """
    return BusinessDay(country, subdivision, otherwise, calendar)


def previous_business_day(
    country: str | None = None,
    *,
    subdivision: str | None = None,
    otherwise: OnHoliday = "skip",
    calendar: BusinessCalendar | None = None,
) -> OwnDateRule:
    """Return the rule "the last business day before the run's own date".

    It is for cron strings: the run of Monday works on Friday. The runs of Saturday and Sunday, if the schedule
    has them, are skipped; with ``otherwise="run"`` they work on Friday too, and then meet the same key.
    With ``CronDataIntervalTimetable`` the own date is the day before already: use ``business_day``.

    >>> previous_business_day("DE")
    previous_business_day('DE')

    :param country: code of a country or market, see ``HolidayCalendar``. May be left out with ``calendar``.
    :param subdivision: a region with holidays of its own, such as ``"BY"``.
    :param otherwise: if the own date is not a business day itself: ``"skip"`` skips the task (default),
        ``"error"`` fails it, ``"run"`` gives the business day before it anyhow: for a schedule that has no run
        on the next business day.
    :param calendar: asked in place of the library.
    :raises ConfigurationError: another word, or neither country nor calendar.
    :raises CalendarError: the country is not shaped like a code.
    """
    return PreviousBusinessDay(country, subdivision, otherwise, calendar)


def business_month_end(
    country: str | None = None,
    *,
    subdivision: str | None = None,
    otherwise: OffDay = "skip",
    calendar: BusinessCalendar | None = None,
) -> OwnDateRule:
    """Return the rule "the run's own date, if it is the last business day of its month".

    April 2022 ended on a Saturday: its last business day is Friday, the 29th. ``month_end`` is about the last
    day of the calendar. As for ``month_end``, ``otherwise="previous"`` goes with one run a month, after the month
    has ended.

    >>> business_month_end("DE")
    business_month_end('DE')

    :param country: code of a country or market, see ``HolidayCalendar``. May be left out with ``calendar``.
    :param subdivision: a region with holidays of its own, such as ``"BY"``.
    :param otherwise: on other days: ``"skip"`` skips the task (default), ``"error"`` fails it, ``"previous"``
        and ``"next"`` give the nearest such day before or after. With these two, several runs share a date.
    :param calendar: asked in place of the library.
    :raises ConfigurationError: another word, or neither country nor calendar.
    :raises CalendarError: the country is not shaped like a code.
    """
    return BusinessMonthEnd(country, subdivision, otherwise, calendar)


def _month_end(day: date) -> date:
    return day.replace(day=monthrange(day.year, day.month)[1])


def _written(calendar: BusinessCalendar) -> str:
    """Return a calendar's ``repr``, or its class if that is Python's own, which holds a memory address."""
    describe: Callable[[object], str] = type(calendar).__repr__
    return f"{type(calendar).__qualname__}()" if describe is object.__repr__ else repr(calendar)
