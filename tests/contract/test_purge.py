"""Purging: only what is done and old goes, and none of it can ever be executed again."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import date, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard.acts.purging import Purge
from airflow_guard.acts.renaming import rename
from airflow_guard.acts.reruns import authorise
from airflow_guard.core.errors import BeforeHorizon, LedgerBusy, ResolutionError
from airflow_guard.store.changes import Ownership
from airflow_guard.store.dialects import utc_after
from airflow_guard.store.listed import ListedDocuments
from airflow_guard.store.resolution import Judged
from airflow_guard.testing import TestLedger
from tests.contract.attempts import (
    SPACE,
    Attempt,
    attempt,
    documents_of,
    held_before_commit,
    in_thread,
    new_ledger,
    opened,
)
from tests.databases import databases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_guard.core.keys import KeySpace
    from airflow_guard.store.ledger import Ledger
    from tests.databases import DatabaseUnderTest

OLD = replace(SPACE, business_date=date(2020, 1, 31))
NEW = replace(SPACE, business_date=date(2020, 2, 1))
UNTIL = date(2020, 1, 31)
pytestmark = databases("sqlite", "postgres_embedded", "mariadb")


@pytest.fixture
def ledger(database: DatabaseUnderTest) -> Iterator[Ledger]:
    ledger = new_ledger(database.url)
    yield ledger
    ledger.database.dispose()


def claim(ledger: Ledger, space: KeySpace, name: str = "INV-1", *, known: bool = False) -> bool:
    own = Ownership.new(space.key_date, opened(ledger, space), "task")
    documents = documents_of(space, name)
    return bool(ledger.claim(own, space, [] if known else documents, documents if known else []))


def purge(ledger: Ledger, **more: Any) -> list[Any]:
    return list(Purge(ledger, UNTIL, "ada", "older than the law asks for", **more).run())


def count(ledger: Ledger, table: str) -> int:
    found = sa.select(sa.func.count()).select_from(ledger.database.tables.metadata.tables[f"guard_{table}"])
    with ledger.database.engine.connect() as connection:
        return int(connection.execute(found).scalar_one())


def test_the_lease_of_a_killed_try_goes_with_the_try(ledger: Ledger) -> None:
    """Nobody ended it; while it runs its try stays, and when it is over both go."""
    opened(ledger, OLD)
    kept = opened(ledger, NEW)
    done = attempt(ledger, "INV-1", space=OLD).begin().complete("1")
    ledger.runs.close(done.own.task_run_id, "success", {})
    purge(ledger)
    assert (count(ledger, "task_run"), count(ledger, "lease")) == (2, 2)
    lease = ledger.database.tables.lease
    with ledger.database.engine.begin() as connection:
        connection.execute(sa.update(lease).values(expires_at=utc_after(sa.literal(-1.0))))
    purge(ledger)
    with ledger.database.engine.connect() as connection:
        assert connection.execute(sa.select(lease.c.task_run_id)).scalars().all() == [kept]
    assert count(ledger, "task_run") == 1


def test_a_try_that_listed_what_is_still_to_be_done_stays(ledger: Ledger) -> None:
    done = attempt(ledger, "INV-1", space=OLD).begin().complete("1")
    left = opened(ledger, OLD)
    ListedDocuments(ledger.database).note(left, OLD.key_date, documents_of(OLD, "INV-2"))
    for task_run_id in (done.own.task_run_id, left):
        ledger.runs.close(task_run_id, "failed", {})
    purge(ledger)
    run = ledger.database.tables.task_run
    with ledger.database.engine.connect() as connection:
        assert connection.execute(sa.select(run.c.id)).scalars().all() == [left]
    assert count(ledger, "listed") == 1


def test_what_is_done_and_old_goes_in_batches_and_cannot_be_claimed_again(ledger: Ledger) -> None:
    names = [f"INV-{number}" for number in range(7)]
    done = attempt(ledger, *names, space=OLD).begin().complete("1")
    ledger.runs.close(done.own.task_run_id, "success", {})
    kept = {
        "failed": attempt(ledger, "failed", space=OLD).begin().fail("refused"),
        "doubt": attempt(ledger, "doubt", space=OLD).begin().doubt("timeout"),
        "rejected": attempt(ledger, "rejected", space=OLD).begin().reject("closed"),
        "at work": attempt(ledger, "at work", space=OLD).begin(),
        "new": attempt(ledger, "new", space=NEW).begin().complete("1"),
        "once": attempt(ledger, "once", space=replace(OLD, once_per="document")).begin().complete("1"),
    }
    rerun = attempt(ledger, "rerun", space=OLD).begin().complete("1")
    judged = [Judged(OLD.key_date, rerun.hashes[0], rerun.own.token)]
    authorise(ledger, judged, actor="ada", reason="r", expires=timedelta(hours=1))
    (planned,) = Purge(ledger, UNTIL, "ada", "r").plan()
    assert (planned.keys, planned.task_runs, planned.kept, planned.once_per_document) == (7, 1, 5, 1)
    assert count(ledger, "execution") == 14
    assert count(ledger, "horizon") == 0

    (gone,) = purge(ledger, batch=3)
    assert (gone.keys, gone.task_runs, gone.kept, gone.once_per_document) == (7, 1, 5, 1)
    assert count(ledger, "execution") == 7
    for each in (*kept.values(), rerun):
        assert each.row().document is not None
    with pytest.raises(BeforeHorizon, match="2020-01-31"):
        claim(ledger, OLD)
    with pytest.raises(BeforeHorizon):
        claim(ledger, replace(OLD, business_date=date(2019, 12, 31)), "never seen")
    assert count(ledger, "execution") == 7
    # Unfinished rows stay what they were; later dates are not concerned, nor are other operations.
    assert claim(ledger, OLD, "failed", known=True)
    assert claim(ledger, NEW)
    assert claim(ledger, replace(OLD, operation="notify"))
    events = [row.kind for row in events_of(ledger)]
    assert events == ["purge", "purged"]
    assert [each.found for each in purge(ledger)] == [False, False]


def events_of(ledger: Ledger) -> list[Any]:
    v = ledger.database.tables.event
    with ledger.database.engine.connect() as connection:
        return list(connection.execute(sa.select(v).where(v.c.kind.like("purge%")).order_by(v.c.id)))


@databases("postgres_embedded", "mariadb")
@pytest.mark.parametrize("held", ["horizon", "deletion"])
def test_a_claim_that_races_with_a_purge_meets_the_row_or_the_horizon(
    ledger: Ledger, database: DatabaseUnderTest, held: str
) -> None:
    """The horizon is written first: no claim comes between the deletion and it."""
    attempt(ledger, "INV-1", space=OLD).begin().complete("1")

    def work(other: Ledger) -> Any:
        return list(Purge(other, UNTIL, "ada", "r").run())

    with held_before_commit(database, work, skip=int(held == "deletion")) as (release, outcome):
        second = in_thread(lambda: claim(ledger, OLD))
        release()
        assert outcome()[0].keys == 1
        claimed = second()
    assert claimed is False or isinstance(claimed, BeforeHorizon)
    with pytest.raises(BeforeHorizon):
        claim(ledger, OLD)


@databases("postgres_embedded", "mariadb")
def test_a_purge_that_races_with_an_authorisation_removes_it_or_leaves_it(
    ledger: Ledger, database: DatabaseUnderTest
) -> None:
    """What a person may have executed once more stays; what is gone nobody can authorise."""
    day = timedelta(days=1)
    stays, goes = (attempt(ledger, name, space=OLD).begin().complete("1") for name in ("INV-1", "INV-2"))
    for each in (stays, goes):
        ledger.runs.close(each.own.task_run_id, "success", {})

    def allow(one: Attempt) -> Any:
        look = [Judged(OLD.key_date, one.hashes[0], one.own.token)]
        return lambda other: authorise(other, look, actor="bob", reason="wrong rate", expires=day)

    with held_before_commit(database, allow(stays)) as (release, outcome):
        with suppress(
            LedgerBusy
        ):  # InnoDB waits for what a condition reads; the others pass the locked key over
            assert purge(ledger)[0].keys == 1
        release()
        assert len(outcome()) == 1
    purge(ledger)
    assert stays.row().rerun is not None
    assert count(ledger, "execution") == 1

    again = attempt(ledger, "INV-3", space=replace(OLD, operation="other")).begin().complete("1")
    ledger.runs.close(again.own.task_run_id, "success", {})

    def work(other: Ledger) -> Any:
        return list(Purge(other, UNTIL, "ada", "r", operation="other").run())

    with held_before_commit(database, work, skip=1) as (release, outcome):
        second = in_thread(partial(allow(again), ledger))
        release()
        assert outcome()[0].keys == 1
        assert isinstance(second(), ResolutionError)
    assert count(ledger, "rerun") == 1, "that of the key which stays"


@databases("sqlite", "mariadb")
def test_a_horizon_never_goes_back_and_follows_a_rename(ledger: Ledger) -> None:
    attempt(ledger, "INV-1", space=OLD).begin().complete("1")
    purge(ledger)
    attempt(ledger, "INV-1", space=replace(SPACE, operation="book")).begin().fail("x")
    old, new = (SPACE.key_namespace, SPACE.operation), (SPACE.key_namespace, "book")
    rename(ledger, old, new, actor="ada", reason="clearer")
    with pytest.raises(BeforeHorizon):
        claim(ledger, replace(OLD, operation="book"))
    assert claim(ledger, replace(NEW, operation="book"))


@databases("sqlite")
@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_a_task_for_a_purged_date_fails_and_says_so(database: DatabaseUnderTest, mode: str) -> None:
    called: list[str] = []

    def post(document: str) -> None:
        called.append(document)

    with TestLedger(database.url) as ledger:
        how: dict[str, Any] = {"operation": "post", "business_date": "2020-01-31"}
        ledger.run(post, documents=["INV-1", "INV-2"], **how)
        assert called == ["INV-1", "INV-2"]
        list(Purge(ledger._ledger, UNTIL, "ada", "r").run())
        again = ledger.run(post, documents=["INV-1", "INV-3"], mode=mode, **how)
    if mode == "observe":
        assert len(called) == 4
        return
    assert again.blocked == 2
    assert not again.retryable
    assert called == ["INV-1", "INV-2"]
    assert "were purged" in str(again.errors[0][1])
