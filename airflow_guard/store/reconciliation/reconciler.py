"""Reconcile two sides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import sqlalchemy as sa

    from airflow_guard.core.reconciliation.comparison import Comparison
    from airflow_guard.core.reconciliation.rules import Rules
    from airflow_guard.core.reconciliation.sides import Side

LOCK_TIMEOUT_S = 30
"""How long a scan waits for a table that is locked (a migration, TRUNCATE) before it counts as busy."""


def reconcile(
    source: Side,
    target: Side,
    rules: Rules,
    *,
    source_engine: sa.Engine,
    target_engine: sa.Engine,
    parameters: Mapping[str, Any] | None = None,
    lock_timeout_s: int = LOCK_TIMEOUT_S,
) -> Comparison:
    """Read both sides at once, compare their control totals, and drill down to documents where they differ.

    One scan a side; each side is read in one snapshot where its database can (PostgreSQL, InnoDB, SQLite), and both in
    the same one if they are in one database. Nothing is written.

    :param source_engine: SQLAlchemy engine of the source's database. It needs one free connection.
    :param target_engine: the target's; may be the same one, with two free connections.
    :param parameters: values for both sides (``business_date``), used where a side names them; a side's own
        ``parameters`` win.
    :param lock_timeout_s: seconds to wait for a locked table.
    :raises ConfigurationError: sides or rules that cannot work: names, several currencies, columns whose types cannot
        be compared, more than ``MAX_GROUPS`` groups. No retry helps.
    :raises SideInvalid: a database refused a statement: unknown table or column, a syntax error, no permission. No
        retry helps.
    :raises AmountError: an amount that is not an exact number. No retry helps.
    :raises SideUnavailable: a database is down, went away, or a lock was not free in time. A retry helps.
    """
    raise NotImplementedError
