"""Checks before the first claim, which read and write no key: the run's stored date, whether the operation was guarded
then, and whether the same documents were done under another key."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_guard.core import dates
from airflow_guard.core.commands import adopt_command, rename_command
from airflow_guard.core.date_checks import DatedRun, check_stored_date, in_the_future, repeated_or_jumped
from airflow_guard.core.dates import DateSource, NoBusinessDate, ResolvedDate, RunFacts
from airflow_guard.core.errors import DocumentError, KeyDrift
from airflow_guard.core.keys import KeyShape, normalise_document
from airflow_guard.core.states import State
from airflow_guard.store.events import AuditEvent
from airflow_guard.store.task_runs import aware

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import date

    from airflow_guard.core.documents import Document
    from airflow_guard.core.guard import TaskIdentity
    from airflow_guard.execution.attempt import Attempt
    from airflow_guard.store.task_runs import RunDates

log = logging.getLogger(__name__)
_NAMED = 5
_DONE = frozenset({State.COMPLETED, State.IN_PROGRESS, State.IN_DOUBT, State.REJECTED, State.DROPPED})


def check_date(
    known: RunDates,
    facts: RunFacts,
    identity: TaskIdentity,
    business_date: dates.OperatorDate,
    resolved: ResolvedDate | NoBusinessDate,
    warn: Callable[[str], None] | None,
) -> None:
    """Compare the resolved date with what this run recorded before and with the run before it.

    A mapped instance whose date was written for it (``expand(business_date=…)``) is not compared: the instances of
    one task have several dates.

    :param warn: takes what looks wrong; ``None``: it was said before.
    :raises DateChangedError: a cleared run now gives another date (not retryable).
    :raises BusinessDateError: the date lies more than a year in the future (not retryable).
    """
    own = (
        isinstance(resolved, ResolvedDate)
        and resolved.source is DateSource.EXPLICIT
        and identity.map_index >= 0
    )
    if not own:
        stored = known.stored_date(identity.dag_id, identity.run_id, identity.task_id)
        before = ResolvedDate(stored.date, DateSource(stored.source), stored.detail) if stored else None
        check_stored_date(
            resolved, before, dag_id=identity.dag_id, run_id=identity.run_id, task_id=identity.task_id
        )
    if isinstance(resolved, NoBusinessDate) or warn is None:
        return
    for line in dates.date_warnings(facts, business_date, resolved):
        warn(line)
    early = in_the_future(resolved, facts, datetime.now(UTC))
    if early:
        warn(early)
    if facts.run_type == "scheduled" and facts.run_after_at is not None:
        previous = known.previous_run(identity.dag_id, identity.task_id, facts.run_after_at)
        line_ = repeated_or_jumped(
            DatedRun(previous[0], previous[1], previous[2]) if previous else None,
            facts,
            resolved,
            business_date,
        )
        if line_:
            warn(line_)


def unguarded_reason(attempt: Attempt) -> str | None:
    """Return why a key that the ledger does not know must not run, ``None`` if it may.

    Asked before the try is recorded: its own row would say since when the operation is watched.
    """
    runs, spec, space, identity = attempt.ledger.runs, attempt.spec, attempt.space, attempt.identity
    command = adopt_command(space.key_namespace, space.operation, ledger=spec.ledger)
    adopt = (
        f"If the work was done then, list it in done.csv (business_date,document) and record it: {command}. If it was "
        "not, set guarded_from to a date at or before this one, so that it may run."
    )
    if spec.guarded_from is not None:
        if space.business_date < spec.guarded_from:
            return (
                f"business date {space.business_date} lies before guarded_from={spec.guarded_from}. {adopt}"
            )
        return None
    if identity.try_number < 2 or identity.run_after_at is None:
        return None
    if runs.seen_from_start(identity.dag_id, identity.run_id, identity.task_id):
        return None
    since = runs.operation_since(space.key_namespace, space.operation)
    watched = since is not None and identity.run_after_at >= since
    # In the second case its first try has died before its first commit: nothing has happened.
    if watched or identity.guarded_from_its_start:
        return None
    first = f"only since {since:%Y-%m-%d %H:%M} UTC" if since else "not before this try"
    return (
        f"this is try {identity.try_number} of a run that was due {identity.run_after_at:%Y-%m-%d %H:%M} UTC, but the "
        f"ledger has watched this operation {first} and did not see the first try: the "
        f"work may have been done unguarded. {_unclear(identity)} {adopt}"
    )


def _unclear(identity: TaskIdentity) -> str:
    """Return why it is not clear that the first try was guarded."""
    if identity.run_began_at is None:
        return "The run was cleared since it began, so that its first try may have had other code."
    if identity.code_since_at is None:
        return "Airflow does not tell which code its first try had."
    return (
        f"The run began {identity.run_began_at:%Y-%m-%d %H:%M:%S} UTC, and its code may be newer: it is there since "
        f"{identity.code_since_at:%Y-%m-%d %H:%M:%S} UTC."
    )


@dataclass(frozen=True)
class _Candidate:
    task_id: str
    key_namespace: str
    operation: str
    text: str
    shape: KeyShape


class DriftCheck:
    """Compares a task's documents with what this task, or a task that the DAG no longer has, did before.

    Another task that the DAG has now, with an operation of its own, is no drift, nor are ``retired_operations``.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._try = attempt
        overlap, dag_id, shape = attempt.ledger.overlap, attempt.identity.dag_id, attempt.task_try.key_shape
        own = KeyShape.parse(shape)
        rows = overlap.other_shapes(dag_id, attempt.space.business_date, shape)
        rows += overlap.dateless_shapes(dag_id, shape)
        found = set()
        for row in rows:
            other = KeyShape.parse(row.key_shape)
            mine = row.task_id == attempt.identity.task_id or row.task_id not in attempt.dag_task_ids
            if own is None or other is None or not mine or own.same_keys(other):
                continue
            if row.operation not in attempt.spec.retired_operations:
                found.add(_Candidate(row.task_id, row.key_namespace, row.operation, row.key_shape, other))
        self._own = own
        self._candidates = sorted(found, key=lambda each: (each.operation, each.task_id, each.text))
        self._redated = self._dated_otherwise()

    def _dated_otherwise(self) -> dict[date, str]:
        """Return the dates near by of runs that would have the date of this one by the rule and zone of now, and by what
        they were dated."""
        space, task_try = self._try.space, self._try.task_try
        if self._own is None or space.once_per == "document":
            return {}
        near = self._try.ledger.overlap.neighbours(self._try.identity.dag_id, space.business_date, self._own)
        return {
            row.business_date: row.date_detail
            for row in near
            if (at := aware(row.own_at)) and task_try.date_of_then(at) == space.business_date
        }

    def check(self, documents: Sequence[Document]) -> None:
        """Refuse documents that would be executed, and were done under another shape.

        :raises KeyDrift: not retryable; says how to map the old key to the new one.
        """
        if not self._candidates and not self._redated:
            return
        rows = self._try.ledger.lookup(
            self._try.space.key_date, [document.key_hash for document in documents]
        )
        known = {row[0] for row in rows}
        unknown = [document for document in documents if document.key_hash not in known]
        for candidate in self._candidates if unknown else ():
            done = self._done(candidate, unknown, none_known=not known)
            if done:
                raise KeyDrift(self._message(candidate, done))
        for day, detail in self._redated.items() if unknown else ():
            names = [document.name for document in unknown if document.name is not None]
            key = (self._try.space.key_namespace, self._try.space.operation)
            done = self._try.ledger.overlap.done_under(key, day, names or None, None)
            if done:
                raise KeyDrift(self._other_date(day, detail, done))

    def _done(
        self, candidate: _Candidate, unknown: Sequence[Document], *, none_known: bool
    ) -> list[str | None]:
        old, own = candidate.shape, self._own
        names = [document.name for document in unknown if document.name is not None]
        if own is not None and old.same_names_and_scope(own):
            before = [name for document in unknown if (name := _name_by(old.field, document)) is not None]
            if before:
                return self._done_by(candidate, before)
            # Nothing says what these were called. If none of them is known, and some were done, they may be the same.
            return self._under(candidate, None) if none_known else []
        if old.whole or not names:
            return self._under(candidate, None)
        found = self._done_by(candidate, names)
        if found or old.field is None or old.field == self._try.spec.document_key:
            return found
        return self._done_by(candidate, [name for each in unknown if (name := _name_by(old.field, each))])

    def _done_by(self, candidate: _Candidate, names: Sequence[str]) -> list[str | None]:
        if candidate.shape.once_per == "date":
            return self._under(candidate, names)
        space = replace(
            self._try.space,
            key_namespace=candidate.key_namespace,
            operation=candidate.operation,
            cycle="",
            once_per="document",
        )
        return self._try.ledger.overlap.done_once(space, self._by(candidate), names)

    def _under(self, candidate: _Candidate, names: Sequence[str] | None) -> list[str | None]:
        date = self._try.space.business_date
        key = (candidate.key_namespace, candidate.operation)
        return self._try.ledger.overlap.done_under(key, date, names, self._by(candidate))

    def _by(self, candidate: _Candidate) -> str | None:
        """Return the shape that tells the old work from the new where both have the same names."""
        own = self._own
        return candidate.text if own is not None and candidate.shape.same_names_and_scope(own) else None

    def _message(self, candidate: _Candidate, done: Sequence[str | None]) -> str:
        space, own = self._try.space, self._own
        names = ", ".join("(whole run)" if name is None else name for name in done)
        if own is not None and candidate.shape.same_names_and_scope(own):
            change = self._other_identity(candidate)
        elif (candidate.key_namespace, candidate.operation) == (space.key_namespace, space.operation):
            now = own.describe() if own is not None else ""
            task_id, before_ = self._try.identity.task_id, candidate.shape.describe()
            change = (
                f"The keys of task {task_id!r} have another shape now ({now}; before: {before_}): "
                "a cycle or partition, documents or once_per was added or taken away. Keep the old shape for this date. "
                f"{self._other_work()}"
            )
        else:
            before, after = (
                (candidate.key_namespace, candidate.operation),
                (space.key_namespace, space.operation),
            )
            change = (
                f"Task {candidate.task_id!r} did them as {' / '.join(before)!r}. If this is the same work, set "
                f"operation={candidate.operation!r} (and key_namespace={candidate.key_namespace!r}), or run: "
                f"{rename_command(before, after, ledger=self._try.spec.ledger)}. If it is other work, set "
                f"retired_operations=[{candidate.operation!r}]"
            )
        return (
            f"{space.describe(None)}: documents of {space.business_date} were done before under another key ({names}); "
            f"executing them again could be a second effect. {change}."
        )

    def _other_date(self, day: date, detail: str, done: Sequence[str | None]) -> str:
        space = self._try.space
        names = ", ".join("(whole run)" if name is None else name for name in done)
        command = adopt_command(space.key_namespace, space.operation, ledger=self._try.spec.ledger)
        return (
            f"{space.describe(None)}: documents of {space.business_date} were done before under another date ({names}): a run "
            f"was dated {day} ({detail}), which by the rule and zone of now would be {space.business_date}. Executing them "
            "again could be a second effect. Put the rule (business_date=) and the DAG's time zone back. If the new date is "
            f"to stay, list what was done by it in done.csv (business_date,document), and record it: {command}. "
            f"{self._other_work()}."
        )

    def _other_identity(self, candidate: _Candidate) -> str:
        old, space = candidate.shape.field, self._try.space
        now = (
            f"document_key={self._try.spec.document_key!r}"
            if self._try.spec.document_key
            else "no document_key"
        )
        back = f"document_key={old!r}" if old else "the identities of then"
        command = adopt_command(space.key_namespace, space.operation, ledger=self._try.spec.ledger)
        if space.once_per == "document":
            command += " --once-per document"
        return (
            f"They were identified by {back}, now it is {now}. Put {back} back. If the new identity is to stay, list what "
            f"was done by it in done.csv (business_date,document), and record it: {command}. {self._other_work()}"
        )

    def _other_work(self) -> str:
        return (
            'If it is other work, give it an operation of its own and name the old one: operation="…", '
            f"retired_operations=[{self._try.space.operation!r}]"
        )


