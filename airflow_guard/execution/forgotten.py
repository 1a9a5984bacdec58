"""Documents that an earlier try of a run listed and did not finish: this try lists them again, or says so."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_guard.core.commands import drop_command, resolve_command
from airflow_guard.core.decisions import DECISIONS_OF, Situation, situation_of
from airflow_guard.core.errors import Forgotten, InProgressElsewhere
from airflow_guard.core.figures import FIGURE_OF
from airflow_guard.core.refusals import rejected_before
from airflow_guard.core.report import SAMPLE, Held, Outcome
from airflow_guard.core.states import State

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from airflow_guard.core.documents import Document
    from airflow_guard.core.guard import LedgerRow
    from airflow_guard.execution.attempt import Attempt
    from airflow_guard.store.listed import Left, ListedDocuments

log = logging.getLogger(__name__)
_UNCLEAR = frozenset({"ContentChanged", "OtherRun", "OtherDeployment"})
"""Why a document was held back that leaves it open what is done for it, even if its key is."""


_TO_SETTLE = {
    Situation.IN_DOUBT: "What is in doubt has to be settled:",
    Situation.FOLLOW_UP_OPEN: "What follows the effect has to be finished by hand:",
}


@dataclass(frozen=True, slots=True)
class _Found:
    """What is left and not done, and why."""

    left: Left
    why: str
    situation: Situation | None = None


class Leftovers:
    """What earlier tries of this task in this run have left, without what this try has listed so far.

    A mapped task is one listing in parts, and a part may move to another instance when the run is cleared: what an instance
    does not list any more is looked for again by those that begin later, as long as there are some. So is what an instance has
    left that is gone, since the mapping is shorter now.
    """

    def __init__(self, attempt: Attempt, store: ListedDocuments) -> None:
        self._try = attempt
        self._store = store
        self._passed_on = False
        self._tries: list[int] = []
        self._left: dict[str, Left] = {}
        self._noted: set[str] = set()

    def load(self) -> None:
        """Read what is left. Usually there is no earlier try, or nothing."""
        self._tries = self._store.tries(
            self._try.identity, self._try.task_run_id, self._try.task_try.map_length
        )
        if self._try.resumed or self._tries not in ([], [self._try.task_run_id]):
            self._left = self._store.left(self._try.space, self._tries)
        self._noted = {key for key, left in self._left.items() if left.noted}

    def saw(self, documents: Sequence[Document]) -> None:
        """Take out what is listed again."""
        for document in documents if self._left else ():
            self._left.pop(document.key_hash, None)

    def saw_refused(self, hashes: Collection[str]) -> None:
        """Take out what is refused again."""
        for key_hash in hashes:
            self._left.pop(key_hash, None)

    def relisted(self, documents: Sequence[Document]) -> None:
        """Forget what earlier tries had noted of documents that this try has dealt with."""
        again = {document.key_hash for document in documents} & self._noted if self._noted else set()
        if again:
            self._store.forget([each for each in self._tries if each != self._try.task_run_id], again)
            self._noted -= again

    def clear(self, *, also: bool) -> None:
        """Forget all notes of the run."""
        if (also or self._noted) and not self._passed_on:
            self._store.forget(self._tries)

    def report(self) -> None:
        """Report what is left and not done: the try cannot end well."""
        found: list[_Found] = []
        for left, row in self._rows():
            if row is None:
                found.append(_Found(left, f"held back: {left.why}" if left.why else "not begun"))
            elif row.state is State.REJECTED:
                self._try.report.add(Outcome.REJECTED, left.document, rejected_before(row))
            elif (situation := situation_of(row)) in (Situation.RUNNING, Situation.FOLLOW_UP_RUNNING):
                self._wait(left, row)
            elif situation not in (Situation.DONE, Situation.DROPPED):
                why = f"{situation}{f': {row.error}' if row.error else ''}"
                found.append(_Found(left, why, situation))
            elif situation is Situation.DONE and left.why in _UNCLEAR:
                found.append(_Found(left, f"held back: {left.why}", situation))
        if found:
            self._say(found)

    def _rows(self) -> list[tuple[Left, LedgerRow | None]]:
        by_date: dict[object, list[Left]] = {}
        for left in self._left.values():
            by_date.setdefault(left.key_date, []).append(left)
        together = []
        for group in by_date.values():
            for start in range(0, len(group), 500):
                part = group[start : start + 500]
                rows = self._try.ledger.read(part[0].key_date, [left.key_hash for left in part])
                together += [(left, rows.get(left.key_hash)) for left in part]
        return together

    def _wait(self, left: Left, row: LedgerRow) -> None:
        error = InProgressElsewhere(
            f"{self._try.space.describe(left.document)} is in progress elsewhere: {row.done_by}. An earlier try of this run "
            "listed it, and it is not done yet."
        )
        self._try.report.add_waiting(Held(left.key_hash, left.document, row.done_by), error)

    def _say(self, found: Sequence[_Found]) -> None:
        names = [each.left.document for each in found]
        one = len(found) == 1
        said = "; ".join(f"{_name(each.left)} ({each.why:.200})" for each in found[:5])
        more = f"; and {len(found) - 5:,} more" if len(found) > 5 else ""
        error = Forgotten(
            f"{self._try.space.describe(None)}: an earlier try of this run listed {len(found):,} "
            f"document{'' if one else 's'} that {'is' if one else 'are'} not done, and this try does not list "
            f"{'it' if one else 'them'} any more: {said}{more}. If the work is to be done, let it be listed again and clear "
            f"the task.{self._settle(found)}{self._drop(found)}",
            retryable=self._try.identity.map_index >= 0,
        )
        if self._try.others_to_come():
            log.warning("%s Other instances of the task are still to list theirs.", error)
            self._passed_on = True
            return
        for each in found:
            figure = FIGURE_OF[each.situation] if each.situation is not None else None
            why = "listed by an earlier try of this run, and not any more"
            self._try.report.add(Outcome.FORGOTTEN, each.left.document, why, figure)
        self._try.report.forgotten = error
        room = max(0, SAMPLE - len(self._try.report.errors))
        self._try.report.errors.extend((name, error) for name in names[:room])

    def _settle(self, found: Sequence[_Found]) -> str:
        """Return how to settle what cannot be dropped, the first of each kind."""
        said = ""
        for situation, words in _TO_SETTLE.items():
            first = next((each.left for each in found if each.situation is situation), None)
            if first is not None:
                command = resolve_command(
                    first.key_hash, decision=DECISIONS_OF[situation][0], ledger=self._try.spec.ledger
                )
                said += f" {words} {command}."
        return said

    def _drop(self, found: Sequence[_Found]) -> str:
        space = self._try.space
        names = [each.left.document for each in found if each.situation not in _TO_SETTLE]
        if not names:
            return ""
        command = drop_command(
            (space.key_namespace, space.operation, space.business_date.isoformat()),
            names[:3],
            every=len(names) > 3,
            cycle=space.cycle,
            ledger=self._try.spec.ledger,
        )
        return f" If it is not, drop it with a reason: {command}"


def _name(left: Left) -> str:
    return "the run as a whole" if left.document is None else left.document
