"""``failover``: the ledger may have forgotten something, and is told so."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_guard.acts import fail_over, keys
from airflow_guard.acts.arguments import UsageError
from airflow_guard.commands import output
from airflow_guard.commands.ledgers import open_ledger
from airflow_guard.core.decisions import check_words
from airflow_guard.core.errors import ResolutionError
from airflow_guard.core.fail_over import check_lost_since
from airflow_guard.store import fail_overs

if TYPE_CHECKING:
    import argparse

    from airflow_guard.acts.fail_over import Recorded
    from airflow_guard.store.fail_overs import OpenFailOver

_NAMED = 20


def run(given: argparse.Namespace) -> None:
    """Record or close a fail-over, or say what is open."""
    if given.lost_since and given.close:
        raise UsageError("give --lost-since INSTANT or --close, not both")
    if given.lost_since:
        _record(given)
    elif given.close:
        _close(given)
    else:
        with open_ledger(given) as opened:
            _list(fail_overs.listed(opened.ledger.database), given)


def _record(given: argparse.Namespace) -> None:
    actor, reason = check_words(keys.actor_of(given), given.reason or "")
    lost_since = _instant(given.lost_since)
    with open_ledger(given) as opened:
        plan = fail_over.record(opened.ledger, lost_since, actor=actor, reason=reason, dry_run=True)
        if given.dry_run:
            _print(plan, given, dry_run=True)
            return
        if not given.yes:
            _confirm(plan)
        done = fail_over.record(opened.ledger, lost_since, actor=actor, reason=reason)
    _print(done, given, dry_run=False)


def _close(given: argparse.Namespace) -> None:
    actor, reason = check_words(keys.actor_of(given), given.reason or "")
    with open_ledger(given) as opened:
        closed = fail_over.close(opened.ledger, actor=actor, reason=reason, dry_run=given.dry_run)
    if given.output != "table":
        _list(closed, given)
        return
    for each in closed:
        output.say(f"{_line(each)}: {'would be closed' if given.dry_run else 'closed'}")
    output.say(
        "What the ledger does not know counts as new again."
        if not given.dry_run
        else "Dry run: nothing was changed."
    )


def _instant(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(f"--lost-since {text}: ISO 8601 with a zone, such as 2025-03-31T02:10:00Z") from None
    check_lost_since(found)
    return found


def _confirm(plan: Recorded) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ResolutionError("This is no terminal, so nobody can be asked. Give --yes. Nothing was changed.")
    _say(plan, "would be")
    if input("Record that? [yes/no] ").strip().lower() not in ("y", "yes"):
        raise ResolutionError("Not confirmed. Nothing was changed.")


def _print(recorded: Recorded, given: argparse.Namespace, *, dry_run: bool) -> None:
    if given.output != "table":
        rows = [
            {
                "key_date": each.key_date.isoformat(), "key": each.key_hash, "what": each.key_text,
                "state": "in_doubt" if each.begun else "failed", "dry_run": dry_run,
            }
            for each in recorded.unfinished
        ]  # fmt: skip
        output.records(rows, given.output)
        return
    _say(recorded, "would be" if dry_run else "is")
    if dry_run:
        output.say("Dry run: nothing was changed.", "bold")
        return
    output.say(
        "From now on an effect outside the database that the ledger does not know is in doubt when a task asks for it: verify "
        "is asked, or a person."
    )
    output.say(
        'When the ledger was compared with the receivers: airflow-guard failover --close --reason "…"', "bold"
    )


def _say(recorded: Recorded, verb: str) -> None:
    begun = [each for each in recorded.unfinished if each.begun]
    for each in begun[:_NAMED]:
        output.say(f"{each.key_text} {verb} in doubt")
    if len(begun) > _NAMED:
        output.say(f"and {len(begun) - _NAMED:,} more (airflow-guard show --state in_doubt)")
    others = len(recorded.unfinished) - len(begun)
    output.say(
        f"{len(begun):,} effects had begun, {others:,} claims had not begun theirs and are taken back."
    )


def _list(found: list[OpenFailOver], given: argparse.Namespace) -> None:
    if given.output != "table":
        rows = [
            {
                "id": each.id, "lost_since": each.lost_since.isoformat(), "recorded_at": each.recorded_at.isoformat(),
                "actor": each.actor, "reason": each.reason,
            }
            for each in found
        ]  # fmt: skip
        output.records(rows, given.output)
        return
    for each in found:
        output.say(_line(each))
    if not found:
        output.say("No fail-over is open.")


def _line(each: OpenFailOver) -> str:
    return (
        f"Commits since {each.lost_since:%Y-%m-%d %H:%M:%S} UTC may be lost (recorded {each.recorded_at:%Y-%m-%d %H:%M} UTC by "
        f"{each.actor}: {each.reason})"
    )
