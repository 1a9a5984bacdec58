"""Counts what happened, from the outside.

It reads the business table, the receivers' journals, the ledger's tables with SQL of its own, and what people were told.
It uses no function and no counter of the package, so that a mistake of the package is not repeated here.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from chaos.rig import RECEIVERS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chaos.plan import Expected
    from chaos.rig import Rig

_SHOWN = 5
#: A doubt that somebody must be told of: one that the next try has not settled by itself by then.
_LONG = timedelta(seconds=90)
_ROWS = (
    "SELECT key_hash, operation, business_date, cycle, document, state, follow_up, generation, attempt, error "
    "FROM guard_execution"
)
_EVENTS = (
    "SELECT id, at, kind, key_hash, actor, reason FROM guard_event WHERE key_hash IS NOT NULL ORDER BY id"
)
_TRIES = "SELECT dag_id, task_id, run_id, map_index, pid, outcome, started_at, ended_at FROM guard_task_run ORDER BY id"
_SUCCEEDED = "SELECT DISTINCT operation, business_date, cycle FROM guard_task_run WHERE outcome = 'success' AND map_index < 0"
_ENDS_A_DOUBT = {"resolve_happened", "resolve_not_happened", "late_report"}


@dataclass
class Verdict:
    """What was counted: each list names the documents, or the tasks, that it is about."""

    documents: int
    duplicates: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    unflagged: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether the promise was kept, and all was done in time."""
        return self.safe and not self.stuck

    @property
    def safe(self) -> bool:
        """Whether the promise was kept. Work that is not done yet is late: that says more about the machine."""
        return not (self.duplicates or self.lost or self.unflagged or self.wrong)

    def lines(self) -> Iterable[str]:
        """Yield what there is to say, without the closing line."""
        yield from self.notes
        for name in ("duplicates", "lost", "unflagged", "stuck", "wrong"):
            found: list[str] = getattr(self, name)
            yield from (f"{name}: {each}" for each in found[:_SHOWN])
            if len(found) > _SHOWN:
                yield f"{name}: … and {len(found) - _SHOWN} more"

    def closing(self, faults: int) -> str:
        """Return the line that says it all."""
        figures = {name: len(getattr(self, name)) for name in ("duplicates", "lost", "unflagged", "stuck")}
        more = {"wrong": len(self.wrong)} if self.wrong else {}
        counted = {"documents": self.documents, "faults": faults, **figures, **more}
        return " ".join(f"{name}={number}" for name, number in counted.items())


def judge(rig: Rig) -> Verdict:
    """Count everything."""
    expected = {each.document: each for each in rig.plan.expected()}
    effects = _effects(rig)
    rows = {row["document"]: row for row in rig.rows(_ROWS)}
    over = {(row["operation"], row["business_date"], row["cycle"]) for row in rig.rows(_SUCCEEDED)}
    verdict = Verdict(len(expected))
    for document, each in expected.items():
        succeeded = (each.operation.name, each.business_date, each.cycle) in over
        _judge_one(verdict, each, effects[document], rows.get(document), succeeded=succeeded)
    verdict.wrong += [f"{document}: nobody expected it" for document in effects if document not in expected]
    verdict.wrong += [
        f"{document}: a key that nobody expected" for document in rows if document not in expected
    ]
    _judge_sums(verdict, rig, expected, rows)
    _judge_doubts(verdict, rig, rows)
    _judge_alerts(verdict, rig)
    return verdict


def effects_of(rig: Rig, receiver: str) -> Counter[str]:
    """Count the effects for each document at a receiver."""
    return Counter(document for call in _calls(rig, receiver) for document in call["statement_no"].split())


def _calls(rig: Rig, receiver: str) -> list[dict[str, Any]]:
    text = rig.journal(receiver).read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def has_duplicates(rig: Rig) -> bool:
    """Whether there is a document with a second effect already."""
    return any(number > 1 for number in _effects(rig).values())


def _effects(rig: Rig) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in rig.rows("SELECT document, count(*) AS number FROM posting GROUP BY document"):
        found[row["document"]] += row["number"]
    for receiver in RECEIVERS:
        found += effects_of(rig, receiver)
    return found


def _judge_one(
    verdict: Verdict, each: Expected, effects: int, row: dict[str, Any] | None, *, succeeded: bool
) -> None:
    """Judge one document.

    :param succeeded: whether a task that had to do it has succeeded: then it must be known to the ledger.
    """
    name = f"{each.document} ({each.operation.dag_id}.{each.operation.name})"
    state = row["state"] if row else "unknown to the ledger"
    if effects > 1:
        verdict.duplicates.append(f"{name}: {effects} effects, {state}")
    forgotten = row is None and (succeeded or effects)
    if forgotten or state == "rejected" or (state == "completed" and not effects):
        verdict.lost.append(f"{name}: {effects} effects, {state}")
    elif row is None:
        verdict.stuck.append(f"{name}: not begun")
    elif state != "completed" or row["follow_up"] in ("pending", "failed"):
        verdict.stuck.append(f"{name}: {state}, {effects} effects, attempt {row['attempt']}, {row['error']}")


