"""What became of the documents of a task try: counts, samples for people, and the error that ends the task."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from airflow_guard.core.amounts import shown
from airflow_guard.core.errors import DocumentsFailed, GuardError, TooManyRejected
from airflow_guard.core.figures import Asks, Figures
from airflow_guard.core.texts import described, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from airflow_guard.core.doubts import Doubt
    from airflow_guard.core.expectations import Expected

SAMPLE = 20
"""Documents and errors that are named; the rest is counted. XCom and logs are read by people."""

_MAX_LINES = 100
_MAX_WAITING = 1000


class Outcome(StrEnum):
    """What became of one document in this try.

    ``WAITING``: another attempt is at work on it. ``RELEASED``: claimed, then given back untouched because the
    task stops. ``OBSERVED``: executed in observe mode although it would have been blocked. ``REPEATED``: another mention
    of a document that this try has listed already. ``FORGOTTEN``: not listed by this try, but by an earlier one of its
    run, and not done.
    """

    EXECUTED = "executed"
    REPLAYED = "replayed"
    SKIPPED = "skipped"
    BLOCKED = "blocked"
    REJECTED = "rejected"
    FAILED = "failed"
    IN_DOUBT = "in_doubt"
    WAITING = "waiting"
    RELEASED = "released"
    OBSERVED = "observed"
    REPEATED = "repeated"
    FORGOTTEN = "forgotten"


_FIGURE_OF = {
    Outcome.EXECUTED: "done",
    Outcome.OBSERVED: "done",
    Outcome.REPLAYED: "done",
    Outcome.SKIPPED: "done",
    Outcome.REJECTED: "rejected",
    Outcome.FAILED: "failed",
    Outcome.IN_DOUBT: "in_doubt",
    Outcome.WAITING: "in_progress",
    Outcome.RELEASED: "not_begun",
    Outcome.BLOCKED: "not_begun",
    Outcome.FORGOTTEN: "not_begun",
}
"""Where a document stands after an outcome, unless its key says otherwise. What is repeated is counted already."""

_FAILURES = (
    Outcome.FAILED,
    Outcome.IN_DOUBT,
    Outcome.BLOCKED,
    Outcome.WAITING,
    Outcome.RELEASED,
    Outcome.FORGOTTEN,
)


@dataclass(slots=True)
class _Tally:
    """One line of the log: an outcome with one explanation."""

    count: int = 0
    documents: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Held:
    """A key that another attempt is at work on, and who it is."""

    key_hash: str
    document: str | None
    holder: str


class Report:
    """Counts outcomes while a task works, and says at the end what it comes to.

    Not thread-safe: the thread that reads futures adds to it.

    ``stopped``: the task stopped before the end of its listing. ``problem``: an effect is done, but its result could
    not be stored. ``doubts``: what a person can be asked about; ``doubt_count`` counts also those that it does not
    hold. ``settling``: documents in doubt that ``verify`` settles in ``settles_in_s`` seconds. ``note``: what else
    the person who reads of the failure must know. ``earlier``: how many of the executed ones an earlier pass of this
    try had executed, before it waited. ``settled``: the words of the people who have settled what is replayed, by
    document. ``waive_command``: gives the command line that waives a rejected document. ``own_replays``: how many of
    the replayed ones an earlier try of the same task and run had done. ``expected`` and ``listed_total``: what the
    listing was compared with, and what its amounts came to. ``listed``: how many documents a listing had that was
    refused as a whole. ``remark``: what is wrong with a listing that is worked through all the same. ``forgotten``:
    what earlier tries have left. ``empty_allowed``: whether a listing may bring nothing.
    """

    def __init__(self, *, single: bool = False) -> None:
        self.single = single
        self.counts: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self.errors: list[tuple[str | None, BaseException]] = []
        self.retryable = False
        self.waiting: list[Held] = []
        self.has_result = False
        self.result: Any = None
        self.stopped: GuardError | None = None
        self.problem: BaseException | None = None
        self.doubts: list[Doubt] = []
        self.doubt_count = 0
        self.settling = 0
        self.settles_in_s = 0.0
        self.earlier = 0
        self.note = ""
        self.settled: dict[str, str] = {}
        self.waive_command: Callable[[str | None], str] | None = None
        self.own_replays = 0
        self.expected: Expected | None = None
        self.listed_total: Decimal | None = None
        self.listed = 0
        self.remark = ""
        self.forgotten: GuardError | None = None
        self.empty_allowed = False
        self._tallies: dict[tuple[Outcome, str], _Tally] = {}
        self._stand: dict[str, int] = {}

    def add(
        self, outcome: Outcome, document: str | None, because: str = "", figure: str | None = None
    ) -> None:
        """Count one document.

        :param because: by whom it was done before, or why not; documents with the same words share a log line.
        :param figure: where its key stands, see :class:`~airflow_guard.core.figures.Figures`; ``None``: as the outcome
            says.
        """
        self.add_many(outcome, [document], because, figure)

    def add_many(
        self, outcome: Outcome, documents: Sequence[str | None], because: str = "", figure: str | None = None
    ) -> None:
        """Count documents that share an explanation."""
        stand = figure or _FIGURE_OF.get(outcome)
        if stand is not None:
            self._stand[stand] = self._stand.get(stand, 0) + len(documents)
        if not because.isascii():
            # What somebody's exception says goes into a log: half a character must not break it.
            because = because.encode("utf-8", "replace").decode()
        self.counts[outcome] += len(documents)
        if len(self._tallies) >= _MAX_LINES and (outcome, because) not in self._tallies:
            because = "various reasons, see airflow-guard show"
        tally = self._tallies.setdefault((outcome, because), _Tally())
        tally.count += len(documents)
        room = SAMPLE - len(tally.documents)
        if room > 0:
            tally.documents.extend(name for name in documents[:room] if name is not None)

    def add_settled(self, document: str | None, words: str) -> None:
        """Note by whom a document was settled; the first ones are named in the summary."""
        if document is not None and len(self.settled) < SAMPLE:
            self.settled[document] = words

    def add_error(
        self,
        outcome: Outcome,
        document: str | None,
        error: BaseException,
        because: str = "",
        figure: str | None = None,
    ) -> None:
        """Count one document that did not come through, with the error that says why."""
        self.add(outcome, document, because or said(error), figure)
        retryable = getattr(error, "retryable", outcome is Outcome.FAILED)
        self.retryable = self.retryable or bool(retryable)
        if len(self.errors) < SAMPLE:
            self.errors.append((document, error))

    def add_waiting(self, held: Held, error: BaseException) -> None:
        """Count one document that another attempt is at work on."""
        if len(self.waiting) < _MAX_WAITING:
            self.waiting.append(held)
        self.add_error(Outcome.WAITING, held.document, error, f"in progress elsewhere: {held.holder}")

    def add_doubt(self, doubt: Doubt) -> None:
        """Keep an effect that a person can be asked about; its documents are counted by :meth:`add_error`."""
        self.doubt_count += 1
        if len(self.doubts) < SAMPLE:
            self.doubts.append(doubt)

    def set_result(self, value: Any) -> None:
        """Keep the result of a single document (after its JSON round trip)."""
        self.has_result, self.result = True, value

    def add_settling(self, documents: int, left_s: float) -> None:
        """Note doubts that asking again decides once some time is over; :meth:`add_error` counts them.

        :param left_s: how many seconds.
        """
        self.settling += documents
        self.settles_in_s = max(self.settles_in_s, left_s)

    def only_waits(self, *, for_others: bool = True) -> bool:
        """Return whether nothing but time keeps the documents it reached from success: other attempts, own doubts.

        A task that was asked to stop may not wait for them, though: ``stopped``.

        :param for_others: whether the task waits for other attempts.
        """
        waits = self.settling + (self.counts[Outcome.WAITING] if for_others else 0)
        return bool(waits and waits == self.failures and self.problem is None)

    @property
    def causes(self) -> list[BaseException]:
        """What the user's functions raised, without the errors of this package around it."""
        roots = (root_of(error) for _, error in self.errors)
        return [root for root in roots if root is not None and root.__traceback__ is not None]

    @property
    def documents(self) -> int:
        """How many documents were listed, each mention."""
        return max(sum(self.counts.values()) - self.counts[Outcome.FORGOTTEN], self.listed)

    @property
    def failures(self) -> int:
        """How many documents did not come through (rejected ones not counted)."""
        return sum(self.counts[outcome] for outcome in _FAILURES)

    @property
    def figures(self) -> Figures:
        """Where the documents of the task stand: those that it listed, and those that earlier tries have left."""
        return Figures(**self._stand)

    @property
    def asks(self) -> Asks:
        """How often this try asked for documents, and what it got."""
        counts = self.task_run_counts()
        return Asks.of(*(counts[name] for name in ("executed", "replayed", "own_replays", "blocked")))

    def describe(self) -> str:
        """Return its figures as one line."""
        repeated = self.counts[Outcome.REPEATED]
        said = [self.figures.describe(), self.asks.describe()] + (
            [f"{repeated:,} repeated"] if repeated else []
        )
        if self.expected is not None:
            said.append(f"{self.expected.describe()} expected")
        return "; ".join(said)

    def log_lines(self) -> Iterator[str]:
        """Yield one line per outcome and explanation."""
        for (outcome, because), tally in self._tallies.items():
            names = ", ".join(tally.documents[:5])
            more = ", …" if tally.count > 5 else ""
            listed = f": {names}{more}" if names else ""
            yield f"{outcome.value} {tally.count:,}{f' ({because})' if because else ''}{listed}"

    def summary(self, **facts: Any) -> dict[str, Any]:
        """Return the small JSON value that several documents give to XCom."""
        counted = {outcome.value: count for outcome, count in self.counts.items() if count}
        failed = [name for name, _ in self.errors if name is not None]
        return {
            **facts,
            "documents": self.documents,
            **counted,
            "figures": {"listed": self.figures.listed}
            | {name: count for name, count in self.figures.parts().items() if count},
            **({"failed_documents": failed} if failed else {}),
            **({"settled": self.settled} if self.settled else {}),
            **({"expected": self.expected.describe()} if self.expected is not None else {}),
            **({"listed_total": shown(self.listed_total)} if self.listed_total is not None else {}),
            **({"remark": self.remark} if self.remark else {}),
        }

    def task_run_counts(self) -> Mapping[str, int]:
        """Return the counts as ``guard_task_run`` stores them."""
        counts = {outcome.value: count for outcome, count in self.counts.items()}
        executed = self.counts[Outcome.EXECUTED] + self.counts[Outcome.OBSERVED]
        replayed = self.counts[Outcome.REPLAYED] + self.counts[Outcome.SKIPPED]
        own = {"executed": executed, "replayed": replayed, "own_replays": self.own_replays}
        return {**counts, "documents": self.documents, **own}

    def expectation(self) -> Mapping[str, Any]:
        """Return what was expected as ``guard_task_run`` stores it."""
        wanted = self.expected
        total = wanted.total if wanted is not None and isinstance(wanted.total, (int, Decimal)) else None
        least = wanted.least if wanted is not None else None
        return {
            "expected_least": 0 if least is None and self.empty_allowed else least,
            "expected_most": wanted.most if wanted is not None else None,
            "expected_total": None if total is None else shown(Decimal(total)),
            "listed_total": None if self.listed_total is None else shown(self.listed_total),
        }

    def failure(self, what: str, max_rejected: int = 0) -> GuardError | None:
        """Return the error that ends the task, ``None`` if it succeeded.

        :param what: the operation and date, to begin the message with.
        :param max_rejected: more rejected documents than this fail the task without retry.
        """
        rejected = self.counts[Outcome.REJECTED]
        if isinstance(self.problem, GuardError):
            return self.problem
        if self.forgotten is not None and self.failures == self.counts[Outcome.FORGOTTEN]:
            return self.forgotten
        if self.failures:
            return self._documents_failed(what)
        if self.stopped is not None:
            return self.stopped
        if rejected > max_rejected:
            reasons = "; ".join(line for line in self.log_lines() if line.startswith(Outcome.REJECTED))
            settle = f" To settle one: {self._waive_one()} (or --send-again)." if self.waive_command else ""
            return self._caused(
                TooManyRejected(
                    f"{what}: {rejected:,} of {self.documents:,} documents were rejected, more than max_rejected="
                    f"{max_rejected}. {reasons}.{settle}"
                )
            )
        return None

    def _waive_one(self) -> str:
        rejected = (
            tally
            for (outcome, _), tally in self._tallies.items()
            if outcome is Outcome.REJECTED and tally.documents
        )
        first = next(rejected, None)
        return self.waive_command(first.documents[0] if first else None) if self.waive_command else ""

    def _documents_failed(self, what: str) -> GuardError:
        if self.documents == 1 and self.errors:
            error = self.errors[0][1]
            if isinstance(error, GuardError):
                return error
        named = "; ".join(
            f"{name if name is not None else 'whole run'}: {said(error)}" for name, error in self.errors[:3]
        )
        counted = ", ".join(
            f"{self.counts[outcome]:,} {outcome.value}" for outcome in Outcome if self.counts[outcome]
        )
        more = f"; and {self.failures - 3:,} more" if self.failures > 3 else ""
        return self._caused(
            DocumentsFailed(
                f"{what}: {self.failures:,} of {self.documents:,} documents did not come through ({counted}). "
                f"{named}{more}",
                retryable=self.retryable,
            )
        )

    def _caused(self, failure: GuardError) -> GuardError:
        """Give a new error, which no other one refers to, what the user's functions raised first, else the first error.

        A traceback shows then where it began.
        """
        failure.__cause__ = next(iter((*self.causes, *(error for _, error in self.errors))), None)
        return failure


def root_of(error: BaseException | None) -> BaseException | None:
    """Return what is behind the errors of this package, ``None`` if there is nothing."""
    seen: list[BaseException] = []
    while isinstance(error, GuardError) and error not in seen:  # "raise error from error" makes a circle
        seen.append(error)
        error = error.__cause__
    return None if isinstance(error, GuardError) else error


def said(error: BaseException) -> str:
    """Return an error as one phrase, without secrets: our own speak for themselves, others need the name of their type."""
    if isinstance(error, GuardError) and str(error):
        return without_secrets(str(error))
    return described(error)
