"""Fixtures of the contract suite: one ledger for each kind of database, and a key space for each test."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.contract.attempts import SPACE, new_ledger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_guard.core.keys import KeySpace
    from airflow_guard.store.ledger import Ledger
    from tests.databases import DatabaseServer, DatabaseUnderTest

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def ledgers_of_the_module() -> Iterator[dict[str, tuple[DatabaseUnderTest, Ledger]]]:
    """The ledgers that the tests of a module share, by kind of database."""
    opened: dict[str, tuple[DatabaseUnderTest, Ledger]] = {}
    yield opened
    for database, ledger in opened.values():
        ledger.database.dispose()
        database.server.drop(database)


@pytest.fixture
def shared_database(
    database_server: DatabaseServer, ledgers_of_the_module: dict[str, tuple[DatabaseUnderTest, Ledger]]
) -> DatabaseUnderTest:
    """The database of the shared ledger."""
    if database_server.kind not in ledgers_of_the_module:
        database = database_server.fresh()
        ledgers_of_the_module[database_server.kind] = (database, new_ledger(database.url))
    return ledgers_of_the_module[database_server.kind][0]


@pytest.fixture
def shared_ledger(
    shared_database: DatabaseUnderTest, ledgers_of_the_module: dict[str, tuple[DatabaseUnderTest, Ledger]]
) -> Ledger:
    """A migrated ledger that other tests of the module use too: keep to the keys of ``space``."""
    return ledgers_of_the_module[shared_database.kind][1]


@pytest.fixture
def space() -> KeySpace:
    """A key space that no other test has."""
    return replace(SPACE, operation=f"operation_{next(_numbers)}")
