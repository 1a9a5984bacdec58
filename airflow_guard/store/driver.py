"""Statements of the hot path, executed on the driver itself.

SQLAlchemy's own work for one execution takes longer than PostgreSQL takes for a statement on one key. It still compiles
the statement, pools the connection and names the errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.store import dialects

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.engine.interfaces import DBAPICursor


class OnDriver:
    """One statement, compiled once for each driver that it is executed on: ledgers share it.

    Where the driver's parameters are not the statement's (MySQL, SQLite), SQLAlchemy executes it.

    :param statement: with plain named parameters.
    """

    def __init__(self, statement: Any) -> None:
        self.statement = statement
        self._texts: dict[str, str | None] = {}

    def changed(self, connection: sa.Connection, parameters: Mapping[str, Any]) -> int:
        """Execute it and return the row count."""
        text = self._text(connection.dialect)
        if text is None:
            return int(connection.execute(self.statement, parameters).rowcount)
        cursor = self._execute(connection, text, parameters)
        count = int(cursor.rowcount)
        cursor.close()
        return count

    def _text(self, dialect: sa.Dialect) -> str | None:
        """Return what this driver executes, or ``None`` where SQLAlchemy does."""
        if dialect.driver not in self._texts:
            plain = dialects.family(dialect.name) == dialects.POSTGRES and dialect.paramstyle == "pyformat"
            self._texts[dialect.driver] = str(self.statement.compile(dialect=dialect)) if plain else None
        return self._texts[dialect.driver]

    def _execute(self, connection: sa.Connection, text: str, parameters: Mapping[str, Any]) -> DBAPICursor:
        pooled = connection.connection
        cursor = pooled.cursor()
        try:
            cursor.execute(text, parameters)
        except connection.dialect.loaded_dbapi.Error as error:
            raise _as_sqlalchemy_does(connection, text, error) from error
        return cursor


def _as_sqlalchemy_does(connection: sa.Connection, text: str, error: Any) -> Any:
    dialect = connection.dialect
    broken = dialect.is_disconnect(error, connection.connection.dbapi_connection, None)
    if broken:
        connection.invalidate(error)
    # Without parameters: they hold documents and results.
    return sa.exc.DBAPIError.instance(
        text,
        None,
        error,
        dialect.loaded_dbapi.Error,
        hide_parameters=True,
        connection_invalidated=broken,
        dialect=dialect,
    )
