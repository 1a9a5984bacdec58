"""The statement that turns a side's rows into their canonical forms, with bucket and checksums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.reconciling.columns import DYNAMIC, ColumnType, Kind
from airflow_guard.reconciling.expressions import Expressions, PostgresExpressions, number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_guard.reconciling.plan import Plan, Readable

Expression = sa.ColumnElement[Any]


@dataclass(frozen=True)
class SideRows:
    """Builds what is selected from one side.

    :param readable: the side.
    :param plan: how it is compared.
    :param expressions: its database's.
    """

    readable: Readable
    plan: Plan
    expressions: Expressions

    def groups(self) -> list[Expression]:
        """Return ``g0 …``: the groups, and last the currency that must have one value."""
        columns = zip(self.readable.groups, self.plan.groups, strict=True)
        found = [self._ordered(column, agreed) for column, agreed in columns]
        if self.readable.currency is not None:
            own = self.readable.own(self.readable.currency)
            agreed = own if own.kind is not Kind.INTEGER else DYNAMIC
            found.append(self._ordered(self.readable.currency, agreed))
        return _labelled("g", found)

    def keys(self) -> list[Expression]:
        """Return ``k0 …``: the key, integers as integers, everything else as text that is ordered by its bytes."""
        return _labelled(
            "k",
            [
                self.expressions.integer(column)
                if agreed.kind is Kind.INTEGER
                else self._ordered(column, agreed)
                for column, agreed in zip(self.readable.keys, self.plan.keys, strict=True)
            ],
        )

    def amounts(self) -> list[Expression]:
        """Return ``a0 …``: the amounts, as what can be added up exactly."""
        return _labelled("a", [self._amount(index) for index in range(len(self.readable.amounts))])

    def values(self) -> list[Expression]:
        """Return ``v0 …``: the compared columns."""
        return _labelled("v", [self.expressions.ordered(text) for text in self._compared()])

    def bucket(self) -> Expression:
        """Return ``b``: the bucket."""
        key = self._key_hash() if self.plan.native else self._key()
        return self._bucket(key).label("b")

    def _bucket(self, key: Expression) -> Expression:
        nullable = any(self.readable.own(column).nullable for column in self.readable.keys)
        return self.expressions.bucket(key, mixed=not self.plan.integer_key, nullable=nullable)

    def scanned(self) -> sa.Subquery:
        """Return the rows with groups, bucket, amounts and checksums ``c0 …``."""
        if self.plan.native:
            columns = [*self.groups(), self.bucket(), *self.amounts()]
            checksums = [] if self.plan.floats else [self._native_checksum().label("c0")]
            return self.readable.select(*columns, *checksums).subquery("r")
        return self._portable()

    def _portable(self) -> sa.Subquery:
        """Return the rows with portable checksums, in steps, so that no long expression is computed twice."""
        parts: list[Expression] = [] if self.plan.floats else _labelled("p", list(self._components()))
        inner = self.readable.select(*self.groups(), *self.amounts(), self._key().label("key"), *parts)
        if self.expressions.fence:
            inner = inner.offset(sa.literal_column("0"))
        first = inner.subquery("i")
        kept = [column for column in first.c if str(column.key)[0] in "ga"]
        bucket = self._bucket(first.c.key).label("b")
        if self.plan.floats:
            return sa.select(*kept, bucket).subquery("r")
        multiplier = self._multiplier(first.c.key)
        factors = [
            self.expressions.mixed_value(
                first.c[f"p{index}"], self._digits(index), nullable=self._may_be_null(index)
            )
            for index in range(len(parts))
        ]
        checksums = _labelled("c", [multiplier * factor for factor in factors] or [multiplier])
        return sa.select(*kept, bucket, *checksums).subquery("r")

    def _multiplier(self, key: Expression) -> Expression:
        return self.expressions.multiplier(key, mixed=not self.plan.integer_key)

    def _components(self) -> Iterable[Expression]:
        """Yield what the checksums are over: each amount as an integer, and the compared columns as one."""
        for index in range(len(self.readable.amounts)):
            units, amount = self.plan.units(index), self._amount(index)
            if units is None:
                yield self.expressions.slice_of(self.expressions.plain(amount))
            else:
                yield self.expressions.scaled(amount, units)
        texts = self._compared()
        if texts:
            yield self.expressions.slice_of(self.expressions.joined(texts, nulls=True))

    def _may_be_null(self, index: int) -> bool:
        amounts = self.readable.amounts
        return index >= len(amounts) or self.readable.own(amounts[index]).nullable

    def _digits(self, index: int) -> int | None:
        amounts = self.plan.amounts
        return (
            amounts[index].precision if index < len(amounts) and self.plan.units(index) is not None else None
        )

    def _postgres(self) -> PostgresExpressions:
        if not isinstance(self.expressions, PostgresExpressions):
            raise TypeError("Only PostgreSQL has these hashes.")
        return self.expressions

    def _key(self) -> Expression:
        """Return the key as one 64-bit integer, NULL if a part of it is NULL."""
        if self.plan.integer_key:
            return self.expressions.integer(self.readable.keys[0])
        texts = self._texts(self.readable.keys, self.plan.keys)
        return self.expressions.slice_of(
            texts[0] if len(texts) == 1 else self.expressions.joined(texts, nulls=False)
        )

    def _key_hash(self) -> Expression:
        """Return PostgreSQL's hash of the key, or the key itself if it is one integer."""
        if self.plan.integer_key:
            return self._key()
        expressions = self._postgres()
        seed: Expression = number(0)
        for column, agreed in zip(self.readable.keys, self.plan.keys, strict=True):
            seed = expressions.hashed(self._hashable(column, agreed), agreed.kind, seed)
        columns = [column.is_not(None) for column in self.readable.keys]
        return sa.case((sa.and_(*columns), seed))

    def _native_checksum(self) -> Expression:
        """Return one 64-bit hash of key, amounts and compared columns."""
        expressions = self._postgres()
        seed = self._key_hash()
        if self.plan.integer_key:
            seed = sa.func.hashint8extended(seed, number(0), type_=sa.BigInteger())
        for index, agreed in enumerate(self.plan.amounts):
            seed = expressions.hashed(self._amount(index), agreed.kind, seed)
        for column, agreed in zip(self.readable.compared, self.plan.compared, strict=True):
            seed = expressions.hashed(self._hashable(column, agreed), agreed.kind, seed)
        return seed

    def _hashable(self, column: Expression, agreed: ColumnType) -> Expression:
        if agreed.kind in (Kind.INTEGER, Kind.DECIMAL):
            return column
        return self.expressions.text(column, self.readable.own(column), agreed)

    def _amount(self, index: int) -> Expression:
        column = self.readable.amounts[index]
        return self.expressions.amount(column, self.readable.own(column))

    def _compared(self) -> list[Expression]:
        return self._texts(self.readable.compared, self.plan.compared)

    def _texts(self, columns: tuple[Expression, ...], agreed: tuple[ColumnType, ...]) -> list[Expression]:
        return [
            self.expressions.text(column, self.readable.own(column), kind)
            for column, kind in zip(columns, agreed, strict=True)
        ]

    def _ordered(self, column: Expression, agreed: ColumnType) -> Expression:
        return self.expressions.ordered(self.expressions.text(column, self.readable.own(column), agreed))


def _labelled(letter: str, columns: list[Expression]) -> list[Expression]:
    return [column.label(f"{letter}{index}") for index, column in enumerate(columns)]
