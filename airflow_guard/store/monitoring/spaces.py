"""Which operations have keys on which dates: from the steps of an index, not from every row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from airflow_guard.store import dialects
from airflow_guard.store.monitoring.scope import dated

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from airflow_guard.store.monitoring.scope import Scope

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
