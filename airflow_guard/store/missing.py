"""Which name a database does not know, and what may have been meant: asked after a statement was refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from airflow_guard.core.texts import meant

if TYPE_CHECKING:
    from collections.abc import Iterable


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
