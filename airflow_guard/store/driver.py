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
    """One statement, compiled once for the driver of the connection that it is executed on.

    Where the driver's parameters are not the statement's (MySQL, SQLite), SQLAlchemy executes it.

    :param statement: with plain named parameters.
    """

    def __init__(self, statement: Any) -> None:
        self.statement = statement
        self._text: str | None = None
        self._is_plain: bool | None = None

    def changed(self, connection: sa.Connection, parameters: Mapping[str, Any]) -> int:
        """Execute it and return the row count."""
        if not self._can(connection.dialect):
            return int(connection.execute(self.statement, parameters).rowcount)
        cursor = self._execute(connection, parameters)
        count = int(cursor.rowcount)
        cursor.close()
        return count

    def _can(self, dialect: sa.Dialect) -> bool:
        if self._is_plain is None:
            self._is_plain = (
                dialects.family(dialect.name) == dialects.POSTGRES and dialect.paramstyle == "pyformat"
            )
            self._text = str(self.statement.compile(dialect=dialect))
        return self._is_plain

    def _execute(self, connection: sa.Connection, parameters: Mapping[str, Any]) -> DBAPICursor:
        pooled = connection.connection
        cursor = pooled.cursor()
        try:
            cursor.execute(self._text, parameters)
        except connection.dialect.loaded_dbapi.Error as error:
            raise _as_sqlalchemy_does(connection, self._text or "", error) from error
        return cursor


def _as_sqlalchemy_does(connection: sa.Connection, text: str, error: Any) -> Any:
    dialect = connection.dialect
    broken = dialect.is_disconnect(error, connection.connection.dbapi_connection, None)
    if broken:
        connection.invalidate(error)
    # Without parameters: they hold documents and results.
    return sa.exc.DBAPIError.instance(
        text, None, error, dialect.loaded_dbapi.Error, hide_parameters=True, connection_invalidated=broken,
        dialect=dialect,
    )  # fmt: skip
