"""Wherever a try is killed: the figures of its date add up, and none of its documents is missing or counted twice."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import hypothesis.strategies as st
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, given, settings

from airflow_guard.acts import drops
from airflow_guard.core.errors import LedgerError, NotExecuted, Rejected
from airflow_guard.core.figures import Asks, Figures
from airflow_guard.execution import session as execution
from airflow_guard.reading.monitor import Monitor
from tests.chaos import fixtures
from tests.chaos.books import DATABASE, DAY, Books

pytestmark = fixtures.ONE_OF_EACH
books = fixtures.books
_numbers = itertools.count(1)
ENDS = ("done", "done", "refused", "failed", "doubtful")


class Killed(BaseException):
    """The process ends here."""


class Dead(LedgerError):
    """What a dead process still tries to tell the ledger."""


def kill_at(books: Books, number: int) -> None:
    """Let a process die where it would begin one of its transactions: nothing that follows reaches the database."""
    left = [number]

    def count(*_: object) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise Killed
        if left[0] < 0:
            raise Dead("The process is dead.")

    for engine in (books.database.engine, books.database.business_engine):
        sa.event.listen(engine, "begin", count, insert=True)


def act(books: Books, ends: dict[str, str], *, in_database: bool) -> Any:
    def end(document: str, attempt: int) -> None:
        if ends[document] == "refused":
            raise Rejected("account closed")
        if ends[document] == "failed" and attempt == 1:
            raise NotExecuted("closed")

    def pay(document: str, attempt: int) -> None:
        end(document, attempt)
        books.receiver.call(document)
        if ends[document] == "doubtful":
            raise TimeoutError

    def post(document: str, attempt: int, connection: sa.Connection) -> None:
        end(document, attempt)
        books.post(document, connection)

    return post if in_database else pay


def seen(books: Books) -> tuple[Figures, Asks, int]:
    """Return what the page of the day shows, and what the calendar counts."""
    day = Monitor(books.ledger, limit_s=60).day(books.dag_id, DAY, None)
    if day is None:
        return Figures(), Asks(), 0
    for each in day.tries.rows:
        parts = (
            each.executed,
            each.replayed,
            each.repeated,
            each.blocked,
            each.rejected,
            each.failed,
            each.in_doubt,
            each.waiting,
            each.released,
        )
        assert each.ended_at is None or sum(parts) == each.documents
        assert each.ended_at is not None or sum(parts) <= each.documents
    return day.figures, day.cell.asks, day.cell.documents


@pytest.mark.parametrize("in_database", [True, False])
def test_figures_add_up_wherever_a_try_is_killed(
    books: Books, monkeypatch: pytest.MonkeyPatch, in_database: bool
) -> None:
    monkeypatch.setattr(execution, "CLAIM_CHUNK", 2)

    @settings(
        max_examples=25 if books.url.startswith("sqlite") else 12,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(ends=st.lists(st.sampled_from(ENDS), min_size=1, max_size=6), number=st.integers(0, 30))
    def killed(ends: list[str], number: int) -> None:
        one = Books(books.url, f"{books.dag_id}_{next(_numbers)}", books.receiver)
        dying = Books(books.url, one.dag_id, books.receiver)
        try:
            check(one, dying, {f"D-{one.dag_id}-{n}": end for n, end in enumerate(ends)}, number)
        finally:
            dying.close()
            one.close()

    def check(one: Books, dying: Books, ends: dict[str, str], number: int) -> None:
        documents = list(ends)
        rules: dict[str, Any] = {"guarded_from": DAY} | ({"side_effect": DATABASE} if in_database else {})
        if in_database:
            ends = {name: "done" if end == "doubtful" else end for name, end in ends.items()}
        kill_at(dying, number)
        with contextlib.suppress(Killed, LedgerError):
            dying.run(act(dying, ends, in_database=in_database), documents, **rules)
        one.expire_leases()

        figures, asks, in_calendar = seen(one)
        effects = one.posted() if in_database else [d for d in one.receiver.documents() if d in ends]
        assert figures.listed == in_calendar
        assert figures.listed in ({len(documents)} if one.rows() else {0, *range(len(documents))})
        assert figures.done == asks.executed
        assert figures.done <= len(effects) <= figures.done + figures.in_doubt
        assert (asks.replayed, asks.blocked, figures.in_progress) == (0, 0, 0)

        again = one.run(act(one, ends, in_database=in_database), documents, try_number=2, **rules)
        figures, asks, in_calendar = seen(one)
        assert figures.listed == in_calendar == len(documents)
        assert (figures.not_begun, figures.in_progress, figures.dropped) == (0, 0, 0)
        assert figures.done + figures.rejected + figures.failed + figures.in_doubt == len(documents)
        assert asks.executed == figures.done
        assert (asks.duplicates, asks.own_replays) == (0, again.own_replays)
        assert again.figures == figures, "the task's log says what the page says"

        other = one.run(
            act(one, ends, in_database=in_database), documents, run_id="manual__1", run_type="manual", **rules
        )
        figures, asks, _ = seen(one)
        assert figures.listed == len(documents)
        assert asks.duplicates == other.task_run_counts()["replayed"]
        assert asks.asks == asks.executed + asks.replayed + asks.blocked
        assert other.figures == figures
        if figures.failed:
            drops.drop(
                one.ledger, drops.Place(one.dag_id, "post", DAY), None, actor="ada", reason="not wanted"
            )
            after, _, in_calendar = seen(one)
            assert (after.dropped, after.failed) == (figures.failed, 0)
            assert after.listed == in_calendar == len(documents)

    killed()
