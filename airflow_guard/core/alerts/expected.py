"""Which business dates an operation must have completed by now."""

from __future__ import annotations

from calendar import monthrange
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from airflow_guard.core.calendar_rules import BusinessCalendar, HolidayCalendar
from airflow_guard.core.errors import ConfigurationError
from airflow_guard.core.parameters import length_of
from airflow_guard.core.run_facts import parse_business_date

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, kw_only=True)
class ExpectedOperation:
    """An operation that has to complete for each of its business dates, whether or not Airflow ever ran it.

    >>> from datetime import UTC
    >>> daily = ExpectedOperation(key_namespace="statements", operation="post", since="2026-01-28", due="36h")
    >>> [day.isoformat() for day in daily.dates_due(datetime(2026, 1, 30, 13, tzinfo=UTC), days=14)]
    ['2026-01-28', '2026-01-29']

    :param key_namespace: as the keys have it: by default the id of the DAG.
    :param operation: as the keys have it: by default the id of the task.
    :param since: the first business date, a date or ISO text.
    :param calendar: a country or market (``"DE"``, ``"ECB"``), or a calendar: only its business days are expected.
        Default: every day.
    :param month_end: only the last days of months are expected.
    :param due: how long after the beginning of a business date it must be done: a ``timedelta``, or hours as
        ``"36h"``. Default 36 hours: by noon of the next day.
    :param timezone: whose days they are. Default UTC.
    :param least: so many documents have to be done for a date. Default 1: a night that listed nothing is not done. 0: a
        listing may bring nothing.
    :raises ConfigurationError: a value that cannot work.
    :raises BusinessDateError: ``since`` is no date.
    """

    key_namespace: str
    operation: str
    since: date | str
    calendar: str | BusinessCalendar | None = None
    month_end: bool = False
    due: timedelta | float | str = timedelta(hours=36)
    timezone: str = "UTC"
    least: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "since", parse_business_date(self.since, source="since= of ExpectedOperation")
        )
        object.__setattr__(self, "due", _duration(self.due))
        if isinstance(self.calendar, str):
            object.__setattr__(self, "calendar", HolidayCalendar(self.calendar))
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise ConfigurationError(
                f"timezone={self.timezone!r} of ExpectedOperation is unknown."
            ) from error
        if isinstance(self.least, bool) or self.least < 0:
            raise ConfigurationError(
                f"least={self.least!r} of ExpectedOperation: a whole number, at least 0."
            )
        if not self.key_namespace or not self.operation:
            raise ConfigurationError("ExpectedOperation needs the key_namespace and operation of its keys.")

    def dates_due(self, now: datetime, *, days: int) -> Iterator[date]:
        """Yield the business dates that must be done at an instant, oldest first.

        :param now: aware.
        :param days: how far back to look.
        :raises CalendarError: the calendar does not know a year. A retry does not help.
        """
        zone = ZoneInfo(self.timezone)
        today = now.astimezone(zone).date()
        for back in range(days, -1, -1):
            day = today - timedelta(days=back)
            if day >= self.since and self._is_expected(day) and self._is_due(day, now, zone):  # type: ignore[operator]
                yield day

    def _is_due(self, day: date, now: datetime, zone: ZoneInfo) -> bool:
        begins = datetime.combine(day, time(), zone)
        return begins + self.due <= now  # type: ignore[operator]

    def _is_expected(self, day: date) -> bool:
        if self.month_end and day.day != monthrange(day.year, day.month)[1]:
            return False
        return not isinstance(self.calendar, BusinessCalendar) or self.calendar.is_business_day(day)


def _duration(value: timedelta | float | str) -> timedelta:
    if isinstance(value, str) and value.endswith("h") and value[:-1].isdigit():
        value = timedelta(hours=int(value[:-1]))
    length = length_of(value)
    if length is None or length <= timedelta(0):
        raise ConfigurationError(
            f'due={value!r} of ExpectedOperation is no timedelta above zero. Write timedelta(hours=36), or "36h".'
        )
    return length
