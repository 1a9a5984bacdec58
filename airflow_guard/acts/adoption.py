"""Adopt history: record what was done before the ledger kept watch, as completed.

All of it is one transaction: rows are read, checked and inserted in chunks as they come, and one bad row
takes everything back, after the rest was read too, so that one look shows every mistake. Keys that the ledger
has are left alone, so a repetition changes nothing and an adoption that broke is simply run again.

An adopted row has attempt 0, no task run and no effect of ours. What was adopted, by whom and why is one
event for the whole call, not one per row: the reason is the same for all, and ten million events would bury
the audit. The rows carry the event's owner token, so that each leads to it.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.dialects import sqlite as sqlite_dialect

from airflow_guard.acts.once import one_transaction
from airflow_guard.core.date_checks import A_YEAR_OF_DAYS
from airflow_guard.core.dates import parse_business_date
from airflow_guard.core.decisions import check_words
from airflow_guard.core.errors import ConfigurationError, GuardError, ResolutionError, ResultError
from airflow_guard.core.keys import NORMALISER_VERSION, KeySpace
from airflow_guard.core.results import encode_result
from airflow_guard.core.states import FollowUp, Phase, State
from airflow_guard.reading import listing
from airflow_guard.store import aliases, dialects
from airflow_guard.store.by_keys import ByKeys
from airflow_guard.store.dialects import utc_now
from airflow_guard.store.events import AuditEvent

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_guard.core.keys import KeyHasher
    from airflow_guard.store.ledger import Ledger

CHUNK = 500
NAMED_MISTAKES = 20
COLUMNS = ("business_date", "document", "cycle", "result")
"""What a row of history may have; only ``business_date`` must be there."""


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One row as its source has it.

    :param place: where it stands, for messages: ``line 7``.
    :param values: by column. Without ``document`` it is a run as a whole; an empty document is a mistake.
    :param problem: why it cannot be read, if so.
    """

    place: str
    values: Mapping[str, Any]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """Whose history it is: the key parts that all rows share.

    :param cycle: of rows that bring none.
    :param deployment: that will replay them; a row of another deployment is never replayed.
    """

    key_namespace: str
    operation: str
    once_per: str = "date"
    cycle: str = ""
    deployment: str = "default"


@dataclass
class Adopted:
    """What an adoption did, or would do (dry run).

    :param rows: how many rows there were.
    :param adopted: keys that the ledger did not know.
    :param known: rows whose key the ledger had already; it was left alone, whatever its state.
    :param repeated: rows whose key another row of this history has too; the first one counts.
    """

    rows: int = 0
    adopted: int = 0
    known: int = 0
    repeated: int = 0
    first_date: date | None = None
    last_date: date | None = None


@dataclass
class _Mistakes:
    count: int = 0
    named: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        self.count += 1
        if len(self.named) < NAMED_MISTAKES:
            self.named.append(text)

    def lines(self) -> list[str]:
        more = self.count - len(self.named)
        return [*self.named, f"and {more:,} more"] if more else self.named


@dataclass(frozen=True, slots=True)
class _Key:
    """A good row, ready to be inserted."""

    key_date: date
    key_hash: str
    values: dict[str, Any]

    @property
    def identity(self) -> tuple[date, str]:
        return self.key_date, self.key_hash


def deployment_of(ledger: Ledger, configured: str) -> str:
    """Return whose history it is, where nobody says so: the deployment that is configured.

    :raises ConfigurationError: the ledger knows only others. A row of another deployment is never replayed, so it must be
        said. A retry does not help.
    """
    others = listing.other_deployments(ledger, configured)
    if others:
        raise ConfigurationError(
            f"This ledger knows the deployments {', '.join(others)}, but not {configured!r}, which is configured here. Say "
            "whose history it is (--deployment)."
        )
    return configured


