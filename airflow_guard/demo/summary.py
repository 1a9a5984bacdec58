"""What became of it all: counted in the business tables and in the receivers' journals, then shown.

The proof never reads the ledger. What the ledger says (blocked, replayed, in doubt) stands in a table of its
own, beside it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from rich import box
from rich.syntax import Syntax
from rich.table import Table
from sqlalchemy import func, select, text

from airflow_guard.core.commands import resolve_command
from airflow_guard.demo.books import BooksAudit, audit_books
from airflow_guard.demo.receiver import Calls, read_journal
from airflow_guard.store.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rich.console import Console
    from sqlalchemy import Engine

    from airflow_guard.demo.provocations import Provocation
    from airflow_guard.demo.statements import Statement

__all__ = [
    "ACCOUNTS_SQL",
    "AccountProof",
    "Handled",
    "LedgerCounts",
    "Proof",
    "handled",
    "prove",
    "show",
    "summary_of",
]

_task_run, _event, _execution = Tables().task_run, Tables().event, Tables().execution

ACCOUNTS_SQL = """\
SELECT b.account, b.currency, b.closing,
       count(p.id)                                 AS postings,
       count(DISTINCT (p.statement_no, p.reference)) AS transactions
FROM balance b
LEFT JOIN statement_posting p ON p.account = b.account
WHERE b.business_date = :last_day
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
    """Calls at a receiver, beside the statements that each should have had one."""

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

    @property
    def duplicates(self) -> int:
        """Postings, notifications and letters beyond the one that each should have."""
        handled_twice = sum(each.twice + each.foreign for each in (self.notifications, self.letters))
        return self.books.duplicated + self.books.unexpected + handled_twice

    @property
    def lost(self) -> int:
        """Transactions, notifications and letters that are missing."""
        return self.books.lost + self.notifications.missing + self.letters.missing

    @property
    def right(self) -> bool:
        """Whether nothing is doubled, lost or wrong."""
        whole = self.books.clean and self.notifications.right and self.letters.right
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
        exact = {"replayed": provocation.replayed, "executed": provocation.executed}
        same = all(getattr(self, name) == value for name, value in exact.items() if value is not None)
        return same and self.blocked >= provocation.blocked and self.in_doubt == provocation.in_doubt


# ---------------------------------------------------------------------------------------- the proof


def prove(
    bank: Engine,
    statements: Sequence[Statement],
    notifications: Path,
    letters: Path,
    printed: Sequence[Statement],
) -> Proof:
    """Count what is in the books and what has arrived at the receivers.

    :param bank: the business database.
    :param statements: all that should have been posted and notified, each once.
    :param notifications: the journal of the receiver of notifications.
    :param letters: the journal of the print shop.
    :param printed: the statements that should have had a letter.
    """
    return Proof(
        audit_books(bank, statements),
        tuple(_accounts(bank, statements)),
        handled(read_journal(notifications), statements),
        handled(read_journal(letters), printed),
    )


def _accounts(bank: Engine, statements: Sequence[Statement]) -> list[AccountProof]:
    last_day = max(statement["business_date"] for statement in statements)
    lines: dict[str, int] = {}
    for statement in statements:
        lines[statement["account"]] = lines.get(statement["account"], 0) + len(statement["lines"])
    query = text(ACCOUNTS_SQL.replace(":last_day", "CAST(:last_day AS DATE)"))
    with bank.connect() as connection:
        found = {row.account: row for row in connection.execute(query, {"last_day": last_day})}
    last = [statement for statement in statements if statement["business_date"] == last_day]
    return [
        AccountProof(
            statement["account"],
            statement["currency"],
            lines[statement["account"]],
            Decimal(statement["closing"]),
            row.postings if row else 0,
            row.transactions if row else 0,
            row.closing if row else None,
        )
        for statement in sorted(last, key=lambda each: each["account"])
        for row in [found.get(statement["account"])]
    ]


def handled(calls: Calls, statements: Sequence[Statement]) -> Handled:
    """Compare the calls at a receiver with the statements that should have had one each."""
    expected = {statement["statement_no"] for statement in statements}
    return Handled(
        expected=len(expected),
        calls=calls.total,
        twice=sum(count - 1 for count in calls.by_statement.values()),
        missing=len(expected - set(calls.by_statement)),
        foreign=len(set(calls.by_statement) - expected),
    )


# ---------------------------------------------------------------------------------- what the ledger says


def _counts(bank: Engine, tries: Sequence[int] | None = None) -> LedgerCounts:
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


def _in_doubt(bank: Engine) -> list[Any]:
    found = select(_execution).where(_execution.c.state != "completed").order_by(_execution.c.document)
    with bank.connect() as connection:
        return list(connection.execute(found))


def summary_of(bank: Engine, proof: Proof) -> dict[str, int]:
    """Return the figures of ``summary.json``."""
    counts = _counts(bank)
    return {
        "statements": proof.books.statements,
        "transactions": proof.books.expected,
        "posted": proof.books.posted,
        "notified": proof.notifications.calls,
        "duplicates": proof.duplicates,
        "lost": proof.lost,
        "blocked": counts.blocked,
        "replayed": counts.replayed,
        "in_doubt": len(_in_doubt(bank)),
    }


