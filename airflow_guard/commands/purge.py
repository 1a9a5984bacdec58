"""``purge``: old keys go, and a horizon stays."""

from __future__ import annotations

import re
import sys
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from airflow_guard.acts import keys
from airflow_guard.acts.arguments import UsageError
from airflow_guard.acts.purging import Purge
from airflow_guard.commands import output
from airflow_guard.commands.ledgers import open_ledger
from airflow_guard.core.decisions import check_words
from airflow_guard.core.errors import ResolutionError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from airflow_guard.acts.purging import Purged

_AGE = re.compile(r"(\d{1,5})\s*d")


def run(given: argparse.Namespace) -> None:
    """Remove what is done and old, or say what would go."""
    actor, reason = check_words(keys.actor_of(given), given.reason or "")
    until = _until(given)
    with open_ledger(given) as opened:
        purge = Purge(opened.ledger, until, actor, reason, given.dag, given.operation, given.batch)
        planned = purge.plan()
        if given.dry_run or not any(each.found for each in planned):
            _print(planned, until, given, dry_run=True)
            return
        if not given.yes:
            _confirm(planned, until)
        _print(list(purge.run()), until, given, dry_run=False)


def _until(given: argparse.Namespace) -> date:
    """Return the last business date that goes."""
    if bool(given.until) == bool(given.older_than):
        raise UsageError("give --until DATE or --older-than DAYS (730d)")
    if given.batch < 1:
        raise UsageError("--batch must be at least 1")
    if given.until:
        return keys.date_of(given.until)
    found = _AGE.fullmatch(given.older_than.strip().lower())
    if found is None:
        raise UsageError(f"--older-than {given.older_than}: days, such as 730d")
    return datetime.now(UTC).date() - timedelta(days=int(found[1]) + 1)


def _confirm(planned: Sequence[Purged], until: date) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ResolutionError("This is no terminal, so nobody can be asked. Give --yes. Nothing was removed.")
    for each in planned:
        output.say(_line(each, "would go"))
    output.say(f"Claims of these operations for {until} and before are refused from then on.", "bold")
    if input("Remove that? [yes/no] ").strip().lower() not in ("y", "yes"):
        raise ResolutionError("Not confirmed. Nothing was removed.")


def _print(purged: Sequence[Purged], until: date, given: argparse.Namespace, *, dry_run: bool) -> None:
    if given.output != "table":
        rows = [
            {
                "key_namespace": each.name[0], "operation": each.name[1], "until": until.isoformat(), "keys": each.keys,
                "task_runs": each.task_runs, "checks": each.checks, "breaks": each.breaks, "kept": each.kept,
                "once_per_document": each.once_per_document, "dry_run": dry_run,
            }
            for each in purged
        ]  # fmt: skip
        output.records(rows, given.output)
        return
    for each in purged:
        output.say(_line(each, "would go" if dry_run else "are gone"))
    if not any(each.found for each in purged):
        output.say(f"There is nothing to remove up to {until}.")
    elif dry_run:
        output.say("Dry run: nothing was removed.", "bold")
    else:
        output.say(f"Claims of these operations for {until} and before are refused from now on.")


def _line(each: Purged, what: str) -> str:
    line = (
        f"{' / '.join(each.name)}: {each.keys:,} keys, {each.task_runs:,} task tries, {each.checks:,} checks and "
        f"{each.breaks:,} closed breaks {what}"
    )
    if each.kept:
        line += f"; {each.kept:,} keys stay, since they are not done or may be rerun"
    if each.once_per_document:
        line += (
            f"; {each.once_per_document:,} keys stay, since they hold once per document, whatever the date"
        )
    return line
