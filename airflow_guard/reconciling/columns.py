"""Types of columns, as far as they matter for comparing, and what two of them have in common."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from airflow_guard.core.errors import ConfigurationError
from airflow_guard.store.dialects import MYSQL, POSTGRES


class Kind(Enum):
    """A family of types whose values compare without a loss."""

    INTEGER = auto()
    DECIMAL = auto()
    FLOAT = auto()
    TEXT = auto()
    UUID = auto()
    DATE = auto()
    DATETIME = auto()
    """A date and time without a time zone."""
    INSTANT = auto()
    """A moment: a date and time with a time zone."""
    BINARY = auto()
    DYNAMIC = auto()
    """SQLite: each value has its own type. The other side decides how they are read."""
    OTHER = auto()
    """Compared as the text that the database makes of it."""


@dataclass(frozen=True)
class ColumnType:
    """Type of a column.

    :param kind: its family.
    :param precision: decimal digits, ``None`` if they are not known or not limited.
    :param scale: digits after the point; ``None`` likewise.
    :param boolean: whether it is PostgreSQL's boolean, which is compared as 0 and 1.
    :param nullable: whether it may hold NULL. ``False`` only where the database is known to forbid it.
    """

    kind: Kind
    precision: int | None = None
    scale: int | None = None
    boolean: bool = False
    nullable: bool = True


DYNAMIC = ColumnType(Kind.DYNAMIC)
_INTEGERS = {21: 5, 23: 10, 20: 19, 26: 10}
_POSTGRES = {
    **{oid: ColumnType(Kind.INTEGER, digits, 0) for oid, digits in _INTEGERS.items()},
    16: ColumnType(Kind.INTEGER, 1, 0, boolean=True),
    **dict.fromkeys((700, 701), ColumnType(Kind.FLOAT)),
    **dict.fromkeys((25, 1043, 1042, 18, 19, 705), ColumnType(Kind.TEXT)),
    2950: ColumnType(Kind.UUID),
    1082: ColumnType(Kind.DATE),
    1114: ColumnType(Kind.DATETIME),
    1184: ColumnType(Kind.INSTANT),
    17: ColumnType(Kind.BINARY),
}
_POSTGRES_NUMERIC = 1700
_MYSQL = {
    **{
        code: ColumnType(Kind.INTEGER, digits, 0)
        for code, digits in {1: 3, 2: 5, 9: 8, 3: 10, 8: 19, 13: 4}.items()
    },
    **dict.fromkeys((4, 5), ColumnType(Kind.FLOAT)),
    **dict.fromkeys((15, 245, 247, 248, 249, 250, 251, 252, 253, 254), ColumnType(Kind.TEXT)),
    **dict.fromkeys((10, 14), ColumnType(Kind.DATE)),
    12: ColumnType(Kind.DATETIME),
    7: ColumnType(Kind.INSTANT),
}
_MYSQL_DECIMALS = (0, 246)


def described(dialect: str, description: Any) -> ColumnType:
    """Return the type of a column from a driver's ``cursor.description``.

    :param description: one entry: name, type code, display size, internal size, precision, scale, null.
    """
    code: Any = description[1]
    size: Any = description[3]
    precision: Any = description[4]
    scale: Any = description[5]
    if dialect == POSTGRES:
        if code == _POSTGRES_NUMERIC:
            # Without a declared precision, drivers say None or 65,535.
            declared = (
                precision is not None and precision <= 1000 and scale is not None and 0 <= scale <= 1000
            )
            return ColumnType(Kind.DECIMAL, precision, scale) if declared else ColumnType(Kind.DECIMAL)
        return _POSTGRES.get(code, ColumnType(Kind.OTHER))
    if dialect == MYSQL:
        if code in _MYSQL_DECIMALS:
            # The length counts the sign, and the point if there is one.
            return ColumnType(Kind.DECIMAL, size - 1 if size and scale is not None else None, scale)
        return _MYSQL.get(code, ColumnType(Kind.OTHER))
    return DYNAMIC


def agree(what: str, source: ColumnType, target: ColumnType) -> ColumnType:
    """Return the type in which a column of both sides is compared.

    :param what: the column, for the message.
    :raises ConfigurationError: the two cannot be compared without a guess.
    """
    kinds = {source.kind, target.kind}
    if Kind.DYNAMIC in kinds:
        return target if source.kind is Kind.DYNAMIC else source
    if len(kinds) == 1:
        return ColumnType(source.kind, *_wider(source, target))
    if kinds == {Kind.INTEGER, Kind.DECIMAL}:
        return ColumnType(Kind.DECIMAL, *_wider(source, target))
    if kinds == {Kind.UUID, Kind.TEXT}:
        return ColumnType(Kind.UUID)
    raise ConfigurationError(
        f"{what} is {_name(source)} in the source and {_name(target)} in the target. They cannot be compared without a "
        "guess: cast one of them in sql=."
    )


def agree_amount(what: str, source: ColumnType, target: ColumnType) -> ColumnType:
    """Return the type in which an amount is compared: integer, decimal, float, or text that holds decimals.

    :raises ConfigurationError: a type that holds no amounts.
    """
    for side, given in (("source", source), ("target", target)):
        if given.kind not in (Kind.INTEGER, Kind.DECIMAL, Kind.FLOAT, Kind.TEXT, Kind.DYNAMIC):
            raise ConfigurationError(
                f"{what} is {_name(given)} in the {side}, which holds no amounts: cast it in sql=."
            )
    kinds = {source.kind, target.kind}
    if Kind.FLOAT in kinds:
        return ColumnType(Kind.FLOAT)
    if kinds <= {Kind.INTEGER}:
        return ColumnType(Kind.INTEGER, *_wider(source, target))
    if Kind.DYNAMIC in kinds and len(kinds) == 2:
        other = target if source.kind is Kind.DYNAMIC else source
        return ColumnType(Kind.DECIMAL, other.precision, other.scale)
    return ColumnType(Kind.DECIMAL, *_wider(source, target))


def _wider(source: ColumnType, target: ColumnType) -> tuple[int | None, int | None]:
    """Return precision and scale that hold the values of both."""
    sizes = (source.precision, source.scale, target.precision, target.scale)
    if None in sizes:
        return None, None
    a, b, c, d = (size or 0 for size in sizes)
    scale = max(b, d)
    return max(a - b, c - d) + scale, scale


def _name(given: ColumnType) -> str:
    return given.kind.name.lower()
