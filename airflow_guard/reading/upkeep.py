"""What the ledger itself wants of its operator: a fail-over to close, partitions to add."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_guard.core.alerts.facts import AlertFacts, AlertKind, Step
from airflow_guard.core.commands import add_partitions_command, close_fail_over_command
from airflow_guard.store.fail_overs import listed
from airflow_guard.store.partitions import is_partitioned, next_month, partitions_of, today

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import date, datetime

    import sqlalchemy as sa

    from airflow_guard.store.database import LedgerDatabase


def open_fail_overs(
    database: LedgerDatabase, recorded_until: datetime, ledger: str | None = None
) -> Iterator[AlertFacts]:
    """Yield fail-overs that nobody has closed.

    :param recorded_until: those that were recorded by then, by the database's clock; aware.
    """
    for each in listed(database):
        if each.recorded_at <= recorded_until:
            yield AlertFacts(
                kind=AlertKind.FAIL_OVER,
                happened=f"A fail-over that lost commits since {each.lost_since:%Y-%m-%d %H:%M:%S} UTC was recorded by "
                f"{each.actor}, and nobody has closed it. Until then, keys that the ledger does not know become doubts.",
                since=each.recorded_at,
                steps=(
                    Step(
                        "Compare with the receivers since then. When all is known:",
                        close_fail_over_command(ledger=ledger),
                    ),
                ),
            )


def partitions_ahead(database: LedgerDatabase, ledger: str | None = None) -> Iterator[AlertFacts]:
    """Yield once if the ledger is partitioned and the next month has no partition."""
    month = database.read(lambda connection: _month_without(connection, database.tables.execution))
    if month is not None:
        yield AlertFacts(
            kind=AlertKind.PARTITIONS,
            happened=f"The ledger has no partition for {month:%Y-%m}. Keys of that month will be in the default one, which "
            "is locked when they are moved.",
            steps=(Step("As the owner of the tables, add months:", add_partitions_command(ledger=ledger)),),
        )


def _month_without(connection: sa.Connection, execution: sa.Table) -> date | None:
    """Return the first day of this month or the next, if it has no partition."""
    if not is_partitioned(connection, execution):
        return None
    partitions = partitions_of(connection, execution)
    this = today(connection).replace(day=1)
    for first in (this, next_month(this)):
        if not any(each.holds(first) for each in partitions):
            return first
    return None
