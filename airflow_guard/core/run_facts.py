"""What a run says about its own date, its partition key included, and the values that a business date passes through.

Airflow's mappers spell a day ``2026-01-30``, an hour ``2026-01-30T05``, a week ``2026-01-26 (W05)``, a month
``2026-01``, a quarter ``2026-Q1``, a year ``2026``; a product of several is joined by a delimiter:
``DE|2026-01-30``. The date of a period is its first day, as in Airflow's own partition date.

Nothing here reads a clock or the time zone of the process: instants come in aware and are turned into dates
in the DAG's zone only.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from dataclasses import dataclass, field, fields, replace
from datetime import date, datetime, timedelta, tzinfo
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from airflow_guard.core.errors import BusinessDateError, ConfigurationError
from airflow_guard.core.keys import MAX_CYCLE_LENGTH

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


# -- What a run's partition key says: the date that it names, and what tells it from the other partitions ----

_DAY = re.compile(r"(?<!\d)(\d{4}-\d{2}-\d{2})(?!\d)")
_INSTANT = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}(?::?\d{2}){0,2}(?:\.\d+)?(?:Z|[+-]\d{2}:?\d{2})(?![\d:])")
_MONTH = re.compile(r"(?<!\d)(?<!\d-)(\d{4})-(0[1-9]|1[0-2])(?![\d-])")
_QUARTER = re.compile(r"(?<!\d)(?<!\d-)(\d{4})-Q([1-4])(?!\w)")
_YEAR = re.compile(r"(?:19|20|21)\d{2}")
_WORD = re.compile(r"\w+")
_MONTHS_IN_A_QUARTER = 3


def date_in_key(key: str, zone: tzinfo) -> date | None:
    """Return the date that a partition key names, ``None`` if it names none.

    >>> from datetime import UTC
    >>> date_in_key("DE|2026-01-30", UTC), date_in_key("2026-Q2", UTC), date_in_key("DE", UTC)
    (datetime.date(2026, 1, 30), datetime.date(2026, 4, 1), None)

    :param key: the partition key.
    :param zone: the DAG's, in which an instant with an offset becomes a date.
    :raises BusinessDateError: it names several dates, or one that does not exist. A retry does not help.
    """
    found, impossible = set(), None
    for text in _DAY.findall(key):
        try:
            found.add(date.fromisoformat(text))
        except ValueError as error:
            impossible = f"{text}, a date that does not exist ({error})"
    if not found and impossible is None:
        found = _periods(key)
    found |= _instants(key, zone)
    if len(found) > 1:
        dates = ", ".join(str(day) for day in sorted(found))
        raise BusinessDateError(f"The partition key {key!r} names several dates: {dates}. {HOW_TO_DATE}")
    if not found and impossible is not None:
        raise BusinessDateError(f"The partition key {key!r} names {impossible}.")
    return next(iter(found), None)


HOW_TO_DATE = (
    'Say with business_date= on the operator which date it is: a template such as business_date="{{ partition_key[-10:] '
    '}}", or a callable, business_date=lambda facts: facts.partition_key[-10:]. A run by hand can be given conf '
    '{"business_date": "YYYY-MM-DD"}.'
)


def cycle_of_run(partition_key: str | None, business_date: date, cycle: str) -> str:
    """Return the cycle of a run's keys: no two partitions may have one key.

    The partition is the cycle, unless it says no more than the business date, or the task has a cycle of its own
    that names the partition.

    >>> cycle_of_run("DE|2026-01-30", date(2026, 1, 30), "")
    'DE|2026-01-30'
    >>> cycle_of_run("2026-01-30", date(2026, 1, 30), "")
    ''

    :param partition_key: the run's, ``None`` or empty if it has none.
    :param cycle: what the task says, ``""`` for nothing.
    :raises ConfigurationError: the task's cycle leaves out what tells the partition from others.
    """
    if not partition_key or partition_key == business_date.isoformat():
        return cycle
    if not cycle:
        return _as_cycle(partition_key)
    beyond_date = set(_WORD.findall(partition_key.replace(business_date.isoformat(), " ", 1)))
    if {word.lstrip("T") for word in beyond_date} <= {word.lstrip("T") for word in _WORD.findall(cycle)}:
        return cycle
    raise ConfigurationError(
        f"cycle={cycle!r} does not tell the partition {partition_key!r} from others of {business_date}: two partitions "
        'would have one key. Leave cycle out, then the partition is the cycle; or name it, cycle="{{ partition_key }}".'
    )


def _periods(key: str) -> set[date]:
    months = {date(int(year), int(month), 1) for year, month in _MONTH.findall(key) if int(year)}
    quarters = {
        date(int(year), _MONTHS_IN_A_QUARTER * int(quarter) - 2, 1)
        for year, quarter in _QUARTER.findall(key)
        if int(year)
    }
    years = {date(int(key), 1, 1)} if _YEAR.fullmatch(key) else set()
    return months | quarters | years


def _instants(key: str, zone: tzinfo) -> set[date]:
    """Return the dates of instants with an offset in the DAG's zone, which need not be the ones that are written."""
    dates = set()
    for text in _INSTANT.findall(key):
        try:
            dates.add(datetime.fromisoformat(text).astimezone(zone).date())
        except (ValueError, OverflowError):
            continue
    return dates


