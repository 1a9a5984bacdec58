"""``drop``: documents that were listed and are not done are not to be done any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_guard.acts import drops, keys
from airflow_guard.acts.arguments import UsageError
from airflow_guard.commands import output
from airflow_guard.commands.ledgers import open_ledger
from airflow_guard.core.decisions import check_words
from airflow_guard.core.errors import DocumentError
from airflow_guard.core.keys import normalise_document

if TYPE_CHECKING:
    import argparse


def _as_listed(document: str) -> str:
    """Return a document as the ledger has it; what could be no key is named as it was shown."""
    try:
        return normalise_document(document)
    except DocumentError:
        return document


def run(given: argparse.Namespace) -> None:
    """Drop all that the arguments name, or nothing."""
    if given.all and given.documents:
        raise UsageError("give documents, or --all")
    actor, reason = check_words(keys.actor_of(given), given.reason or "")
    place = drops.Place(given.dag, given.operation, keys.date_of(given.date), given.cycle or "")
    documents: list[str | None] | None
    documents = None if given.all else [_as_listed(each) for each in given.documents] or [None]
    with open_ledger(given) as opened:
        done = drops.drop(opened.ledger, place, documents, actor=actor, reason=reason, dry_run=given.dry_run)
    rows = [
        {
            "document": each.document if each.document is not None else "(whole run)",
            "was": each.before,
            "key": each.key_hash,
        }
        for each in done
    ]
    if given.output != "table":
        output.records(rows, given.output)
        return
    output.records(rows, given.output)
    would = "would be dropped (dry run, nothing was changed)" if given.dry_run else "dropped"
    output.say(f"{len(done):,} document{'' if len(done) == 1 else 's'} of {place.describe()} {would}")
