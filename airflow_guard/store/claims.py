"""Claims: which keys an attempt may have, with which content, in one short transaction. Writes keys, events and tries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_guard.core.content import changed_fields, content_id
from airflow_guard.core.errors import BeforeHorizon, OwnershipLost
from airflow_guard.core.keys import DATELESS, NORMALISER_VERSION, KeySpace
from airflow_guard.core.states import FollowUp, Phase, State
from airflow_guard.store import dialects
from airflow_guard.store.aliases import name_hash
from airflow_guard.store.events import AuditEvent
from airflow_guard.store.lookups import Lookups

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import sqlalchemy as sa

    from airflow_guard.core.documents import Document
    from airflow_guard.store.changes import Ownership


class Claimed(NamedTuple):
    """A key that a claim has won, as the ledger has it."""

    key_hash: str
    attempt: int
    generation: int
    idempotency_key: str
    batch_id: str | None


class Claims(Lookups):
    """The part of the ledger that gives keys to attempts."""

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
        name = name_hash(space.key_namespace, space.operation)

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
        self,
        connection: sa.Connection,
        own: Ownership,
        space: KeySpace,
        known: Sequence[Document],
        keep_content: Collection[str] = (),
    ) -> None:
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
                self._take_content(connection, own, space, row, by_hash[row.key_hash])
        taken_over = [row for row in locked if row.state == State.IN_PROGRESS.value]
        self.events.write(
            connection,
            *(
                AuditEvent(
                    "take_over",
                    space.describe(by_hash[row.key_hash].name),
                    own.actor,
                    "the lease of the earlier attempt was over and its effect had not begun",
                    own.key_date,
                    row.key_hash,
                    row.attempt + 1,
                    row.owner_token,
                    row.task_run_id,
                    State.IN_PROGRESS.value,
                    State.IN_PROGRESS.value,
                )
                for row in taken_over
            ),
        )

    def _take_content(
        self, connection: sa.Connection, own: Ownership, space: KeySpace, row: Any, document: Document
    ) -> None:
        """Let a claimed key take the content that is now to be processed, in the claim's transaction.

        It gets an idempotency key of its own, if the receiver may have been given the old one with other content.

        :param row: as it was locked, before the claim.
        """
        print_ = document.fingerprint
        if row.fingerprint == print_:
            return
        s, one = self.statements, (connection, own.key_date, [row.key_hash])
        _changed(s.take_content.run(*one, token=own.token, print_=print_), space.describe(document.name))
        fields = changed_fields(row.fingerprint, print_)
        if fields is None:
            return
        why = f"claimed with new content (changed: {', '.join(fields) or 'none of the fields can be compared'}), "
        if row.first_begun_at is None:
            why += "under the same idempotency key, which no receiver has been given"
        else:
            receiver_key = document.hasher.idempotency_key(row.key_hash, row.generation, content_id(print_))
            renewed = s.renew_key.run(*one, token=own.token, receiver_key=receiver_key)
            _changed(renewed, space.describe(document.name))
            why += f"under idempotency key {receiver_key}: the receiver may know {row.idempotency_key} with the old content"
        event = AuditEvent(
            "new_content",
            space.describe(document.name),
            own.actor,
            why,
            own.key_date,
            row.key_hash,
            row.attempt + 1,
            own.token,
            own.task_run_id,
            row.state,
            State.IN_PROGRESS.value,
        )
        self.events.write(connection, event)

    def _claim_parameters(
        self,
        own: Ownership,
        space: KeySpace,
        new: Sequence[Document],
        receiver_keys: Mapping[str, str],
        normaliser: int,
    ) -> Any:
        shared = {
            "p_key_date": own.key_date,
            "p_normaliser": normaliser,
            "p_key_namespace": space.key_namespace,
            "p_operation": space.operation,
            "p_business_date": space.business_date,
            "p_cycle": space.cycle,
            "p_deployment": space.deployment,
            "p_state": State.IN_PROGRESS.value,
            "p_phase": Phase.NONE.value,
            "p_follow_up": FollowUp.NONE.value,
            "p_attempt": 1,
            "p_generation": 1,
            "p_owner_token": own.token,
            "p_task_run_id": own.task_run_id,
            "p_first_task_run_id": own.task_run_id,
        }
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
                "key_hash": document.key_hash,
                "document": document.name,
                "idempotency_key": receiver_keys[document.key_hash],
                "fingerprint": document.fingerprint,
            }
            for document in new
        ]


def _changed(result: Any, what: str) -> None:
    """Refuse to go on with a claim whose key did not take what belongs to it: it would be executed as something else."""
    if result.rowcount != 1:
        raise OwnershipLost(
            f"{what} was claimed, and the database did not take its new content: a trigger or a rule of its own may have held "
            "that back. Nothing was claimed; another try looks again."
        )
