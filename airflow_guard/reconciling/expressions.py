"""SQL expressions of a side: the canonical forms of its columns, its buckets and its checksums.

What is written here for all databases is plain 64-bit arithmetic; see :mod:`checksum`, whose functions give the same
numbers. What differs stands in a class for each database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.sql.elements import Grouping

from airflow_guard.reconciling import canonical
from airflow_guard.reconciling.columns import Kind
from airflow_guard.store import dialects

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_guard.reconciling.columns import ColumnType

Expression = sa.ColumnElement[Any]

_SHORT = 9
"""Decimal digits that are always below the primes."""


def number(value: int) -> Expression:
    """Return an integer as a literal: as a parameter, PostgreSQL would not see that two expressions are the same."""
    return sa.literal_column(str(value), sa.BigInteger())


class Expressions:
    """What every database does in the same way.

    :param inexact: whether floats are taken as amounts.
    """

    division = "/"
    fence = False
    """Whether expressions that are used more than once are better computed in a subquery of their own."""

    def __init__(self, *, inexact: bool) -> None:
        self.inexact = inexact

    # -- canonical forms: each database has its own ----------------------------------------------------------

    def text(self, column: Expression, own: ColumnType, agreed: ColumnType) -> Expression:
        """Return the text in which values are compared; two values are equal if its bytes are."""
        raise NotImplementedError

    def ordered(self, text: Expression) -> Expression:
        """Return a text such that groups and order go by its bytes."""
        raise NotImplementedError

    def integer(self, column: Expression) -> Expression:
        """Return a key column as a 64-bit integer."""
        return sa.cast(column, sa.BigInteger())

    def amount(self, column: Expression, own: ColumnType) -> Expression:
        """Return an amount column as something that can be added up exactly."""
        raise NotImplementedError

    def not_an_amount(self, column: Expression) -> Expression | None:
        """Return the condition that a text is no plain decimal; ``None`` where reading it finds that out."""
        raise NotImplementedError

    def scaled(self, amount: Expression, scale: int) -> Expression:
        """Return an amount as a 64-bit integer of units of 10 to the power of minus ``scale``."""
        raise NotImplementedError

    def plain(self, amount: Expression) -> Expression:
        """Return an amount as text without exponent and without zeros at the end."""
        raise NotImplementedError

    def slice_of(self, text: Expression) -> Expression:
        """Return 60 bits of the MD5 of a text."""
        raise NotImplementedError

    def total(self, amount: Expression) -> Expression:
        """Return the exact sum of amounts or checksums."""
        return sa.func.sum(amount)

    # -- the portable checksum -------------------------------------------------------------------------------

    def joined(self, texts: Sequence[Expression], *, nulls: bool) -> Expression:
        """Return several texts as one from which they can be told apart.

        :param nulls: whether a NULL is marked; otherwise one NULL makes all of it NULL.
        """
        parts = []
        for text in texts:
            length = sa.cast(self._length(text), sa.String())
            part: Expression = length.concat(sa.literal_column("':'", sa.String())).concat(text)
            parts.append(sa.func.coalesce(part, sa.literal_column("'-'")) if nulls else part)
        whole: Expression = sa.type_coerce(parts[0], sa.String())
        for part in parts[1:]:
            whole = whole.concat(part)
        return whole

    def _length(self, text: Expression) -> Expression:
        return sa.func.char_length(text)

    def bucket(self, key: Expression, *, mixed: bool, nullable: bool = True) -> Expression:
        """Return the bucket of a key.

        :param nullable: whether it may be NULL.
        """
        block = key if mixed else self._divided(key, canonical.BLOCK)
        bucket: Expression = block % number(canonical.BUCKETS)
        return sa.func.coalesce(bucket, number(canonical.NULL_BUCKET)) if nullable else bucket

    def multiplier(self, key: Expression, *, mixed: bool) -> Expression:
        """Return the multiplier of a key."""
        p1, p2 = number(canonical.P1), number(canonical.P2)
        if mixed:
            return key % p1
        one = (number(canonical.A1) * (key % p1) + number(canonical.C1)) % p1
        other = (number(canonical.A2) * (key % p2) + number(canonical.C2)) % p2
        return self.exclusive_or(one, other)

    def exclusive_or(self, one: Expression, other: Expression) -> Expression:
        """Return the bits in which two 64-bit integers differ, as a signed integer."""
        return one.bitwise_xor(other)

    def mixed_value(self, value: Expression, digits: int | None, *, nullable: bool = True) -> Expression:
        """Return a value for multiplication.

        :param digits: how many it has at most, if that is known: a short one needs no remainder.
        :param nullable: whether it may be NULL.
        """
        short = digits is not None and digits <= _SHORT
        if nullable:
            null = canonical.mixed_value(None) - canonical.OFFSET if short else canonical.NULL_VALUE
            value = sa.func.coalesce(value, number(null), type_=sa.BigInteger())
        rest = value if short else value % number(canonical.P2)
        return rest + number(canonical.OFFSET)

    def _divided(self, value: Expression, divisor: int) -> Expression:
        return value.op(self.division, precedence=8, return_type=sa.BigInteger())(number(divisor))


class PostgresExpressions(Expressions):
    """PostgreSQL."""

    fence = True

    def text(self, column: Expression, own: ColumnType, agreed: ColumnType) -> Expression:
        kind = agreed.kind
        if kind is Kind.UUID:
            return sa.func.replace(sa.func.lower(sa.cast(column, sa.Text())), "-", "")
        if kind is Kind.DECIMAL:
            return self.plain(self.amount(column, own))
        if kind is Kind.DATETIME:
            return sa.func.to_char(column, sa.literal_column("'YYYY-MM-DD HH24:MI:SS.US'"))
        if kind is Kind.INSTANT:
            moment = sa.func.timezone(sa.literal_column("'UTC'"), column)
            return sa.func.to_char(moment, sa.literal_column("'YYYY-MM-DD HH24:MI:SS.US'"))
        if kind is Kind.DATE:
            return sa.func.to_char(column, sa.literal_column("'YYYY-MM-DD'"))
        if kind is Kind.BINARY:
            return sa.func.encode(column, sa.literal_column("'hex'"))
        if kind is Kind.INTEGER:
            return sa.cast(self.integer(column), sa.Text())
        return sa.cast(column, sa.Text())

    def ordered(self, text: Expression) -> Expression:
        return sa.collate(text, "C")

    def integer(self, column: Expression) -> Expression:
        # boolean has no cast to bigint, only to integer
        is_boolean = isinstance(column.type, sa.Boolean)
        return (
            sa.cast(sa.cast(column, sa.Integer()), sa.BigInteger()) if is_boolean else super().integer(column)
        )

    def amount(self, column: Expression, own: ColumnType) -> Expression:
        return sa.cast(column, sa.Numeric()) if own.kind is Kind.TEXT else column

    def not_an_amount(self, column: Expression) -> Expression | None:
        pattern: Expression = sa.literal_column(
            r"'^[[:space:]]*[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)[[:space:]]*$'"
        )
        return column.op("!~")(pattern)

    def scaled(self, amount: Expression, scale: int) -> Expression:
        if scale == 0:
            return sa.cast(amount, sa.BigInteger())
        exact: Expression = sa.cast(amount, sa.Numeric()) * number(10**scale)
        return sa.cast(exact, sa.BigInteger())

    def plain(self, amount: Expression) -> Expression:
        return sa.cast(sa.func.trim_scale(sa.cast(amount, sa.Numeric())), sa.Text())

    def slice_of(self, text: Expression) -> Expression:
        bits = sa.literal_column("'x'").concat(sa.func.substr(sa.func.md5(text), 1, canonical.HEX_DIGITS))
        return sa.cast(sa.cast(bits, postgresql.BIT(4 * canonical.HEX_DIGITS)), sa.BigInteger())

    # -- PostgreSQL's own hashes, where both sides are PostgreSQL --------------------------------------------

    def hashed(self, value: Expression, kind: Kind, seed: Expression) -> Expression:
        """Return PostgreSQL's 64-bit hash of a value, which is the same for 0.1 and 0.10; NULL has one too."""
        if kind is Kind.INTEGER:
            hashed = sa.func.hashint8extended(self.integer(value), seed, type_=sa.BigInteger())
        elif kind is Kind.DECIMAL:
            hashed = sa.func.hash_numeric_extended(sa.cast(value, sa.Numeric()), seed, type_=sa.BigInteger())
        else:
            hashed = sa.func.hashtextextended(self.ordered(value), seed, type_=sa.BigInteger())
        null = sa.func.hashint8extended(number(canonical.NULL_VALUE), seed, type_=sa.BigInteger())
        return sa.func.coalesce(hashed, null, type_=sa.BigInteger())


