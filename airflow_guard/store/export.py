"""What an export reads: a business date at a time, so that a year fits into memory."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.store.task_runs import aware

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import date

    from airflow_guard.store.ledger import Ledger
    from airflow_guard.store.listing import Selection

EVENT_COLUMNS = (
    "id", "at", "kind", "key_text", "key_date", "key_hash", "attempt", "owner_token", "task_run_id", "from_state",
    "to_state", "actor", "reason",
)  # fmt: skip
_PAGE = 5000
_ALL = 100_000_000


def dates(ledger: Ledger, selection: Selection) -> list[date]:
    """Return the business dates in a range that have keys, oldest first."""
    e = ledger.database.tables.execution
    found = sa.select(e.c.business_date).where(*selection.dated(e.c.business_date)).distinct()
    return list(ledger.database.read(lambda c: c.execute(found.order_by(e.c.business_date)).scalars().all()))


def of_day(selection: Selection, day: date) -> Selection:
    """Return the part of a selection that one business date has."""
    return replace(selection, business_date=day, until=None, limit=_ALL)


def events(ledger: Ledger, start: date, end: date) -> Iterator[Sequence[Any]]:
    """Yield the events of a range of days (UTC), oldest first, as :data:`EVENT_COLUMNS` has them."""
    v = ledger.database.tables.event
    first = datetime.combine(start, time(), UTC)
    after = datetime.combine(end + timedelta(days=1), time(), UTC)
    if ledger.database.dialect != "postgresql":  # there instants are UTC without saying so
        first, after = first.replace(tzinfo=None), after.replace(tzinfo=None)
    last = 0
    while True:
        wanted = (
            sa.select(v).where(v.c.at >= first, v.c.at < after, v.c.id > last).order_by(v.c.id).limit(_PAGE)
        )
        rows = ledger.database.read(lambda c, wanted=wanted: c.execute(wanted).all())  # type: ignore[misc]
        if not rows:
            return
        for row in rows:
            at = aware(row.at)
            yield [at.isoformat() if name == "at" and at else getattr(row, name) for name in EVENT_COLUMNS]
        last = rows[-1].id
