"""What was done under other keys: other shapes of a DAG's keys, and the documents of one, for the key-drift check."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.keys import DATELESS
from airflow_guard.core.states import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_guard.core.keys import KeyShape, KeySpace
    from airflow_guard.store.database import LedgerDatabase

_SETTLED = (
    State.COMPLETED.value,
    State.IN_PROGRESS.value,
    State.IN_DOUBT.value,
    State.REJECTED.value,
    State.DROPPED.value,
)
_NAMED = 5
_NEAR = 45
"""Within so many days of a date its neighbours are looked for: a month and what its end may move by."""


class Overlap:
    """Reads what was done under other keys than those that are asked for now."""

    def __init__(self, database: LedgerDatabase) -> None:
        self._db = database

    def other_shapes(self, dag_id: str, business_date: date, shape: str) -> list[Any]:
        """Return distinct (task_id, key_namespace, operation, cycle, key_shape) of tries of this DAG and date
        under another shape that did something."""
        run = self._db.tables.task_run
        columns = (run.c.task_id, run.c.key_namespace, run.c.operation, run.c.cycle, run.c.key_shape)
        found = (
            sa.select(*columns)
            .where(
                run.c.business_date == business_date,
                run.c.dag_id == dag_id,
                run.c.key_shape != shape,
                run.c.mode == "enforce",
            )
            .distinct()
        )
        return list(self._db.read(lambda connection: connection.execute(found).all()))

    def dateless_shapes(self, dag_id: str, shape: str) -> list[Any]:
        """Return the same of all tries of this DAG whose keys hold once per document, on whatever date: one of each
        shape, in as many steps as there are shapes."""
        run = self._db.tables.task_run
        columns = (
            run.c.task_id,
            run.c.key_namespace,
            run.c.operation,
            run.c.cycle,
            run.c.key_shape,
            run.c.mode,
        )
        after = (
            sa.select(*columns)
            .where(
                run.c.dag_id == dag_id, run.c.key_date == DATELESS, run.c.key_shape > sa.bindparam("after")
            )
            .order_by(run.c.key_shape)
            .limit(1)
        )

        def look(connection: sa.Connection) -> list[Any]:
            found, last = [], ""
            while (row := connection.execute(after, {"after": last}).first()) is not None:
                found.append(row)
                last = row.key_shape
            return found

        rows = self._db.read(look)
        return [row for row in rows if row.key_shape != shape and row.mode == "enforce"]

    def neighbours(self, dag_id: str, business_date: date, shape: KeyShape) -> list[Any]:
        """Return distinct (business_date, date_detail, own_at) of this operation's tries under another shape, on the
        nearest dates before and after that have some: the same names, dated by another rule."""
        run = self._db.tables.task_run
        mine = (run.c.dag_id == dag_id, run.c.key_shape.like(f"{shape.names}/%"))
        least, most = (date.fromordinal(max(1, business_date.toordinal() + days)) for days in (-_NEAR, _NEAR))
        before = sa.select(sa.func.max(run.c.key_date)).where(
            *mine, run.c.key_date < business_date, run.c.key_date >= least
        )
        after = sa.select(sa.func.min(run.c.key_date)).where(
            *mine, run.c.key_date > business_date, run.c.key_date <= most
        )
        found = (
            sa.select(run.c.business_date, run.c.date_detail, run.c.own_at)
            .where(*mine, run.c.key_shape != shape.text, run.c.mode == "enforce", run.c.key_date != DATELESS)
            .where(run.c.own_at.is_not(None))
            .distinct()
        )

        def look(connection: sa.Connection) -> list[Any]:
            dates = [
                day for each in (before, after) if (day := connection.execute(each).scalar()) is not None
            ]
            return list(connection.execute(found.where(run.c.key_date.in_(dates))).all()) if dates else []

        return self._db.read(look)

    def done_under(
        self,
        key: tuple[str, str],
        business_date: date,
        documents: Sequence[str] | None,
        shape: str | None,
    ) -> list[str | None]:
        """Return documents that are done, or may be, for a business date.

        :param key: key namespace and operation.
        :param documents: only these; ``None``: any (one side names the run as a whole, so everything overlaps).
        :param shape: only of tries whose keys have this shape.
        :return: at most five.
        """
        e = self._db.tables.execution
        found = self._of_shape(shape).where(
            e.c.business_date == business_date, e.c.key_namespace == key[0], e.c.operation == key[1]
        )
        if documents is not None:
            found = found.where(sa.or_(e.c.document.is_(None), e.c.document.in_(documents)))
        return [row.document for row in self._db.read(lambda connection: connection.execute(found).all())]

    def done_once(self, space: KeySpace, shape: str | None, documents: Sequence[str]) -> list[str | None]:
        """Return documents that are done, or may be, on whatever date.

        :param space: of those keys, which hold once per document.
        :return: at most five.
        """
        e, hasher = self._db.tables.execution, space.hasher()
        found = self._of_shape(shape).where(
            e.c.key_date == space.key_date, e.c.key_hash.in_([hasher.key_hash(name) for name in documents])
        )
        return [row.document for row in self._db.read(lambda connection: connection.execute(found).all())]

    def _of_shape(self, shape: str | None) -> sa.Select[tuple[str | None]]:
        e, run = self._db.tables.execution, self._db.tables.task_run
        found = sa.select(e.c.document).where(e.c.state.in_(_SETTLED)).limit(_NAMED)
        if shape is None:
            return found
        return found.join(run, run.c.id == e.c.task_run_id).where(run.c.key_shape == shape)