def _as_cycle(partition_key: str) -> str:
    fits = len(partition_key) <= MAX_CYCLE_LENGTH and partition_key == partition_key.strip()
    if fits and partition_key.isprintable() and unicodedata.is_normalized("NFC", partition_key):
        return partition_key
    return f"partition {hashlib.sha256(partition_key.encode()).hexdigest()[:32]}"


# -- What a run says about its own date, and the values that a business date passes through ------------------

_ISO = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")

RUN_TYPES_WITHOUT_CONF = frozenset({"scheduled", "backfill"})
"""Run types whose ``conf`` dates nothing: one ``conf`` would date every run of a backfill alike. Every other
type is asked for one by one (manual, asset-triggered, triggered by an operator), so its ``conf`` is about
that run."""


class DateSource(StrEnum):
    """Where a business date came from; stored beside it, for people."""

    CONF = "conf"
    EXPLICIT = "explicit"
    RULE = "rule"
    ASSET = "asset"
    PARTITION = "partition"
    INTERVAL = "interval"
    LOGICAL = "logical"
    STORED = "stored"


@dataclass(frozen=True)
class ResolvedDate:
    """A business date and how it was found.

    :param date: the business date.
    :param source: where it came from.
    :param detail: the same in words, for log lines and errors: "start of the data interval …".
    :param own_at: the start of the data interval, or the logical date, if the date was made from it by a rule of dates.
    """

    date: date
    source: DateSource
    detail: str
    own_at: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True)
class NoBusinessDate:
    """A rule's answer that this run has nothing to do; the task is skipped.

    :param reason: why, in words for the log: "2025-03-30 is not the last day of its month".
    """

    reason: str


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What a run offers for its business date. The adapter fills it from Airflow's context.

    :param dag_id: the DAG, for messages.
    :param run_id: the run, for messages; never read for its content.
    :param run_type: ``"scheduled"``, ``"backfill"``, ``"manual"``, ``"asset_triggered"`` or what newer
        versions of Airflow add.
    :param timezone: the DAG's zone, in which every instant becomes a date.
    :param conf: the run's ``conf``.
    :param logical_at: the logical date, absent in asset-triggered and some API runs.
    :param interval_start_at: start of the data interval.
    :param interval_end_at: its end, excluded; equal to the start for cron strings: then it is empty.
    :param run_after_at: when the run was due. Never a business date.
    :param partition_date: the run's partition as a date, an instant or ISO text.
    :param partition_key: the run's partition key; a run that has one is never dated by its logical date.
    :param asset_extras: the ``extra`` of each asset event that triggered the run.
    :raises BusinessDateError: an instant or the zone is not what it must be. A retry does not help.
    """

    dag_id: str
    run_id: str
    run_type: str
    timezone: tzinfo
    conf: Mapping[str, Any] = field(default_factory=dict)
    logical_at: datetime | None = None
    interval_start_at: datetime | None = None
    interval_end_at: datetime | None = None
    run_after_at: datetime | None = None
    partition_date: date | datetime | str | None = None
    partition_key: str | None = None
    asset_extras: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.timezone, tzinfo):
            raise BusinessDateError(
                f"The time zone of {self} is {self.timezone!r}, not a tzinfo: no instant can become a date."
            )
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, datetime) and value.utcoffset() is None:
                raise BusinessDateError(
                    f"{each.name} of {self} is {value.isoformat()}, without a time zone: it could be either "
                    "of two dates. Give an aware instant."
                )

    def __str__(self) -> str:
        return f"run {self.run_id!r} ({self.run_type}) of DAG {self.dag_id!r}"

    def local_date(self, at: datetime) -> date:
        """Return the date of an aware instant in the DAG's zone."""
        return plain_date(at.astimezone(self.timezone))

    @property
    def has_interval(self) -> bool:
        """Whether the data interval spans any time; a cron string gives one that starts where it ends."""
        start, end = self.interval_start_at, self.interval_end_at
        return start is not None and end is not None and start < end


def plain_date(value: date) -> date:
    """Return a ``datetime.date`` for it and for its subclasses (``datetime``, pendulum's ``Date``), so that
    equal dates are equal, hash alike and print alike."""
    return date(value.year, value.month, value.day)


def days_from(day: date, days: int) -> date:
    """Return the date that many days later, earlier if negative.

    :raises BusinessDateError: there is no such date. A retry does not help.
    """
    try:
        return day + timedelta(days=days)
    except OverflowError:
        raise BusinessDateError(f"There is no date {days:+d} days from {day}.") from None


