"""The month is reconciled; then its postings are tampered with, straight in the table; then all of it is found.

Nothing that guards the posting can see this: it is what somebody does with a database client. Afterwards the
postings are put right again, and the next run closes what it found.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, insert, select, update

from airflow_guard.core.checks import BreakState
from airflow_guard.core.errors import GuardError
from airflow_guard.reconciling.rules import BreakType
from airflow_guard.store.tables import Tables
from demo.books import RECONCILIATION_DAG, statement_posting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection, Engine

    from demo.scene import Scene

__all__ = ["Found", "reconcile_month", "tamper"]

_DAY, _LAST_DAY = date(2026, 1, 14), date(2026, 1, 31)
_CENT = Decimal("0.01")
_break = Tables().breaks


@dataclass(frozen=True)
class Tampering:
    """One thing that was done to a posting.

    :param break_type: how a reconciliation must call it.
    :param document: the line, as the ledger stores its key.
    """

    break_type: str
    document: str


@dataclass(frozen=True)
class Found:
    """What was done to the postings, and what the reconciliation named.

    :param open_after: breaks that were still open when the postings had been put right.
    """

    injected: frozenset[Tampering]
    found: frozenset[Tampering]
    open_after: int

    @property
    def right(self) -> bool:
        """Whether exactly what was done was found, and closed afterwards."""
        return self.injected == self.found and not self.open_after

    @property
    def hits(self) -> int:
        """How much of what was done was named."""
        return len(self.injected & self.found)


def reconcile_month(scene: Scene) -> Found:
    """Reconcile the month, tamper with it, reconcile again, put it right, and reconcile once more."""
    with scene.screen.step("The month is reconciled: the bank's lines against the postings") as step:
        _reconciled(scene, state="success")
        step.note(f"{scene.month.transactions:,} lines in SQLite and in PostgreSQL agree, one by one")
        before = _postings(scene.bank)
        with scene.bank.begin() as connection:
            injected = tamper(connection)
        step.note(
            "with a database client: one posting doubled, one deleted, one changed by 0.01; and the amounts of two "
            "exchanged in another currency, whose totals still match"
        )
        _reconciled(scene, state="failed")
        found = _open_breaks(scene.bank)
        for each in sorted(found, key=lambda one: one.break_type):
            step.note(f"found: {each.break_type} {' '.join(json.loads(each.document))}")
        _put_right(scene.bank, before)
        _reconciled(scene, state="success")
        left = len(_open_breaks(scene.bank))
        step.note("the postings are put right again; the next run closes the breaks")
    return Found(frozenset(injected), found, left)


def tamper(connection: Connection) -> list[Tampering]:
    """Double one posting, delete one, change one by 0.01, and exchange the amounts of two in another currency, so that
    its totals still match.

    :return: what a reconciliation must find.
    """
    p = statement_posting
    rows = connection.execute(select(p).where(p.c.business_date == _DAY).order_by(p.c.id)).all()
    doubled, deleted, changed, *others = rows
    one, other = _two_to_exchange([row for row in others if row.currency != doubled.currency])
    connection.execute(insert(p), {key: value for key, value in doubled._mapping.items() if key != "id"})  # noqa: SLF001
    connection.execute(delete(p).where(p.c.id == deleted.id))
    connection.execute(update(p).where(p.c.id == changed.id).values(amount=changed.amount + _CENT))
    connection.execute(update(p).where(p.c.id == one.id).values(amount=other.amount))
    connection.execute(update(p).where(p.c.id == other.id).values(amount=one.amount))
    return [
        Tampering(BreakType.DUPLICATE_IN_TARGET, _document(doubled)),
        Tampering(BreakType.MISSING_IN_TARGET, _document(deleted)),
        *(Tampering(BreakType.AMOUNT_MISMATCH, _document(row)) for row in (changed, one, other)),
    ]


def _two_to_exchange(rows: Sequence[Any]) -> tuple[Any, Any]:
    one = rows[0]
    for other in rows[1:]:
        if other.account == one.account and other.amount != one.amount:
            return one, other
    raise GuardError(f"The postings of {_DAY} have no two of one account with different amounts.")


def _document(row: Any) -> str:
    return json.dumps([row.statement_no, row.reference], ensure_ascii=False)


def _reconciled(scene: Scene, *, state: str) -> None:
    client = scene.airflow.client
    run_id = client.trigger(RECONCILIATION_DAG, conf={"business_date": _LAST_DAY.isoformat()})
    run = client.wait_for_run(RECONCILIATION_DAG, run_id)
    if run.state != state:
        raise GuardError(f"The reconciliation of the month was to end as {state}, but it is {run.state}.")


def _open_breaks(bank: Engine) -> frozenset[Tampering]:
    found = select(_break.c.break_type, _break.c.document).where(
        _break.c.state == BreakState.OPEN.value, _break.c.key_namespace == RECONCILIATION_DAG
    )
    with bank.connect() as connection:
        return frozenset(Tampering(*row) for row in connection.execute(found))


def _postings(bank: Engine) -> list[dict[str, Any]]:
    p = statement_posting
    with bank.connect() as connection:
        return [
            dict(row) for row in connection.execute(select(p).where(p.c.business_date == _DAY)).mappings()
        ]


def _put_right(bank: Engine, rows: list[dict[str, Any]]) -> None:
    p = statement_posting
    with bank.begin() as connection:
        connection.execute(delete(p).where(p.c.business_date == _DAY))
        connection.execute(insert(p), rows)
