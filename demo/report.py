"""The tables that the demo prints at its end."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.syntax import Syntax
from rich.table import Table

from airflow_guard.core.commands import resolve_command
from demo.summary import ACCOUNTS_SQL, counts_of, doubts, left_open

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from sqlalchemy import Engine

    from demo.provocations import Provocation
    from demo.summary import Proof
    from demo.tampering import Found

__all__ = ["show"]

# Where the console script is: the environment of the demo is seldom the one that is active.
_SCRIPTS = f"{os.path.relpath(Path(sys.executable).parent)}{os.sep}"


def show(
    console: Console,
    bank: Engine,
    provocations: Sequence[Provocation],
    proof: Proof,
    journal: Path,
    *,
    ledger: str | None = None,
    found: Found | None = None,
) -> bool:
    """Print everything; return whether all is as it must be.

    :param journal: of the receiver of notifications.
    :param ledger: URL of the ledger for the command that settles a doubt, if it can be reached afterwards.
    :param found: what the reconciliation found, if the postings were tampered with.
    """
    as_expected = _show_provocations(console, bank, provocations)
    _show_doubts(console, bank, ledger)
    _show_left_open(console, bank)
    _show_accounts(console, proof)
    _show_questions(console, proof, journal)
    as_expected = _show_breaks(console, found) and as_expected
    if proof.right and as_expected:
        console.print("\n[bold green]Nothing was doubled and nothing was lost.[/bold green]")
        return True
    for example in proof.books.examples:
        console.print(f"[red]{example}[/red]", highlight=False)
    console.print(
        f"\n[bold red]This is not as it must be: {proof.duplicates} doubled, {proof.lost} lost, "
        f"{proof.books.wrong_balances} wrong balances, {proof.books.altered} wrong amounts"
        f"{'' if as_expected else '; a provocation had other consequences than it should have'}.[/bold red]"
    )
    return False


def _show_provocations(console: Console, bank: Engine, provocations: Sequence[Provocation]) -> bool:
    table = _table("What was tried, and what the ledger did about it (counted in documents)")
    table.add_column("What was tried", ratio=3)
    for heading in ("Done before,\nnot repeated", "Held\nback", "Done\nnow", "In\ndoubt"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("What came of it", ratio=4)
    wrong = []
    for provocation in provocations:
        counts = counts_of(bank, provocation.tries)
        figures = (counts.replayed, counts.blocked, counts.executed, counts.in_doubt)
        shown = [f"{figure:,}" if figure else "-" for figure in figures]
        table.add_row(provocation.title, *shown, provocation.remark)
        if not counts.as_expected(provocation):
            wrong.append((provocation, counts))
    console.print()
    console.print(table)
    console.print(
        "Held back: not begun, because another process was at it or because it was not known whether it had "
        "happened. Done now: not done before.",
        style="dim",
        highlight=False,
    )
    for provocation, counts in wrong:
        console.print(f"[red]Not as it should be: {provocation}, but {counts}[/red]", highlight=False)
    return not wrong


def _show_doubts(console: Console, bank: Engine, ledger: str | None) -> None:
    for row in doubts(bank):
        console.print(
            f"\n[bold yellow]In doubt[/bold yellow]: {row.operation} of {row.document}. Its process died "
            "after it had begun and before it was confirmed: it may have happened or not, so it is not "
            "repeated. A person asks the receiver, and says so (--did-not-happen: the next run does it):",
            highlight=False,
        )
        command = resolve_command(row.key_hash, ledger=ledger)
        console.print(f"  {_SCRIPTS}{command}", highlight=False, soft_wrap=True)


def _show_left_open(console: Console, bank: Engine) -> None:
    names = {"follow_up_failed": "with a follow-up that failed", "breaks_open": "open break"}
    counts = (
        f"{count} {names.get(name, name.replace('_', ' '))}"
        for name, count in left_open(bank).items()
        if count
    )
    console.print(f"\n[bold]Left open, to be seen on the pages[/bold]: {', '.join(counts)}.", highlight=False)


def _show_accounts(console: Console, proof: Proof) -> None:
    table = _table("The books, counted in SQL, beside the bank's files")
    table.add_column("Account", overflow="fold", min_width=10)
    table.add_column("", no_wrap=True)
    for heading in (
        "Bank's\nlines",
        "Lines\nposted",
        "of them\ndifferent",
        "Closing\nof the bank",
        "Closing in\nthe books",
        "",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in proof.accounts:
        places = max(0, -int(each.expected_closing.as_tuple().exponent))
        table.add_row(
            each.account,
            each.currency,
            f"{each.expected_transactions:,}",
            f"{each.postings:,}",
            f"{each.transactions:,}",
            f"{each.expected_closing:,}",
            "none" if each.closing is None else f"{each.closing:,.{places}f}",
            _mark(right=each.right),
        )
    console.print()
    console.print(table)
    console.print(Syntax(_printed_sql(proof), "sql", theme="ansi_dark", background_color="default"))


def _printed_sql(proof: Proof) -> str:
    return ACCOUNTS_SQL.replace("CAST(:last_day AS DATE)", f"DATE '{proof.last_day}'") + ";"


def _show_questions(console: Console, proof: Proof, journal: Path) -> None:
    books, sent, letters, paid = proof.books, proof.notifications, proof.letters, proof.payments
    table = _table("Compared one by one")
    table.add_column("Question")
    for heading in ("Expected", "Found", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    rows: Sequence[tuple[str, int, int]] = (
        ("Postings in the books: one for each transaction of the bank", books.expected, books.posted),
        ("Transactions posted more than once", 0, books.duplicated + books.unexpected),
        ("Transactions not posted", 0, books.lost),
        ("Postings with another amount, currency, account or date", 0, books.altered),
        ("Closing balances that are not the bank's, of all accounts and days", 0, books.wrong_balances),
        ("Notifications that arrived: one for each statement", sent.expected, sent.calls),
        ("Statements notified more than once", 0, sent.twice + sent.foreign),
        ("Statements not notified", 0, sent.missing),
        ("Letters that arrived at the print shop", letters.expected, letters.calls),
        ("Letters printed more than once", 0, letters.twice + letters.foreign),
        ("Payments that the bank was asked for", paid.expected, paid.calls),
        ("Payments that it was asked for more than once", 0, paid.twice + paid.foreign),
    )
    for question, expected, found in rows:
        table.add_row(question, f"{expected:,}", f"{found:,}", _mark(right=expected == found))
    console.print()
    console.print(table)
    console.print("The receiver's journal has a line for each call; this prints what it got more than once:")
    console.print(
        f"""grep -o '"statement_no": "[^"]*"' {journal} | sort | uniq -d""", soft_wrap=True, highlight=False
    )


def _show_breaks(console: Console, found: Found | None) -> bool:
    if found is None:
        return True
    table = _table("Done to the postings with a database client, and found by the reconciliation")
    table.add_column("Break")
    table.add_column("Statement and line", overflow="fold")
    table.add_column("Found", justify="right", no_wrap=True)
    for each in sorted(found.injected | found.found, key=lambda one: (one.break_type, one.document)):
        hit = each in found.injected and each in found.found
        table.add_row(each.break_type, " ".join(json.loads(each.document)), _mark(right=hit))
    console.print()
    console.print(table)
    if found.open_after:
        console.print(f"[red]{found.open_after} breaks stayed open although the postings were right[/red]")
    return found.right


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAVY,
        collapse_padding=True,
        pad_edge=False,
        show_edge=False,
    )


def _mark(*, right: bool) -> str:
    return "[green]✓[/green]" if right else "[red]✗[/red]"
