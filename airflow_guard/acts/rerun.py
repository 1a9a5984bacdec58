"""A request for a rerun: which keys it means, and its authorisation. The command and the operator ask here."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_guard.acts import reruns
from airflow_guard.core.decisions import UNFINISHED, Situation
from airflow_guard.core.errors import ResolutionError
from airflow_guard.core.rerun_plan import DoneKey, RerunPlan
from airflow_guard.core.results import has_result
from airflow_guard.reading import listing
from airflow_guard.store.resolution import Judged

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from airflow_guard.reading.key_records import KeyRow
    from airflow_guard.reading.listing import Selection
    from airflow_guard.store.ledger import Ledger

MAX_KEYS = 100_000
_COUNTED = 1000


@dataclass(frozen=True)
class Request:
    """Who wants what executed once more, and why. Fields as :func:`airflow_guard.store.reruns.authorise` has them."""

    actor: str
    reason: str
    expires: timedelta
    without_reversal: bool = False
    ledger_name: str | None = None


def done_keys(
    ledger: Ledger, selection: Selection, readable: frozenset[str] | None = None
) -> tuple[list[KeyRow], dict[str, int]]:
    """Return the keys of a selection that are done, and how many of it stand elsewhere.

    :param selection: with documents, all of them must be known, and whatever stands elsewhere is returned too, so
        that the authorisation refuses it by name.
    :param readable: the DAGs whose keys are seen at all; ``None``: all. With it, only the first 1,000 of what stands
        elsewhere are counted.
    :raises ResolutionError: there are none, or too many. A retry does not help.
    """
    named = bool(selection.documents)
    wanted = selection if named else replace(selection, situations=frozenset({Situation.DONE}))
    found = listing.keys(ledger, replace(wanted, limit=MAX_KEYS))
    where = f"{selection.dag} / {selection.operation} / {selection.business_date}"
    where += f" to {selection.until}" if selection.until else ""
    if found.more:
        raise ResolutionError(
            f"{where} has more than {MAX_KEYS:,} done keys: authorise fewer dates at a time."
        )
    keys = [view for view in found.keys if readable is None or view.dag_id in readable]
    have = {view.row.document for view in keys}
    missing = sorted(each for each in selection.documents if each is not None and each not in have)
    if missing:
        raise ResolutionError(
            f"The ledger has no key {where} / {', '.join(missing[:5])}. Nothing was authorised."
        )
    others = {} if named else _others(ledger, selection, readable)
    if not keys:
        stand = f" ({', '.join(f'{count:,} {name}' for name, count in others.items())})" if others else ""
        raise ResolutionError(f"No key of {where} is done{stand}. Nothing was authorised.")
    return keys, others


def _others(ledger: Ledger, selection: Selection, readable: frozenset[str] | None) -> dict[str, int]:
    if readable is None:
        counted = listing.counts(ledger, selection)
        return {each.value: count for each, count in counted.items() if each is not Situation.DONE}
    unfinished = replace(selection, situations=UNFINISHED, limit=_COUNTED)
    found = Counter(
        view.situation.value for view in listing.keys(ledger, unfinished).keys if view.dag_id in readable
    )
    return dict(found)


def digest(views: Sequence[KeyRow], *, without_reversal: bool) -> str:
    """Return what tells one set of keys, each with the attempt that was looked at, from another.

    :param without_reversal: part of what is approved.
    """
    seen = sorted(f"{view.key_date} {view.row.key_hash} {view.row.owner_token}" for view in views)
    return hashlib.sha256("\n".join([str(without_reversal), *seen]).encode()).hexdigest()[:32]


def authorise(
    ledger: Ledger,
    views: Sequence[KeyRow],
    others: dict[str, int],
    request: Request,
    *,
    dry_run: bool,
) -> RerunPlan:
    """Authorise keys as they were looked at, or check that they can be, and return what it comes to.

    :param views: as they were looked at: a key with a newer attempt is refused.
    :raises ResolutionError: see :func:`airflow_guard.store.reruns.authorise`.
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
    done = [
        DoneKey(
            view.text, view.business_date, view.row.done_by, view.finished_at,
            view.row.result if has_result(view.row.result) else None, view.row.last_run,
        )
        for view in sorted(views, key=lambda view: (view.business_date, view.cycle, view.row.document or ""))
    ]  # fmt: skip
    return RerunPlan(done, request.without_reversal, others, until)
