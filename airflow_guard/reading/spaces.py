"""Which operations a ledger knows, and which have keys on which dates: from the steps of an index, not from every row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from airflow_guard.reading.scope import dated
from airflow_guard.store import dialects

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from airflow_guard.reading.scope import Scope
    from airflow_guard.store.aliases import Name
    from airflow_guard.store.tables import Tables


# -- Which operations have keys on which dates: from the steps of an index, not from every row ---------------

MOST = 10_000


class Space(NamedTuple):
    """An operation and a business date."""

    business_date: date
    key_namespace: str
    operation: str


def spaces(
    scope: Scope, start: date | None = None, end: date | None = None, *, limit: int = MOST
) -> Sequence[Space]:
    """Return the operations and dates that have keys, newest first, whoever may read them.

    :param limit: at most so many.
    """
    e = scope.tables.execution
    where = dated(e.c.business_date, start, end)
    if scope.dialect == dialects.POSTGRES:
        found = _stepping(e, where)
    else:
        found = sa.select(e.c.business_date, e.c.key_namespace, e.c.operation).where(*where).distinct()
        found = found.order_by(e.c.business_date.desc(), e.c.key_namespace.desc(), e.c.operation.desc())
        # Left to itself, MariaDB reads the whole index instead of its steps.
        for name in ("mysql", "mariadb"):
            found = found.with_hint(e, f"FORCE INDEX ({scope.tables.prefix}execution_date)", name)
    return [Space(*row) for row in scope.rows(found.limit(limit))]


def _stepping(e: sa.Table, where: Sequence[sa.ColumnElement[bool]]) -> Any:
    """Return the steps for PostgreSQL, which reads every entry of an index for a DISTINCT: each leads to the next."""
    names = ("business_date", "key_namespace", "operation")
    order = [e.c[name].desc() for name in names]
    first = (
        sa.select(*(e.c[name] for name in names)).where(*where).order_by(*order).limit(1).subquery("first")
    )
    steps = sa.select(*(first.c[name] for name in names)).cte("steps", recursive=True)
    later = sa.tuple_(*(e.c[name] for name in names)) < sa.tuple_(*(steps.c[name] for name in names))
    following = (
        sa.select(*(e.c[name] for name in names))
        .where(later, *where)
        .order_by(*order)
        .limit(1)
        .lateral("following")
    )
    steps = steps.union_all(sa.select(*(following.c[name] for name in names)).select_from(
        steps.join(following, sa.true())
    ))  # fmt: skip
    return sa.select(*(steps.c[name] for name in names))


# -- Which operations a ledger knows: asked where a name was not found, to say what may have been meant ------


def known_names(connection: sa.Connection, tables: Tables) -> list[Name]:
    """Return namespace and operation of all that the ledger has seen: tries, checks, adopted keys and what was
    purged.

    It reads adopted keys too, which has no index: for messages, not for what runs often.
    """
    e = tables.execution
    sources = [
        sa.select(table.c.key_namespace, table.c.operation).distinct()
        for table in (tables.task_run, tables.reconciliation, tables.horizon)
    ]
    sources.append(sa.select(e.c.key_namespace, e.c.operation).where(e.c.task_run_id.is_(None)).distinct())
    return sorted({(row[0], row[1]) for source in sources for row in connection.execute(source)})


def known_dags(connection: sa.Connection, tables: Tables) -> list[str]:
    """Return the DAGs and namespaces that the ledger has seen. As slow as :func:`known_names`."""
    run = tables.task_run
    dags = connection.execute(sa.select(run.c.dag_id).distinct()).scalars()
    return sorted({*dags, *(namespace for namespace, _ in known_names(connection, tables))})


def is_known(connection: sa.Connection, tables: Tables, name: Name) -> bool:
    """Return whether the ledger has seen an operation, also if it has no keys any more."""
    for table in (tables.task_run, tables.execution, tables.horizon, tables.reconciliation):
        found = sa.select(sa.literal(1)).where(table.c.key_namespace == name[0], table.c.operation == name[1])
        if connection.execute(found.limit(1)).first() is not None:
            return True
    return False


# -- Up to which date the keys of an operation were purged ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class Horizon:
    """Up to which business date the keys of an operation were purged, and who said so."""

    name: Name
    until: date
    actor: str
    reason: str

    def describe(self) -> str:
        """Return it in words."""
        return f"{' / '.join(self.name)} was purged up to {self.until} by {self.actor} ({self.reason})"


def horizons(connection: sa.Connection, tables: Tables, dag: str, business_date: date) -> list[Horizon]:
    """Return the horizons of a DAG's operations that a date lies at or before.

    :param dag: a DAG or key namespace; the tries of a purged date are gone, so those that are left say what it used.
    """
    h, run = tables.horizon, tables.task_run
    used = sa.select(run.c.key_namespace).where(run.c.dag_id == dag).distinct()
    namespaces = {dag, *connection.execute(used).scalars()}
    found = sa.select(h).where(h.c.key_namespace.in_(sorted(namespaces)), h.c.business_date >= business_date)
    return [
        Horizon((row.key_namespace, row.operation), row.business_date, row.actor, row.reason)
        for row in connection.execute(found.order_by(h.c.key_namespace, h.c.operation))
    ]
