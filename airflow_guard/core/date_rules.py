"""Rules: how a business date follows from a run.

Every rule except ``from_asset_extra`` is applied to the run's *own date*, which is, in the DAG's time zone,
its partition, else the start of its data interval unless that is empty, else its logical date. So it depends
on the timetable what the run of a morning starts from:

=================================================  ====================  ===========================
schedule, run due on Tuesday 02:00                  own date              ``previous_day()`` gives
=================================================  ====================  ===========================
``"0 2 * * *"`` (cron string: no data interval)     Tuesday               Monday
``CronDataIntervalTimetable("0 2 * * *", …)``       Monday                Sunday: leave the rule out
=================================================  ====================  ===========================

A rule is a value: immutable, comparable, picklable, and both its ``repr`` and its ``str`` can be pasted into
a DAG file. The text is the same in every process, so that the serialised DAG does not change by itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from calendar import monthrange
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from airflow_guard.core.errors import BusinessDateError, ConfigurationError
from airflow_guard.core.run_facts import (
    DateSource,
    NoBusinessDate,
    ResolvedDate,
    RunFacts,
    days_from,
    own_date,
    parse_business_date,
)

if TYPE_CHECKING:
    from datetime import date

OffDay = Literal["error", "skip", "previous", "next"]


class BusinessDateRule(ABC):
    """How a business date follows from a run. Subclass ``OwnDateRule`` for a rule of your own.

    No rule may have a method ``resolve`` or be callable: Airflow calls both on what stands in a templated
    field, with its context.
    """

    _constructor: ClassVar[str] = ""

    @abstractmethod
    def date_of_run(self, facts: RunFacts) -> ResolvedDate | NoBusinessDate:
        """Return the business date of a run, or that it has none and is to be skipped.

        :param facts: what the run offers.
        :raises BusinessDateError: the run does not offer what the rule needs, or the rule refuses its date. A
            retry does not help.
        """

    def refusal(self, given: date) -> str | None:
        """Say why a date that a person supplied in ``conf`` cannot be right under this rule, or ``None``.

        :param given: the date supplied.
        """
        del given
        return None

    def __repr__(self) -> str:
        return f"{self._constructor or type(self).__name__}({', '.join(self._arguments())})"

    def __str__(self) -> str:
        return repr(self)

    def _arguments(self) -> list[str]:
        """Return what ``repr`` writes between the brackets."""
        return []

    def _changed(self, *names: str) -> list[str]:
        """Return ``name=value`` for the fields of a dataclass that differ from their defaults."""
        given = [(name, getattr(self, name), getattr(type(self), name, None)) for name in names]
        return [f"{name}={value!r}" for name, value, default in given if value != default]

    def _check_word(self, parameter: str, words: Any) -> None:
        """Refuse a word that is none of a ``Literal``'s."""
        value, allowed = getattr(self, parameter), get_args(words)
        if value not in allowed:
            raise ConfigurationError(
                f"{parameter}={value!r} of {self._constructor}() is none of {', '.join(map(repr, allowed))}."
            )


class OwnDateRule(BusinessDateRule):
    """A rule that starts from the run's own date."""

    @abstractmethod
    def date_for(self, own: date) -> date | NoBusinessDate:
        """Return the business date that belongs to an own date, or that there is none.

        :param own: the run's own date in the DAG's zone.
        :raises BusinessDateError: the rule refuses this date. A retry does not help.
        """

    def date_of_run(self, facts: RunFacts) -> ResolvedDate | NoBusinessDate:
        """Apply the rule to the run's own date."""
        own = own_date(facts)
        if own is None:
            raise BusinessDateError(
                f"business_date={self} starts from the run's own date, but {facts} has no partition date, no "
                'data interval and no logical date. Trigger it with conf {"business_date": "YYYY-MM-DD"}, or '
                "use a rule that needs no own date, such as from_asset_extra()."
            )
        day = self.date_for(own.date)
        if isinstance(day, NoBusinessDate):
            return day
        detail = f"{self}{self._edition()} of {own.date}, the {own.detail}"
        day = parse_business_date(day, source=f"What {self} gives")
        return ResolvedDate(day, DateSource.RULE, detail, own.own_at)

    def _edition(self) -> str:
        """Name the release of what the rule asks, for the note that is stored beside the date."""
        return ""

    def _off_day(self, reason: str, *, skip: bool) -> NoBusinessDate:
        """Skip, or fail, on a day that the rule does not work on."""
        if skip:
            return NoBusinessDate(f"{reason}, and business_date={self} skips such days.")
        raise BusinessDateError(
            f"{reason}, and business_date={self} refuses such days. Correct the schedule, or say with "
            "otherwise= what such a day is to mean."
        )


@dataclass(frozen=True, repr=False)
class SameDay(OwnDateRule):
    """See ``same_day``."""

    _constructor: ClassVar[str] = "same_day"

    def date_for(self, own: date) -> date:
        """Return the own date itself."""
        return own


