"""A request for a rerun: which keys it means, and its authorisation. The command and the operator ask here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_guard.core.decisions import Situation
from airflow_guard.core.errors import ResolutionError
from airflow_guard.core.rerun_plan import DoneKey, RerunPlan
from airflow_guard.core.results import has_result
from airflow_guard.store import listing, reruns
from airflow_guard.store.resolution import Judged

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from airflow_guard.store.ledger import Ledger
    from airflow_guard.store.listing import KeyView, Selection

MAX_KEYS = 100_000


@dataclass(frozen=True)
class Request:
    """Who wants what executed once more, and why. Fields as :func:`airflow_guard.store.reruns.authorise` has them."""

    actor: str
    reason: str
    expires: timedelta
    without_reversal: bool = False
    ledger_name: str | None = None


def done_keys(ledger: Ledger, selection: Selection) -> tuple[list[KeyView], dict[str, int]]:
    """Return the keys of a selection that are done, and how many of it stand elsewhere.

    :param selection: with documents, all of them must be known, and whatever stands elsewhere is returned too, so
        that the authorisation refuses it by name.
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
    have = {view.row.document for view in found.keys}
    missing = sorted(each for each in selection.documents if each is not None and each not in have)
    if missing:
        raise ResolutionError(
            f"The ledger has no key {where} / {', '.join(missing[:5])}. Nothing was authorised."
        )
    counted = {} if named else listing.counts(ledger, selection)
    others = {each.value: count for each, count in counted.items() if each is not Situation.DONE}
    if not found.keys:
        stand = f" ({', '.join(f'{count:,} {name}' for name, count in others.items())})" if others else ""
        raise ResolutionError(f"No key of {where} is done{stand}. Nothing was authorised.")
    return found.keys, others


def authorise(
    ledger: Ledger, views: Sequence[KeyView], others: dict[str, int], request: Request, *, dry_run: bool
) -> RerunPlan:
    """Authorise keys as they were looked at, or check that they can be, and return what it comes to.

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