def _name_by(field: str | None, document: Document) -> str | None:
    """Return what a document was called when another field was its identity, ``None`` if nothing says so."""
    if field is None or not isinstance(document.payload, Mapping) or field not in document.payload:
        return None
    try:
        return normalise_document(document.payload[field])
    except DocumentError:
        return None


class Namesakes:
    """Looks, in the first run of an operation, for the same documents under the key namespaces of other DAGs.

    It warns, and does not decide: two DAGs may rightly call their operations alike.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._try = attempt
        # A namespace of the task's own says already whose keys it shares.
        by_dag = attempt.space.key_namespace == attempt.identity.dag_id
        runs = attempt.ledger.runs
        self._others = runs.namesakes(attempt.space, attempt.identity) if by_dag else []

    def look(self, documents: Sequence[Document]) -> None:
        """Warn once of documents that another key namespace has done for this operation and date."""
        space = self._try.space
        for namespace in self._others:
            hasher = replace(space, key_namespace=namespace).hasher()
            listed = {hasher.key_hash(document.name): document for document in documents}
            rows = self._try.ledger.lookup(space.key_date, list(listed))
            done = [listed[row[0]] for row in rows if row[1] in _DONE and row[3] == space.deployment]
            if done:
                self._say(namespace, done)

    def _say(self, namespace: str, done: Sequence[Document]) -> None:
        space = self._try.space
        self._others = [other for other in self._others if other != namespace]
        names = ", ".join("(whole run)" if each.name is None else each.name for each in done[:_NAMED])
        more = f" and {len(done) - _NAMED} more" if len(done) > _NAMED else ""
        before, after = (namespace, space.operation), (space.key_namespace, space.operation)
        said = (
            f"{' / '.join(before)} has done documents that {' / '.join(after)} lists in its first run ({names}{more}). If "
            f"DAG {space.key_namespace!r} is a copy of {namespace!r}, or is {namespace!r} under a new name, this does the "
            f"work twice: set key_namespace={namespace!r}, or move the history: "
            f"{rename_command(before, after, ledger=self._try.spec.ledger)}. If it is other work, nothing need be done; an "
            "operation of its own would say so."
        )
        log.warning(said)
        events = [
            AuditEvent(
                "namesake",
                space.describe(each.name),
                self._try.actor,
                said,
                space.key_date,
                each.key_hash,
                task_run_id=self._try.task_run_id,
            )
            for each in done[:_NAMED]
        ]
        self._try.ledger.tell(*events)


class OtherKeys:
    """Looks whether documents were done under other keys: those of a task's past, or those of another DAG."""

    def __init__(self, attempt: Attempt) -> None:
        self._try = attempt
        self._drift = DriftCheck(attempt)
        self._namesakes = Namesakes(attempt)

    def check(self, documents: Sequence[Document]) -> None:
        """Warn of what another DAG has done, and refuse what this one has done under another shape of its keys.

        :raises KeyDrift: see :meth:`DriftCheck.check`.
        """
        self._namesakes.look(documents)
        try:
            self._drift.check(documents)
        except KeyDrift as error:
            if self._try.spec.mode == "enforce":
                raise
            log.warning("observe: would have blocked %s", error)
