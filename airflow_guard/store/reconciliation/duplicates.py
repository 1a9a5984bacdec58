"""Find keys that occur more than once on one side."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.errors import ConfigurationError
from airflow_guard.core.reconciliation.amounts import amount_of
from airflow_guard.core.reconciliation.breaks import Break, BreakType
from airflow_guard.core.reconciliation.comparison import DuplicateCheck, Reading
from airflow_guard.core.reconciliation.matching import sortable
from airflow_guard.store import dialects
from airflow_guard.store.reconciliation.columns import Kind
from airflow_guard.store.reconciliation.drilldown import null_keys, shown_key
from airflow_guard.store.reconciliation.expressions import expressions_for
from airflow_guard.store.reconciliation.fetching import decoded
from airflow_guard.store.reconciliation.plan import plan, readable
from airflow_guard.store.reconciliation.rows import SideRows
from airflow_guard.store.reconciliation.scan import Scanned, scan
from airflow_guard.store.reconciliation.session import LOCK_TIMEOUT_S, SideSession

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_guard.core.reconciliation.rules import Rules
    from airflow_guard.core.reconciliation.sides import Side
    from airflow_guard.store.reconciliation.plan import Readable


def duplicates_in(rows: SideRows, limit: int, connection: sa.Connection) -> list[Break]:
    """Return ``duplicate_in_source`` for keys that occur more than once in a group, at most ``limit``."""
    one, expressions = rows.readable, rows.expressions
    groups, keys, amounts = rows.groups()[: len(one.groups)], rows.keys(), rows.amounts()[:1]
    inner = one.select(*groups, *keys, *amounts).where(*(column.is_not(None) for column in one.keys))
    each = inner.subquery("r")
    by = [column for column in each.c if str(column.key)[0] in "gk"]
    total = expressions.total(each.c.a0) if amounts else sa.null()
    statement = (
        sa.select(*by, sa.func.count(), total)
        .group_by(*by)
        .having(sa.func.count() > sa.literal_column("1"))
        .limit(limit)
    )
    name = str(one.amounts[0].key) if amounts else ""
    found = []
    for row in connection.execute(statement):
        group, key, (records, sum_of_it) = row[: len(groups)], row[len(groups) : -2], row[-2:]
        texts = tuple(
            decoded(value) if agreed.kind is not Kind.INTEGER else int(value)
            for value, agreed in zip(key, rows.plan.keys, strict=True)
        )
        amount = None if sum_of_it is None else amount_of(sum_of_it, name, inexact=expressions.inexact)
        found.append(
            Break(
                BreakType.DUPLICATE_IN_SOURCE,
                shown_key(rows.plan, texts),
                tuple(map(decoded, group)),
                source_amount=amount,
                source_records=int(records),
            )
        )
    return found


def is_unique(one: Readable, dialect: str, connection: sa.Connection) -> bool:
    """Return whether the database itself guarantees that no key occurs twice; ``False`` if that cannot be told."""
    table = one.rows.element if isinstance(one.rows, sa.Alias) else None
    if not isinstance(table, sa.TableClause):
        return False
    keys = {str(column.key) for column in one.keys}
    if (
        dialect == dialects.POSTGRES
        and connection.execute(_INHERITED, {"name": _quoted(connection, table)}).scalar()
    ):
        return False
    inspector = sa.inspect(connection)
    try:
        constraints = [inspector.get_pk_constraint(table.name, table.schema)["constrained_columns"]]
        constraints += [
            each["column_names"] for each in inspector.get_unique_constraints(table.name, table.schema)
        ]
    except (sa.exc.NoSuchTableError, NotImplementedError):
        return False  # a view, or a dialect that cannot tell
    return any(names and keys >= set(names) for names in constraints)


# A constraint of a parent table does not hold across the tables that inherit from it.
_INHERITED = sa.text("SELECT relkind = 'r' AND relhassubclass FROM pg_class WHERE oid = to_regclass(:name)")


def _quoted(connection: sa.Connection, table: sa.TableClause) -> str:
    preparer: Any = connection.dialect.identifier_preparer
    return str(preparer.format_table(table))


def find_duplicates(
    side: Side,
    rules: Rules,
    *,
    engine: sa.Engine,
    parameters: Mapping[str, Any] | None = None,
    lock_timeout_s: int = LOCK_TIMEOUT_S,
) -> DuplicateCheck:
    """Name the keys that occur more than once in a group, and count the rows without key.

    :param side: needs ``key``.
    :param rules: of which ``group_by`` and ``max_breaks`` count.
    :param engine: SQLAlchemy engine of the side's database.
    :param parameters: as for :func:`reconcile`.
    :raises ConfigurationError: no key, or names that are none.
    :raises SideInvalid: as for :func:`reconcile`; no retry helps.
    :raises AmountError: as for :func:`reconcile`; no retry helps.
    :raises SideUnavailable: a retry helps.
    """
    if not side.keys:
        raise ConfigurationError("Duplicates are found by key=: name the column that identifies a document.")
    session = SideSession(side.describe(), engine, lock_timeout_s)
    try:
        read_at = session.open()
        one = readable(session, side, rules, parameters or {})
        agreed = plan(one, one, rules, native=session.dialect == dialects.POSTGRES)
        rows = SideRows(one, agreed, expressions_for(session.dialect, inexact=rules.inexact))
        scanned = session.run(partial(scan, rows))
        breaks = [
            *null_keys((scanned, Scanned())),
            *session.run(partial(duplicates_in, rows, rules.max_breaks + 1)),
        ]
    finally:
        session.close()
    named = sorted(breaks, key=lambda each: (sortable(each.group), each.key))
    reading = Reading(side.describe(), read_at, scanned.totals)
    return DuplicateCheck(reading, tuple(named[: rules.max_breaks]), capped=len(named) > rules.max_breaks)
