"""Taking back authorisations of reruns that nobody has used yet."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import date
from itertools import groupby
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.acts import keys, shown
from airflow_guard.acts.act import Act, Late, Plan
from airflow_guard.acts.arguments import UsageError
from airflow_guard.core.dates import parse_business_date
from airflow_guard.core.decisions import check_words
from airflow_guard.core.errors import ResolutionError
from airflow_guard.store.changes import describe
from airflow_guard.store.dialects import utc_now
from airflow_guard.store.events import AuditEvent, storable, told
from airflow_guard.store.task_runs import aware

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from airflow_guard.acts.act import Asked, Opened, Words
    from airflow_guard.core.errors import GuardError
    from airflow_guard.store.ledger import Ledger

CHUNK = 500


@dataclass(frozen=True, slots=True)
class Granted:
    """An authorisation that holds, and that nobody has used.

    :param rerun_id: its row.
    :param key_text: the key as a person reads it.
    :param actor: who authorised it, and why: ``reason``.
    """

    rerun_id: int
    key_date: date
    key_hash: str
    key_text: str
    actor: str
    reason: str
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class Scope:
    """Which authorisations; every part narrows it.

    :param hashes: of keys; empty: all.
    :param documents: normalised ids; empty: all.
    """

    key_namespace: str | None = None
    operation: str | None = None
    start: date | None = None
    end: date | None = None
    cycle: str | None = None
    documents: Collection[str | None] = ()
    hashes: Collection[str] = ()


def granted(ledger: Ledger, scope: Scope) -> list[Granted]:
    """Return the authorisations that hold and that nobody has used, by key.

    :raises LedgerUnavailable: the database is down (a retry helps).
    """
    e, r = ledger.database.tables.execution, ledger.database.tables.rerun
    same_key = sa.and_(e.c.key_date == r.c.key_date, e.c.key_hash == r.c.key_hash)
    found = sa.select(e, r.c.id, r.c.actor, r.c.reason, r.c.expires_at).join(r, same_key)
    found = found.where(r.c.used_at.is_(None), r.c.expires_at > utc_now())
    parts = {"key_namespace": scope.key_namespace, "operation": scope.operation, "cycle": scope.cycle}
    found = found.where(*(e.c[name] == value for name, value in parts.items() if value is not None))
    if scope.start is not None:
        found = found.where(e.c.business_date.between(scope.start, scope.end or scope.start))
    if scope.hashes:
        found = found.where(e.c.key_hash.in_(sorted(scope.hashes)))
    rows = ledger.database.read(
        lambda connection: connection.execute(found.order_by(e.c.key_date, e.c.key_hash)).all()
    )
    return [
        Granted(
            row.id, row.key_date, row.key_hash, describe(row), row.actor, row.reason, aware(row.expires_at)
        )
        for row in rows
        if not scope.documents or row.document in scope.documents
    ]


def withdraw(ledger: Ledger, given: Sequence[Granted], *, actor: str, reason: str) -> None:
    """Take authorisations back, all of them or none. The keys stay done, and are replayed.

    :param given: as somebody looked at them.
    :param actor: who says so.
    :param reason: why, mandatory.
    :raises ResolutionError: one was used meanwhile, or is gone. A retry does not help.
    :raises LedgerBusy: a lock was not free in time (a retry helps).
    """
    actor, reason = check_words(actor, reason)

    def work(connection: sa.Connection) -> None:
        ledger.database.limit_locks(connection)
        for key_date, group in groupby(given, key=lambda each: each.key_date):
            members = list(group)
            for start in range(0, len(members), CHUNK):
                _withdraw(ledger, connection, key_date, members[start : start + CHUNK], actor, reason)

    ledger.database.write(work)


def _withdraw(
    ledger: Ledger, connection: sa.Connection, key_date: date, given: Sequence[Granted], actor: str, reason: str
) -> None:  # fmt: skip
    r = ledger.database.tables.rerun
    hashes = sorted(each.key_hash for each in given)
    # A claim that uses an authorisation locks the key first: it comes before this, and is seen, or after it.
    rows = {row.key_hash: row for row in ledger.statements.lock.run(connection, key_date, hashes)}
    ids = [each.rerun_id for each in given]
    there = {row.id: row for row in connection.execute(sa.select(r).where(r.c.id.in_(ids)))}
    events = []
    for each in given:
        row, rerun = rows.get(each.key_hash), there.get(each.rerun_id)
        if rerun is None and _done_before(ledger, connection, each, actor, reason):
            continue  # by this very call, whose commit was not answered
        if rerun is None or rerun.used_at is not None or row is None:
            became = "is gone" if rerun is None else "was used meanwhile"
            raise ResolutionError(
                f"The authorisation of {each.key_text} {became}. Nothing was withdrawn. Look again: airflow-guard show --key "
                f"{each.key_hash}"
            )
        events.append(
            AuditEvent(
                "rerun_withdrawn", each.key_text, actor, f"{reason} (authorised by {each.actor}: {each.reason})", key_date,
                each.key_hash, row.attempt, row.owner_token, row.task_run_id, row.state, row.state
            )
        )  # fmt: skip
    taken = connection.execute(sa.delete(r).where(r.c.id.in_(ids), r.c.used_at.is_(None))).rowcount
    if taken != len(events):  # a purge has removed one meanwhile: claims are kept out by the lock on the key
        raise ResolutionError(
            f"{len(events)} authorisations were to be withdrawn, {taken} were there. Nothing was withdrawn. Look again."
        )
    ledger.events.write(connection, *events)


def _done_before(ledger: Ledger, connection: sa.Connection, each: Granted, actor: str, reason: str) -> bool:
    v: Any = ledger.database.tables.event
    whose = (v.c.key_date == each.key_date, v.c.key_hash == each.key_hash, v.c.kind == "rerun_withdrawn")
    words = told(f"{reason} (authorised by {each.actor}: {each.reason})")
    same = (v.c.actor == storable(actor, 250), v.c.reason == words)
    return connection.execute(sa.select(v.c.id).where(*whose, *same).limit(1)).first() is not None


# -- The act -------------------------------------------------------------------------------------------------

_SHOWN = 20


@dataclass(frozen=True)
class Wanted:
    """What is taken back, as it was looked at."""

    found: Sequence[Granted]
    words: Words


class Withdraw(Act[Wanted, "Sequence[Granted]"]):
    """Authorisations are taken back after a look at who gave them. It is a part of ``rerun``."""

    path, place, carries = "withdraw", 40, True
    fields = ("pick", "namespace", "operation", "start", "end", "reason")
    entry = ("Take an authorisation back", "What was authorised to be executed again, and is not used yet.")
    asks = True
    not_done = "Nothing was withdrawn."

    def may(self, asked: Asked, at: Opened) -> None:
        """Leave it to the request, which knows the keys."""

    def form(self, asked: Asked, at: Opened) -> shown.FillIn:
        picks = asked.all("pick")
        hint = "The id of the DAG, if its task says nothing else."
        fields = [
            shown.Line("namespace", "Key namespace", hint),
            shown.Line("operation", "Operation"),
            shown.Line("start", "First business date", type="date", required=False),
            shown.Line("end", "Last business date", type="date", required=False),
        ]
        about = "What was authorised to be executed again, and is not used yet, is not executed again. The keys stay done."
        return shown.FillIn(
            "Take an authorisation back", [shown.Text(about)], [] if picks else fields, hidden={"pick": picks}
        )

    def request(self, asked: Asked, at: Opened, words: Words) -> Wanted:
        """Return what was shown, or what there is now; of that what the person may read."""
        shown = asked.carried if asked.confirmed and not asked.again else None
        found = self._found(asked, at) if shown is None else [_unpacked(values) for values in shown]
        mine = self._readable(asked, at, found)
        if not mine and not asked.again:
            raise ResolutionError(
                "Nothing of that is authorised, or it is used, or over. Nothing was withdrawn."
            )
        return Wanted(mine, words)

    def _found(self, asked: Asked, at: Opened) -> list[Granted]:
        if asked.text("pick"):
            picked = {(each.key_date, each.key_hash) for each in map(keys.judged, asked.all("pick"))}
            scope = Scope(hashes={key_hash for _, key_hash in picked})
            return [each for each in granted(at.ledger, scope) if (each.key_date, each.key_hash) in picked]
        if not (asked.text("namespace") and asked.text("operation")):
            raise ResolutionError("Say which operation.")
        start, end = (
            parse_business_date(asked.text(name), source="the form") if asked.text(name) else None
            for name in ("start", "end")
        )
        return granted(at.ledger, Scope(asked.text("namespace"), asked.text("operation"), start, end))

    def _readable(self, asked: Asked, at: Opened, found: Sequence[Granted]) -> list[Granted]:
        """Return what the person may read of it, all of which must be the person's to edit."""
        dags: dict[tuple[date, str], str] = {}
        for start in range(0, len(found), CHUNK):
            some = [(each.key_date, each.key_hash) for each in found[start : start + CHUNK]]
            rows = at.look().picked_keys(some, asked.person.readable)
            dags |= {(row.key_date, row.key_hash): row.dag_id for row in rows}
        asked.person.must_edit(dags.values())
        return [each for each in found if (each.key_date, each.key_hash) in dags]

    def plan(self, at: Opened, request: Wanted) -> Plan[Sequence[Granted]]:
        """Return what would be taken back; the confirmation carries it, and one that was used since stops all."""
        carried = [
            asdict(each) | {"key_date": str(each.key_date), "expires_at": None} for each in request.found
        ]
        return Plan(request.found, sure=True, carried=carried)

    def run(self, at: Opened, request: Wanted, *, dry_run: bool) -> Sequence[Granted]:
        """Take all of them back, or none."""
        if not dry_run:
            withdraw(at.ledger, request.found, actor=request.words.actor, reason=request.words.reason)
        return request.found

    def late(self, request: Wanted, error: GuardError, *, confirmed: bool) -> Late:
        """Show what is authorised now."""
        return Late.AGAIN if confirmed else Late.ASK

    def preview(self, request: Wanted, plan: Plan[Sequence[Granted]]) -> shown.Preview:
        found = plan.what
        heads = ("Key", "Authorised by", "Why", "Until")
        columns = [(head, "tight" if head == "Until" else "long") for head in heads]
        rows = [(each.key_text, each.actor, each.reason, each.expires_at) for each in found]
        nothing = None if found else shown.Text("Nothing of that is authorised any more.", "empty")
        return shown.Preview(
            f"take {len(found):,} {'authorisation' if len(found) == 1 else 'authorisations'} back",
            [shown.Table("What would be withdrawn", columns, rows)] if found else [],
            button="Take it back",
            nothing=nothing,
        )

    def done(self, request: Wanted, what: Sequence[Granted]) -> shown.Done:
        count = "1 authorisation is" if len(what) == 1 else f"{len(what):,} authorisations are"
        links = [
            shown.Link(each.key_text, "key", {"date": each.key_date, "key": each.key_hash})
            for each in what[:_SHOWN]
        ]
        return shown.Done("Withdrawn", f"{count} taken back. The keys stay done.", links=links)

    # -- The command -----------------------------------------------------------------------------------------

    def check(self, given: argparse.Namespace) -> Withdraw:
        if given.reversal_happened or given.reversal_did_not_happen or given.without_reversal:
            raise UsageError("--withdraw takes an authorisation back: leave out what is said of a reversal")
        ways = [bool(given.key), bool(given.dag), given.all]
        if sum(ways) != 1 or (given.dag and not given.operation):
            raise UsageError(
                "with --withdraw give --key HASH, DAG OPERATION [--start DATE --end DATE], or --all"
            )
        return self

    def given(self, given: argparse.Namespace, at: Opened, words: Words) -> Wanted:
        found = granted(at.ledger, _scope(at.ledger, given))
        if not found:
            raise ResolutionError(
                "Nothing of that is authorised (or it is used, or over). Nothing was withdrawn."
            )
        return Wanted(found, words)

    def question(self, request: Wanted, plan: Plan[Sequence[Granted]]) -> shown.Question:
        return shown.Question(_lines(request.found), "Withdraw that?")

    def said(self, request: Wanted, what: Sequence[Granted], *, dry_run: bool) -> shown.Said:
        rows = [
            {"key": each.key_hash, "text": each.key_text, "authorised_by": each.actor, "reason": each.reason}
            for each in what
        ]
        count = f"{len(what):,} authorisation{'' if len(what) == 1 else 's'}"
        last = (
            f"{count} would be withdrawn. Dry run, nothing was changed."
            if dry_run
            else f"{count} withdrawn. The keys stay done, and are replayed."
        )
        return shown.Said(
            {"withdrawn": rows, "dry_run": dry_run}, [*_lines(what), shown.Styled(last)], plain=rows
        )


def _unpacked(values: dict[str, Any]) -> Granted:
    return Granted(**(values | {"key_date": date.fromisoformat(values["key_date"])}))


def _scope(ledger: Ledger, given: argparse.Namespace) -> Scope:
    if given.key:
        return Scope(hashes={keys.one_key(ledger, key).row.key_hash for key in given.key})
    start = keys.date_of(given.start) if given.start else None
    end = keys.date_of(given.end) if given.end else start
    return Scope(given.dag, given.operation, start, end, given.cycle, keys.documents_of(given.document))


def _lines(found: Sequence[Granted]) -> list[str]:
    lines = [
        f"{each.key_text}: authorised by {each.actor} until {each.expires_at:%Y-%m-%d %H:%M} UTC: {each.reason}"
        for each in found[:_SHOWN]
    ]
    return lines + ([f"… and {len(found) - _SHOWN:,} more"] if len(found) > _SHOWN else [])


WITHDRAW = Withdraw()
ACTS = (WITHDRAW,)
