"""A person drops documents that were listed and are not done: they are not to be done any more.

One transaction for all of them, or none. What has no key gets one, ``dropped``, so that it stays in the figures of its
date and is held back if it is listed again.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.acts.once import one_transaction
from airflow_guard.core.decisions import CONSEQUENCES, Decision, Situation, check_words, situation_of
from airflow_guard.core.errors import ResolutionError
from airflow_guard.core.keys import DATELESS, NORMALISER_VERSION, KeySpace
from airflow_guard.core.states import FollowUp, Phase, State
from airflow_guard.store import aliases
from airflow_guard.store.dialects import utc_now
from airflow_guard.store.events import AuditEvent, told
from airflow_guard.store.rows import ledger_row

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from airflow_guard.store.ledger import Ledger

_REFUSED = "DocumentError"
_NAMED = 10


@dataclass(frozen=True, slots=True)
class Place:
    """Whose documents: an operation, a business date and a cycle."""

    key_namespace: str
    operation: str
    business_date: date
    cycle: str = ""

    def describe(self) -> str:
        """Return it in words."""
        cycle = f" / {self.cycle}" if self.cycle else ""
        return f"{self.key_namespace} / {self.operation} / {self.business_date}{cycle}"


@dataclass(frozen=True, slots=True)
class Dropped:
    """A document that is dropped, or would be (dry run).

    :param document: ``None``: the run as a whole.
    :param before: where it stood, in words.
    :param repeated: it was dropped before, and stays so.
    """

    key_hash: str
    document: str | None
    before: str
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class _Found:
    """A document with its key, if it has one, and the tries that have noted it."""

    key_date: date
    key_hash: str
    document: str | None
    row: Any = None
    notes: tuple[Any, ...] = ()

    @property
    def situation(self) -> Situation | None:
        return situation_of(ledger_row(self.row, {})) if self.row is not None else None

    @property
    def before(self) -> str:
        why = next((note.why for note in self.notes if note.why), None)
        held = f"held back: {why}" if why else "not begun"
        return f"{self.situation}" if self.situation is not None else held


def drop(
    ledger: Ledger,
    place: Place,
    documents: Sequence[str | None] | None,
    *,
    actor: str,
    reason: str,
    dry_run: bool = False,
) -> list[Dropped]:
    """Drop documents (failed, given up before it began, or without a key → dropped), each with an event.

    :param documents: normalised; ``None``: all of the place that were listed, are not done and can be dropped.
    :param actor: who says so; ``reason`` why: both mandatory.
    :param dry_run: check, and return what would be dropped.
    :raises ResolutionError: one cannot be dropped, such as one in doubt (it has to be settled first); none was.
    :raises LedgerBusy: a lock was not free in time (a retry helps).
    """
    actor, reason = check_words(actor, reason)
    with one_transaction(ledger.database, "drop", keep=not dry_run) as connection:
        return _Drop(ledger, connection, place, actor, reason).run(documents)


class _Drop:
    def __init__(
        self, ledger: Ledger, connection: sa.Connection, place: Place, actor: str, reason: str
    ) -> None:
        self._ledger, self._connection, self._place = ledger, connection, place
        self._actor, self._reason = actor, reason
        self._why = told(f"{CONSEQUENCES[Decision.DROP].words} by {actor}: {reason}")
        self._tables = ledger.database.tables

    def run(self, documents: Sequence[str | None] | None) -> list[Dropped]:
        found = self._found()
        if documents is None:
            wanted = [each for each in found.values() if self._can(each)]
            if not wanted:
                raise ResolutionError(
                    f"{self._place.describe()}: nothing was listed that is not done and can be dropped. Nothing was changed."
                )
        else:
            wanted = [self._named(document, found) for document in documents]
        return [self._one(each) for each in wanted]

    # -- what there is --------------------------------------------------------------------------------------

    def _found(self) -> dict[tuple[str | None, str], _Found]:
        """Return what stands in the ledger of the place and is not simply done, by document and key."""
        notes: dict[tuple[date, str], list[Any]] = {}
        for note in self._notes():
            notes.setdefault((note.key_date, self._hash_of(note)), []).append(note)
        found = {}
        for identity in sorted({*notes, *self._keys()}):
            key_date, key_hash = identity
            self._ledger.statements.lock.run(self._connection, key_date, [key_hash]).all()
            rows = self._ledger.statements.read.run(self._connection, key_date, [key_hash]).all()
            row, noted = (rows[0] if rows else None), tuple(notes.get(identity, ()))
            document = row.document if row is not None else noted[0].document
            found[document, key_hash] = _Found(key_date, key_hash, document, row, noted)
        return found

    def _notes(self) -> Sequence[Any]:
        listed, run, lease = self._tables.listed, self._tables.task_run, self._tables.lease
        alive = sa.exists().where(lease.c.task_run_id == run.c.id, lease.c.expires_at > utc_now())
        wanted = (
            sa.select(listed, run.c.deployment)
            .join(run, run.c.id == listed.c.task_run_id)
            .where(*self._of(run, *self._former()), sa.not_(alive))
            .order_by(listed.c.task_run_id)
        )
        return self._connection.execute(wanted).all()

    def _keys(self) -> set[tuple[date, str]]:
        e = self._tables.execution
        open_ = (State.FAILED, State.IN_PROGRESS, State.IN_DOUBT, State.DROPPED)
        wanted = sa.select(e.c.key_date, e.c.key_hash).where(
            *self._of(e), e.c.state.in_([state.value for state in open_])
        )
        return {(row.key_date, row.key_hash) for row in self._connection.execute(wanted)}

    def _former(self) -> Sequence[aliases.Name]:
        """Return the names that the operation had: tries keep those under which they ran."""
        name = (self._place.key_namespace, self._place.operation)
        return aliases.former_names(self._connection, self._tables, name)

    def _of(self, table: sa.Table, *former: aliases.Name) -> tuple[sa.ColumnElement[bool], ...]:
        place = self._place
        names = [(place.key_namespace, place.operation), *former]
        return (
            table.c.business_date == place.business_date,
            sa.or_(*(sa.and_(table.c.key_namespace == one[0], table.c.operation == one[1]) for one in names)),
            table.c.cycle == place.cycle,
        )

    def _hash_of(self, note: Any) -> str:
        """Return the key's hash under the name that the operation has now."""
        if note.why == _REFUSED:
            return str(note.key_hash)
        place, once_per = self._place, "document" if note.key_date == DATELESS else "date"
        space = KeySpace(place.key_namespace, place.operation, place.business_date, place.cycle, once_per)
        return space.hasher().key_hash(note.document)

    # -- one document ---------------------------------------------------------------------------------------

    def _named(self, document: str | None, found: dict[tuple[str | None, str], _Found]) -> _Found:
        mine = [each for (name, _), each in found.items() if name == document]
        what = "the run as a whole" if document is None else f"document {document!r}"
        if not mine:
            raise ResolutionError(
                f"{self._place.describe()}: {what} was not listed, or is done. Nothing was changed."
            )
        each = mine[0]
        if not self._can(each) and each.situation is not Situation.DROPPED:
            settle = (
                " Settle it first: airflow-guard show says how."
                if each.situation is Situation.IN_DOUBT
                else ""
            )
            raise ResolutionError(
                f"{self._place.describe()}: {what} cannot be dropped, it is {each.before}.{settle} Nothing was changed."
            )
        return each

    def _can(self, each: _Found) -> bool:
        if each.situation in (None, Situation.FAILED, Situation.ABANDONED):
            return True
        return bool(each.notes) and each.situation in (Situation.DONE, Situation.REJECTED)

    def _one(self, each: _Found) -> Dropped:
        if each.situation is Situation.DROPPED and not each.notes:
            return Dropped(each.key_hash, each.document, each.before, repeated=True)
        token, run = uuid.uuid4().hex, each.notes[-1].task_run_id if each.notes else None
        if each.situation in (Situation.FAILED, Situation.ABANDONED):
            token, run = each.row.owner_token, each.row.task_run_id
            changed = self._ledger.statements.drop.run(
                self._connection, each.key_date, [each.key_hash], token=token, why=self._why
            )
            if changed.rowcount != 1:
                raise ResolutionError(
                    f"{each.document}: an attempt is at work on it again. Nothing was changed."
                )
        elif each.row is None and each.notes[-1].why != _REFUSED:
            self._insert(each, token)
        for note in each.notes:
            t = self._tables.listed
            mine = (t.c.task_run_id == note.task_run_id, t.c.key_hash == note.key_hash)
            self._one_row(sa.delete(t).where(*mine), each)
        text = f"{self._place.describe()} / {'(whole run)' if each.document is None else each.document}"
        before = each.row.state if each.row is not None else None
        self._ledger.events.write(
            self._connection,
            AuditEvent(
                "drop",
                text,
                self._actor,
                self._reason,
                each.key_date,
                each.key_hash,
                each.row.attempt if each.row is not None else None,
                token,
                run,
                before,
                State.DROPPED.value,
            ),
        )
        return Dropped(each.key_hash, each.document, each.before)

    def _insert(self, each: _Found, token: str) -> None:
        """none → dropped; it counts as listed by the try that noted it."""
        place, note, e, run = self._place, each.notes[-1], self._tables.execution, self._tables.task_run
        once_per = "document" if each.key_date == DATELESS else "date"
        space = KeySpace(
            place.key_namespace, place.operation, place.business_date, place.cycle, once_per, note.deployment
        )
        values = {
            "key_date": each.key_date,
            "key_hash": each.key_hash,
            "normaliser": NORMALISER_VERSION,
            "key_namespace": place.key_namespace,
            "operation": place.operation,
            "business_date": place.business_date,
            "cycle": place.cycle,
            "document": each.document,
            "deployment": note.deployment,
            "state": State.DROPPED.value,
            "phase": Phase.NONE.value,
            "follow_up": FollowUp.NONE.value,
            "attempt": 0,
            "generation": 1,
            "owner_token": token,
            "idempotency_key": space.hasher().idempotency_key(each.key_hash),
            "task_run_id": note.task_run_id,
            "first_task_run_id": note.task_run_id,
            "error": self._why,
        }
        try:
            self._connection.execute(
                sa.insert(e).values(**values, claimed_at=utc_now(), finished_at=utc_now())
            )
        except sa.exc.IntegrityError:
            raise ResolutionError(f"{each.document}: it was claimed just now. Nothing was changed.") from None
        counted = sa.update(run).where(run.c.id == note.task_run_id)
        self._one_row(counted.values(first_claims=run.c.first_claims + 1), each)

    def _one_row(self, statement: sa.Delete | sa.Update, each: _Found) -> None:
        """Change the row that was read just now, or nothing at all: a figure must not be off by one for ever."""
        if self._connection.execute(statement).rowcount != 1:
            name = "The run as a whole" if each.document is None else each.document
            raise ResolutionError(
                f"{name}: the try that listed it was changed just now (listed again, dropped or purged). Nothing was "
                "changed. Look at it again."
            )
