"""On PostgreSQL: of the page's grants each is needed by the real work of its account, and nothing else is allowed."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import count, product
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard.acts.break_decisions import decide
from airflow_guard.commands.main import main as airflow_guard
from airflow_guard.core.alerts.facts import AlertKind, Problem
from airflow_guard.core.checks import BreakState, CheckOutcome, FoundBreak, Progress
from airflow_guard.core.documents import DocumentReader
from airflow_guard.core.errors import GuardError, NotExecuted
from airflow_guard.core.guard import TaskIdentity
from airflow_guard.core.keys import KeySpace
from airflow_guard.reading.watching import Watch
from airflow_guard.store.alerts import Alerts
from airflow_guard.store.breaks import Findings
from airflow_guard.store.database import LedgerDatabase
from airflow_guard.store.ledger import Ledger
from airflow_guard.store.listed import ListedDocuments
from airflow_guard.store.reconciliations import Check, Ending, Figures, Reconciliations
from airflow_guard.store.tables import Tables
from airflow_guard.testing import TestLedger
from tests.databases import databases
from tests.docs.test_permissions import accounts, blocks, statements, work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.docs.test_permissions import Accounts

__all__ = ["accounts"]
pytestmark = databases("postgres_embedded")

DAY = date(2026, 1, 31)
_GRANT = re.compile(
    r"GRANT (?P<what>[\w, ]+) ON (?P<kind>SEQUENCE |SCHEMA )?(?P<on>[\w., \n]+?) TO (?P<to>[\w, \n]+)",
    re.DOTALL,
)
TABLES = Tables(schema="guard").metadata.sorted_tables
_numbers = count(1)


@dataclass(frozen=True)
class Grant:
    """One right of one account on one thing."""

    right: str
    kind: str
    thing: str
    account: str

    def __str__(self) -> str:
        return f"{self.right} ON {self.kind}{self.thing} TO {self.account}"

    @property
    def revoke(self) -> str:
        return f"REVOKE {self.right} ON {self.kind}{self.thing} FROM {self.account}"


def grants() -> list[Grant]:
    """Return the grants of the page, each alone."""
    found = []
    for statement in statements(blocks("postgresql", "migrations")):
        match = _GRANT.fullmatch(statement)
        assert match, statement
        rights, things, names = (re.split(r",\s*", match[part].strip()) for part in ("what", "on", "to"))
        found += [Grant(r, match["kind"] or "", t, n) for r, t, n in product(rights, things, names)]
    assert len(set(found)) == len(found), "granted twice"
    return found


# -- the work of each account ------------------------------------------------------------------------------


@contextmanager
def opened(url: str) -> Iterator[Ledger]:
    database = LedgerDatabase(url)
    try:
        yield Ledger(database)
    finally:
        database.dispose()


class Work:
    """What each account does, on keys that no other round has."""

    def __init__(self, accounts: Accounts) -> None:
        self.urls = accounts.urls
        self.dag = f"payments_{next(_numbers)}"
        self._prepared()

    def does(self, account: str) -> None:
        """Do all that an account is there for.

        :raises Exception: something of it is refused.
        """
        WORK[account](self)

    def given(self, **more: Any) -> dict[str, Any]:
        return {"key_namespace": self.dag, "operation": "send", "deployment": "default", **more}

    def _prepared(self) -> None:
        """Leave what there is to work on, as the owner: keys that are done and in doubt, horizons, reruns that are
        authorised and expired, an open break."""
        owner, why = "guard_migrations", ["--yes", "--reason", "wrong rate"]
        with TestLedger(self.urls[owner]) as ledger:
            ledger.run(work, documents=["A", "B", "R", "K", "L"], **self.given())
            for operation in ("send", "pay"):
                ledger.run(
                    work, document="old", business_date="2025-01-31", **self.given(operation=operation)
                )
        self.command(owner, "purge", self.dag, "--until", "2025-12-31", *why)
        for document in ("R", "K"):
            self.command(owner, "rerun", self.dag, "send", "--start", DAY.isoformat(), "--document", document,
                         "--without-reversal", *why)  # fmt: skip
        with opened(self.urls[owner]) as ledger:
            r, e = ledger.database.tables.rerun, ledger.database.tables.execution
            of_k = sa.select(e.c.key_hash).where(e.c.document == "K", e.c.key_namespace == self.dag)
            over = sa.update(r).where(r.c.key_hash.in_(of_k)).values(expires_at=r.c.authorised_at)
            assert ledger.database.write(lambda c: c.execute(over).rowcount) == 1
        with opened(self.urls[owner]) as ledger:
            self._noted(ledger, "M")
            self.check(ledger, FoundBreak("amount_mismatch", {}, "D-9", "amount", "1", "2", "1", 1, 1))

    def _noted(self, ledger: Ledger, name: str) -> None:
        """Leave a document that a try has listed and nobody has claimed."""
        run = ledger.database.tables.task_run
        last = sa.select(sa.func.max(run.c.id)).where(run.c.key_namespace == self.dag, run.c.operation == "send",
                                                      run.c.business_date == DAY)  # fmt: skip
        (task_run_id,) = ledger.database.read(lambda c: c.execute(last).one())
        document = DocumentReader(KeySpace(self.dag, "send", DAY).hasher()).read_one(name)
        ListedDocuments(ledger.database).note(task_run_id, DAY, [document])

    def command(self, account: str, *words: str) -> None:
        """Run a command line as an account."""
        if airflow_guard([*words, "--ledger", self.urls[account]]) != 0:
            raise GuardError(" ".join(words))

    def check(self, ledger: Ledger, *found: FoundBreak) -> None:
        """One check of two sides, from its first look to its end."""
        store = Reconciliations(ledger.database)
        read_at = datetime(2026, 1, 31, tzinfo=UTC)
        who = TaskIdentity(
            self.dag, "reconcile", f"run {next(_numbers)}", run_type="scheduled", run_after_at=read_at
        )
        check = Check(f"ti {next(_numbers)}", who, KeySpace(self.dag, "reconcile", DAY), DAY)
        store.begin([check])
        (state,) = store.states(check.ti_id)
        store.note(state, Progress().saw("a" * 32))
        figures = Figures(True, 3, 2, [], read_at, read_at, len(found), 1000)
        outcome = CheckOutcome.BROKEN if found else CheckOutcome.PASSED
        store.close(
            check,
            state,
            Ending(
                outcome, "why", Progress(), settled=True, figures=figures, findings=Findings(found, "all")
            ),
        )

    def tasks(self) -> None:
        """A task's whole repertoire: claims, doubts, take-overs, an authorised rerun, checks, alerts, the watch."""
        url = self.urls["guard_tasks"]
        with TestLedger(url) as ledger:
            run = ledger.run(work, documents=["R", "N"], **self.given())
            if run.error is not None:
                raise run.error
            left = ledger.run(work, documents=["L"], **self.given(operation="pay"))
            if not isinstance(left.error, NotExecuted):
                raise left.error or GuardError("nothing was left")
            ledger.crash(work, at="before", document="C", **self.given())
            ledger.expire_leases()
            again = ledger.run(work, document="C", **self.given())
            if again.error is not None:
                raise again.error
        with opened(url) as ledger:
            self.check(ledger, FoundBreak("amount_mismatch", {}, "D-9", "amount", "1", "3", "2", 1, 1),
                       FoundBreak("amount_mismatch", {}, "D-10", "amount", "1", "2", "1", 1, 1))  # fmt: skip
            alerts = Alerts(ledger.database)
            claim = alerts.claim(
                Problem(deployment="default", dag_id=self.dag, kind=AlertKind.FAILED, what="x"),
                "mail",
                "FAILED",
            )
            assert claim is not None
            assert alerts.delivered(claim)
            watch = Watch(ledger, "default")
            list(watch.doubts())
            list(watch.undelivered())

    def people(self) -> None:
        """What a person does, in a shell or in the UI."""
        why, day = ["--reason", "seen"], DAY.isoformat()
        for line in (
            ["show", self.dag, day],
            ["resolve", self.dag, day, "send", "B", "--happened", "--yes", *why],
            ["drop", self.dag, day, "send", "L", "M", *why],
            ["rerun", self.dag, "send", "--start", day, "--document", "A", "--document", "K", "--without-reversal",
             "--yes", *why],
            ["adopt", "--dag", self.dag, "--operation", "post", "--sql",
             "SELECT '2026-01-30' AS business_date, 'Z' AS document", *why],
            ["rename", self.dag, "send", self.dag, "pay", *why],
            ["rename", self.dag, "pay", self.dag, "send", *why],
            ["failover", "--lost-since", "2025-03-31T02:10:00Z", "--yes", *why],
            ["failover", "--close", *why],
        ):  # fmt: skip
            self.command("guard_people", *line)
        with opened(self.urls["guard_people"]) as ledger:
            store = Reconciliations(ledger.database)
            ids = [each.id for each in store.breaks.unsettled(key_namespace=self.dag)]
            decide(ledger.database, BreakState.EXPLAINED, ids, actor="ana", reason="booked tomorrow")
            list(Watch(ledger, "default").undelivered())

    def audit(self) -> None:
        """Reports: they read, and change nothing."""
        for line in (
            ["show", self.dag, DAY.isoformat()],
            ["export", self.dag, "--start", DAY.isoformat()],
            ["export", "--events", "--start", "2020-01-01", "--end", "2040-01-01"],
        ):
            self.command("guard_audit", *line)
        with opened(self.urls["guard_audit"]) as ledger:
            for table in TABLES:
                ledger.database.read(lambda c, table=table: c.execute(sa.select(table).limit(1)).all())


