"""Documents in a whole run: many, awkward, repeated, contradicting, changed since."""

from __future__ import annotations

import resource
import sys
from typing import TYPE_CHECKING, Any

import pytest

from airflow_guard.core.errors import (
    ConfigurationError,
    ContentChanged,
    DocumentError,
    DuplicateDocumentError,
    DuplicateRefused,
    NotExecuted,
)
from airflow_guard.core.states import State
from airflow_guard.execution import session as execution
from tests.chaos import fixtures
from tests.chaos.books import DATABASE, Books, Receiver, counts, failure, mapped, numbered
from tests.databases import databases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import sqlalchemy as sa

    from tests.processes import Worker

books = fixtures.books


# -- many -----------------------------------------------------------------------------------------------


def test_c15_a_retry_calls_only_the_document_that_failed(books: Books) -> None:
    def post(document: str, attempt: int, connection: sa.Connection) -> None:
        if document == "D-0500" and attempt == 1:
            raise ValueError("no rate")
        books.post(document, connection)

    rules: dict[str, Any] = {"side_effect": DATABASE, "max_workers": 8}
    report = books.run(post, numbered(1000), **rules)
    assert counts(report) == {"executed": 999, "failed": 1}
    assert failure(report).retryable
    assert report.summary()["failed_documents"] == ["D-0500"]
    again = books.run(post, numbered(1000), try_number=2, **rules)
    assert counts(again) == {"executed": 1, "replayed": 999}
    assert failure(again) is None
    assert sorted(books.posted()) == numbered(1000)


def test_c15_stop_on_failure_stops_before_the_next_document(books: Books) -> None:
    """What the case calls ``fail_fast`` has another name: people keep that one in ``default_args``."""

    def pay(document: str, attempt: int) -> None:
        if document == "D-0500" and attempt == 1:
            raise NotExecuted("no rate")
        books.receiver.call(document)

    report = books.run(pay, numbered(1000), stop_on_failure=True)
    assert counts(report) == {"executed": 499, "failed": 1}
    assert report.stopped is not None, "the second half was not even listed"
    assert failure(report).retryable
    assert books.receiver.documents() == numbered(499)
    again = books.run(pay, numbered(1000), try_number=2, stop_on_failure=True)
    assert counts(again) == {"executed": 501, "replayed": 499}
    assert books.receiver.documents() == numbered(1000)


