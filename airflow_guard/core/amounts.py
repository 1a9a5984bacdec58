"""Amounts: exact decimals from whatever a driver hands over, and the control totals of one group on one side."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Clamped, Context, Decimal, DivisionByZero, Inexact, InvalidOperation, Overflow
from typing import TYPE_CHECKING

from airflow_guard.core.errors import AmountError

if TYPE_CHECKING:
    from collections.abc import Iterable


# -- Amounts: exact decimals, from whatever a driver hands over ----------------------------------------------

EXACT = Context(prec=500, traps=[Inexact, InvalidOperation, DivisionByZero, Overflow, Clamped])
"""Arithmetic that raises rather than rounds."""
_PLAIN = re.compile(r"[ \t\r\n]*[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)[ \t\r\n]*\Z")


def amount_of(value: object, column: str, *, inexact: bool = False) -> Decimal:
    """Return an amount as an exact decimal; minus zero is zero.

    :param value: ``Decimal``, ``int``, ``bool`` (some drivers give it for 0 and 1), or text with a plain decimal
        number: digits and a point, no thousands separator, no exponent.
    :param column: for the message.
    :param inexact: whether floats are taken, as the shortest decimal that reads back as the same float.
    :raises AmountError: anything else.
    """
    if isinstance(value, (int, Decimal)):
        number = Decimal(value)
    elif isinstance(value, str) and _PLAIN.match(value):
        number = Decimal(value.strip())
    elif isinstance(value, float):
        if not inexact:
            raise AmountError(
                f"Column {column!r} holds a float ({value!r}), which is not an exact amount. Store it as a decimal, as "
                "an integer of minor units, or (SQLite) as text; or set absolute_tolerance above zero."
            )
        number = Decimal(repr(value))
    else:
        raise AmountError(f"Column {column!r} holds {value!r}, which is not an amount.")
    if not number.is_finite():
        raise AmountError(f"Column {column!r} holds {value}, which is not an amount.")
    return EXACT.add(number, Decimal(0))


def total(amounts: Iterable[Decimal | None]) -> Decimal | None:
    """Return the exact sum, ``None`` if there is no amount at all (which is not zero)."""
    result: Decimal | None = None
    for amount in amounts:
        if amount is not None:
            result = amount if result is None else EXACT.add(result, amount)
    return result


def variance(source: Decimal | None, target: Decimal | None) -> Decimal | None:
    """Return target minus source; what one side does not have counts as zero, ``None`` if neither has any."""
    if source is None and target is None:
        return None
    return EXACT.subtract(target or Decimal(0), source or Decimal(0))


def shown(amount: Decimal | None) -> str:
    """Return an amount for people, in full precision and without exponent."""
    return "none" if amount is None else f"{amount:f}"


# -- Control totals of one group on one side -----------------------------------------------------------------

Group = tuple[str | None, ...]
"""The values of ``group_by`` as text; ``None`` is NULL, and a group of its own."""


@dataclass(frozen=True, slots=True)
class ControlTotals:
    """What one side says about one group. A group that a side does not have has no control totals at all.

    :param records: number of rows, also of those without amount or key.
    :param amounts: the total of each amount column, exact; ``None`` if no row has an amount, which is not zero.
    :param amounts_missing: rows whose amount is NULL, for each amount column.
    :param hash_total: sum of the checksums of all rows with a key (over key, amounts and compared columns);
        ``None`` without keys or with float amounts. Comparable within one comparison only.
    """

    records: int
    amounts: tuple[Decimal | None, ...]
    amounts_missing: tuple[int, ...]
    hash_total: int | None = None
