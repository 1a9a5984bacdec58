"""A claim takes a key with all that belongs to it, or not at all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from airflow_guard.core.content import fingerprint
from airflow_guard.core.errors import OwnershipLost
from airflow_guard.core.states import State
from airflow_guard.store.changes import Ownership
from tests.contract.attempts import attempt, new_ledger, opened
from tests.databases import databases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_guard.store.ledger import Ledger
    from tests.databases import DatabaseUnderTest

HOLDS_BACK = """
CREATE FUNCTION held_back() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN IF NEW.{column} IS DISTINCT FROM OLD.{column} THEN RETURN NULL; END IF; RETURN NEW; END';
CREATE TRIGGER held_back BEFORE UPDATE ON guard_execution FOR EACH ROW EXECUTE FUNCTION held_back();
"""


@pytest.fixture
def ledger(database: DatabaseUnderTest) -> Iterator[Ledger]:
    ledger = new_ledger(database.url)
    yield ledger
    ledger.database.dispose()


@databases("postgres_embedded")
@pytest.mark.parametrize("column", ["fingerprint", "idempotency_key"])
def test_a_key_that_does_not_take_its_new_content_is_not_claimed(ledger: Ledger, column: str) -> None:
    """A trigger of somebody's holds the write back in silence: the old content must not stand for the new effect."""
    first = attempt(ledger, "INV-1").begin()
    ledger.fail(first.own, first.hashes, "refused", begun=True)
    before = first.row()
    old, new = fingerprint({"amount": 10}), fingerprint({"amount": 12})
    with ledger.database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE guard_execution SET fingerprint = %s", (old,))
        connection.exec_driver_sql(HOLDS_BACK.format(column=column))
    changed = replace(first.documents[0], fingerprint=new)
    other = Ownership.new(first.space.key_date, opened(ledger, first.space), "other")
    with pytest.raises(OwnershipLost, match="did not take its new content"):
        ledger.claim(other, first.space, [], [changed])
    row = first.row()
    assert (row.state, row.attempt, row.owner_token) == (State.FAILED, before.attempt, before.owner_token)
    assert (row.fingerprint, row.idempotency_key) == (old, before.idempotency_key)
