"""Empty, migrated ledgers for tests, from a copy of one that was migrated: the same tables in a tenth of the time.

Migrating takes some forty statements, which most of four thousand tests would repeat. The first ledger of a process on
each kind of database is migrated; the others get its definitions. ``tests/contract/test_migrations.py`` holds the two to
be equal.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from functools import cache
from typing import TYPE_CHECKING

import sqlalchemy as sa

from airflow_guard.store import dialects
from airflow_guard.store.migrate import current_revision, migrate, migration_sql
from airflow_guard.store.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_guard.store.database import LedgerDatabase

_AUTO_INCREMENT = re.compile(r" AUTO_INCREMENT=\d+")
_TABLES = "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name LIKE 'guard\\_%'"
_TRIGGERS = "SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema = DATABASE()"


def migrated(database: LedgerDatabase) -> None:
    """Give a ledger its tables, under their default names; one that has some is migrated."""
    if current_revision(database) is not None:
        migrate(database)
        return
    if database.dialect == dialects.POSTGRES:
        _run(database, [_script("postgresql")])
    elif database.dialect == dialects.SQLITE:
        with contextlib.closing(sqlite3.connect(str(sa.make_url(database.url).database))) as connection:
            connection.executescript(f"BEGIN; {_script('sqlite')} COMMIT;")
    else:
        url = sa.make_url(database.url)
        place = f"{url.host}:{url.port}"
        definitions = _known.get(place)
        if definitions is None:
            migrate(database)
            _known[place] = _mariadb(database)
        else:
            _run(database, definitions)


_known: dict[str, Sequence[str]] = {}


def _run(database: LedgerDatabase, statements: Sequence[str]) -> None:
    with database.engine.begin() as connection:
        direct = connection.execution_options(no_parameters=True)
        for statement in statements:
            direct.exec_driver_sql(statement)


@cache
def _script(dialect_name: str) -> str:
    return re.sub(r"^(BEGIN|COMMIT);$", "", migration_sql(dialect_name, Tables()), flags=re.MULTILINE)


def _mariadb(migrated: LedgerDatabase) -> tuple[str, ...]:
    def read(connection: sa.Connection) -> list[str]:
        direct = connection.execution_options(no_parameters=True)
        made = []
        for name in direct.exec_driver_sql(_TABLES).scalars().all():
            statement = direct.exec_driver_sql(f"SHOW CREATE TABLE `{name}`").one()[1]
            made.append(_AUTO_INCREMENT.sub("", statement))
        made += [
            direct.exec_driver_sql(f"SHOW CREATE TRIGGER `{name}`").one()[2]
            for name in direct.exec_driver_sql(_TRIGGERS).scalars().all()
        ]
        version = direct.exec_driver_sql("SELECT version_num FROM guard_alembic_version").scalar_one()
        return [*made, f"INSERT INTO guard_alembic_version VALUES ('{version}')"]

    return tuple(migrated.read(read))
