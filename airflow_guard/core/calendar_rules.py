"""Calendars, and the rules that need one: on which days business is done. ``date_rules`` says what they start from.

A calendar answers one question, so that a test or a firm with a calendar of its own can stand in for the
library. ``HolidayCalendar`` asks the ``holidays`` library (extra ``calendars``), which is imported only when
a date is first asked for: parsing a DAG file costs nothing.
"""

from __future__ import annotations

import difflib
import re
from calendar import monthrange
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, runtime_checkable

from airflow_guard.core.date_rules import OffDay, OwnDateRule
from airflow_guard.core.errors import CalendarError, ConfigurationError
from airflow_guard.core.run_facts import NoBusinessDate, days_from

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import date
    from types import ModuleType

    from holidays import HolidayBase


# -- Calendars: on which days business is done ---------------------------------------------------------------

_CODE = re.compile(r"[A-Z][A-Z0-9]{1,3}")


@runtime_checkable
class BusinessCalendar(Protocol):
    """What a rule asks of a calendar. The answer for one day should never change; if it does, a cleared run
    fails and names both dates."""

    def is_business_day(self, day: date, /) -> bool:
        """Whether business is done on that day. A day that closes early is a business day."""
        ...


@dataclass(frozen=True)
class HolidayCalendar:
    """The public holidays and weekends of a country, or the closing days of a market.

    Weekends are the country's own (Friday and Saturday in Egypt), working Saturdays that replace a bridge day
    count as business days, and so do days that close early. Holidays that hang on the sight of the moon are
    the library's estimates until it knows better: a date that moves is then refused, not followed.

    >>> from datetime import date
    >>> HolidayCalendar("DE", "BY").is_business_day(date(2025, 1, 6))  # Epiphany, in Bavaria
    False

    :param country: ISO 3166-1 code such as ``"DE"``, or the code of a market: ``"ECB"`` (TARGET2),
        ``"XNYS"``. Capital letters.
    :param subdivision: ISO 3166-2 part such as ``"BY"`` for holidays that only a region has.
    :raises CalendarError: ``country`` is not shaped like a code. A retry does not help.
    """

    country: str
    subdivision: str | None = None

    def __post_init__(self) -> None:
        if not _CODE.fullmatch(str(self.country)):
            raise CalendarError(
                f"{self.country!r} is not the code of a country or market. Write an ISO 3166-1 code such as "
                "'DE' or a market such as 'ECB' (TARGET2), in capital letters."
            )

    def is_business_day(self, day: date, /) -> bool:
        """Whether that day is neither a weekend nor a holiday.

        :param day: the day asked about.
        :raises CalendarError: the library is not installed, does not know the country or subdivision, or does
            not know the year. A retry does not help.
        """
        return _year_of(self.country, self.subdivision, day.year).is_working_day(day)

    def __repr__(self) -> str:
        region = "" if self.subdivision is None else f", {self.subdivision!r}"
        return f"HolidayCalendar({self.country!r}{region})"

    def __str__(self) -> str:
        return self.country if self.subdivision is None else f"{self.country}-{self.subdivision}"

    def edition(self) -> str:
        """Name the release of the library, for the note that is stored beside a date."""
        return f"holidays {_library().__version__}"


def _library() -> ModuleType:
    try:
        import holidays
    except ImportError as missing:
        raise CalendarError(
            "A rule about business days needs the holidays library, which is not installed where this task "
            "runs. Install it with: pip install 'airflow-guard[calendars]', or give the rule a calendar= of "
            "your own."
        ) from missing
    return holidays


@lru_cache(maxsize=64)
def _year_of(country: str, subdivision: str | None, year: int) -> HolidayBase:
    """Return one year of a calendar. One object per year and never extended, because the library's own
    extension on demand is not safe between threads."""
    library = _library()
    for listing in (library.country_holidays, library.financial_holidays):
        try:
            found: HolidayBase = listing(country, subdiv=subdivision, years=year, expand=False)
        except (NotImplementedError, TypeError):  # TypeError: a name of the library that is not a calendar
            continue
        if not found.start_year <= year <= found.end_year:
            raise CalendarError(
                f"The holidays library knows {country} from {found.start_year} to {found.end_year}, not "
                f"{year}: it would take every holiday of that year for a business day. Upgrade the library, "
                "or give the rule a calendar= of your own."
            )
        return found
    raise CalendarError(_unknown(country, subdivision))


def _unknown(country: str, subdivision: str | None) -> str:
    """Say what is not known, and what is that looks like it."""
    library = _library()
    supported: dict[str, list[str]] = {
        **library.list_supported_countries(),
        **library.list_supported_financial(),
    }
    if country in supported:
        regions = ", ".join(supported[country]) or "none"
        return (
            f"The holidays library has no subdivision {subdivision!r} of {country}. It has: {regions}. Leave "
            "subdivision= out for what the whole country has."
        )
    near = difflib.get_close_matches(country, sorted(supported), n=8, cutoff=0.4)
    nearby = ", ".join(near) or ", ".join(code for code in sorted(supported) if code[0] == country[0])
    return (
        f"The holidays library has no calendar {country!r}. Near it are: {nearby or 'none'}. Write an ISO "
        "3166-1 code such as 'DE' or a market such as 'ECB', or give the rule a calendar= of your own."
    )


# -- Rules about business days: those that need a calendar. ``date_rules`` says what they start from ---------

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
