"""History that was done before the ledger kept watch is adopted as completed."""

from __future__ import annotations

import io
import threading
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard.acts.adoption import CHUNK, Adopted, HistoryRow, Operation, adopt
from airflow_guard.acts.history import csv_rows, sql_rows
from airflow_guard.acts.renaming import rename
from airflow_guard.core.errors import ConfigurationError, LedgerError, ResolutionError
from airflow_guard.core.states import Phase, State
from airflow_guard.store.database import LedgerDatabase
from airflow_guard.store.ledger import Ledger
from tests.contract.attempts import DAY, SPACE, attempt, documents_of, new_ledger
from tests.databases import databases

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_guard.core.keys import KeySpace
    from tests.databases import DatabaseUnderTest

OPERATION = Operation("statements", "post_statement")


@pytest.fixture
def ledger(database: DatabaseUnderTest) -> Iterator[Ledger]:
    ledger = new_ledger(database.url)
    yield ledger
    ledger.database.dispose()


def adopted(
    ledger: Ledger, source: str | Iterable[HistoryRow], operation: Operation = OPERATION, **more: Any
) -> Adopted:
    rows = csv_rows(io.StringIO(source, newline="")) if isinstance(source, str) else source
    return adopt(ledger, operation, rows, **{"actor": "ana", "reason": "ran before the ledger", **more})


def found(ledger: Ledger, space: KeySpace, *names: str | None) -> dict[str | None, Any]:
    """Return what a task with this space finds, by document."""
    hashes = {document.key_hash: document.name for document in documents_of(space, *names)}
    return {hashes[key]: row for key, row in ledger.read(space.key_date, list(hashes)).items()}


def on(day: date, **more: Any) -> KeySpace:
    return replace(SPACE, business_date=day, **more)


def count(ledger: Ledger, table: str = "execution") -> int:
    with ledger.database.engine.connect() as connection:
        rows = sa.select(sa.func.count()).select_from(getattr(ledger.database.tables, table))
        return int(connection.execute(rows).scalar_one())


def test_adopted_documents_are_done_for_every_later_run(ledger: Ledger) -> None:
    done = adopted(ledger, "business_date,document\n2024-12-30,INV-1\n2024-12-31, INV-2 \n")
    assert (done.rows, done.adopted, done.known, done.repeated) == (2, 2, 0, 0)
    assert (done.first_date, done.last_date) == (date(2024, 12, 30), date(2024, 12, 31))
    (first,) = found(ledger, on(date(2024, 12, 30)), "INV-1").values()
    assert (first.state, first.phase, first.attempt) == (State.COMPLETED, Phase.NONE, 0)
    assert (first.first_run, first.last_run, first.result) == (None, None, None)
    assert "adoption" in first.done_by
    assert set(found(ledger, on(date(2024, 12, 31)), "INV-2")) == {"INV-2"}


@databases("sqlite")
def test_a_document_is_adopted_under_the_key_that_the_operator_makes_of_it(ledger: Ledger) -> None:
    decomposed = "Ru\u0308ckla\u0308ufer-7"
    adopted(ledger, f'business_date,document\n2025-03-31,"  {decomposed} "\n')
    assert found(ledger, SPACE, "R\u00fcckl\u00e4ufer-7")["R\u00fcckl\u00e4ufer-7"].state is State.COMPLETED


def test_whole_runs_cycles_and_once_per_document(ledger: Ledger) -> None:
    adopted(ledger, "business_date\n2025-03-31\n")
    assert set(found(ledger, SPACE, None)) == {None}
    adopted(
        ledger, "business_date,document,cycle\n2025-03-31,A,2\n2025-03-31,A,\n", replace(OPERATION, cycle="1")
    )
    assert set(found(ledger, replace(SPACE, cycle="2"), "A")) == {"A"}
    assert set(found(ledger, replace(SPACE, cycle="1"), "A")) == {"A"}
    assert found(ledger, SPACE, "A") == {}
    adopted(ledger, "business_date,document\n2025-03-31,PAY-1\n", replace(OPERATION, once_per="document"))
    assert set(found(ledger, on(date(2030, 1, 1), once_per="document"), "PAY-1")) == {"PAY-1"}
    with pytest.raises(ConfigurationError, match="cycle"):
        adopted(ledger, "business_date\n2025-03-31\n", replace(OPERATION, once_per="document", cycle="1"))


def test_results_are_replayed_later(ledger: Ledger) -> None:
    text = 'business_date,document,result\n2025-03-31,A,"{""id"": 7}"\n2025-03-31,B,\n2025-03-31,C,null\n'
    adopted(ledger, text)
    rows = found(ledger, SPACE, "A", "B", "C")
    assert (rows["A"].result, rows["B"].result, rows["C"].result) == ('{"id":7}', None, "null")


