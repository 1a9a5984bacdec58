"""Reconcile two sides."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_guard.core.errors import ConfigurationError
from airflow_guard.reconciling.comparison import Comparison, Reading, judge
from airflow_guard.reconciling.drilldown import DrillDown, Found, duplicates_in, null_keys
from airflow_guard.reconciling.expressions import expressions_for
from airflow_guard.reconciling.plan import is_unique, plan, readable
from airflow_guard.reconciling.rows import SideRows
from airflow_guard.reconciling.rules import BreakType, Matcher
from airflow_guard.reconciling.scan import Scanned, scan
from airflow_guard.reconciling.session import LOCK_TIMEOUT_S, SideSession, sessions
from airflow_guard.reconciling.spooling import spooled
from airflow_guard.store import dialects

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    import sqlalchemy as sa

    from airflow_guard.reconciling.rules import Rules
    from airflow_guard.reconciling.sides import Side

T = TypeVar("T")


def reconcile(
    source: Side,
    target: Side,
    rules: Rules,
    *,
    source_engine: sa.Engine,
    target_engine: sa.Engine,
    parameters: Mapping[str, Any] | None = None,
    lock_timeout_s: int = LOCK_TIMEOUT_S,
) -> Comparison:
    """Read both sides at once, compare their control totals, and drill down to documents where they differ.

    PostgreSQL, MySQL, MariaDB and SQLite compute checksums where the rows are. Of another database the totals are
    computed there; with keys, its rows are copied into a temporary file first.

    One scan a side; each side is read in one snapshot where its database can (PostgreSQL, InnoDB, SQLite), and both in
    the same one if they are in one database. Nothing is written.

    :param source_engine: SQLAlchemy engine of the source's database. It needs one free connection.
    :param target_engine: the target's; may be the same one, with two free connections.
    :param parameters: values for both sides (``business_date``), used where a side names them; a side's own
        ``parameters`` win.
    :param lock_timeout_s: seconds to wait for a locked table.
    :raises ConfigurationError: sides or rules that cannot work: names, several currencies, columns whose types cannot
        be compared, more than ``MAX_GROUPS`` groups. No retry helps.
    :raises SideInvalid: a database refused a statement: unknown table or column, a syntax error, no permission. No
        retry helps.
    :raises AmountError: an amount that is not an exact number. No retry helps.
    :raises SideUnavailable: a database is down, went away, or a lock was not free in time. A retry helps.
    """
    _check(source, target, rules)
    names = source.describe(), target.describe()
    with ExitStack() as stack:
        opened = stack.enter_context(
            sessions((names[0], source_engine), (names[1], target_engine), lock_timeout_s)
        )
        (first, second), read_at = opened
        given = parameters or {}
        here = stack.enter_context(spooled(first, source, rules, given, lock_timeout_s))
        there = stack.enter_context(spooled(second, target, rules, given, lock_timeout_s))
        both = (here[0], there[0])
        rows = _planned(both, (here[1], there[1]), rules, given)
        scans = _results(
            [session.start(partial(scan, each)) for session, each in zip(both, rows, strict=True)]
        )
        _refuse_currencies(rules, (source, target), scans)
        found = Found(rules.max_breaks)
        if source.keys:
            drill = DrillDown(both, rows, scans, Matcher(rules, source.amounts))
            found.add(null_keys(scans))
            drill.run(found)
            _add_equal_duplicates(drill, found)
    ours, theirs = (
        Reading(name, at, scanned.totals) for name, at, scanned in zip(names, read_at, scans, strict=True)
    )
    breaks = found.breaks if source.keys else None
    return judge(rules, ours, theirs, amount_names=source.amounts, breaks=breaks, capped=found.capped)


def _check(source: Side, target: Side, rules: Rules) -> None:
    """Refuse what cannot work before anything is sent."""
    for side in (source, target):
        side.check()
    if bool(source.keys) != bool(target.keys):
        raise ConfigurationError("Give key= for both sides, or for neither (then only totals are compared).")
    if rules.compare and not source.keys:
        raise ConfigurationError("compare= needs key=: without it there are no documents to compare.")


def _planned(
    both: tuple[SideSession, SideSession],
    sides: tuple[Side, Side],
    rules: Rules,
    parameters: Mapping[str, Any],
) -> tuple[SideRows, SideRows]:
    ours, theirs = (
        readable(session, side, rules, parameters) for session, side in zip(both, sides, strict=True)
    )
    native = all(session.dialect == dialects.POSTGRES for session in both)
    agreed = plan(ours, theirs, rules, native=native)
    here, there = (expressions_for(session.dialect, inexact=rules.inexact) for session in both)
    return SideRows(ours, agreed, here), SideRows(theirs, agreed, there)


def _results(futures: Sequence[Future[T]]) -> tuple[T, T]:
    """Wait for both sides; of two errors, raise the one that no retry helps."""
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda each: bool(getattr(each, "retryable", False))):
        raise error
    ours, theirs = (future.result() for future in futures)
    return ours, theirs


def _refuse_currencies(rules: Rules, sides: tuple[Side, Side], scans: tuple[Scanned, Scanned]) -> None:
    found = scans[0].currencies | scans[1].currencies
    if len(found) < 2:
        return
    column = next(side.currency for side in sides if side.currency is not None)
    shown = ", ".join(sorted("NULL" if each is None else repr(each) for each in found)[:10])
    raise ConfigurationError(
        f"The column {column!r} has several values ({shown}), whose amounts cannot be added up. "
        f"Put it into group_by: group_by={[*rules.group_by, column]}."
    )


def _add_equal_duplicates(drill: DrillDown, found: Found) -> None:
    """Add keys that occur more than once, equally often and with equal rows, on both sides.

    No comparison of the two sides shows them. What differed has been read and compared by now, so that the rest is
    equal, and it is enough to look at one side; and at none if a constraint of either makes them impossible.
    """
    if found.capped or drill.read_everything:
        return
    for session, rows in zip(drill.sessions, drill.rows, strict=True):
        if session.run(partial(is_unique, rows.readable, session.dialect)):
            return
    known = {(each.group, each.key) for each in found.breaks if each.type is BreakType.DUPLICATE_IN_SOURCE}
    limit = found.cap - len(found.breaks) + 1 + len(known)
    session, source = drill.sessions[0], drill.rows[0]
    for each in session.run(partial(duplicates_in, source, limit)):
        if (each.group, each.key) not in known:
            same = replace(each, target_amount=each.source_amount, target_records=each.source_records)
            found.add([same, replace(same, type=BreakType.DUPLICATE_IN_TARGET)])
