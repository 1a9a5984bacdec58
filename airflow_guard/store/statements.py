"""Every statement of the ledger, each with its transition, in one place.

All writes after a claim match the owner token (``:token``) and the state and phase that they leave; the caller
checks the row count. ``:hashes`` is a list of key hashes of one ``:key_date``.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from airflow_guard.core.states import FollowUp, Phase, State
from airflow_guard.store import dialects
from airflow_guard.store.dialects import age_s, utc_now
from airflow_guard.store.tables import Tables

CLAIM_ROWS = ("key_hash", "document", "idempotency_key", "fingerprint")
CLAIM_SHARED = (
    "key_date", "normaliser", "key_namespace", "operation", "business_date", "cycle", "deployment", "state", "phase",
    "follow_up", "attempt", "generation", "owner_token", "task_run_id", "first_task_run_id",
)  # fmt: skip


class Statements:
    """The statements for one set of tables and one database family.

    :param tables: the ledger's tables.
    :param dialect: ``postgresql``, ``mysql`` or ``sqlite``.
    """

    def __init__(self, tables: Tables, dialect: str) -> None:
        self.dialect = dialect
        self.tables = tables
        self._e = tables.execution
        self._lease = tables.lease
        self._build_reads()
        self._build_claims()
        self._build_effects()
        self._build_endings()
        self._build_late_reports()
        self._build_resolutions()

    # -- pieces ---------------------------------------------------------------------------------------------

    def _keys(self) -> sa.ColumnElement[bool]:
        e = self._e
        return sa.and_(
            e.c.key_date == sa.bindparam("d"), dialects.hash_in(self.dialect, e.c.key_hash)
        )

    def _lease_lives(self) -> sa.ColumnElement[bool]:
        return sa.exists().where(
            self._lease.c.task_run_id == self._e.c.task_run_id, self._lease.c.expires_at > utc_now()
        )

    def _owned(self, *where: sa.ColumnElement[bool]) -> Any:
        return sa.update(self._e).where(self._keys(), self._e.c.owner_token == sa.bindparam("token"), *where)

    def _in(self, state: State, *phases: Phase) -> sa.ColumnElement[bool]:
        e = self._e
        return sa.and_(e.c.state == state.value, e.c.phase.in_([phase.value for phase in phases]))

    @staticmethod
    def _to(state: State, phase: Phase, **more: Any) -> dict[str, Any]:
        finished = None if state in (State.IN_PROGRESS, State.IN_DOUBT) else utc_now()
        return {"state": state.value, "phase": phase.value, "finished_at": finished, **more}

    # -- reads ----------------------------------------------------------------------------------------------

    def _build_reads(self) -> None:
        e, lease = self._e, self._lease
        self.lookup = sa.select(
            e.c.key_hash, e.c.state, e.c.follow_up, e.c.deployment, e.c.first_task_run_id, e.c.task_run_id,
            e.c.fingerprint, e.c.result,
        ).where(self._keys())  # fmt: skip
        """What decides about a done key; a plain read decides nothing else."""

        last_sign = dialects.greatest(
            self.dialect, e.c.claimed_at, e.c.begun_at, e.c.last_sign_at, lease.c.renewed_at
        )
        joined = e.outerjoin(lease, lease.c.task_run_id == e.c.task_run_id)
        over = sa.case((lease.c.expires_at > utc_now(), sa.false()), else_=sa.true())
        full = sa.select(
            e,
            over.label("lease_over"),
            age_s(last_sign).label("last_sign_age_s"),
            age_s(e.c.first_begun_at).label("first_begun_age_s"),
        ).select_from(joined)
        self.read = full.where(self._keys())
        """All of the keys, with what the database's clock says of lease and ages."""

        self.read_where = full
        """The same without a condition, for commands that list rows."""

        self.lock = sa.select(e).where(self._keys()).order_by(e.c.key_hash).with_for_update()
        """Lock keys; waits for any transaction that still holds them (an unknown commit)."""

        self.batch_members = sa.select(e.c.key_hash, e.c.document, e.c.batch_id).where(
            e.c.key_date == sa.bindparam("d"), e.c.batch_id.in_(sa.bindparam("batch_ids", expanding=True))
        )

    # -- claims ---------------------------------------------------------------------------------------------

    def _build_claims(self) -> None:
        e = self._e
        claimable = sa.or_(
            e.c.state == State.FAILED.value,
            sa.and_(self._in(State.IN_PROGRESS, Phase.NONE), ~self._lease_lives()),
        )
        self.insert_claims = dialects.claim_insert(self.dialect, e, CLAIM_ROWS, CLAIM_SHARED)
        """none → in_progress; an existing key is left alone."""

        self.lock_claimable = (
            sa.select(
                e.c.key_hash, e.c.state, e.c.attempt, e.c.owner_token, e.c.task_run_id
            )
            .where(self._keys(), claimable)
            .order_by(e.c.key_hash)
            .with_for_update(skip_locked=True)
        )  # fmt: skip
        """Lock, in one order, what may be claimed. A locked row is somebody's: in progress elsewhere."""

        self.take = (
            sa.update(e)
            .where(self._keys(), claimable)
            .values(
                **self._to(State.IN_PROGRESS, Phase.NONE),
                owner_token=sa.bindparam("token"),
                task_run_id=sa.bindparam("run"),
                first_task_run_id=sa.func.coalesce(e.c.first_task_run_id, sa.bindparam("run")),
                attempt=e.c.attempt + 1,
                claimed_at=utc_now(),
                begun_at=None,
                last_sign_at=None,
                error=None,
            )
        )
        """failed → in_progress, and in_progress with the lease over and no effect begun → new owner."""

        self.refresh_fingerprint = self._owned(self._in(State.IN_PROGRESS, Phase.NONE)).values(
            fingerprint=sa.bindparam("print_")
        )
        """A claimed key takes the content that is now to be processed."""

        self.owned = sa.select(
            e.c.key_hash, e.c.attempt, e.c.generation, e.c.idempotency_key, e.c.batch_id, e.c.fingerprint
        ).where(self._keys(), e.c.owner_token == sa.bindparam("token"), self._in(State.IN_PROGRESS, Phase.NONE))
        """What the claim has won."""

    # -- effects --------------------------------------------------------------------------------------------

    def _build_effects(self) -> None:
        e = self._e
        self.begin = self._owned(self._in(State.IN_PROGRESS, Phase.NONE)).values(
            phase=Phase.BEGUN.value,
            begun_at=utc_now(),
            first_begun_at=sa.func.coalesce(e.c.first_begun_at, utc_now()),
            batch_id=sa.func.coalesce(e.c.batch_id, sa.bindparam("batch", type_=e.c.batch_id.type)),
        )
        """in_progress: none → begun. Committed before the callable is entered."""

        self.enter_transaction = self._owned(self._in(State.IN_PROGRESS, Phase.NONE)).values(
            phase=Phase.IN_TRANSACTION.value,
            batch_id=sa.func.coalesce(e.c.batch_id, sa.bindparam("batch", type_=e.c.batch_id.type)),
        )
        """in_progress: none → in_transaction. First statement of a business transaction: holds the row."""

        own = dialects.own_transaction(self.dialect, e)
        inside = [self._in(State.IN_PROGRESS, Phase.IN_TRANSACTION)] + ([own] if own is not None else [])
        self.complete_in_transaction = self._owned(*inside).values(
            **self._to(State.COMPLETED, Phase.DONE, error=None, begun_at=utc_now(), result=sa.bindparam("outcome"))
        )
        """in_progress/in_transaction → completed. Last statement of a business transaction."""

        self.complete = self._owned(self._in(State.IN_PROGRESS, Phase.BEGUN)).values(
            **self._to(
                State.COMPLETED, Phase.DONE, error=sa.bindparam("why"), result=sa.bindparam("outcome"),
                follow_up=sa.bindparam("follow"),
            )
        )  # fmt: skip
        """in_progress/begun → completed."""

        self.complete_many = self._complete_many()

    def _complete_many(self) -> Any:
        """in_progress/begun → completed, each key with its own result, in one statement (PostgreSQL)."""
        if self.dialect != dialects.POSTGRES:
            return None
        e = self._e
        done = (
            sa.func.unnest(
                sa.cast(sa.bindparam("hashes"), ARRAY(sa.CHAR(32))), sa.cast(sa.bindparam("outcomes"), ARRAY(sa.Text()))
            )
            .table_valued(sa.column("h", sa.CHAR(32)), sa.column("r", sa.Text()), name="done")
            .render_derived()
        )
        return (
            sa.update(e)
            .where(
                e.c.key_date == sa.bindparam("d"), e.c.key_hash == done.c.h,
                e.c.owner_token == sa.bindparam("token"), self._in(State.IN_PROGRESS, Phase.BEGUN),
            )
            .values(**self._to(State.COMPLETED, Phase.DONE, error=None, result=done.c.r))
        )  # fmt: skip

    # -- endings --------------------------------------------------------------------------------------------

    def _build_endings(self) -> None:
        why: Any = sa.bindparam("why")
        before, begun = self._in(State.IN_PROGRESS, Phase.NONE), self._in(State.IN_PROGRESS, Phase.BEGUN)
        self.fail_before = self._owned(before).values(**self._to(State.FAILED, Phase.NONE, error=why))
        """in_progress/none → failed: nothing can have happened."""

        self.fail_begun = self._owned(sa.or_(before, begun)).values(**self._to(State.FAILED, Phase.NONE, error=why))
        """in_progress → failed: the callable was not entered, or proved that nothing happened."""

        self.reject = self._owned(sa.or_(before, begun)).values(**self._to(State.REJECTED, Phase.NONE, error=why))
        """in_progress → rejected: the business refused it."""

        self.doubt = self._owned(self._in(State.IN_PROGRESS, Phase.BEGUN, Phase.IN_TRANSACTION)).values(
            state=State.IN_DOUBT.value, error=why, last_sign_at=utc_now()
        )
        """in_progress/begun or in_transaction → in_doubt, by its own owner: a sign of life."""

        self.doubt_expired = self._owned(
            self._in(State.IN_PROGRESS, Phase.BEGUN, Phase.IN_TRANSACTION), ~self._lease_lives()
        ).values(state=State.IN_DOUBT.value, error=why)
        """in_progress/begun with the lease over → in_doubt, by whoever reads it."""

        pending = sa.and_(
            self._e.c.state == State.COMPLETED.value, self._e.c.follow_up == FollowUp.PENDING.value
        )
        self.follow_up_done = self._owned(pending).values(
            follow_up=FollowUp.NONE.value, result=sa.bindparam("outcome"), error=why
        )
        """completed: follow-up pending → none, with the result."""

        self.follow_up_failed = self._owned(pending).values(follow_up=FollowUp.FAILED.value, error=why)
        """completed: follow-up pending → failed."""

    def _build_late_reports(self) -> None:
        e = self._e
        why: Any = sa.bindparam("why")
        doubt = self._in(State.IN_DOUBT, Phase.BEGUN, Phase.IN_TRANSACTION)
        refuted = sa.and_(self._in(State.FAILED, Phase.NONE), e.c.begun_at.is_not(None))
        self.late_complete = self._owned(sa.or_(doubt, refuted)).values(
            **self._to(
                State.COMPLETED, Phase.DONE, error=why, result=sa.bindparam("outcome"), follow_up=sa.bindparam("follow")
            )
        )
        """in_doubt → completed, and failed (resolved as "did not happen", not yet claimed again) → completed."""

        self.late_fail = self._owned(doubt).values(**self._to(State.FAILED, Phase.NONE, error=why))
        """in_doubt → failed: its own owner proves that nothing happened."""

        self.late_reject = self._owned(doubt).values(**self._to(State.REJECTED, Phase.NONE, error=why))
        """in_doubt → rejected, by its own owner."""

    # -- resolutions ----------------------------------------------------------------------------------------

    def _build_resolutions(self) -> None:
        e = self._e
        why: Any = sa.bindparam("why")
        doubt = self._in(State.IN_DOUBT, Phase.BEGUN, Phase.IN_TRANSACTION)
        rejected = self._in(State.REJECTED, Phase.NONE)
        self.resolve_happened = self._owned(doubt).values(**self._to(State.COMPLETED, Phase.DONE, error=why))
        """in_doubt → completed, about the attempt that was judged."""

        self.resolve_not_happened = self._owned(doubt).values(**self._to(State.FAILED, Phase.NONE, error=why))
        """in_doubt → failed, about the attempt that was judged."""

        self.waive = self._owned(rejected).values(**self._to(State.COMPLETED, Phase.NONE, error=why))
        """rejected → completed without an effect of ours."""

        self.send_again = self._owned(rejected).values(**self._to(State.FAILED, Phase.NONE, error=why))
        """rejected → failed: may be claimed again."""

        unsettled = sa.or_(
            e.c.follow_up == FollowUp.FAILED.value,
            sa.and_(e.c.follow_up == FollowUp.PENDING.value, ~self._lease_lives()),
        )
        self.settle_follow_up = self._owned(e.c.state == State.COMPLETED.value, unsettled).values(
            follow_up=FollowUp.SETTLED.value, error=why
        )
        """completed: follow-up failed, or pending with the lease over → settled."""