def test_known_keys_are_left_alone_whatever_their_state(ledger: Ledger) -> None:
    doubtful = attempt(ledger, "A").begin().doubt("timeout")
    done = adopted(ledger, "business_date,document\n2025-03-31,A\n2025-03-31,B\n")
    assert (done.adopted, done.known) == (1, 1)
    assert doubtful.row().state is State.IN_DOUBT
    again = adopted(ledger, "business_date,document\n2025-03-31,A\n2025-03-31,B\n")
    assert (again.adopted, again.known, again.repeated) == (0, 2, 0)
    assert count(ledger, "event") == 2  # the doubt, and the adoption that did something


def test_rows_that_are_listed_twice_are_counted(ledger: Ledger) -> None:
    lines = ["2025-03-31,A", "2025-03-31,B", "2025-03-31, A"]
    lines += [f"2025-03-31,INV-{number}" for number in range(CHUNK)]
    lines += ["2025-03-31,B"]
    done = adopted(ledger, "business_date,document\n" + "\n".join(lines))
    assert (done.rows, done.adopted, done.known, done.repeated) == (CHUNK + 4, CHUNK + 2, 0, 2)
    assert count(ledger) == CHUNK + 2


def test_one_event_tells_who_adopted_what_and_why_and_the_rows_lead_to_it(ledger: Ledger) -> None:
    adopted(ledger, "business_date,document\n2024-01-02,A\n2025-03-31,B\n", actor="ana", reason="archive 7")
    with ledger.database.engine.connect() as connection:
        (event,) = connection.execute(sa.select(ledger.database.tables.event)).all()
    assert (event.kind, event.actor, event.reason) == ("adopt", "ana", "archive 7")
    assert "statements / post_statement / 2024-01-02 … 2025-03-31 (2 keys" in event.key_text
    assert found(ledger, SPACE, "B")["B"].owner_token == event.owner_token


def test_a_dry_run_counts_and_writes_nothing(ledger: Ledger) -> None:
    attempt(ledger, "A").begin().complete()
    done = adopted(ledger, "business_date,document\n2025-03-31,A\n2025-03-31,B\n2025-03-31,B\n", dry_run=True)
    assert (done.rows, done.adopted, done.known, done.repeated) == (3, 1, 1, 1)
    assert (count(ledger), count(ledger, "event")) == (1, 0)


# -- what is refused


def test_one_bad_row_takes_everything_back_and_all_bad_rows_are_named(ledger: Ledger) -> None:
    lines = [f"2025-03-31,INV-{number},{number}" for number in range(CHUNK + 3)]
    lines[1] = "31/03/2025,INV-1,1"
    lines[2] = "2025-02-30,INV-2,2"
    lines[3] = "2025-03-31,,3"
    lines[4] = "2025-03-31,a\u200bb,4"
    lines[5] = "2025-03-31,INV-5"
    lines[6] = "2025-03-31,INV-6,ACK-17"
    lines[CHUNK + 1] = "2025-03-31," + "x" * 256 + ","
    with pytest.raises(ResolutionError) as caught:
        adopted(ledger, "business_date,document,result\n" + "\n".join(lines))
    text = str(caught.value)
    assert f"7 of {CHUNK + 3} rows cannot be adopted; nothing was written." in text
    for line in (3, 4, 5, 6, 7, 8, CHUNK + 3):
        assert f"\n  line {line}: " in text
    assert "has 2 cells, the header has 3" in text
    assert '"ACK-17"' in text
    assert (count(ledger), count(ledger, "event")) == (0, 0)


@databases("sqlite")
def test_more_bad_rows_than_can_be_named_are_counted(ledger: Ledger) -> None:
    with pytest.raises(ResolutionError, match=r"30 of 30 rows(.|\n)*and 10 more"):
        adopted(ledger, "business_date,document\n" + "2025-3-31,A\n" * 30)


@databases("sqlite")
@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("", "empty"),
        ("business_date,document\n", "no rows"),
        ("date,document\n2025-03-31,A\n", "unknown columns: date"),
        ("business_date,docment\n2025-03-31,A\n", "unknown columns: docment"),
        ("business_date;document\n2025-03-31;A\n", "--delimiter"),
        ("document\nA\n", "no column business_date"),
        ("business_date,document,document\n2025-03-31,A,B\n", "twice"),
        ('business_date,document\n2025-03-31,"A\n', "line"),
    ],
)
def test_a_file_of_another_form_is_refused(ledger: Ledger, source: str, says: str) -> None:
    with pytest.raises(ResolutionError, match=says):
        adopted(ledger, source)
    assert count(ledger) == 0


@databases("sqlite")
def test_a_file_in_another_encoding_is_refused(ledger: Ledger) -> None:
    latin = io.TextIOWrapper(
        io.BytesIO("business_date,document\n2025-03-31,Rück\n".encode("latin-1")), "utf-8"
    )
    with pytest.raises(ResolutionError, match="UTF-8"):
        adopted(ledger, csv_rows(latin))


@databases("sqlite")
def test_a_missing_reason_is_refused(ledger: Ledger) -> None:
    with pytest.raises(ResolutionError, match="reason"):
        adopted(ledger, "business_date\n2025-03-31\n", reason="  ")


