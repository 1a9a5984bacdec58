"""Say what became of keys: it happened, it did not, waive it, send it again, drop it, it is followed up, it stands.

One key, with its life. Several, and the command: :mod:`airflow_guard.acts.settle`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_guard.acts import keys, shown
from airflow_guard.acts.act import Act, Late, Plan
from airflow_guard.core.decisions import CONSEQUENCES, Decision
from airflow_guard.core.errors import StaleResolution
from airflow_guard.store.resolution import Judged, resolve_many

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_guard.acts.act import Asked, Opened, Words
    from airflow_guard.core.errors import GuardError
    from airflow_guard.reading.key_records import KeyLife, KeyRow
    from airflow_guard.store.resolution import Settled

_TOLD = frozenset({"doubt", "late_report", "conflict", "take_over", "fail_over_key"})
_LABELS = {
    Decision.HAPPENED: "It happened",
    Decision.DID_NOT_HAPPEN: "It did not happen",
    Decision.WAIVE: "It is settled another way",
    Decision.SEND_AGAIN: "Try it again",
    Decision.DROP: "It is not to be done any more",
    Decision.FOLLOWED_UP: "What follows it is finished too",
    Decision.CONTENT_STANDS: "It stands for the other content too",
}


@dataclass(frozen=True)
class Wanted:
    """What is decided about which keys, each as it was looked at."""

    keys: Sequence[KeyRow]
    judged: Sequence[Judged]
    decision: Decision
    words: Words


class Resolution(Act[Wanted, "list[Settled]"]):
    """What is alike for one key and for several."""

    def run(self, at: Opened, request: Wanted, *, dry_run: bool) -> list[Settled]:
        """Settle all of them, or none."""
        words = request.words
        done = resolve_many(
            at.ledger,
            request.judged,
            request.decision,
            actor=words.actor,
            reason=words.reason,
            strict=True,
            dry_run=dry_run,
            ledger_name=at.name,
        )
        return done.settled

    def late(self, request: Wanted, error: GuardError, *, confirmed: bool) -> Late:
        """Say where the keys stand now."""
        return Late.REFUSE if isinstance(error, StaleResolution) else Late.ASK


class ResolveOne(Resolution):
    """One key, with what is known of it."""

    path = "resolve"
    fields = ("date", "key", "version", "decision", "reason")

    def opens(self, asked: Asked, at: Opened) -> None:
        """Refuse who may not edit the DAG of the key."""
        asked.person.must_edit([keys.life(asked, at).key.dag_id])

    may = opens

    def form(self, asked: Asked, at: Opened) -> shown.FillIn:
        life = keys.life(asked, at)
        key = life.key
        nothing = shown.Text("There is nothing to settle.", "empty", keys.link(key, "Back to the key"))
        return shown.FillIn(
            f"Settle {key.text}",
            [shown.Text(key.explanation), *([_known(life)] if key.decisions else [])],
            [options("What became of it?", key.decisions)],
            why="How do you know?",
            badge=key.situation.value,
            hidden={"date": [str(key.key_date)], "key": [key.key_hash], "version": [key.version]},
            cancel=keys.link(key, "Cancel"),
            nothing=None if key.decisions else nothing,
        )

    def request(self, asked: Asked, at: Opened, words: Words) -> Wanted:
        key = keys.life(asked, at).key
        judged = Judged.of(key.key_date, key.key_hash, asked.text("version"))
        return Wanted([key], [judged], Decision.of(asked.text("decision")), words)

    def stands(self, asked: Asked, at: Opened) -> tuple[str, Sequence[shown.Link]]:
        """Return where the key stands now."""
        return "", [keys.link(keys.life(asked, at).key, "The key as it stands now")]

    def preview(self, request: Wanted, plan: Plan[list[Settled]]) -> shown.Preview:
        (key,) = request.keys
        return previewed(
            plan.what,
            f"{named(request.decision)}, {key.text}",
            ("of the same batch", "of the same batch", 50),
            keys.link(key, "Cancel"),
        )

    def done(self, request: Wanted, what: list[Settled]) -> shown.Done:
        (key,) = request.keys
        return shown.Done(go_to=keys.link(key, done=self.name))


def options(legend: str, decisions: Sequence[Decision]) -> shown.Options:
    """Return the field of a decision."""
    return shown.Options(
        "decision",
        legend,
        [shown.Option(each.value, f"{_LABELS[each]}.", CONSEQUENCES[each].meaning) for each in decisions],
    )


def _known(life: KeyLife) -> shown.Facts:
    row = life.key.row
    facts: list[tuple[str, Any]] = [
        ("Idempotency key", shown.Code(row.batch_id or row.idempotency_key, "ask the receiver about it"))
    ]
    if row.batch_id:
        facts.append(("Batch", f"{life.batch_documents:,} documents, settled together"))
    if row.offered_fields is not None:
        changed = ", ".join(row.offered_fields) or "no field can be compared"
        facts.append(("Other content", f"Listed since, and refused. Changed: {changed}"))
    if row.error:
        facts.append(("Error", [row.error]))
    said = _said(life)
    return shown.Facts([*facts, ("What was said", said)] if said else facts)


def _said(life: KeyLife) -> list[str]:
    """Return what is known of the doubt: what ``verify`` answered, what the last tries reported, newest first."""
    events = [
        f"{each.actor}: {each.reason}"
        for each in life.timeline
        if each.reason and (each.kind in _TOLD or each.actor == "verify")
    ]
    tries = [f"{each.identity.describe()}: {each.error}" for each in life.tries if each.error]
    return list(dict.fromkeys([*reversed(events[-3:]), *tries[:2]]))


def previewed(
    settled: Sequence[Settled], title: str, along: tuple[str, str, int], cancel: shown.Link
) -> shown.Preview:
    """Return what each key becomes.

    :param along: why a key is there that was not chosen, whose the others are that are not shown, and how many are.
    """
    why, others, first = along
    rows = [
        (
            each.key_text,
            shown.Badge(each.before.value),
            shown.Badge(each.after.value),
            "chosen" if each.asked else why,
        )
        for each in settled
    ]
    columns = (("Key", "long"), ("Is", ""), ("Becomes", ""), ("Why it is here", "muted"))
    table = shown.Table("What would change", columns, rows, first=first, more=f"and {{more}} more {others}")
    return shown.Preview(title, [table], cancel=cancel)


def named(decision: Decision) -> str:
    """Return a decision in words."""
    return decision.value.replace("_", " ")


RESOLVE = ResolveOne()
ACTS = (RESOLVE,)
