"""Renamed code meets the keys of its past; nothing is executed twice on the way."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard.acts.drops import Place, drop
from airflow_guard.acts.renaming import CHUNK, Renamed, rename
from airflow_guard.core.errors import (
    ConfigurationError,
    LedgerBusy,
    OwnershipLost,
    ResolutionError,
)
from airflow_guard.core.keys import KeySpace
from airflow_guard.core.states import FollowUp, State
from airflow_guard.store import aliases
from airflow_guard.store.changes import Ownership
from airflow_guard.store.database import LedgerDatabase
from airflow_guard.store.ledger import Ledger
from tests.contract.attempts import (
    DAY,
    SPACE,
    attempt,
    documents_of,
    held_before_commit,
    in_thread,
    new_ledger,
    opened,
)
from tests.databases import databases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.databases import DatabaseUnderTest

OLD = ("statements", "post_statement")
NEW = ("bank_statements", "post")
RENAMED = replace(SPACE, key_namespace=NEW[0], operation=NEW[1])


@pytest.fixture
def ledger(database: DatabaseUnderTest) -> Iterator[Ledger]:
    ledger = new_ledger(database.url)
    yield ledger
    ledger.database.dispose()


def renamed(ledger: Ledger, old: aliases.Name = OLD, new: aliases.Name = NEW, **more: Any) -> Renamed:
    return rename(ledger, old, new, **{"actor": "ana", "reason": "the DAG has a new name", **more})


def keys_of(ledger: Ledger, space: KeySpace, *names: str | None) -> dict[str | None, Any]:
    """Return the rows that a task with this space finds, by document."""
    hashes = {document.key_hash: document.name for document in documents_of(space, *names)}
    found = ledger.read(space.key_date, list(hashes))
    return {hashes[key]: row for key, row in found.items()}


def rows_of(ledger: Ledger) -> list[Any]:
    e = ledger.database.tables.execution
    with ledger.database.engine.connect() as connection:
        return list(connection.execute(sa.select(e).order_by(e.c.document)))


# -- what is renamed


def test_done_documents_are_found_under_the_new_names_and_not_under_the_old(ledger: Ledger) -> None:
    attempt(ledger, "INV-1", "INV-2").begin().complete('"receipt"')
    attempt(ledger, None).begin().complete()
    before = rows_of(ledger)
    done = renamed(ledger)
    assert (done.count, done.keys, done.alias_is_new) == (3, {State.COMPLETED: 3}, True)

    found = keys_of(ledger, RENAMED, "INV-1", "INV-2", None)
    assert {row.state for row in found.values()} == {State.COMPLETED}
    assert found["INV-1"].result == '"receipt"'
    assert keys_of(ledger, SPACE, "INV-1", "INV-2", None) == {}
    kept = [name for name in before[0]._fields if name not in {"key_hash", "key_namespace", "operation"}]
    for old_row, new_row in zip(before, rows_of(ledger), strict=True):
        assert [getattr(new_row, name) for name in kept] == [getattr(old_row, name) for name in kept]
        assert (new_row.key_namespace, new_row.operation) == NEW


def test_the_receiver_still_gets_the_key_that_it_knows(ledger: Ledger) -> None:
    first = attempt(ledger, "INV-1").begin().doubt("timeout")
    ledger.fail(first.own, first.hashes, "proved", begun=True)
    renamed(ledger)
    again = attempt(ledger, "INV-1", space=RENAMED, known=True)
    assert again.row().idempotency_key == first.documents[0].idempotency_key
    assert again.row().attempt == 2


def test_dates_cycles_and_once_per_document_are_rebuilt_from_the_row(ledger: Ledger) -> None:
    spaces = [
        SPACE,
        replace(SPACE, business_date=date(2025, 4, 1)),
        replace(SPACE, cycle="2"),
        replace(SPACE, once_per="document"),
    ]
    for number, space in enumerate(spaces):
        attempt(ledger, f"INV-{number}", None, space=space).begin().complete()
    assert renamed(ledger).count == 8
    for number, space in enumerate(spaces):
        new = replace(space, key_namespace=NEW[0], operation=NEW[1])
        assert len(keys_of(ledger, new, f"INV-{number}", None)) == 2, space


def test_every_state_is_renamed_and_other_operations_are_not(ledger: Ledger) -> None:
    attempt(ledger, "done").begin().complete()
    attempt(ledger, "doubtful").begin().doubt("timeout")
    attempt(ledger, "refused").begin().reject("no account")
    attempt(ledger, "failed").begin().fail("proved")
    attempt(ledger, "gone").begin().die()
    attempt(ledger, "unwanted").begin().fail("proved")
    drop(
        ledger,
        Place(SPACE.key_namespace, SPACE.operation, SPACE.business_date),
        ["unwanted"],
        actor="ana",
        reason="withdrawn",
    )
    other = replace(SPACE, operation="notify")
    attempt(ledger, "done", space=other).begin().complete()
    done = renamed(ledger)
    assert done.keys == dict.fromkeys(State, 1)
    assert len(keys_of(ledger, RENAMED, "done", "doubtful", "refused", "failed", "gone", "unwanted")) == 6
    assert len(keys_of(ledger, other, "done")) == 1


def test_more_rows_than_fit_one_statement(ledger: Ledger) -> None:
    names = [f"INV-{number:05}" for number in range(CHUNK + 7)]
    attempt(ledger, *names).begin().complete()
    for day in range(1, 5):
        space = replace(SPACE, business_date=date(2025, 4, day))
        attempt(ledger, "INV-1", "INV-2", space=space).begin().complete()
    assert renamed(ledger).count == CHUNK + 7 + 8
    assert len(keys_of(ledger, RENAMED, *names)) == CHUNK + 7


def test_the_past_keeps_its_names_and_the_rename_is_on_record(ledger: Ledger) -> None:
    doubtful = attempt(ledger, "INV-1").begin().doubt("timeout")
    renamed(ledger, actor="ana", reason="new team")
    tables = ledger.database.tables
    with ledger.database.engine.connect() as connection:
        tries = connection.execute(sa.select(tables.task_run.c.operation)).scalars().all()
        events = connection.execute(sa.select(tables.event).order_by(tables.event.c.id)).all()
    assert tries == ["post_statement"]
    assert [event.kind for event in events] == ["doubt", "rename"]
    assert events[0].key_hash == doubtful.hashes[0]
    assert (events[1].actor, events[1].reason) == ("ana", "new team")
    assert events[1].key_text == "statements / post_statement → bank_statements / post (1 keys)"


def test_a_dry_run_counts_and_changes_nothing(ledger: Ledger) -> None:
    attempt(ledger, "INV-1").begin().complete()
    assert renamed(ledger, dry_run=True).count == 1
    assert len(keys_of(ledger, SPACE, "INV-1")) == 1
    assert aliases.resolve(ledger.database, *OLD) == OLD


# -- aliases


def test_an_alias_leads_old_code_to_the_keys_through_any_number_of_renames(ledger: Ledger) -> None:
    attempt(ledger, "INV-1").begin().complete()
    last = ("books", "post")
    renamed(ledger)
    assert aliases.resolve(ledger.database, *OLD) == NEW
    renamed(ledger, NEW, last)
    assert aliases.resolve(ledger.database, *OLD) == aliases.resolve(ledger.database, *NEW) == last
    assert aliases.resolve(ledger.database, *last) == last
    assert aliases.resolve(ledger.database, "statementspost", "_statement") == (
        "statementspost",
        "_statement",
    )
    with ledger.database.engine.connect() as connection:
        assert aliases.former_names(connection, ledger.database.tables, last) == sorted([OLD, NEW])


def test_an_operation_can_be_renamed_back(ledger: Ledger) -> None:
    attempt(ledger, "INV-1").begin().complete()
    renamed(ledger)
    renamed(ledger, NEW, OLD)
    assert aliases.resolve(ledger.database, *OLD) == aliases.resolve(ledger.database, *NEW) == OLD
    assert len(keys_of(ledger, SPACE, "INV-1")) == 1
    renamed(ledger)
    assert aliases.resolve(ledger.database, *OLD) == NEW
    assert len(keys_of(ledger, RENAMED, "INV-1")) == 1


def test_renamed_back_over_two_steps(ledger: Ledger) -> None:
    third = ("books", "post")
    attempt(ledger, "INV-1").begin().complete()
    for old, new in ((OLD, NEW), (NEW, third), (third, OLD)):
        renamed(ledger, old, new)
    for name in (OLD, NEW, third):
        assert aliases.resolve(ledger.database, *name) == OLD


def test_aliases_in_a_circle_end_with_an_error_that_names_them(ledger: Ledger) -> None:
    attempt(ledger, "INV-1").begin().complete()
    renamed(ledger)
    alias = ledger.database.tables.alias
    with ledger.database.engine.begin() as connection:
        connection.execute(
            sa.insert(alias).values(
                old_hash=aliases.name_hash(*NEW), old_namespace=NEW[0], old_operation=NEW[1],
                new_namespace=OLD[0], new_operation=OLD[1], created_at=sa.func.now(), actor="x", reason="x",
            )
        )  # fmt: skip
    with pytest.raises(ConfigurationError, match=r"circle.*bank_statements / post"):
        aliases.resolve(ledger.database, *OLD)


# -- what is refused


def test_an_attempt_at_work_refuses_the_rename_and_is_named(ledger: Ledger) -> None:
    running = attempt(ledger, "INV-1")
    for step in (lambda: None, running.begin):
        step()
        with pytest.raises(ResolutionError, match="worker-7 pid 4711"):
            renamed(ledger)
    running.complete(follow_up=FollowUp.PENDING)
    with pytest.raises(ResolutionError, match="being worked on"):
        renamed(ledger)
    assert ledger.end_follow_up(
        running.own, running.hashes, outcome=None, failed=False, why=None, patience_s=0
    )
    assert renamed(ledger).count == 1


def test_an_attempt_at_another_operation_does_not(ledger: Ledger) -> None:
    attempt(ledger, "INV-1", space=replace(SPACE, operation="notify")).begin()
    attempt(ledger, "INV-1").begin().complete()
    assert renamed(ledger).count == 1


def test_a_key_that_exists_under_both_names_refuses_the_rename(ledger: Ledger) -> None:
    attempt(ledger, "INV-1", "INV-2").begin().complete()
    attempt(ledger, "INV-2", space=RENAMED).begin().doubt("timeout")
    for dry_run in (True, False):
        with pytest.raises(
            ResolutionError, match=r"bank_statements / post / 2025-03-31 / INV-2 \(in_doubt\)"
        ):
            renamed(ledger, dry_run=dry_run)
    assert len(keys_of(ledger, SPACE, "INV-1", "INV-2")) == 2
    assert aliases.resolve(ledger.database, *OLD) == OLD


def test_a_name_that_the_ledger_never_saw_is_not_renamed(ledger: Ledger) -> None:
    attempt(ledger, "INV-1").begin().complete()
    for dry_run in (True, False):
        with pytest.raises(
            ResolutionError, match=r"no operation statement / post.*Did you mean statements / post"
        ):
            renamed(ledger, ("statement", "post_statement"), NEW, dry_run=dry_run)
    assert aliases.resolve(ledger.database, "statement", "post_statement") == ("statement", "post_statement")
    assert aliases.resolve(ledger.database, *NEW) == NEW


@databases("sqlite")
@pytest.mark.parametrize("words", [{"reason": " "}, {"actor": ""}])
def test_a_rename_without_reason_or_name_is_refused(ledger: Ledger, words: dict[str, str]) -> None:
    with pytest.raises(ResolutionError):
        renamed(ledger, **words)


def test_names_that_contradict_earlier_renames_are_refused(ledger: Ledger) -> None:
    attempt(ledger, "INV-1").begin().complete()
    renamed(ledger)
    with pytest.raises(ResolutionError, match=r"was renamed to bank_statements / post .* by ana"):
        renamed(ledger, OLD, ("books", "post"))
    with pytest.raises(ResolutionError, match="old name of bank_statements / post"):
        renamed(ledger, ("books", "post"), OLD)
    with pytest.raises(ResolutionError, match="the same"):
        renamed(ledger, NEW, NEW)
    with pytest.raises(ConfigurationError, match="operation"):
        renamed(ledger, NEW, ("books", " "))


def test_the_same_rename_again_takes_what_came_since(ledger: Ledger) -> None:
    attempt(ledger, "INV-1").begin().complete()
    renamed(ledger)
    again = renamed(ledger)
    assert (again.count, again.alias_is_new) == (0, False)


# -- at the moment of a claim


def claim_under_old_names(ledger: Ledger, *names: str) -> set[str]:
    """Claim as a task does that looked for aliases before the rename."""
    own = Ownership.new(DAY, opened(ledger), "test")
    return set(ledger.claim(own, SPACE, documents_of(SPACE, *names), []))


def test_a_claim_under_the_old_names_after_the_rename_is_refused_and_retryable(ledger: Ledger) -> None:
    """The task looked for aliases when it began, and is at its next chunk now: INV-1 is done."""
    attempt(ledger, "INV-1").begin().complete()
    renamed(ledger)
    for name in ("INV-1", "INV-9"):
        with pytest.raises(OwnershipLost, match="renamed") as caught:
            claim_under_old_names(ledger, name)
        assert caught.value.retryable
    assert keys_of(ledger, SPACE, "INV-1", "INV-9") == {}


@pytest.mark.parametrize("document", ["done before", "new"])
def test_a_claim_that_comes_while_the_rename_is_under_way(
    ledger: Ledger, database: DatabaseUnderTest, document: str
) -> None:
    """It waits for the rename to commit; then it is refused, or its patience for locks ended before."""
    attempt(ledger, "done before").begin().complete()
    own = Ownership.new(DAY, opened(ledger), "test")
    with held_before_commit(database, renamed) as (release, rename_outcome):
        claiming = in_thread(lambda: ledger.claim(own, SPACE, documents_of(SPACE, document), []))
        release()
        assert isinstance(rename_outcome(), Renamed)
        outcome = claiming()
    assert isinstance(outcome, (OwnershipLost, LedgerBusy)), outcome
    assert keys_of(ledger, SPACE, "done before", "new") == {}
    assert set(keys_of(ledger, RENAMED, "done before", "new")) == {"done before"}


def test_a_rename_that_comes_while_a_claim_is_under_way(ledger: Ledger, database: DatabaseUnderTest) -> None:
    """It waits for the claim, and then it sees that somebody is at work."""
    attempt(ledger, "done before").begin().complete()
    with held_before_commit(database, lambda other: claim_under_old_names(other, "new"), skip=1) as (
        release,
        claim_outcome,
    ):
        renaming = in_thread(lambda: renamed(ledger))
        release()
        assert len(claim_outcome()) == 1
        outcome = renaming()
    assert isinstance(outcome, ResolutionError), outcome
    assert "being worked on" in str(outcome)
    assert set(keys_of(ledger, SPACE, "done before", "new")) == {"done before", "new"}
    assert aliases.resolve(ledger.database, *OLD) == OLD


def test_a_claim_under_the_new_names_that_comes_first_is_a_collision(
    ledger: Ledger, database: DatabaseUnderTest
) -> None:
    """Renamed code ran before the rename: the rename finds its claim, instead of two rows of one work."""
    attempt(ledger, "INV-1").begin().complete()

    def claim_new(other: Ledger) -> int:
        own = Ownership.new(DAY, opened(other, RENAMED), "test")
        return len(other.claim(own, RENAMED, documents_of(RENAMED, "INV-1"), []))

    with held_before_commit(database, claim_new, skip=1) as (release, claim_outcome):
        renaming = in_thread(lambda: renamed(ledger))
        release()
        assert claim_outcome() == 1
        outcome = renaming()
    assert isinstance(outcome, ResolutionError), outcome
    assert "has keys already" in str(outcome)


def test_tasks_that_claim_all_the_time_execute_each_document_once(
    ledger: Ledger, database: DatabaseUnderTest
) -> None:
    """Four tasks look up the alias once a try, as tasks do; renames back and forth come in between."""
    names = [f"INV-{number:03}" for number in range(60)]
    effects: list[str] = []

    def task(offset: int) -> None:
        own_ledger = Ledger(LedgerDatabase(database.url))
        todo = names[offset:] + names[:offset]
        while todo:
            todo = one_try(own_ledger, todo, effects)
        own_ledger.database.dispose()

    workers = [in_thread(lambda offset=offset: task(offset)) for offset in (0, 15, 30, 45)]
    there, back = OLD, NEW
    for _ in range(6):
        with suppress(ResolutionError, LedgerBusy):
            renamed(ledger, there, back)
            there, back = back, there
    assert [worker() for worker in workers] == [None] * 4
    assert sorted(effects) == names
    assert len(rows_of(ledger)) == len(names)


def one_try(ledger: Ledger, todo: list[str], effects: list[str]) -> list[str]:
    """Execute documents one by one until the ledger says no; return what is not done."""
    space = KeySpace(*until_not_busy(lambda: aliases.resolve(ledger.database, *OLD)), DAY)
    run, left = until_not_busy(lambda: opened(ledger, space)), list(todo)
    with suppress(OwnershipLost, LedgerBusy):
        for document in documents_of(space, *todo):
            row = ledger.read(DAY, [document.key_hash]).get(document.key_hash)
            if row is None:
                own = Ownership.new(DAY, run, "test")
                if not ledger.claim(own, space, [document], []):
                    continue
                until_not_busy(lambda: ledger.begin(own, [document.key_hash]))  # noqa: B023
                effects.append(str(document.name))
                assert until_not_busy(lambda: ledger.complete(own, [document.key_hash], None)) == set()  # noqa: B023
            elif row.state is not State.COMPLETED:
                continue
            left.remove(str(document.name))
    until_not_busy(lambda: ledger.runs.close(run, "done", {}))
    return left


def until_not_busy(write: Callable[[], Any]) -> Any:
    """Repeat a write, as tasks do: whoever leaves after its claim leaves a key that nobody else may do."""
    while True:
        with suppress(LedgerBusy):
            return write()