class MySqlExpressions(Expressions):
    """MySQL and MariaDB."""

    division = "DIV"

    def text(self, column: Expression, own: ColumnType, agreed: ColumnType) -> Expression:
        kind = agreed.kind
        if own.kind is Kind.BINARY:
            return sa.func.lower(sa.func.hex(column))
        if kind is Kind.DECIMAL:
            return self.plain(self.amount(column, own))
        if kind in (Kind.DATETIME, Kind.INSTANT):
            return self._utf8(sa.func.date_format(column, sa.literal_column("'%Y-%m-%d %H:%i:%s.%f'")))
        if kind is Kind.DATE:
            return self._utf8(sa.func.date_format(column, sa.literal_column("'%Y-%m-%d'")))
        text = self._utf8(column)
        return sa.func.replace(sa.func.lower(text), "-", "") if kind is Kind.UUID else text

    def _utf8(self, column: Expression) -> Expression:
        return sa.cast(column, mysql.CHAR(charset="utf8mb4"))

    def ordered(self, text: Expression) -> Expression:
        return sa.cast(text, sa.LargeBinary())

    def amount(self, column: Expression, own: ColumnType) -> Expression:
        return sa.cast(sa.func.trim(column), sa.Numeric(65, 30)) if own.kind is Kind.TEXT else column

    def not_an_amount(self, column: Expression) -> Expression | None:
        pattern: Expression = sa.literal_column(
            "'^[ \\t]*[+-]?([0-9]{1,35}([.][0-9]{0,30})?|[.][0-9]{1,30})[ \\t]*$'"
        )
        return column.op("NOT REGEXP")(pattern)

    def scaled(self, amount: Expression, scale: int) -> Expression:
        return sa.cast(amount * number(10**scale) if scale else amount, sa.BigInteger())

    def plain(self, amount: Expression) -> Expression:
        text: Expression = sa.cast(amount, sa.String())
        zeros = sa.func.regexp_replace(text, sa.literal_column("'[.]?0+$'"), sa.literal_column("''"))
        return sa.case((sa.func.locate(sa.literal_column("'.'"), text) > number(0), zeros), else_=text)

    def exclusive_or(self, one: Expression, other: Expression) -> Expression:
        # MySQL's operator binds tighter than arithmetic, and its result is unsigned.
        bits: Expression = Grouping(one).bitwise_xor(Grouping(other))
        return sa.cast(bits, sa.BigInteger())

    def slice_of(self, text: Expression) -> Expression:
        digits = sa.func.substring(sa.func.md5(text), 1, canonical.HEX_DIGITS)
        return sa.cast(sa.func.conv(digits, number(16), number(10)), sa.BigInteger())


