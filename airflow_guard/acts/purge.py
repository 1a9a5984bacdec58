"""Purge: what is done and old goes, and a horizon stays."""

from __future__ import annotations

import re
from dataclasses import asdict, astuple, dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from airflow_guard.acts import keys, shown
from airflow_guard.acts.act import Act, Plan
from airflow_guard.acts.arguments import ASKING, Argument, Command, UsageError
from airflow_guard.acts.concerned import dags_of
from airflow_guard.acts.purging import BATCH, Purge, Purged
from airflow_guard.core.dates import parse_business_date

if TYPE_CHECKING:
    import argparse

    from airflow_guard.acts.act import Asked, Opened, Words

_AGE = re.compile(r"(\d{1,5})\s*d")


@dataclass(frozen=True)
class Wanted:
    """Up to which date what goes; without a namespace and an operation all of them."""

    until: date
    namespace: str | None
    operation: str | None
    words: Words
    batch: int = BATCH

    def at(self, at: Opened) -> Purge:
        """Return it as what is to go of a ledger."""
        words = self.words
        return Purge(
            at.ledger, self.until, words.actor, words.reason, self.namespace, self.operation, self.batch
        )


class PurgeOld(Act[Wanted, "list[Purged]"]):
    """What is done and old goes, after a look at how much that is."""

    path, place = "purge", 70
    fields = ("namespace", "operation", "until", "reason")
    entry = ("Remove what is done and old", "Its dates can never be executed afterwards.")
    changed = "The ledger is not as it was shown. Nothing was removed."
    not_done = "Nothing was removed."
    asks = True
    command = Command(
        "purge",
        "Remove old keys that are done, and leave a horizon",
        "airflow_guard.acts.purge:PURGE",
        (
            Argument("dag", nargs="?", metavar="DAG", help="only this DAG (or key_namespace)"),
            Argument("operation", nargs="?", metavar="OPERATION", help="only this operation"),
            Argument("--until", metavar="DATE", help="the last business date that goes"),
            Argument("--older-than", metavar="DAYS", help="or by age, such as 730d"),
            Argument(
                "--batch", type=int, default=1000, metavar="N", help="rows in a transaction (default: 1000)"
            ),
            *ASKING,
        ),
        description="What is not done stays, and so do open breaks, keys that hold once per document, and the audit. "
        "Claims of the same operations for these dates are refused from then on.",
        epilog="example:\n"
        '  airflow-guard purge --older-than 730d --reason "two years, as the policy says" --dry-run',
    )

    def may(self, asked: Asked, at: Opened) -> None:
        """Refuse who may not edit all DAGs whose keys would go; without an operation that is every DAG."""
        namespace, operation = asked.text("namespace"), asked.text("operation")
        if not namespace or not operation:
            asked.person.must_edit_everywhere()
            return
        asked.person.must_edit_all_of(dags_of(at.ledger.database, [(namespace, operation)]) | {namespace})

    def form(self, asked: Asked, at: Opened) -> shown.FillIn:
        all_ = "Empty: all, for those who may edit every DAG."
        about = "What is not done stays. Nothing of these dates can be executed any more afterwards. It cannot be taken back."
        namespace = shown.Line(
            "namespace",
            "Key namespace",
            f"The id of the DAG, if its task says nothing else. {all_}",
            required=False,
        )
        return shown.FillIn(
            "Remove what is done and old",
            [shown.Text(about)],
            [
                namespace,
                shown.Line("operation", "Operation", all_, required=False),
                shown.Line("until", "Last business date that goes", type="date"),
            ],
        )

    def request(self, asked: Asked, at: Opened, words: Words) -> Wanted:
        until = parse_business_date(asked.text("until"), source="the form")
        return Wanted(until, asked.text("namespace") or None, asked.text("operation") or None, words)

    def plan(self, at: Opened, request: Wanted) -> Plan[list[Purged]]:
        """Return what would go; other counts make it stale, unless it was begun already."""
        purge = request.at(at)
        planned = purge.plan()
        nothing = "" if _found(planned) else _nothing(request)
        return Plan(planned, [astuple(each) for each in planned], sure=purge.was_begun(), nothing=nothing)

    def run(self, at: Opened, request: Wanted, *, dry_run: bool) -> list[Purged]:
        """Remove it, in batches; who does it once more goes on."""
        purge = request.at(at)
        return purge.plan() if dry_run else list(purge.run())

    def preview(self, request: Wanted, plan: Plan[list[Purged]]) -> shown.Preview:
        heads = (
            "Keys",
            "Task tries",
            "Checks",
            "Closed breaks",
            "Keys that stay, not done",
            "Keys that stay, once per document",
        )
        columns = [("Operation", "long"), *((head, "figure") for head in heads)]
        rows = [(" / ".join(each.name), *astuple(each)[1:]) for each in plan.what]
        note = f"Claims of these operations for {request.until} and before are refused from then on. It cannot be taken back."
        nothing = None if _found(plan.what) else shown.Text("There is nothing left to remove.", "empty")
        return shown.Preview(
            f"remove up to {request.until}",
            [shown.Table("What would go", columns, rows, first=len(rows)), shown.Text(note, "note")],
            button="Remove it",
            nothing=nothing,
        )

    def done(self, request: Wanted, what: list[Purged]) -> shown.Done:
        text = (
            f"What was done and old is gone, up to {request.until}. Claims of these operations for {request.until} and before "
            "are refused."
        )
        return shown.Done("Removed", text, links=[shown.Link("The overview", "")])

    # -- The command -----------------------------------------------------------------------------------------

    def given(self, given: argparse.Namespace, at: Opened, words: Words) -> Wanted:
        return Wanted(_until(given), given.dag, given.operation, words, given.batch)

    def check(self, given: argparse.Namespace) -> PurgeOld:
        _until(given)
        return self

    def question(self, request: Wanted, plan: Plan[list[Purged]]) -> shown.Question:
        until = shown.Styled(
            f"Claims of these operations for {request.until} and before are refused from then on."
        )
        return shown.Question([*(_line(each, "would go") for each in plan.what), until], "Remove that?")

    def said(self, request: Wanted, what: list[Purged], *, dry_run: bool) -> shown.Said:
        rows = []
        for each in what:
            names = {"key_namespace": each.name[0], "operation": each.name[1]}
            counts = {name: count for name, count in asdict(each).items() if name != "name"}
            rows.append({**names, "until": request.until.isoformat(), **counts, "dry_run": dry_run})
        if not _found(what):
            last: str | shown.Styled = _nothing(request)
        elif dry_run:
            last = shown.Styled("Dry run: nothing was removed.")
        else:
            last = f"Claims of these operations for {request.until} and before are refused from now on."
        return shown.Said(
            rows, [*(_line(each, "would go" if dry_run else "are gone") for each in what), last]
        )


