"""A person, or ``verify``, says what became of a key.

A resolution carries the owner token of the attempt that it judged: an answer about an earlier attempt, or a
second answer, changes nothing. One transaction locks the rows, looks at them, changes them and writes an
event for each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.content import content_id
from airflow_guard.core.decisions import (
    CONSEQUENCES,
    Decision,
    Situation,
    check_words,
    decisions_of,
    situation_of,
)
from airflow_guard.core.errors import ResolutionError
from airflow_guard.core.refusals import decision_refused
from airflow_guard.core.states import State
from airflow_guard.store.changes import describe
from airflow_guard.store.events import AuditEvent, storable, told
from airflow_guard.store.rows import ledger_row
from airflow_guard.store.task_runs import identity_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import date

    from airflow_guard.core.guard import TaskIdentity
    from airflow_guard.store.ledger import Ledger

EXPIRED = "the lease was over after the effect had begun: nobody knows whether it happened"


@dataclass(frozen=True, slots=True)
class Judged:
    """A key as somebody looked at it.

    :param owner_token: of the attempt that the judgement is about.
    :param content: ``LedgerRow.content`` as it was looked at: what ``content_stands`` is said of.
    """

    key_date: date
    key_hash: str
    owner_token: str
    content: str | None = None

    @staticmethod
    def of(key_date: date, key_hash: str, version: str) -> Judged:
        """Return a key as a page showed it; see ``KeyRow.version``."""
        token, _, content = version.partition(".")
        return Judged(key_date, key_hash, token, content or None)


@dataclass(frozen=True, slots=True)
class Settled:
    """One key that a resolution settled, or would settle (dry run).

    :param before: ``in_doubt`` also for a row that nobody had marked yet.
    :param asked: ``False`` for a member of a batch that was settled along with the one that was asked about.
    :param repeated: the same person had said the same of the same attempt before, and so it stands; nothing was changed.
    """

    key_date: date
    key_hash: str
    key_text: str
    attempt: int
    before: State
    after: State
    batch_id: str | None = None
    asked: bool = True
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Resolutions:
    """What became of a set of judgements.

    :param refused: why not, by key hash; those keys are unchanged.
    """

    settled: list[Settled] = field(default_factory=list)
    refused: dict[str, ResolutionError] = field(default_factory=dict)


def resolve(
    ledger: Ledger,
    key_date: date,
    key_hash: str,
    owner_token: str,
    decision: str,
    *,
    actor: str,
    reason: str,
    dry_run: bool = False,
    quiet_s: float = 0.0,
    ledger_name: str | None = None,
    content: str | None = None,
) -> list[Settled]:
    """Settle one key (see :mod:`airflow_guard.core.decisions` for the transitions).

    A row whose lease is over with its effect begun is marked in doubt first, with an event of its own. The
    members of a batch had one effect: ``happened``, ``did_not_happen`` and ``followed_up`` settle all of them
    that stand where this one stands, in the same transaction. ``waive``, ``send_again`` and ``content_stands`` are about
    one document. The same words of the same person about the same attempt once more (a second click) change nothing, and
    are no error as long as the key stands as they left it.

    :param owner_token: of the attempt that was judged.
    :param decision: a :class:`~airflow_guard.core.decisions.Decision` or its name.
    :param actor: who says so: a user's name, or ``verify``.
    :param reason: why, mandatory.
    :param dry_run: check and return what would be settled; change nothing.
    :param quiet_s: refuse if the attempt gave a sign of life within so many seconds: an answer that was asked for
        before that sign does not know what the attempt was doing then.
    :param ledger_name: connection that the commands in messages must name, ``None`` for the configured one.
    :param content: see :class:`Judged`.
    :return: what was settled, the key itself first.
    :raises StaleResolution: the key has a newer attempt, or is settled already; the message says what it is
        now. A retry does not help: look again.
    :raises ResolutionError: a live lease (the message names the holder), a missing reason, no such key, or
        nothing to decide. A retry does not help.
    :raises LedgerBusy: a lock was not free in time (a retry helps).
    """
    judged = [Judged(key_date, key_hash, owner_token, content)]
    return resolve_many(
        ledger,
        judged,
        decision,
        actor=actor,
        reason=reason,
        dry_run=dry_run,
        strict=True,
        quiet_s=quiet_s,
        ledger_name=ledger_name,
    ).settled


def resolve_many(
    ledger: Ledger,
    judged: Iterable[Judged],
    decision: str,
    *,
    actor: str,
    reason: str,
    dry_run: bool = False,
    strict: bool = False,
    quiet_s: float = 0.0,
    ledger_name: str | None = None,
) -> Resolutions:
    """Settle several keys with one decision, in one transaction. See :func:`resolve`.

    :param strict: raise the first refusal and change nothing; otherwise refusals are returned and the others
        are settled.
    :raises ResolutionError: see :func:`resolve`; without ``strict`` only for a missing reason or actor.
    """
    actor, reason = check_words(actor, reason)
    work = _Work(ledger, list(judged), Decision.of(decision), actor, reason, strict=strict, dry_run=dry_run)
    work.quiet_s, work.ledger_name = quiet_s, ledger_name
    return ledger.database.write(work)


class _Work:
    """One resolution as a repeatable transaction.

    After a commit whose answer was lost, or a second click, it finds the keys settled by itself: it knows its own events.
    """

    def __init__(
        self,
        ledger: Ledger,
        judged: Sequence[Judged],
        decision: Decision,
        actor: str,
        reason: str,
        *,
        strict: bool,
        dry_run: bool,
    ) -> None:
        self._ledger = ledger
        self._tokens: dict[date, dict[str, str]] = {}
        for one in judged:
            self._tokens.setdefault(one.key_date, {})[one.key_hash] = one.owner_token
        self._contents = {(one.key_date, one.key_hash): one.content for one in judged}
        self._decision = decision
        self._consequence = CONSEQUENCES[decision]
        self._actor, self._reason = actor, reason
        self._strict, self._dry_run = strict, dry_run
        self.quiet_s = 0.0
        self.ledger_name: str | None = None

    def __call__(self, connection: sa.Connection) -> Resolutions:
        self._ledger.database.limit_locks(connection)
        outcome = Resolutions()
        for key_date in sorted(self._tokens):
            self._settle_date(connection, key_date, outcome)
        outcome.settled.sort(key=lambda each: not each.asked)
        return outcome

    def _own_events(
        self, connection: sa.Connection, key_date: date, keys: Iterable[str]
    ) -> dict[tuple[str, str], Any]:
        """Return the events of the same words of the same person about these keys, by key and owner token."""
        event = self._ledger.database.tables.event
        found = sa.select(event).where(
            event.c.key_date == key_date,
            event.c.key_hash.in_(sorted(keys)),
            event.c.kind == self._consequence.event,
            event.c.actor == storable(self._actor, 250),
            event.c.reason == told(self._reason),
        )
        return {
            (row.key_hash, row.owner_token): row for row in connection.execute(found.order_by(event.c.id))
        }

    def _settle_date(self, connection: sa.Connection, key_date: date, outcome: Resolutions) -> None:
        asked = self._tokens[key_date]
        members = self._batch_members(connection, key_date)
        rows = _locked(self._ledger, connection, key_date, {**members, **asked})
        # Once the rows are locked: a second click waits for the first
        own = self._own_events(connection, key_date, rows)
        people = self._people(connection, rows.values())
        accepted: dict[str, Any] = {}
        for key_hash, token in {**asked, **members}.items():
            row, written = rows.get(key_hash), own.get((key_hash, token))
            if row is not None and written is not None and self._stands(row, token):
                outcome.settled.append(self._settled(row, key_hash in asked, written))
                continue
            refusal = self._refusal(key_date, key_hash, token, row, people)
            if refusal is None:
                accepted[key_hash] = row
                outcome.settled.append(self._settled(row, key_hash in asked))
            elif key_hash in asked:
                if self._strict:
                    raise refusal
                outcome.refused[key_hash] = refusal
        if accepted and not self._dry_run:
            self._apply(connection, key_date, accepted)

    def _stands(self, row: Any, token: str) -> bool:
        """Return whether a key is as this decision about this attempt leaves it."""
        known = ledger_row(row, {})
        if row.owner_token != token:
            return False
        if self._decision is Decision.CONTENT_STANDS:
            return self._contents[row.key_date, row.key_hash] in map(content_id, known.accepted)
        settled = self._decision not in decisions_of(known)
        return known.state is self._consequence.target and settled

    def _batch_members(self, connection: sa.Connection, key_date: date) -> dict[str, str]:
        """Return the keys that the same attempt executed in the same batches, without those asked about."""
        if not self._consequence.together:
            return {}
        e, asked = self._ledger.database.tables.execution, self._tokens[key_date]
        mine = sa.select(e.c.batch_id, e.c.owner_token).where(
            e.c.key_date == key_date, e.c.key_hash.in_(sorted(asked)), e.c.batch_id.is_not(None)
        )
        batches = {(row.batch_id, row.owner_token) for row in connection.execute(mine.distinct())}
        if not batches:
            return {}
        ids = sorted({batch for batch, _ in batches})
        found = connection.execute(self._ledger.statements.batch_members, {"batch_ids": ids})
        judged = set(asked.values())
        return {
            row.key_hash: row.owner_token
            for row in found
            if (row.batch_id, row.owner_token) in batches
            and row.owner_token in judged
            and row.key_hash not in asked
        }

    def _people(self, connection: sa.Connection, rows: Iterable[Any]) -> dict[int, TaskIdentity]:
        run = self._ledger.database.tables.task_run
        ids = sorted({row.task_run_id for row in rows if row.task_run_id is not None})
        found = connection.execute(sa.select(run).where(run.c.id.in_(ids))) if ids else ()
        return {row.id: identity_of(row) for row in found}

    def _refusal(
        self, key_date: date, key_hash: str, token: str, row: Any, people: Mapping[int, TaskIdentity]
    ) -> ResolutionError | None:
        if row is None:
            return ResolutionError(f"The ledger has no key {key_hash} of {key_date}. Nothing was changed.")
        return decision_refused(
            self._decision,
            ledger_row(row, people),
            describe(row),
            token=token,
            content=self._contents.get((key_date, key_hash)),
            quiet_s=self.quiet_s,
            ledger=self.ledger_name,
        )

    def _settled(self, row: Any, asked: bool, written: Any = None) -> Settled:  # noqa: FBT001 - private
        situation = situation_of(ledger_row(row, {}))
        before = State.IN_DOUBT if situation is Situation.IN_DOUBT else State(row.state)
        if written is not None:
            before = State(written.from_state)
        after = self._consequence.target or before
        key, repeated = (row.key_date, row.key_hash, describe(row)), written is not None
        return Settled(*key, row.attempt, before, after, row.batch_id, asked, repeated)

    def _apply(self, connection: sa.Connection, key_date: date, rows: Mapping[str, Any]) -> None:
        unmarked = {
            key: row
            for key, row in rows.items()
            if row.state == State.IN_PROGRESS and self._decision is not Decision.DROP
        }
        marked = _mark_in_doubt(self._ledger, connection, key_date, unmarked, self._actor, EXPIRED)
        for key_hash, row in unmarked.items():
            if key_hash not in marked:
                raise ResolutionError(
                    f"{describe(row)}: its attempt has just renewed its lease, so it is alive. Nothing was "
                    "changed. Wait for it to end."
                )
        statement = getattr(self._ledger.statements, self._consequence.statement)
        for (token, error), group in _grouped(rows, "owner_token", "error").items():
            before = EXPIRED if group[0].key_hash in unmarked else error
            why = f"{self._consequence.words} by {self._actor}: {self._reason}"
            why += f" (before: {before})" if before else ""
            keys = [row.key_hash for row in group]
            changed = statement.run(connection, key_date, keys, token=token, why=told(why)).rowcount
            if changed != len(keys):  # the rows are locked, but a lease may have been renewed
                raise ResolutionError(f"{changed} of {len(keys)} keys could be changed: none of them was.")
        self._ledger.events.write(connection, *(self._event(row) for row in rows.values()))

    def _event(self, row: Any) -> AuditEvent:
        settled = self._settled(row, asked=True)
        return AuditEvent(
            self._consequence.event,
            describe(row),
            self._actor,
            self._reason,
            row.key_date,
            row.key_hash,
            row.attempt,
            row.owner_token,
            row.task_run_id,
            settled.before.value,
            settled.after.value,
        )


def _locked(ledger: Ledger, connection: sa.Connection, key_date: date, keys: Iterable[str]) -> dict[str, Any]:
    """Lock rows in the order of their keys, then read them with what the database says of their leases."""
    ordered = sorted(keys)
    ledger.statements.lock.run(connection, key_date, ordered).all()
    return {row.key_hash: row for row in ledger.statements.read.run(connection, key_date, ordered)}


def _mark_in_doubt(
    ledger: Ledger, connection: sa.Connection, key_date: date, rows: Mapping[str, Any], actor: str, why: str
) -> set[str]:
    """Mark locked rows (in_progress/begun, lease over → in_doubt); return those that were marked."""
    marked: set[str] = set()
    for (token,), group in _grouped(rows, "owner_token").items():
        hashes = [row.key_hash for row in group]
        expired = ledger.statements.doubt_expired
        changed = expired.run(connection, key_date, hashes, token=token, why=told(why)).rowcount
        now = ledger.statements.lock.run(connection, key_date, hashes).all()
        marked_here = {row.key_hash for row in now if row.state == State.IN_DOUBT}
        if changed != len(marked_here):  # cannot be: the rows are locked
            raise ResolutionError(
                f"{changed} rows of {key_date} were marked in doubt, {len(marked_here)} are."
            )
        marked |= marked_here
    ledger.events.write(
        connection,
        *(
            AuditEvent(
                "doubt",
                describe(row),
                actor,
                why,
                key_date,
                key,
                row.attempt,
                row.owner_token,
                row.task_run_id,
                State.IN_PROGRESS.value,
                State.IN_DOUBT.value,
            )
            for key, row in rows.items()
            if key in marked
        ),
    )
    return marked


def _grouped(rows: Mapping[str, Any], *names: str) -> dict[tuple[Any, ...], list[Any]]:
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for row in rows.values():
        groups.setdefault(tuple(getattr(row, name) for name in names), []).append(row)
    return groups
