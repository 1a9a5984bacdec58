"""Authorisations of reruns in the ledger: all or none, of one attempt, used once."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard.acts.renaming import rename
from airflow_guard.acts.reruns import authorise
from airflow_guard.core.errors import ResolutionError, StaleResolution
from airflow_guard.core.states import State
from airflow_guard.store.changes import Ownership
from airflow_guard.store.resolution import Judged
from tests.contract.attempts import (
    SPACE,
    Attempt,
    attempt,
    documents_of,
    events_of,
    held_before_commit,
    in_thread,
    new_ledger,
    opened,
)
from tests.databases import databases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_guard.store.ledger import Ledger
    from tests.databases import DatabaseUnderTest

DAY = timedelta(days=1)
pytestmark = databases("sqlite")
ON_SERVERS = databases("postgres_embedded", "mariadb")
OF_EACH = databases("sqlite", "postgres_embedded", "mariadb")


@pytest.fixture
def ledger(database: DatabaseUnderTest) -> Iterator[Ledger]:
    ledger = new_ledger(database.url)
    yield ledger
    ledger.database.dispose()


def judged(*attempts: Attempt) -> list[Judged]:
    return [Judged(each.space.key_date, key, each.own.token) for each in attempts for key in each.hashes]


def done(ledger: Ledger, name: str = "INV-1", result: str = '{"n":1}') -> Attempt:
    return attempt(ledger, name).begin().complete(result)


def authorised(ledger: Ledger, *attempts: Attempt, actor: str = "ada", **more: Any) -> list[Any]:
    return authorise(ledger, judged(*attempts), actor=actor, reason="wrong rate", expires=DAY, **more)


def claim(ledger: Ledger, name: str = "INV-1") -> bool:
    """Claim a document as a rerun, with a try of its own; return whether it was won."""
    own = Ownership.new(SPACE.key_date, opened(ledger), "task")
    return bool(ledger.claim(own, SPACE, [], [], reruns=documents_of(SPACE, name)))


@OF_EACH
def test_a_claim_uses_the_authorisation_once_and_keeps_the_old_result(ledger: Ledger) -> None:
    first = done(ledger)
    before = first.row()
    assert before.rerun is None
    assert not claim(ledger)
    (given,) = authorised(ledger, first)
    assert (given.generation, given.has_result) == (2, True)
    assert first.row().state is State.COMPLETED  # replayed until a claim comes
    assert claim(ledger)
    assert not claim(ledger)
    row = first.row()
    assert (row.state, row.generation, row.attempt, row.result, row.rerun) == (
        State.IN_PROGRESS,
        2,
        2,
        None,
        None,
    )
    assert row.idempotency_key != before.idempotency_key
    again = ledger.database.read(lambda c: ledger.reruns.of_claims(c, SPACE.key_date, {row.key_hash: 2}))
    assert again[row.key_hash].result == {"n": 1}
    assert again[row.key_hash].previous_idempotency_key == before.idempotency_key
    kinds = [(event.kind, event.actor) for event in events_of(ledger, SPACE.key_date, row.key_hash)]
    assert kinds == [("rerun_authorised", "ada"), ("rerun", "task")]


def test_all_are_authorised_or_none(ledger: Ledger) -> None:
    good, failed = done(ledger), attempt(ledger, "INV-2").begin().fail("refused")
    with pytest.raises(ResolutionError, match=r"INV-2 is failed.*Nothing was authorised"):
        authorised(ledger, good, failed)
    assert good.row().rerun is None
    assert authorised(ledger, good, dry_run=True)[0].key_hash == good.hashes[0]
    assert good.row().rerun is None
    authorised(ledger, good)
    with pytest.raises(ResolutionError, match="authorised already, by ada"):
        authorised(ledger, good, actor="bob")


@pytest.mark.parametrize("expires", [timedelta(0), timedelta(days=32)])
def test_how_long_it_holds_is_bounded(shared_ledger: Ledger, expires: timedelta) -> None:
    with pytest.raises(ResolutionError, match="31 days"):
        authorise(shared_ledger, [], actor="ada", reason="r", expires=expires)


def test_an_authorisation_is_of_the_attempt_that_was_looked_at(ledger: Ledger) -> None:
    first = done(ledger)
    look = judged(first)
    authorised(ledger, first)
    claim(ledger)
    with pytest.raises(StaleResolution, match="newer attempt"):
        authorise(ledger, look, actor="ada", reason="r", expires=DAY)


def test_what_is_over_is_not_used_and_can_be_authorised_again(ledger: Ledger) -> None:
    first = done(ledger)
    authorised(ledger, first)
    r = ledger.database.tables.rerun
    with ledger.database.engine.begin() as connection:
        connection.execute(sa.update(r).values(expires_at=r.c.authorised_at))
    assert first.row().rerun is None
    assert not claim(ledger)
    authorised(ledger, first)
    assert claim(ledger)


@ON_SERVERS
def test_two_claims_at_the_same_moment_share_no_authorisation(
    ledger: Ledger, database: DatabaseUnderTest
) -> None:
    first = done(ledger)
    authorised(ledger, first)
    run = opened(ledger)

    def use(other: Ledger) -> bool:
        own = Ownership(SPACE.key_date, "b" * 32, run, "task")
        return bool(other.claim(own, SPACE, [], [], reruns=documents_of(SPACE, "INV-1")))

    with held_before_commit(database, use) as (release, outcome):
        second = in_thread(lambda: claim(ledger))
        release()
        assert [outcome(), second()] == [True, False]
    assert first.row().attempt == 2


@ON_SERVERS
def test_a_claim_and_a_second_authorisation_of_the_same_attempt(
    ledger: Ledger, database: DatabaseUnderTest
) -> None:
    """Whoever comes second meets what the first has left."""
    first = done(ledger)
    look = judged(first)

    def allow(other: Ledger) -> Any:
        return authorise(other, look, actor="ada", reason="r", expires=DAY)

    with held_before_commit(database, allow) as (release, outcome):
        second = in_thread(lambda: authorise(ledger, look, actor="bob", reason="r", expires=DAY))
        release()
        assert len(outcome()) == 1
        assert isinstance(second(), ResolutionError)
    assert first.row().rerun is not None
    assert first.row().rerun.actor == "ada"


@OF_EACH
def test_authorisations_follow_a_rename(ledger: Ledger) -> None:
    authorised(ledger, done(ledger))
    old = (SPACE.key_namespace, SPACE.operation)
    rename(ledger, old, ("statements", "book"), actor="ada", reason="clearer")
    from dataclasses import replace

    space = replace(SPACE, operation="book")
    own = Ownership.new(space.key_date, opened(ledger, space), "task")
    assert ledger.claim(own, space, [], [], reruns=documents_of(space, "INV-1"))
