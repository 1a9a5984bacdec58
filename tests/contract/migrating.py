"""Several processes that migrate one ledger at the same moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_guard.store.database import LedgerDatabase
from airflow_guard.store.migrate import check_migrated, current_revision, ensure_sqlite, migrate
from demo.waiting import QUIET_S
from tests.processes import FORKED

if TYPE_CHECKING:
    from collections.abc import Callable


def at_the_same_time(work: Callable[[str], Any], url: str, *, processes: int) -> list[Any]:
    """Run ``work(url)`` in several processes that start it together; return what each returned."""
    together, answers = FORKED.Barrier(processes), FORKED.Queue()
    started = [
        FORKED.Process(target=_in_a_process, args=(work, url, together, answers)) for _ in range(processes)
    ]
    for process in started:
        process.start()
    try:
        return [answers.get(timeout=QUIET_S) for _ in started]
    finally:
        for process in started:
            process.join(timeout=10)
            process.kill()


def _in_a_process(work: Callable[[str], Any], url: str, together: Any, answers: Any) -> None:
    try:
        together.wait(timeout=QUIET_S)
        answers.put(work(url))
    except BaseException as error:
        answers.put(repr(error))
        raise


def migrate_in_a_process(url: str) -> list[str]:
    return migrate(LedgerDatabase(url))


def ensure_in_a_process(url: str) -> str | None:
    ledger = LedgerDatabase(url)
    ensure_sqlite(ledger)
    check_migrated(ledger)
    return current_revision(ledger)
