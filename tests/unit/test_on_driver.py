"""What a shared statement becomes on each driver."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from airflow_guard.store.driver import OnDriver


def test_each_driver_gets_its_own_text_whichever_came_first() -> None:
    """One process may keep ledgers behind several drivers, and they share the statement."""
    table = sa.table("key", sa.column("at", sa.Date))
    texts = {
        postgresql.psycopg.dialect(): "UPDATE key SET at=%(at)s::DATE",
        postgresql.psycopg2.dialect(): "UPDATE key SET at=%(at)s",
        postgresql.pg8000.dialect(): None,  # its parameters are positions
        mysql.pymysql.dialect(): None,
        sqlite.dialect(): None,
    }
    for order in (list(texts), list(texts)[::-1]):
        statement = OnDriver(sa.update(table).values(at=sa.bindparam("at")))
        for _ in range(2):
            assert {dialect: statement._text(dialect) for dialect in order} == texts