# ---------------------------------------------------------------------------------------- the tables


def show(
    console: Console, bank: Engine, provocations: Sequence[Provocation], proof: Proof, journal: Path
) -> bool:
    """Print everything; return whether all is as it must be."""
    as_expected = _show_provocations(console, bank, provocations)
    _show_doubts(console, bank)
    _show_accounts(console, proof)
    _show_questions(console, proof, journal)
    if proof.right and as_expected:
        console.print("\n[bold green]Nothing was doubled and nothing was lost.[/bold green]")
        return True
    for example in proof.books.examples:
        console.print(f"[red]{example}[/red]", highlight=False)
    console.print(
        f"\n[bold red]This is not as it must be: {proof.duplicates} doubled, {proof.lost} lost, "
        f"{proof.books.wrong_balances} wrong balances, {proof.books.altered} wrong amounts"
        f"{'' if as_expected else '; a provocation had other consequences than it should'}.[/bold red]"
    )
    return False


def _show_provocations(console: Console, bank: Engine, provocations: Sequence[Provocation]) -> bool:
    table = Table(
        title="What was tried, and what the ledger did about it", title_justify="left", box=box.SIMPLE_HEAVY
    )
    table.add_column("What was tried")
    for heading in ("Already done,\nnot repeated", "Held back", "Done now,\nfirst time", "In doubt"):
        table.add_column(heading, justify="right")
    table.add_column("In words")
    right = True
    for provocation in provocations:
        counts = _counts(bank, provocation.tries)
        hit = counts.as_expected(provocation)
        right = right and hit
        figures = (counts.replayed, counts.blocked, counts.executed, counts.in_doubt)
        remark = provocation.remark if hit else f"[red]not as it should be[/red]: {provocation}"
        table.add_row(provocation.title, *(f"{figure:,}" if figure else "-" for figure in figures), remark)
    console.print()
    console.print(table)
    return right


def _show_doubts(console: Console, bank: Engine) -> None:
    for row in _in_doubt(bank):
        console.print(
            f"In doubt: {row.operation} of {row.document}: "
            f"{row.error or 'its process died while the effect was under way'}\n"
            f"  A person finds out, and says so: {resolve_command(row.key_hash)}",
            highlight=False,
            soft_wrap=True,
        )


def _show_accounts(console: Console, proof: Proof) -> None:
    table = Table(
        title="The books, counted in SQL, beside the bank's files", title_justify="left", box=box.SIMPLE_HEAVY
    )
    table.add_column("Account")
    table.add_column("")
    for heading in (
        "Transactions\nof the bank",
        "Postings",
        "Different\ntransactions",
        "Closing balance\nof the bank",
    ):
        table.add_column(heading, justify="right")
    table.add_column("Closing balance\nin the books", justify="right")
    table.add_column("")
    for each in proof.accounts:
        places = max(0, -int(each.expected_closing.as_tuple().exponent))
        closing = "none" if each.closing is None else f"{each.closing:,.{places}f}"
        table.add_row(
            each.account,
            each.currency,
            f"{each.expected_transactions:,}",
            f"{each.postings:,}",
            f"{each.transactions:,}",
            f"{each.expected_closing:,}",
            closing,
            _mark(each.right),
        )
    console.print()
    console.print(table)
    console.print(Syntax(ACCOUNTS_SQL, "sql", theme="ansi_dark", background_color="default"))


def _mark(right: bool) -> str:  # noqa: FBT001 - the value that it shows
    return "[green]✓[/green]" if right else "[red]✗[/red]"


def _show_questions(console: Console, proof: Proof, journal: Path) -> None:
    books, sent, letters = proof.books, proof.notifications, proof.letters
    table = Table(title="Compared one by one", title_justify="left", box=box.SIMPLE_HEAVY)
    for heading in ("Question", "Expected", "Found"):
        table.add_column(heading, justify="left" if heading == "Question" else "right")
    table.add_column("")
    rows: Sequence[tuple[str, int, int]] = (
        ("Postings in the books, one for each transaction of the bank", books.expected, books.posted),
        ("Transactions that were posted more than once", 0, books.duplicated + books.unexpected),
        ("Transactions that were not posted", 0, books.lost),
        ("Postings with another amount, currency, account or date", 0, books.altered),
        ("Closing balances that are not the bank's, of all accounts and days", 0, books.wrong_balances),
        (f"Notifications that arrived ({journal.name})", sent.expected, sent.calls),
        ("Statements notified more than once", 0, sent.twice + sent.foreign),
        ("Statements not notified", 0, sent.missing),
        ("Letters that arrived at the print shop", letters.expected, letters.calls),
        ("Letters printed more than once", 0, letters.twice + letters.foreign),
    )
    for question, expected, found in rows:
        table.add_row(question, f"{expected:,}", f"{found:,}", _mark(expected == found))
    console.print()
    console.print(table)


def write_summary(path: Path, figures: Mapping[str, int]) -> None:
    """Write ``summary.json``."""
    path.write_text(json.dumps(figures, indent=2) + "\n")
