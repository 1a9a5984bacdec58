"""Whose rows a caller may see, as conditions of statements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.reading.lists import COUNTED, LARGEST_LIMIT, Page
from airflow_guard.store import aliases
from airflow_guard.store.task_runs import identity_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import date

    from airflow_guard.core.guard import TaskIdentity
    from airflow_guard.store.ledger import Ledger
    from airflow_guard.store.tables import Tables

Readable = frozenset[str] | None
"""The DAGs that a caller may read; ``None``: all."""
DEFAULT_DATES = 31


class NotThere(Exception):
    """There is nothing of that kind, or the caller may not read it: nobody can tell which."""


@dataclass(frozen=True, slots=True)
class Scope:
    """One ledger in one transaction, as a caller may see it.

    :param dag_id: only this DAG.
    """

    ledger: Ledger
    connection: sa.Connection
    readable: Readable
    dag_id: str | None = None

    def of(self, dag_id: str | None) -> Scope:
        """Return the scope of one DAG within this one; of all of it for ``None``."""
        return self if dag_id is None else Scope(self.ledger, self.connection, self.readable, dag_id)

    @property
    def tables(self) -> Tables:
        """The ledger's tables."""
        return self.ledger.database.tables

    @property
    def dialect(self) -> str:
        """``postgresql``, ``mysql`` or ``sqlite``."""
        return self.ledger.database.dialect

    @property
    def now(self) -> dict[aliases.Name, aliases.Name]:
        """The names that renamed operations have now, by the names that they had."""
        return aliases.renamed(self.connection, self.tables)

    @property
    def everything(self) -> bool:
        """Whether nothing has to be left out."""
        return self.readable is None and self.dag_id is None

    def allows(self, dag_id: str) -> bool:
        """Return whether rows of a DAG are in this scope."""
        return (self.readable is None or dag_id in self.readable) and self.dag_id in (None, dag_id)

    def where(self, dag_id: sa.ColumnElement[Any]) -> list[sa.ColumnElement[bool]]:
        """Return the conditions of a column that holds the DAG of a row."""
        if self.dag_id is not None:
            return [dag_id == self.dag_id if self.allows(self.dag_id) else sa.false()]
        return [] if self.readable is None else [dag_id.in_(sorted(self.readable))]

    def visible(self, dag_id: sa.ColumnElement[Any]) -> list[sa.ColumnElement[bool]]:
        """Return the same conditions for a computed DAG, so that a list is read in its order and stops where it is full.

        PostgreSQL's planner holds a comparison of what is computed to keep hardly any row, and then sorts all of them;
        of ``>`` it expects a third.
        """
        return [sa.case((condition, 1), else_=0) > 0 for condition in self.where(dag_id)]

    def dag_of_key(self, execution: Any) -> sa.ColumnElement[str]:
        """Return the DAG of a key's last try, or of its namespace if no task has tried it."""
        run = self.tables.task_run.alias("own_run")
        tried = sa.select(run.c.dag_id).where(run.c.id == execution.c.task_run_id)
        return sa.func.coalesce(tried.scalar_subquery(), execution.c.key_namespace)

    def dag_of_break(self, breaks: Any) -> sa.ColumnElement[str]:
        """Return the DAG of the check that saw a break last."""
        check = self.tables.reconciliation.alias("own_check")
        seen = sa.select(check.c.dag_id).where(check.c.id == breaks.c.seen_by_id)
        return sa.func.coalesce(seen.scalar_subquery(), breaks.c.key_namespace)

    def namespaces(self, start: date | None, end: date | None) -> list[str]:
        """Return the key namespaces that the DAGs' tasks have used: an index has them, and it has no DAG."""
        run, now = self.tables.task_run, self.now
        used = sa.select(run.c.key_namespace, run.c.operation).distinct()
        used = used.where(*dated(run.c.business_date, start, end), *self.where(run.c.dag_id))
        names = [(row[0], row[1]) for row in self.rows(used)]
        own = set(self.readable or ()) if self.dag_id is None else {self.dag_id}
        return sorted(own | {name[0] for name in names} | {now[name][0] for name in names if name in now})

    def rows(self, statement: Any) -> Sequence[Any]:
        """Return the rows of a statement."""
        return self.connection.execute(statement).all()

    def page(
        self, found: sa.Select[Any], indexed: Sequence[Any], rest: Sequence[Any], limit: int, offset: int
    ) -> tuple[Sequence[Any], Page[Any]]:
        """Return a part of what is found, and the empty page that it belongs to.

        :param indexed: the order, as far as an index has it. What is counted is read in it too, so that the database
            stops where enough is counted.
        :param rest: what leaves nothing open.
        """
        limit, offset = min(max(limit, 1), LARGEST_LIMIT), min(max(offset, 0), COUNTED)
        each = found.with_only_columns(sa.literal(1), maintain_column_froms=True).order_by(*indexed)
        counted = sa.select(sa.func.count()).select_from(each.limit(COUNTED + 1).subquery("counted"))
        total = int(self.connection.execute(counted).scalar_one())
        wanted = found.order_by(*indexed, *rest).limit(limit).offset(offset)
        rows = self.rows(wanted) if total > offset else []
        return rows, Page([], total if total <= COUNTED else None, limit, offset)

    def people(self, ids: Iterable[int | None]) -> dict[int, TaskIdentity]:
        """Return who task tries were, by id."""
        run, wanted = self.tables.task_run, sorted({each for each in ids if each is not None})
        found: dict[int, TaskIdentity] = {}
        for start in range(0, len(wanted), 1000):
            some = sa.select(run).where(run.c.id.in_(wanted[start : start + 1000]))
            found |= {row.id: identity_of(row) for row in self.rows(some)}
        return found

    def dates(
        self, start: date | None, end: date | None, column: Any, dag_id: Any
    ) -> tuple[date | None, date | None]:
        """Return the range of dates to look at: as given, or the newest dates that the table has.

        :param column: the business date.
        :param dag_id: the DAG of a row.
        """
        if start is not None or end is not None:
            return start, end
        newest = (
            sa.select(column)
            .where(*self.where(dag_id))
            .distinct()
            .order_by(column.desc())
            .limit(DEFAULT_DATES)
        )
        found = self.connection.execute(newest).scalars().all()
        return (min(found), max(found)) if found else (None, None)


def dated(column: Any, start: date | None, end: date | None) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of a range of dates, both ends inclusive."""
    if start is not None and start == end:
        return [column == start]
    return [each for each in (None if start is None else column >= start, None if end is None else column <= end)
            if each is not None]  # fmt: skip


def equal(*pairs: tuple[Any, Any]) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of the columns for which a value is given."""
    return [column == value for column, value in pairs if value is not None]