def parse_business_date(value: object, *, source: str) -> date:
    """Read a business date strictly.

    >>> parse_business_date("2025-03-31", source="conf")
    datetime.date(2025, 3, 31)

    :param value: a ``date``, or text of exactly the form ``YYYY-MM-DD``. A ``datetime`` is refused, because
        its date depends on a time zone.
    :param source: where the value came from, for the message.
    :raises BusinessDateError: anything else. A retry does not help.
    """
    if isinstance(value, datetime):
        raise BusinessDateError(
            f"{source} is the instant {value.isoformat()}: which date that is depends on the time zone. Give "
            "a date, as YYYY-MM-DD text or datetime.date."
        )
    if isinstance(value, date):
        return plain_date(value)
    if not isinstance(value, str):
        raise BusinessDateError(
            f"{source} is {value!r:.80}, of type {type(value).__name__}. Give a date as YYYY-MM-DD text or "
            "datetime.date."
        )
    if value.strip() in ("", "None"):
        raise BusinessDateError(
            f"{source} is {value!r}: whatever should have filled it had no value. Asset-triggered and some "
            "other runs have no ds and no logical date. Give a date as YYYY-MM-DD, or a rule that needs "
            "neither."
        )
    if not _ISO.fullmatch(value):
        unrendered = " The template was not rendered." if "{{" in value else ""
        raise BusinessDateError(
            f"{source} is {value!r:.80}, not a date of the form YYYY-MM-DD, such as 2025-03-31 (with leading "
            f"zeros, without time or white space).{unrendered}"
        )
    try:
        return date.fromisoformat(value)
    except ValueError as impossible:
        raise BusinessDateError(
            f"{source} is {value!r}, a date that does not exist ({impossible})."
        ) from None


def own_date(facts: RunFacts) -> ResolvedDate | None:
    """Return the run's own date in the DAG's zone: its partition, else the start of its data interval unless
    that is empty, else its logical date. ``None`` if it has none of them.

    :param facts: what the run offers.
    :raises BusinessDateError: the partition cannot be read, names no date, or its key and its date name different
        days. A retry does not help.
    """
    partition = _partition(facts)
    if partition is not None:
        return partition
    if facts.has_interval and facts.interval_start_at is not None:
        at = facts.interval_start_at
        return replace(_local(facts, at, DateSource.INTERVAL, "start of the data interval"), own_at=at)
    if facts.logical_at is not None:
        at = facts.logical_at
        return replace(_local(facts, at, DateSource.LOGICAL, "logical date"), own_at=at)
    return None


def _local(facts: RunFacts, at: datetime, source: DateSource, name: str) -> ResolvedDate:
    try:
        day = facts.local_date(at)
    except OverflowError:
        raise BusinessDateError(
            f"The {name} of {facts}, {at.isoformat()}, has no date in its zone."
        ) from None
    return ResolvedDate(day, source, f"{name} {at.isoformat()} in {zone_name(facts.timezone)}")


def _partition(facts: RunFacts) -> ResolvedDate | None:
    """Return the partition's date.

    A key such as ``2025-03-31`` or ``2025-03-31T00:00:00`` is a label in the zone of the timetable or mapper. Where
    that is not the DAG's zone, the date that comes with it can fall on the day before: then neither is trusted.
    """
    key, value = facts.partition_key, facts.partition_date
    named = date_in_key(key, facts.timezone) if key else None
    if value is None:
        if not key:
            return None
        if named is None:
            raise BusinessDateError(
                f"The partition key {key!r} of {facts} names no date, and a run of a partition is never dated by its "
                f"logical date. {HOW_TO_DATE}"
            )
        return ResolvedDate(named, DateSource.PARTITION, f"partition key {key}")
    if isinstance(value, datetime):
        dated = _local(facts, value, DateSource.PARTITION, "partition date")
    else:
        day = parse_business_date(value, source=f"The partition date of {facts}")
        dated = ResolvedDate(day, DateSource.PARTITION, f"partition date {day}")
    if named is not None and named != dated.date:
        at = (key or "").find(named.isoformat())
        template = (
            f"{{{{ partition_key[{at}:{at + len(named.isoformat())}] }}}}"
            if at >= 0
            else "{{ partition_key … }}"
        )
        raise BusinessDateError(
            f"The partition key {key!r} of {facts} names {named}, but its {dated.detail} is {dated.date}. Give the DAG "
            "(by its start_date) the time zone of its timetable or partition mapper, or set "
            f'business_date="{template}" on the operator.'
        )
    return dated


def zone_name(zone: tzinfo) -> str:
    """Name a zone as people write it."""
    return str(getattr(zone, "key", None) or getattr(zone, "name", None) or zone)
