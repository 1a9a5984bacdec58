"""The execution ledger: look up, claim, begin, complete, fail. Contention is a value, not an exception."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from airflow_guard.core.errors import BeforeHorizon, LedgerError, OwnershipLost
from airflow_guard.core.keys import DATELESS, NORMALISER_VERSION, KeySpace
from airflow_guard.core.states import FollowUp, Phase, State
from airflow_guard.store import aliases, contents, dialects
from airflow_guard.store.changes import (
    BEGIN,
    COMPLETE,
    DOUBT,
    FAIL_BEFORE,
    FAIL_BEGUN,
    REJECT,
    Change,
    Changes,
    Ownership,
)
from airflow_guard.store.events import AuditEvent, EventLog, told
from airflow_guard.store.reruns import Reruns
from airflow_guard.store.rows import ledger_row
from airflow_guard.store.statements import statements_of
from airflow_guard.store.task_runs import TaskRuns

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from datetime import date

    import sqlalchemy as sa

    from airflow_guard.core.documents import Document
    from airflow_guard.core.guard import LedgerRow, TaskIdentity
    from airflow_guard.store.database import AtOnce, LedgerDatabase

T = TypeVar("T")


class Claimed(NamedTuple):
    """A key that a claim has won, as the ledger has it."""

    key_hash: str
    attempt: int
    generation: int
    idempotency_key: str
    batch_id: str | None


class Ledger:
    """The ledger in one database.

    :param database: engines and tables. Tables must exist (``airflow-guard migrate``).
    """

    def __init__(self, database: LedgerDatabase) -> None:
        self.database = database
        self.statements = statements_of(database.tables, database.dialect)
        self.runs = TaskRuns(database)
        self.events = EventLog(database.tables)
        self.changes = Changes(database, self.statements, self.events)
        self.reruns = Reruns(database.tables, self.statements, self.events)
        self._identities: dict[int, TaskIdentity] = {}

    # -- reads ----------------------------------------------------------------------------------------------

    def lookup(self, key_date: date, hashes: Sequence[str]) -> Sequence[Any]:
        """Return the short rows (see ``Statements.lookup``) of the keys that the ledger knows."""
        return self.database.look(lambda c: self.statements.lookup.run(c, key_date, hashes).all())

    def read(self, key_date: date, hashes: Sequence[str]) -> dict[str, LedgerRow]:
        """Return all about the keys that the ledger knows, with the database's view of leases and ages."""
        rows = self.database.read(lambda c: self.statements.read.run(c, key_date, hashes).all())
        people = self.identities(
            run for row in rows for run in (row.task_run_id, row.first_task_run_id) if run is not None
        )
        return {row.key_hash: ledger_row(row, people) for row in rows}

    def identities(self, ids: Iterable[int]) -> dict[int, TaskIdentity]:
        """Return who the task tries were; remembered, since that never changes."""
        missing = {run for run in ids if run not in self._identities}
        if missing:
            self._identities.update(self.runs.identities(missing))
        return self._identities

    def members_of_batches(self, batch_ids: Iterable[str]) -> dict[str, dict[str, str | None]]:
        """Return the documents of batches, in their order, by batch id and key hash."""
        parameters = {"batch_ids": sorted(set(batch_ids))}
        rows = self.database.read(lambda c: c.execute(self.statements.batch_members, parameters).all())
        members: dict[str, dict[str, str | None]] = {}
        for row in rows:
            members.setdefault(row.batch_id, {})[row.key_hash] = row.document
        return members

    # -- claims ---------------------------------------------------------------------------------------------

    def claim(
        self,
        own: Ownership,
        space: KeySpace,
        new: Sequence[Document],
        known: Sequence[Document],
        normaliser: int = NORMALISER_VERSION,
        *,
        reruns: Sequence[Document] = (),
        fail_over: int | None = None,
        listed: int = 0,
        keep_content: Collection[str] = (),
    ) -> dict[str, Claimed]:
        """Claim keys in one short transaction and return what was won.

        :param new: documents that the ledger does not know (none → in_progress).
        :param known: documents that look claimable (failed, or lease over with no effect begun).
        :param reruns: documents that are done and that a person has authorised: the authorisation is used.
        :param fail_over: the newest open fail-over that the caller knows of, 0 for none; ``None``: no fail-over can have
            lost its effects, since they were lost with the ledger.
        :param listed: how many documents the try has listed so far: it stands in its row, should it be killed.
        :param keep_content: known keys whose earlier effect may have happened after all: the claim is about that one, so
            that they keep the content and the idempotency key that it had.
        :raises LedgerBusy: a lock was not free in time: treat the keys as in progress elsewhere.
        :raises OwnershipLost: the operation was renamed since the task looked for aliases, or a fail-over was recorded
            since (retryable).
        :raises BeforeHorizon: a new key is dated when keys were purged; nothing was claimed. A retry does not help.
        """
        s = self.statements
        new = sorted(new, key=lambda document: document.key_hash)
        hashes = sorted(document.key_hash for document in (*new, *known, *reruns))
        name = aliases.name_hash(space.key_namespace, space.operation)

        receiver_keys = {document.key_hash: document.idempotency_key for document in new}

        def work(connection: sa.Connection) -> dict[str, Claimed]:
            self.database.limit_locks(connection)
            if known:
                self._take(connection, own, space, known, keep_content)
            if reruns:
                again = self.reruns.use(connection, own, space, [document.key_hash for document in reruns])
                self._take(connection, own, space, [each for each in reruns if each.key_hash in again])
            if new:
                parameters = self._claim_parameters(own, space, new, receiver_keys, normaliser)
                inserted = connection.execute(s.insert_claims, parameters).rowcount
                if (
                    not (known or reruns)
                    and inserted == len(new)
                    and self.database.dialect == dialects.POSTGRES
                ):
                    # All of it won, as it was sent: not read back. (MySQL counts otherwise.)
                    self._refuse_late(connection, space, name, fail_over, inserted=True)
                    self.runs.count_claims(connection, own.task_run_id, len(new), listed)
                    return {key: Claimed(key, 1, 1, sent, None) for key, sent in receiver_keys.items()}
            won = s.owned.run(connection, own.key_date, hashes, token=own.token).all()
            if won:
                self._refuse_late(connection, space, name, fail_over, inserted=bool(new))
                first = sum(row.key_hash in receiver_keys for row in won)
                self.runs.count_claims(connection, own.task_run_id, first, listed)
            return {row.key_hash: Claimed(*row) for row in won}

        return self.database.write(work)

    def _refuse_late(
        self, connection: sa.Connection, space: KeySpace, name: str, fail_over: int | None, *, inserted: bool
    ) -> None:
        # Asked after the inserts. A rename holds off writers, so it came before them or comes after. A purge commits
        # its horizon before it deletes: a key that is gone could only be inserted with the horizon to be seen.
        found = connection.execute(self.statements.unclaimable, {"name": name}).one()
        if found.renamed:
            raise OwnershipLost(
                f"{space.key_namespace} / {space.operation} was renamed in the ledger while this task ran. Nothing "
                "was claimed; another try meets the keys under their new names."
            )
        if fail_over is not None and (found.fail_over or 0) > fail_over:
            raise OwnershipLost(
                f"{space.describe(None)}: a fail-over that may have lost commits was recorded while this task ran. Nothing was "
                "claimed; another try looks at what may have been done."
            )
        until = found.purged_until
        if inserted and until is not None and space.key_date != DATELESS and space.business_date <= until:
            raise BeforeHorizon(
                f"{space.describe(None)}: keys of this operation up to {until} were purged, so nobody can tell what was done "
                "then. Nothing was executed. If it must be, give it a key of its own: another operation or cycle."
            )

    def _take(
        self, connection: sa.Connection, own: Ownership, space: KeySpace, known: Sequence[Document],
        keep_content: Collection[str] = (),
    ) -> None:  # fmt: skip
        s, by_hash = self.statements, {document.key_hash: document for document in known}
        if not by_hash:
            return
        locked = s.lock_claimable.run(connection, own.key_date, sorted(by_hash)).all()
        if not locked:
            return
        taken = [row.key_hash for row in locked]
        changed = s.take.run(connection, own.key_date, taken, token=own.token, run=own.task_run_id)
        if changed.rowcount != len(taken):
            # A lease that was renewed since its row was found: that attempt lives and stays.
            now = {row.key_hash: row.owner_token for row in s.lock.run(connection, own.key_date, taken)}
            locked = [row for row in locked if now[row.key_hash] == own.token]
            taken = [row.key_hash for row in locked]
        for row in locked:
            if row.key_hash not in keep_content:
                contents.take(self, connection, own, space, row, by_hash[row.key_hash])
        taken_over = [row for row in locked if row.state == State.IN_PROGRESS.value]
        self.events.write(
            connection,
            *(
                AuditEvent(
                    "take_over", space.describe(by_hash[row.key_hash].name), own.actor,
                    "the lease of the earlier attempt was over and its effect had not begun",
                    own.key_date, row.key_hash, row.attempt + 1, row.owner_token, row.task_run_id,
                    State.IN_PROGRESS.value, State.IN_PROGRESS.value,
                )
                for row in taken_over
            ),
        )  # fmt: skip

    def _claim_parameters(
        self, own: Ownership, space: KeySpace, new: Sequence[Document], receiver_keys: Mapping[str, str],
        normaliser: int,
    ) -> Any:  # fmt: skip
        shared = {
            "p_key_date": own.key_date, "p_normaliser": normaliser, "p_key_namespace": space.key_namespace,
            "p_operation": space.operation, "p_business_date": space.business_date, "p_cycle": space.cycle,
            "p_deployment": space.deployment, "p_state": State.IN_PROGRESS.value, "p_phase": Phase.NONE.value,
            "p_follow_up": FollowUp.NONE.value, "p_attempt": 1, "p_generation": 1, "p_owner_token": own.token,
            "p_task_run_id": own.task_run_id, "p_first_task_run_id": own.task_run_id,
        }  # fmt: skip
        if self.database.dialect == dialects.POSTGRES:
            lists = {
                "key_hash": receiver_keys,
                "document": (document.name for document in new),
                "idempotency_key": receiver_keys.values(),
                "fingerprint": (document.fingerprint for document in new),
            }
            return shared | {
                name: dialects.list_value(dialects.POSTGRES, items) for name, items in lists.items()
            }
        return [
            shared
            | {
                "key_hash": document.key_hash, "document": document.name,
                "idempotency_key": receiver_keys[document.key_hash], "fingerprint": document.fingerprint,
            }
            for document in new
        ]  # fmt: skip

    # -- changes by the owner -------------------------------------------------------------------------------

    def begin(self, own: Ownership, hashes: Sequence[str], batch_id: str | None = None) -> set[str]:
        """Mark effects as begun (in_progress: none → begun) and return the keys that are no longer ours."""
        return self.write(lambda c: self.apply(c, own, BEGIN, hashes, batch=batch_id))

    def begin_together(self, own: Ownership, hashes: Sequence[str], batch_id: str) -> None:
        """Mark the effect of a whole batch as begun, or nothing of it, and keep the order of its members.

        :raises OwnershipLost: a member is no longer ours; nothing was begun (retryable).
        """

        members = [
            {"d": own.key_date, "h": key_hash, "token": own.token, "batch": batch_id, "position": position}
            for position, key_hash in enumerate(hashes)
        ]

        def work(connection: sa.Connection) -> None:
            if connection.execute(self.statements.begin_member, members).rowcount == len(members):
                return
            lost = self.apply(connection, own, BEGIN, hashes, batch=batch_id)
            if lost:
                raise OwnershipLost(
                    f"{len(lost)} of {len(hashes)} documents of batch {batch_id} are owned by another attempt."
                )

        self.write(work)

    def complete(
        self,
        own: Ownership,
        hashes: Sequence[str],
        outcome: str | None,
        *,
        follow_up: FollowUp = FollowUp.NONE,
        why: str | None = None,
        pushed: str | None = None,
        patience_s: float = 0.0,
    ) -> set[str]:
        """Record effects as done (in_progress/begun → completed) and return the keys that are no longer ours.

        A key that was marked in doubt meanwhile becomes completed (the late report of its own attempt); so does
        one that was resolved as "did not happen" and that nobody has claimed since. One that another attempt
        owns is a conflict: written as an event, and returned.
        """
        return self.write(
            lambda c: self.apply(
                c,
                own,
                COMPLETE,
                hashes,
                outcome=outcome,
                follow=follow_up.value,
                why=told(why),
                pushed=pushed,
            ),
            patience_s=patience_s,
        )

    def complete_each(
        self, connection: sa.Connection, own: Ownership, outcomes: Mapping[str, str]
    ) -> set[str]:
        """Record effects as done, each with its own result, in the caller's transaction; return the keys not ours."""
        together = self.statements.complete_and_begin
        if len(outcomes) > 1 and together is not None:
            parameters = self._outcomes_and_begins(own, outcomes, [])
            if together.changed(connection, parameters) == len(outcomes):
                return set()
        lost: set[str] = set()
        for key_hash, outcome in outcomes.items():
            # A key that the statement above has completed is found completed, with our token.
            lost |= self.apply(
                connection, own, COMPLETE, [key_hash], outcome=outcome, follow="none", why=None, pushed=None
            )
        return lost

    def complete_and_begin(
        self, own: Ownership, outcomes: Mapping[str, str], begins: Sequence[str], at_once: AtOnce
    ) -> bool:
        """Record effects as done and others as begun, in one round trip; return whether all of it took effect.

        Where it did not, or cannot be done at once, the caller repeats it through :meth:`complete_each` and
        :meth:`apply`, which find what did take effect.
        """
        together = self.statements.complete_and_begin
        if together is None:
            return False
        changed = at_once.changed(together, self._outcomes_and_begins(own, outcomes, begins))
        return changed == len(outcomes) + len(begins)

    def _outcomes_and_begins(
        self, own: Ownership, outcomes: Mapping[str, str], begins: Sequence[str]
    ) -> dict[str, Any]:
        lists: dict[str, list[str | None]] = {
            "hashes": [*outcomes, *begins], "outcomes": [*outcomes.values(), *[None] * len(begins)],
        }  # fmt: skip
        listed = {name: dialects.list_value(self.database.dialect, items) for name, items in lists.items()}
        return {"d": own.key_date, "token": own.token, **listed}

    def fail(
        self, own: Ownership, hashes: Sequence[str], why: str, *, begun: bool, patience_s: float = 0.0
    ) -> set[str]:
        """Record that effects have certainly not happened (in_progress → failed); return the keys not ours."""
        change = FAIL_BEGUN if begun else FAIL_BEFORE
        return self.write(lambda c: self.apply(c, own, change, hashes, why=told(why)), patience_s=patience_s)

    def reject(self, own: Ownership, hashes: Sequence[str], why: str, *, patience_s: float = 0.0) -> set[str]:
        """Record that the business refused documents (in_progress → rejected); return the keys not ours."""
        return self.write(lambda c: self.apply(c, own, REJECT, hashes, why=told(why)), patience_s=patience_s)

    def doubt(self, own: Ownership, hashes: Sequence[str], why: str, *, patience_s: float = 0.0) -> set[str]:
        """Record that effects may or may not have happened (in_progress/begun → in_doubt), with an event.

        Where others have marked the attempt in doubt before, this is a later sign of its life.
        """
        said = told(why)

        def work(connection: sa.Connection) -> set[str]:
            found = self.statements.plain.run(connection, own.key_date, hashes)
            rows = {row.key_hash: row for row in found}
            lost = self.apply(connection, own, DOUBT, hashes, why=said)
            for before in (State.IN_PROGRESS, State.IN_DOUBT):
                # A repetition after a lost commit finds its own words, and is no second event.
                marked = [key for key, row in rows.items() if key not in lost and row.state == before]
                new = [key for key in marked if before is State.IN_PROGRESS or rows[key].error != said]
                self.changes.record(connection, own, new, "doubt", why, before, State.IN_DOUBT, rows=rows)
            return lost

        return self.write(work, patience_s=patience_s)

    def let_go_by(self, own: Ownership, key_hash: str) -> str:
        """Return, in words, what let another attempt begin, or a person settle, while this one was at work."""
        try:
            return self.database.read(lambda c: self.events.let_go_by(c, own.key_date, key_hash, own.token))
        except LedgerError as error:
            return f"what let it go cannot be read now ({error})"

    def expire(self, key_date: date, rows: Sequence[LedgerRow], actor: str) -> int:
        """Write down what every reader sees already: in_progress/begun with the lease over → in_doubt.

        :param rows: as they were read; only the attempts that were read are marked.
        :return: how many were marked by this call.
        """
        candidates = [row for row in rows if row.state is State.IN_PROGRESS]
        why = "the lease of the attempt was over and its effect had begun"

        def work(connection: sa.Connection) -> int:
            marked = 0
            for row in candidates:
                expired = self.statements.doubt_expired
                if (
                    expired.run(connection, key_date, [row.key_hash], token=row.owner_token, why=why).rowcount
                    == 1
                ):
                    own = Ownership(key_date, row.owner_token, row.task_run_id or 0, actor)
                    self.changes.record(
                        connection, own, [row.key_hash], "doubt", why, State.IN_PROGRESS, State.IN_DOUBT
                    )
                    marked += 1
            return marked

        return self.write(work) if candidates else 0

    def end_follow_up(
        self, own: Ownership, hashes: Sequence[str], *, outcome: str | None, failed: bool, why: str | None,
        patience_s: float, pushed: str | None = None,
    ) -> bool:  # fmt: skip
        """Record what came of the part after the effect window (completed: pending → none or failed).

        :param failed: whether it failed; ``why`` then says how.
        :return: whether the rows were still pending and ours.
        """
        s = self.statements
        statement = s.follow_up_failed if failed else s.follow_up_done
        values: dict[str, Any] = {"token": own.token, "why": told(why), "pushed": pushed}
        if not failed:
            values["outcome"] = outcome
        target = FollowUp.FAILED if failed else FollowUp.NONE

        def work(connection: sa.Connection) -> bool:
            if statement.run(connection, own.key_date, hashes, **values).rowcount == len(hashes):
                return True
            # A repetition after a lost commit finds its own work done.
            done = [
                row
                for row in s.lock.run(connection, own.key_date, hashes)
                if (row.owner_token, row.state, row.follow_up) == (own.token, State.COMPLETED, target)
                and row.error == values["why"]
                and (failed or row.result == outcome)
            ]
            return len(done) == len(hashes)

        return self.write(work, patience_s=patience_s)

    def write(self, work: Callable[[sa.Connection], T], *, patience_s: float = 0.0) -> T:
        """Run repeatable writes in one transaction, see :meth:`LedgerDatabase.write`."""
        return self.database.write(work, patience_s=patience_s)

    def apply(
        self, connection: sa.Connection, own: Ownership, change: Change, hashes: Sequence[str], **values: Any
    ) -> set[str]:
        """See :meth:`Changes.apply`."""
        return self.changes.apply(connection, own, change, hashes, **values)
