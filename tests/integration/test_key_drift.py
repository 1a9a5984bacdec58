"""D04: a change of what decides a key must not make done work look new. Each advice is followed."""

from __future__ import annotations

import re
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard.core.errors import KeyDrift
from airflow_guard.core.keys import KeyShape, KeySpace
from airflow_guard.store.events import namesakes
from tests.chaos import fixtures
from tests.chaos.books import DAY, counts

if TYPE_CHECKING:
    from tests.chaos.books import Books

pytestmark = fixtures.ONE_OF_EACH
books = fixtures.books

PAYMENTS = [{"no": f"N{n}", "msg": f"M{n}", "amount": "1.00"} for n in range(3)]
NEXT_DAY = date.fromordinal(DAY.toordinal() + 1)


def drift(books: Books, documents: Any, **parameters: Any) -> str:
    """Run, and return the sentence of the key drift, after asserting that nothing was executed."""
    before = len(books.receiver.calls())
    with pytest.raises(KeyDrift) as caught:
        books.run(books.pay, documents, **parameters)
    assert not caught.value.retryable
    assert len(books.receiver.calls()) == before
    return str(caught.value)


@pytest.mark.parametrize("once_per", ["date", "document"])
def test_d04_another_document_key_does_not_pay_again(books: Books, once_per: str) -> None:
    books.run(books.pay, PAYMENTS, document_key="no", once_per=once_per)
    told = drift(books, PAYMENTS, document_key="msg", once_per=once_per, try_number=2)
    for word in (
        "N0",
        "document_key='no'",
        "document_key='msg'",
        "airflow-guard adopt",
        "retired_operations=",
    ):
        assert word in told
    assert books.receiver.documents() == ["N0", "N1", "N2"]


@pytest.mark.parametrize("once_per", ["date", "document"])
def test_d04_the_advice_to_put_the_old_identity_back_works(books: Books, once_per: str) -> None:
    books.run(books.pay, PAYMENTS, document_key="no", once_per=once_per)
    told = drift(books, PAYMENTS, document_key="msg", once_per=once_per, try_number=2)
    [back] = re.findall(r"Put document_key='(\w+)' back", told)
    report = books.run(books.pay, PAYMENTS, document_key=back, once_per=once_per, try_number=3)
    assert counts(report) == {"replayed": 3}


def test_d04_the_advice_to_give_other_work_its_own_operation_works(books: Books) -> None:
    books.run(books.pay, PAYMENTS, document_key="no", operation="pay", task_id="pay")
    told = drift(books, PAYMENTS, document_key="msg", operation="pay", task_id="pay", try_number=2)
    [retired] = re.findall(r"retired_operations=\['(\w+)'\]", told)
    report = books.run(
        books.pay, PAYMENTS, document_key="msg", operation="remind", task_id="pay", retired_operations=(retired,),
        try_number=3,
    )  # fmt: skip
    assert counts(report) == {"executed": 3}


def test_d04_of_a_listing_with_new_documents_the_done_ones_are_found(books: Books) -> None:
    books.run(books.pay, PAYMENTS[:1], document_key="no")
    drift(books, [*PAYMENTS[1:], *PAYMENTS[:1]], document_key="msg", try_number=2)


def test_d04_new_documents_under_the_new_identity_are_no_drift(books: Books) -> None:
    books.run(books.pay, PAYMENTS[:1], document_key="no")
    assert counts(books.run(books.pay, PAYMENTS[1:], document_key="msg", try_number=2)) == {"executed": 2}
    # A value that was an identity under the new field is none under the old one.
    again = [{"no": "M1", "msg": "M9", "amount": "1.00"}]
    assert counts(books.run(books.pay, again, document_key="msg", try_number=3)) == {"executed": 1}


@pytest.mark.parametrize("once_per", ["date", "document"])
def test_d04_a_daily_run_after_the_change_is_no_drift(books: Books, once_per: str) -> None:
    books.run(books.pay, PAYMENTS, document_key="no", once_per=once_per)
    tomorrow = [{"no": f"N{n}", "msg": f"M{n}", "amount": "1.00"} for n in range(3, 6)]
    more: dict[str, Any] = {"document_key": "msg", "once_per": once_per, "run_id": "manual__tomorrow"}
    report = books.run(books.pay, tomorrow, day=NEXT_DAY, **more)
    assert counts(report) == {"executed": 3}
    report = books.run(books.pay, tomorrow, day=NEXT_DAY, try_number=2, **more)
    assert counts(report) == {"replayed": 3}


def test_d04_once_per_document_holds_on_another_date_too(books: Books) -> None:
    books.run(books.pay, PAYMENTS, document_key="no", once_per="document")
    drift(
        books,
        PAYMENTS,
        document_key="msg",
        once_per="document",
        day=NEXT_DAY,
        run_id="manual__tomorrow",
    )
    drift(
        books, PAYMENTS, document_key="no", once_per="document", day=NEXT_DAY, run_id="manual__tomorrow",
        operation="pay_again", task_id="pay_again", dag_task_ids=set(),
    )  # fmt: skip


