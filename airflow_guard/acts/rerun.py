"""A request for a rerun: which keys it means, and its authorisation. The command and the operator ask here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_guard.acts import keys, reruns, shown
from airflow_guard.acts.act import Act, Late, Plan
from airflow_guard.acts.arguments import ASKING, CYCLE, KEY, Argument, Command, UsageError
from airflow_guard.acts.rerun_plan import RerunPlan
from airflow_guard.acts.reruns import done_keys
from airflow_guard.acts.reversal import REVERSAL
from airflow_guard.acts.withdraw import WITHDRAW
from airflow_guard.core.dates import parse_business_date
from airflow_guard.core.errors import ResolutionError, StaleResolution
from airflow_guard.core.reruns import expiry_of
from airflow_guard.reading import listing
from airflow_guard.store.resolution import Judged

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from datetime import date, timedelta

    from airflow_guard.acts.act import Asked, Opened, Words
    from airflow_guard.core.errors import GuardError
    from airflow_guard.reading.key_records import KeyRow
    from airflow_guard.reading.listing import Selection
    from airflow_guard.store.ledger import Ledger


@dataclass(frozen=True)
class Request:
    """Who wants what executed once more, and why. Fields as :func:`airflow_guard.acts.reruns.authorise` has them."""

    actor: str
    reason: str
    expires: timedelta
    without_reversal: bool = False
    ledger_name: str | None = None


def authorise(
    ledger: Ledger, views: Sequence[KeyRow], others: dict[str, int], request: Request, *, dry_run: bool
) -> RerunPlan:
    """Authorise keys as they were looked at, or check that they can be, and return what it comes to.

    :param views: as they were looked at: a key with a newer attempt is refused.
    :raises ResolutionError: see :func:`airflow_guard.acts.reruns.authorise`.
    """
    given = reruns.authorise(
        ledger,
        [Judged(view.key_date, view.row.key_hash, view.row.owner_token) for view in views],
        actor=request.actor,
        reason=request.reason,
        expires=request.expires,
        without_reversal=request.without_reversal,
        dry_run=dry_run,
        ledger_name=request.ledger_name,
    )
    until = min((each.expires_at for each in given if each.expires_at), default=None)
    done = sorted(views, key=lambda view: (view.business_date, view.cycle, view.row.document or ""))
    return RerunPlan(done, request.without_reversal, others, until)


# -- The act -------------------------------------------------------------------------------------------------

_EXPIRIES = {"4h": "4 hours", "24h": "24 hours", "3d": "3 days", "7d": "7 days", "31d": "31 days"}


@dataclass(frozen=True)
class Wanted:
    """What is to be executed once more.

    :param others: how many keys of the dates stand elsewhere.
    """

    keys: list[KeyRow]
    others: dict[str, int]
    request: Request


class AuthoriseRerun(Act[Wanted, RerunPlan]):
    """Keys, or the dates of an operation, are authorised after a look at what was done. It executes nothing."""

    path, place = "rerun", 30
    fields = (
        "pick",
        "dag",
        "operation",
        "start",
        "end",
        "cycle",
        "documents",
        "expires",
        "without_reversal",
        "reason",
    )
    entry = ("Execute again", "Authorise that what is done is executed once more.")
    changed = "What is done is not what was shown. Nothing was authorised."
    not_done = "Nothing was authorised."
    asks = True
    command = Command(
        "rerun",
        "Authorise that done keys are executed once more",
        "airflow_guard.acts.rerun:RERUN",
        (
            Argument("dag", nargs="?", metavar="DAG", help="instead of --key: a DAG (or key_namespace) …"),
            Argument(
                "operation",
                nargs="?",
                metavar="OPERATION",
                help="… and the operation (by default the task_id)",
            ),
            Argument("--start", metavar="DATE", help="first business date"),
            Argument("--end", metavar="DATE", help="last business date (default: the first)"),
            Argument(
                "--document", action="append", default=[], metavar="ID", help="one document; can be repeated"
            ),
            CYCLE,
            KEY,
            Argument(
                "--expires",
                default="24h",
                metavar="LENGTH",
                help="how long it holds: 90m, 24h, 7d (default: 24h)",
            ),
            Argument(
                "--without-reversal",
                action="store_true",
                help="the first effect stays; on_rerun is not called",
            ),
            Argument(
                "--withdraw", action="store_true", help="take back what was authorised and is not used yet"
            ),
            Argument("--all", action="store_true", help="with --withdraw: whatever is authorised"),
            Argument(
                "--reversal-happened",
                action="store_true",
                help="of --key: on_rerun ended inside, and has reversed",
            ),
            Argument(
                "--reversal-did-not-happen",
                action="store_true",
                help="of --key: on_rerun ended inside, and has not",
            ),
            *ASKING,
        ),
        description="Nothing is executed by this command: it prints the one that does it. Each key is executed once, and "
        "under a new idempotency key; before it, on_rerun of the task's side effect reverses the first effect. What nobody "
        "has executed in time stays as it is.",
        epilog="examples:\n"
        '  airflow-guard rerun statements post --start 2025-03-01 --end 2025-03-31 --reason "wrong rate" --dry-run\n'
        '  airflow-guard rerun --key 3f21ab --without-reversal --reason "the bank lost the file" --expires 2h\n'
        '  airflow-guard rerun --withdraw --all --reason "the correction was wrong"',
    )

    def opens(self, asked: Asked, at: Opened) -> None:
        """Refuse who may not edit the DAG of the key, or that of the dates."""
        if asked.text("pick") or asked.text("dag"):
            self.may(asked, at)
        else:
            asked.person.must_edit_some()

    def may(self, asked: Asked, at: Opened) -> None:
        """Refuse who may not edit the DAG; the request does so for each key of the dates."""
        chosen = asked.text("pick")
        asked.person.must_edit(
            [key.dag_id for key in keys.picked(asked, at)] if chosen else [asked.text("dag")]
        )

    def form(self, asked: Asked, at: Opened) -> shown.FillIn:
        found = keys.picked(asked, at) if asked.text("pick") else []
        about = (
            "This authorises it, for a time. The ledger does not execute anything by itself: afterwards the page shows the "
            "command that does."
        )
        reverses = (
            shown.Option("no", "It is reversed first.", "The task needs on_rerun, which does it."),
            shown.Option("yes", "It stays.", "The second effect comes on top of it."),
        )
        return shown.FillIn(
            "Execute again",
            [shown.Text(about), *([_keys(found)] if found else [])],
            [
                *([] if found else _OF_DATES),
                shown.Options(
                    "without_reversal", "What becomes of the first effect?", reverses, default="no"
                ),
                shown.Choice("expires", "It may be used for", _EXPIRIES, default="24h"),
            ],
            why="Why is it executed once more?",
            heading="Execute again what is done",
            hidden={"pick": [f"{key.key_date}.{key.key_hash}" for key in found]},
            dags=asked.person.dags,
        )

    def request(self, asked: Asked, at: Opened, words: Words) -> Wanted:
        without = asked.text("without_reversal") == "yes"
        request = Request(words.actor, words.reason, expiry_of(asked.text("expires")), without, at.name)
        if asked.text("pick"):
            return Wanted(keys.picked(asked, at), {}, request)
        found, others = done_keys(at.ledger, _of_form(asked), asked.person.readable)
        asked.person.must_edit(key.dag_id for key in found)
        return Wanted(found, others, request)

    def plan(self, at: Opened, request: Wanted) -> Plan[RerunPlan]:
        """Return what would be authorised; other attempts make it stale."""
        planned = self.run(at, request, dry_run=True)
        seen = sorted(f"{key.key_date} {key.key_hash} {key.row.owner_token}" for key in request.keys)
        return Plan(planned, seen)

    def run(self, at: Opened, request: Wanted, *, dry_run: bool) -> RerunPlan:
        """Authorise all of them, or none."""
        return authorise(at.ledger, request.keys, request.others, request.request, dry_run=dry_run)

    def late(self, request: Wanted, error: GuardError, *, confirmed: bool) -> Late:
        """Show what is done now."""
        return Late.AGAIN if confirmed and isinstance(error, StaleResolution) else Late.ASK

    def preview(self, request: Wanted, plan: Plan[RerunPlan]) -> shown.Preview:
        title = f"execute {_count(plan.what)} again"
        return shown.Preview(title, [shown.Listing(plan.what.lines())], button="Authorise it")

    def done(self, request: Wanted, what: RerunPlan) -> shown.Done:
        commands = [shown.Command(why, line) for why, line in what.commands().items()]
        blocks = [
            shown.Heading("Execute it"),
            *commands,
            *map(shown.Text, what.by_hand()),
            shown.Heading("What was authorised"),
            shown.Listing(what.lines()),
        ]
        until = ("" if what.until is None else what.until, ".")
        text = (f"{_count(what)} may be executed once more until ", *until)
        return shown.Done("Authorised", text, blocks, [keys.link(key) for key in request.keys[:20]])

    # -- The command -----------------------------------------------------------------------------------------

    def check(self, given: argparse.Namespace) -> Act[Any, Any]:
        reversal = given.reversal_happened or given.reversal_did_not_happen
        if given.reversal_happened and given.reversal_did_not_happen:
            raise UsageError("say --reversal-happened or --reversal-did-not-happen")
        if given.withdraw:
            return WITHDRAW.check(given)
        if given.all:
            raise UsageError("--all belongs to --withdraw")
        if reversal:
            if len(given.key) != 1 or given.dag or given.dry_run:
                raise UsageError("a reversal is that of one --key")
            return REVERSAL
        if given.key:
            if given.dag or given.start or given.document:
                raise UsageError("give either --key, or DAG OPERATION --start DATE")
        elif not (given.dag and given.operation and given.start):
            raise UsageError("give --key HASH, or DAG OPERATION --start DATE [--end DATE]")
        return self

    def given(self, given: argparse.Namespace, at: Opened, words: Words) -> Wanted:
        request = Request(
            words.actor, words.reason, expiry_of(given.expires), given.without_reversal, at.name
        )
        if given.key:
            found = {view.row.key_hash: view for view in (keys.one_key(at.ledger, key) for key in given.key)}
            return Wanted(list(found.values()), {}, request)
        start = keys.date_of(given.start)
        end = keys.date_of(given.end) if given.end else start
        if end < start:
            raise UsageError(f"--end {end} lies before --start {start}")
        selection = listing.Selection(
            dag=given.dag,
            business_date=start,
            until=end,
            operation=given.operation,
            cycle=given.cycle,
            documents=keys.documents_of(given.document),
        )
        return Wanted(*done_keys(at.ledger, selection), request)

    def question(self, request: Wanted, plan: Plan[RerunPlan]) -> shown.Question:
        return shown.Question(plan.what.lines(), "Authorise that?")

    def said(self, request: Wanted, what: RerunPlan, *, dry_run: bool) -> shown.Said:
        commands = what.commands()
        data = {
            "keys": [keys.full(view) for view in request.keys],
            "not_done": dict(what.others),
            "without_reversal": what.without_reversal,
            "until": what.until.isoformat() if what.until else None,
            "commands": list(commands.values()),
            "by_hand": what.by_hand(),
            "dry_run": dry_run,
        }
        plain = [keys.short(view) | {"key": view.row.key_hash} for view in request.keys]
        lines: list[Any] = [*what.lines(), ""]
        lines += [shown.Command(why, line) for why, line in commands.items()]
        lines += [f"  {line}" for line in what.by_hand()]
        if dry_run:
            lines.append(shown.Styled("Dry run: nothing was authorised."))
        return shown.Said(data, lines, plain=plain)


_OF_DATES = (
    shown.Line("dag", "DAG", dags=True),
    shown.Line("operation", "Operation"),
    shown.Line("start", "First business date", type="date"),
    shown.Line("end", "Last business date", "Empty: only the first one.", type="date", required=False),
    shown.Line("cycle", "Cycle", required=False),
    shown.Lines("documents", "Documents", "One on each line. Empty: all that are done."),
)


def _of_form(asked: Asked) -> Selection:
    def day(name: str) -> date:
        return parse_business_date(asked.text(name), source="the form")

    start, end = day("start"), day("end") if asked.text("end") else None
    if not asked.text("operation"):
        raise ResolutionError("Say which operation.")
    if end is not None and end < start:
        raise ResolutionError(f"The last date {end} lies before the first one, {start}.")
    named = [line for line in asked.text("documents").splitlines() if line.strip()]
    return listing.Selection(
        dag=asked.text("dag"),
        business_date=start,
        until=end or start,
        operation=asked.text("operation"),
        cycle=asked.text("cycle") or None,
        documents=keys.documents_of(named),
    )


def _keys(found: Sequence[KeyRow]) -> shown.Listing:
    return shown.Listing([(f"{key.text} ", shown.Badge(key.situation.value)) for key in found])


def _count(plan: RerunPlan) -> str:
    return f"{len(plan.keys):,} {'key' if len(plan.keys) == 1 else 'keys'}"


RERUN = AuthoriseRerun()
ACTS = (RERUN,)
