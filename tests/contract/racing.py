"""Processes that run into each other at the same keys."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from airflow_guard.core.guard import Asking, TaskIdentity, Verdict, judge
from airflow_guard.store import database as database_module
from airflow_guard.store.changes import Ownership
from airflow_guard.store.database import LedgerDatabase
from airflow_guard.store.ledger import Ledger
from tests.contract.attempts import SPACE, documents_of, opened
from tests.processes import FORKED

ASKING = Asking(TaskIdentity("statements", "post", "manual__1"), "default")
KEYS = tuple(f"S-{number}" for number in range(5))


def race(url: str, processes: int) -> list[list[str]]:
    """Let real processes do the same keys, the first of them at the same moment; return what each found."""
    together, answers = FORKED.Barrier(processes), FORKED.SimpleQueue()
    racers = [
        FORKED.Process(target=_run, args=(url, number, together, answers), daemon=True)
        for number in range(processes)
    ]
    for racer in racers:
        racer.start()
    try:
        found = [answers.get() for _ in racers]
    finally:
        for racer in racers:
            racer.join(10)
            racer.kill()
    for answer in found:
        if isinstance(answer, BaseException):
            raise answer
    return found


def _run(url: str, number: int, together: Any, answers: Any) -> None:
    # Of many writers SQLite may keep one out for seconds, however short each of their transactions is.
    database_module.LOCK_TIMEOUT_S = 60
    try:
        answers.put(_execute(url, number, together))
    except BaseException as error:
        together.abort()
        answers.put(RuntimeError(f"process {number}: {type(error).__name__}: {error}"))


def _execute(url: str, number: int, together: Any) -> list[str]:
    """Read, judge, claim, begin, execute and complete each key, as a task does."""
    ledger = Ledger(LedgerDatabase(url))
    own = Ownership.new(SPACE.key_date, opened(ledger, SPACE), f"process {number}")
    verdicts = []
    for turn, document in enumerate(documents_of(SPACE, *KEYS)):
        known = ledger.read(SPACE.key_date, [document.key_hash])
        verdict = judge(known.get(document.key_hash), ASKING).verdict
        if turn == 0:
            together.wait(60)  # all have read the first key before any of them claims it
        verdicts.append(str(verdict))
        won = ledger.claim(own, SPACE, [document], []) if verdict is Verdict.CLAIM else {}
        if won and not ledger.begin(own, [document.key_hash]):
            with ledger.database.business_engine.begin() as connection:
                connection.execute(sa.text("INSERT INTO effect VALUES (:name)"), {"name": document.name})
            assert not ledger.complete(own, [document.key_hash], str(number))
    ledger.database.dispose()
    return verdicts
