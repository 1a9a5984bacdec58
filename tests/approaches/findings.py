"""What comes of each fault under each approach: the tests find it, and the page shows it."""

from __future__ import annotations

ONCE, TWICE, LOST, ASKS = "once", "twice", "lost", "asks"
MISSING = "asks, not done"
"""``ASKS``: done once, and a person is asked whether it was; ``MISSING``: not done, and a person is asked."""


def finding(effects: int, *, asked: bool) -> str:
    """Return what came of a document.

    :param effects: how often its effect happened.
    :param asked: whether a person is asked about it.
    """
    if effects > 1:
        return TWICE
    if asked:
        return ASKS if effects else MISSING
    return ONCE if effects else LOST


# The columns of the page's two tables, with their heads there.
WHO_MAY_START = {
    "single_instance": "single instance",
    "task_row": "task row",
    "task_row_of_date": "task row of a date",
    "redis_lock": "Redis lock",
    "renewed_redis_lock": "renewed lock",
    "sharding": "sharding",
}
WHAT_WAS_DONE = {
    "unique_rows": "unique index, rows",
    "unique_row_first": "unique index, row then call",
    "unique_call_first": "unique index, call then row",
    "guarded_rows": "this package, rows",
    "guarded_calls": "this package, calls",
    "verified_calls": "calls with verify",
}

# The lines, with their words on the page.
WORDS = {
    "two_machines": "two machines get one trigger",
    "machine_added": "the same, while a machine is added",
    "overlapping_tries": "an orphaned try works on beside the next one",
    "outlasting": "the work takes longer than the lock lives",
    "paused": "the process stands still for longer than that",
    "flushed": "the lock server loses its data meanwhile",
    "redelivered": "a timeout, and delivered again until a try succeeds",
    "killed_before": "killed just before the effect, then retried",
    "killed_after": "killed just after the effect, then retried",
    "rerun_by_hand": "run again by hand after its success",
    "cleared": "cleared after its success",
    "backfilled": "a backfill of a date that is done",
    "listed_again": "listed again the next day",
    "listed_changed": "listed again with another amount",
    "listed_twice": "twice in one list",
    "restored": "the database is restored from a backup",
}

_SCHEDULING = {
    "two_machines":      (ONCE, ONCE, ONCE, ONCE, ONCE, ONCE),
    "machine_added":     (ONCE, ONCE, ONCE, ONCE, ONCE, TWICE),
    "overlapping_tries": (ONCE, ONCE, ONCE, ONCE, ONCE, TWICE),
    "outlasting":        (ONCE, TWICE, TWICE, TWICE, ONCE, TWICE),
    "paused":            (ONCE, TWICE, TWICE, TWICE, TWICE, TWICE),
    "flushed":           (ONCE, ONCE, ONCE, TWICE, TWICE, TWICE),
    "redelivered":       (TWICE, TWICE, ONCE, TWICE, TWICE, TWICE),
    "killed_before":     (ONCE, ONCE, ONCE, ONCE, ONCE, ONCE),
    "killed_after":      (TWICE, TWICE, TWICE, TWICE, TWICE, TWICE),
    "rerun_by_hand":     (TWICE, TWICE, ONCE, TWICE, TWICE, TWICE),
    "cleared":           (TWICE, TWICE, ONCE, TWICE, TWICE, TWICE),
    "backfilled":        (TWICE, TWICE, ONCE, TWICE, TWICE, TWICE),
    "listed_again":      (TWICE, TWICE, TWICE, TWICE, TWICE, TWICE),
    "listed_changed":    (TWICE, TWICE, TWICE, TWICE, TWICE, TWICE),
    "listed_twice":      (TWICE, TWICE, TWICE, TWICE, TWICE, TWICE),
    "restored":          (TWICE, TWICE, TWICE, TWICE, TWICE, TWICE),
}  # fmt: skip
_EXECUTION = {
    "two_machines":      (ONCE, ONCE, TWICE, ONCE, ONCE, ONCE),
    "machine_added":     (ONCE, ONCE, TWICE, ONCE, ONCE, ONCE),
    "overlapping_tries": (ONCE, ONCE, TWICE, ONCE, ONCE, ONCE),
    "outlasting":        (ONCE, ONCE, TWICE, ONCE, ONCE, ONCE),
    "paused":            (ONCE, ONCE, TWICE, ONCE, ASKS, ONCE),
    "flushed":           (ONCE, ONCE, TWICE, ONCE, ONCE, ONCE),
    "redelivered":       (ONCE, ONCE, TWICE, ONCE, ONCE, ONCE),
    "killed_before":     (ONCE, LOST, ONCE, ONCE, MISSING, ONCE),
    "killed_after":      (ONCE, ONCE, TWICE, ONCE, ASKS, ONCE),
    "rerun_by_hand":     (ONCE, ONCE, ONCE, ONCE, ONCE, ONCE),
    "cleared":           (ONCE, ONCE, ONCE, ONCE, ONCE, ONCE),
    "backfilled":        (ONCE, ONCE, ONCE, ONCE, ONCE, ONCE),
    "listed_again":      (ONCE, ONCE, ONCE, ONCE, ONCE, ONCE),
    "listed_changed":    (ONCE, ONCE, ONCE, ASKS, ASKS, ASKS),
    "listed_twice":      (ONCE, ONCE, ONCE, ONCE, ONCE, ONCE),
    "restored":          (ONCE, TWICE, TWICE, ONCE, TWICE, TWICE),
}  # fmt: skip


def _by_approach(found: dict[str, tuple[str, ...]], approaches: dict[str, str]) -> dict[str, dict[str, str]]:
    return {
        name: {fault: cells[place] for fault, cells in found.items()} for place, name in enumerate(approaches)
    }


FINDINGS = _by_approach(_SCHEDULING, WHO_MAY_START) | _by_approach(_EXECUTION, WHAT_WAS_DONE)
"""By approach and fault, what comes of the document."""


def lines(approaches: dict[str, str]) -> list[str]:
    """Return a table of the page.

    :param approaches: its columns.
    """
    rows = [["", *approaches.values()], ["---"] * (len(approaches) + 1)]
    for fault, words in WORDS.items():
        rows.append([words, *(_cell(FINDINGS[name][fault]) for name in approaches)])
    return [f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in rows]


def _cell(found: str) -> str:
    return f"**{found}**" if found in {TWICE, LOST} else found
