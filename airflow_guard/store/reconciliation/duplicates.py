"""Find keys that occur more than once on one side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_guard.store.reconciliation.reconciler import LOCK_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    import sqlalchemy as sa

    from airflow_guard.core.reconciliation.comparison import DuplicateCheck
    from airflow_guard.core.reconciliation.rules import Rules
    from airflow_guard.core.reconciliation.sides import Side


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
    raise NotImplementedError
