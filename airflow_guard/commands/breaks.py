"""``breaks``: what reconciliations have found, and a person who accepts or settles it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from airflow_guard.acts import keys
from airflow_guard.acts.arguments import UsageError
from airflow_guard.commands import output
from airflow_guard.commands.ledgers import open_ledger
from airflow_guard.core.checks import BreakState
from airflow_guard.core.decisions import check_words
from airflow_guard.core.errors import ResolutionError
from airflow_guard.core.texts import age, instant
from airflow_guard.reading.checks import UNSETTLED, BreakSelection, FoundBreaks, find_breaks
from airflow_guard.reconciling.check_report import group_text
from airflow_guard.store.breaks import Breaks

if TYPE_CHECKING:
    import argparse

    from airflow_guard.store.break_rows import StoredBreak
    from airflow_guard.store.database import LedgerDatabase

MANY = 100_000
_SHOWN = 20
_STYLES = {"open": "bold red", "explained": "yellow", "resolved": "green"}
_MEANING = {
    BreakState.EXPLAINED: "They are right as they are. They fail nothing as long as their values stay the same.",
    BreakState.RESOLVED: "They are settled. One that a later look still finds is open again.",
}
_LEAVES = {
    BreakState.EXPLAINED: frozenset({BreakState.OPEN}),
    BreakState.RESOLVED: UNSETTLED,
}


def run(given: argparse.Namespace) -> None:
    """List what the arguments select, or decide about it."""
    if given.limit < 1:
        raise UsageError("--limit must be at least 1")
    if given.explain and given.resolve:
        raise UsageError("say one of --explain, --resolve")
    if not (given.explain or given.resolve):
        if given.all or given.reason:
            raise UsageError("--all and --reason belong to --explain or --resolve")
        selection = _selection(given, given.limit)
        with open_ledger(given) as opened:
            _print_found(find_breaks(opened.ledger.database, selection), given.output)
        return
    target = BreakState.EXPLAINED if given.explain else BreakState.RESOLVED
    actor, reason = check_words(keys.actor_of(given), given.reason or "")
    if bool(given.id) == bool(given.all):
        raise UsageError("say which: --id N, or --all of what the other arguments select")
    if given.all and not given.dag:
        raise UsageError("--all needs a DAG, so that nobody decides about the breaks of others by mistake")
    with open_ledger(given) as opened:
        _decide(opened.ledger.database, given, target, actor, reason)


def _selection(given: argparse.Namespace, limit: int, *, any_state: bool = False) -> BreakSelection:
    states = frozenset(BreakState(state) for state in given.state)
    return BreakSelection(
        dag=given.dag,
        business_date=keys.date_of(given.date) if given.date else None,
        operation=given.operation,
        states=states or (frozenset(BreakState) if any_state else UNSETTLED),
        types=given.type,
        ids=given.id,
        limit=limit,
    )


def _decide(
    database: LedgerDatabase, given: argparse.Namespace, target: BreakState, actor: str, reason: str
) -> None:
    found = find_breaks(database, _selection(given, MANY, any_state=bool(given.id))).breaks
    fitting = [each for each in found if each.state in _LEAVES[target]]
    _refuse(given, found, fitting, target)
    if given.dry_run:
        _print_decided(fitting, given.output, target, "would become")
        return
    if not given.yes:
        _confirm(fitting, target)
    ids, breaks = [each.id for each in fitting], Breaks(database)
    decide = breaks.explain if target is BreakState.EXPLAINED else breaks.resolve
    decide(ids, actor=actor, reason=reason)
    _print_decided(fitting, given.output, target, "is now")
    if given.output == "table":
        output.say(f"{target.value} by {actor}: {reason}")


def _refuse(
    given: argparse.Namespace, found: list[StoredBreak], fitting: list[StoredBreak], target: BreakState
) -> None:
    missing = sorted(set(given.id) - {each.id for each in found})
    if missing:
        raise ResolutionError(f"There is no break {missing[0]} among those. Nothing was changed.")
    others = [each for each in found if each not in fitting]
    if given.id and others:
        each = others[0]
        by = f" by {each.actor}: {each.reason}" if each.actor else ""
        raise ResolutionError(f"Break {each.id} is {each.state.value} already{by}. Nothing was changed.")
    if not fitting:
        stand = " or ".join(sorted(state.value for state in _LEAVES[target]))
        raise ResolutionError(f"There is no such break that is {stand}. Nothing was changed.")


def _confirm(breaks: list[StoredBreak], target: BreakState) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ResolutionError("This is no terminal, so nobody can be asked. Give --yes. Nothing was changed.")
    output.records([_short(each) for each in breaks[:_SHOWN]], "table", styles=_STYLES)
    if len(breaks) > _SHOWN:
        output.say(f"… and {len(breaks) - _SHOWN:,} more")
    output.say(f"{target.value}: {_MEANING[target]}", "bold")
    what = "this break" if len(breaks) == 1 else f"these {len(breaks):,} breaks"
    if input(f"Record that for {what}? [yes/no] ").strip().lower() not in ("y", "yes"):
        raise ResolutionError("Not confirmed. Nothing was changed.")


def _print_found(found: FoundBreaks, form: str) -> None:
    if form in ("json", "yaml"):
        output.records([_full(each) for each in found.breaks], form)
    elif form == "plain":
        output.records([_short(each) for each in found.breaks], form)
    elif not found.breaks:
        output.say("The ledger has no such breaks.")
    else:
        output.records([_short(each) for each in found.breaks], form, styles=_STYLES)
    if found.more:
        output.note(f"and {found.more:,} more (--limit)")


def _print_decided(breaks: list[StoredBreak], form: str, target: BreakState, becomes: str) -> None:
    if form == "table":
        for each in breaks[:_SHOWN]:
            output.say(f"{each.id}: {_text(each)}: was {each.state.value}, {becomes} {target.value}")
        if len(breaks) > _SHOWN:
            output.say(f"… and {len(breaks) - _SHOWN:,} more")
        return
    rows = [
        {"id": each.id, "text": _text(each), "from": each.state.value, "to": target.value} for each in breaks
    ]
    output.records(rows, form)


def _text(each: StoredBreak) -> str:
    return f"{each.key_namespace} / {each.operation} / {each.business_date} / {each.found.describe()}"


def _short(each: StoredBreak) -> dict[str, Any]:
    found = each.found
    return {
        "state": each.state.value,
        "id": each.id,
        "date": each.business_date.isoformat(),
        "operation": each.operation,
        "type": found.break_type,
        "document": found.name if found.name is not None else group_text(found.group),
        "field": found.field,
        "source": found.source_value,
        "target": found.target_value,
        "variance": found.variance,
        "age": age(each.age_s),
        "reason": each.reason,
    }


def _full(each: StoredBreak) -> dict[str, Any]:
    found = each.found
    return {
        "id": each.id,
        "state": each.state.value,
        "key_namespace": each.key_namespace,
        "operation": each.operation,
        "business_date": each.business_date.isoformat(),
        "cycle": each.cycle,
        "type": found.break_type,
        "group": dict(found.group),
        "document": found.document,
        "field": found.field,
        "source_value": found.source_value,
        "target_value": found.target_value,
        "variance": found.variance,
        "source_records": found.source_records,
        "target_records": found.target_records,
        "opened_in": each.opened_in,
        "first_seen_at": instant(each.first_seen_at),
        "last_seen_at": instant(each.last_seen_at),
        "closed_at": instant(each.closed_at),
        "actor": each.actor,
        "reason": each.reason,
    }
