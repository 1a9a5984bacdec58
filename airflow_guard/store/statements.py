"""Every statement of the ledger, each with its transition, in one place.

All writes after a claim match the owner token (``:token``) and the state and phase that they leave; the caller
checks the row count. Statements on keys come as :class:`ByKeys`: for one key, and for a list of keys of one date.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.states import FollowUp, Phase, State
from airflow_guard.store import dialects
from airflow_guard.store.by_keys import KeyReads, constant
from airflow_guard.store.dialects import utc_now
from airflow_guard.store.driver import OnDriver

if TYPE_CHECKING:
    from airflow_guard.store.tables import Tables

CLAIM_ROWS = ("key_hash", "document", "idempotency_key", "fingerprint")
CLAIM_SHARED = (
    "key_date",
    "normaliser",
    "key_namespace",
    "operation",
    "business_date",
    "cycle",
    "deployment",
    "state",
    "phase",
    "follow_up",
    "attempt",
    "generation",
    "owner_token",
    "task_run_id",
    "first_task_run_id",
)


@lru_cache(maxsize=16)
def statements_of(tables: Tables, dialect: str) -> Statements:
    """Return the statements for these tables, built once for a process, which may open several ledgers.

    Nothing may change them: all ledgers on these tables execute them.

    :param tables: as for :class:`Statements`.
    :param dialect: as for :class:`Statements`.
    """
    return Statements(tables, dialect)


class Statements(KeyReads):
    """The statements for one set of tables and one database family.

    :param tables: the ledger's tables.
    :param dialect: ``postgresql``, ``mysql`` or ``sqlite``.
    """

    def __init__(self, tables: Tables, dialect: str) -> None:
        super().__init__(tables, dialect)
        self._build_claims()
        self._build_effects()
        self._build_endings()
        self._build_late_reports()
        self._build_resolutions()

    # -- claims ---------------------------------------------------------------------------------------------

    def _build_claims(self) -> None:
        e = self._e
        claimable = sa.or_(
            e.c.state == constant(State.FAILED),
            sa.and_(self._in(State.IN_PROGRESS, Phase.NONE), ~self._lease_lives()),
        )
        insert = dialects.claim_insert(self.dialect, e, CLAIM_ROWS, CLAIM_SHARED)
        self.insert_claims = insert.execution_options(preserve_rowcount=True)
        """none → in_progress; an existing key is left alone."""

        self.lock_claimable = self._by_keys(
            sa.select(
                e.c.key_hash,
                e.c.state,
                e.c.attempt,
                e.c.owner_token,
                e.c.task_run_id,
                e.c.fingerprint,
                e.c.idempotency_key,
                e.c.generation,
                e.c.first_begun_at,
            )
            .where(claimable)
            .order_by(e.c.key_hash)
            .with_for_update(of=e, skip_locked=True)
        )
        """Lock, in one order, what may be claimed. A locked row is somebody's: in progress elsewhere."""

        self.take = self._by_keys(
            sa.update(e)
            .where(claimable)
            .values(
                **self._to(State.IN_PROGRESS, Phase.NONE),
                owner_token=sa.bindparam("token"),
                task_run_id=sa.bindparam("run"),
                first_task_run_id=sa.func.coalesce(e.c.first_task_run_id, sa.bindparam("run")),
                attempt=e.c.attempt + 1,
                claimed_at=utc_now(),
                begun_at=sa.null(),
                last_sign_at=sa.null(),
                error=sa.null(),
                content_accepted=sa.null(),
                content_offered=sa.null(),
            )
        )
        """failed → in_progress, and in_progress with the lease over and no effect begun → new owner."""

        claimed = self._in(State.IN_PROGRESS, Phase.NONE)
        self.take_content = self._update(claimed, fingerprint=sa.bindparam("print_"))
        """A claimed key takes the content that is now to be processed."""

        receiver_key = sa.bindparam("receiver_key", type_=e.c.idempotency_key.type)
        self.renew_key = self._update(claimed, idempotency_key=receiver_key, first_begun_at=sa.null())
        """A claimed key with new content gets another idempotency key: no effect has begun under that."""

        self.reopen = self._update(
            e.c.state == constant(State.COMPLETED),
            e.c.follow_up.in_([constant(FollowUp.NONE), constant(FollowUp.SETTLED)]),
            **self._to(State.FAILED, Phase.NONE, error=sa.bindparam("why")),
            follow_up=constant(FollowUp.NONE),
            generation=e.c.generation + 1,
            idempotency_key=sa.bindparam("receiver_key", type_=e.c.idempotency_key.type),
            batch_id=sa.null(),
            result=sa.null(),
            pushed=sa.null(),
            begun_at=sa.null(),
            first_begun_at=sa.null(),
            last_sign_at=sa.null(),
        )
        """completed → failed, the next generation: a rerun that a person has authorised begins. In the transaction that
        claims the key, and that notes the authorisation as used."""

        won = (e.c.key_hash, e.c.attempt, e.c.generation, e.c.idempotency_key, e.c.batch_id)
        alias = self.tables.alias
        horizon = self.tables.horizon
        purged_until = sa.select(horizon.c.business_date).where(horizon.c.name_hash == sa.bindparam("name"))
        fail_over = self.tables.fail_over
        newest = sa.select(sa.func.max(fail_over.c.id)).where(fail_over.c.closed_at.is_(None))
        self.unclaimable = sa.select(
            sa.exists().where(alias.c.old_hash == sa.bindparam("name")).label("renamed"),
            purged_until.scalar_subquery().label("purged_until"),
            newest.scalar_subquery().label("fail_over"),
        )
        """Whether names are old ones by now, up to which date their keys were purged, and the newest open fail-over."""

        self.owned = self._by_keys(
            sa.select(*won).where(
                e.c.owner_token == sa.bindparam("token"), self._in(State.IN_PROGRESS, Phase.NONE)
            )
        )
        """What the claim has won."""

    # -- effects --------------------------------------------------------------------------------------------

    def _build_effects(self) -> None:
        e = self._e
        # The state is written although it stays: with no column written that a generated one depends on, PostgreSQL
        # (18 at least) prepares its expression anew for each row, which costs more than the update.
        stays = {"state": constant(State.IN_PROGRESS)}
        begun = {
            **stays,
            "phase": constant(Phase.BEGUN),
            "begun_at": utc_now(),
            "first_begun_at": sa.func.coalesce(e.c.first_begun_at, utc_now()),
            # What this attempt's receiver gets: also NULL, for a document of a former batch that is executed alone.
            "batch_id": sa.bindparam("batch", type_=e.c.batch_id.type),
        }
        self.begin = self._update(self._in(State.IN_PROGRESS, Phase.NONE), **begun)
        """in_progress: none → begun. Committed before the callable is entered."""

        self.begin_member = self._update(
            self._in(State.IN_PROGRESS, Phase.NONE), **begun, batch_position=sa.bindparam("position")
        ).one
        """The same for one member of a batch, with its place in it."""

        self.enter_transaction = self._update(
            self._in(State.IN_PROGRESS, Phase.NONE), **stays, phase=constant(Phase.IN_TRANSACTION)
        )
        """in_progress: none → in_transaction. First statement of a business transaction: holds the row."""

        self.enter_one = self.enter_transaction.on_driver()
        """The same for one key, on the hot path."""

        own = dialects.own_transaction(self.dialect, e)
        inside = [self._in(State.IN_PROGRESS, Phase.IN_TRANSACTION)] + ([own] if own is not None else [])
        self.complete_in_transaction = self._update(
            *inside,
            **self._to(
                State.COMPLETED,
                Phase.DONE,
                error=sa.null(),
                begun_at=utc_now(),
                result=sa.bindparam("outcome"),
                pushed=sa.bindparam("pushed"),
            ),
        )
        """in_progress/in_transaction → completed. Last statement of a business transaction."""

        self.complete_one_in_transaction = self.complete_in_transaction.on_driver()
        """The same for one key, on the hot path."""

        self.complete = self._update(
            self._in(State.IN_PROGRESS, Phase.BEGUN),
            **self._to(
                State.COMPLETED,
                Phase.DONE,
                error=sa.bindparam("why"),
                result=sa.bindparam("outcome"),
                pushed=sa.bindparam("pushed"),
                follow_up=sa.bindparam("follow"),
            ),
        )
        """in_progress/begun → completed."""

        self.complete_and_begin = self._complete_and_begin()

    def _complete_and_begin(self) -> OnDriver | None:
        """in_progress: begun → completed and none → begun, for lists of keys in one statement (PostgreSQL).

        A key with an outcome (``:outcomes``) is completed with it; one with NULL begins. One statement and not two:
        the checks of the table are prepared once, and it can be a transaction of its own.
        """
        if self.dialect != dialects.POSTGRES:
            return None
        e = self._e
        keys = dialects.listed(h="hashes", r="outcomes").subquery("keys")
        begins = keys.c.r.is_(None)

        def either(begun: Any, completed: Any) -> Any:
            return sa.case((begins, begun), else_=completed)

        statement = (
            sa.update(e)
            .where(
                e.c.key_date == keys.c.d,
                e.c.key_hash == keys.c.h,
                e.c.owner_token == sa.bindparam("token"),
                e.c.state == constant(State.IN_PROGRESS),
                e.c.phase == either(constant(Phase.NONE), constant(Phase.BEGUN)),
            )
            .values(
                state=either(constant(State.IN_PROGRESS), constant(State.COMPLETED)),
                phase=either(constant(Phase.BEGUN), constant(Phase.DONE)),
                finished_at=either(sa.null(), utc_now()),
                begun_at=either(utc_now(), e.c.begun_at),
                first_begun_at=sa.func.coalesce(e.c.first_begun_at, utc_now()),
                batch_id=either(sa.null(), e.c.batch_id),
                result=keys.c.r,
                error=sa.null(),
            )
        )
        return OnDriver(statement)

    # -- endings --------------------------------------------------------------------------------------------

    def _build_endings(self) -> None:
        why: Any = sa.bindparam("why")
        before, begun = self._in(State.IN_PROGRESS, Phase.NONE), self._in(State.IN_PROGRESS, Phase.BEGUN)
        self.fail_before = self._update(before, **self._to(State.FAILED, Phase.NONE, error=why))
        """in_progress/none → failed: nothing can have happened."""

        self.fail_begun = self._update(sa.or_(before, begun), **self._to(State.FAILED, Phase.NONE, error=why))
        """in_progress → failed: the callable was not entered, or proved that nothing happened."""

        self.reject = self._update(sa.or_(before, begun), **self._to(State.REJECTED, Phase.NONE, error=why))
        """in_progress → rejected: the business refused it."""

        doubtful = self._in(State.IN_PROGRESS, Phase.BEGUN, Phase.IN_TRANSACTION)
        to_doubt = {"state": constant(State.IN_DOUBT), "error": why}
        already = self._in(State.IN_DOUBT, Phase.BEGUN, Phase.IN_TRANSACTION)
        self.doubt = self._update(sa.or_(doubtful, already), **to_doubt, last_sign_at=utc_now())
        """in_progress/begun or in_transaction → in_doubt, by its own owner: a sign of life, also where others have
        marked it in doubt before (its call may be on its way since now)."""

        self.doubt_expired = self._update(doubtful, ~self._lease_lives(), **to_doubt)
        """in_progress/begun with the lease over → in_doubt, by whoever reads it."""

        self.doubt_forgotten = self._update(doubtful, **to_doubt)
        """in_progress/begun → in_doubt, whatever the lease says: a fail-over may have lost how it ended."""

        e = self._e
        pending = sa.and_(e.c.state == constant(State.COMPLETED), e.c.follow_up == constant(FollowUp.PENDING))
        to = {"error": why, "pushed": sa.bindparam("pushed")}
        self.follow_up_done = self._update(
            pending, follow_up=constant(FollowUp.NONE), result=sa.bindparam("outcome"), **to
        )
        """completed: follow-up pending → none, with the result."""

        self.follow_up_failed = self._update(pending, follow_up=constant(FollowUp.FAILED), **to)
        """completed: follow-up pending → failed, with what was pushed before."""

    def _build_late_reports(self) -> None:
        why: Any = sa.bindparam("why")
        doubt = self._in(State.IN_DOUBT, Phase.BEGUN, Phase.IN_TRANSACTION)
        refuted = sa.and_(self._in(State.FAILED, Phase.NONE), self._e.c.begun_at.is_not(None))
        self.late_complete = self._update(
            sa.or_(doubt, refuted),
            **self._to(
                State.COMPLETED,
                Phase.DONE,
                error=why,
                result=sa.bindparam("outcome"),
                pushed=sa.bindparam("pushed"),
                follow_up=sa.bindparam("follow"),
            ),
        )
        """in_doubt → completed, and failed (resolved as "did not happen", not yet claimed again) → completed."""

        unanswered = sa.and_(self._e.c.follow_up == constant(FollowUp.NONE), self._e.c.result.is_(None))
        self.late_result = self._update(
            self._in(State.COMPLETED, Phase.DONE),
            unanswered,
            result=sa.bindparam("outcome"),
            pushed=sa.bindparam("pushed"),
            follow_up=sa.bindparam("follow"),
        )
        """completed (resolved as "happened") → completed, with what its own owner got."""

        self.late_fail = self._update(doubt, **self._to(State.FAILED, Phase.NONE, error=why))
        """in_doubt → failed: its own owner proves that nothing happened."""

        self.late_reject = self._update(doubt, **self._to(State.REJECTED, Phase.NONE, error=why))
        """in_doubt → rejected, by its own owner."""

    # -- resolutions ----------------------------------------------------------------------------------------

    def _build_resolutions(self) -> None:
        e = self._e
        why: Any = sa.bindparam("why")
        settled = sa.or_(
            sa.and_(
                e.c.state == constant(State.COMPLETED),
                e.c.follow_up.in_([constant(FollowUp.NONE), constant(FollowUp.SETTLED)]),
            ),
            e.c.state == constant(State.REJECTED),
        )
        self.offer_content = self._update(settled, content_offered=sa.bindparam("print_"))
        """completed or rejected: other content was listed, and refused. A person may accept it."""

        before = sa.func.coalesce(
            e.c.content_accepted.concat(sa.literal_column("'\n'")), sa.literal_column("''")
        )
        self.accept_content = self._update(
            settled,
            e.c.content_offered.is_not(None),
            error=why,
            content_accepted=before.concat(e.c.content_offered),
            content_offered=sa.null(),
        )
        """completed or rejected: what is stored stands for the content that was listed, too."""

        doubt = self._in(State.IN_DOUBT, Phase.BEGUN, Phase.IN_TRANSACTION)
        rejected = self._in(State.REJECTED, Phase.NONE)
        self.resolve_happened = self._update(doubt, **self._to(State.COMPLETED, Phase.DONE, error=why))
        """in_doubt → completed, about the attempt that was judged."""

        self.resolve_not_happened = self._update(doubt, **self._to(State.FAILED, Phase.NONE, error=why))
        """in_doubt → failed, about the attempt that was judged."""

        self.waive = self._update(rejected, **self._to(State.COMPLETED, Phase.NONE, error=why))
        """rejected → completed without an effect of ours."""

        dropped = self._in(State.DROPPED, Phase.NONE)
        self.send_again = self._update(
            sa.or_(rejected, dropped), **self._to(State.FAILED, Phase.NONE, error=why)
        )
        """rejected or dropped → failed: may be claimed again."""

        given_up = sa.and_(self._in(State.IN_PROGRESS, Phase.NONE), ~self._lease_lives())
        self.drop = self._update(
            sa.or_(self._in(State.FAILED, Phase.NONE), given_up),
            **self._to(State.DROPPED, Phase.NONE, error=why),
        )
        """failed, or in_progress/none with the lease over → dropped."""

        unsettled = sa.or_(
            e.c.follow_up == constant(FollowUp.FAILED),
            sa.and_(e.c.follow_up == constant(FollowUp.PENDING), ~self._lease_lives()),
        )
        self.settle_follow_up = self._update(
            e.c.state == constant(State.COMPLETED),
            unsettled,
            follow_up=constant(FollowUp.SETTLED),
            error=why,
        )
        """completed: follow-up failed, or pending with the lease over → settled."""
