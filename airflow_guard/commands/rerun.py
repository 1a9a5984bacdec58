"""``rerun``: a person authorises that done keys are executed once more, after seeing what was done."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from airflow_guard.acts import keys, rerun
from airflow_guard.acts.arguments import UsageError
from airflow_guard.acts.rerun import Request
from airflow_guard.acts.reruns import settle_reversal
from airflow_guard.commands import output, withdrawal
from airflow_guard.commands.ledgers import open_ledger
from airflow_guard.core.decisions import check_words
from airflow_guard.core.errors import ResolutionError
from airflow_guard.core.reruns import expiry_of
from airflow_guard.reading.listing import Selection

if TYPE_CHECKING:
    import argparse

    from airflow_guard.core.rerun_plan import RerunPlan
    from airflow_guard.reading.key_records import KeyRow
    from airflow_guard.store.ledger import Ledger

_DRY = "Dry run: nothing was authorised."


def run(given: argparse.Namespace) -> None:
    """Authorise what the arguments select, all or none; or say what became of a reversal."""
    _check(given)
    actor, reason = check_words(keys.actor_of(given), given.reason or "")
    with open_ledger(given) as opened:
        if given.withdraw:
            withdrawal.run(opened.ledger, given, actor, reason)
            return
        if given.reversal_happened or given.reversal_did_not_happen:
            _settle(opened.ledger, given, actor, reason)
            return
        request = Request(actor, reason, expiry_of(given.expires), given.without_reversal, given.ledger)
        _authorise(opened.ledger, given, request)


def _check(given: argparse.Namespace) -> None:
    if given.reversal_happened and given.reversal_did_not_happen:
        raise UsageError("say --reversal-happened or --reversal-did-not-happen")
    if given.withdraw:
        withdrawal.check(given)
        return
    if given.all:
        raise UsageError("--all belongs to --withdraw")
    if given.reversal_happened or given.reversal_did_not_happen:
        if len(given.key) != 1 or given.dag or given.dry_run:
            raise UsageError("a reversal is that of one --key")
        return
    if given.key:
        if given.dag or given.start or given.document:
            raise UsageError("give either --key, or DAG OPERATION --start DATE")
    elif not (given.dag and given.operation and given.start):
        raise UsageError("give --key HASH, or DAG OPERATION --start DATE [--end DATE]")


def _authorise(ledger: Ledger, given: argparse.Namespace, request: Request) -> None:
    views, others = _selected(ledger, given)
    # Refused first, then asked: nobody is asked about what cannot be done.
    planned = rerun.authorise(ledger, views, others, request, dry_run=True)
    if given.dry_run:
        _print(planned, views, given, dry_run=True)
        return
    if not given.yes:
        _confirm(planned)
    done = rerun.authorise(ledger, views, others, request, dry_run=False)
    _print(done, views, given, dry_run=False)


def _selected(ledger: Ledger, given: argparse.Namespace) -> tuple[list[KeyRow], dict[str, int]]:
    if given.key:
        found = {view.row.key_hash: view for view in (keys.one_key(ledger, key) for key in given.key)}
        return list(found.values()), {}
    start = keys.date_of(given.start)
    end = keys.date_of(given.end) if given.end else start
    if end < start:
        raise UsageError(f"--end {end} lies before --start {start}")
    return rerun.done_keys(
        ledger,
        Selection(
            dag=given.dag, business_date=start, until=end, operation=given.operation, cycle=given.cycle,
            documents=keys.documents_of(given.document),
        ),
    )  # fmt: skip


def _settle(ledger: Ledger, given: argparse.Namespace, actor: str, reason: str) -> None:
    view = keys.one_key(ledger, given.key[0])
    count = settle_reversal(
        ledger, view.key_date, view.row.key_hash, happened=given.reversal_happened, actor=actor, reason=reason
    )
    said = (
        "happened, and is not repeated"
        if given.reversal_happened
        else "did not happen, and the next run makes it"
    )
    if given.output == "table":
        along = f" (and {count - 1:,} more documents of its batch)" if count > 1 else ""
        output.say(f"{view.text}{along}: the reversal {said}. Clear the task to go on.")
    else:
        row = {
            "key": view.row.key_hash,
            "text": view.text,
            "reversal_happened": given.reversal_happened,
            "keys": count,
        }
        output.record(row, given.output)


def _confirm(planned: RerunPlan) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ResolutionError(
            "This is no terminal, so nobody can be asked. Give --yes. Nothing was authorised."
        )
    for line in planned.lines():
        output.say(line)
    answer = input("Authorise that? [yes/no] ")
    if answer.strip().lower() not in ("y", "yes"):
        raise ResolutionError("Not confirmed. Nothing was authorised.")


def _print(plan: RerunPlan, views: list[KeyRow], given: argparse.Namespace, *, dry_run: bool) -> None:
    commands = plan.commands()
    if given.output in ("json", "yaml"):
        output.record(
            {
                "keys": [keys.full(view) for view in views],
                "not_done": dict(plan.others),
                "without_reversal": plan.without_reversal,
                "until": plan.until.isoformat() if plan.until else None,
                "commands": list(commands.values()),
                "by_hand": plan.by_hand(),
                "dry_run": dry_run,
            },
            given.output,
        )
        return
    if given.output == "plain":
        output.records([keys.short(view) | {"key": view.row.key_hash} for view in views], given.output)
        return
    for line in plan.lines():
        output.say(line)
    output.say()
    output.command_lines(commands)
    for line in plan.by_hand():
        output.say(f"  {line}")
    if dry_run:
        output.say(_DRY, "bold")
