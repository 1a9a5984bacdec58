"""Say what became of several keys at once, chosen in a list or by the command ``resolve``: all of them, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_guard.acts import keys, shown
from airflow_guard.acts.arguments import ASKING, KEY, Argument, Command, UsageError
from airflow_guard.acts.resolve import Resolution, Wanted, named, options, previewed
from airflow_guard.core.decisions import CONSEQUENCES, Decision
from airflow_guard.core.errors import StaleResolution
from airflow_guard.core.states import State
from airflow_guard.store.resolution import Judged

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from airflow_guard.acts.act import Asked, Opened, Plan, Words
    from airflow_guard.reading.key_records import KeyRow
    from airflow_guard.store.resolution import Settled

_SHOWN = 20


class ResolveSome(Resolution):
    """Keys that were chosen in a list: one answer for all of them, or none is changed."""

    path, place, entry_path = "settle", 0, "open"
    fields = ("pick", "decision", "reason")
    entry = (
        "Settle keys",
        "Say what became of what is in doubt, was rejected, or was not followed up. Choose the keys in the list.",
    )
    asks = True
    command = Command(
        "resolve",
        "Say what became of a key that the ledger holds back",
        "airflow_guard.acts.settle:SETTLE",
        (
            Argument("dag", nargs="?", metavar="DAG", help="instead of --key: a DAG (or key_namespace) …"),
            Argument("date", nargs="?", metavar="DATE", help="… its business date …"),
            Argument("operation", nargs="?", metavar="OPERATION", help="… the operation …"),
            Argument(
                "documents", nargs="*", metavar="DOCUMENT", help="… and documents; none: the run as a whole"
            ),
            Argument(
                "--all", action="store_true", help="all documents of that date and operation that stand so"
            ),
            KEY,
            Argument(
                "--happened", action="store_true", help="in doubt: the effect happened; it is never repeated"
            ),
            Argument(
                "--did-not-happen", action="store_true", help="in doubt: it did not; the next run executes it"
            ),
            Argument(
                "--waive", action="store_true", help="rejected: settled another way, counts as completed"
            ),
            Argument(
                "--send-again",
                action="store_true",
                help="rejected or dropped: the next run executes it again",
            ),
            Argument("--drop", action="store_true", help="failed: it is not to be done any more"),
            Argument(
                "--followed-up",
                action="store_true",
                help="effect done, follow-up failed: that is finished too",
            ),
            Argument(
                "--content-stands",
                action="store_true",
                help="listed again with other content: what was done, or decided, stands for that content too",
            ),
            Argument("--attempt", type=int, metavar="N", help="only if this is still the last attempt"),
            Argument("--owner-token", metavar="TOKEN", help="only if this attempt is still the last one"),
            *ASKING,
        ),
        description="Records what a person found out. It is asked once more before, unless with --yes. If the "
        "key changes meanwhile, nothing is recorded. The documents of a batch had one effect and are settled "
        "together.",
        epilog="examples:\n"
        '  airflow-guard resolve --key 3f21ab --happened --reason "seen in the bank\'s statement 77"\n'
        '  airflow-guard resolve payments 2025-03-31 send PAY-17 --did-not-happen --reason "not in their file"',
    )

    def opens(self, asked: Asked, at: Opened) -> None:
        """Refuse who may not edit the DAGs of the keys."""
        asked.person.must_edit(key.dag_id for key in keys.picked(asked, at))

    may = opens

    def form(self, asked: Asked, at: Opened) -> shown.FillIn:
        found = keys.picked(asked, at)
        heads = (
            ("State", "tight"),
            ("Key", "long"),
            ("Idempotency key", "long"),
            ("What is known", "long prose"),
        )
        rows = [
            (
                shown.Badge(key.situation.value),
                keys.link(key),
                _receivers(key),
                keys.cut(key.row.error or "", 300),
            )
            for key in found
        ]
        decisions = [each for each in found[0].decisions if all(each in key.decisions for key in found)]
        nothing = shown.Text(
            "There is no answer that fits all of them: choose keys of one state.",
            "empty",
            shown.Link("What is to be settled", "open"),
        )
        return shown.FillIn(
            f"Settle {len(found)} keys",
            [
                shown.Text("One answer for all of them. If it is not true of one, none is changed."),
                shown.Table("Keys", heads, rows),
            ],
            [options("What became of them?", decisions)],
            why="How do you know?",
            heading=f"Settle {len(found)} {'key' if len(found) == 1 else 'keys'}",
            hidden={"pick": [f"{key.key_date}.{key.key_hash}.{key.version}" for key in found]},
            cancel=shown.Link("Cancel", "open"),
            nothing=None if decisions else nothing,
        )

    def request(self, asked: Asked, at: Opened, words: Words) -> Wanted:
        decision = Decision.of(asked.text("decision"))
        judged = [keys.judged(pick) for pick in asked.all("pick")]
        return Wanted(keys.picked(asked, at), judged, decision, words)

    def stands(self, asked: Asked, at: Opened) -> tuple[str, Sequence[shown.Link]]:
        """Return where each key stands now."""
        found = keys.picked(asked, at)
        links = [keys.link(key, f"{key.text}: {key.situation.value}") for key in found]
        said = f" None of the {len(found):,} keys was changed. This is how they stand now:"
        return said, [*links, shown.Link("What is left to settle", "open")]

    def preview(self, request: Wanted, plan: Plan[list[Settled]]) -> shown.Preview:
        return previewed(
            plan.what,
            f"{named(request.decision)}, {len(plan.what)} keys",
            ("of the same batch as one that was chosen", "of the same batches", 200),
            shown.Link("Cancel", "open"),
        )

    def done(self, request: Wanted, what: list[Settled]) -> shown.Done:
        text = f"{len(request.keys):,} keys are settled: {named(request.decision)}."
        return shown.Done("Recorded", text, links=[shown.Link("What is left to settle", "open")])

    # -- The command -----------------------------------------------------------------------------------------

    def check(self, given: argparse.Namespace) -> ResolveSome:
        _decision(given)
        return self

    def given(self, given: argparse.Namespace, at: Opened, words: Words) -> Wanted:
        decision = _decision(given)
        found = keys.selected(at.ledger, given, decision)
        _check_attempt(found, given)
        judged = [Judged.of(view.key_date, view.row.key_hash, view.version) for view in found]
        return Wanted(found, judged, decision, words)

    def question(self, request: Wanted, plan: Plan[list[Settled]]) -> shown.Question:
        planned, lines = plan.what, list[Any]()
        batches = {settled.batch_id for settled in planned if settled.batch_id}
        for view in request.keys[:_SHOWN]:
            together = sum(settled.batch_id == view.row.batch_id for settled in planned)
            lines += [shown.Styled(view.text), shown.Facts(list(keys.facts(view, together).items())), ""]
        lines += _more(request.keys)
        along = sum(not settled.asked for settled in planned)
        if along:
            which = "the same batch" if len(batches) == 1 else "these batches"
            lines.append(f"{along:,} more documents of {which} go with it.")
        option = request.decision.option.removeprefix("--").replace("-", " ")
        lines.append(shown.Styled(f"{option}: {CONSEQUENCES[request.decision].meaning}"))
        what = "this key" if len(planned) == 1 else f"these {len(planned):,} keys"
        return shown.Question(lines, f"Record that for {what}?")

    def said(self, request: Wanted, what: list[Settled], *, dry_run: bool) -> shown.Said:
        words, said = request.words, CONSEQUENCES[request.decision].words
        rows = [
            {
                "key": each.key_hash,
                "text": each.key_text,
                "attempt": each.attempt,
                "from": each.before.value,
                "to": each.after.value,
                "batch_id": each.batch_id,
                "asked": each.asked,
            }
            for each in what
        ]
        becomes = "would become" if dry_run else "is now"
        lines = [
            f"{each.key_text}: was {each.before.value}, {becomes} {_after(each, said)}"
            f"{'' if each.asked else ' (same batch)'}"
            for each in what[:_SHOWN]
        ]
        by = [] if dry_run else [f"{said} by {words.actor}: {words.reason}"]
        return shown.Said(rows, [*lines, *_more(what), *by])


def _decision(given: argparse.Namespace) -> Decision:
    chosen = [decision for decision in Decision if getattr(given, decision.value)]
    if len(chosen) != 1:
        options = ", ".join(decision.option for decision in Decision)
        raise UsageError(f"say one of {options}")
    return chosen[0]


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


def _after(settled: Settled, said: str) -> str:
    if settled.before is settled.after:
        return f"{settled.after.value}, {said}"
    return (
        f"{settled.after.value}, so the next run executes it"
        if settled.after is State.FAILED
        else settled.after.value
    )


def _more(of: Sequence[Any]) -> list[str]:
    return [f"… and {len(of) - _SHOWN:,} more"] if len(of) > _SHOWN else []


def _receivers(key: KeyRow) -> shown.Code:
    return shown.Code(key.row.batch_id or key.row.idempotency_key)


SETTLE = ResolveSome()
ACTS = (SETTLE,)
