"""``rerun --withdraw``: authorisations that nobody has used are taken back."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from airflow_guard.acts import keys
from airflow_guard.acts.arguments import UsageError
from airflow_guard.acts.withdraw import Scope, granted, withdraw
from airflow_guard.commands import output
from airflow_guard.core.errors import ResolutionError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from airflow_guard.acts.withdraw import Granted
    from airflow_guard.store.ledger import Ledger

_SHOWN = 20


def check(given: argparse.Namespace) -> None:
    """Refuse arguments that do not say which.

    :raises UsageError: they do not.
    """
    if given.reversal_happened or given.reversal_did_not_happen or given.without_reversal:
        raise UsageError("--withdraw takes an authorisation back: leave out what is said of a reversal")
    ways = [bool(given.key), bool(given.dag), given.all]
    if sum(ways) != 1 or (given.dag and not given.operation):
        raise UsageError("with --withdraw give --key HASH, DAG OPERATION [--start DATE --end DATE], or --all")


def run(ledger: Ledger, given: argparse.Namespace, actor: str, reason: str) -> None:
    """Withdraw what the arguments select, all or none."""
    found = granted(ledger, _scope(ledger, given))
    if not found:
        raise ResolutionError(
            "Nothing of that is authorised (or it is used, or over). Nothing was withdrawn."
        )
    if not given.dry_run:
        if not given.yes:
            _confirm(found)
        withdraw(ledger, found, actor=actor, reason=reason)
    _print(found, given)


def _scope(ledger: Ledger, given: argparse.Namespace) -> Scope:
    if given.key:
        return Scope(hashes={keys.one_key(ledger, key).row.key_hash for key in given.key})
    start = keys.date_of(given.start) if given.start else None
    end = keys.date_of(given.end) if given.end else start
    return Scope(given.dag, given.operation, start, end, given.cycle, keys.documents_of(given.document))


def _confirm(found: Sequence[Granted]) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ResolutionError(
            "This is no terminal, so nobody can be asked. Give --yes. Nothing was withdrawn."
        )
    for line in _lines(found):
        output.say(line)
    answer = input("Withdraw that? [yes/no] ")
    if answer.strip().lower() not in ("y", "yes"):
        raise ResolutionError("Not confirmed. Nothing was withdrawn.")


def _lines(found: Sequence[Granted]) -> list[str]:
    lines = [
        f"{each.key_text}: authorised by {each.actor} until {each.expires_at:%Y-%m-%d %H:%M} UTC: {each.reason}"
        for each in found[:_SHOWN]
    ]
    return lines + ([f"… and {len(found) - _SHOWN:,} more"] if len(found) > _SHOWN else [])


def _print(found: Sequence[Granted], given: argparse.Namespace) -> None:
    rows = [
        {"key": each.key_hash, "text": each.key_text, "authorised_by": each.actor, "reason": each.reason}
        for each in found
    ]
    if given.output in ("json", "yaml"):
        output.record({"withdrawn": rows, "dry_run": given.dry_run}, given.output)
        return
    if given.output == "plain":
        output.records(rows, given.output)
        return
    for line in _lines(found):
        output.say(line)
    count = f"{len(found):,} authorisation{'' if len(found) == 1 else 's'}"
    if given.dry_run:
        output.say(f"{count} would be withdrawn. Dry run, nothing was changed.", "bold")
    else:
        output.say(f"{count} withdrawn. The keys stay done, and are replayed.", "bold")
