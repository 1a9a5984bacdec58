"""Values of a row in one form, whatever the database: what Python does where SQL does not (SQLite)."""

from __future__ import annotations

import re
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from airflow_guard.core.errors import SideInvalid
from airflow_guard.core.reconciliation.amounts import EXACT, amount_of
from airflow_guard.store.reconciliation.columns import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

_INTEGER = re.compile(r"-?[0-9]+\Z")


def plain_decimal(number: Decimal) -> str:
    """Return a decimal without exponent and without zeros at the end: 10.50 and 10.5 are one text."""
    return f"{EXACT.normalize(number) if number else Decimal(0):f}"


def as_integer(value: object, column: str) -> int | None:
    """Return a value as the integer that it is.

    :raises SideInvalid: it is none.
    """
    if value is None:
        return None
    if isinstance(value, int) or (isinstance(value, str) and _INTEGER.match(value)):
        return int(value)
    raise _not(value, column, "an integer")


def as_text(kind: Kind, value: object, column: str) -> str | None:
    """Return the text in which values of a kind are compared.

    :raises SideInvalid: the value is not of that kind.
    """
    if value is None:
        return None
    if isinstance(value, float):
        raise _not(value, column, "exact: a float cannot be compared; cast it in sql=")
    try:
        return _FORMS.get(kind, _text)(value, column)
    except ValueError:
        raise _not(value, column, f"a {kind.name.lower()}") from None


def _text(value: object, column: str) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _integer(value: object, column: str) -> str:
    return str(as_integer(value, column))


def _decimal(value: object, column: str) -> str:
    return plain_decimal(amount_of(value, column))


def _uuid(value: object, column: str) -> str:
    return uuid.UUID(bytes=value).hex if isinstance(value, bytes) else str(value).lower().replace("-", "")


def _date(value: object, column: str) -> str:
    return date.fromisoformat(str(value)).isoformat()


def _datetime(value: object, column: str) -> str:
    moment = datetime.fromisoformat(str(value))
    if moment.tzinfo is not None:
        raise _not(value, column, "without a time zone")
    return moment.isoformat(" ", "microseconds")


def _instant(value: object, column: str) -> str:
    moment = datetime.fromisoformat(str(value))
    if moment.tzinfo is None:
        raise _not(value, column, "a moment: it has no time zone")
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


_FORMS: dict[Kind, Callable[[object, str], str]] = {
    Kind.INTEGER: _integer,
    Kind.DECIMAL: _decimal,
    Kind.UUID: _uuid,
    Kind.DATE: _date,
    Kind.DATETIME: _datetime,
    Kind.INSTANT: _instant,
}


def _not(value: object, column: str, what: str) -> SideInvalid:
    return SideInvalid(f"Column {column!r} holds {value!r}, which is not {what}.")
