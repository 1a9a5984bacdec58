"""``show``: keys of a DAG, date, operation or state; or the whole life of one key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_guard.cli import keys, output
from airflow_guard.cli.definitions import UsageError
from airflow_guard.cli.ledgers import open_ledger
from airflow_guard.core.decisions import Situation, explanation
from airflow_guard.store import listing

if TYPE_CHECKING:
    import argparse

    from airflow_guard.cli.ledgers import Opened
    from airflow_guard.store.aliases import Alias
    from airflow_guard.store.listing import EventView, Life, Selection


def run(given: argparse.Namespace) -> None:
    """Show what the arguments select."""
    if given.key:
        if given.dag or given.operation or given.document or given.state:
            raise UsageError(
                "--key names keys by itself: leave out DAG, DATE, --operation, --document and --state"
            )
        with open_ledger(given) as opened:
            ledger = opened.ledger
            _lives([listing.life(ledger, keys.one_key(ledger, key)) for key in given.key], given, opened)
        return
    if given.limit < 1:
        raise UsageError("--limit must be at least 1")
    selection = _selection(given)
    with open_ledger(given) as opened:
        _list(opened, selection, given.output)


def _selection(given: argparse.Namespace) -> Selection:
    situations: frozenset[Situation] = frozenset()
    return listing.Selection(
        dag=given.dag,
        business_date=keys.date_of(given.date) if given.date else None,
        operation=given.operation,
        documents=keys.documents_of(given.document),
        situations=situations.union(*(keys.SITUATIONS[state] for state in given.state)),
        limit=given.limit,
    )


def _list(opened: Opened, selection: Selection, form: str) -> None:
    found = listing.keys(opened.ledger, selection)
    if form in ("json", "yaml"):
        output.records([keys.full(view) for view in found.keys], form)
    elif form == "plain":
        output.records([keys.short(view) | {"key": view.row.key_hash} for view in found.keys], form)
    elif not found.keys:
        output.say("The ledger has no such keys.")
    else:
        rows = [keys.short(view) for view in found.keys]
        shared = [name for name in ("operation", "date") if len({row[name] for row in rows}) == 1]
        if shared:
            output.say(" / ".join(rows[0][name] for name in shared), "bold")
        rows = [{name: value for name, value in row.items() if name not in shared} for row in rows]
        output.records(rows, form, styles=keys.STYLES)
        output.say()
        _sum_up(opened, selection, found)
    if found.more:
        output.note(
            f"There are more: only the first {selection.limit} are shown. Narrow it down, or raise --limit."
        )


def _sum_up(opened: Opened, selection: Selection, found: listing.Listing) -> None:
    if selection.business_date is not None:
        counted = listing.counts(opened.ledger, selection)
        output.say(", ".join(f"{count:,} {situation}" for situation, count in counted.items()))
    if any(keys.commands_for(view, None) for view in found.keys):
        ledger = f" --ledger {opened.name}" if opened.name else ""
        output.say(f"To see how one is settled: airflow-guard show{ledger} --key KEY")


def _lives(lives: list[Life], given: argparse.Namespace, opened: Opened) -> None:
    if given.output in ("json", "yaml"):
        output.records([_life(life, opened.name) for life in lives], given.output)
        return
    for number, life in enumerate(lives):
        if number:
            output.say()
        _tell(life, opened.name)


def _life(life: Life, ledger: str | None) -> dict[str, Any]:
    return keys.full(life.key) | {
        "batch_documents": life.batch_documents,
        "renamed": [
            {"from": " / ".join(alias.old), "to": " / ".join(alias.new), "at": str(alias.created_at),
             "actor": alias.actor, "reason": alias.reason}
            for alias in life.renames
        ],
        "events": [_event(event) for event in life.events],
        "explanation": explanation(life.key.situation),
        "commands": list(keys.commands_for(life.key, ledger).values()),
    }  # fmt: skip


def _event(event: EventView) -> dict[str, Any]:
    return {
        "at": None if event.at is None else event.at.isoformat(),
        "kind": event.kind,
        "from": event.from_state,
        "to": event.to_state,
        "attempt": event.attempt,
        "actor": event.actor,
        "reason": event.reason,
        "key": event.key_text,
        "by": event.by.describe() if event.by else None,
    }


def _tell(life: Life, ledger: str | None) -> None:
    view = life.key
    output.say(view.text, "bold")
    output.say(f"{view.situation}. {explanation(view.situation)}", keys.STYLES[view.situation])
    output.say()
    output.block(keys.facts(view, life.batch_documents).items())
    _history(life)
    commands = keys.commands_for(view, ledger)
    if commands:
        output.say()
        output.say("To settle it", "bold")
        output.command_lines(commands)


def _history(life: Life) -> None:
    if not (life.events or life.renames):
        return
    output.say()
    output.say("What happened to it", "bold")
    output.block(
        [
            (
                str(output.instant(alias.created_at)),
                f"renamed {_from_to(alias)} by {alias.actor}: {alias.reason}",
            )
            for alias in life.renames
        ]
        + [(str(output.instant(event.at)), _sentence(event)) for event in life.events]
    )


def _from_to(alias: Alias) -> str:
    return f"{' / '.join(alias.old)} → {' / '.join(alias.new)}"


def _sentence(event: EventView) -> str:
    change = f", {event.from_state} → {event.to_state}" if event.from_state and event.to_state else ""
    attempt = f", attempt {event.attempt}" if event.attempt else ""
    return f"{event.kind.replace('_', ' ')}{change}{attempt}, by {event.actor}: {event.reason}"
