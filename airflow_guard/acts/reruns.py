"""What people write about reruns: an authorisation of keys, and what became of a reversal.

An authorisation is of one attempt, by its owner token; what uses it is :mod:`airflow_guard.store.reruns`.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.commands import show_command
from airflow_guard.core.decisions import UNFINISHED, Situation, check_words, situation_of
from airflow_guard.core.errors import ResolutionError, StaleResolution
from airflow_guard.core.reruns import Reversal, check_expiry, not_done
from airflow_guard.core.results import has_result
from airflow_guard.core.states import State
from airflow_guard.reading import listing
from airflow_guard.store.changes import describe
from airflow_guard.store.dialects import utc_after, utc_now
from airflow_guard.store.events import AuditEvent, storable, told
from airflow_guard.store.rows import ledger_row
from airflow_guard.store.task_runs import aware

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import date, datetime, timedelta

    from airflow_guard.reading.key_records import KeyRow
    from airflow_guard.reading.listing import Selection
    from airflow_guard.store.ledger import Ledger
    from airflow_guard.store.resolution import Judged

CHUNK = 500
MAX_KEYS = 100_000
_COUNTED = 1000


@dataclass(frozen=True, slots=True)
class Authorised:
    """One key that may be executed once more, or that could be (dry run).

    :param key_text: the key as a person reads it.
    :param generation: the one that the rerun will have.
    :param has_result: whether the first execution's result is stored, so that ``on_rerun`` will get it.
    """

    key_date: date
    key_hash: str
    key_text: str
    generation: int
    has_result: bool
    expires_at: datetime | None = None


def authorise(
    ledger: Ledger,
    judged: Iterable[Judged],
    *,
    actor: str,
    reason: str,
    expires: timedelta,
    without_reversal: bool = False,
    dry_run: bool = False,
    ledger_name: str | None = None,
) -> list[Authorised]:
    """Authorise that completed keys are executed once more, each once, all of them or none.

    Changes no key: it stays completed until a task claims it, or until the authorisation is over. The same person's
    same words about the same attempt once more (a second click) are no error: the authorisation stands as it is.

    :param judged: keys as somebody looked at them; their owner tokens count.
    :param actor: who says so.
    :param reason: why, mandatory.
    :param expires: how long it holds, from now by the database's clock; at most 31 days.
    :param without_reversal: the first effect stays; otherwise the task must have ``on_rerun``.
    :param dry_run: check and return what would be authorised; change nothing.
    :param ledger_name: connection that the commands in messages must name.
    :raises StaleResolution: a key has a newer attempt than the one that was looked at. Look again.
    :raises ResolutionError: a key is not done, is authorised already, or the reason is missing. A retry does not help.
    :raises LedgerBusy: a lock was not free in time (a retry helps).
    """
    actor, reason = check_words(actor, reason)
    check_expiry(expires)
    work = _Authorise(ledger, actor, reason, expires.total_seconds(), without_reversal, dry_run, ledger_name)
    tokens: dict[date, dict[str, str]] = {}
    for one in judged:
        tokens.setdefault(one.key_date, {})[one.key_hash] = one.owner_token
    return ledger.database.write(lambda connection: work.run(connection, tokens))


def settle_reversal(
    ledger: Ledger,
    key_date: date,
    key_hash: str,
    *,
    happened: bool,
    actor: str,
    reason: str,
    owner_token: str | None = None,
    dry_run: bool = False,
) -> int:
    """Record what became of a reversal in doubt (``begun`` → ``done`` or ``none``), and return for how many keys.

    The documents of a batch had one reversal and are settled together. The doubt about the key itself is settled
    first, by ``resolve``. The same once more (a second click) changes nothing and returns 0.

    :param owner_token: of the attempt that was looked at; ``None``: whichever it is.
    :param dry_run: check and count; change nothing.
    :raises StaleResolution: the key has a newer attempt than the one that was looked at. Look again.
    :raises ResolutionError: no reversal of the key is in doubt, or its attempt is still at work or in doubt.
    """
    actor, reason = check_words(actor, reason)
    said = f"the reversal {'happened' if happened else 'did not happen'}: {reason}"

    def work(connection: sa.Connection) -> int:
        r = ledger.database.tables.rerun
        ledger.database.limit_locks(connection)
        ledger.statements.lock.run(connection, key_date, [key_hash]).all()
        row = ledger.statements.read.run(connection, key_date, [key_hash]).first()
        mine = (r.c.key_date == key_date, r.c.key_hash == key_hash)
        own = connection.execute(
            sa.select(r).where(*mine, r.c.generation == (row.generation if row else 0))
        ).first()
        if row is not None and owner_token is not None and row.owner_token != owner_token:
            raise StaleResolution(
                f"{describe(row)} has a newer attempt than the one that was looked at. Nothing was changed."
            )
        if row is not None and ledger.events.written(connection, "reversal_settled", row, actor, said):
            return 0
        if row is None or own is None or own.reversal != Reversal.BEGUN.value:
            raise ResolutionError(f"No reversal of key {key_hash} is in doubt. Nothing was changed.")
        if row.state != State.FAILED.value:
            raise ResolutionError(
                f"{describe(row)} is {situation_of(ledger_row(row, {}))}: say first whether its second effect happened. "
                "Nothing was changed."
            )
        target = Reversal.DONE if happened else Reversal.NONE
        together = sa.and_(
            r.c.key_date == key_date, r.c.used_by_id == own.used_by_id, r.c.reversal == Reversal.BEGUN.value
        )
        e = ledger.database.tables.execution
        members = sa.select(e.c.key_hash).where(
            e.c.batch_id == row.batch_id, e.c.owner_token == row.owner_token
        )
        which = r.c.key_hash.in_(members) if row.batch_id else r.c.key_hash == key_hash
        if dry_run:
            counted = sa.select(sa.func.count()).select_from(r).where(together, which)
            return int(connection.execute(counted).scalar_one())
        changed = connection.execute(
            sa.update(r).where(together, which).values(reversal=target.value)
        ).rowcount
        event = AuditEvent(
            "reversal_settled", describe(row), actor, said, key_date, key_hash, row.attempt, row.owner_token,
            row.task_run_id, row.state, row.state,
        )  # fmt: skip
        ledger.events.write(connection, event)
        return int(changed)

    return ledger.database.write(work)


def done_keys(
    ledger: Ledger, selection: Selection, readable: frozenset[str] | None = None
) -> tuple[list[KeyRow], dict[str, int]]:
    """Return the keys of a selection that are done, and how many of it stand elsewhere.

    :param selection: with documents, all of them must be known, and whatever stands elsewhere is returned too, so
        that the authorisation refuses it by name.
    :param readable: the DAGs whose keys are seen at all; ``None``: all. With it, only the first 1,000 of what stands
        elsewhere are counted.
    :raises ResolutionError: there are none, or too many. A retry does not help.
    """
    named = bool(selection.documents)
    wanted = selection if named else replace(selection, situations=frozenset({Situation.DONE}))
    found = listing.keys(ledger, replace(wanted, limit=MAX_KEYS))
    where = f"{selection.dag} / {selection.operation} / {selection.business_date}"
    where += f" to {selection.until}" if selection.until else ""
    if found.more:
        raise ResolutionError(
            f"{where} has more than {MAX_KEYS:,} done keys: authorise fewer dates at a time."
        )
    keys = [view for view in found.keys if readable is None or view.dag_id in readable]
    have = {view.row.document for view in keys}
    missing = sorted(each for each in selection.documents if each is not None and each not in have)
    if missing:
        raise ResolutionError(
            f"The ledger has no key {where} / {', '.join(missing[:5])}. Nothing was authorised."
        )
    others = {} if named else _others(ledger, selection, readable)
    if not keys:
        stand = f" ({', '.join(f'{count:,} {name}' for name, count in others.items())})" if others else ""
        raise ResolutionError(f"No key of {where} is done{stand}. Nothing was authorised.")
    return keys, others


def _others(ledger: Ledger, selection: Selection, readable: frozenset[str] | None) -> dict[str, int]:
    if readable is None:
        counted = listing.counts(ledger, selection)
        return {each.value: count for each, count in counted.items() if each is not Situation.DONE}
    unfinished = replace(selection, situations=UNFINISHED, limit=_COUNTED)
    found = Counter(
        view.situation.value for view in listing.keys(ledger, unfinished).keys if view.dag_id in readable
    )
    return dict(found)


def digest(views: Sequence[KeyRow], *, without_reversal: bool) -> str:
    """Return what tells one set of keys, each with the attempt that was looked at, from another.

    :param without_reversal: part of what is approved.
    """
    seen = sorted(f"{view.key_date} {view.row.key_hash} {view.row.owner_token}" for view in views)
    return hashlib.sha256("\n".join([str(without_reversal), *seen]).encode()).hexdigest()[:32]


@dataclass
class _Authorise:
    """One authorisation as a repeatable transaction: after a lost commit it finds its own rows."""

    ledger: Ledger
    actor: str
    reason: str
    expires_s: float
    without_reversal: bool
    dry_run: bool
    ledger_name: str | None
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def _r(self) -> sa.Table:
        return self.ledger.database.tables.rerun

    def run(self, connection: sa.Connection, tokens: Mapping[date, Mapping[str, str]]) -> list[Authorised]:
        self.ledger.database.limit_locks(connection)
        done: list[Authorised] = []
        for key_date in sorted(tokens):
            hashes = sorted(tokens[key_date])
            for start in range(0, len(hashes), CHUNK):
                chunk = {key: tokens[key_date][key] for key in hashes[start : start + CHUNK]}
                done += self._chunk(connection, key_date, chunk)
        return done

    def _chunk(
        self, connection: sa.Connection, key_date: date, tokens: Mapping[str, str]
    ) -> list[Authorised]:
        s, r, hashes = self.ledger.statements, self._r, sorted(tokens)
        if not self.dry_run:
            s.lock.run(connection, key_date, hashes).all()
        rows = {row.key_hash: row for row in s.read.run(connection, key_date, hashes)}
        of_date = (r.c.key_date == key_date, r.c.key_hash.in_(hashes), r.c.used_at.is_(None))
        now = sa.case((r.c.expires_at > utc_now(), 1), else_=0).label("open")
        known = {row.key_hash: row for row in connection.execute(sa.select(r, now).where(*of_date))}
        wanted: list[Any] = []
        for key_hash, token in tokens.items():
            row, before = rows.get(key_hash), known.get(key_hash)
            if before is not None and self._same(before, token):
                continue
            self._check(key_date, key_hash, token, row, before)
            wanted.append(row)
        if not self.dry_run and wanted:
            over = [row.key_hash for row in wanted if row.key_hash in known]
            if over:
                connection.execute(sa.delete(r).where(*of_date, r.c.key_hash.in_(over)))
            self._write(connection, key_date, wanted)
        ends = {
            row.key_hash: aware(row.expires_at)
            for row in connection.execute(sa.select(r.c.key_hash, r.c.expires_at).where(*of_date))
        }
        return [
            Authorised(
                key_date, key, describe(row), row.generation + 1, has_result(row.result),
                None if self.dry_run else ends.get(key),
            )
            for key, row in rows.items()
        ]  # fmt: skip

    def _same(self, before: Any, token: str) -> bool:
        """Return whether an authorisation is this one, after a commit whose answer was lost, or of a second click."""
        words = (storable(self.actor, 250), storable(self.reason), int(self.without_reversal), token)
        said = (before.actor, before.reason, before.without_reversal, before.owner_token)
        return bool(before.open) and said == words

    def _check(self, key_date: date, key_hash: str, token: str, row: Any, before: Any) -> None:
        look = f"Look at it: {show_command(key_hash, ledger=self.ledger_name)}"
        if row is None:
            raise ResolutionError(f"The ledger has no key {key_hash} of {key_date}. Nothing was authorised.")
        if row.owner_token != token:
            raise StaleResolution(
                f"{describe(row)} has a newer attempt than the one that was looked at. Nothing was authorised. {look}"
            )
        problem = not_done(describe(row), key_hash, situation_of(ledger_row(row, {})), self.ledger_name)
        if problem is not None:
            raise problem
        if before is not None and before.open:
            raise ResolutionError(
                f"{describe(row)} is authorised already, by {before.actor} until {aware(before.expires_at):%Y-%m-%d %H:%M} "
                f"UTC: {before.reason}. Nothing was authorised."
            )

    def _write(self, connection: sa.Connection, key_date: date, rows: Sequence[Any]) -> None:
        shared = {
            "request_id": self.request_id, "actor": storable(self.actor, 250), "reason": told(self.reason),
            "without_reversal": int(self.without_reversal),
        }  # fmt: skip
        statement = sa.insert(self._r).values(
            authorised_at=utc_now(),
            expires_at=utc_after(sa.bindparam("seconds")),
            reversal=Reversal.NONE.value,
        )
        connection.execute(
            statement,
            [
                shared | {"key_date": key_date, "key_hash": row.key_hash, "generation": row.generation + 1,
                          "owner_token": row.owner_token, "seconds": self.expires_s}
                for row in rows
            ],
        )  # fmt: skip
        how = " (without reversal)" if self.without_reversal else ""
        self.ledger.events.write(
            connection,
            *(
                AuditEvent(
                    "rerun_authorised", describe(row), self.actor, f"{self.reason}{how}", key_date, row.key_hash,
                    row.attempt, row.owner_token, row.task_run_id, row.state, row.state,
                )
                for row in rows
            ),
        )  # fmt: skip
