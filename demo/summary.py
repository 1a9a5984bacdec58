"""What became of it all: counted in the business tables and in the receivers' journals.

The proof never reads the ledger. What the ledger says (blocked, replayed, in doubt) is counted beside it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select, text

from airflow_guard.store.tables import Tables
from demo.books import BooksAudit, audit_books
from demo.receiver import Calls, read_journal

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from sqlalchemy import Engine

    from demo.provocations import Provocation
    from demo.statements import Statement
    from demo.tampering import Found

__all__ = [
    "ACCOUNTS_SQL",
    "AccountProof",
    "Handled",
    "LedgerCounts",
    "Proof",
    "counts_of",
    "doubts",
    "left_open",
    "prove",
    "summary_of",
    "write_summary",
]

_tables = Tables()
_task_run, _event, _execution, _break = _tables.task_run, _tables.event, _tables.execution, _tables.breaks

#: One posting for each transaction, and the closing balance, of every account.
ACCOUNTS_SQL = """\
SELECT b.account, b.currency,
       count(p.id)                                   AS postings,
       count(DISTINCT (p.statement_no, p.reference)) AS different_transactions,
       b.closing
FROM balance b
LEFT JOIN statement_posting p ON p.account = b.account
WHERE b.business_date = CAST(:last_day AS DATE)
GROUP BY b.account, b.currency, b.closing
ORDER BY b.account"""


@dataclass(frozen=True, slots=True)
class AccountProof:
    """One account: what the bank's files say, and what the books hold."""

    account: str
    currency: str
    expected_transactions: int
    expected_closing: Decimal
    postings: int
    transactions: int
    closing: Decimal | None

    @property
    def right(self) -> bool:
        """Whether every transaction has one posting, and the closing balance is the bank's."""
        counts = {self.postings, self.transactions, self.expected_transactions}
        return len(counts) == 1 and self.closing == self.expected_closing


@dataclass(frozen=True, slots=True)
class Handled:
    """Calls at a receiver, beside the statements or payments that each should have had one."""

    expected: int
    calls: int
    twice: int
    missing: int
    foreign: int

    @property
    def right(self) -> bool:
        """Whether every statement had one call, and nothing else was called."""
        return not (self.twice or self.missing or self.foreign) and self.calls == self.expected


@dataclass(frozen=True, slots=True)
class Proof:
    """Everything that was counted outside the ledger."""

    books: BooksAudit
    accounts: tuple[AccountProof, ...]
    notifications: Handled
    letters: Handled
    payments: Handled
    last_day: str

    @property
    def _receivers(self) -> tuple[Handled, ...]:
        return (self.notifications, self.letters, self.payments)

    @property
    def duplicates(self) -> int:
        """Postings, notifications, letters and payments beyond the one that each should have."""
        handled_twice = sum(each.twice + each.foreign for each in self._receivers)
        return self.books.duplicated + self.books.unexpected + handled_twice

    @property
    def lost(self) -> int:
        """Transactions, notifications, letters and payments that are missing."""
        return self.books.lost + sum(each.missing for each in self._receivers)

    @property
    def right(self) -> bool:
        """Whether nothing is doubled, lost or wrong."""
        whole = self.books.clean and all(each.right for each in self._receivers)
        return whole and all(account.right for account in self.accounts)


@dataclass(frozen=True, slots=True)
class LedgerCounts:
    """What the ledger says about one provocation, or about all."""

    replayed: int
    blocked: int
    executed: int
    in_doubt: int

    def as_expected(self, provocation: Provocation) -> bool:
        """Whether the provocation hit, and had the consequences that it should have."""
        return (
            provocation.replayed in (None, self.replayed)
            and self.blocked >= provocation.blocked
            and (self.executed, self.in_doubt) == (provocation.executed, provocation.in_doubt)
        )


# ---------------------------------------------------------------------------------------- the proof


def prove(
    bank: Engine,
    statements: Sequence[Statement],
    notifications: Path,
    letters: Path,
    printed: Sequence[Statement],
    *,
    payments: Path | None = None,
    paid: Collection[str] = (),
) -> Proof:
    """Count what is in the books and what has arrived at the receivers.

    :param bank: the business database.
    :param statements: all that should have been posted and notified, each once.
    :param notifications: the journal of the receiver of notifications.
    :param letters: the journal of the print shop.
    :param printed: the statements that should have had a letter.
    :param payments: the journal of the bank that pays suppliers; ``None``: nobody was paid.
    :param paid: the payments that should have been made.
    """
    return Proof(
        audit_books(bank, statements),
        tuple(_accounts(bank, statements)),
        _handled(read_journal(notifications), _numbers(statements)),
        _handled(read_journal(letters), _numbers(printed)),
        _handled(read_journal(payments) if payments else Calls(0, {}, {}), set(paid)),
        _last_day(statements),
    )


