"""Say what became of the reversal of a first effect, which a rerun began and nobody saw the end of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_guard.acts import keys, shown
from airflow_guard.acts.act import Act, Late, Plan
from airflow_guard.acts.reruns import settle_reversal
from airflow_guard.core.errors import ResolutionError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from airflow_guard.acts.act import Asked, Opened, Words
    from airflow_guard.core.errors import GuardError
    from airflow_guard.reading.key_records import KeyRow


@dataclass(frozen=True)
class Wanted:
    """What became of the reversal of a key; ``owner_token`` is that of the attempt that was looked at."""

    key: KeyRow
    happened: bool
    words: Words
    owner_token: str | None = None

    @property
    def became(self) -> str:
        """What became of it, and what follows."""
        if self.happened:
            return "happened, and is not repeated"
        return "did not happen, and the next run makes it"


class SettleReversal(Act[Wanted, int]):
    """The answer holds for all documents of a batch, which had one reversal. It is a part of ``rerun``."""

    path = "reversal"
    fields = ("date", "key", "version", "happened", "reason")

    def opens(self, asked: Asked, at: Opened) -> None:
        """Refuse who may not edit the DAG of the key."""
        asked.person.must_edit([keys.life(asked, at).key.dag_id])

    may = opens

    def form(self, asked: Asked, at: Opened) -> shown.FillIn:
        life = keys.life(asked, at)
        key = life.key
        options = (
            shown.Option("yes", "is reversed.", "The next run does not reverse it again."),
            shown.Option("no", "is not reversed.", "The next run reverses it."),
        )
        about = "A rerun began to reverse the first effect, and its end was not seen. Ask the receiver, then say which."
        none = shown.Text("No reversal of this key is in doubt.", "empty", keys.link(key, "Back to the key"))
        return shown.FillIn(
            f"Reversal of {key.text}",
            [shown.Text(about)] if life.reversal_in_doubt else [],
            [shown.Options("happened", "The first effect", options)],
            why="How do you know?",
            heading=f"What became of the reversal? {key.text}",
            hidden={"date": [str(key.key_date)], "key": [key.key_hash], "version": [key.row.owner_token]},
            cancel=keys.link(key, "Cancel"),
            nothing=None if life.reversal_in_doubt else none,
        )

    def request(self, asked: Asked, at: Opened, words: Words) -> Wanted:
        happened = asked.text("happened")
        if happened not in ("yes", "no"):
            raise ResolutionError("Say whether the reversal happened.")
        return Wanted(keys.life(asked, at).key, happened == "yes", words, asked.text("version"))

    def run(self, at: Opened, request: Wanted, *, dry_run: bool) -> int:
        """Record it, and return for how many keys."""
        key, words = request.key, request.words
        return settle_reversal(
            at.ledger,
            key.key_date,
            key.key_hash,
            happened=request.happened,
            actor=words.actor,
            reason=words.reason,
            owner_token=request.owner_token,
            dry_run=dry_run,
        )

    def late(self, request: Wanted, error: GuardError, *, confirmed: bool) -> Late:
        """Say where the key stands now."""
        return Late.REFUSE

    def stands(self, asked: Asked, at: Opened) -> tuple[str, Sequence[shown.Link]]:
        """Return where the key stands now."""
        return "", [keys.link(keys.life(asked, at).key, "The key as it stands now")]

    def preview(self, request: Wanted, plan: Plan[int]) -> shown.Preview:
        along = f" This holds for all {plan.what:,} documents of its batch." if plan.what > 1 else ""
        text = shown.Text(f"The reversal of the first effect {request.became}.{along}")
        return shown.Preview(
            f"reversal of {request.key.text}", [text], cancel=keys.link(request.key, "Cancel")
        )

    def done(self, request: Wanted, what: int) -> shown.Done:
        return shown.Done(go_to=keys.link(request.key, done=self.name))

    def given(self, given: argparse.Namespace, at: Opened, words: Words) -> Wanted:
        return Wanted(keys.one_key(at.ledger, given.key[0]), given.reversal_happened, words)

    def said(self, request: Wanted, what: int, *, dry_run: bool) -> shown.Said:
        key = request.key
        data = {
            "key": key.row.key_hash,
            "text": key.text,
            "reversal_happened": request.happened,
            "keys": what,
        }
        along = f" (and {what - 1:,} more documents of its batch)" if what > 1 else ""
        return shown.Said(
            data, [f"{key.text}{along}: the reversal {request.became}. Clear the task to go on."]
        )


REVERSAL = SettleReversal()
ACTS = (REVERSAL,)