def test_history_of_an_old_name_is_refused_because_nobody_would_find_it(ledger: Ledger) -> None:
    adopted(ledger, "business_date\n2025-03-30\n")
    rename(ledger, ("statements", "post_statement"), ("books", "post"), actor="ana", reason="new name")
    with pytest.raises(ResolutionError, match="books / post"):
        adopted(ledger, "business_date\n2025-03-31\n")


def test_a_source_that_breaks_half_way_leaves_nothing(ledger: Ledger) -> None:
    def rows() -> Iterator[HistoryRow]:
        for number in range(CHUNK + 5):
            yield HistoryRow(f"row {number}", {"business_date": DAY, "document": f"INV-{number}"})
        raise OSError("the share is gone")

    with pytest.raises(OSError, match="gone"):
        adopted(ledger, rows())
    assert (count(ledger), count(ledger, "event")) == (0, 0)


# -- from a query


@pytest.fixture
def old_system(ledger: Ledger) -> sa.Engine:
    """A table of the business database that shows what was done."""
    engine = ledger.database.engine
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE posted (posted_on DATE, statement_no VARCHAR(40), items INTEGER, note VARCHAR(40))"
        )
        posted = sa.table("posted", *map(sa.column, ("posted_on", "statement_no", "items", "note")))
        rows = [
            {"posted_on": DAY.isoformat(), "statement_no": f"ST-{n:04}", "items": n, "note": "100% :done"}
            for n in range(CHUNK + 20)
        ]
        connection.execute(sa.insert(posted), rows)
    return engine


def test_history_comes_from_a_query_on_the_ledgers_own_database(
    ledger: Ledger, old_system: sa.Engine
) -> None:
    sql = (
        "SELECT posted_on AS business_date, statement_no AS document, items AS result FROM posted "
        "WHERE note LIKE '100% :do%'"
    )
    with sql_rows(old_system, sql) as rows:
        done = adopted(ledger, rows)
    assert (done.adopted, done.known) == (CHUNK + 20, 0)
    assert found(ledger, SPACE, "ST-0007")["ST-0007"].result == "7"


@databases("sqlite", "postgres_embedded")
@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELECT posted_on AS business_date FROM nowhere", "query for the history failed"),
        ("SELEC 1", "query for the history failed"),
        ("SELECT statement_no AS document FROM posted", "no column business_date"),
        ("SELECT posted_on AS business_date, items FROM posted", "unknown columns: items"),
        ("SELECT posted_on AS business_date, NULL AS document FROM posted", "row 1: A document id is empty"),
    ],
)
def test_a_query_that_does_not_fit_is_refused(
    ledger: Ledger, old_system: sa.Engine, sql: str, says: str
) -> None:
    with sql_rows(old_system, sql) as rows, pytest.raises(ResolutionError, match=says):
        adopted(ledger, rows)
    assert count(ledger) == 0


@pytest.mark.parametrize("sql", ["DELETE FROM posted", "UPDATE posted SET items = 0", "DROP TABLE posted"])
def test_a_query_cannot_write(ledger: Ledger, old_system: sa.Engine, sql: str) -> None:
    with sql_rows(old_system, sql) as rows, pytest.raises(ResolutionError):
        adopted(ledger, rows)
    with old_system.begin() as connection:
        rows_left = connection.exec_driver_sql("SELECT count(*), max(items) FROM posted").one()
        connection.exec_driver_sql("INSERT INTO posted (statement_no) VALUES ('still writable elsewhere')")
    assert tuple(rows_left) == (CHUNK + 20, CHUNK + 19)


# -- at the moment of a claim


def test_a_key_that_is_claimed_meanwhile_is_left_to_its_claimant(
    ledger: Ledger, database: DatabaseUnderTest
) -> None:
    """The adoption stands before its commit; a task asks for one of its keys, and one of the task's own."""
    other = Ledger(LedgerDatabase(database.url))
    claimed = attempt(ledger, "A").begin()
    stands, go_on = threading.Event(), threading.Event()

    @sa.event.listens_for(other.database.engine, "commit")
    def hold(connection: sa.Connection) -> None:
        stands.set()
        assert go_on.wait(60)

    outcome: list[Any] = []
    text = "business_date,document\n2025-03-31,A\n2025-03-31,B\n"
    adopting = threading.Thread(target=lambda: outcome.append(adopted(other, text)))
    adopting.start()
    assert stands.wait(60)
    executed: list[str] = []

    def task() -> None:
        try:
            attempt(ledger, "B")
            executed.append("B")
        except (LedgerError, AssertionError):
            pass  # in progress elsewhere, or adopted

    claiming = threading.Thread(target=task)
    claiming.start()
    go_on.set()
    adopting.join(60)
    claiming.join(60)
    other.database.dispose()
    assert (outcome[0].adopted, outcome[0].known) == (1, 1)
    assert executed == []
    assert found(ledger, SPACE, "B")["B"].state is State.COMPLETED
    claimed.complete()
    assert claimed.row().state is State.COMPLETED
    assert claimed.row().attempt == 1