def test_d04_once_per_document_that_becomes_once_per_date_is_drift_on_any_date(books: Books) -> None:
    books.run(books.pay, PAYMENTS, document_key="no", once_per="document")
    drift(books, PAYMENTS, document_key="no", day=NEXT_DAY, run_id="manual__tomorrow")


def test_d04_ids_that_become_mappings_and_the_other_way_round(books: Books) -> None:
    books.run(books.pay, ["N0", "N1"])
    drift(books, PAYMENTS, document_key="msg", try_number=2)
    assert counts(books.run(books.pay, PAYMENTS, document_key="no", try_number=3))["executed"] == 1


def test_d04_calls_that_documents_share_change_no_key(books: Books) -> None:
    books.run(books.pay, PAYMENTS, document_key="no")

    def pay_all(documents: Any) -> None:
        raise AssertionError("paid again")

    report = books.run(pay_all, PAYMENTS, document_key="no", call_per="batch", try_number=2)
    assert counts(report) == {"replayed": 3}


def test_d04_the_shape_is_stored_and_read_back() -> None:
    space = KeySpace("n" * 250, "o" * 250, DAY, "evening")
    shapes = [
        KeyShape.of(
            space,
            documents=True,
            document_key=name,
            call_per="batch",
            business_date=rule,
            partition=partition,
        )
        for name in ("no", "a/b c", "-", "~x", "ä" * 300, None)
        for rule in ("", "previous_business_day('DE')", "x" * 1000)
        for partition in (False, True)
    ]
    assert all(len(shape.text) <= 250 and KeyShape.parse(shape.text) == shape for shape in shapes)
    assert len({shape.text for shape in shapes}) == len(shapes)
    assert [shape.field for shape in shapes[::6]] == ["no", "a/b c", None, None, None, None]
    assert KeyShape.parse("test") is None


# -- copies of a DAG ----------------------------------------------------------------------------------------


def test_d04_the_first_run_of_a_copied_dag_says_whose_documents_it_lists(
    books: Books, caplog: pytest.LogCaptureFixture
) -> None:
    original, copy = books.dag_id, f"{books.dag_id}_copy"
    more: dict[str, Any] = {"operation": f"pay_{original}", "run_type": "manual"}
    books.run(books.pay, ["A", "B"], run_id="manual__original", **more)
    copied: dict[str, Any] = {"dag_id": copy, "key_namespace": copy, **more}
    books.run(books.pay, ["B", "C"], run_id="manual__first", **copied)
    [line] = [each.getMessage() for each in caplog.records if "in its first run" in each.getMessage()]
    for told in (f"{original!r}", f"{copy!r}", "(B)", f"key_namespace={original!r}", "airflow-guard rename"):
        assert told in line
    assert [event.key_text.split(" / ")[-1] for event in said(books)] == ["B"]
    assert books.receiver.documents() == ["A", "B", "B", "C"], (
        "it warns: two DAGs may have the same operation names"
    )

    tables = books.database.tables
    found = books.database.read(lambda connection: namesakes(connection, tables, copy, DAY))
    assert found == [line], "what diagnose reads of the copy"
    assert books.database.read(lambda connection: namesakes(connection, tables, original, DAY)) == []

    caplog.clear()
    books.run(books.pay, ["A"], run_id="manual__second", **copied)
    assert "in its first run" not in caplog.text


def said(books: Books) -> list[Any]:
    """The events that tell of copies of this test's DAG."""
    event = books.database.tables.event
    with books.database.engine.connect() as connection:
        found = connection.execute(
            sa.select(event).where(event.c.kind == "namesake").order_by(event.c.id)
        ).all()
    return [row for row in found if f"pay_{books.dag_id} " in row.reason]


def test_d04_the_advice_to_share_the_namespace_of_the_original_works(books: Books) -> None:
    more: dict[str, Any] = {
        "operation": f"pay_{books.dag_id}",
        "run_type": "manual",
        "key_namespace": books.dag_id,
    }
    books.run(books.pay, ["A", "B"], run_id="manual__original", **more)
    report = books.run(books.pay, ["A", "B"], run_id="manual__first", dag_id=f"{books.dag_id}_copy", **more)
    assert counts(report) == {"replayed": 2}
    assert said(books) == []


def test_d04_a_first_run_with_other_documents_or_another_operation_says_nothing(books: Books) -> None:
    operation = f"pay_{books.dag_id}"
    books.run(books.pay, ["A"], run_id="manual__original", operation=operation)
    for name, document, other in (("copy", "C", operation), ("other", "A", f"notify_{books.dag_id}")):
        dag_id = f"{books.dag_id}_{name}"
        books.run(
            books.pay,
            [document],
            run_id="manual__first",
            dag_id=dag_id,
            key_namespace=dag_id,
            operation=other,
        )
    assert said(books) == []