def adopt(
    ledger: Ledger,
    operation: Operation,
    rows: Iterable[HistoryRow],
    *,
    actor: str,
    reason: str,
    dry_run: bool = False,
) -> Adopted:
    """Write history as completed (none → completed/none) in one transaction; known keys are left alone.

    :param rows: read once, in chunks of 500; any number.
    :param actor: who says that it was done; ``reason`` how that is known: both mandatory.
    :param dry_run: read and check everything, count, and take it back.
    :raises ResolutionError: a bad row (the first twenty are named with their places), no rows at all, a
        missing reason, or the operation has another name now. Nothing was written.
    :raises LedgerBusy: a lock was not free in time or a deadlock; nothing was written (a retry helps).
    """
    actor, reason = check_words(actor, reason)
    work = _Adoption(ledger, operation, actor, reason)
    with one_transaction(ledger.database, "adoption", keep=not dry_run) as connection:
        work.run(connection, rows)
    return work.done


class _Adoption:
    def __init__(self, ledger: Ledger, operation: Operation, actor: str, reason: str) -> None:
        self._ledger = ledger
        self._operation = operation
        self._actor, self._reason = actor, reason
        self._token = uuid.uuid4().hex
        self._hashers: dict[tuple[date, str], tuple[KeySpace, KeyHasher]] = {}
        self._insert = _insert(ledger.database.dialect, ledger.database.tables.execution)
        self._owner_of = _owner_of(ledger.database.dialect, ledger.database.tables.execution)
        self.done = Adopted()
        self._today = datetime.now(UTC).date()

    def run(self, connection: sa.Connection, rows: Iterable[HistoryRow]) -> None:
        """Read, check and insert everything, in the caller's transaction."""
        self._space(_ANY_DAY, self._operation.cycle)  # refuses impossible names once, not for every row
        self._check_name(connection)
        mistakes = _Mistakes()
        source = iter(rows)
        while chunk := list(islice(source, CHUNK)):
            keys = [key for row in chunk if (key := self._key(row, mistakes)) is not None]
            self.done.rows += len(chunk)
            if keys and not mistakes.count:
                self._write(connection, keys)
        if mistakes.count:
            raise ResolutionError(
                f"{mistakes.count:,} of {self.done.rows:,} rows cannot be adopted; nothing was written."
                + "".join(f"\n  {text}" for text in mistakes.lines())
            )
        if not self.done.rows:
            raise ResolutionError("There are no rows to adopt: the source is empty. Nothing was written.")
        if self.done.adopted:
            self._ledger.events.write(connection, self._event())

    def _check_name(self, connection: sa.Connection) -> None:
        name = (self._operation.key_namespace, self._operation.operation)
        now = aliases.follow(connection, self._ledger.database.tables, name)[-1]
        if now != name:
            raise ResolutionError(
                f"{' / '.join(name)} was renamed to {' / '.join(now)} in the ledger. Adopt under that name, "
                "where tasks will look for it."
            )

    def _key(self, row: HistoryRow, mistakes: _Mistakes) -> _Key | None:
        try:
            return self._checked(row)
        except GuardError as error:
            mistakes.add(f"{row.place}: {error}")
            return None

    def _checked(self, row: HistoryRow) -> _Key:
        if row.problem is not None:
            raise ResolutionError(row.problem)
        given, shared = row.values, self._operation
        business_date = parse_business_date(given.get("business_date"), source="business_date")
        if (business_date - self._today).days > A_YEAR_OF_DAYS:
            raise ResolutionError(
                f"business_date {business_date} lies more than a year in the future (today is {self._today}): history cannot"
            )
        cycle = _text(given.get("cycle"), "cycle") or shared.cycle
        space, hasher = self._space(business_date, cycle)
        document = None
        if "document" in given:
            document = hasher.normalise("" if given["document"] is None else given["document"])
        key_hash = hasher.key_hash(document)
        self._see(business_date)
        values = {
            "document": document,
            "business_date": business_date,
            "cycle": cycle,
            "result": _result(given.get("result")),
            "idempotency_key": hasher.idempotency_key(key_hash),
        }
        return _Key(space.key_date, key_hash, values)

    def _space(self, business_date: date, cycle: str) -> tuple[KeySpace, KeyHasher]:
        found = self._hashers.get((business_date, cycle))
        if found is None:
            if len(self._hashers) > CHUNK:
                self._hashers.clear()
            o = self._operation
            space = KeySpace(o.key_namespace, o.operation, business_date, cycle, o.once_per, o.deployment)
            found = self._hashers[business_date, cycle] = (space, space.hasher())
        return found

    def _see(self, day: date) -> None:
        done = self.done
        done.first_date = day if done.first_date is None else min(day, done.first_date)
        done.last_date = day if done.last_date is None else max(day, done.last_date)

    def _write(self, connection: sa.Connection, keys: list[_Key]) -> None:
        once = {key.identity: key for key in reversed(keys)}
        before = self._owners(connection, once)
        # Only what looks new is sent: MySQL would wait for the locks of rows that are there already.
        new = sorted(once.keys() - before.keys())
        if new:
            connection.execute(self._insert, [self._row(once[identity]) for identity in new])
        owners = self._owners(connection, once)
        counted: set[tuple[date, str]] = set()
        for key in keys:
            if owners[key.identity] != self._token:
                self.done.known += 1
            elif key.identity in before or key.identity in counted:
                self.done.repeated += 1
            else:
                self.done.adopted += 1
            counted.add(key.identity)

    def _row(self, key: _Key) -> dict[str, Any]:
        shared = {
            "normaliser": NORMALISER_VERSION, "key_namespace": self._operation.key_namespace,
            "operation": self._operation.operation, "deployment": self._operation.deployment,
            "state": State.COMPLETED.value, "phase": Phase.NONE.value, "follow_up": FollowUp.NONE.value,
            "attempt": 0, "generation": 1, "owner_token": self._token,
        }  # fmt: skip
        return {"key_date": key.key_date, "key_hash": key.key_hash, **shared, **key.values}

    def _owners(
        self, connection: sa.Connection, keys: Mapping[tuple[date, str], Any]
    ) -> dict[tuple[date, str], str]:
        hashes_of: dict[date, list[str]] = {}
        for key_date, key_hash in keys:
            hashes_of.setdefault(key_date, []).append(key_hash)
        return {
            (key_date, row.key_hash): row.owner_token
            for key_date, hashes in hashes_of.items()
            for row in self._owner_of.run(connection, key_date, hashes)
        }

    def _event(self) -> AuditEvent:
        o, done = self._operation, self.done
        text = (
            f"{o.key_namespace} / {o.operation} / {done.first_date} … {done.last_date} "
            f"({done.adopted:,} keys; {done.known:,} were known)"
        )
        return AuditEvent(
            "adopt", text, self._actor, self._reason, owner_token=self._token, to_state=State.COMPLETED.value
        )