def post_many(url: str, dag_id: str, path: str, count: int) -> dict[str, Any]:
    """Run in a child: post a batch from a generator, and return how much memory it took on the way."""
    books = Books(url, dag_id, Receiver(path))
    peaks: list[int] = []

    def listing() -> Iterator[dict[str, str]]:
        for number in range(count):
            if number in (count // 10, count - 1):
                peaks.append(peak_bytes())
            yield {"no": f"D-{number:09d}", "text": "x" * 200}

    def post(documents: list[dict[str, str]], connection: sa.Connection) -> int:
        return len(documents)

    report = books.run(
        post, listing, document_key="no", call_per="batch", batch_size=500, side_effect=DATABASE
    )
    return {"counts": counts(report), "grown": peaks[1] - peaks[0]}


def peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@databases("postgres_embedded")
def test_a_generator_of_many_documents_stays_in_bounded_memory(
    books: Books, start_worker: Callable[..., Worker]
) -> None:
    count = 100_000
    child = start_worker(post_many, url=books.url, dag_id=books.dag_id, path=books.receiver.path, count=count)
    result = child.result()
    assert result["counts"] == {"executed": count}
    # The listing itself is 25 MB of text, and as much again as documents.
    assert result["grown"] < 12 * 1024 * 1024


# -- awkward --------------------------------------------------------------------------------------------

HOSTILE = "x'); DELETE FROM guard_execution;--"


def test_c33_a_hostile_document_is_stored_and_returned_literally(books: Books) -> None:
    hostile = [HOSTILE, '"; DROP TABLE posting; --', "%s %(d)s :d ?", "{{ ds }}", "a\\b", "NULL", "E'\\x01'"]
    assert counts(books.run(books.post, hostile, side_effect=DATABASE)) == {"executed": len(hostile)}
    assert books.posted() == hostile
    assert set(books.states()) == set(hostile)
    again = books.run(books.post, one=HOSTILE, try_number=2, side_effect=DATABASE)
    assert again.result == {"posted": HOSTILE}
    assert len(books.posted()) == len(hostile)


def test_c34_the_longest_names_and_an_emoji_are_claimed_completed_and_read_back(books: Books) -> None:
    long = Books(books.url, ("ä🧾" * 125)[: 250 - len(books.dag_id)] + books.dag_id, books.receiver)
    base = "🧾" * 254
    try:
        report = long.run(long.post, [base + "1", base + "2"], side_effect=DATABASE)
        assert counts(report) == {"executed": 2}, "equal in their first 254 characters: two keys"
        assert long.posted() == [base + "1", base + "2"]
        assert long.states() == {base + "1": "completed", base + "2": "completed"}
        assert counts(long.run(long.post, [base + "2"], try_number=2, side_effect=DATABASE)) == {
            "replayed": 1
        }
        too_long = long.run(long.post, [base + "12"], try_number=3, side_effect=DATABASE)
        assert isinstance(failure(too_long), DocumentError)
        assert len(long.posted()) == 2, "refused before the callable"
    finally:
        long.close()


def test_c34_neighbouring_key_parts_do_not_run_into_each_other(books: Books) -> None:
    one, other = (Books(books.url, f"{books.dag_id}{end}", books.receiver) for end in ("ab", "a"))
    try:
        assert counts(one.run(one.pay, operation="c")) == {"executed": 1}
        assert counts(other.run(other.pay, operation="bc")) == {"executed": 1}
    finally:
        one.close()
        other.close()
    assert len(books.receiver.calls()) == 2


@pytest.mark.parametrize("database", [True, False])
def test_c34_awkward_text_in_the_error_does_not_keep_the_row_from_failed(
    books: Books, database: bool
) -> None:
    said = "🧾 \x00 \ud800 " + "é" * 10_000

    def fails(**given: Any) -> None:
        raise ValueError(said)

    def fails_outside(document: str, effect: Any) -> None:
        raise ValueError(said)

    def fails_inside(document: str) -> None:
        raise ValueError(said)

    if database:
        report = books.run(fails, ["A🧾"], side_effect=DATABASE)
    else:
        report = books.run(fails_outside, ["A🧾"])
    assert counts(report) == {"failed": 1}
    row = books.row("A🧾")
    assert row.state is State.FAILED
    assert (row.error or "").startswith("ValueError: 🧾")
    if not database:
        assert counts(books.run(fails_inside, ["B🧾"], run_id="manual__1")) == {"in_doubt": 1}
        assert books.row("B🧾").state is State.IN_DOUBT
        assert "🧾" in books.events("doubt")[0].reason


SAME = ["INV-1", "INV-1 ", " INV-1", "\tINV-1\n"]
OTHERS = ["inv-1", "ÍNV-1", "INV‑1", "INV-01", "ＩNV-1", "INV-1ß", "INV-1ss"]  # noqa: RUF001
REFUSED = ["INV-1\u200b", "INV\u00ad-1", "", "  ", "INV\x00-1", "INV-1\u202e", "x" * 256, None, 1.5, True]


def test_r17_what_is_equal_does_not_depend_on_the_database(books: Books) -> None:
    report = books.run(books.pay, [*SAME, *OTHERS, "I\u0301NV-1", *REFUSED])
    assert counts(report) == {
        "executed": 1 + len(OTHERS), "repeated": len(SAME), "failed": len(REFUSED),
    }  # fmt: skip
    assert not failure(report).retryable
    assert sorted(map(str, books.receiver.documents())) == sorted(["INV-1", *OTHERS])
    for document in [*SAME, *OTHERS, "I\u0301NV-1"]:
        again = books.run(books.pay, one=document, run_id="manual__1", run_type="manual")
        assert counts(again) == {"replayed": 1}, document
    assert len(books.rows()) == 1 + len(OTHERS)
    assert books.receiver.twice() == []


def test_numbers_and_text_of_the_same_form_are_one_document(books: Books) -> None:
    assert counts(books.run(books.pay, [7, "7"])) == {"executed": 1, "repeated": 1}
    assert books.receiver.documents() == ["7"]


# -- repeated and contradicting -------------------------------------------------------------------------


def pay_amounts(books: Books) -> Any:
    def pay(document: str, payload: dict[str, Any]) -> None:
        books.receiver.call(document, amount=payload["amount"])

    return pay


def test_one_document_with_two_amounts_is_held_back_before_anything_is_claimed(books: Books) -> None:
    listed = [*mapped(["A", "B"], "10.00"), *mapped(["A"], "11.00"), *mapped(["B"], "10.00")]
    report = books.run(pay_amounts(books), listed, document_key="no")
    assert counts(report) == {"executed": 1, "failed": 2, "repeated": 1}
    assert not failure(report).retryable
    error = report.errors[0][1]
    assert isinstance(error, DuplicateDocumentError)
    assert "amount" in str(error)
    assert books.receiver.calls() == [{"document": "B", "amount": "10.00"}]
    assert books.states() == {"B": "completed"}, "nothing was claimed for A"


def test_one_document_with_two_amounts_far_apart_is_not_executed_a_second_time(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "CLAIM_CHUNK", 2)
    listed = [*mapped(["A", "B", "C"], "10.00"), *mapped(["A"], "11.00"), *mapped(["B"], "10.00")]
    report = books.run(pay_amounts(books), listed, document_key="no")
    assert counts(report) == {"executed": 3, "blocked": 1, "repeated": 1}
    assert isinstance(failure(report) and report.errors[0][1], ContentChanged)
    assert [call["document"] for call in books.receiver.calls()] == ["A", "B", "C"]


def test_a_repeated_document_whose_first_mention_failed_is_not_called_done(books: Books) -> None:
    def pay(document: str) -> None:
        raise NotExecuted("closed")

    report = books.run(pay, ["A", "A"])
    assert counts(report) == {"failed": 1, "repeated": 1}
    assert failure(report).retryable


def test_a_repeated_document_that_is_held_elsewhere_is_not_called_done(books: Books) -> None:
    seen: list[Any] = []

    def pay(document: str) -> None:
        books.receiver.call(document)
        seen.append(books.run(books.pay, ["A", "A"], try_number=2))

    books.run(pay, ["A"])
    assert counts(seen[0]) == {"waiting": 1, "repeated": 1}
    assert books.receiver.documents() == ["A"]


# -- changed since --------------------------------------------------------------------------------------


def test_a_document_that_changed_since_is_neither_replayed_nor_executed_and_names_the_fields(
    books: Books,
) -> None:
    books.run(pay_amounts(books), mapped(["A", "B"], "10.00"), document_key="no")
    later = [*mapped(["A"], "12.50"), *mapped(["B"], "10.00")]
    report = books.run(pay_amounts(books), later, document_key="no", try_number=2)
    assert counts(report) == {"blocked": 1, "replayed": 1}
    error = report.errors[0][1]
    assert isinstance(error, ContentChanged)
    assert "changed: amount" in str(error)
    assert not failure(report).retryable
    assert books.receiver.calls() == [
        {"document": "A", "amount": "10.00"},
        {"document": "B", "amount": "10.00"},
    ]
    assert [event.kind for event in books.events()] == ["blocked"]


def test_fields_that_do_not_matter_may_change(books: Books) -> None:
    rules: dict[str, Any] = {"document_key": "no", "fingerprint_fields": ("amount",)}
    books.run(pay_amounts(books), [{"no": "A", "amount": "1", "exported_at": "06:00"}], **rules)
    again = books.run(
        pay_amounts(books), [{"no": "A", "amount": "1", "exported_at": "07:00"}], try_number=2, **rules
    )
    assert counts(again) == {"replayed": 1}


def test_a_document_that_failed_takes_the_content_of_its_next_attempt(books: Books) -> None:
    def pay(document: str, payload: dict[str, Any], attempt: int) -> None:
        if attempt == 1:
            raise NotExecuted("closed")
        books.receiver.call(document, amount=payload["amount"])

    books.run(pay, mapped(["A"], "10.00"), document_key="no")
    books.run(pay, mapped(["A"], "12.00"), document_key="no", try_number=2)
    assert books.receiver.calls() == [{"document": "A", "amount": "12.00"}]
    assert counts(books.run(pay, mapped(["A"], "12.00"), document_key="no", try_number=3)) == {"replayed": 1}
    assert counts(books.run(pay, mapped(["A"], "10.00"), document_key="no", try_number=4)) == {"blocked": 1}


# -- done before ----------------------------------------------------------------------------------------


def test_the_whole_run_has_a_key_and_a_result(books: Books) -> None:
    def close_books(business_date: Any) -> dict[str, Any]:
        books.receiver.call(None)
        return {"closed": business_date.isoformat(), "rows": 0}

    first = books.run(close_books)
    assert first.result == {"closed": "2026-01-31", "rows": 0}
    again = books.run(close_books, try_number=2)
    assert again.result == first.result
    assert len(books.receiver.calls()) == 1


@pytest.mark.parametrize("on_duplicate", ["replay", "skip", "fail"])
def test_what_a_duplicate_does(books: Books, on_duplicate: str) -> None:
    books.run(books.pay, ["A"])
    report = books.run(books.pay, ["A", "B"], try_number=2, on_duplicate=on_duplicate)
    outcome = {"replay": "replayed", "skip": "skipped", "fail": "blocked"}[on_duplicate]
    assert counts(report) == {outcome: 1, "executed": 1}
    [line] = [line for line in report.log_lines() if line.startswith(outcome)]
    if on_duplicate == "fail":
        assert isinstance(report.errors[0][1], DuplicateRefused)
        line = str(report.errors[0][1])
    assert "run scheduled__2026-01-31" in line
    assert "try 1" in line
    assert books.receiver.documents() == ["A", "B"]


def test_no_documents_are_a_success_and_no_list_is_an_error(books: Books) -> None:
    assert failure(books.run(books.pay, [])) is None
    for wrong in ("A", {"A": 1}, 7):
        with pytest.raises(ConfigurationError):
            books.run(books.pay, lambda wrong=wrong: wrong, try_number=2)
    assert books.receiver.calls() == []


def test_a_listing_that_breaks_gives_back_what_it_had_not_begun(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "CLAIM_CHUNK", 2)

    def listing() -> Iterator[str]:
        yield from ["A", "B", "C"]
        raise OSError("the file is cut off")

    with pytest.raises(OSError, match="cut off"):
        books.run(books.pay, listing)
    assert books.receiver.documents() == ["A", "B"]
    assert counts(books.run(books.pay, ["A", "B", "C"], try_number=2)) == {"replayed": 2, "executed": 1}
