"""What is read from each side, and how it is compared: settled before anything is scanned."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.errors import AmountError, ConfigurationError, SideInvalid
from airflow_guard.reconciling.columns import ColumnType, Kind, agree, agree_amount, described
from airflow_guard.store import dialects
from airflow_guard.store.business_rows import what_is_missing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_guard.reconciling.rules import Rules
    from airflow_guard.reconciling.session import SideSession
    from airflow_guard.reconciling.sides import Side


_INT64_DIGITS = 18


@dataclass(frozen=True)
class Readable:
    """A side as something to select from.

    :param rows: table or query, as a FROM clause.
    :param where: its condition.
    :param keys: key columns; in them, as in the others, the types of the side itself.
    :param currency: the currency column that must have one value, if there is one.
    """

    rows: sa.FromClause
    where: sa.TextClause | None
    keys: tuple[sa.ColumnElement[Any], ...]
    amounts: tuple[sa.ColumnElement[Any], ...]
    groups: tuple[sa.ColumnElement[Any], ...]
    compared: tuple[sa.ColumnElement[Any], ...]
    currency: sa.ColumnElement[Any] | None
    types: Mapping[str, ColumnType]

    def own(self, column: sa.ColumnElement[Any]) -> ColumnType:
        """Return the type that the side itself gives a column."""
        return self.types[str(column.key)]

    def select(self, *columns: Any) -> sa.Select[Any]:
        """Return a select from the side, with its condition."""
        statement = sa.select(*columns).select_from(self.rows)
        return statement if self.where is None else statement.where(self.where)


@dataclass(frozen=True)
class Plan:
    """How two sides are compared.

    :param native: whether both are PostgreSQL, whose own hashes are then used.
    :param keys: agreed types of the key columns.
    :param amounts: agreed types of the amounts.
    :param groups: agreed types of the group columns.
    :param compared: agreed types of the compared columns.
    """

    native: bool
    keys: tuple[ColumnType, ...]
    amounts: tuple[ColumnType, ...]
    groups: tuple[ColumnType, ...]
    compared: tuple[ColumnType, ...]

    @property
    def integer_key(self) -> bool:
        """Whether the key is one integer: its buckets are then ranges."""
        return len(self.keys) == 1 and self.keys[0].kind is Kind.INTEGER

    @property
    def floats(self) -> bool:
        """Whether an amount is a float: checksums of floats say nothing, so all rows are compared one by one."""
        return any(amount.kind is Kind.FLOAT for amount in self.amounts)

    def units(self, index: int) -> int | None:
        """Return the scale in which an amount is a 64-bit integer, ``None`` if it may not be."""
        agreed = self.amounts[index]
        if agreed.precision is None or agreed.scale is None:
            return None
        fits = agreed.precision <= _INT64_DIGITS or agreed.kind is Kind.INTEGER
        return agreed.scale if fits else None


def readable(session: SideSession, side: Side, rules: Rules, parameters: Mapping[str, Any]) -> Readable:
    """Ask the database for the types of a side's columns. Nothing is read.

    :raises ConfigurationError: a name that is none, a parameter too many or too few.
    :raises SideInvalid: there is no such table or column.
    """
    side.check()
    names = {
        "keys": [side.column(name) for name in side.keys],
        "amounts": [side.column(name) for name in side.amounts],
        "groups": [side.column(name) for name in rules.group_by],
        "compared": [side.column(name) for name in rules.compare],
    }
    wanted = list(dict.fromkeys(name for each in names.values() for name in each))
    currency = None if side.currency is None else side.column(side.currency)
    if currency in names["groups"]:
        currency = None
    texts = _texts(side, parameters)
    if currency is not None and currency not in wanted:
        alone = _from(side, [currency], texts)
        if not session.run(lambda connection: _has(connection, session.dialect, alone)):
            currency = None
    columns = list(dict.fromkeys([*wanted, *([] if currency is None else [currency])]))
    try:
        types = session.run(
            lambda connection: _types(connection, session.dialect, _from(side, columns, texts))
        )
    except SideInvalid as error:
        table = side.table if isinstance(side.table, str) else ".".join(side.table or ())
        hint = what_is_missing(session.engine, table, columns) if table else ""
        raise SideInvalid(f"{error}{hint}") from error
    for name in session.run(partial(never_null, _from(side, columns, texts), session.dialect)) & types.keys():
        types[name] = replace(types[name], nullable=False)
    rows = _from(side, columns, texts, types)
    return Readable(
        rows,
        texts.get("where"),
        types=types,
        currency=None if currency is None else rows.c[currency],
        **{role: tuple(rows.c[name] for name in given) for role, given in names.items()},
    )


def plan(source: Readable, target: Readable, rules: Rules, *, native: bool) -> Plan:
    """Settle how two sides are compared.

    :raises ConfigurationError: columns that cannot be compared.
    :raises AmountError: a float amount, and no tolerance.
    """
    agreed: dict[str, tuple[ColumnType, ...]] = {}
    for role in ("keys", "amounts", "groups", "compared"):
        ours, theirs = getattr(source, role), getattr(target, role)
        if len(ours) != len(theirs):
            raise ConfigurationError(
                f"{role.removesuffix('s')}= names {len(ours)} columns in the source and {len(theirs)} in the target; they "
                "are compared one by one, in order."
            )
        agreeing = agree_amount if role == "amounts" else agree
        agreed[role] = tuple(
            agreeing(f"Column {one.key!r}", source.own(one), target.own(other))
            for one, other in zip(ours, theirs, strict=True)
        )
        for one, kind in zip(ours, agreed[role], strict=True):
            if kind.kind is Kind.FLOAT and (role != "amounts" or not rules.inexact):
                raise AmountError(
                    f"Column {one.key!r} is a float on a side, which is not exact. Make it a decimal, cast it in sql=, or "
                    "(for an amount) set absolute_tolerance above zero."
                )
    return Plan(native, **agreed)


def _texts(side: Side, parameters: Mapping[str, Any]) -> dict[str, sa.TextClause]:
    """Return what the author wrote in SQL, with its parameters bound."""
    written = {"where": side.where, "sql": side.sql}
    texts = {name: sa.text(_closed(name, text)) for name, text in written.items() if text is not None}
    used = {name for text in texts.values() for name in text.compile().params}
    values = {**parameters, **side.parameters}
    if missing := sorted(used - values.keys()):
        raise ConfigurationError(
            f"{side.describe()}: no value for the parameters {missing}. Give parameters={{…}}."
        )
    if unused := sorted(side.parameters.keys() - used):
        raise ConfigurationError(
            f"{side.describe()}: nothing uses the parameters {unused}; they are written :name."
        )
    return {
        name: text.bindparams(*(_bound(each, values[each]) for each in text.compile().params))
        for name, text in texts.items()
    }


def _closed(name: str, text: str) -> str:
    """Return a text that ends where it should, also if its last line is a comment."""
    return f"({text}\n)" if name == "where" else text.strip().rstrip(";") + "\n"


def _bound(name: str, value: Any) -> sa.BindParameter[Any]:
    # A string gets no type: PostgreSQL then takes it for whatever it is compared with, a date for example.
    if isinstance(value, str):
        return sa.bindparam(name, value, type_=sa.types.NullType())
    return sa.bindparam(name, value)


def _from(
    side: Side,
    columns: list[str],
    texts: Mapping[str, sa.TextClause],
    types: Mapping[str, ColumnType] | None = None,
) -> sa.FromClause:
    """Return a side as a FROM clause with these columns."""

    def column(name: str) -> sa.ColumnClause[Any]:
        boolean = types is not None and types[name].boolean
        return sa.column(name, sa.Boolean() if boolean else None)

    if "sql" in texts:
        return texts["sql"].columns(*map(column, columns)).subquery("side")
    *schema, table = side.table_parts()
    return sa.table(table, *map(column, columns), schema=_schema(schema)).alias("side")


def _schema(parts: list[str]) -> Any:
    if len(parts) < 2:
        return parts[0] if parts else None
    raise ConfigurationError("A table in another database (three parts) is not supported: use sql=.")


def _has(connection: sa.Connection, dialect: str, rows: sa.FromClause) -> bool:
    """Return whether a column is there."""
    statement = sa.select(*rows.c).limit(0)
    try:
        # A savepoint: in PostgreSQL a failed statement would end the snapshot.
        with connection.begin_nested() if dialect == dialects.POSTGRES else nullcontext():
            connection.execute(statement).close()
    except sa.exc.DBAPIError as error:
        if dialects.is_missing(error):
            return False
        raise
    return True


def _types(connection: sa.Connection, dialect: str, rows: sa.FromClause) -> dict[str, ColumnType]:
    with connection.execute(sa.select(*rows.c).limit(0)) as result:
        cursor: Any = result.cursor
        described_types = [described(dialect, each) for each in cursor.description]
    types = dict(zip(rows.c.keys(), described_types, strict=True))
    if dialect == dialects.MYSQL:
        types.update(_binary(connection, rows, types))
    return types


def _binary(
    connection: sa.Connection, rows: sa.FromClause, types: Mapping[str, ColumnType]
) -> dict[str, ColumnType]:
    """Return which texts of MySQL are bytes: it describes both in the same way."""
    texts = [name for name, each in types.items() if each.kind is Kind.TEXT]
    if not texts:
        return {}
    # A row of NULLs, whatever the side holds: the character set belongs to the column and not to a value.
    nothing = sa.select(*(rows.c[name] for name in texts)).limit(0).subquery("nothing")
    one = sa.select(sa.literal_column("1")).subquery("one")
    asked = sa.select(*(sa.func.charset(nothing.c[name]) for name in texts))
    found = connection.execute(asked.select_from(one.outerjoin(nothing, sa.true()))).one()
    return {
        name: ColumnType(Kind.BINARY)
        for name, charset in zip(texts, found, strict=True)
        if charset == "binary"
    }


# -- Whether a database itself forbids that a key occurs twice -----------------------------------------------


def is_unique(one: Readable, dialect: str, connection: sa.Connection) -> bool:
    """Return whether the database itself guarantees that no key occurs twice; ``False`` if that cannot be told."""
    table = one.rows.element if isinstance(one.rows, sa.Alias) else None
    if not isinstance(table, sa.TableClause):
        return False
    keys = {str(column.key) for column in one.keys}
    if (
        dialect == dialects.POSTGRES
        and connection.execute(_INHERITED, {"name": _quoted(connection, table)}).scalar()
    ):
        return False
    inspector = sa.inspect(connection)
    try:
        constraints = [inspector.get_pk_constraint(table.name, table.schema)["constrained_columns"]]
        constraints += [
            each["column_names"] for each in inspector.get_unique_constraints(table.name, table.schema)
        ]
    except (sa.exc.NoSuchTableError, NotImplementedError):
        return False  # a view, or a dialect that cannot tell
    return any(names and keys >= set(names) for names in constraints)


def never_null(rows: sa.FromClause, dialect: str, connection: sa.Connection) -> set[str]:
    """Return the columns that cannot be NULL, where knowing it makes a scan cheaper: tables of MySQL and MariaDB.

    A view says what its tables forbid, although an outer join in it makes NULLs: only what has a primary key is asked.
    PostgreSQL 18 has such constraints that its older rows break.
    """
    table = rows.element if isinstance(rows, sa.Alias) else None
    if dialect != dialects.MYSQL or not isinstance(table, sa.TableClause):
        return set()
    inspector = sa.inspect(connection)
    try:
        if not inspector.get_pk_constraint(table.name, table.schema)["constrained_columns"]:
            return set()
        columns = inspector.get_columns(table.name, table.schema)
    except sa.exc.NoSuchTableError:
        return set()
    return {column["name"] for column in columns if not column["nullable"]}


# A constraint of a parent table does not hold across the tables that inherit from it.
_INHERITED = sa.text("SELECT relkind = 'r' AND relhassubclass FROM pg_class WHERE oid = to_regclass(:name)")


def _quoted(connection: sa.Connection, table: sa.TableClause) -> str:
    preparer: Any = connection.dialect.identifier_preparer
    return str(preparer.format_table(table))
