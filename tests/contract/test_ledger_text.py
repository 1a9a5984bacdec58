"""Awkward text in the ledger: every database stores it literally, and compares keys by nothing but their bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from airflow_guard.core.keys import KeySpace, normalise_document
from airflow_guard.core.states import State
from airflow_guard.store.changes import Ownership
from airflow_guard.store.events import AuditEvent
from tests.contract.attempts import SPACE, Attempt, attempt, documents_of, events_of, new_ledger, opened
from tests.databases import databases

if TYPE_CHECKING:
    from airflow_guard.store.ledger import Ledger
    from tests.databases import DatabaseUnderTest

EMOJI = "🧾" * 255
HOSTILE = [
    "x'); DELETE FROM ledger;--",
    'x"; DROP TABLE guard_execution; --',
    "%s %(d)s :hashes {} {0} ? $1",
    "back\\slash \\' \\0 \\n",
    "=cmd|' /C calc'!A0",
    "<script>alert(1)</script>",
    "ＡＢＣ ﷽ ñ ß İ ı",  # noqa: RUF001
]
ERRORS = [
    "boom 🧾",
    "NUL \x00 inside",
    "lone surrogate \ud800",
    "x" * 100_000,
    "%s :why {}",
    "\u2028\u202e",
    "",
]


def count(ledger: Ledger) -> int:
    e = ledger.database.tables.execution
    with ledger.database.engine.connect() as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(e)).scalar_one()


@pytest.mark.parametrize("document", HOSTILE)
def test_c33_a_document_that_looks_like_sql_is_stored_literally(
    shared_ledger: Ledger, space: KeySpace, document: str
) -> None:
    before = count(shared_ledger)
    one = attempt(shared_ledger, document, space=space).begin().complete('"done"')
    row = one.row()
    assert (row.document, row.state, row.result) == (document, State.COMPLETED, '"done"')
    assert count(shared_ledger) == before + 1


def test_c33_names_and_reasons_that_look_like_sql_are_stored_literally(
    shared_ledger: Ledger, space: KeySpace
) -> None:
    hostile = replace(
        space, key_namespace=HOSTILE[0], operation=f"{HOSTILE[1]} {space.operation}", cycle=HOSTILE[2]
    )
    one = attempt(shared_ledger, HOSTILE[3], space=hostile).begin().doubt(HOSTILE[0])
    assert one.row().error == HOSTILE[0]
    (event,) = events_of(shared_ledger, hostile.key_date, one.hashes[0])
    assert event.reason == HOSTILE[0]
    assert event.key_text == hostile.describe(HOSTILE[3])


def test_c34_the_longest_names_with_emoji_are_claimed_completed_and_read_back(
    shared_ledger: Ledger, space: KeySpace
) -> None:
    longest = replace(
        space, key_namespace="d" * 250, operation="🧾" * 250, cycle="é" * 100, deployment="ß" * 250
    )
    one = attempt(shared_ledger, EMOJI, space=longest, dag_id="d" * 250, task_id="🧾" * 250, host="h" * 250)
    one.begin().complete('"ok"')
    row = one.row()
    assert (row.document, row.deployment, row.result) == (EMOJI, "ß" * 250, '"ok"')
    assert (row.last_run.dag_id, row.last_run.task_id) == ("d" * 250, "🧾" * 250)


def test_c34_documents_that_differ_in_the_last_of_255_characters_are_two_rows(
    shared_ledger: Ledger, space: KeySpace
) -> None:
    one = attempt(shared_ledger, "🧾" * 254 + "a", "🧾" * 254 + "b", space=space)
    assert len(set(one.hashes)) == 2
    assert shared_ledger.complete(one.own, one.hashes[:1], "1") == set(one.hashes[:1])


def test_c34_neighbouring_parts_are_two_rows(shared_ledger: Ledger, space: KeySpace) -> None:
    left = attempt(shared_ledger, "x", space=replace(space, operation=space.operation + "b", cycle="c"))
    right = attempt(shared_ledger, "x", space=replace(space, operation=space.operation, cycle="bc"))
    assert left.hashes != right.hashes


@pytest.mark.parametrize("why", ERRORS)
@pytest.mark.parametrize("how", ["fail", "reject", "doubt"])
def test_c34_no_error_text_keeps_a_row_from_its_ending(
    shared_ledger: Ledger, space: KeySpace, how: str, why: str
) -> None:
    one = attempt(shared_ledger, space=space).begin()
    getattr(one, how)(why)
    row = one.row()
    assert row.state is {"fail": State.FAILED, "reject": State.REJECTED, "doubt": State.IN_DOUBT}[how]
    assert row.error is not None
    assert row.error[:4] == why[:4]


@pytest.mark.parametrize("why", ERRORS)
def test_c34_no_error_text_keeps_a_try_from_being_closed(
    shared_ledger: Ledger, space: KeySpace, why: str
) -> None:
    one = attempt(shared_ledger, space=space)
    shared_ledger.runs.close(one.own.task_run_id, "failed", {}, why)
    assert one.row().lease_over


@pytest.mark.parametrize("actor", ["a" * 250, "a" * 300, "\x00" * 250, "🧾" * 300, "\ud800" * 250])
def test_no_name_of_an_actor_keeps_an_event_from_being_written(
    shared_ledger: Ledger, space: KeySpace, actor: str
) -> None:
    run = opened(shared_ledger, space)
    own = Ownership.new(space.key_date, run, actor)
    documents = documents_of(space, "INV-1")
    shared_ledger.claim(own, space, documents, [])
    one = Attempt(shared_ledger, space, own, documents).begin().doubt("why")
    (event,) = events_of(shared_ledger, space.key_date, one.hashes[0])
    assert 0 < len(event.actor) <= 250


def test_every_text_of_an_event_is_made_storable(shared_ledger: Ledger, space: KeySpace) -> None:
    text = "\x00\ud800🧾" * 5000
    event = AuditEvent("blocked", text, text, text, space.key_date, "e" * 32)
    shared_ledger.write(lambda c: shared_ledger.events.write(c, event))
    (stored,) = events_of(shared_ledger, space.key_date, "e" * 32)
    assert stored.key_text.startswith("\\x00?🧾")


def test_r17_every_database_keeps_apart_what_the_normaliser_keeps_apart(
    shared_ledger: Ledger, space: KeySpace
) -> None:
    """The same matrix everywhere, whatever the collation."""
    listed = ["INV-1", "INV-1 ", " INV-1", "inv-1", "ÍNV-1", "I\u0301NV-1", "INV\u20111", "INV-01", "İNV-1"]
    names = [normalise_document(name) for name in listed]
    distinct = list(dict.fromkeys(names))
    assert len(distinct) == 6
    one = attempt(shared_ledger, *distinct, space=space)
    assert len(set(one.hashes)) == len(distinct)
    e = shared_ledger.database.tables.execution
    with shared_ledger.database.engine.connect() as connection:
        for name in distinct:
            found = sa.select(e.c.document).where(e.c.operation == space.operation, e.c.document == name)
            assert connection.execute(found).scalars().all() == [name]


@databases("mariadb")
def test_r17_c34_the_default_collation_of_the_database_changes_nothing(database: DatabaseUnderTest) -> None:
    """In utf8mb3 an emoji would be refused; under general_ci 'INV-1' would equal 'inv-1'."""
    with database.engine().begin() as connection:
        name = sa.make_url(database.url).database
        connection.exec_driver_sql(f"ALTER DATABASE {name} CHARACTER SET utf8mb3 COLLATE utf8mb3_general_ci")
    ledger = new_ledger(database.url)
    try:
        one = attempt(ledger, "INV-1", "inv-1", "ÍNV-1", EMOJI, space=replace(SPACE, key_namespace="d" * 250))
        one.begin().doubt("🧾")
        assert {one.row(number).document for number in range(4)} == {"INV-1", "inv-1", "ÍNV-1", EMOJI}
    finally:
        ledger.database.dispose()
