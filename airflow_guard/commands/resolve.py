"""``resolve``: a person says what became of keys, after seeing what is known of them."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from airflow_guard.acts import keys
from airflow_guard.acts.arguments import UsageError
from airflow_guard.commands import output
from airflow_guard.commands.ledgers import open_ledger
from airflow_guard.core.commands import show_day_command
from airflow_guard.core.decisions import CONSEQUENCES, DECISIONS_OF, Decision, Situation, check_words
from airflow_guard.core.errors import ResolutionError, StaleResolution
from airflow_guard.core.states import State
from airflow_guard.reading import listing
from airflow_guard.store import resolution

if TYPE_CHECKING:
    import argparse

    from airflow_guard.reading.key_records import KeyRow
    from airflow_guard.store.ledger import Ledger
    from airflow_guard.store.resolution import Settled

MANY = 100_000
_SHOWN = 20


def run(given: argparse.Namespace) -> None:
    """Settle what the arguments select, all or none."""
    decision = _decision(given)
    actor, reason = check_words(keys.actor_of(given), given.reason or "")
    with open_ledger(given) as opened:
        _resolve(opened.ledger, given, decision, actor, reason)


def _resolve(ledger: Ledger, given: argparse.Namespace, decision: Decision, actor: str, reason: str) -> None:
    views = _selected(ledger, given, decision)
    _check_attempt(views, given)
    judged = [resolution.Judged.of(view.key_date, view.row.key_hash, view.version) for view in views]
    settle = partial(
        resolution.resolve_many, ledger, judged, decision, actor=actor, reason=reason, strict=True,
        ledger_name=given.ledger,
    )  # fmt: skip
    # Refused first, then asked: nobody is asked about what cannot be done.
    planned = settle(dry_run=True).settled
    if given.dry_run:
        _print_settled(planned, decision, given.output, "would become")
        return
    if not given.yes:
        _confirm(views, planned, decision)
    _print_settled(settle().settled, decision, given.output, "is now")
    if given.output == "table":
        output.say(f"{CONSEQUENCES[decision].words} by {actor}: {reason}")


def _decision(given: argparse.Namespace) -> Decision:
    chosen = [decision for decision in Decision if getattr(given, decision.value)]
    if len(chosen) != 1:
        options = ", ".join(decision.option for decision in Decision)
        raise UsageError(f"say one of {options}")
    return chosen[0]


def _selected(ledger: Ledger, given: argparse.Namespace, decision: Decision) -> list[KeyRow]:
    if given.key:
        if given.dag or given.all:
            raise UsageError("give either --key, or DAG DATE OPERATION DOCUMENT…")
        return list(
            {view.row.key_hash: view for view in (keys.one_key(ledger, key) for key in given.key)}.values()
        )
    if not (given.dag and given.date and given.operation):
        raise UsageError("give --key HASH, or DAG DATE OPERATION and documents")
    if given.all and given.documents:
        raise UsageError("give documents, or --all")
    fitting = frozenset(s for s in Situation if decision in DECISIONS_OF.get(s, ()))
    if decision is Decision.CONTENT_STANDS:
        fitting = frozenset({Situation.DONE, Situation.REJECTED})
    documents: list[str | None] = list(keys.documents_of(given.documents)) or [None]
    found = listing.keys(
        ledger,
        listing.Selection(
            dag=given.dag,
            business_date=keys.date_of(given.date),
            operation=given.operation,
            documents=() if given.all else documents,
            situations=fitting if given.all else frozenset(),
            limit=MANY,
        ),
    ).keys
    if not given.all:
        _check_found(found, documents, given)
        return found
    found = [view for view in found if decision in view.decisions]
    if not found:
        stand = " or ".join(sorted(fitting))
        if decision is Decision.CONTENT_STANDS:
            stand += " and was listed with other content since"
        raise ResolutionError(f"No key of {given.dag} / {given.operation} / {given.date} is {stand}.")
    return found


def _check_found(found: list[KeyRow], documents: list[str | None], given: argparse.Namespace) -> None:
    where = f"{given.dag} / {given.operation} / {given.date}"
    have = [view.row.document for view in found]
    missing = [document for document in documents if document not in have]
    if missing:
        named = ", ".join("(whole run)" if each is None else each for each in missing)
        raise ResolutionError(
            f"The ledger has no key {where} / {named}. To see what it has: "
            f"{show_day_command(given.dag, given.date, ledger=given.ledger)}"
        )
    if len(have) > len(set(have)):
        several = "; ".join(f"{view.text}: --key {view.row.key_hash}" for view in found)
        raise ResolutionError(
            f"Several keys fit (cycles, or once per document). Choose one by its key: {several}"
        )


def _check_attempt(views: list[KeyRow], given: argparse.Namespace) -> None:
    for view in views:
        row = view.row
        if given.attempt is not None and row.attempt != given.attempt:
            raise StaleResolution(
                f"{view.text}: its last attempt is {row.attempt}, not {given.attempt}. Nothing was changed."
            )
        if given.owner_token is not None and row.owner_token != given.owner_token:
            raise StaleResolution(
                f"{view.text}: its last attempt has owner token {row.owner_token}, not {given.owner_token}. "
                "Nothing was changed."
            )


def _confirm(views: list[KeyRow], planned: list[Settled], decision: Decision) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ResolutionError("This is no terminal, so nobody can be asked. Give --yes. Nothing was changed.")
    batches = {settled.batch_id for settled in planned if settled.batch_id}
    for view in views[:_SHOWN]:
        output.say(view.text, "bold")
        facts = keys.facts(view, sum(settled.batch_id == view.row.batch_id for settled in planned))
        output.block(facts.items())
        output.say()
    if len(views) > _SHOWN:
        output.say(f"… and {len(views) - _SHOWN:,} more")
    along = sum(not settled.asked for settled in planned)
    if along:
        output.say(
            f"{along:,} more documents of {'the same batch' if len(batches) == 1 else 'these batches'} go "
            "with it."
        )
    output.say(
        f"{decision.option.removeprefix('--').replace('-', ' ')}: {CONSEQUENCES[decision].meaning}", "bold"
    )
    what = "this key" if len(planned) == 1 else f"these {len(planned):,} keys"
    answer = input(f"Record that for {what}? [yes/no] ")
    if answer.strip().lower() not in ("y", "yes"):
        raise ResolutionError("Not confirmed. Nothing was changed.")


def _print_settled(settled: list[Settled], decision: Decision, form: str, becomes: str) -> None:
    said = CONSEQUENCES[decision].words
    if form == "table":
        for each in settled[:_SHOWN]:
            along = "" if each.asked else " (same batch)"
            output.say(f"{each.key_text}: was {each.before.value}, {becomes} {_after(each, said)}{along}")
        if len(settled) > _SHOWN:
            output.say(f"… and {len(settled) - _SHOWN:,} more")
        return
    rows = [
        {"key": each.key_hash, "text": each.key_text, "attempt": each.attempt, "from": each.before.value,
         "to": each.after.value, "batch_id": each.batch_id, "asked": each.asked}
        for each in settled
    ]  # fmt: skip
    output.records(rows, form)


def _after(settled: Settled, said: str) -> str:
    if settled.before is settled.after:
        return f"{settled.after.value}, {said}"
    return (
        f"{settled.after.value}, so the next run executes it"
        if settled.after is State.FAILED
        else settled.after.value
    )
