"""What a listing brings: nothing, too little, an id twice; and what an earlier try listed and nobody lists any more."""

from __future__ import annotations

import csv
import io
import json
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard.acts import drops
from airflow_guard.commands.main import main
from airflow_guard.core.alerts.expected import ExpectedOperation
from airflow_guard.core.effects import External
from airflow_guard.core.errors import (
    DroppedBefore,
    Forgotten,
    NotExecuted,
    Rejected,
    RepeatedDocument,
    ResolutionError,
    UnexpectedListing,
)
from airflow_guard.core.expectations import Expected
from airflow_guard.execution import session as execution
from airflow_guard.reading.monitor import Monitor
from airflow_guard.reading.nights import shortfalls
from tests.chaos import fixtures
from tests.chaos.books import DATABASE, DAY, Books, Receiver, counts, failure, numbered
from tests.processes import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.processes import Worker

pytestmark = fixtures.ONE_OF_EACH
books = fixtures.books


class Inbox:
    """A table whose rows a lister takes: ``UPDATE … SET status = 'picked' WHERE status = 'new' RETURNING no``."""

    def __init__(self, books: Books, documents: list[str]) -> None:
        self._books = books
        self._engine = books.database.business_engine
        self._table = sa.Table(
            f"inbox_{books.dag_id}",
            sa.MetaData(),
            sa.Column("no", sa.String(50)),
            sa.Column("status", sa.String(10)),
        )
        self._table.create(self._engine)
        self.bring(documents)

    def bring(self, documents: list[str]) -> None:
        """Let documents arrive, or arrive again."""
        with self._engine.begin() as connection:
            connection.execute(self._table.insert(), [{"no": each, "status": "new"} for each in documents])

    def take(self) -> list[str]:
        """List what is new; nobody is given it again."""
        t = self._table
        with self._engine.begin() as connection:
            new = connection.execute(
                sa.select(t.c.no).where(t.c.status == "new").order_by(t.c.no).with_for_update()
            )
            documents = list(new.scalars())
            connection.execute(sa.update(t).where(t.c.status == "new").values(status="picked"))
        return documents


def refusing(books: Books, *refused: str) -> Callable[..., Any]:
    """An effect that does not happen for some documents in their first attempt."""

    def pay(document: str, attempt: int) -> None:
        if document in refused and attempt == 1:
            raise NotExecuted("closed")
        books.receiver.call(document)

    return pay


def tries(books: Books) -> list[Any]:
    run = books.database.tables.task_run
    with books.database.engine.connect() as connection:
        return list(connection.execute(sa.select(run).where(run.c.dag_id == books.dag_id).order_by(run.c.id)))


def drop(books: Books, *documents: str, operation: str = "post", **more: Any) -> list[drops.Dropped]:
    place = drops.Place(books.dag_id, operation, DAY)
    named = list(documents) or None
    return drops.drop(books.ledger, place, named, actor="ada", reason="withdrawn", **more)


# -- listed once, and not any more ------------------------------------------------------------------------


def test_d03_what_an_earlier_try_listed_and_did_not_finish_is_not_forgotten(books: Books) -> None:
    inbox = Inbox(books, ["A", "B", "C"])
    first = books.run(refusing(books, "B"), inbox.take)
    assert counts(first) == {"executed": 2, "failed": 1}
    second = books.run(refusing(books), inbox.take, try_number=2)
    assert counts(second) == {"forgotten": 1}
    error = failure(second)
    assert isinstance(error, Forgotten)
    assert not error.retryable
    assert "B (failed: " in str(error)
    assert f'airflow-guard drop {books.dag_id} 2026-01-31 post B --reason "…"' in str(error)
    assert tries(books)[-1].outcome == "failed"
    assert tries(books)[-1].forgotten == 1
    # Listed again it is done, and the run can end well.
    inbox.bring(["B"])
    third = books.run(refusing(books), inbox.take, try_number=3)
    assert counts(third) == {"executed": 1}
    assert failure(third) is None
    assert failure(books.run(refusing(books), inbox.take, try_number=4)) is None
    assert sorted(books.receiver.documents()) == ["A", "B", "C"]


