"""Drop documents that were listed and are not done: they are not to be done any more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_guard.acts import drops, keys, shown
from airflow_guard.acts.act import Act, Plan
from airflow_guard.acts.arguments import CHANGING, CYCLE, Argument, Command, UsageError
from airflow_guard.acts.concerned import dags_of_namespace
from airflow_guard.core.errors import BusinessDateError, DocumentError, ResolutionError
from airflow_guard.core.keys import normalise_document
from airflow_guard.reading.scope import NotThere

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from airflow_guard.acts.act import Asked, Opened, Words
    from airflow_guard.acts.drops import Dropped, Place

_EVERY, _NAMED, _WHOLE = "all", "named", "whole"


@dataclass(frozen=True)
class Wanted:
    """What is to be dropped; ``documents`` as :func:`airflow_guard.acts.drops.drop` has them."""

    place: Place
    documents: Sequence[str | None] | None
    words: Words


class Drop(Act[Wanted, "list[Dropped]"]):
    """Documents are dropped after a look at where each stands."""

    path, place = "drop", 10
    fields = ("namespace", "operation", "date", "cycle", "which", "documents", "reason")
    entry = ("Drop documents", "What was listed, is not done, and is not to be done any more.")
    command = Command(
        "drop",
        "Say that documents that were listed and are not done are not to be done any more",
        "airflow_guard.acts.drop:DROP",
        (
            Argument("dag", metavar="DAG", help="a DAG (or key_namespace)"),
            Argument("date", metavar="DATE", help="its business date, YYYY-MM-DD"),
            Argument("operation", metavar="OPERATION", help="the operation (by default the task_id)"),
            Argument("documents", nargs="*", metavar="DOCUMENT", help="documents; none: the run as a whole"),
            Argument(
                "--all", action="store_true", help="all that were listed, are not done and can be dropped"
            ),
            CYCLE,
            *CHANGING,
        ),
        description="For what a later try of the run does not list any more, and what failed and is not wanted any more. "
        "What is in doubt has to be settled first. All of them are dropped, or none. Listed again they are held back, until "
        "resolve --send-again.",
        epilog="examples:\n"
        '  airflow-guard drop payments 2025-03-31 send PAY-17 --reason "withdrawn by the customer, ticket 77"\n'
        '  airflow-guard drop payments 2025-03-31 send --all --reason "the file was wrong" --dry-run',
    )

    def may(self, asked: Asked, at: Opened) -> None:
        """Refuse who may not edit the DAGs of the key namespace."""
        namespace = asked.text("namespace")
        if not namespace:
            raise NotThere
        asked.person.must_edit_all_of(dags_of_namespace(at.ledger.database, namespace) | {namespace})

    def form(self, asked: Asked, at: Opened) -> shown.FillIn:
        which = shown.Options(
            "which",
            "Which",
            (
                shown.Option(
                    _NAMED, "these documents, one in each line", lines="documents", lines_label="Documents"
                ),
                shown.Option(_EVERY, "all that were listed, are not done and can be dropped"),
                shown.Option(_WHOLE, "the run as a whole"),
            ),
            default=_NAMED,
        )
        return shown.FillIn(
            "Drop documents",
            [
                shown.Text(
                    "Documents that were listed and are not done, and that are not to be done any more: a task whose later "
                    "try does not list them fails until then. What is in doubt has to be settled first."
                )
            ],
            [
                shown.Line("namespace", "DAG, or key namespace", dags=True),
                shown.Line("operation", "Operation"),
                shown.Line("date", "Business date"),
                shown.Line("cycle", "Cycle", required=False),
                which,
            ],
            why="Why are they not to be done?",
            dags=asked.person.dags,
        )

    def request(self, asked: Asked, at: Opened, words: Words) -> Wanted:
        try:
            day = keys.date_of(asked.text("date"))
        except BusinessDateError:
            raise ResolutionError("Say which business date, as YYYY-MM-DD.") from None
        if not asked.text("operation"):
            raise ResolutionError("Say which operation.")
        place = drops.Place(asked.text("namespace"), asked.text("operation"), day, asked.text("cycle"))
        return Wanted(place, self._documents(asked), words)

    def _documents(self, asked: Asked) -> list[str | None] | None:
        which = asked.text("which")
        if which == _EVERY:
            return None
        if which == _WHOLE:
            return [None]
        named = [line.strip() for line in asked.text("documents").splitlines() if line.strip()]
        if which != _NAMED or not named:
            raise ResolutionError("Name the documents, one in each line, or choose all.")
        return [_as_listed(each) for each in dict.fromkeys(named)]

    def plan(self, at: Opened, request: Wanted) -> Plan[list[Dropped]]:
        """Return what would be dropped; another place of one that is not dropped yet makes it stale."""
        found = self.run(at, request, dry_run=True)
        seen = [(each.key_hash, each.before) for each in found if not each.repeated]
        return Plan(found, seen, sure=not seen)

    def run(self, at: Opened, request: Wanted, *, dry_run: bool) -> list[Dropped]:
        """Drop all of them, or none."""
        words = request.words
        return drops.drop(
            at.ledger,
            request.place,
            request.documents,
            actor=words.actor,
            reason=words.reason,
            dry_run=dry_run,
        )

    def preview(self, request: Wanted, plan: Plan[list[Dropped]]) -> shown.Preview:
        count = _counted(plan.what)
        rows = [("whole run" if each.document is None else each.document, each.before) for each in plan.what]
        return shown.Preview(
            f"drop {len(rows):,} documents",
            [
                shown.Text(
                    f"{request.place.describe()}: {count} would be dropped. They were not done, and are not to be. Listed "
                    "again they are held back."
                ),
                shown.Table(
                    "Documents",
                    (("Document", "row"), ("Where it stands", "")),
                    rows,
                    more="The first 200 of {all}.",
                ),
            ],
            button="Drop them",
            cancel=shown.Link("Cancel", "forms/drop"),
        )

    def done(self, request: Wanted, what: list[Dropped]) -> shown.Done:
        place = request.place
        dates = {"from": place.business_date, "to": place.business_date}
        where = {"namespace": place.key_namespace, "operation": place.operation, **dates}
        text = f"{_counted(what)} of {place.describe()} dropped."
        return shown.Done("Dropped", text, links=[shown.Link("The keys of this date", "keys", where)])

    def given(self, given: argparse.Namespace, at: Opened, words: Words) -> Wanted:
        place = drops.Place(given.dag, given.operation, keys.date_of(given.date), given.cycle or "")
        named: list[str | None] = [_as_listed(each) for each in given.documents]
        return Wanted(place, None if given.all else named or [None], words)

    def check(self, given: argparse.Namespace) -> Drop:
        if given.all and given.documents:
            raise UsageError("give documents, or --all")
        return self

    def said(self, request: Wanted, what: list[Dropped], *, dry_run: bool) -> shown.Said:
        rows = [
            {
                "document": "(whole run)" if each.document is None else each.document,
                "was": each.before,
                "key": each.key_hash,
            }
            for each in what
        ]
        would = "would be dropped (dry run, nothing was changed)" if dry_run else "dropped"
        return shown.Said(rows, [shown.Rows(rows), f"{_counted(what)} of {request.place.describe()} {would}"])


def _as_listed(document: str) -> str:
    """Return a document as the ledger has it; what could be no key is named as it was shown."""
    try:
        return normalise_document(document)
    except DocumentError:
        return document


def _counted(what: Sequence[Dropped]) -> str:
    return f"{len(what):,} document{'' if len(what) == 1 else 's'}"


DROP = Drop()
ACTS = (DROP,)
