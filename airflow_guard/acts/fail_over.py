"""Record a fail-over that may have lost commits, see which are open, and close them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_guard.acts import shown
from airflow_guard.acts.act import Act, Late, Plan
from airflow_guard.acts.arguments import ASKING, Argument, Command, UsageError
from airflow_guard.acts.lost_commits import close, closed, record
from airflow_guard.core.errors import ResolutionError
from airflow_guard.core.fail_over import check_lost_since
from airflow_guard.store.events import storable
from airflow_guard.store.fail_overs import listed

if TYPE_CHECKING:
    import argparse

    from airflow_guard.acts.act import Asked, Opened, Words
    from airflow_guard.acts.lost_commits import ClosedFailOver, Recorded
    from airflow_guard.core.errors import GuardError
    from airflow_guard.store.fail_overs import OpenFailOver

_CLOSE = "close"
_NAMED = 20
_CHANGED = "Another fail-over was recorded, or one was closed, meanwhile. Nothing was changed."


@dataclass(frozen=True)
class Wanted:
    """What is asked for; without ``lost_since`` the open ones are closed."""

    lost_since: datetime | None
    words: Words


@dataclass(frozen=True)
class Outcome:
    """What it comes to.

    :param open: what is open before; when it is closed, what is closed.
    """

    open: list[OpenFailOver]
    recorded: Recorded | None = None


class RecordFailOver(Act[Wanted, Outcome]):
    """A fail-over is recorded, or the open ones are closed, after a look at what is open."""

    path, place, everywhere = "fail-over", 80, True
    fields = ("action", "lost_since", "reason")
    entry = ("Fail-overs", "The ledger's database was replaced by one that may lack its last commits.")
    changed = _CHANGED
    asks = True
    command = Command(
        "failover",
        "Say that a fail-over may have lost commits, so that nothing is executed that was done",
        "airflow_guard.acts.fail_over:FAIL_OVER",
        (
            Argument(
                "--lost-since",
                metavar="INSTANT",
                help="commits since then may be lost: ISO 8601 with a zone, such as 2025-03-31T02:10:00Z",
            ),
            Argument(
                "--close",
                action="store_true",
                help="the ledger was compared with the receivers: trust it again",
            ),
            *ASKING,
        ),
        description="Effects outside the database that had begun become in doubt, and so do those that tasks ask for and "
        "that the ledger may have forgotten. Without --lost-since and --close: what is open.",
        epilog="examples:\n"
        '  airflow-guard failover --lost-since 2025-03-31T02:10:00Z --reason "db2 took over at 02:12, 90 s behind"\n'
        '  airflow-guard failover --close --reason "compared with the bank\'s report until 02:20"',
    )

    def opens(self, asked: Asked, at: Opened) -> None:
        """Refuse who may not edit every DAG."""
        asked.person.must_edit_everywhere()

    may = opens

    def form(self, asked: Asked, at: Opened) -> shown.FillIn:
        open_, gone = listed(at.ledger.database), closed(at.ledger.database)
        actions = [
            shown.Option(
                "record",
                "Record a fail-over.",
                "Effects that had begun are in doubt then, and what the ledger may have forgotten is not executed again.",
            )
        ]
        if open_:
            muted = "The ledger was compared with the receivers: what it does not know counts as new again."
            actions.append(shown.Option(_CLOSE, f"Close {'it' if len(open_) == 1 else 'them'}.", muted))
        since = shown.Line(
            "lost_since",
            "Commits may be lost since, in UTC",
            "Needed to record one.",
            required=False,
            type="datetime-local",
        )
        return shown.FillIn(
            "Fail-overs",
            [
                shown.Heading("Open"),
                _open_table(open_) if open_ else shown.Text("No fail-over is open.", "empty"),
            ],
            [shown.Options("action", "What is to be done?", actions, default="record"), since],
            why="How is it known?",
            heading="Fail-overs that may have lost commits",
            after=[shown.Heading("Closed"), _closed_table(gone)] if gone else [],
        )

    def request(self, asked: Asked, at: Opened, words: Words) -> Wanted:
        if asked.text("action") == _CLOSE:
            return Wanted(None, words)
        try:
            found = datetime.fromisoformat(asked.text("lost_since"))
        except ValueError:
            raise ResolutionError(
                "Say since when commits may be lost: 2026-01-31 02:10:00, in UTC."
            ) from None
        return Wanted(found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC), words)

    def plan(self, at: Opened, request: Wanted) -> Plan[Outcome]:
        """Return what would be in doubt, or closed; what else is open makes it stale."""
        open_, since, words = listed(at.ledger.database), request.lost_since, request.words
        seen = [each.id for each in open_]
        if since is None:
            done = not open_ and self._closed_by(at, words)
            return Plan(Outcome(open_), seen, sure=done, nothing="" if open_ else "No fail-over is open.")
        mine = (since, storable(words.actor, 250), storable(words.reason))
        repeated = any((each.lost_since, each.actor, each.reason) == mine for each in open_)
        return Plan(self.run(at, request, dry_run=True), seen, sure=repeated)

    def run(self, at: Opened, request: Wanted, *, dry_run: bool) -> Outcome:
        """Record it, or close what is open; once, however often it is said."""
        since, words = request.lost_since, request.words
        if since is not None:
            done = record(at.ledger, since, actor=words.actor, reason=words.reason, dry_run=dry_run)
            return Outcome(listed(at.ledger.database), done)
        try:
            return Outcome(close(at.ledger, actor=words.actor, reason=words.reason, dry_run=dry_run))
        except ResolutionError:
            # The second half of a double click, which came while the first one was at it?
            if not self._closed_by(at, words):
                raise
            return Outcome([])

    def _closed_by(self, at: Opened, words: Words) -> bool:
        mine = (storable(words.actor, 250), storable(words.reason))
        return any((each.closed_by, each.close_reason) == mine for each in closed(at.ledger.database, 1))

    def late(self, request: Wanted, error: GuardError, *, confirmed: bool) -> Late:
        """Show what is open now, if somebody else has closed it."""
        return Late.AGAIN if confirmed and request.lost_since is None else Late.ASK

    def preview(self, request: Wanted, plan: Plan[Outcome]) -> shown.Preview:
        open_, recorded, cancel = plan.what.open, plan.what.recorded, shown.Link("Cancel", "forms/fail-over")
        if recorded is not None:
            return shown.Preview("record a fail-over", _recorded(recorded, open_), cancel=cancel)
        if not open_:
            empty = shown.Text(
                "No fail-over is open.", "empty", shown.Link("Who closed it", "forms/fail-over")
            )
            return shown.Preview("close a fail-over", [], cancel=cancel, nothing=empty)
        lines = [
            ("Commits since ", each.lost_since, f" may be lost, recorded by {each.actor}: {each.reason}")
            for each in open_
        ]
        them = "It" if len(open_) == 1 else "They"
        text = shown.Text(f"{them} would be closed: what the ledger does not know counts as new again.")
        return shown.Preview("close a fail-over", [shown.Listing(lines), text], cancel=cancel)

    def done(self, request: Wanted, what: Outcome) -> shown.Done:
        links = [shown.Link("Fail-overs", "forms/fail-over"), shown.Link("What is to be settled", "open")]
        if request.lost_since is None:
            return shown.Done("Closed", "What the ledger does not know counts as new again.", links=links)
        text = (
            f"Commits since {request.lost_since:%Y-%m-%d %H:%M:%S} UTC may be lost. Effects that had begun are in doubt. What "
            "the ledger does not know is in doubt when a task asks for it, until the fail-over is closed."
        )
        return shown.Done("Recorded", text, links=links)

    # -- The command -----------------------------------------------------------------------------------------

    def check(self, given: argparse.Namespace) -> Act[Any, Any]:
        """Return what is asked for: to close is not asked about."""
        if given.lost_since and given.close:
            raise UsageError("give --lost-since INSTANT or --close, not both")
        return _CLOSING if given.close else self

    def lists(self, given: argparse.Namespace) -> bool:
        """Return whether nothing is to be done."""
        return not (given.lost_since or given.close)

    def listed(self, given: argparse.Namespace, at: Opened) -> shown.Said:
        """Return what is open."""
        found = listed(at.ledger.database)
        return shown.Said(_rows(found), [_line(each) for each in found] or ["No fail-over is open."])

    def given(self, given: argparse.Namespace, at: Opened, words: Words) -> Wanted:
        if given.close:
            return Wanted(None, words)
        try:
            found = datetime.fromisoformat(given.lost_since.strip())
        except ValueError:
            raise UsageError(
                f"--lost-since {given.lost_since}: ISO 8601 with a zone, such as 2025-03-31T02:10:00Z"
            ) from None
        check_lost_since(found)
        return Wanted(found, words)

    def question(self, request: Wanted, plan: Plan[Outcome]) -> shown.Question:
        return shown.Question(_said(plan.what.recorded, "would be"), "Record that?")

    def said(self, request: Wanted, what: Outcome, *, dry_run: bool) -> shown.Said:
        if request.lost_since is None:
            verb = "would be closed" if dry_run else "closed"
            last = (
                "Dry run: nothing was changed."
                if dry_run
                else "What the ledger does not know counts as new again."
            )
            return shown.Said(_rows(what.open), [*(f"{_line(each)}: {verb}" for each in what.open), last])
        unfinished = what.recorded.unfinished if what.recorded else []
        rows = [
            {
                "key_date": each.key_date.isoformat(),
                "key": each.key_hash,
                "what": each.key_text,
                "state": "in_doubt" if each.begun else "failed",
                "dry_run": dry_run,
            }
            for each in unfinished
        ]
        if dry_run:
            return shown.Said(
                rows, [*_said(what.recorded, "would be"), shown.Styled("Dry run: nothing was changed.")]
            )
        held = (
            "From now on an effect outside the database that the ledger does not know is in doubt when a task asks for it: "
            "verify is asked, or a person."
        )
        next_ = 'When the ledger was compared with the receivers: airflow-guard failover --close --reason "…"'
        return shown.Said(rows, [*_said(what.recorded, "is"), held, shown.Styled(next_)])


class _Closing(RecordFailOver):
    """The same, where the command does not ask, and refuses if nothing is open."""

    asks = False

    plan = Act.plan

    def run(self, at: Opened, request: Wanted, *, dry_run: bool) -> Outcome:
        words = request.words
        return Outcome(close(at.ledger, actor=words.actor, reason=words.reason, dry_run=dry_run))


def _said(recorded: Recorded | None, verb: str) -> list[str]:
    unfinished = recorded.unfinished if recorded else []
    begun = [each for each in unfinished if each.begun]
    lines = [f"{each.key_text} {verb} in doubt" for each in begun[:_NAMED]]
    if len(begun) > _NAMED:
        lines.append(f"and {len(begun) - _NAMED:,} more (airflow-guard show --state in_doubt)")
    others = len(unfinished) - len(begun)
    return [
        *lines,
        f"{len(begun):,} effects had begun, {others:,} claims had not begun theirs and are taken back.",
    ]


def _recorded(recorded: Recorded, open_: list[OpenFailOver]) -> list[Any]:
    begun = [each.key_text for each in recorded.unfinished if each.begun]
    text = (
        f" may be lost. {len(begun):,} effects that have begun would be in doubt; {len(recorded.unfinished) - len(begun):,} "
        "claims that have not begun theirs would be taken back. What is at work when you confirm counts."
    )
    blocks: list[Any] = [
        shown.Text(("Commits since ", recorded.lost_since, text)),
        shown.Listing(begun[:_NAMED]),
    ]
    if len(begun) > _NAMED:
        blocks.append(shown.Text(f"and {len(begun) - _NAMED:,} more", "muted"))
    if open_:
        said = [(" since ", each.lost_since, f", by {each.actor}: {each.reason}") for each in open_]
        blocks.append(shown.Text(("Open already:", *said), "note"))
    return blocks


def _open_table(open_: list[OpenFailOver]) -> shown.Table:
    heads = {"Commits may be lost since": "tight", "Recorded": "tight", "By": "long", "Why": "long prose"}
    rows = [(each.lost_since, each.recorded_at, each.actor, each.reason) for each in open_]
    return shown.Table("Open fail-overs", list(heads.items()), rows)


def _closed_table(gone: list[ClosedFailOver]) -> shown.Table:
    heads = ("Commits may be lost since", "Recorded by", "Why", "Closed", "By", "Why")
    looks = ("tight", "long", "long prose", "tight", "long", "long")
    rows = []
    for each in gone:
        first = each.recorded
        rows.append(
            (first.lost_since, first.actor, first.reason, each.closed_at, each.closed_by, each.close_reason)
        )
    return shown.Table("Closed fail-overs", list(zip(heads, looks, strict=True)), rows)


def _rows(found: list[OpenFailOver]) -> list[dict[str, Any]]:
    return [
        {
            "id": each.id,
            "lost_since": each.lost_since.isoformat(),
            "recorded_at": each.recorded_at.isoformat(),
            "actor": each.actor,
            "reason": each.reason,
        }
        for each in found
    ]


def _line(each: OpenFailOver) -> str:
    return (
        f"Commits since {each.lost_since:%Y-%m-%d %H:%M:%S} UTC may be lost (recorded {each.recorded_at:%Y-%m-%d %H:%M} UTC by "
        f"{each.actor}: {each.reason})"
    )


FAIL_OVER, _CLOSING = RecordFailOver(), _Closing()
ACTS = (FAIL_OVER,)
