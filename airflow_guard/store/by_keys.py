"""The form of a statement on keys, for one key and for many of one date, and the statements that read keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.states import Phase, State
from airflow_guard.store import dialects
from airflow_guard.store.dialects import age_s, utc_now
from airflow_guard.store.driver import OnDriver

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date
    from enum import StrEnum

    from airflow_guard.store.tables import Tables


@dataclass(frozen=True)
class ByKeys:
    """One statement for a single key (``:d``, ``:h``) and for many of one date (``:d``, ``:hashes``).

    A single key is the hot path: its plan is a primary-key lookup whatever the statistics say.
    """

    one: Any
    many: Any
    dialect: str

    def on_driver(self) -> OnDriver:
        """Return the statement for a single key as the hot path executes it."""
        return OnDriver(self.one)

    def run(self, connection: sa.Connection, key_date: date, hashes: Sequence[str], **values: Any) -> Any:
        """Execute it for these keys."""
        if len(hashes) == 1:
            return connection.execute(self.one, {"d": key_date, "h": hashes[0], **values})
        listed = dialects.list_value(self.dialect, hashes)
        return connection.execute(self.many, {"d": key_date, "hashes": listed, **values})


class KeyReads:
    """The statements that read keys, and the pieces that all statements on keys are made of.

    :param tables: the ledger's tables.
    :param dialect: ``postgresql``, ``mysql`` or ``sqlite``.
    """

    def __init__(self, tables: Tables, dialect: str) -> None:
        self.dialect = dialect
        self.tables = tables
        self._e = tables.execution
        self._lease = tables.lease
        self._build_reads()

    # -- pieces ---------------------------------------------------------------------------------------------

    def _lease_lives(self) -> sa.ColumnElement[bool]:
        return sa.exists().where(
            self._lease.c.task_run_id == self._e.c.task_run_id, self._lease.c.expires_at > utc_now()
        )

    def _by_keys(self, statement: Any) -> ByKeys:
        e = self._e
        one = sa.and_(e.c.key_date == sa.bindparam("d"), e.c.key_hash == sa.bindparam("h"))
        many = dialects.among_keys(self.dialect, e)
        return ByKeys(statement.where(one), statement.where(many), self.dialect)

    def _update(self, *where: sa.ColumnElement[bool], **values: Any) -> ByKeys:
        """Return an update of rows with our token that are in the state to be left."""
        owned = sa.update(self._e).where(self._e.c.owner_token == sa.bindparam("token"), *where)
        return self._by_keys(owned.values(values))

    def _in(self, state: State, *phases: Phase) -> sa.ColumnElement[bool]:
        e = self._e
        return sa.and_(
            e.c.state == constant(state), sa.or_(*(e.c.phase == constant(phase) for phase in phases))
        )

    @staticmethod
    def _to(state: State, phase: Phase, **more: Any) -> dict[str, Any]:
        finished = sa.null() if state in (State.IN_PROGRESS, State.IN_DOUBT) else utc_now()
        return {"state": constant(state), "phase": constant(phase), "finished_at": finished, **more}

    # -- reads ----------------------------------------------------------------------------------------------

    def _build_reads(self) -> None:
        e, lease, run = self._e, self._lease, self.tables.task_run
        short = (
            e.c.key_hash,
            e.c.state,
            e.c.follow_up,
            e.c.deployment,
            e.c.first_task_run_id,
            e.c.task_run_id,
            e.c.fingerprint,
        )
        r = self.tables.rerun
        unused = sa.and_(r.c.used_at.is_(None), r.c.expires_at > utc_now())
        some_rerun = sa.exists().where(r.c.key_date == sa.bindparam("d"), unused)
        # Of a done key this says that a person has settled it, or that it has given more than its result.
        settled = sa.or_(e.c.error.is_not(None), e.c.pushed.is_not(None))
        self.lookup = self._by_keys(sa.select(*short, sa.or_(settled, some_rerun).label("look_closer")))
        """What decides about a done key, and whether there is more to know: a person has settled it, or some key of the
        date may be rerun. A plain read decides nothing else."""

        last_sign = dialects.greatest(
            self.dialect, e.c.claimed_at, e.c.begun_at, e.c.last_sign_at, lease.c.renewed_at, run.c.ended_at
        )
        # A try that has ended has no lease any more, and was alive until then.
        joined = e.outerjoin(lease, lease.c.task_run_id == e.c.task_run_id).outerjoin(
            run, run.c.id == e.c.task_run_id
        )
        # At most one: an authorisation is of one attempt, and the next generation has another.
        same = sa.and_(r.c.key_date == e.c.key_date, r.c.key_hash == e.c.key_hash)
        joined = joined.outerjoin(r, sa.and_(same, r.c.owner_token == e.c.owner_token, unused))
        over = sa.case((lease.c.expires_at > utc_now(), sa.false()), else_=sa.true())
        self.read_where = sa.select(
            e,
            over.label("lease_over"),
            age_s(last_sign).label("last_sign_age_s"),
            age_s(e.c.first_begun_at).label("first_begun_age_s"),
            r.c.actor.label("rerun_actor"),
            r.c.reason.label("rerun_reason"),
            r.c.without_reversal,
        ).select_from(joined)
        """All of a row, with what the database's clock says of lease and ages; without a condition."""

        self.read = self._by_keys(self.read_where)
        """The same for keys."""

        self.lock = self._by_keys(sa.select(e).order_by(e.c.key_hash).with_for_update(of=e))
        """Lock keys; waits for any transaction that still holds them (an unknown commit)."""

        self.plain = self._by_keys(sa.select(e))
        """All of a row, without waiting for anybody who holds it."""

        self.owners = self._by_keys(sa.select(e.c.owner_token))
        """Whose keys are, without waiting either."""

        self.batch_members = (
            sa.select(e.c.key_hash, e.c.document, e.c.batch_id, e.c.owner_token)
            .where(e.c.batch_id.in_(sa.bindparam("batch_ids", expanding=True)))
            .order_by(e.c.batch_id, e.c.batch_position)
        )
        """The documents of batches, in their order. Not by the date: databases would rather read all keys of a date that
        they have no statistics of. A batch's id is made of its keys, and so is of one date."""


def constant(value: StrEnum) -> Any:
    """Return a state as text of the statement: it is ours, and binding it would cost time on every execution."""
    return sa.literal_column(f"'{value.value}'", sa.String())
