"""How far a task over many documents is: lines in its log, by a clock that the test sets."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from airflow_guard.core.errors import NotExecuted
from airflow_guard.execution import run as run_module
from airflow_guard.execution.attempt import EVERY_S, Progress
from tests.chaos import fixtures
from tests.chaos.books import DATABASE, Books, counts, numbered
from tests.databases import databases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import sqlalchemy as sa

pytestmark = databases("sqlite", "postgres_embedded")
books = fixtures.books


class Clock:
    """Goes on by so much for each document."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(run_module, "Progress", partial(Progress, clock=clock))
    return clock


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "airflow_guard.execution.attempt" and "are through" in record.getMessage()
    ]


def working(clock: Clock, each_s: float) -> Callable[..., None]:
    def work(document: str) -> None:
        clock.now += each_s

    return work


def test_a_line_now_and_then_says_done_rate_and_left(
    books: Books, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    report = books.run(working(clock, 0.5), numbered(100))
    assert counts(report) == {"executed": 100}
    assert said(caplog) == [
        "40 of 100 documents are through, 2 per second, 60 left, about 30 s at this rate.",
        "80 of 100 documents are through, 2 per second, 20 left, about 10 s at this rate.",
    ]


def test_a_task_that_is_quickly_done_says_nothing(
    books: Books, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    books.run(working(clock, (EVERY_S - 1) / 30), numbered(30))
    assert said(caplog) == []


def test_a_generator_has_no_known_end(books: Books, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    def listing() -> Iterator[str]:
        yield from numbered(30)

    books.run(working(clock, 1), listing)
    assert said(caplog) == ["20 documents are through, 1 per second."]


def test_all_that_is_through_counts_whatever_became_of_it(
    books: Books, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    books.run(working(clock, 0), numbered(1200))

    def sometimes(document: str) -> None:
        clock.now += 10
        raise NotExecuted("closed")

    # What is replayed has no call of its own: after 1,000 of them two look at the clock, and the second speaks.
    report = books.run(sometimes, [*numbered(1000), "other 1", "other 2"], try_number=2)
    assert counts(report) == {"replayed": 1000, "failed": 2}
    assert said(caplog) == ["1,002 of 1,002 documents are through, 50.1 per second, 0 left."]


@pytest.mark.parametrize("rules", [{"max_workers": 4}, {"call_per": "batch", "batch_size": 10}])
def test_threads_and_batches_count_as_well(
    books: Books, clock: Clock, caplog: pytest.LogCaptureFixture, rules: dict[str, Any]
) -> None:
    caplog.set_level("INFO")

    def post_one(document: str, connection: sa.Connection) -> None:
        clock.now += EVERY_S

    def post_batch(documents: Any, connection: sa.Connection) -> None:
        clock.now += EVERY_S

    work = post_batch if "batch_size" in rules else post_one
    report = books.run(work, numbered(40), side_effect=DATABASE, **rules)
    assert counts(report) == {"executed": 40}
    lines = said(caplog)
    assert lines
    assert all(" of 40 documents are through" in line for line in lines)
