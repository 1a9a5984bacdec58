"""Calendars: on which days business is done.

A calendar answers one question, so that a test or a firm with a calendar of its own can stand in for the
library. ``HolidayCalendar`` asks the ``holidays`` library (extra ``calendars``), which is imported only when
a date is first asked for: parsing a DAG file costs nothing.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from airflow_guard.core.errors import CalendarError

if TYPE_CHECKING:
    from datetime import date
    from types import ModuleType

    from holidays import HolidayBase

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
