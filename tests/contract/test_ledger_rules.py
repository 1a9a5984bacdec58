"""The rules that the ledger's database holds by itself, whoever writes to it."""

from __future__ import annotations

from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from airflow_guard.core.states import PHASES_OF_STATE, FollowUp, Phase, State
from airflow_guard.store.database import LedgerDatabase
from airflow_guard.store.dialects import error_code
from tests.databases import POSTGRES, DatabaseUnderTest, databases
from tests.ledgers import migrated

if TYPE_CHECKING:
    from collections.abc import Iterator

MOMENT = datetime(2025, 3, 31, 12, 0, 0, 123456)  # noqa: DTZ001 - the columns hold UTC without saying so


@pytest.fixture
def ledger(database: DatabaseUnderTest) -> Iterator[LedgerDatabase]:
    """A migrated ledger."""
    ledger = LedgerDatabase(database.url)
    migrated(ledger)
    yield ledger
    ledger.dispose()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE guard_event SET reason = 'another'",
        "UPDATE guard_event SET actor = actor",
        "DELETE FROM guard_event",
    ],
    ids=["update", "update-same", "delete"],
)
def test_events_are_append_only(ledger: LedgerDatabase, change: str) -> None:
    assert_events_stand(ledger, change)


@databases(*POSTGRES)
def test_events_cannot_be_truncated(ledger: LedgerDatabase) -> None:
    assert_events_stand(ledger, "TRUNCATE guard_event")


@databases("sqlite", "mariadb")
def test_events_cannot_be_replaced(ledger: LedgerDatabase) -> None:
    assert_events_stand(
        ledger,
        "REPLACE INTO guard_event (id, at, kind, key_text, actor, reason) "
        "VALUES (1, '2025-01-01 00:00:00', 'doubt', 'k', 'mallory', 'never was')",
    )


def test_every_state_takes_its_phases_and_no_other(ledger: LedgerDatabase) -> None:
    for state in State:
        for phase in Phase:
            finished_at = None if state in {State.IN_PROGRESS, State.IN_DOUBT} else MOMENT
            row = {"state": state, "phase": phase, "finished_at": finished_at}
            assert inserted(ledger, **row) == (phase in PHASES_OF_STATE[state]), row


@pytest.mark.parametrize(
    "row",
    [
        {"state": "completed", "phase": "begun", "finished_at": MOMENT},
        {"state": "unheard_of", "phase": "none", "finished_at": MOMENT},
        {"state": "in_progress", "phase": "unheard_of"},
        {"state": "in_progress", "phase": "none", "finished_at": MOMENT},
        {"state": "in_doubt", "phase": "begun", "finished_at": MOMENT},
        {"state": "completed", "phase": "done", "finished_at": None},
        {"state": "failed", "phase": "none", "finished_at": MOMENT, "follow_up": FollowUp.PENDING},
        {"state": "completed", "phase": "done", "finished_at": MOMENT, "follow_up": "odd"},
        {"state": "in_progress", "phase": "none", "attempt": -1},
        {"state": "in_progress", "phase": "none", "generation": 0},
    ],
    ids=lambda row: "-".join(str(value) for value in row.values() if value != MOMENT),
)
def test_a_row_that_contradicts_itself_is_refused(ledger: LedgerDatabase, row: dict[str, Any]) -> None:
    assert not inserted(ledger, **row)


def assert_events_stand(ledger: LedgerDatabase, change: str) -> None:
    """Assert that the database refuses a change of an event, and takes the next event all the same."""
    event = {"at": MOMENT, "kind": "doubt", "key_text": "k", "actor": "ada", "reason": "killed"}
    with ledger.engine.begin() as connection:
        connection.execute(ledger.tables.event.insert(), event)
    with pytest.raises(DBAPIError, match="append-only"), ledger.engine.begin() as connection:
        connection.exec_driver_sql(change)
    with ledger.engine.begin() as connection:
        connection.execute(ledger.tables.event.insert(), event)
        kept = connection.execute(sa.select(ledger.tables.event.c.reason)).scalars().all()
    assert kept == ["killed", "killed"]


def inserted(ledger: LedgerDatabase, **values: Any) -> bool:
    """Try to insert an execution, and take it back; return whether the database let it in."""
    row: dict[str, Any] = {
        "key_date": date(2025, 3, 31), "key_hash": "a" * 32, "normaliser": 1, "key_namespace": "statements",
        "operation": "post", "business_date": date(2025, 3, 31), "cycle": "", "document": "INV-1",
        "deployment": "prod", "follow_up": "none", "attempt": 1, "generation": 1, "owner_token": "b" * 32,
        "idempotency_key": "c" * 32, "claimed_at": MOMENT,
    } | values  # fmt: skip
    with ledger.engine.connect() as connection:
        try:
            connection.execute(ledger.tables.execution.insert(), row)
        except IntegrityError:
            return False
        except OperationalError as error:
            # What PyMySQL makes of a CHECK: 4025 is MariaDB's, 3819 MySQL's.
            if error_code(error) in {"4025", "3819"}:
                return False
            raise
        return (
            connection.execute(sa.select(sa.func.count()).select_from(ledger.tables.execution)).scalar() == 1
        )