_ANY_DAY = date(2000, 1, 1)
_INSERTED = (
    "key_date", "key_hash", "normaliser", "key_namespace", "operation", "business_date", "cycle", "document",
    "deployment", "state", "phase", "follow_up", "attempt", "generation", "owner_token", "idempotency_key",
    "result",
)  # fmt: skip


def _insert(dialect: str, table: sa.Table) -> Any:
    """Return the insert (none → completed); a key that another session inserts meanwhile is left alone."""
    values: dict[str, Any] = {name: sa.bindparam(name) for name in _INSERTED}
    values |= {"claimed_at": utc_now(), "finished_at": utc_now()}
    if dialect == dialects.MYSQL:
        # Not INSERT IGNORE, which would turn truncation and CHECK violations into warnings.
        return mysql.insert(table).values(values).on_duplicate_key_update(key_hash=table.c.key_hash)
    insert = postgresql.insert if dialect == dialects.POSTGRES else sqlite_dialect.insert
    return insert(table).values(values).on_conflict_do_nothing(index_elements=["key_date", "key_hash"])


def _owner_of(dialect: str, table: sa.Table) -> ByKeys:
    """Return the read of the owner tokens of keys."""
    found = sa.select(table.c.key_hash, table.c.owner_token)
    one = sa.and_(table.c.key_date == sa.bindparam("d"), table.c.key_hash == sa.bindparam("h"))
    return ByKeys(found.where(one), found.where(dialects.among_keys(dialect, table)), dialect)


def _text(value: Any, name: str) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise ResolutionError(f"{name} is {value!r:.80}, not a text")


def _result(value: Any) -> str | None:
    """Return a result as it is stored; text is JSON, an empty one is no result."""
    if value is None or value == "":
        return None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise ResultError(
                f'result {value!r:.80} is not JSON; a text is written with quotes: "{value:.40}"'
            ) from None
    return encode_result(value)
