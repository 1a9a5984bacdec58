"""Search: by document, by the beginning of a key, by what the receiver was given.

No index has the documents: it would slow down every claim. But a key is the hash of its parts, and an index knows which
operations have keys on which dates. So every key that the document can have is computed, and asked for.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.errors import ConfigurationError, DocumentError
from airflow_guard.core.keys import NORMALISERS, KeySpace
from airflow_guard.reading.keys import key_rows
from airflow_guard.reading.listing import SHORTEST_PREFIX, key_dates
from airflow_guard.reading.lists import LARGEST_LIMIT, Found
from airflow_guard.reading.scope import dated
from airflow_guard.reading.spaces import MOST, spaces
from airflow_guard.store import dialects

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import date

    from airflow_guard.reading.keys import Key
    from airflow_guard.reading.scope import Scope
    from airflow_guard.reading.spaces import Space

_KEY_HEX = 32
_DATES = 500
_ASKED = 500
SCANNED_DATES = 3
"""Newest dates whose idempotency keys are read one by one."""


def find(scope: Scope, text: str, business_date: date | None, limit: int) -> Found:
    """Return the keys that a text can mean, in a scope."""
    limit, text = min(max(limit, 1), LARGEST_LIMIT), text.strip()
    found: dict[Key, date] = {}
    since = _by_document(scope, text, business_date, found)
    lower = text.lower()
    if SHORTEST_PREFIX <= len(lower) <= _KEY_HEX and not set(lower) - set("0123456789abcdef"):
        _by_prefix(scope, lower, business_date, limit + 1, found)
        if len(lower) == _KEY_HEX and not found:
            since = _by_receivers_key(scope, lower, business_date, limit + 1, found)
    newest = sorted(found, key=lambda key: (-found[key].toordinal(), key))
    return Found(key_rows(scope, newest[:limit]), len(newest) > limit, since)


def _add(scope: Scope, statement: Any, found: dict[Key, date]) -> None:
    found.update({(row.key_date, row.key_hash): row.business_date for row in scope.rows(statement)})


def _select(scope: Scope, business_date: date | None) -> sa.Select[Any]:
    e = scope.tables.execution
    allowed = [] if scope.everything else scope.where(scope.dag_of_key(e))
    wanted = sa.select(e.c.key_date, e.c.key_hash, e.c.business_date)
    return wanted.where(*allowed, *dated(e.c.business_date, business_date, business_date))


def _by_document(scope: Scope, text: str, business_date: date | None, found: dict[Key, date]) -> date | None:
    """Add the keys of a document; return since when, if there are too many dates to look at all."""
    try:
        documents = {normalise(text) for normalise in NORMALISERS.values()}
    except DocumentError:
        return None
    where = spaces(scope, business_date, business_date)
    keys = iter({key for document in documents for key in _keys_of(scope, where, document)})
    while some := list(islice(keys, _ASKED)):
        _add(scope, _asked(scope, some, business_date), found)
    return where[-1].business_date if len(where) == MOST else None


def _keys_of(scope: Scope, where: Iterable[Space], document: str) -> Iterator[Key]:
    cycles = _cycles(scope)
    once: set[tuple[str, str]] = set()
    for space in where:
        name = (space.key_namespace, space.operation)
        try:
            for cycle in {"", *cycles.get(name, ())}:
                dated_ = KeySpace(*name, space.business_date, cycle)
                yield dated_.key_date, dated_.hasher().key_hash(document)
            if name not in once:
                once.add(name)
                any_date = KeySpace(*name, space.business_date, once_per="document")
                yield any_date.key_date, any_date.hasher().key_hash(document)
        except ConfigurationError:  # a name that no task could have: the row was written by hand
            continue


def _cycles(scope: Scope) -> dict[tuple[str, str], set[str]]:
    """Return the cycles that operations were ever tried with, by the names that they have now and had then."""
    run = scope.tables.task_run
    seen = sa.select(run.c.key_namespace, run.c.operation, run.c.cycle).where(run.c.cycle != "").distinct()
    found: dict[tuple[str, str], set[str]] = {}
    now = scope.now
    for row in scope.rows(seen):
        for name in {(row[0], row[1]), now.get((row[0], row[1]), (row[0], row[1]))}:
            found.setdefault(name, set()).add(row[2])
    return found


def _asked(scope: Scope, keys: list[Key], business_date: date | None) -> sa.Select[Any]:
    e, found = scope.tables.execution, _select(scope, business_date)
    if scope.dialect == dialects.POSTGRES:
        # A join with lists: each key is a probe of the primary key.
        named = sa.func.unnest(
            sa.cast([key[0] for key in keys], sa.ARRAY(sa.Date)), sa.cast([key[1] for key in keys], sa.ARRAY(sa.Text))
        ).table_valued(sa.column("d", sa.Date), sa.column("h", sa.Text), name="asked").render_derived()  # fmt: skip
        return found.join(named, sa.and_(e.c.key_date == named.c.d, e.c.key_hash == named.c.h))
    by_date: dict[date, list[str]] = {}
    for key_date, key_hash in keys:
        by_date.setdefault(key_date, []).append(key_hash)
    each = [sa.and_(e.c.key_date == day, e.c.key_hash.in_(hashes)) for day, hashes in by_date.items()]
    return found.where(sa.or_(*each))


def _by_prefix(
    scope: Scope, prefix: str, business_date: date | None, limit: int, found: dict[Key, date]
) -> None:
    e = scope.tables.execution
    dates = list(scope.connection.execute(key_dates(e, scope.dialect)).scalars())
    while dates and len(found) < limit:
        # "g" comes after every hex digit: a range, which the primary key answers date by date.
        begins = (e.c.key_date.in_(dates[-_DATES:]), e.c.key_hash >= prefix, e.c.key_hash < f"{prefix}g")
        _add(scope, _select(scope, business_date).where(*begins).limit(limit), found)
        del dates[-_DATES:]


def _by_receivers_key(
    scope: Scope, text: str, business_date: date | None, limit: int, found: dict[Key, date]
) -> date | None:
    """Add the keys that the receiver was given so, as a batch or each; return since when each was read."""
    t = scope.tables
    e, r, wanted = t.execution, t.rerun, _select(scope, business_date).limit(limit)
    _add(scope, wanted.where(e.c.batch_id == text, e.c.batch_id.is_not(None)), found)
    again = scope.rows(
        sa.select(r.c.key_date, r.c.key_hash).where(r.c.previous_idempotency_key == text).limit(limit)
    )
    for row in again:
        _add(scope, wanted.where(e.c.key_date == row.key_date, e.c.key_hash == row.key_hash), found)
    if found:
        return None
    given = e.c.idempotency_key == text
    if business_date is not None:
        _add(scope, wanted.where(given), found)
        return None
    newest = sorted({space.business_date for space in spaces(scope)})[-SCANNED_DATES:]
    if not newest:
        return None
    _add(scope, wanted.where(given, e.c.business_date.in_(newest)), found)
    return None if found else newest[0]
