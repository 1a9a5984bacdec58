"""The execution ledger: begin, complete, fail, doubt, by the owner of keys. Contention is a value, not an exception."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa

from airflow_guard.core.errors import OwnershipLost
from airflow_guard.core.states import FollowUp, State
from airflow_guard.store import dialects
from airflow_guard.store.business_transaction import BusinessTransaction
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
from airflow_guard.store.claims import Claims
from airflow_guard.store.database import commit
from airflow_guard.store.events import storable, told
from airflow_guard.store.listed import ListedDocuments
from airflow_guard.store.overlap import Overlap
from airflow_guard.store.task_runs import as_stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import date

    from airflow_guard.core.fail_over import FailOver
    from airflow_guard.core.guard import LedgerRow
    from airflow_guard.core.reruns import Rerun, Reversal
    from airflow_guard.store.database import AtOnce, LedgerDatabase
    from airflow_guard.store.events import AuditEvent

T = TypeVar("T")


class Ledger(Claims):
    """The ledger in one database, see :class:`~airflow_guard.store.port.LedgerPort`."""

    def __init__(self, database: LedgerDatabase) -> None:
        super().__init__(database)
        self.changes = Changes(database, self.statements, self.events)
        self.listed = ListedDocuments(database)
        self.overlap = Overlap(database)

    @property
    def one_writer(self) -> bool:
        """Whether the database lets one transaction write at a time, so that threads gain nothing."""
        return self.database.dialect == dialects.SQLITE

    def close(self) -> None:
        """Give all connections back."""
        self.database.dispose()

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
            "hashes": [*outcomes, *begins],
            "outcomes": [*outcomes.values(), *[None] * len(begins)],
        }
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

    def doubt_since(
        self, own: Ownership, hashes: Sequence[str], batch_id: str | None, fail_over: FailOver
    ) -> set[str]:
        """Mark claimed keys as if their effect had begun when the commits were lost, in doubt; return the keys not ours.

        in_progress/none → in_progress/begun → in_doubt, in one transaction, with an event. The receiver's memory counts
        from ``lost_since``: the first call may have been as early.
        """
        e, said = self.database.tables.execution, storable(fail_over.why)

        def work(connection: sa.Connection) -> set[str]:
            rows = {row.key_hash: row for row in self.statements.plain.run(connection, own.key_date, hashes)}
            fresh = [key for key in hashes if key in rows and rows[key].state == State.IN_PROGRESS.value]
            lost = self.apply(connection, own, BEGIN, fresh, batch=batch_id) if fresh else set()
            mine = [key for key in hashes if key not in lost]
            lost |= self.apply(connection, own, DOUBT, mine, why=said)
            marked = [key for key in mine if key not in lost]
            # Never later: what began before the loss is remembered since then.
            since = as_stored(fail_over.lost_since, self.database.dialect)
            literal = sa.literal(since, e.c.first_begun_at.type)
            earliest = sa.case((e.c.first_begun_at > since, literal), else_=e.c.first_begun_at)
            in_doubt = sa.update(e).where(
                e.c.key_date == own.key_date,
                e.c.key_hash.in_(marked),
                e.c.owner_token == own.token,
                e.c.state == State.IN_DOUBT.value,
            )
            changed = connection.execute(
                in_doubt.values(state=State.IN_DOUBT.value, first_begun_at=earliest)
            ).rowcount
            if changed != len(marked):  # cannot be: this transaction has marked them
                raise OwnershipLost(f"{len(marked)} keys of {own.key_date} were put in doubt, {changed} are.")
            new = [key for key in marked if key in fresh]
            self.changes.record(
                connection, own, new, "doubt", fail_over.why, State.IN_PROGRESS, State.IN_DOUBT, rows=rows
            )
            return lost

        return self.write(work)

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
        self,
        own: Ownership,
        hashes: Sequence[str],
        *,
        outcome: str | None,
        failed: bool,
        why: str | None,
        patience_s: float,
        pushed: str | None = None,
    ) -> bool:
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

    # -- what belongs to it ----------------------------------------------------------------------------------

    def offer(self, key_date: date, offers: Sequence[tuple[LedgerRow, str]]) -> None:
        """Remember which content was listed of keys that stand with another, so that a person can accept just that.

        :param offers: rows as they were judged, and the fingerprint that was listed. A row that has a newer attempt, or
            is no longer completed or rejected, is left alone.
        """
        new = sorted(
            (row.key_hash, row.owner_token, print_) for row, print_ in offers if row.offered != print_
        )
        statement = self.statements.offer_content

        def work(connection: sa.Connection) -> None:
            for key_hash, token, print_ in new:
                statement.run(connection, key_date, [key_hash], token=token, print_=print_)

        if new:
            self.write(work)

    def tell(self, *events: AuditEvent) -> None:
        """Append events to the audit."""
        self.write(lambda connection: self.events.write(connection, *events))

    def mark_reversal(
        self, connection: sa.Connection, key_date: date, reruns: Iterable[Rerun], reversal: Reversal
    ) -> None:
        """See :meth:`Reruns.mark_reversal`."""
        self.reruns.mark_reversal(connection, key_date, reruns, reversal)

    def transaction(self, own: Ownership, hashes: Sequence[str]) -> BusinessTransaction:
        """Return a transaction in which a callable writes business rows, and which completes keys."""
        return BusinessTransaction(self.database, self.statements, own, hashes)

    @contextmanager
    def business(self) -> Iterator[sa.Connection]:
        """Give a connection for business rows that no key stands for, and commit at the end."""
        with self.database.business_engine.connect() as connection, connection.begin() as transaction:
            yield connection
            commit(transaction, connection, self.database)

    def at_once(self) -> AtOnce:
        """Return what executes single writes as transactions of their own, for one thread."""
        return self.database.at_once()

    def write(self, work: Callable[[sa.Connection], T], *, patience_s: float = 0.0) -> T:
        """Run repeatable writes in one transaction, see :meth:`LedgerDatabase.write`."""
        return self.database.write(work, patience_s=patience_s)

    def apply(
        self, connection: sa.Connection, own: Ownership, change: Change, hashes: Sequence[str], **values: Any
    ) -> set[str]:
        """See :meth:`Changes.apply`."""
        return self.changes.apply(connection, own, change, hashes, **values)
