"""Where keys stand, as conditions of statements: the SQL of ``core.decisions.situation_of``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.decisions import Situation
from airflow_guard.core.states import FollowUp, Phase, State
from airflow_guard.store.dialects import utc_now

if TYPE_CHECKING:
    from airflow_guard.store.tables import Tables


def situations(tables: Tables) -> dict[Situation, sa.ColumnElement[bool]]:
    """Return the condition of each situation, for executions joined with their leases (outer join)."""
    e = tables.execution
    # Not "expires_at > now": without a lease that is NULL, and its negation too.
    alive = sa.case((tables.lease.c.expires_at > utc_now(), 1), else_=0) == 1
    in_progress, completed = (
        e.c.state == constant(State.IN_PROGRESS),
        e.c.state == constant(State.COMPLETED),
    )
    before = e.c.phase == constant(Phase.NONE)
    pending = e.c.follow_up == constant(FollowUp.PENDING)
    open_ = sa.or_(e.c.follow_up == constant(FollowUp.FAILED), sa.and_(pending, sa.not_(alive)))
    return {
        Situation.RUNNING: sa.and_(in_progress, alive),
        Situation.ABANDONED: sa.and_(in_progress, sa.not_(alive), before),
        Situation.IN_DOUBT: sa.or_(
            e.c.state == constant(State.IN_DOUBT), sa.and_(in_progress, sa.not_(alive), sa.not_(before))
        ),
        Situation.FOLLOW_UP_RUNNING: sa.and_(completed, pending, alive),
        Situation.FOLLOW_UP_OPEN: sa.and_(completed, open_),
        Situation.DONE: sa.and_(
            completed, e.c.follow_up.in_([constant(FollowUp.NONE), constant(FollowUp.SETTLED)])
        ),
        Situation.FAILED: e.c.state == constant(State.FAILED),
        Situation.REJECTED: e.c.state == constant(State.REJECTED),
        Situation.DROPPED: e.c.state == constant(State.DROPPED),
    }


def constant(value: str) -> Any:
    """Return a literal of the statement: an index on some states is used only for states that are known."""
    return sa.literal(str(value), literal_execute=True)
