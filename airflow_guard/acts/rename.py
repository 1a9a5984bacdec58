"""Rename an operation, so that renamed code meets the keys of its past."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_guard.acts import shown
from airflow_guard.acts.act import Act, Late, Plan
from airflow_guard.acts.arguments import CHANGING, Argument, Command
from airflow_guard.acts.concerned import dags_of, dags_of_namespace
from airflow_guard.acts.renaming import Renamed, rename
from airflow_guard.core.errors import ResolutionError
from airflow_guard.reading.spaces import is_known
from airflow_guard.store import aliases
from airflow_guard.store.events import storable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from airflow_guard.acts.act import Asked, Opened, Words
    from airflow_guard.core.errors import GuardError
    from airflow_guard.store.aliases import Name


@dataclass(frozen=True)
class Wanted:
    """Which name becomes which.

    :param listed: whether a name that was never used is refused without the names of others, which the person may not see.
    """

    old: Name
    new: Name
    words: Words
    listed: bool = True


class Rename(Act[Wanted, Renamed]):
    """Keys get the new name, and an alias leads from the old one."""

    path, place = "rename", 60
    fields = ("old_namespace", "old_operation", "new_namespace", "new_operation", "reason")
    entry = ("Rename an operation", "So that renamed code meets the keys of its past.")
    changed = "The ledger is not as it was shown. Nothing was changed."
    command = Command(
        "rename",
        "Give the keys of an operation to another name, and leave an alias",
        "airflow_guard.acts.rename:RENAME",
        (
            Argument(
                "old_namespace",
                metavar="OLD_NAMESPACE",
                help="the DAG, or key_namespace, that the ledger knows",
            ),
            Argument("old_operation", metavar="OLD_OPERATION", help="the operation that the ledger knows"),
            Argument("new_namespace", metavar="NEW_NAMESPACE", help="the DAG, or key_namespace, from now on"),
            Argument("new_operation", metavar="NEW_OPERATION", help="the operation from now on"),
            *CHANGING,
        ),
        description="For a DAG or task that got another name: its documents stay done. No attempt may be at "
        "work; other tasks wait while keys are moved.",
        epilog="example:\n"
        '  airflow-guard rename statements post statements post_statement --reason "clearer name"',
    )

    def may(self, asked: Asked, at: Opened) -> None:
        """Refuse who may not edit the DAGs of both names."""
        old, new = _names(asked)
        if not all((*old, *new)):
            return  # refused in words, by the request
        used = dags_of(at.ledger.database, [old, new]) | dags_of_namespace(at.ledger.database, new[0])
        # The namespaces as well, where they are DAGs: nobody may move keys into what others keep.
        asked.person.must_edit_all_of(used | {old[0], new[0]})

    def form(self, asked: Asked, at: Opened) -> shown.FillIn:
        about = (
            "Its keys get the new name, so that renamed code meets its past. Tasks that still say the old name meet the same "
            "keys. Pause the DAG first."
        )
        hint = "The id of the DAG, if its task says nothing else."
        return shown.FillIn(
            "Rename an operation",
            [shown.Text(about)],
            [
                shown.Line("old_namespace", "Old key namespace", hint),
                shown.Line("old_operation", "Old operation"),
                shown.Line("new_namespace", "New key namespace"),
                shown.Line("new_operation", "New operation"),
            ],
        )

    def request(self, asked: Asked, at: Opened, words: Words) -> Wanted:
        old, new = _names(asked)
        if not all((*old, *new)):
            raise ResolutionError("Say namespace and operation, the old ones and the new ones.")
        return Wanted(old, new, words, listed=False)

    def plan(self, at: Opened, request: Wanted) -> Plan[Renamed]:
        """Return what would move; other keys under the old name make it stale."""
        database, old = at.ledger.database, request.old
        if not request.listed and not database.read(lambda c: is_known(c, database.tables, old)):
            raise ResolutionError(
                f"This ledger knows no operation {' / '.join(old)}: is it spelt as it was used?"
            )
        planned = self.run(at, request, dry_run=True)
        states = sorted((state.value, count) for state, count in planned.keys.items())
        alias = database.read(lambda c: aliases.find(c, database.tables, old))
        # Just this was done before: the second half of a double click.
        mine = (request.new, storable(request.words.actor, 250), storable(request.words.reason))
        done = alias is not None and (alias.new, alias.actor, alias.reason) == mine
        return Plan(planned, [states, planned.alias_is_new], sure=done)

    def run(self, at: Opened, request: Wanted, *, dry_run: bool) -> Renamed:
        """Move all keys, or none."""
        words = request.words
        return rename(
            at.ledger, request.old, request.new, actor=words.actor, reason=words.reason, dry_run=dry_run
        )

    def late(self, request: Wanted, error: GuardError, *, confirmed: bool) -> Late:
        """Show where the keys are now."""
        return Late.REFUSE if confirmed else Late.ASK

    def stands(self, asked: Asked, at: Opened) -> tuple[str, Sequence[shown.Link]]:
        """Return where the keys of both names are."""
        old, new = _names(asked)
        return "", [_keys("The keys of the old name", old), _keys("of the new name", new)]

    def preview(self, request: Wanted, plan: Plan[Renamed]) -> shown.Preview:
        planned = plan.what
        states = ", ".join(
            f"{count:,} {state.value.replace('_', ' ')}" for state, count in planned.keys.items()
        )
        facts = shown.Facts(
            [
                ("Old name", " / ".join(planned.old)),
                ("New name", " / ".join(planned.new)),
                ("Keys", f"{planned.count:,}{f' ({states})' if states else ''}"),
            ]
        )
        none = [] if planned.count else [shown.Text("There are no keys under the old name.", "note")]
        return shown.Preview(f"rename {planned.count:,} keys", [facts, *none], button="Rename")

    def done(self, request: Wanted, what: Renamed) -> shown.Done:
        text = (
            f"{' / '.join(request.old)} is {' / '.join(request.new)} now. Tasks that still say the old name meet the same "
            "keys."
        )
        return shown.Done("Renamed", text, links=[_keys("The keys", request.new)])

    def given(self, given: argparse.Namespace, at: Opened, words: Words) -> Wanted:
        old = (given.old_namespace, given.old_operation)
        return Wanted(old, (given.new_namespace, given.new_operation), words)

    def said(self, request: Wanted, what: Renamed, *, dry_run: bool) -> shown.Said:
        states = {state.value: count for state, count in sorted(what.keys.items())}
        old, new = " / ".join(what.old), " / ".join(what.new)
        data = {"from": old, "to": new, "keys": what.count, "states": states, "dry_run": dry_run}
        counted = f" ({', '.join(f'{count:,} {state}' for state, count in states.items())})" if states else ""
        moved = f"{old} → {new}: {what.count:,} keys{counted}"
        if dry_run:
            return shown.Said(data, [f"{moved} would move. Dry run, nothing was changed."])
        return shown.Said(
            data, [f"{moved} moved", f"Tasks that still say {old} meet the same keys through an alias."]
        )


def _names(asked: Asked) -> tuple[Name, Name]:
    text = asked.text
    return ((text("old_namespace"), text("old_operation")), (text("new_namespace"), text("new_operation")))


def _keys(words: str, name: Name) -> shown.Link:
    return shown.Link(words, "keys", {"namespace": name[0], "operation": name[1]})


RENAME = Rename()
ACTS = (RENAME,)
