"""The names that operations had before: code that was not changed yet keeps meeting the same keys."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import sqlalchemy as sa

from airflow_guard.core.errors import ConfigurationError
from airflow_guard.store.task_runs import aware

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_guard.store.database import LedgerDatabase
    from airflow_guard.store.tables import Tables

Name = tuple[str, str]
"""``key_namespace`` and ``operation``."""


@dataclass(frozen=True, slots=True)
class Alias:
    """What one rename left behind."""

    old: Name
    new: Name
    created_at: datetime | None
    actor: str
    reason: str


@lru_cache(maxsize=1024)
def name_hash(key_namespace: str, operation: str) -> str:
    """Return the digest under which the alias of a name is found: 32 hex characters.

    Length-prefixed, so that ``("ab", "c")`` and ``("a", "bc")`` are two names.
    """
    parts = (part.encode() for part in (key_namespace, operation))
    return hashlib.sha256(b"".join(b"%d:%b" % (len(part), part) for part in parts)).hexdigest()[:32]


def resolve(database: LedgerDatabase, key_namespace: str, operation: str) -> Name:
    """Return the names under which the ledger keeps an operation now; its own if it was never renamed.

    Several renames one after another are followed. One indexed lookup where there is no alias.

    :raises ConfigurationError: the aliases lead in a circle, which ``rename`` never leaves; not retryable.
    :raises LedgerUnavailable: the database is down (a retry helps).
    """
    tables, name = database.tables, (key_namespace, operation)
    return database.read(lambda connection: follow(connection, tables, name)[-1])


def follow(connection: sa.Connection, tables: Tables, name: Name) -> list[Name]:
    """Return a name and all that it was renamed to, one after another; the last one is in use.

    :raises ConfigurationError: the aliases lead in a circle.
    """
    if find(connection, tables, name) is None:
        return [name]
    # All at once: with one lookup a step, a rename in between could show a path that never was.
    leads_to, path = _all(connection, tables), [name]
    while path[-1] in leads_to:
        path.append(leads_to[path[-1]])
        if path[-1] in path[:-1]:
            circle = " → ".join(" / ".join(each) for each in path)
            raise ConfigurationError(
                f"Aliases of the ledger lead in a circle: {circle}. Remove the wrong row of "
                f"{tables.alias.name}."
            )
    return path


def find(connection: sa.Connection, tables: Tables, name: Name) -> Alias | None:
    """Return the alias of a name, ``None`` if it was not renamed."""
    a = tables.alias
    row = connection.execute(sa.select(a).where(a.c.old_hash == name_hash(*name))).first()
    if row is None:
        return None
    return Alias(
        (row.old_namespace, row.old_operation),
        (row.new_namespace, row.new_operation),
        aware(row.created_at),
        row.actor,
        row.reason,
    )


def former_names(connection: sa.Connection, tables: Tables, name: Name) -> list[Name]:
    """Return all names that lead to this one: its history has events under their keys."""
    leads_to = _all(connection, tables)
    names, found = {name}, 0
    while len(names) > found:
        found = len(names)
        names |= {old for old, new in leads_to.items() if new in names}
    return sorted(names - {name})


def renamed(connection: sa.Connection, tables: Tables) -> dict[Name, Name]:
    """Return every old name with the name under which its keys are kept now."""
    leads_to, now = _all(connection, tables), {}
    for old in leads_to:
        path = [old]
        while path[-1] in leads_to and len(path) <= len(leads_to):
            path.append(leads_to[path[-1]])
        now[old] = path[-1]
    return now


def _all(connection: sa.Connection, tables: Tables) -> dict[Name, Name]:
    """Return all aliases: renames are rare, so they are few."""
    a = tables.alias
    rows = connection.execute(
        sa.select(a.c.old_namespace, a.c.old_operation, a.c.new_namespace, a.c.new_operation)
    )
    return {(row[0], row[1]): (row[2], row[3]) for row in rows}