def _found(planned: list[Purged]) -> bool:
    return any(each.found for each in planned)


def _nothing(request: Wanted) -> str:
    return f"There is nothing to remove up to {request.until}."


def _until(given: argparse.Namespace) -> date:
    """Return the last business date that goes."""
    if bool(given.until) == bool(given.older_than):
        raise UsageError("give --until DATE or --older-than DAYS (730d)")
    if given.batch < 1:
        raise UsageError("--batch must be at least 1")
    if given.until:
        return keys.date_of(given.until)
    found = _AGE.fullmatch(given.older_than.strip().lower())
    if found is None:
        raise UsageError(f"--older-than {given.older_than}: days, such as 730d")
    return datetime.now(UTC).date() - timedelta(days=int(found[1]) + 1)


def _line(each: Purged, what: str) -> str:
    line = (
        f"{' / '.join(each.name)}: {each.keys:,} keys, {each.task_runs:,} task tries, {each.checks:,} checks and "
        f"{each.breaks:,} closed breaks {what}"
    )
    if each.kept:
        line += f"; {each.kept:,} keys stay, since they are not done or may be rerun"
    if each.once_per_document:
        line += (
            f"; {each.once_per_document:,} keys stay, since they hold once per document, whatever the date"
        )
    return line


PURGE = PurgeOld()
ACTS = (PURGE,)
