"""The fixture ``books`` for tests here and elsewhere."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from tests.chaos.books import Books, Receiver
from tests.databases import databases
from tests.ledgers import migrated

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.databases import DatabaseKind, DatabaseServer, DatabaseUnderTest

ONE_OF_EACH = databases("sqlite", "postgres_embedded", "mariadb")
"""For what does not depend on the version of a server: the statements of the two PostgreSQL servers are the same."""
_numbers = itertools.count(1)
_ledgers = pytest.StashKey[dict[str, "DatabaseUnderTest"]]()


@pytest.fixture
def books(
    database_kind: DatabaseKind,
    database_server: DatabaseServer,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> Iterator[Books]:
    """A ledger that other tests use too, with a key namespace and a receiver for this test."""
    shared = request.session.stash.setdefault(_ledgers, {})
    receiver = Receiver(str(tmp_path / "received.jsonl"))
    dag_id = f"statements_{next(_numbers)}"
    first = database_kind not in shared
    if first:
        shared[database_kind] = database_server.fresh()
        request.session.addfinalizer(lambda: database_server.drop(shared.pop(database_kind)))
    books = Books(shared[database_kind].url, dag_id, receiver)
    if first:
        migrated(books.database)
        books.create_posting()
    yield books
    books.close()
