"""Tables of a business: how many rows each document has, and which name its database does not know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.errors import ResolutionError
from airflow_guard.core.texts import meant

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import date


def rows_by_document(
    engine: sa.Engine, table: str, key: str, date_column: str | None, day: date
) -> dict[str, int]:
    """Return how many rows each value of a column has.

    :param table: its name, with a schema before a dot if it has one. Names are quoted, never interpreted.
    :param date_column: only rows of this date; ``None``: all rows.
    :raises ResolutionError: the table cannot be read, or a row has no key. A retry helps if the database was down.
    """
    schema, _, name = table.rpartition(".")
    columns: list[sa.ColumnClause[Any]] = [sa.column(key), *([sa.column(date_column)] if date_column else [])]
    source = sa.table(name, *columns, schema=schema or None)
    counted = sa.select(source.c[key], sa.func.count()).group_by(source.c[key])
    if date_column:
        counted = counted.where(source.c[date_column] == sa.bindparam("day", day, sa.Date()))
    try:
        with engine.connect() as connection:
            found = connection.execute(counted).all()
            connection.rollback()
    except sa.exc.SQLAlchemyError as error:
        said = str(getattr(error, "orig", None) or error).partition("\n")[0]
        hint = what_is_missing(engine, table, [key, *([date_column] if date_column else [])])
        raise ResolutionError(f"{table} cannot be read: {said}.{hint}") from error
    if any(value is None for value, _ in found):
        raise ResolutionError(f"{table} has rows without {key}: it cannot be compared with the ledger.")
    return {str(value).strip(): int(count) for value, count in found}


def what_is_missing(engine: sa.Engine, table: str, columns: Iterable[str]) -> str:
    """Return a sentence that names the table or the columns that are not there, with a space before it; ``""`` if
    all are, or if the database does not say.

    :param table: perhaps with its schema before a point.
    """
    schema, _, name = table.rpartition(".")
    try:
        inspector = sa.inspect(engine)
        there = [*inspector.get_table_names(schema or None), *inspector.get_view_names(schema or None)]
        if name not in there:
            return f" There is no table {table}.{meant(name, there, all_if_none=True)}"
        known = [str(column["name"]) for column in inspector.get_columns(name, schema or None)]
    except sa.exc.SQLAlchemyError:
        return ""
    wrong = [column for column in columns if column not in known]
    said = [f" {table} has no column {column}.{meant(column, known, all_if_none=True)}" for column in wrong]
    return "".join(said)
