"""``rename``: the keys of an operation get another name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_guard.acts import keys
from airflow_guard.acts.renaming import Renamed, rename
from airflow_guard.commands import output
from airflow_guard.commands.ledgers import open_ledger
from airflow_guard.core.decisions import check_words

if TYPE_CHECKING:
    import argparse


def run(given: argparse.Namespace) -> None:
    """Rename, or say what a rename would do."""
    actor, reason = check_words(keys.actor_of(given), given.reason or "")
    old_name, new_name = (
        (given.old_namespace, given.old_operation),
        (given.new_namespace, given.new_operation),
    )
    with open_ledger(given) as opened:
        done = rename(opened.ledger, old_name, new_name, actor=actor, reason=reason, dry_run=given.dry_run)
    _print(done, given)


def _print(done: Renamed, given: argparse.Namespace) -> None:
    states = {state.value: count for state, count in sorted(done.keys.items())}
    old, new = " / ".join(done.old), " / ".join(done.new)
    if given.output != "table":
        output.record(
            {"from": old, "to": new, "keys": done.count, "states": states, "dry_run": given.dry_run},
            given.output,
        )
        return
    counted = f" ({', '.join(f'{count:,} {state}' for state, count in states.items())})" if states else ""
    if given.dry_run:
        output.say(f"{old} → {new}: {done.count:,} keys{counted} would move. Dry run, nothing was changed.")
        return
    output.say(f"{old} → {new}: {done.count:,} keys{counted} moved")
    output.say(f"Tasks that still say {old} meet the same keys through an alias.")
