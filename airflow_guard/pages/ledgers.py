"""The ledgers that the pages show, each asked on a thread of its own and for no longer than a page may take.

A database that does not answer, answers slowly or is not migrated is something to show, and nothing that may hold up a
page, another ledger, or Airflow's API server.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from typing import TYPE_CHECKING, TypeVar

from airflow_guard.core.errors import (
    ConfigurationError,
    LedgerBusy,
    LedgerNotConfigured,
    LedgerNotMigrated,
    LedgerRefused,
    LedgerUnavailable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from airflow_guard.store.ledger import Ledger

log = logging.getLogger(__name__)
T = TypeVar("T")

AT_ONCE = 6
"""How many questions one ledger gets at a time. Threads that hang in a dead network must not pile up."""


class LedgerTrouble(Exception):
    """A ledger has nothing to show; the message is for the person at the page.

    :param ledger: the id of its connection.
    :param title: what is wrong, in a few words.
    :param advice: what to do about it.
    """

    def __init__(self, ledger: str, title: str, advice: str) -> None:
        super().__init__(f"{ledger}: {title}. {advice}")
        self.ledger = ledger
        self.title = title
        self.advice = advice


class Ledgers:
    """Asks ledgers, several at once.

    :param opened: returns the ledger of a connection.
    :param patience_s: how long to wait for the answers to one question.
    """

    def __init__(self, opened: Callable[[str], Ledger], *, patience_s: float) -> None:
        self._opened = opened
        self.patience_s = patience_s
        self._slots: dict[str, threading.BoundedSemaphore] = {}
        self._lock = threading.Lock()

    def ask(self, name: str, question: Callable[[Ledger], T], *, patience_s: float | None = None) -> T:
        """Return a ledger's answer to a question.

        :param patience_s: for a question that changes something, which must not be given up early.
        :raises LedgerTrouble: it has none in time.
        :raises Exception: what the question raises and is no trouble of the ledger.
        """
        until = time.monotonic() + (patience_s or self.patience_s)
        try:
            return _answer(self._begin(name, question), until)
        except Exception as error:
            trouble = trouble_of(name, error)
            if trouble is None:
                raise
            log.warning("%s (%s)", trouble, error)
            raise trouble from error

    def ask_all(
        self, names: Iterable[str], question: Callable[[Ledger], T], *, patience_s: float | None = None
    ) -> dict[str, T | LedgerTrouble]:
        """Ask ledgers at the same time, and return what each says, or what is wrong with it."""
        until = time.monotonic() + (patience_s or self.patience_s)
        asked = {name: self._begin(name, question) for name in names}
        answers: dict[str, T | LedgerTrouble] = {}
        for name, future in asked.items():
            try:
                answers[name] = _answer(future, until)
            except Exception as error:
                answers[name] = trouble_of(name, error) or _unknown_trouble(name, error)
                log.warning("%s (%s)", answers[name], error)
        return answers

    def _begin(self, name: str, question: Callable[[Ledger], T]) -> Future[T]:
        with self._lock:
            slots = self._slots.setdefault(name, threading.BoundedSemaphore(AT_ONCE))
        future: Future[T] = Future()
        # Who asks in the same moment as many others waits a little, and then is told that the ledger is slow.
        if not slots.acquire(timeout=self.patience_s / 2):
            future.set_exception(Late())
            return future

        def work() -> None:
            try:
                future.set_result(question(self._opened(name)))
            except BaseException as error:
                future.set_exception(error)
            finally:
                slots.release()

        # Daemons: a connection attempt into the void must not keep the server from stopping.
        threading.Thread(target=work, name=f"guard-page-{name}", daemon=True).start()
        return future


def _answer(future: Future[T], until: float) -> T:
    return future.result(timeout=max(0.0, until - time.monotonic()))


_LATER = "Nothing is known about it now. Try again in a minute."
# The first that an error is of. ``{name}`` is the connection's id.
_TROUBLES: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str, str], ...] = (
    (
        LedgerNotMigrated,
        "Its tables are not there, or of another version",
        "An administrator can create them: airflow-guard migrate --ledger {name}",
    ),
    (
        LedgerRefused,
        "Its database refuses the connection",
        "An administrator must correct it: the log of Airflow's API server says why.",
    ),
    (LedgerUnavailable, "Its database cannot be reached", _LATER),
    ((LedgerBusy, TimeoutError), "Its database does not answer in time", _LATER),
    (
        LedgerNotConfigured,
        "There is no such connection",
        "An administrator can create it in Airflow, or correct [airflow_guard] ledger_conn_ids.",
    ),
    (
        ConfigurationError,
        "Its connection cannot hold a ledger",
        "The log of Airflow's API server says why.",
    ),
)


def trouble_of(name: str, error: Exception) -> LedgerTrouble | None:
    """Return what an error means to the person at the page; ``None`` if it is no trouble of a ledger.

    What the driver says may name hosts and users: that is for the log.
    """
    for kinds, title, advice in _TROUBLES:
        if isinstance(error, kinds):
            return LedgerTrouble(name, title, advice.format(name=name))
    return None


def _unknown_trouble(name: str, error: Exception) -> LedgerTrouble:
    log.error("Ledger %s cannot be read", name, exc_info=error)
    return LedgerTrouble(name, "It cannot be read", "The log of Airflow's API server says why.")
