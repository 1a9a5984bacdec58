"""Explain or resolve breaks, one or several: all of them, or none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_guard.acts import break_records, keys, shown
from airflow_guard.acts.act import Act, Late, Plan
from airflow_guard.acts.arguments import ASKING, BREAK_STATES, Argument, Command, UsageError
from airflow_guard.acts.break_decisions import SOURCES, decide
from airflow_guard.core.checks import BreakState
from airflow_guard.core.errors import ResolutionError, StaleResolution
from airflow_guard.reading.checks import UNSETTLED, BreakSelection, FoundBreaks, find_breaks
from airflow_guard.reading.scope import NotThere

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from airflow_guard.acts.act import Asked, Opened, Words
    from airflow_guard.core.errors import GuardError
    from airflow_guard.reading.check_records import BreakRow
    from airflow_guard.store.break_rows import StoredBreak

_AT_ONCE = 50
_LARGEST_ID = 2**63 - 1
_MANY = 100_000
_SHOWN = 20
_TARGETS = {"explain": BreakState.EXPLAINED, "resolve": BreakState.RESOLVED}
_STYLES = {"open": "bold red", "explained": "yellow", "resolved": "green"}
_MEANING = {
    BreakState.EXPLAINED: "They are right as they are. They fail nothing as long as their values stay the same.",
    BreakState.RESOLVED: "They are settled. One that a later look still finds is open again.",
}
_OPTIONS = {
    "explain": shown.Option(
        "explain",
        "Explained: it stays as it is.",
        "The check no longer fails for it, as long as its values stay the same.",
    ),
    "resolve": shown.Option(
        "resolve", "Resolved: one side was put right.", "If a later check finds it again, it is open again."
    ),
}


@dataclass(frozen=True)
class Wanted:
    """What is decided about which breaks.

    :param rows: as a page shows them, or (``found``) as the command found them.
    :param seen: by id, the versions that were looked at.
    :param again: whether what there is now is only to be shown.
    """

    ids: Sequence[int]
    target: BreakState
    words: Words
    rows: Sequence[BreakRow] = ()
    found: Sequence[StoredBreak] = ()
    seen: Mapping[int, str] = field(default_factory=dict)
    again: bool = False


class SettleBreaks(Act[Wanted, None]):
    """Breaks are decided as they were looked at: one that has changed since stops all of them."""

    path, place, entry_path = "break", 20, "breaks"
    fields = ("id", "decision", "reason")
    entry = ("Settle breaks", "Explain or resolve differences between two sides. Choose them in the list.")
    asks = True
    command = Command(
        "breaks",
        "List breaks of reconciliations, and accept or settle them",
        "airflow_guard.acts.breaks:BREAKS",
        (
            Argument("dag", nargs="?", metavar="DAG", help="a DAG (or key_namespace)"),
            Argument("date", nargs="?", metavar="DATE", help="business date, YYYY-MM-DD"),
            Argument("--operation", help="one operation (by default the task_id)"),
            Argument(
                "--state",
                action="append",
                default=[],
                choices=BREAK_STATES,
                metavar=f"({', '.join(BREAK_STATES)})",
                help="only breaks that stand there; can be repeated (default: open and explained)",
            ),
            Argument(
                "--type",
                action="append",
                default=[],
                metavar="TYPE",
                help="one type of break; can be repeated",
            ),
            Argument(
                "--id", action="append", default=[], type=int, metavar="N", help="one break; can be repeated"
            ),
            Argument("--limit", type=int, default=50, metavar="N", help="at most so many (default: 50)"),
            Argument(
                "--all", action="store_true", help="with a decision: all that the other arguments select"
            ),
            Argument(
                "--explain", action="store_true", help="they are right as they are: open becomes explained"
            ),
            Argument(
                "--resolve", action="store_true", help="they are settled; found again they are open again"
            ),
            *ASKING,
        ),
        description="The oldest come first. With --explain or --resolve all of the selected breaks are decided, or none.",
        epilog="examples:\n"
        "  airflow-guard breaks statements 2025-03-31\n"
        '  airflow-guard breaks --id 17 --id 18 --explain --reason "fee booked by hand, ticket 77"',
    )

    def opens(self, asked: Asked, at: Opened) -> None:
        """Refuse who may not edit the DAGs of the breaks."""
        asked.person.must_edit(row.dag_id for row in _rows(asked, at))

    may = opens

    def form(self, asked: Asked, at: Opened) -> shown.FillIn:
        rows = _rows(asked, at)
        decisions = [name for name, target in _TARGETS.items() if _fits(rows, target)]
        one = len(rows) == 1
        back = shown.Link("The list of breaks", "breaks")
        nothing = shown.Text(
            "There is nothing to say about all of these: some are resolved already.", "empty", back
        )
        options = shown.Options(
            "decision", f"What became of {'it' if one else 'them'}?", [_OPTIONS[name] for name in decisions]
        )
        return shown.FillIn(
            f"Settle {_count(rows)}",
            [shown.BreakTable(rows)],
            [options],
            why="What is the cause?",
            hidden={"id": _versions(rows)},
            cancel=shown.Link("Cancel", "breaks"),
            nothing=None if decisions else nothing,
        )

    def request(self, asked: Asked, at: Opened, words: Words) -> Wanted:
        rows, target = _rows(asked, at), _TARGETS.get(asked.text("decision"))
        if target is None:
            raise ResolutionError("Say what became of it: explained, or resolved.")
        seen = {int(each): version for each, _, version in (one.partition(".") for one in asked.all("id"))}
        return Wanted(list(seen), target, words, rows, seen=seen, again=asked.again)

    def plan(self, at: Opened, request: Wanted) -> Plan[None]:
        """Check that all can be decided; their versions, which the form carries, tell what is stale."""
        if not request.again:
            self.run(at, request, dry_run=True)
        return Plan(None, sure=True, fields={"id": _versions(request.rows)})

    def run(self, at: Opened, request: Wanted, *, dry_run: bool) -> None:
        """Decide about all of them, or none."""
        words = request.words
        decide(
            at.ledger.database,
            request.target,
            request.ids,
            actor=words.actor,
            reason=words.reason,
            seen=request.seen,
            dry_run=dry_run,
        )

    def late(self, request: Wanted, error: GuardError, *, confirmed: bool) -> Late:
        """Show the breaks as they are now."""
        return Late.AGAIN if confirmed or isinstance(error, StaleResolution) else Late.ASK

    def preview(self, request: Wanted, plan: Plan[None]) -> shown.Preview:
        rows, target = request.rows, request.target
        said = [
            shown.Text(
                f"{row.found.break_type.replace('_', ' ')}{f' of {row.found.name}' if row.found.document is not None else ''} "
                f"is {row.state.value} by {row.actor}: {row.reason}",
                "muted",
            )
            for row in rows
            if row.actor
        ]
        left = "it" if len(rows) == 1 else "all of them"
        nothing = shown.Text(
            f"There is nothing left to do with {left}.", "note", shown.Link("The list of breaks", "breaks")
        )
        return shown.Preview(
            f"{_count(rows)} {target.value}",
            [shown.BreakTable(rows, f"What would become {target.value}"), *said],
            cancel=shown.Link("Cancel", "breaks"),
            nothing=None if _fits(rows, target) else nothing,
        )

    def done(self, request: Wanted, what: None) -> shown.Done:
        rows = request.rows
        links = [shown.Link("The list of breaks", "breaks")]
        if len(rows) == 1:
            links.insert(0, shown.Link("The break as it stands now", "break", {"id": rows[0].id}))
        count = "1 break is" if len(rows) == 1 else f"{len(rows):,} breaks are"
        return shown.Done("Recorded", f"{count} {request.target.value}.", links=links)

    # -- The command -----------------------------------------------------------------------------------------

    def check(self, given: argparse.Namespace) -> SettleBreaks:
        if given.limit < 1:
            raise UsageError("--limit must be at least 1")
        if given.explain and given.resolve:
            raise UsageError("say one of --explain, --resolve")
        if self.lists(given) and (given.all or given.reason):
            raise UsageError("--all and --reason belong to --explain or --resolve")
        return self

    def lists(self, given: argparse.Namespace) -> bool:
        """Return whether nothing is decided."""
        return not (given.explain or given.resolve)

    def listed(self, given: argparse.Namespace, at: Opened) -> shown.Said:
        """Return the breaks that the arguments select."""
        found: FoundBreaks = find_breaks(at.ledger.database, _selection(given, given.limit))
        note = f"and {found.more:,} more (--limit)" if found.more else ""
        short = [break_records.short(each) for each in found.breaks]
        lines = [shown.Rows(short, _STYLES)] if short else ["The ledger has no such breaks."]
        return shown.Said([break_records.full(each) for each in found.breaks], lines, plain=short, note=note)

    def given(self, given: argparse.Namespace, at: Opened, words: Words) -> Wanted:
        target = BreakState.EXPLAINED if given.explain else BreakState.RESOLVED
        if bool(given.id) == bool(given.all):
            raise UsageError("say which: --id N, or --all of what the other arguments select")
        if given.all and not given.dag:
            raise UsageError(
                "--all needs a DAG, so that nobody decides about the breaks of others by mistake"
            )
        found = find_breaks(at.ledger.database, _selection(given, _MANY, any_state=bool(given.id))).breaks
        fitting = [each for each in found if each.state in SOURCES[target]]
        _refuse(given.id, found, fitting, target)
        return Wanted([each.id for each in fitting], target, words, found=fitting)

    def question(self, request: Wanted, plan: Plan[None]) -> shown.Question:
        breaks = request.found
        lines = [
            shown.Rows([break_records.short(each) for each in breaks[:_SHOWN]], _STYLES),
            *_more(breaks),
            shown.Styled(f"{request.target.value}: {_MEANING[request.target]}"),
        ]
        what = "this break" if len(breaks) == 1 else f"these {len(breaks):,} breaks"
        return shown.Question(lines, f"Record that for {what}?")

    def said(self, request: Wanted, what: None, *, dry_run: bool) -> shown.Said:
        breaks, target, words = request.found, request.target.value, request.words
        becomes = "would become" if dry_run else "is now"
        rows = [
            {"id": each.id, "text": break_records.text(each), "from": each.state.value, "to": target}
            for each in breaks
        ]
        lines = [
            f"{each.id}: {break_records.text(each)}: was {each.state.value}, {becomes} {target}"
            for each in breaks[:_SHOWN]
        ]
        by = [] if dry_run else [f"{target} by {words.actor}: {words.reason}"]
        return shown.Said(rows, [*lines, *_more(breaks), *by])


def _rows(asked: Asked, at: Opened) -> list[BreakRow]:
    """Return the breaks that the fields name; each may carry the version that was shown."""
    texts = [each.partition(".")[0] for each in asked.all("id")]
    if not texts or not all(each.isascii() and each.isdigit() and int(each) <= _LARGEST_ID for each in texts):
        raise NotThere
    wanted = sorted({int(each) for each in texts})
    if len(wanted) > _AT_ONCE:
        raise NotThere
    rows = list(at.look().picked_breaks(wanted, asked.person.readable))
    if len(rows) < len(wanted):
        raise NotThere
    return rows


def _fits(rows: Sequence[BreakRow], target: BreakState) -> bool:
    explained = target is BreakState.EXPLAINED
    return all(row.may_explain if explained else row.may_resolve for row in rows)


def _versions(rows: Sequence[BreakRow]) -> list[str]:
    return [f"{row.id}.{row.version}" for row in rows]


def _count(rows: Sequence[BreakRow]) -> str:
    return "a break" if len(rows) == 1 else f"{len(rows)} breaks"


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


def _refuse(
    ids: Sequence[int], found: Sequence[StoredBreak], fitting: Sequence[StoredBreak], target: BreakState
) -> None:
    missing = sorted(set(ids) - {each.id for each in found})
    if missing:
        raise ResolutionError(f"There is no break {missing[0]} among those. Nothing was changed.")
    others = [each for each in found if each not in fitting]
    if ids and others:
        each = others[0]
        by = f" by {each.actor}: {each.reason}" if each.actor else ""
        raise ResolutionError(f"Break {each.id} is {each.state.value} already{by}. Nothing was changed.")
    if not fitting:
        stand = " or ".join(sorted(state.value for state in SOURCES[target]))
        raise ResolutionError(f"There is no such break that is {stand}. Nothing was changed.")


def _more(breaks: Sequence[StoredBreak]) -> list[str]:
    return [f"… and {len(breaks) - _SHOWN:,} more"] if len(breaks) > _SHOWN else []


BREAKS = SettleBreaks()
ACTS = (BREAKS,)
