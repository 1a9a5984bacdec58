"""``show``: keys of a DAG, date, operation or state; or the whole life of one key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_guard.acts import keys
from airflow_guard.acts.arguments import UsageError
from airflow_guard.commands import output
from airflow_guard.commands.ledgers import open_ledger
from airflow_guard.core.decisions import Situation, explanation
from airflow_guard.core.texts import instant, meant
from airflow_guard.reading import listing
from airflow_guard.reading.monitor import Monitor
from airflow_guard.reading.spaces import horizons, known_dags, known_names

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from datetime import date

    import sqlalchemy as sa

    from airflow_guard.acts.act import Opened
    from airflow_guard.reading.calendar_records import OperationOfDay
    from airflow_guard.reading.key_records import AuditEntry, KeyLife, Renaming
    from airflow_guard.reading.listing import Selection


_LIMIT_S = 60.0


def run(given: argparse.Namespace) -> None:
    """Show what the arguments select."""
    if given.key:
        if given.dag or given.operation or given.document or given.state:
            raise UsageError(
                "--key names keys by itself: leave out DAG, DATE, --operation, --document and --state"
            )
        with open_ledger(given) as opened:
            ledger = opened.ledger
            views = [keys.one_key(ledger, key) for key in given.key]
            lives = [
                Monitor(ledger, limit_s=_LIMIT_S).key(view.key_date, view.key_hash, None) for view in views
            ]
            _lives([life for life in lives if life is not None], given, opened)
        return
    if given.limit < 1:
        raise UsageError("--limit must be at least 1")
    if given.figures:
        _figures(given)
        return
    selection = _selection(given)
    with open_ledger(given) as opened:
        _list(opened, selection, given.output)


def _figures(given: argparse.Namespace) -> None:
    if not (given.dag and given.date) or given.document or given.state:
        raise UsageError("--figures are those of a DAG and DATE: leave out --document and --state")
    day = keys.date_of(given.date)
    with open_ledger(given) as opened:
        found = _of_day(opened, given.dag, day, given.operation)
    if found or given.output != "table":
        output.records([each.record() for each in found], given.output)
    else:
        output.say("The ledger has nothing of them.")


def _of_day(opened: Opened, dag: str, day: date, operation: str | None) -> Sequence[OperationOfDay]:
    """Return the figures of a DAG and date, or of a key namespace that no DAG is called by."""
    monitor = Monitor(opened.ledger, limit_s=_LIMIT_S)
    found = monitor.figures(dag, day, day, None, operation=operation)
    if found:
        return found
    return [
        each
        for each in monitor.figures(None, day, day, None, operation=operation)
        if each.key_namespace == dag
    ]


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
        output.say(f"The ledger has no such keys.{_hint(opened, selection)}")
        _sum_up(opened, selection, found)
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


def _hint(opened: Opened, selection: Selection) -> str:
    """Return what may have been meant, if the DAG or the operation is not known at all."""
    tables = opened.ledger.database.tables

    def read(connection: sa.Connection) -> str:
        if selection.dag is not None and selection.business_date is not None:
            purged = horizons(connection, tables, selection.dag, selection.business_date)
            if purged:
                return f" They are purged: {'; '.join(each.describe() for each in purged)}."
        if selection.dag is not None:
            dags = known_dags(connection, tables)
            if selection.dag not in dags:
                return f" It knows no DAG {selection.dag}.{meant(selection.dag, dags, all_if_none=True)}"
        if selection.operation is not None:
            operations = {operation for _, operation in known_names(connection, tables)}
            if selection.operation not in operations:
                return f" It knows no operation {selection.operation}.{meant(selection.operation, operations, all_if_none=True)}"
        return ""

    return opened.ledger.database.read(read)


def _sum_up(opened: Opened, selection: Selection, found: listing.Listing) -> None:
    narrow = selection.documents or selection.situations
    if selection.business_date is not None and found.keys:
        counted = listing.counts(opened.ledger, selection)
        output.say(", ".join(f"{count:,} {situation}" for situation, count in counted.items()))
    if selection.business_date is not None and selection.dag is not None and not narrow:
        for each in _of_day(opened, selection.dag, selection.business_date, selection.operation):
            output.say(each.describe())
    if any(keys.commands_for(view, None) for view in found.keys):
        ledger = f" --ledger {opened.name}" if opened.name else ""
        output.say(f"To see how one is settled: airflow-guard show{ledger} --key KEY")


def _lives(lives: list[KeyLife], given: argparse.Namespace, opened: Opened) -> None:
    if given.output in ("json", "yaml"):
        output.records([_life(life, opened.name) for life in lives], given.output)
        return
    for number, life in enumerate(lives):
        if number:
            output.say()
        _tell(life, opened.name)


def _life(life: KeyLife, ledger: str | None) -> dict[str, Any]:
    return keys.full(life.key) | {
        "batch_documents": life.batch_documents,
        "renamed": [
            {"from": " / ".join(alias.old), "to": " / ".join(alias.new), "at": str(alias.at),
             "actor": alias.actor, "reason": alias.reason}
            for alias in life.renames
        ],
        "events": [_event(event) for event in life.events],
        "explanation": explanation(life.key.situation),
        "commands": list(keys.commands_for(life.key, ledger).values()),
    }  # fmt: skip


def _event(event: AuditEntry) -> dict[str, Any]:
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


def _tell(life: KeyLife, ledger: str | None) -> None:
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


def _history(life: KeyLife) -> None:
    if not (life.events or life.renames):
        return
    output.say()
    output.say("What happened to it", "bold")
    output.block(
        [
            (
                str(instant(alias.at)),
                f"renamed {_from_to(alias)} by {alias.actor}: {alias.reason}",
            )
            for alias in life.renames
        ]
        + [(str(instant(event.at)), _sentence(event)) for event in life.events]
    )


def _from_to(alias: Renaming) -> str:
    return f"{' / '.join(alias.old)} → {' / '.join(alias.new)}"


def _sentence(event: AuditEntry) -> str:
    change = f", {event.from_state} → {event.to_state}" if event.from_state and event.to_state else ""
    attempt = f", attempt {event.attempt}" if event.attempt else ""
    return f"{event.kind.replace('_', ' ')}{change}{attempt}, by {event.actor}: {event.reason}"
