"""One DAG on one business date."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_guard.reading.attention import attention
from airflow_guard.reading.calendar import calendar
from airflow_guard.reading.calendar_records import Day
from airflow_guard.reading.checks import breaks, breaks_by_id, checks, checks_by_id, one_break, variances
from airflow_guard.reading.figures import operations
from airflow_guard.reading.keys import key_rows, keys, one_key
from airflow_guard.reading.lists import (
    DEFAULT_LIMIT,
    AttentionFilters,
    BreakFilters,
    CheckFilters,
    KeyFilters,
    TryFilters,
)
from airflow_guard.reading.scope import Scope
from airflow_guard.reading.search import find
from airflow_guard.reading.tries import tries

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import date

    from airflow_guard.reading.calendar_records import Calendar, OperationOfDay
    from airflow_guard.reading.check_records import BreakLife, BreakRow, CheckRow, VariancePoint
    from airflow_guard.reading.key_records import KeyLife, KeyRow, TryRow
    from airflow_guard.reading.lists import AttentionItem, Found, Page
    from airflow_guard.reading.scope import Readable
    from airflow_guard.store.ledger import Ledger


def day(scope: Scope, dag_id: str, business_date: date) -> Day | None:
    """Return one DAG on one date, ``None`` if there is nothing of it in the scope."""
    if not scope.allows(dag_id):
        return None
    cell = calendar(scope.of(dag_id), business_date, business_date).cells.get((dag_id, business_date))
    if cell is None:
        return None
    of_day: dict[str, Any] = {"dag_id": dag_id, "start": business_date, "end": business_date}
    return Day(
        cell,
        operations(scope.of(dag_id), business_date, business_date),
        tries(scope, TryFilters(**of_day), DEFAULT_LIMIT, 0),
        tries(scope, TryFilters(**of_day, duplicates=True), DEFAULT_LIMIT, 0),
        checks(scope, CheckFilters(**of_day), DEFAULT_LIMIT, 0),
        breaks(scope, BreakFilters(**of_day), DEFAULT_LIMIT, 0),
    )


# -- One class that answers everything that people ask about a ledger, and changes nothing -------------------

T = TypeVar("T")

LIMIT_S = 2.0
"""How long one read may take in the database."""


class Monitor:
    """Reads one ledger for people.

    Every method takes the DAGs that the caller may read, and applies that in the database before it counts, searches
    or cuts. A row belongs to the DAG of its last task try, an adopted one to the DAG that its key namespace names.
    What may not be read is not there.

    :param ledger: the ledger.
    :param limit_s: a read that takes longer is ended by the database and raises ``LedgerBusy``.
    :raises LedgerUnavailable: every method, if the database is down (a retry helps).
    :raises LedgerNotMigrated: every method, if the tables are missing or of another version.
    :raises LedgerBusy: every method, if the database is too slow (a retry may help).
    """

    def __init__(self, ledger: Ledger, *, limit_s: float = LIMIT_S) -> None:
        self._ledger = ledger
        self._limit_s = limit_s

    def _read(self, readable: Readable, work: Callable[[Scope], T]) -> T:
        return self._ledger.database.read(
            lambda connection: work(Scope(self._ledger, connection, readable)), limit_s=self._limit_s
        )

    def calendar(
        self, start: date, end: date, readable: Readable, *, deployment: str | None = None
    ) -> Calendar:
        """Return where every DAG stands about the dates of a range, both ends inclusive."""
        return self._read(readable, lambda scope: calendar(scope, start, end, deployment))

    def attention(
        self,
        readable: Readable,
        filters: AttentionFilters | None = None,
        *,
        limit: int = DEFAULT_LIMIT,
        offset: int = 0,
    ) -> Page[AttentionItem]:
        """Return what needs a person first: the worst kind first, then the oldest."""
        wanted = filters or AttentionFilters()
        return self._read(readable, lambda scope: attention(scope, wanted, limit, offset))

    def day(self, dag_id: str, business_date: date, readable: Readable) -> Day | None:
        """Return one DAG on one date, ``None`` if it never ran or may not be read."""
        return self._read(readable, lambda scope: day(scope, dag_id, business_date))

    def figures(
        self, dag_id: str | None, start: date, end: date, readable: Readable, *, operation: str | None = None
    ) -> Sequence[OperationOfDay]:
        """Return the figures of each operation and business date of a range, both ends inclusive, by date and name."""
        return self._read(readable, lambda scope: operations(scope.of(dag_id), start, end, operation))

    def keys(
        self,
        readable: Readable,
        filters: KeyFilters | None = None,
        *,
        limit: int = DEFAULT_LIMIT,
        offset: int = 0,
    ) -> Page[KeyRow]:
        """Return keys, newest business date first, then by namespace, operation, cycle and document."""
        wanted = filters or KeyFilters()
        return self._read(readable, lambda scope: keys(scope, wanted, limit, offset))

    def key(self, key_date: date, key_hash: str, readable: Readable) -> KeyLife | None:
        """Return the life of a key, ``None`` if there is none or it may not be read."""
        return self._read(readable, lambda scope: one_key(scope, key_date, key_hash))

    def picked_keys(self, wanted: Sequence[tuple[date, str]], readable: Readable) -> Sequence[KeyRow]:
        """Return the keys of these ``key_date`` and ``key_hash``; those that may not be read are not there."""
        return self._read(
            readable, lambda scope: [row for row in key_rows(scope, wanted) if scope.allows(row.dag_id)]
        )

    def find(
        self,
        text: str,
        readable: Readable,
        *,
        business_date: date | None = None,
        limit: int = DEFAULT_LIMIT,
    ) -> Found:
        """Return the keys of a document, that begin so (6 or more hex characters), or that the receiver was given so."""
        return self._read(readable, lambda scope: find(scope, text, business_date, limit))

    def tries(
        self,
        readable: Readable,
        filters: TryFilters | None = None,
        *,
        limit: int = DEFAULT_LIMIT,
        offset: int = 0,
    ) -> Page[TryRow]:
        """Return task tries, newest business date first, then the newest try."""
        wanted = filters or TryFilters()
        return self._read(readable, lambda scope: tries(scope, wanted, limit, offset))

    def blocked(
        self,
        readable: Readable,
        filters: TryFilters | None = None,
        *,
        limit: int = DEFAULT_LIMIT,
        offset: int = 0,
    ) -> Page[TryRow]:
        """Return the tries that found work done, or were kept from it: who asked for duplicates, and when."""
        return self.tries(
            readable, replace(filters or TryFilters(), duplicates=True), limit=limit, offset=offset
        )

    def breaks(
        self,
        readable: Readable,
        filters: BreakFilters | None = None,
        *,
        limit: int = DEFAULT_LIMIT,
        offset: int = 0,
    ) -> Page[BreakRow]:
        """Return breaks: oldest first; newest business date first if settled ones are among them."""
        wanted = filters or BreakFilters()
        return self._read(readable, lambda scope: breaks(scope, wanted, limit, offset))

    def break_(self, break_id: int, readable: Readable) -> BreakLife | None:
        """Return the life of a break, ``None`` if there is none or it may not be read."""
        return self._read(readable, lambda scope: one_break(scope, break_id))

    def picked_breaks(self, ids: Sequence[int], readable: Readable) -> Sequence[BreakRow]:
        """Return the breaks of these ids; those that may not be read are not there."""
        return self._read(readable, lambda scope: breaks_by_id(scope, ids))

    def checks(
        self,
        readable: Readable,
        filters: CheckFilters | None = None,
        *,
        limit: int = DEFAULT_LIMIT,
        offset: int = 0,
    ) -> Page[CheckRow]:
        """Return reconciliations, newest business date first, then the newest check."""
        wanted = filters or CheckFilters()
        return self._read(readable, lambda scope: checks(scope, wanted, limit, offset))

    def check(self, check_id: int, readable: Readable) -> CheckRow | None:
        """Return one reconciliation, ``None`` if there is none or it may not be read."""
        return self._read(readable, lambda scope: checks_by_id(scope, [check_id]).get(check_id))

    def variance_over_time(
        self, start: date, end: date, readable: Readable, *, dag_id: str | None = None
    ) -> Sequence[VariancePoint]:
        """Return what the last reconciliation of each date found, by date."""
        return self._read(readable, lambda scope: variances(scope.of(dag_id), start, end))
