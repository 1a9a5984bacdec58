"""What was told about a problem, by which transport: claimed before it is sent, marked when it was delivered.

::

    none, resolved ── claim ──▶ first ── delivered ──▶ told ── escalate_after ──▶ escalation ── delivered ──▶ told
                                  └──── failed ─────▶ open, not told: the next who asks sends it
    told ── claim_resolved ──▶ resolved

A claim is for a minute. Who has it and dies leaves it to the next.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.alerts.facts import AlertKind, Problem, Stage
from airflow_guard.store.dialects import age_s, utc_after, utc_now
from airflow_guard.store.events import storable, told
from airflow_guard.store.task_runs import aware

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from airflow_guard.store.database import LedgerDatabase

CLAIM_S = 60.0
"""How long a transport has to deliver, before another process may send the same again."""
OPEN, RESOLVED = "open", "resolved"
_SENT_COLUMN = {Stage.FIRST: "sent_at", Stage.ESCALATION: "escalated_at", Stage.RESOLVED: "resolved_at"}


@dataclass(frozen=True, slots=True)
class AlertClaim:
    """The right to send one message by one transport.

    :param token: random; who has it may say what became of the message.
    """

    id: int
    stage: Stage
    token: str


@dataclass(frozen=True, slots=True)
class StoredAlert:
    """One problem and one transport, as the ledger has it.

    :param sent_at: when the first message was delivered, ``None``: it was not.
    """

    id: int
    problem: Problem
    transport: str
    subject: str
    opened_at: datetime | None
    sent_at: datetime | None
    attempts: int
    error: str | None


class Alerts:
    """Reads and writes ``guard_alert``.

    :param database: the ledger's.
    """

    def __init__(self, database: LedgerDatabase) -> None:
        self._db = database
        self._alert = database.tables.alert

    def claim(
        self, problem: Problem, transport: str, subject: str, *, escalate_after_s: float | None = None
    ) -> AlertClaim | None:
        """Ask whether this transport has to tell of a problem now, and claim that.

        :param subject: of the message, for whoever finds it undelivered.
        :param escalate_after_s: seconds after the first message after which a problem that is still there is told of
            once more. ``None``: never.
        :return: what to send, ``None``: it was sent, or another process is sending it.
        :raises LedgerError: the ledger does not answer: send it all the same.
        """
        token = uuid.uuid4().hex
        values = {**_row_of(problem, transport), "subject": told(subject)}

        def work(connection: sa.Connection) -> AlertClaim | None:
            row = self._locked(connection, values["alert_hash"])
            if row is None:
                new = sa.insert(self._alert).values(
                    **values, state=OPEN, opened_at=utc_now(), **_claimed(Stage.FIRST, token)
                )
                inserted = connection.execute(new)
                return AlertClaim(int(inserted.inserted_primary_key[0]), Stage.FIRST, token)  # type: ignore[index]
            if row.claim_token == token:  # the answer to our own commit was lost
                return AlertClaim(row.id, Stage(row.stage), token)
            stage = _due(row, escalate_after_s)
            if stage is None:
                return None
            again = dict.fromkeys(_SENT_COLUMN.values()) | {"state": OPEN, "opened_at": utc_now()}
            changes = {**values, **_claimed(stage, token), **(again if row.state == RESOLVED else {})}
            connection.execute(sa.update(self._alert).where(self._alert.c.id == row.id).values(changes))
            return AlertClaim(row.id, stage, token)

        return self._db.look_and_write(work)

    def claim_resolved(self, alert: StoredAlert) -> AlertClaim | None:
        """Close a problem; claim the message that says so if the problem itself was told (open → resolved)."""
        token = uuid.uuid4().hex

        def work(connection: sa.Connection) -> AlertClaim | None:
            a = self._alert
            row = connection.execute(sa.select(a).where(a.c.id == alert.id).with_for_update()).first()
            if row is None or (row.state == RESOLVED and row.claim_token != token):
                return None
            if row.claim_token != token:
                changes = {"state": RESOLVED, **_claimed(Stage.RESOLVED, token)}
                connection.execute(sa.update(a).where(a.c.id == alert.id).values(changes))
            return AlertClaim(alert.id, Stage.RESOLVED, token) if row.sent_at is not None else None

        return self._db.write(work)

    def delivered(self, claim: AlertClaim) -> bool:
        """Record that a transport has taken the message; return whether the claim was still ours."""
        return self._end(claim, {_SENT_COLUMN[claim.stage]: utc_now(), "error": None})

    def failed(self, claim: AlertClaim, error: str) -> bool:
        """Record that a transport could not deliver: the next who asks sends it."""
        return self._end(claim, {"error": told(error)})

    def _end(self, claim: AlertClaim, values: dict[str, Any]) -> bool:
        a = self._alert
        change = sa.update(a).where(a.c.id == claim.id, a.c.claim_token == claim.token)
        ended = change.values(claimed_until_at=None, attempts=a.c.attempts + 1, **values)
        return self._db.write(lambda connection: connection.execute(ended).rowcount == 1)

    # -- reading --------------------------------------------------------------------------------------------

    def open_of_task(
        self, deployment: str, dag_id: str, task_id: str, map_index: int, run_id: str
    ) -> list[StoredAlert]:
        """Return what was said about a task of a run and is not resolved, oldest first."""
        a = self._alert
        return self._stored(
            a.c.deployment == deployment,
            a.c.dag_id == dag_id,
            a.c.task_id == task_id,
            a.c.map_index == map_index,
            a.c.run_id == run_id,
            a.c.state == OPEN,
            a.c.kind.in_([AlertKind.FAILED.value, AlertKind.RETRY.value, AlertKind.QUESTION.value]),
        )

    def open_of_kinds(self, deployment: str, kinds: Collection[AlertKind], team: str) -> list[StoredAlert]:
        """Return the open problems of some kinds that a team was to be told of, oldest first."""
        a = self._alert
        named = sorted(kind.value for kind in kinds)
        return self._stored(
            a.c.deployment == deployment, a.c.kind.in_(named), a.c.team == team, a.c.state == OPEN
        )

    def undelivered(self, deployment: str, older_than_s: float = CLAIM_S) -> list[StoredAlert]:
        """Return the open problems that a transport has not told of so long after they were found, oldest first."""
        a = self._alert
        return self._stored(
            a.c.deployment == deployment,
            a.c.state == OPEN,
            a.c.sent_at.is_(None),
            age_s(a.c.opened_at) > older_than_s,
        )

    def _stored(self, *conditions: sa.ColumnElement[bool]) -> list[StoredAlert]:
        found = sa.select(self._alert).where(*conditions).order_by(self._alert.c.id)
        rows: Sequence[Any] = self._db.read(lambda connection: connection.execute(found).all())
        return [_stored(row) for row in rows]

    def _locked(self, connection: sa.Connection, alert_hash: str) -> Any:
        a = self._alert
        ages = (age_s(a.c.claimed_until_at).label("claim_over_s"), age_s(a.c.sent_at).label("sent_age_s"))
        found = sa.select(a, *ages).where(a.c.alert_hash == alert_hash).with_for_update()
        return connection.execute(found).first()


def _due(row: Any, escalate_after_s: float | None) -> Stage | None:
    """Return what is to be said about a problem now, by what was said before."""
    if row.claimed_until_at is not None and row.claim_over_s <= 0:
        return None
    if row.state == RESOLVED or row.sent_at is None:
        return Stage.FIRST
    over = escalate_after_s is not None and row.sent_age_s >= escalate_after_s
    return Stage.ESCALATION if over and row.escalated_at is None else None


def _claimed(stage: Stage, token: str) -> dict[str, Any]:
    return {"stage": stage.value, "claim_token": token, "claimed_until_at": utc_after(sa.literal(CLAIM_S))}


def _row_of(problem: Problem, transport: str) -> dict[str, Any]:
    return {
        "alert_hash": problem.hash_for(transport),
        "deployment": problem.deployment,
        "dag_id": problem.dag_id,
        "task_id": problem.task_id,
        "map_index": problem.map_index,
        "run_id": problem.run_id,
        "business_date": problem.business_date,
        "kind": problem.kind.value,
        "problem": storable(problem.what),
        "team": problem.team,
        "transport": transport,
    }


def _stored(row: Any) -> StoredAlert:
    problem = Problem(
        deployment=row.deployment,
        dag_id=row.dag_id,
        kind=AlertKind(row.kind),
        what=row.problem,
        task_id=row.task_id,
        map_index=row.map_index,
        run_id=row.run_id,
        business_date=row.business_date,
        team=row.team,
    )
    return StoredAlert(
        row.id,
        problem,
        row.transport,
        row.subject,
        aware(row.opened_at),
        aware(row.sent_at),
        row.attempts,
        row.error,
    )