WORK: dict[str, Callable[[Work], None]] = {
    "guard_tasks": Work.tasks,
    "guard_people": Work.people,
    "guard_audit": Work.audit,
}


@pytest.mark.slow
@pytest.mark.parametrize("account", list(WORK))
def test_each_grant_of_the_page_is_needed(accounts: Accounts, account: str) -> None:
    """Revoked one at a time, the work of its account is refused; with all of them it comes through."""
    reports = Work(accounts)
    reports.does(account)
    not_needed = []
    for grant in grants():
        if grant.account != account:
            continue
        work = reports if account == "guard_audit" else Work(accounts)
        accounts.execute("guard_migrations", grant.revoke)
        try:
            work.does(account)
        except (sa.exc.DBAPIError, GuardError):
            continue
        else:
            not_needed.append(str(grant))
        finally:
            accounts.execute("guard_migrations", f"GRANT {grant}")
    assert not not_needed


@pytest.mark.parametrize("account", list(WORK))
def test_what_the_page_does_not_grant_is_refused(accounts: Accounts, account: str) -> None:
    granted = {(grant.right, grant.thing) for grant in grants() if grant.account == account}
    tables = [f"guard.{name}" for name in (*(t.name for t in TABLES), "guard_alembic_version")]
    allowed = []
    for table in tables:
        column = "version_num" if table.endswith("version") else next(iter(by_name(table).columns)).name
        tried = {
            "SELECT": f"SELECT * FROM {table} WHERE false",
            "INSERT": f"INSERT INTO {table} ({column}) SELECT {column} FROM {table} WHERE false",
            "UPDATE": f"UPDATE {table} SET {column} = NULL WHERE false",
            "DELETE": f"DELETE FROM {table} WHERE false",
            "TRUNCATE": f"TRUNCATE {table}",
            "TRIGGER": f"CREATE TRIGGER t BEFORE INSERT ON {table} EXECUTE FUNCTION guard.guard_event_append_only()",
            "owner": f"ALTER TABLE {table} ADD COLUMN more int",
            "drop": f"DROP TABLE {table}",
        }
        for right, statement in tried.items():
            if (right, table) in granted:
                continue
            if not refused(accounts, account, statement):
                allowed.append(statement)
    more = ("CREATE TABLE guard.mine (n int)", "DROP SCHEMA guard CASCADE", "SET ROLE guard_migrations")
    allowed += [statement for statement in more if not refused(accounts, account, statement)]
    assert not allowed


def refused(accounts: Accounts, account: str, statement: str) -> bool:
    """Whether a statement is refused for want of a right, and not for another reason."""
    try:
        accounts.execute(account, statement)
    except sa.exc.ProgrammingError as error:
        return bool(error.orig.sqlstate == "42501")
    return False


def by_name(table: str) -> sa.Table:
    """Return a table of the ledger."""
    return next(each for each in TABLES if table == f"guard.{each.name}")