class SqliteExpressions(Expressions):
    """SQLite, with the functions of :mod:`sqlite_functions`, because it has neither decimals nor MD5."""

    def text(self, column: Expression, own: ColumnType, agreed: ColumnType) -> Expression:
        return sa.func.airflow_guard_text(_quoted(agreed.kind.name), _quoted(str(column.key)), column)

    def ordered(self, text: Expression) -> Expression:
        return sa.collate(text, "BINARY")

    def integer(self, column: Expression) -> Expression:
        return sa.func.airflow_guard_integer(_quoted(str(column.key)), column, type_=sa.BigInteger())

    def amount(self, column: Expression, own: ColumnType) -> Expression:
        return sa.func.airflow_guard_amount(number(int(self.inexact)), _quoted(str(column.key)), column)

    def not_an_amount(self, column: Expression) -> Expression | None:
        return None

    def scaled(self, amount: Expression, scale: int) -> Expression:
        return sa.func.airflow_guard_scaled(amount, number(scale), type_=sa.BigInteger())

    def plain(self, amount: Expression) -> Expression:
        return amount

    def slice_of(self, text: Expression) -> Expression:
        return sa.func.airflow_guard_slice(text, type_=sa.BigInteger())

    def exclusive_or(self, one: Expression, other: Expression) -> Expression:
        return sa.func.airflow_guard_xor(one, other, type_=sa.BigInteger())

    def total(self, amount: Expression) -> Expression:
        return sa.func.airflow_guard_total(amount, type_=sa.String())

    def _length(self, text: Expression) -> Expression:
        return sa.func.length(text)


class OtherExpressions(Expressions):
    """Any other database, for totals."""

    def text(self, column: Expression, own: ColumnType, agreed: ColumnType) -> Expression:
        return sa.cast(column, sa.String())

    def ordered(self, text: Expression) -> Expression:
        return text

    def amount(self, column: Expression, own: ColumnType) -> Expression:
        return column

    def not_an_amount(self, column: Expression) -> Expression | None:
        return None


def _quoted(word: str) -> Expression:
    """Return a checked name as a SQL string."""
    return sa.literal_column("'" + word.replace("'", "''") + "'")


def expressions_for(dialect: str, *, inexact: bool) -> Expressions:
    """Return the expressions of a database."""
    kinds: dict[str, type[Expressions]] = {
        dialects.POSTGRES: PostgresExpressions,
        dialects.MYSQL: MySqlExpressions,
        dialects.SQLITE: SqliteExpressions,
    }
    return kinds.get(dialect, OtherExpressions)(inexact=inexact)