def _accounts(bank: Engine, statements: Sequence[Statement]) -> list[AccountProof]:
    last_day = _last_day(statements)
    lines: dict[str, int] = {}
    for statement in statements:
        lines[statement["account"]] = lines.get(statement["account"], 0) + len(statement["lines"])
    with bank.connect() as connection:
        found = {row.account: row for row in connection.execute(text(ACCOUNTS_SQL), {"last_day": last_day})}
    last = [statement for statement in statements if statement["business_date"] == last_day]
    return [
        AccountProof(
            statement["account"],
            statement["currency"],
            lines[statement["account"]],
            Decimal(statement["closing"]),
            row.postings if row else 0,
            row.different_transactions if row else 0,
            row.closing if row else None,
        )
        for statement in sorted(last, key=lambda each: each["account"])
        for row in [found.get(statement["account"])]
    ]


def _last_day(statements: Sequence[Statement]) -> str:
    return max(statement["business_date"] for statement in statements)


def _numbers(statements: Sequence[Statement]) -> set[str]:
    return {statement["statement_no"] for statement in statements}


def _handled(calls: Calls, expected: set[str]) -> Handled:
    """Compare the calls at a receiver with what should have had one each."""
    return Handled(
        expected=len(expected),
        calls=calls.total,
        twice=sum(count - 1 for count in calls.by_statement.values()),
        missing=len(expected - set(calls.by_statement)),
        foreign=len(set(calls.by_statement) - expected),
    )


# ---------------------------------------------------------------------------------- what the ledger says


def counts_of(bank: Engine, tries: Sequence[int] | None = None) -> LedgerCounts:
    """Return what the ledger recorded in some task tries, or in all.

    :param tries: ids in ``guard_task_run``.
    """
    runs = select(
        *(func.coalesce(func.sum(_task_run.c[name]), 0) for name in ("replayed", "executed", "in_doubt"))
    )
    events = select(func.count()).where(_event.c.kind == "blocked")
    if tries is not None:
        runs = runs.where(_task_run.c.id.in_(tries))
        events = events.where(_event.c.task_run_id.in_(tries))
    with bank.connect() as connection:
        replayed, executed, in_doubt = connection.execute(runs).one()
        blocked = connection.execute(events).scalar_one()
    return LedgerCounts(int(replayed), int(blocked), int(executed), int(in_doubt))


def doubts(bank: Engine) -> list[Any]:
    """Return the ledger's rows that are in doubt."""
    found = select(_execution).where(_execution.c.state == "in_doubt").order_by(_execution.c.document)
    with bank.connect() as connection:
        return list(connection.execute(found))


def left_open(bank: Engine) -> dict[str, int]:
    """Return how much is not done in the ledger, by the state in which it was left."""
    keys = {
        **{name: _execution.c.state == name for name in ("in_doubt", "rejected", "failed")},
        "follow_up_failed": _execution.c.follow_up == "failed",
        "in_progress": _execution.c.state == "in_progress",
    }
    counts = [select(func.count()).where(which).scalar_subquery().label(name) for name, which in keys.items()]
    breaks = select(func.count()).where(_break.c.state == "open").scalar_subquery().label("breaks_open")
    with bank.connect() as connection:
        return dict(connection.execute(select(*counts, breaks)).one()._mapping)  # noqa: SLF001


def summary_of(bank: Engine, proof: Proof, found: Found | None = None) -> dict[str, int]:
    """Return the figures of ``summary.json``.

    :param found: what the reconciliation found, if the postings were tampered with.
    """
    counts = counts_of(bank)
    breaks = {"breaks_injected": len(found.injected), "breaks_found": found.hits} if found else {}
    return {
        "statements": proof.books.statements,
        "transactions": proof.books.expected,
        "posted": proof.books.posted,
        "notified": proof.notifications.calls,
        "duplicates": proof.duplicates,
        "lost": proof.lost,
        "blocked": counts.blocked,
        "replayed": counts.replayed,
        "paid": proof.payments.calls,
        **left_open(bank),
        **breaks,
    }


def write_summary(path: Path, figures: Mapping[str, int]) -> None:
    """Write ``summary.json``."""
    path.write_text(json.dumps(figures, indent=2) + "\n")
