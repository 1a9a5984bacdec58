"""A ledger with something in every state, written by the same functions that tasks write with."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.acts import adoption
from airflow_guard.core.checks import TOTALS_MISMATCH, CheckOutcome, FoundBreak, Progress
from airflow_guard.core.guard import TaskIdentity
from airflow_guard.core.keys import KeySpace
from airflow_guard.core.states import FollowUp
from airflow_guard.store import resolution
from airflow_guard.store.breaks import Findings
from airflow_guard.store.reconciliations import Check, Ending, Figures, Reconciliations
from tests.contract.attempts import Attempt, attempt, opened

if TYPE_CHECKING:
    from airflow_guard.store.ledger import Ledger

MONTH = tuple(date(2026, 1, day) for day in range(1, 32))
LONG = "a_dag_with_a_name_as_long_as_airflow_allows_" + "x" * 206
HOSTILE_DOCUMENTS = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "javascript:alert(1)",
    '"><svg onload=alert(1)>',
    "=cmd|' /C calc'!A0",
    "{{ 7 * 7 }}",
)
HOSTILE_REASON = "javascript:alert(1) <b>bold</b> </script><script>alert(1)</script>"


def fill(ledger: Ledger, *, awkward: bool = True) -> None:
    """Write a month of work.

    :param awkward: also two DAGs with names and texts that nobody should have.
    """
    for day in MONTH:
        _statements(ledger, day)
        if day.weekday() < 5 or day == MONTH[-1]:
            _letters(ledger, day)
    _payments(ledger)
    _reconciled(ledger)
    if awkward:
        _hostile(ledger)
        _long(ledger)
    _age(ledger)


def space(dag_id: str, operation: str, day: date, **more: Any) -> KeySpace:
    return KeySpace(dag_id, operation, day, **more)


def run_of(day: date) -> str:
    return f"manual__{day}"


def closed(
    ledger: Ledger, done: Attempt, outcome: str = "success", error: str | None = None, **counts: int
) -> None:
    counts = {"documents": len(done.documents), **counts}
    ledger.runs.close(done.own.task_run_id, outcome, counts, error)


def again(
    ledger: Ledger, where: KeySpace, run_id: str, documents: int, *, task: str, blocked: bool = False
) -> None:
    """A second try that finds everything done, or is kept from it."""
    run = opened(ledger, where, run_id, task_id=task, run_type="manual", try_number=1)
    counts = {"documents": documents, "blocked" if blocked else "replayed": documents}
    ledger.runs.close(run, "failed" if blocked else "success", counts, "other run" if blocked else None)


def _statements(ledger: Ledger, day: date) -> None:
    where = space("bank_statements", "post_statement", day)
    names = [f"DE{89370400440532013000 + account}/{day:%j}" for account in range(8 + day.day % 5)]
    own = attempt(ledger, *names, space=where, run_id=run_of(day), task_id="post")
    if day == MONTH[-1]:
        own.begin()
        return
    own.begin().complete('{"lines": 42}')
    closed(ledger, own, executed=len(names))
    if day.day in (12, 20, 21):
        again(ledger, where, f"backfill__{day}", len(names), task="post")
    if day.day == 26:
        again(ledger, where, f"manual__{day}_second", len(names), task="post", blocked=True)


def _letters(ledger: Ledger, day: date) -> None:
    where = space("balance_letters", "notify_customer", day)
    names = [f"letter-{day:%m%d}-{number:03}" for number in range(12)]
    own = attempt(ledger, *names, space=where, run_id=run_of(day), task_id="send")
    own.begin()
    if day == date(2026, 1, 30):
        done, doubtful = _split(own, 9)
        done.complete('{"accepted": true}')
        doubtful.doubt("ReadTimeout: no answer from the print shop within 30 s; the request may have arrived")
        closed(ledger, own, "failed", "3 documents are in doubt", executed=9, in_doubt=3)
    elif day == date(2026, 1, 28):
        done, open_ = _split(own, 11)
        done.complete('{"accepted": true}')
        open_.complete('{"accepted": true}', FollowUp.PENDING)
        ledger.end_follow_up(
            own.own, open_.hashes, outcome=None, failed=True, why="OSError: the archive is full", patience_s=0
        )
        closed(ledger, own, "failed", "the follow-up failed", executed=12)
    elif day == date(2026, 1, 15):
        own.doubt("killed in the middle of a request")
        closed(ledger, own, "failed", "12 documents are in doubt", in_doubt=12)
        judged = [resolution.Judged(where.key_date, each, own.own.token) for each in own.hashes]
        resolution.resolve_many(
            ledger,
            judged,
            "happened",
            actor="ada",
            reason="the print shop has all of them, ticket 4711",
            strict=True,
        )
        again(ledger, where, f"manual__{day}_again", 12, task="send")
    else:
        own.complete('{"accepted": true}')
        closed(ledger, own, executed=12)


def _payments(ledger: Ledger) -> None:
    history = [
        adoption.HistoryRow(f"line {n}", {"business_date": date(2026, 1, n), "document": f"E2E-2026-{n:04}"})
        for n in range(1, 6)
    ]
    operation = adoption.Operation("payments", "pay")
    adoption.adopt(ledger, operation, history, actor="ada", reason="paid before the ledger kept watch")
    for day in (date(2026, 1, 29), date(2026, 1, 30)):
        where = space("payments", "pay", day)
        names = [f"E2E-{day:%Y%m%d}-{number:04}" for number in range(20)]
        own = attempt(ledger, *names, space=where, run_id=run_of(day), task_id="pay").begin()
        done, refused = _split(own, 18)
        done.complete('{"status": "ACSC"}')
        if day.day == 29:
            refused.reject("AC04: the account of the creditor is closed")
            closed(ledger, own, executed=18, rejected=2)
        else:
            refused.fail("NotExecuted: the bank is in maintenance until 06:00")
            closed(ledger, own, "failed", "2 documents failed", executed=18, failed=2)


def _reconciled(ledger: Ledger) -> None:
    for day in MONTH[:-1]:
        where = space("bank_statements", "reconcile_statements", day)
        found: list[FoundBreak] = []
        variance = "0.00"
        if day == date(2026, 1, 29):
            variance = "-1250.00"
            found = [
                FoundBreak("amount_mismatch", {"currency": "EUR"}, "DE89370400440532013001/029", "amount",
                           "1234567.89", "1233317.89", "-1250.00", 1, 1),
                FoundBreak("missing_in_target", {"currency": "EUR"}, "DE89370400440532013004/029", None, "87.50", None,
                           "-87.50", 1, 0),
                FoundBreak("duplicate_in_target", {"currency": "EUR"}, "DE89370400440532013002/029", None, "10.00",
                           "20.00", "10.00", 1, 2),
                FoundBreak("attribute_mismatch", {"currency": "EUR"}, "DE89370400440532013003/029", "value_date",
                           "2026-01-29", "2026-01-30", None, 1, 1),
                FoundBreak(TOTALS_MISMATCH, {"currency": None}, None, None, "3 rows", "2 rows"),
            ]  # fmt: skip
        elif day == date(2026, 1, 22):
            variance = "0.01"
            found = [
                FoundBreak("amount_mismatch", {"currency": "CHF"}, "CH9300762011623852957/022", "amount", "0.00",
                           "0.01", "0.01", 1, 1)
            ]  # fmt: skip
        _check(ledger, where, found, variance)
    # A day after, the 27th was looked at again: it has changed.
    where = space("bank_statements", "reconcile_statements", date(2026, 1, 27))
    _check(ledger, where, [], "10.00", ti="again", run_date=date(2026, 1, 28),
           reason="Changed since it passed: +1 row, +10.00", outcome=CheckOutcome.BROKEN)  # fmt: skip


def _check(
    ledger: Ledger,
    where: KeySpace,
    found: list[FoundBreak],
    variance: str,
    *,
    ti: str = "",
    run_date: date | None = None,
    reason: str = "both sides agree",
    outcome: CheckOutcome | None = None,
) -> None:
    day = where.business_date
    at = datetime.now(UTC)
    who = TaskIdentity(
        where.key_namespace, "reconcile", run_of(run_date or day), run_type="scheduled", run_after_at=at
    )
    store = Reconciliations(ledger.database)
    check = Check(f"{ti or day} {where.key_namespace}"[:40], who, where, run_date or day)
    store.begin([check])
    (state,) = [each for each in store.states(check.ti_id) if each.business_date == day]
    source = "1500000.00"
    target = f"{1500000 + float(variance):.2f}"
    totals = [
        {
            "group": {"currency": "EUR"},
            "source": {"records": 42, "amounts": {"amount": source}, "missing": {"amount": 0}},
            "target": {"records": 42, "amounts": {"amount": target}, "missing": {"amount": 0}},
            "reasons": [f"amount differs by {variance}"] if found else [],
        }
    ]
    figures = Figures(True, 42, 42, totals, at, at, len(found), 1000)
    store.close(
        check,
        state,
        Ending(
            outcome or (CheckOutcome.BROKEN if found else CheckOutcome.PASSED),
            f"{len(found)} breaks" if found else reason,
            Progress().saw("a" * 32 if found else None),
            settled=bool(found),
            figures=figures,
            findings=Findings(found),
        ),
    )


def _hostile(ledger: Ledger) -> None:
    day = date(2026, 1, 30)
    where = space("hostile", "post", day, cycle="<i>1</i>")
    own = attempt(ledger, *HOSTILE_DOCUMENTS, space=where, run_id="manual__<script>alert(1)</script>", task_id="post",
                  host="<b>host</b>")  # fmt: skip
    own.begin().doubt("</script><script>alert(1)</script><img src=x onerror=alert(1)>")
    closed(ledger, own, "failed", "<img src=x onerror=alert(1)>", in_doubt=len(HOSTILE_DOCUMENTS))
    found = [
        FoundBreak("amount_mismatch", {'"><svg onload=alert(1)>': "<img src=x onerror=alert(1)>"}, document,
                   "<u>field</u>", "=1+1", "<script>alert(1)</script>", "-1", 1, 1)
        for document in HOSTILE_DOCUMENTS
    ]  # fmt: skip
    _check(ledger, space("hostile", "reconcile", day), found, "-1.00", reason=HOSTILE_REASON)


def _long(ledger: Ledger) -> None:
    day = date(2026, 1, 30)
    where = space(LONG, "o" * 250, day, cycle="c" * 100)
    own = attempt(
        ledger, "D" * 255, "E" * 255, space=where, run_id="r" * 250, task_id="t" * 250, host="h" * 250
    )
    own.begin().doubt("x" * 2000)
    closed(ledger, own, "failed", "y" * 2000, in_doubt=2)
    group, values = {"g" * 100: "v" * 250}, ("9" * 60 + ".99", "8" * 60, "-1" + "0" * 60)
    found = [FoundBreak("amount_mismatch", group, "D" * 255, "f" * 250, *values)]
    _check(ledger, space(LONG, "o" * 250, day), found, "-1.00")


def crowd(ledger: Ledger, size: int = 10_000) -> None:
    """Add a DAG with very many keys and breaks of one date."""
    day = date(2026, 1, 30)
    where = space("crowd", "post_many_statements", day)
    own = attempt(
        ledger, *(f"statement-{number:06}" for number in range(size)), space=where, run_id=run_of(day)
    )
    own.begin().doubt("ReadTimeout: no answer within 30 s")
    closed(ledger, own, "failed", f"{size} documents are in doubt", in_doubt=size)
    found = [
        FoundBreak(("amount_mismatch", "missing_in_target")[number % 2], {"currency": "EUR"}, f"statement-{number:06}",
                   "amount", f"{number}.00", f"{number + 1}.00", "1.00", 1, 1)
        for number in range(size)
    ]  # fmt: skip
    _check(ledger, space("crowd", "reconcile_many_statements", day), found, "1.00")


def _split(own: Attempt, done: int) -> tuple[Attempt, Attempt]:
    return replace(own, documents=own.documents[:done]), replace(own, documents=own.documents[done:])


def _age(ledger: Ledger) -> None:
    """Let breaks be as old as they would be: the database's clock gave them their first sight just now."""
    b = ledger.database.tables.breaks
    with ledger.database.engine.begin() as connection:
        for row in connection.execute(sa.select(b.c.id, b.c.business_date, b.c.first_seen_at)).all():
            older = row.first_seen_at - timedelta(days=31 - row.business_date.day, hours=3)
            connection.execute(sa.update(b).where(b.c.id == row.id).values(first_seen_at=older))
