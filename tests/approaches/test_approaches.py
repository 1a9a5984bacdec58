"""Each approach under each fault, in real processes, on a real database and a real Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.approaches.faults import FAULTS, PAYMENT, Scene
from tests.approaches.findings import FINDINGS, finding
from tests.approaches.jobs import APPROACHES
from tests.approaches.place import Place
from tests.approaches.redis_server import RedisNotInstalled, RedisServer
from tests.databases import databases, not_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.chaos.books import Books
    from tests.processes import Worker

# What gets through does not depend on the make of the database.
pytestmark = databases("postgres_embedded")
# What a restored backup takes from the books, and not from the bank.
_ONLY_ROWS_ARE_GONE = {"restored"}


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A Redis for these tests alone."""
    try:
        server = RedisServer()
    except RedisNotInstalled as error:
        not_run(str(error))
    yield server
    server.close()


@pytest.fixture
def place(books: Books, redis_server: RedisServer) -> Place:
    """A job of its own."""
    place = Place(books.url, books.dag_id, books.receiver.path, redis_server.socket)
    place.create()
    return place


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("approach", APPROACHES)
def test_what_comes_of_a_fault(
    approach: str, fault: str, place: Place, start_worker: Callable[..., Worker]
) -> None:
    scene = Scene(approach, place, start_worker)

    FAULTS[fault](scene)

    effects = scene.approach.effects(PAYMENT[0])
    assert finding(effects, asked=scene.asked) == FINDINGS[approach][fault], (effects, scene.ends)
    if place.rows(PAYMENT[0]) and fault not in _ONLY_ROWS_ARE_GONE:
        assert place.rows(PAYMENT[0]) == place.calls(PAYMENT[0]), "rows fare as calls do"


def test_there_is_a_finding_for_everything_and_for_nothing_else() -> None:
    assert {name: set(found) for name, found in FINDINGS.items()} == {
        name: set(FAULTS) for name in APPROACHES
    }