def test_d03_a_person_drops_it_and_listed_again_it_is_held_back(books: Books) -> None:
    inbox = Inbox(books, ["A", "B"])
    books.run(refusing(books, "B"), inbox.take)
    [dropped] = drop(books, "B")
    assert (dropped.document, dropped.before) == ("B", "failed")
    assert books.states() == {"A": "completed", "B": "dropped"}
    [event] = books.events("drop")
    assert (event.actor, event.reason, event.from_state, event.to_state) == (
        "ada",
        "withdrawn",
        "failed",
        "dropped",
    )
    assert drop(books, "B")[0].repeated, "a second click changes nothing"
    assert failure(books.run(books.pay, inbox.take, try_number=2)) is None
    again = books.run(books.pay, ["B"], try_number=3)
    assert isinstance(failure(again), DroppedBefore)
    assert not failure(again).retryable
    assert books.receiver.documents() == ["A"]
    books.resolve("B", "send_again", "wanted after all")
    assert counts(books.run(books.pay, ["B"], try_number=4)) == {"executed": 1}


def test_d03_what_was_in_doubt_is_settled_before_it_can_be_dropped(books: Books) -> None:
    def breaks(document: str) -> None:
        raise TimeoutError

    books.run(breaks, ["A"])
    second = books.run(books.pay, [], try_number=2)
    assert counts(second) == {"forgotten": 1}
    assert f"resolve --key {books.row('A').key_hash}" in str(failure(second))
    with pytest.raises(ResolutionError, match=r"in doubt.*Settle it first"):
        drop(books, "A")
    books.resolve("A", "did_not_happen")
    drop(books, "A")
    assert failure(books.run(books.pay, [], try_number=3)) is None


def test_d03_what_a_stopped_try_listed_and_did_not_reach_is_not_forgotten(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "CLAIM_CHUNK", 2)
    inbox = Inbox(books, numbered(6))
    first = books.run(refusing(books, "D-0002"), inbox.take, stop_on_failure=True)
    assert first.stopped is not None
    second = books.run(books.pay, inbox.take, try_number=2)
    assert counts(second) == {"forgotten": 5}, "one failed, four were not begun"
    assert "D-0006" not in str(failure(second)).split("--reason")[-1]
    assert "--all" in str(failure(second))
    assert len(drop(books)) == 5
    assert books.states() == {"D-0001": "completed"} | dict.fromkeys(numbered(5, 2), "dropped")
    assert failure(books.run(books.pay, inbox.take, try_number=3)) is None
    assert books.receiver.documents() == ["D-0001"]


