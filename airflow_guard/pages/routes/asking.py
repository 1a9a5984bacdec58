"""Questions to the ledgers that a page is about, through the read model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from airflow_guard.hooks.settings import GuardSettings
from airflow_guard.pages.ledgers import LedgerTrouble
from airflow_guard.pages.page import PAGE_SIZE, ChooseLedger
from airflow_guard.reading.lists import first_rows, merged
from airflow_guard.reading.monitor import Monitor
from airflow_guard.reading.scope import NotThere

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import date

    from airflow_guard.pages.page import Page
    from airflow_guard.reading.lists import Page as Part
    from airflow_guard.store.ledger import Ledger

T = TypeVar("T")

_SHARE = 0.9
"""Of the time that a page waits: the database should give up before the page does."""


def monitor(ledger: Ledger) -> Monitor:
    """Return the read model of a ledger."""
    return Monitor(ledger, limit_s=limit_s())


def limit_s() -> float:
    """Return how long the database may look for what a page waits for."""
    return GuardSettings.read().page_timeout_s * _SHARE


@dataclass(frozen=True)
class Listing(Generic[T]):
    """A part of a list, of one ledger or of all.

    :param ledger: whose it is; ``None``: the rows of ``part`` are pairs of a ledger and a row.
    :param troubles: the ledgers that have nothing to show now, and whose rows are missing here.
    :param ranges: the business dates that were looked at, where those of the ledgers differ.
    """

    ledger: str | None
    part: Part[Any]
    troubles: Sequence[LedgerTrouble] = ()
    ranges: Sequence[tuple[str, date, date]] = ()

    def ledgers_where(self, holds: Callable[[T], Any]) -> list[str]:
        """Return the ledgers of the rows for which something holds, each once."""
        pairs = self.part.rows if self.ledger is None else [(self.ledger, row) for row in self.part.rows]
        return list(dict.fromkeys(ledger for ledger, row in pairs if holds(row)))


def list_of(
    page: Page, question: Callable[[Monitor, int, int], Part[T]], place: Callable[[T], Any]
) -> Listing[T]:
    """Return the part of a list that a page shows, over the ledgers that it is about.

    :param question: takes limit and offset.
    :param place: where a row stands in the list.
    :raises LedgerTrouble: no ledger has an answer in time.
    """
    if len(page.wanted) == 1:
        (name,) = page.wanted
        found = page.ledgers.ask(name, lambda each: question(monitor(each), PAGE_SIZE, page.offset))
        return Listing(name, found)
    needed = first_rows(PAGE_SIZE, page.offset)
    answers, troubles = ask_each(page, lambda look: question(look, needed, 0))
    part = merged(answers, place, PAGE_SIZE, page.offset)
    ranges = [(name, each.start, each.end) for name, each in answers.items() if each.start and each.end]
    return Listing(None, part, troubles, [] if part.start or part.end else ranges)


def ask_each(page: Page, question: Callable[[Monitor], T]) -> tuple[dict[str, T], list[LedgerTrouble]]:
    """Ask the ledgers that a page is about, and return the answers by name, and what is wrong with the others.

    :raises LedgerTrouble: none has an answer in time.
    :raises NotThere: no ledger is configured.
    """
    if not page.wanted:
        raise NotThere
    said = page.ledgers.ask_all(page.wanted, lambda ledger: question(monitor(ledger)))
    answers: dict[str, T] = {}
    troubles: list[LedgerTrouble] = []
    for name, each in said.items():
        if isinstance(each, LedgerTrouble):
            troubles.append(each)
        else:
            answers[name] = each
    if troubles and not answers:
        raise troubles[0]
    return answers, troubles


def ask_for_one(page: Page, question: Callable[[Monitor], T | None]) -> T:
    """Ask for one thing; the page is then about the ledger that has it.

    :raises NotThere: there is none, or the caller may not read it.
    :raises ChooseLedger: several ledgers have one, and the address names none.
    :raises LedgerTrouble: the ledger has no answer in time; or nothing was found, and one of several has none.
    """
    answers, troubles = ask_each(page, question)
    found = {name: each for name, each in answers.items() if each is not None}
    if len(found) > 1:
        raise ChooseLedger(tuple(found))
    if not found:
        raise troubles[0] if troubles else NotThere
    ((page.ledger, one),) = found.items()
    return one


def complete(page: Page, question: Callable[[Ledger], T], *, patience_s: float) -> Mapping[str, T]:
    """Ask every ledger that a page is about, for what must not lack any of them.

    :raises LedgerTrouble: one has no answer in time.
    """
    said = page.ledgers.ask_all(page.wanted, question, patience_s=patience_s)
    for each in said.values():
        if isinstance(each, LedgerTrouble):
            raise each
    return {name: each for name, each in said.items() if not isinstance(each, LedgerTrouble)}