@dataclass(frozen=True, repr=False)
class PreviousDay(OwnDateRule):
    """See ``previous_day``."""

    _constructor: ClassVar[str] = "previous_day"

    def date_for(self, own: date) -> date:
        """Return the calendar day before."""
        return days_from(own, -1)


@dataclass(frozen=True, repr=False)
class MonthEnd(OwnDateRule):
    """See ``month_end``."""

    otherwise: OffDay = "skip"
    _constructor: ClassVar[str] = "month_end"

    def __post_init__(self) -> None:
        self._check_word("otherwise", OffDay)

    def date_for(self, own: date) -> date | NoBusinessDate:
        """Return the own date if its month ends on it, else what ``otherwise`` says."""
        if _is_month_end(own):
            return own
        if self.otherwise == "previous":
            return days_from(own.replace(day=1), -1)
        if self.otherwise == "next":
            return own.replace(day=monthrange(own.year, own.month)[1])
        return self._off_day(f"{own} is not the last day of its month", skip=self.otherwise == "skip")

    def refusal(self, given: date) -> str | None:
        """Refuse other days: the rule never gives them, so their keys would meet those of no other run."""
        return None if _is_month_end(given) else f"{given} is not the last day of its month"

    def _arguments(self) -> list[str]:
        return self._changed("otherwise")


@dataclass(frozen=True, repr=False)
class FromAssetExtra(BusinessDateRule):
    """See ``from_asset_extra``."""

    key: str = "business_date"
    _constructor: ClassVar[str] = "from_asset_extra"

    def date_of_run(self, facts: RunFacts) -> ResolvedDate:
        """Return the one date that the triggering asset events carry."""
        found: dict[date, None] = {}
        for number, extra in enumerate(facts.asset_extras, start=1):
            value = (extra or {}).get(self.key)
            if value is not None:
                where = f"extra[{self.key!r}] of asset event {number} that triggered {facts}"
                found[parse_business_date(value, source=where)] = None
        if len(found) == 1:
            return ResolvedDate(
                next(iter(found)), DateSource.ASSET, f"{self} of {len(facts.asset_extras)} asset events"
            )
        if found:
            dates = ", ".join(sorted(map(str, found)))
            raise BusinessDateError(
                f"The asset events that triggered {facts} carry several business dates: {dates}. One run has "
                'one date: trigger the DAG once for each, with conf {"business_date": "YYYY-MM-DD"}.'
            )
        raise BusinessDateError(
            f"None of the {len(facts.asset_extras)} asset events that triggered {facts} has {self.key!r} in "
            f"its extra. Let the producing task yield Metadata(asset, {{{self.key!r}: ...}}) with a date "
            'YYYY-MM-DD, or trigger with conf {"business_date": "YYYY-MM-DD"}.'
        )

    def _arguments(self) -> list[str]:
        return [repr(self.key)] if self.key != "business_date" else []


def same_day() -> OwnDateRule:
    """Return the rule "the run's own date": what holds without any rule, said aloud.

    >>> same_day()
    same_day()
    """
    return SameDay()


def previous_day() -> OwnDateRule:
    """Return the rule "the calendar day before the run's own date".

    It is for cron strings (no data interval), where the run at 02:00 works on yesterday. With
    ``CronDataIntervalTimetable`` the own date is yesterday already.

    >>> previous_day()
    previous_day()
    """
    return PreviousDay()


def month_end(otherwise: OffDay = "skip") -> OwnDateRule:
    """Return the rule "the run's own date, if it is the last day of its month".

    With ``schedule="0 4 * * *"``, whose own date is the day on which the run is due, it works at 04:00 on 31
    January for 31 January, and skips the other runs. To work in the night after the month has ended, use
    ``CronDataIntervalTimetable("0 4 * * *", …)``: the run due on 1 February has the own date 31 January. Or
    run once a month, ``schedule="0 4 1 * *"`` with ``otherwise="previous"``. For the last *business* day see
    ``business_month_end``.

    A date that a person gives in ``conf`` must be a month end too.

    >>> month_end(otherwise="previous")
    month_end(otherwise='previous')

    :param otherwise: on every other day: ``"skip"`` skips the task (default), ``"error"`` fails it,
        ``"previous"`` gives the month end before, ``"next"`` the month end to come, which is the end of the own
        date's month.
    :raises ConfigurationError: another word.
    """
    return MonthEnd(otherwise)


def from_asset_extra(key: str = "business_date") -> BusinessDateRule:
    """Return the rule "the date that the triggering asset events carry in their ``extra``".

    All events that carry one must agree; events of assets that carry none are passed over. A manual run of
    the DAG has no events: its date comes from ``conf``.

    >>> from_asset_extra()
    from_asset_extra()

    :param key: the key in ``extra``.
    :raises ConfigurationError: the key is not text, or empty.
    """
    if not key:
        raise ConfigurationError(
            f"from_asset_extra() needs the name of a key in the event's extra, not {key!r}."
        )
    return FromAssetExtra(key)


def _is_month_end(day: date) -> bool:
    return day.day == monthrange(day.year, day.month)[1]
