"""A side in a database that is neither PostgreSQL, MySQL nor SQLite.

Its totals are computed there. Documents are compared by copying the columns that matter into a temporary SQLite file,
which is then the side: exact, with bounded memory, and as slow as reading every row.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.reconciling.plan import readable
from airflow_guard.reconciling.session import OTHER, SideSession

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_guard.reconciling.plan import Readable
    from airflow_guard.reconciling.rules import Rules
    from airflow_guard.reconciling.sides import Side

_PART = 2_000
_TABLE = "side_copy"


@contextmanager
def spooled(
    session: SideSession, side: Side, rules: Rules, parameters: Mapping[str, Any], lock_timeout_s: int
) -> Iterator[tuple[SideSession, Side]]:
    """Yield the side as it can be compared: itself, or a copy of it in SQLite.

    :raises SideUnavailable: as for the side itself.
    :raises SideInvalid: as for the side itself.
    """
    if session.dialect != OTHER or not side.keys:
        yield session, side
        return
    with tempfile.TemporaryDirectory(prefix="airflow_guard_") as folder:
        engine = sa.create_engine(f"sqlite:///{Path(folder) / 'side.db'}")
        one = readable(session, side, rules, parameters)
        session.run(partial(_copy, one, engine))
        copied = replace(
            side,
            table=_TABLE,
            sql=None,
            where=None,
            parameters={},
            currency=None if one.currency is None else side.currency,
        )
        local = SideSession(session.name, engine, lock_timeout_s)
        try:
            local.open()
            yield local, copied
        finally:
            local.close()
            engine.dispose()


def _copy(one: Readable, engine: sa.Engine, connection: sa.Connection) -> None:
    """Copy the columns of a side as text, which loses nothing; a float stays one, so that it is refused or tolerated."""
    columns = list(one.rows.c)
    table = sa.Table(
        _TABLE, sa.MetaData(), *(sa.Column(column.key, sa.types.NullType()) for column in columns)
    )
    streamed = one.select(*columns).execution_options(stream_results=True, max_row_buffer=_PART)
    with engine.begin() as local, connection.execute(streamed) as result:
        written = ", ".join(local.dialect.identifier_preparer.quote(str(column.key)) for column in columns)
        local.exec_driver_sql(f"CREATE TABLE {_TABLE} ({written})")
        for part in result.partitions(_PART):
            rows = [dict(zip(table.c.keys(), map(_plain, row), strict=True)) for row in part]
            local.execute(table.insert(), rows)


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return f"{value:f}"
    if value is None or isinstance(value, (int, float, str, bytes)):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)  # the text of a view is its address
    return value.isoformat(" ") if isinstance(value, datetime) else str(value)
