"""The databases of the sides of a reconciliation."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_guard.airflow_compat import AirflowNotFoundException
from airflow_guard.core.errors import ConfigurationError
from airflow_guard.hooks.connections import engine_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import sqlalchemy as sa

    from airflow_guard.reconciling.sides import Side


@contextmanager
def side_engines(sides: Sequence[Side]) -> Iterator[list[sa.Engine]]:
    """Give an engine for each side; sides of one connection share one, so that they can share a snapshot.

    :raises ConfigurationError: a connection does not exist, or has no engine. A retry does not help.
    """
    engines: dict[str, sa.Engine] = {}
    try:
        for side in sides:
            if side.conn_id not in engines:
                engines[side.conn_id] = _engine(side.conn_id)
        yield [engines[side.conn_id] for side in sides]
    finally:
        for engine in engines.values():
            engine.dispose()


def _engine(conn_id: str) -> sa.Engine:
    from airflow.sdk import BaseHook

    try:
        return engine_of(BaseHook.get_connection(conn_id))
    except AirflowNotFoundException as error:
        raise ConfigurationError(
            f"There is no connection {conn_id!r}, which a side of the reconciliation names. Create it, or correct "
            "the name."
        ) from error