def _judge_sums(
    verdict: Verdict, rig: Rig, expected: dict[str, Expected], rows: dict[str, dict[str, Any]]
) -> None:
    """Compare what was posted with the amounts of what the ledger calls completed, day by day."""
    query = (
        "SELECT operation, business_date, sum(amount) AS total FROM posting GROUP BY operation, business_date"
    )
    posted = {(row["operation"], row["business_date"]): row["total"] for row in rig.rows(query)}
    wanted: dict[tuple[str, Any], Any] = defaultdict(int)
    for each in expected.values():
        done = each.document in rows and rows[each.document]["state"] == "completed"
        if done and each.operation.effect == "posting" and not each.operation.once_per_document:
            wanted[each.operation.name, each.business_date] += each.amount
    for (operation, day), total in wanted.items():
        found = posted.get((operation, day), 0)
        if found != total:
            verdict.wrong.append(f"{operation} of {day}: {found} was posted, not {total}")


def _judge_doubts(verdict: Verdict, rig: Rig, rows: dict[str, dict[str, Any]]) -> None:
    by_hash = {row["key_hash"]: row for row in rows.values()}
    life: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in rig.rows(_EVENTS):
        life[event["key_hash"]].append(event)
    alerts = told(rig)
    doubts = 0
    for key_hash, events in life.items():
        row = by_hash.get(key_hash)
        if row is None:
            continue
        for number, event in enumerate(events):
            if event["kind"] != "doubt":
                continue
            doubts += 1
            end = next((later for later in events[number + 1 :] if later["kind"] in _ENDS_A_DOUBT), None)
            if end is None and row["state"] != "in_doubt":
                verdict.unflagged.append(
                    f"{row['document']}: a doubt that nobody settled, now {row['state']}"
                )
            if (end is None or end["at"] - event["at"] > _LONG) and not tells_of(
                alerts, row, events[0]["at"]
            ):
                verdict.unflagged.append(f"{row['document']}: nobody was told of the doubt of {event['at']}")
    doubted = {
        by_hash[key]["document"] for key, events in life.items() if key in by_hash and _is_doubted(events)
    }
    for receiver, manners in RECEIVERS.items():
        unanswered = _calls(rig, receiver)[manners.loses_answers - 1 :: manners.loses_answers]
        for call in unanswered:
            verdict.unflagged += [
                f"{document}: its answer was lost, and it was never in doubt"
                for document in call["statement_no"].split()
                if document not in doubted
            ]
    verdict.notes.append(f"doubts: {doubts}, of {len(doubted)} documents")


def _is_doubted(events: list[dict[str, Any]]) -> bool:
    return any(event["kind"] == "doubt" for event in events)


def _judge_alerts(verdict: Verdict, rig: Rig) -> None:
    tries = rig.rows(_TRIES)
    said: dict[str, list[str]] = defaultdict(list)
    for alert in told(rig):
        said[alert["run_id"]].append(alert["subject"])
    failed = {
        (row["dag_id"], row["task_id"], row["run_id"])
        for row in tries
        if row["outcome"] == "failed" and row["pid"] not in rig.struck and not _was_taken(rig, row)
    }
    verdict.unflagged += [
        f"{dag_id}.{task_id} of {run_id}: it failed, and nobody was told"
        for dag_id, task_id, run_id in sorted(failed)
        if not any(f"{dag_id} / {task_id}" in subject for subject in said[run_id])
    ]
    outcomes = Counter(row["outcome"] or "died" for row in tries)
    verdict.notes.append(f"tries: {', '.join(f'{number} {name}' for name, number in outcomes.most_common())}")


def _was_taken(rig: Rig, row: dict[str, Any]) -> bool:
    """Whether a person took the task away while this try ran: Airflow then kills it, and asks it for no alert."""
    return any(
        (each.dag_id, each.run_id) == (row["dag_id"], row["run_id"])
        and row["started_at"] <= each.until
        and each.since <= row["ended_at"]
        for each in rig.taken
    )


def told(rig: Rig) -> list[dict[str, Any]]:
    """Return the alerts, oldest first."""
    text = rig.alerts_file.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def tells_of(alerts: list[dict[str, Any]], row: dict[str, Any], since: datetime) -> bool:
    """Whether people were told of trouble with an operation and date, at this time or later."""
    names = (row["operation"], str(row["business_date"]))
    return any(
        datetime.fromisoformat(alert["at"]) >= since - timedelta(seconds=2)
        and all(name in alert["text"] for name in names)
        for alert in alerts
    )
