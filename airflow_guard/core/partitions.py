"""What a run's partition key says: the date that it names, and what tells it from the other partitions.

Airflow's mappers spell a day ``2026-01-30``, an hour ``2026-01-30T05``, a week ``2026-01-26 (W05)``, a month
``2026-01``, a quarter ``2026-Q1``, a year ``2026``; a product of several is joined by a delimiter:
``DE|2026-01-30``. The date of a period is its first day, as in Airflow's own partition date.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from datetime import date, datetime
from typing import TYPE_CHECKING

from airflow_guard.core.errors import BusinessDateError, ConfigurationError
from airflow_guard.core.keys import MAX_CYCLE_LENGTH

if TYPE_CHECKING:
    from datetime import tzinfo

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
