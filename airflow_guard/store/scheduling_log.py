"""What Airflow recorded of runs and tries, read from its metadata database. Nothing is written there.

Airflow 3.1 to 3.3 have the same columns for what is read here.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, time, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import sqlalchemy as sa

from airflow_guard.core.diagnosis import Run, Try
from airflow_guard.core.errors import ResolutionError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from datetime import date

_RUN = sa.table(
    "dag_run",
    *(
        sa.column(name)
        for name in (
            "dag_id",
            "run_id",
            "run_type",
            "state",
            "logical_date",
            "data_interval_start",
            "clear_number",
            "triggering_user_name",
            "conf",
        )
    ),
)
_COLUMNS = (
    "dag_id",
    "run_id",
    "task_id",
    "map_index",
    "try_number",
    "state",
    "start_date",
    "end_date",
    "hostname",
)
_TRIES = tuple(
    sa.table(name, *(sa.column(column) for column in _COLUMNS))
    for name in ("task_instance_history", "task_instance")
)
_SERIALIZED = sa.table("serialized_dag", *(sa.column(name) for name in ("dag_id", "data", "created_at")))


class SchedulingLog:
    """The runs and tries of a DAG.

    :param engine: of Airflow's metadata database.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def runs(self, dag_id: str, day: date, known: Collection[str] = (), zone: str = "UTC") -> list[Run]:
        """Return the runs about a business date, oldest first, each with all of its tries.

        A run is about a date if the ledger says so, if its conf names it, or if its data interval begins on it (its
        logical date lies on it, where there is no interval) in the DAG's time zone.

        :param known: run ids that the ledger has for the date.
        :raises ResolutionError: the database cannot be read. A retry helps if it was down.
        """
        try:
            with self._engine.connect() as connection:
                runs = [
                    row
                    for row in connection.execute(self._around(dag_id, day, known)).all()
                    if _about(row, day, known, zone)
                ]
                tries = self._tries(connection, dag_id, [row.run_id for row in runs])
                connection.rollback()
        except sa.exc.SQLAlchemyError as error:
            said = str(getattr(error, "orig", None) or error).partition("\n")[0]
            raise ResolutionError(f"Airflow's metadata database cannot be read: {said}") from error
        return [
            Run(
                row.run_id,
                row.run_type,
                row.state or "",
                row.clear_number or 0,
                row.triggering_user_name or "",
                tuple(tries.get(row.run_id, ())),
            )
            for row in runs
        ]

    def execution_timeouts(self, dag_id: str) -> dict[str, timedelta]:
        """Return the ``execution_timeout`` of the tasks that have one, as the DAG was last parsed."""
        s = _SERIALIZED
        newest = sa.select(s.c.data).where(s.c.dag_id == dag_id).order_by(s.c.created_at.desc()).limit(1)
        try:
            with self._engine.connect() as connection:
                data = connection.execute(newest).scalar_one_or_none()
        except sa.exc.SQLAlchemyError:
            return {}
        return _timeouts(json.loads(data) if isinstance(data, (str, bytes)) else data or {})

    def _around(self, dag_id: str, day: date, known: Collection[str]) -> sa.Select[Any]:
        r = _RUN
        # A day more on both sides: the DAG's time zone decides, and that is asked in Python.
        first = datetime.combine(day, time()) - timedelta(days=1)
        last = first + timedelta(days=3)
        if self._engine.dialect.name == "postgresql":
            first, last = first.replace(tzinfo=UTC), last.replace(tzinfo=UTC)
        begins = sa.func.coalesce(r.c.data_interval_start, r.c.logical_date)
        near = sa.and_(begins >= sa.bindparam(None, first), begins < sa.bindparam(None, last))
        manual = r.c.run_type.in_(["manual", "asset_triggered"])
        chosen = sa.or_(near, manual, r.c.run_id.in_(sorted(known)))
        return sa.select(r).where(r.c.dag_id == dag_id, chosen).order_by(r.c.run_id)

    def _tries(self, connection: sa.Connection, dag_id: str, run_ids: list[str]) -> dict[str, list[Try]]:
        found: dict[tuple[Any, ...], Try] = {}
        for table in _TRIES:  # the present try last: it is in both while it is cleared
            wanted = sa.select(table).where(table.c.dag_id == dag_id, table.c.run_id.in_(run_ids))
            for row in connection.execute(wanted):
                if row.start_date is None:
                    continue
                found[row.run_id, row.task_id, row.map_index, row.try_number] = Try(
                    row.task_id,
                    row.map_index,
                    row.try_number,
                    row.state or "",
                    _instant(row.start_date),
                    _instant(row.end_date),
                    row.hostname or "",
                )
        by_run: dict[str, list[Try]] = {}
        for key in sorted(found):
            by_run.setdefault(key[0], []).append(found[key])
        return by_run


def is_about(
    run_id: str, conf: Any, begins: datetime | None, day: date, known: Collection[str], zone: str
) -> bool:
    """Return whether a run is about a business date.

    :param begins: of its data interval, else its logical date.
    :param known: run ids that the ledger has for the date.
    :param zone: the DAG's time zone.
    """
    named = conf.get("business_date") if isinstance(conf, dict) else None
    if named is not None:
        return str(named) == day.isoformat()
    if run_id in known:
        return True
    return begins is not None and begins.astimezone(ZoneInfo(zone)).date() == day


def _about(row: Any, day: date, known: Collection[str], zone: str) -> bool:
    conf = row.conf
    if isinstance(conf, (str, bytes)):
        try:
            conf = json.loads(conf)
        except ValueError:
            conf = None
    return is_about(row.run_id, conf, _instant(row.data_interval_start or row.logical_date), day, known, zone)


def _instant(value: Any) -> datetime | None:
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if value is None or not isinstance(value, datetime):
        return None
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def _timeouts(data: Any) -> dict[str, timedelta]:
    """Return timeouts from a serialised DAG; what cannot be read is left out."""
    return {name: timedelta(seconds=seconds) for name, seconds in _seconds(data)}


def _seconds(data: Any) -> Iterator[tuple[str, float]]:
    dag = data.get("dag", {}) if isinstance(data, dict) else {}
    for task in dag.get("tasks", ()):
        facts = task.get("__var", task) if isinstance(task, dict) else {}
        value = facts.get("execution_timeout")
        value = value.get("__var") if isinstance(value, dict) else value
        if isinstance(value, (int, float)) and facts.get("task_id"):
            yield str(facts["task_id"]), float(value)
