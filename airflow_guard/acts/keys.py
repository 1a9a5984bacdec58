"""Which keys the arguments mean, and how a key is shown."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Any

from airflow_guard.acts import shown
from airflow_guard.acts.arguments import UsageError
from airflow_guard.core.commands import resolve_command, show_day_command
from airflow_guard.core.dates import parse_business_date
from airflow_guard.core.decisions import DECISIONS_OF, UNFINISHED, Decision, Situation
from airflow_guard.core.errors import BusinessDateError, ResolutionError
from airflow_guard.core.keys import normalise_document
from airflow_guard.core.results import decode_result, has_result
from airflow_guard.core.texts import age, instant
from airflow_guard.reading import listing
from airflow_guard.reading.scope import NotThere
from airflow_guard.store.resolution import Judged

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from datetime import date, datetime

    from airflow_guard.acts.act import Asked, Opened
    from airflow_guard.core.guard import LedgerRow, TaskIdentity
    from airflow_guard.reading.key_records import KeyLife, KeyRow
    from airflow_guard.store.ledger import Ledger

SHORT_KEY = 10
MANY = 100_000
STYLES = {
    Situation.IN_DOUBT: "bold red", Situation.FOLLOW_UP_OPEN: "bold red", Situation.REJECTED: "yellow",
    Situation.FAILED: "yellow", Situation.ABANDONED: "yellow", Situation.RUNNING: "cyan",
    Situation.FOLLOW_UP_RUNNING: "cyan", Situation.DONE: "green", Situation.DROPPED: "green",
}  # fmt: skip
SITUATIONS = {
    "unfinished": UNFINISHED,
    "in_doubt": frozenset({Situation.IN_DOUBT}),
    "in_progress": frozenset({Situation.RUNNING, Situation.ABANDONED}),
    "rejected": frozenset({Situation.REJECTED}),
    "failed": frozenset({Situation.FAILED}),
    "dropped": frozenset({Situation.DROPPED}),
    "follow_up": frozenset({Situation.FOLLOW_UP_OPEN}),
    "completed": frozenset({Situation.DONE, Situation.FOLLOW_UP_RUNNING, Situation.FOLLOW_UP_OPEN}),
}
"""What ``--state`` names."""

_WORDS = {
    Decision.HAPPENED: "it happened",
    Decision.DID_NOT_HAPPEN: "it did not happen",
    Decision.WAIVE: "settled another way",
    Decision.SEND_AGAIN: "try it again",
    Decision.DROP: "it is not to be done any more",
    Decision.FOLLOWED_UP: "that is finished too",
    Decision.CONTENT_STANDS: "it stands for the other content too",
}


def actor_of(given: argparse.Namespace) -> str:
    """Return who acts: ``--actor``, else the user of this system."""
    if given.actor:
        return str(given.actor)
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        raise UsageError("this system does not say who you are: give --actor NAME") from None


def date_of(text: str) -> date:
    """Return a business date of the command line."""
    return parse_business_date(text, source="DATE")


def one_key(ledger: Ledger, prefix: str) -> KeyRow:
    """Return the key that begins so.

    :raises ResolutionError: there is none, or several do.
    """
    found = listing.find(ledger, prefix)
    if not found:
        raise ResolutionError(
            f"The ledger has no key {prefix}. If the operation was renamed since, its keys changed: look for "
            "the document with airflow-guard show DAG DATE --document ID."
        )
    if len(found) > 1:
        raise ResolutionError(
            f"Several keys begin with {prefix}: {', '.join(v.row.key_hash for v in found)}, …"
        )
    return found[0]


def selected(ledger: Ledger, given: argparse.Namespace, decision: Decision) -> list[KeyRow]:
    """Return the keys that the arguments of ``resolve`` select.

    :raises UsageError: they do not say which.
    :raises ResolutionError: there are none.
    """
    if given.key:
        if given.dag or given.all:
            raise UsageError("give either --key, or DAG DATE OPERATION DOCUMENT…")
        return list(
            {view.row.key_hash: view for view in (one_key(ledger, key) for key in given.key)}.values()
        )
    if not (given.dag and given.date and given.operation):
        raise UsageError("give --key HASH, or DAG DATE OPERATION and documents")
    if given.all and given.documents:
        raise UsageError("give documents, or --all")
    fitting = frozenset(s for s in Situation if decision in DECISIONS_OF.get(s, ()))
    if decision is Decision.CONTENT_STANDS:
        fitting = frozenset({Situation.DONE, Situation.REJECTED})
    documents: list[str | None] = list(documents_of(given.documents)) or [None]
    found = listing.keys(
        ledger,
        listing.Selection(
            dag=given.dag,
            business_date=date_of(given.date),
            operation=given.operation,
            documents=() if given.all else documents,
            situations=fitting if given.all else frozenset(),
            limit=MANY,
        ),
    ).keys
    if not given.all:
        _check_found(found, documents, given)
        return found
    found = [view for view in found if decision in view.decisions]
    if not found:
        stand = " or ".join(sorted(fitting))
        if decision is Decision.CONTENT_STANDS:
            stand += " and was listed with other content since"
        raise ResolutionError(f"No key of {given.dag} / {given.operation} / {given.date} is {stand}.")
    return found


def _check_found(found: list[KeyRow], documents: list[str | None], given: argparse.Namespace) -> None:
    where = f"{given.dag} / {given.operation} / {given.date}"
    have = [view.row.document for view in found]
    missing = [document for document in documents if document not in have]
    if missing:
        named = ", ".join("(whole run)" if each is None else each for each in missing)
        raise ResolutionError(
            f"The ledger has no key {where} / {named}. To see what it has: "
            f"{show_day_command(given.dag, given.date, ledger=given.ledger)}"
        )
    if len(have) > len(set(have)):
        several = "; ".join(f"{view.text}: --key {view.row.key_hash}" for view in found)
        raise ResolutionError(
            f"Several keys fit (cycles, or once per document). Choose one by its key: {several}"
        )


def documents_of(given: Sequence[str]) -> list[str]:
    """Return documents in the form that decides what is equal.

    :raises DocumentError: one cannot be a document.
    """
    return [normalise_document(document) for document in given]


def commands_for(view: KeyRow, ledger: str | None) -> dict[str, str]:
    """Return the command lines that settle a key, by what each says; empty if there is nothing to settle."""
    return {
        _WORDS[decision]: resolve_command(view.row.key_hash, decision=decision, ledger=ledger)
        for decision in view.decisions
    }


def short(view: KeyRow) -> dict[str, Any]:
    """Return a key as a row of a table for people: what may be cut comes last, the key fit to be typed."""
    row = view.row
    run = row.last_run
    at = view.finished_at or view.begun_at or view.claimed_at
    return {
        "state": view.situation.value,
        "date": view.business_date.isoformat() + (f" / {view.cycle}" if view.cycle else ""),
        "operation": f"{view.key_namespace} / {view.operation}",
        "document": row.document if row.document is not None else "(whole run)",
        "key": row.key_hash[:SHORT_KEY],
        "attempt": row.attempt,
        "at (UTC)": f"{at:%Y-%m-%d %H:%M}" if at else None,
        "error or result": _outcome(view),
        "run": f"{run.run_id}, try {run.try_number}" if run else "adopted",
    }


def full(view: KeyRow) -> dict[str, Any]:
    """Return a key as an object for programs: everything, nothing abbreviated."""
    row = view.row
    return {
        "situation": view.situation.value,
        "state": row.state.value,
        "phase": row.phase.value,
        "follow_up": row.follow_up.value,
        "key_namespace": view.key_namespace,
        "operation": view.operation,
        "business_date": view.business_date.isoformat(),
        "cycle": view.cycle,
        "document": row.document,
        "once_per": view.once_per,
        "deployment": row.deployment,
        "attempt": row.attempt,
        "generation": row.generation,
        "last_run": _identity(row.last_run),
        "first_run": _identity(row.first_run),
        "lease_over": row.lease_over,
        "last_sign_age_s": round(row.last_sign_age_s, 1),
        "claimed_at": _iso(view.claimed_at),
        "begun_at": _iso(view.begun_at),
        "finished_at": _iso(view.finished_at),
        "has_result": has_result(row.result),
        "result": decode_result(row.result),
        "error": row.error,
        "other_content_fields": row.offered_fields,
        "accepted_contents": len(row.accepted),
        "key_date": view.key_date.isoformat(),
        "key": row.key_hash,
        "idempotency_key": row.idempotency_key,
        "batch_id": row.batch_id,
        "owner_token": row.owner_token,
    }


def facts(view: KeyRow, batch_documents: int = 0) -> dict[str, str | None]:
    """Return what a person needs to decide: when, by which run, what is known."""
    row = view.row
    given, batch = " (what the receiver was given)", None
    if row.batch_id:
        batch = f"{row.batch_id} ({batch_documents:,} documents, settled together; {given[2:]}"
    lease = "its lease is over" if row.lease_over else "its lease is alive"
    unfinished = view.situation is not Situation.DONE
    first = row.first_run.describe() if row.first_run else None
    return {
        "key": row.key_hash,
        "idempotency key": row.idempotency_key + ("" if row.batch_id else given),
        "batch": batch,
        "deployment": row.deployment,
        "once per document": f"first listed for {view.business_date}"
        if view.once_per == "document"
        else None,
        "attempt": f"{row.attempt}, {row.done_by}",
        "generation": f"{row.generation} (executed again on purpose)" if row.generation > 1 else None,
        "rerun": f"authorised by {row.rerun.actor}: {row.rerun.reason}" if row.rerun else None,
        "first claimed by": first if row.first_run != row.last_run else None,
        "claimed": instant(view.claimed_at),
        "effect begun": instant(view.begun_at),
        "finished": instant(view.finished_at),
        "last sign of life": f"{age(row.last_sign_age_s)} ago; {lease}" if unfinished else None,
        "other content": _other_content(row),
        "note": row.error,
        "result": (row.result if has_result(row.result) else "none stored") if not unfinished else None,
    }


def _other_content(row: LedgerRow) -> str | None:
    fields = row.offered_fields
    if fields is None:
        return f"accepted {len(row.accepted)} times" if row.accepted else None
    return f"listed since, and refused; changed: {', '.join(fields) or 'no field can be compared'}"


def _outcome(view: KeyRow) -> str | None:
    return view.row.result if view.situation is Situation.DONE and view.row.result else view.row.error


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _identity(who: TaskIdentity | None) -> dict[str, Any] | None:
    if who is None:
        return None
    return {
        "dag_id": who.dag_id, "task_id": who.task_id, "run_id": who.run_id, "map_index": who.map_index,
        "try_number": who.try_number, "run_type": who.run_type, "host": who.host, "pid": who.pid,
        "started_at": _iso(who.started_at),
    }  # fmt: skip


# -- Keys on the pages ---------------------------------------------------------------------------------------

_AT_ONCE = 50
_KEY_HEX = 32


def judged(pick: str) -> Judged:
    """Return the key that a field names: its date, its hash and, once it was shown, its version.

    :raises NotThere: it names none.
    """
    day, _, rest = pick.partition(".")
    key_hash, _, token = rest.partition(".")
    return Judged.of(_day(day, key_hash), key_hash, token)


def picked(asked: Asked, at: Opened) -> list[KeyRow]:
    """Return the keys that the fields ``pick`` name.

    :raises NotThere: one is not there, or the person may not read it; or they are none, or too many.
    """
    wanted = [(each.key_date, each.key_hash) for each in map(judged, asked.all("pick"))]
    if not wanted or len(wanted) > _AT_ONCE or len(set(wanted)) < len(wanted):
        raise NotThere
    found = list(at.look().picked_keys(wanted, asked.person.readable))
    if len(found) < len(wanted):
        raise NotThere
    return found


def life(asked: Asked, at: Opened) -> KeyLife:
    """Return the life of the key that the fields ``date`` and ``key`` name.

    :raises NotThere: it is not there, or the person may not read it.
    """
    key_hash = asked.text("key")
    found = at.look().key(_day(asked.text("date"), key_hash), key_hash, asked.person.readable)
    if found is None:
        raise NotThere
    return found


def link(key: KeyRow, words: str = "", **more: str) -> shown.Link:
    """Return the page of a key."""
    return shown.Link(words or key.text, "key", {"date": key.key_date, "key": key.key_hash, **more})


def cut(text: str, most: int) -> str:
    """Return a text that is not longer than a cell takes."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _day(text: str, key_hash: str) -> date:
    try:
        day = parse_business_date(text, source="the page") if text else None
    except BusinessDateError:
        day = None
    if day is None or len(key_hash) != _KEY_HEX:
        raise NotThere
    return day