@pytest.mark.parametrize("gone", ["guard_listed", "guard_task_run"])
def test_d03_a_drop_whose_try_changes_beneath_it_changes_nothing(
    books: Books, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    """Between what it reads and what it writes the note is taken away, or the try."""
    monkeypatch.setattr(execution, "CLAIM_CHUNK", 1)
    books.run(refusing(books, "A"), ["A", "B"], stop_on_failure=True)
    assert books.states() == {"A": "failed"}
    tables = books.database.tables
    mine = sa.select(tables.task_run.c.id).where(tables.task_run.c.dag_id == books.dag_id).scalar_subquery()
    taken: list[str] = []

    def take(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if not taken and statement.startswith("INSERT INTO guard_execution"):
            taken.append(gone)
            if gone == "guard_listed":
                connection.execute(sa.delete(tables.listed).where(tables.listed.c.task_run_id.in_(mine)))
            else:
                of_test = sa.update(tables.task_run).where(tables.task_run.c.dag_id == books.dag_id)
                connection.execute(of_test.values(id=-tables.task_run.c.id))

    sa.event.listen(books.database.engine, "before_cursor_execute", take)
    try:
        with pytest.raises(
            ResolutionError, match=r"B: the try that listed it was changed just now.*Look at it again"
        ):
            drop(books, "B")
    finally:
        sa.event.remove(books.database.engine, "before_cursor_execute", take)
    assert taken == [gone]
    assert books.states() == {"A": "failed"}
    assert books.events("drop") == []
    assert len(drop(books)) == 2


@pytest.mark.parametrize("lists", ["a list", "a generator"])
def test_d03_a_refused_item_and_a_contradiction_are_not_forgotten(books: Books, lists: str) -> None:
    items = [
        {"no": "A", "amount": 1},
        {"no": "", "amount": 2},
        {"no": "B", "amount": 3},
        {"no": "B", "amount": 4},
    ]

    def listing() -> Any:
        return items if lists == "a list" else iter(items)

    books.run(books.pay, listing, document_key="no")
    second = books.run(books.pay, [], document_key="no", try_number=2)
    assert counts(second) == {"forgotten": 2}
    assert len(drop(books)) == 2
    assert failure(books.run(books.pay, [], document_key="no", try_number=3)) is None


def test_d03_a_correction_that_was_held_back_is_not_forgotten(books: Books) -> None:
    books.run(books.pay, [{"no": "A", "amount": 1}], document_key="no")
    changed = books.run(books.pay, [{"no": "A", "amount": 2}], document_key="no", try_number=2)
    assert counts(changed) == {"blocked": 1}
    third = books.run(books.pay, [], document_key="no", try_number=3)
    assert isinstance(failure(third), Forgotten)
    assert "A (held back: ContentChanged)" in str(failure(third))
    assert drop(books, "A")[0].before == "done"
    assert books.states() == {"A": "completed"}, "what is done stays done"
    assert failure(books.run(books.pay, [], document_key="no", try_number=4)) is None


def test_d03_rejected_documents_of_an_earlier_try_count_though_they_are_not_listed(books: Books) -> None:
    def refuse(document: str) -> None:
        raise Rejected("account closed")

    books.run(refuse, ["A", "B"], max_rejected=1)
    second = books.run(refuse, [], max_rejected=1, try_number=2)
    assert counts(second) == {"rejected": 2}
    assert "rejected" in str(failure(second, max_rejected=1))


def test_d03_what_another_attempt_holds_is_waited_for_though_it_is_not_listed(books: Books) -> None:
    seen: list[Any] = []

    def pay(document: str) -> None:
        books.receiver.call(document)
        seen.append(books.run(books.pay, [], try_number=2))

    books.run(pay, ["A"])
    assert counts(seen[0]) == {"waiting": 1}
    assert seen[0].only_waits()
    assert failure(books.run(books.pay, [], try_number=3)) is None


def test_d03_of_other_runs_and_other_tasks_nothing_is_asked(books: Books) -> None:
    books.run(refusing(books, "A"), ["A"])
    assert failure(books.run(books.pay, ["B"], run_id="manual__1", run_type="manual")) is None
    assert failure(books.run(books.pay, ["C"], operation="other")) is None


def test_d03_a_listing_whose_function_broke_off_is_not_forgotten(books: Books) -> None:
    """A task that a person ends, or that times out, between two chunks."""

    class Ended(BaseException):
        pass

    def verify(document: str) -> bool:
        raise Ended

    def breaks(document: str) -> None:
        raise TimeoutError

    books.run(breaks, ["A"])
    effect = External(verify=verify, settle_after=timedelta(0))
    with pytest.raises(Ended):
        books.run(books.pay, ["A", "B", "C"], try_number=2, side_effect=effect)
    third = books.run(books.pay, ["A"], try_number=3)
    assert counts(third) == {"in_doubt": 1, "forgotten": 2}


def lists_and_stops(url: str, dag_id: str, path: str, documents: list[str]) -> None:
    """Run in a child: list much more than one chunk, and stop in the first effect."""
    books = Books(url, dag_id, Receiver(path))

    def pay(document: str) -> None:
        books.receiver.call(document)
        checkpoint("inside")

    books.run(pay, documents)


def test_d03_a_killed_try_had_noted_all_that_was_in_its_hands(
    books: Books, start_worker: Callable[..., Worker]
) -> None:
    documents = numbered(1200)
    child = start_worker(
        lists_and_stops, url=books.url, dag_id=books.dag_id, path=books.receiver.path, documents=documents
    )
    child.wait_for("inside")
    child.kill()
    books.expire_leases()
    [killed] = tries(books)
    assert killed.documents == 1200, "a killed attempt says what it had listed"
    second = books.run(books.pay, [], try_number=2)
    assert counts(second) == {"forgotten": 1200}
    again = books.run(books.pay, documents[1:], try_number=3)
    assert counts(again) == {"executed": 1199, "forgotten": 1}
    assert books.receiver.twice() == []
    books.resolve(documents[0], "happened")
    assert failure(books.run(books.pay, [], try_number=4)) is None
    listed = books.database.tables.listed
    with books.database.engine.connect() as connection:
        mine = [each.id for each in tries(books)]
        assert connection.execute(sa.select(listed).where(listed.c.task_run_id.in_(mine))).all() == []


# -- nothing, too little, too much ------------------------------------------------------------------------


def test_d12_an_empty_listing_is_said_and_stands_in_the_ledger(
    books: Books, caplog: pytest.LogCaptureFixture
) -> None:
    report = books.run(books.pay, [])
    assert failure(report) is None
    assert report.summary()["documents"] == 0
    assert report.summary()["remark"] == "nothing was listed"
    assert [r.levelname for r in caplog.records if "nothing was listed" in r.getMessage()] == ["WARNING"]
    assert (tries(books)[-1].documents, tries(books)[-1].error) == (0, "nothing was listed")


def test_d12_an_empty_listing_is_refused_or_allowed(books: Books, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UnexpectedListing, match="nothing was listed") as refused:
        books.run(books.pay, [], on_empty="fail")
    assert refused.value.retryable
    assert tries(books)[-1].outcome == "failed"
    caplog.clear()
    assert failure(books.run(books.pay, iter([]), on_empty="allow", try_number=2)) is None
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []
    with pytest.raises(UnexpectedListing, match="1 document expected, 0 listed: too few"):
        books.run(books.pay, [], expected=1, try_number=3)
    assert failure(books.run(books.pay, [], expected=0, try_number=4)) is None


@pytest.mark.parametrize("lists", ["a list", "a generator"])
@pytest.mark.parametrize(
    ("expected", "words"),
    [
        (4, "4 documents expected, 3 listed: too few"),
        (2, "2 documents expected, 3 listed: too many"),
        (Expected(least=4), "at least 4 documents expected"),
        (Expected(most=2), "at most 2 documents expected"),
        (Expected(total=Decimal("30.01"), amount="amount"), "amount of 30.01 expected in all, 30.00 listed"),
    ],
)
def test_d12_another_listing_than_expected_fails_before_the_first_effect(
    books: Books, monkeypatch: pytest.MonkeyPatch, expected: Any, words: str, lists: str
) -> None:
    monkeypatch.setattr(execution, "CLAIM_CHUNK", 1)
    listed = [{"no": each, "amount": Decimal("10.00")} for each in "ABC"]

    def listing() -> Any:
        return listed if lists == "a list" else iter(listed)

    rules: dict[str, Any] = {"document_key": "no", "side_effect": DATABASE}
    with pytest.raises(UnexpectedListing, match=words) as refused:
        books.run(books.post, listing, expected=expected, **rules)
    assert refused.value.retryable
    assert books.posted() == []
    assert books.rows() == []
    assert (tries(books)[-1].documents, tries(books)[-1].outcome) == (3, "failed")
    # It was listed, so it is not forgotten.
    assert counts(books.run(books.post, [], try_number=2, **rules)) == {"forgotten": 3}
    right = Expected(least=3, most=3, total=30, amount="amount")
    report = books.run(books.post, listing, expected=right, try_number=3, **rules)
    assert (counts(report), failure(report)) == ({"executed": 3}, None)
    last = tries(books)[-1]
    assert (last.expected_least, last.expected_most, last.expected_total, last.listed_total) == (
        3,
        3,
        "30",
        "30.00",
    )


def test_d12_a_difference_can_be_a_warning(books: Books, caplog: pytest.LogCaptureFixture) -> None:
    report = books.run(books.pay, ["A"], expected=Expected(least=2, otherwise="warn"))
    assert (counts(report), failure(report)) == ({"executed": 1}, None)
    assert report.summary()["remark"] == "at least 2 documents expected, 1 listed: too few"
    assert "too few" in tries(books)[-1].error
    assert any("too few" in record.getMessage() for record in caplog.records if record.levelname == "WARNING")


@pytest.mark.parametrize("amount", [10.5, None, "12,50", "ten", float("nan")])
def test_d12_an_amount_that_is_not_exact_is_refused_before_the_first_effect(
    books: Books, amount: Any
) -> None:
    listed = [{"no": "A", "amount": 1}, {"no": "B", "amount": amount}]
    with pytest.raises(UnexpectedListing, match="Document 'B'"):
        books.run(books.pay, listed, document_key="no", expected=Expected(total=11, amount="amount"))
    assert books.receiver.documents() == []


def test_d12_what_is_expected_may_be_computed_once_the_listing_is_read(books: Books) -> None:
    read: list[str] = []

    def listing() -> Iterator[dict[str, Any]]:
        for each in "AB":
            read.append(each)
            yield {"no": each, "amount": Decimal("0.10")}

    def trailer() -> Decimal:
        assert read == ["A", "B"], "the file's last record"
        return Decimal("0.20")

    rules: dict[str, Any] = {
        "document_key": "no",
        "expected": Expected(least=1, total=trailer, amount="amount"),
    }
    assert counts(books.run(books.pay, listing, **rules)) == {"executed": 2}
    rules["expected"] = Expected(total=lambda: 0.2, amount="amount")
    with pytest.raises(Exception, match="A float is not an exact amount"):
        books.run(books.pay, listing, try_number=2, **rules)


# -- one id twice -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("apart", [1, 500, 700])
def test_d11_a_repeated_id_is_counted_and_said(
    books: Books, apart: int, caplog: pytest.LogCaptureFixture
) -> None:
    listed = numbered(apart)
    report = books.run(books.post, [*listed, "D-0001"], side_effect=DATABASE, call_per="document")
    assert counts(report) == {"executed": apart, "repeated": 1}
    assert failure(report) is None
    assert report.summary()["repeated"] == 1
    assert report.documents == apart + 1
    assert (tries(books)[-1].repeated, tries(books)[-1].replayed) == (1, 0)
    warned = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert any("repeated 1 (listed more than once in this task): D-0001" in each for each in warned)
    assert len(books.posted()) == apart


@pytest.mark.parametrize("apart", [1, 500, 700])
def test_d11_on_repeated_fail_refuses_it_before_the_first_effect(books: Books, apart: int) -> None:
    listed = numbered(apart)
    with pytest.raises(RepeatedDocument, match="D-0001") as refused:
        books.run(books.pay, iter([*listed, "D-0001"]), on_repeated="fail")
    assert not refused.value.retryable
    assert books.receiver.documents() == []
    assert books.rows() == []
    assert counts(books.run(books.pay, listed, try_number=2, on_repeated="fail", max_workers=4)) == {
        "executed": apart
    }


# -- what they came to, in every place that says it -------------------------------------------------------


def test_d11_d12_every_place_says_the_same_figures(
    books: Books, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The log of the task, its summary, the page of the day, ``show`` and ``export``."""

    def post(document: str) -> None:
        if document == "B":
            raise Rejected("account closed")
        if document == "C":
            raise NotExecuted("closed")
        books.receiver.call(document)

    caplog.set_level("INFO")
    expected = Expected(least=4, otherwise="warn")
    books.run(post, ["A"], max_rejected=1)
    report = books.run(post, ["A", "B", "C", "C"], try_number=2, max_rejected=1, expected=expected)
    line = (
        "3 listed = 1 done + 1 rejected + 1 failed; 1 ask = 1 replayed (1 by an earlier try of this task); 1 repeated; "
        "at least 4 documents expected"
    )
    assert f"post of 2026-01-31: {line}" in caplog.messages
    assert report.summary()["figures"] == {"listed": 3, "done": 1, "rejected": 1, "failed": 1}

    day = Monitor(books.ledger, limit_s=60).day(books.dag_id, DAY, None)
    assert day is not None
    assert day.figures == report.figures
    asked = ["show", books.dag_id, str(DAY), "--ledger", books.url]
    capsys.readouterr()
    assert main([*asked, "-o", "table"]) == 0
    both = "2 asks = 1 executed + 1 replayed (1 by an earlier try of this task)"  # of both tries
    assert (
        line.replace("1 ask = 1 replayed (1 by an earlier try of this task)", both) in capsys.readouterr().out
    )
    assert main([*asked, "--figures", "-o", "json"]) == 0
    [record] = json.loads(capsys.readouterr().out)
    assert {name: record[name] for name in report.figures.parts()} == report.figures.parts()
    found = [record[name] for name in ("listed", "asks", "executed", "own_replays", "repeated", "expected")]
    assert found == [3, 2, 1, 1, 1, "at least 4 documents"]
    assert main(["export", books.dag_id, "--start", str(DAY), "--figures", "--ledger", books.url]) == 0
    [exported] = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert exported == {name: "" if value is None else str(value) for name, value in record.items()}


def test_d12_show_says_that_a_listing_brought_nothing(
    books: Books, capsys: pytest.CaptureFixture[str]
) -> None:
    books.run(books.pay, [], on_empty="allow")
    capsys.readouterr()
    assert main(["show", books.dag_id, str(DAY), "--ledger", books.url, "-o", "table"]) == 0
    assert "post: 0 listed; 0 asks" in capsys.readouterr().out


def test_d11_a_waived_document_is_told_from_a_done_one_in_every_place(books: Books) -> None:
    def refuse(document: str) -> None:
        raise Rejected("account closed")

    books.run(refuse, ["A"])
    books.resolve("A", "waive")
    report = books.run(refuse, ["A"], try_number=2)
    day = Monitor(books.ledger, limit_s=60).day(books.dag_id, DAY, None)
    assert day is not None
    assert (day.figures.waived, day.figures.done) == (1, 0)
    assert day.figures == report.figures


@pytest.mark.parametrize("listed", [["A", "B", "B"], ["A", "B"]])
def test_d11_an_id_that_is_listed_twice_does_not_make_a_night_complete(
    books: Books, listed: list[str]
) -> None:
    books.run(books.pay, listed)
    wanted = ExpectedOperation(key_namespace=books.dag_id, operation="post", since=DAY, least=3)
    short = shortfalls(books.database, wanted, [DAY])
    assert "with 2 documents; at least 3 are expected" in short[DAY]
