"""One question to one ledger, through the read model."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from airflow_guard.hooks.settings import GuardSettings
from airflow_guard.plugins.page import NotThere
from airflow_guard.store.monitoring.monitor import Monitor

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_guard.plugins.page import Page
    from airflow_guard.store.ledger import Ledger

T = TypeVar("T")

_SHARE = 0.9
"""Of the time that a page waits: the database should give up before the page does."""


def monitor(ledger: Ledger) -> Monitor:
    """Return the read model of a ledger."""
    return Monitor(ledger, limit_s=GuardSettings.read().page_timeout_s * _SHARE)


def ask(page: Page, question: Callable[[Monitor], T]) -> T:
    """Ask the ledger that a page is about.

    :raises LedgerTrouble: it has no answer in time.
    """
    return page.ledgers.ask(page.ledger, lambda ledger: question(monitor(ledger)))


def ask_for_one(page: Page, question: Callable[[Monitor], T | None]) -> T:
    """Ask for one thing.

    :raises NotThere: there is none, or the caller may not read it.
    """
    found = ask(page, question)
    if found is None:
        raise NotThere
    return found
