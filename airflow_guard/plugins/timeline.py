"""The moments of a key's life in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_guard.core.monitoring import TimelineEntry

_WORDS = {
    "first_claimed": "Claimed for the first time",
    "claimed": "Claimed",
    "begun": "The effect began",
    "finished": "Finished",
    "renamed": "The operation was renamed",
    "asked_again": "Asked for again, and held off",
    "doubt": "In doubt: the effect may or may not have happened",
    "take_over": "Taken over by another attempt",
    "late_report": "Its attempt reported late",
    "resolve_happened": "Resolved: it happened",
    "resolve_not_happened": "Resolved: it did not happen",
    "waive": "Waived: settled another way",
    "send_again": "To be sent again",
    "drop": "Dropped: not done, and not to be",
    "follow_up_settled": "What follows the effect is settled",
    "follow_up_failed": "The effect is done, what follows it failed",
    "content_accepted": "Accepted: it stands for other content too",
    "new_content": "Claimed with new content",
    "adopt": "Adopted: recorded as done by a person",
    "rerun": "A person authorised that it is executed again",
    "rename": "The operation was renamed",
    "purge": "Purged",
    "namesake": "Done under another key namespace as well",
}
_BY_PEOPLE = {"resolve_happened", "resolve_not_happened", "waive", "send_again", "drop", "follow_up_settled",
              "content_accepted", "adopt", "rerun",
              "rename", "renamed"}  # fmt: skip


def words(entry: TimelineEntry) -> str:
    """Return what happened."""
    return _WORDS.get(entry.kind, entry.kind.replace("_", " ").capitalize())


def kind_of(entry: TimelineEntry) -> str:
    """Return how a moment is drawn: ``person``, ``bad``, ``held``, ``good`` or nothing special."""
    if entry.kind in _BY_PEOPLE:
        return "person"
    if entry.kind in ("doubt", "follow_up_failed", "namesake") or entry.to_state in (
        "in_doubt",
        "rejected",
        "failed",
    ):
        return "bad"
    if entry.kind in ("asked_again", "take_over"):
        return "held"
    return "good" if entry.kind in ("finished", "late_report") else ""
