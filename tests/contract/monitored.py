"""A small world of two DAGs that a monitor looks at."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.core.checks import CheckOutcome, FoundBreak, Progress
from airflow_guard.core.guard import TaskIdentity
from airflow_guard.core.keys import KeySpace
from airflow_guard.reading.monitor import Monitor
from airflow_guard.store.breaks import Findings
from airflow_guard.store.dialects import utc_after
from airflow_guard.store.reconciliations import Check, Ending, Figures, Reconciliations
from tests.contract.attempts import Attempt, attempt, opened

if TYPE_CHECKING:
    from airflow_guard.store.ledger import Ledger

DAY = date(2025, 3, 31)
NEXT = DAY + timedelta(days=1)
TOTALS = [
    {
        "group": {"currency": "EUR"},
        "source": {"records": 3, "amounts": {"amount": "60.00"}, "missing": {"amount": 0}},
        "target": {"records": 2, "amounts": {"amount": "49.995"}, "missing": {"amount": 1}},
        "reasons": ["records 3 / 2"],
    }
]
MISSING = FoundBreak("missing_in_target", {"currency": "EUR"}, "INV-2", None, "10.005", None, "-10.005", 1, 0)
WRONG = FoundBreak("amount_mismatch", {"currency": "USD"}, "INV-3", "amount", "1.00", "1.01", "0.01", 1, 1)


@dataclass
class World:
    """Two DAGs that no other test has.

    :param a: the DAG that the reader may read.
    :param b: another one.
    """

    ledger: Ledger
    a: str
    b: str

    def __post_init__(self) -> None:
        self.monitor = Monitor(self.ledger)
        self.only_a = frozenset({self.a})
        self.both = frozenset({self.a, self.b})
        self._runs = 0

    def space(self, dag: str, **parts: Any) -> KeySpace:
        return KeySpace(**{"key_namespace": dag, "operation": "post", "business_date": DAY, **parts})

    def attempt(
        self, *documents: str | None, dag: str | None = None, known: bool = False, run: str = "", task: str = "post",
        run_type: str = "scheduled", try_number: int = 1, runs_in: str | None = None, **parts: Any,
    ) -> Attempt:  # fmt: skip
        """Claim documents in a try of its own.

        :param dag: whose key namespace it is.
        :param runs_in: the DAG that the try belongs to, if it is another.
        """
        dag = dag or self.a
        self._runs += 1
        return attempt(
            self.ledger, *documents, space=self.space(dag, **parts), known=known,
            run_id=run or f"scheduled__{self._runs}", dag_id=runs_in or dag, task_id=task, run_type=run_type,
            try_number=try_number,
        )  # fmt: skip

    def done(self, *documents: str | None, result: str | None = None, **parts: Any) -> Attempt:
        """Let a try execute documents and end."""
        one = self.attempt(*documents, **parts).begin().complete(result)
        return self.end(one, documents=len(documents), executed=len(documents))

    def end(self, one: Attempt, outcome: str = "success", **counts: int) -> Attempt:
        self.ledger.runs.close(one.own.task_run_id, outcome, counts)
        return one

    def asked(
        self, *, dag: str | None = None, run: str = "manual__1", run_type: str = "manual", outcome: str = "success",
        error: str | None = None, counts: dict[str, int] | None = None, **parts: Any,
    ) -> int:  # fmt: skip
        """Let a try ask for what is done or not its own, and end."""
        space = self.space(dag or self.a, **parts)
        number = opened(self.ledger, space, run, dag_id=dag or self.a, run_type=run_type)
        self.ledger.runs.close(number, outcome, counts or {}, error)
        return number

    def check(
        self, *found: FoundBreak, dag: str | None = None, run: str = "recon__1", day: date = DAY, reason: str = "why",
        outcome: CheckOutcome | None = None, operation: str = "reconcile", read_at: datetime | None = None,
    ) -> int:  # fmt: skip
        """Let a check look once and end; return its id."""
        store, dag = Reconciliations(self.ledger.database), dag or self.a
        who = TaskIdentity(dag, "reconcile", run, run_type="scheduled", run_after_at=datetime.now(UTC))
        space = KeySpace(dag, operation, day)
        self._runs += 1
        check = Check(f"{dag} {run} {day} {self._runs}", who, space, day)
        store.begin([check])
        (state,) = store.states(check.ti_id)
        at = read_at or datetime.now(UTC) + timedelta(minutes=5)
        ending = Ending(
            outcome or (CheckOutcome.BROKEN if found else CheckOutcome.PASSED), reason, Progress().saw("a" * 32),
            settled=True, figures=Figures(True, 3, 2, TOTALS, at, at, len(found), 1000),
            findings=Findings(found, "all"),
        )  # fmt: skip
        store.close(check, state, ending)
        return state.id

    def age(self, table: sa.Table, column: str, seconds: float, **which: Any) -> None:
        """Let something have happened so long ago, by the database's clock."""
        change = sa.update(table).where(*(table.c[name] == value for name, value in which.items()))
        with self.ledger.database.engine.begin() as connection:
            connection.execute(
                change.values({column: utc_after(sa.bindparam("seconds"))}), {"seconds": -seconds}
            )
