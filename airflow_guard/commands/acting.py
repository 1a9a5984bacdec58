"""The one runner of all commands that change something: the arguments, a dry run, a question, the act, what is printed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from airflow_guard.acts import keys, shown
from airflow_guard.acts.act import Words
from airflow_guard.commands import output
from airflow_guard.commands.ledgers import open_ledger
from airflow_guard.core.decisions import check_words
from airflow_guard.core.errors import ResolutionError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from airflow_guard.acts.act import Act, Plan


def run(act: Act[Any, Any], given: argparse.Namespace) -> None:
    """Do what the arguments ask for, all or nothing; or say what it would come to.

    Refused first, then asked: nobody is asked about what cannot be done.

    :raises UsageError: the arguments do not say what.
    :raises GuardError: it is refused, or nobody confirmed it.
    """
    act = act.check(given)
    if act.lists(given):
        with open_ledger(given) as at:
            _show(act.listed(given, at), given.output)
        return
    words = Words(*check_words(keys.actor_of(given), given.reason or ""))
    with open_ledger(given) as at:
        request = act.given(given, at, words)
        if given.dry_run or act.asks:
            plan = act.plan(at, request)
            if given.dry_run or plan.nothing:
                _show(act.said(request, plan.what, dry_run=True), given.output)
                return
            if not given.yes:
                _confirm(act, request, plan)
        what = act.run(at, request, dry_run=False)
        _show(act.said(request, what, dry_run=False), given.output)


def _confirm(act: Act[Any, Any], request: Any, plan: Plan[Any]) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ResolutionError(f"This is no terminal, so nobody can be asked. Give --yes. {act.not_done}")
    asked = act.question(request, plan)
    _say(asked.lines)
    if input(f"{asked.question} [yes/no] ").strip().lower() not in ("y", "yes"):
        raise ResolutionError(f"Not confirmed. {act.not_done}")


def _show(said: shown.Said, form: str) -> None:
    if form == "table":
        _say(said.lines)
    elif form == "plain" and said.plain is not None:
        output.records(said.plain, form)
    elif isinstance(said.data, dict):
        output.record(said.data, form)
    else:
        output.records(said.data, form)
    if said.note:
        output.note(said.note)


def _say(lines: Iterable[Any]) -> None:
    for line in lines:
        if isinstance(line, shown.Styled):
            output.say(line.text, line.style)
        elif isinstance(line, shown.Rows):
            output.records(line.rows, "table", styles=line.styles)
        elif isinstance(line, shown.Facts):
            output.block(line.pairs)
        elif isinstance(line, shown.Command):
            output.command_lines({line.why: line.line})
        else:
            output.say(line)
