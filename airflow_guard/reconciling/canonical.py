"""Values of a row in one form and their checksum, whatever the database; what Python does where SQL does not (SQLite).

A row's checksum is ``multiplier(key) * mixed_value(value)``, one for each amount and one for the compared columns, and a
bucket's is the sum of its rows' (a sum, not XOR, which would lose rows that occur twice). The multiplier depends on
the key in a way that is not linear: then errors that cancel each other out in the amounts do not cancel out here.
For an integer key it is the exclusive or of two linear forms modulo two primes, for other keys bits of MD5. A product of
two forms is cheaper in one database, but a square: errors in the pattern 1, -3, 3, -1 over neighbours escape it.

Every intermediate result fits a signed 64-bit integer, because PostgreSQL, MySQL and SQLite raise or round beyond it.
Division truncates and the remainder has the sign of the dividend, as in SQL and unlike in Python.

They are exact where SQLite's own ``sum`` goes through floats or overflows. An error inside a function reaches the
caller of the statement only as "user-defined function raised exception"; :class:`Raised` keeps the error itself.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from airflow_guard.core.amounts import EXACT, amount_of
from airflow_guard.core.errors import ReconciliationError, SideInvalid
from airflow_guard.reconciling.columns import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# -- The portable checksum: the same integers from PostgreSQL, MySQL, MariaDB and Python ---------------------

P1 = 2**31 - 1
P2 = 2**31 - 19
"""Primes; a 62-bit key is known by its two remainders."""
A1, C1, A2, C2 = 1_103_515_245, 715_827_883, 1_220_703_125, 430_970_861
"""Any numbers below 2^31 that have nothing to do with each other."""
OFFSET = 1_618_033_989
"""Added to a value, so that a row counts whose amount is zero."""
NULL_VALUE = -614_891_469_123_651_720
"""Stands for NULL. If an amount happens to be this, its bucket still differs in the number of amounts."""

BLOCK = 512
"""Integer keys fall into buckets by blocks of neighbours, so that a bucket can be read through an index."""
BUCKETS = 16_381
"""A prime, so that keys with a step (a sequence in the low bits) spread over all of them."""
NULL_BUCKET = 20_000
"""The bucket of rows whose key is NULL or partly NULL."""
HEX_DIGITS = 15
"""Hexadecimal digits of MD5 that are used: 60 bits."""


def quotient(number: int, divisor: int) -> int:
    """Return the quotient, truncated as in SQL."""
    return number // divisor if number >= 0 else -(-number // divisor)


def remainder(number: int, divisor: int) -> int:
    """Return the remainder with the sign of the dividend, as in SQL."""
    return number % divisor if number >= 0 else -(-number % divisor)


def slice_of(text: str) -> int:
    """Return 60 bits of the MD5 of a text."""
    return int(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:HEX_DIGITS], 16)


def joined(texts: tuple[str | None, ...]) -> str:
    """Return several texts as one from which they can be told apart; NULL is not the empty text."""
    return "".join("-" if text is None else f"{len(text)}:{text}" for text in texts)


def multiplier(key: int, *, mixed: bool) -> int:
    """Return the multiplier of a key.

    :param mixed: whether the key is random bits already (MD5).
    """
    if mixed:
        return remainder(key, P1)
    one = remainder(A1 * remainder(key, P1) + C1, P1)
    other = remainder(A2 * remainder(key, P2) + C2, P2)
    return one ^ other


def mixed_value(value: int | None) -> int:
    """Return a value for multiplication, below 2^32."""
    return remainder(NULL_VALUE if value is None else value, P2) + OFFSET


def bucket(key: int, *, mixed: bool) -> int:
    """Return the bucket of a key, between -BUCKETS and BUCKETS."""
    return remainder(key if mixed else quotient(key, BLOCK), BUCKETS)


def keys_of(bucket: int, low: int, high: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of integer keys between two keys that fall into a bucket."""
    first, last = quotient(low, BLOCK), quotient(high, BLOCK)
    # Division truncates: the blocks of negative buckets are negative, and block 0 lies around zero.
    for block in range(first + (bucket - first) % BUCKETS, last + 1, BUCKETS):
        if remainder(block, BUCKETS) == bucket:
            start, end = block * BLOCK, block * BLOCK
            yield (start if block > 0 else start - BLOCK + 1), (end if block < 0 else end + BLOCK - 1)


# -- Values of a row in one form, whatever the database: what Python does where SQL does not (SQLite) --------

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


# -- Functions that SQLite gets for a reconciliation: decimals, canonical texts, MD5 -------------------------

_INT64 = 2**63


class Raised:
    """Keeps the first error that a function raised on a connection."""

    def __init__(self) -> None:
        self.error: ReconciliationError | None = None

    def keeping(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, with its errors kept."""

        def kept(*arguments: Any) -> Any:
            try:
                return function(*arguments)
            except ReconciliationError as error:
                self.error = self.error or error
                raise

        return kept


def install(driver_connection: Any) -> Raised:
    """Add the functions to a connection of the driver ``sqlite3``."""
    raised = Raised()
    functions: dict[str, tuple[int, Callable[..., Any]]] = {
        "airflow_guard_text": (3, lambda kind, column, value: as_text(Kind[kind], value, column)),
        "airflow_guard_integer": (2, lambda column, value: as_integer(value, column)),
        "airflow_guard_amount": (3, _amount),
        "airflow_guard_scaled": (2, _scaled),
        "airflow_guard_xor": (2, lambda one, other: None if one is None or other is None else one ^ other),
        "airflow_guard_slice": (1, lambda text: None if text is None else slice_of(text)),
    }
    for name, (arguments, function) in functions.items():
        driver_connection.create_function(name, arguments, raised.keeping(function), deterministic=True)
    driver_connection.create_aggregate("airflow_guard_total", 1, _Total)
    return raised


def _amount(inexact: int, column: str, value: object) -> str | None:
    return None if value is None else plain_decimal(amount_of(value, column, inexact=bool(inexact)))


def _scaled(amount: str | None, scale: int) -> int | None:
    if amount is None:
        return None
    scaled = EXACT.multiply(Decimal(amount), Decimal(10**scale))
    if scaled == scaled.to_integral_value() and -_INT64 <= scaled < _INT64:
        return int(scaled)
    return slice_of(amount)  # the other side has no such amount, so any other number will do


class _Total:
    """Sum of integers or of decimals as text; NULL if there is none."""

    def __init__(self) -> None:
        self.whole = 0
        self.decimal: Decimal | None = None
        self.any = False

    def step(self, value: int | str | None) -> None:
        if value is None:
            return
        self.any = True
        if isinstance(value, int):
            self.whole += value
        else:
            self.decimal = EXACT.add(self.decimal or Decimal(0), Decimal(value))

    def finalize(self) -> str | None:
        if not self.any:
            return None
        return (
            str(self.whole) if self.decimal is None else f"{EXACT.add(self.decimal, Decimal(self.whole)):f}"
        )
