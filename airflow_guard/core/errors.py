"""The errors of this package, one tree.

::

    GuardError
    ├── ConfigurationError            an operator, setting or combination that cannot work
    │   └── LedgerNotConfigured       no connection for the ledger is named
    ├── BusinessDateError             no business date, or one that cannot be read
    │   ├── DateChangedError          a cleared run now gives another date
    │   └── CalendarError             unknown calendar, or its library is not installed
    ├── DocumentError                 a document that cannot be a key
    │   ├── DuplicateDocumentError    one document twice in a batch, with different content
    │   └── RepeatedDocument          one document twice in a listing, and on_repeated="fail"
    ├── UnexpectedListing             fewer, more or another total than expected  (a retry helps)
    ├── ResultError                   a result that cannot be stored
    ├── TransactionError              the callable ended a transaction that is not its own
    ├── LedgerError                   the ledger cannot answer
    │   ├── LedgerUnavailable         down or unreachable                        (a retry helps)
    │   │   └── LedgerRefused         it answers, and lets this connection in never
    │   ├── LedgerBusy                a lock was not free in time                (a retry helps)
    │   ├── LedgerNotMigrated         tables missing, or of another version
    │   ├── UnknownCommit             it is not known whether a write committed  (a retry helps)
    │   └── OwnershipLost             another attempt owns the key now           (a retry helps)
    ├── BlockedError                  the ledger forbids this key to run
    │   ├── InProgressElsewhere       another attempt is at work                 (a retry helps)
    │   ├── InDoubt                   the effect may or may not have happened
    │   │   └── InDoubtUnsettled      too early for a "no" of verify               (a retry helps)
    │   ├── FollowUpFailed            effect done, what follows it is not
    │   ├── OtherRun                  another automatic run has this key
    │   ├── OtherDeployment           another deployment has this key
    │   ├── ContentChanged            done before with other content
    │   ├── DuplicateRefused          done before, and on_duplicate="fail"
    │   ├── DroppedBefore             a person has said that it is not to be done
    │   ├── Forgotten                 listed by an earlier try of the run, not done, not listed now
    │   ├── KeyDrift                  done before under a key of another shape
    │   ├── NotGuardedThen            dated before the ledger kept watch
    │   ├── BeforeHorizon             dated when keys were purged
    │   └── RerunRefused              a rerun is authorised that cannot be executed so
    ├── DocumentsFailed               some documents of a task failed
    ├── TooManyRejected               more rejected documents than max_rejected
    ├── Stopped                       the task was asked to stop                 (a retry helps)
    ├── ReconciliationError           two sides could not be compared
    │   ├── SideUnavailable           a side's database is down or busy          (a retry helps)
    │   ├── SideInvalid               a side's database refused a statement
    │   ├── AmountError               an amount that is not an exact number
    │   └── NeverCompared             not both sides could be read within the timeout
    ├── BreaksFound                   two sides differ, or a key occurs twice
    │   └── BothEmpty                 neither side has a row
    ├── ResolutionError               a resolution, adoption, rename or rerun is refused
    │   └── StaleResolution           it judged an attempt that is no longer the last
    └── Signal                        raised by a callable, to say what happened
        ├── Rejected                  the business refused the document: terminal
        └── NotExecuted               the effect has certainly not happened

``retryable`` of an error says whether another try of the task can help without a person.
"""

from __future__ import annotations

from typing import ClassVar, Self


class GuardError(Exception):
    """Root of all errors of this package."""

    retryable: ClassVar[bool] = False

    def about(self, what: str) -> Self:
        """Return this error, its message led by what it is about, such as a DAG, an operation and a date.

        >>> str(SideInvalid("no such column").about("statements / reconcile of 2026-01-30"))
        'statements / reconcile of 2026-01-30: no such column'
        """
        self.args = (f"{what}: {self}",)
        return self


class ConfigurationError(GuardError):
    """An operator, setting or combination cannot work as written."""


class LedgerNotConfigured(ConfigurationError):
    """Neither ``ledger_conn_id`` nor ``[airflow_guard] ledger_conn_id`` names a connection."""


class BusinessDateError(GuardError):
    """There is no business date, or it cannot be read."""


class DateChangedError(BusinessDateError):
    """The date of a run differs from the one that was stored for it."""


class CalendarError(BusinessDateError):
    """The calendar is unknown, or its library is not installed."""


class DocumentError(GuardError):
    """A document cannot be a key."""


class DuplicateDocumentError(DocumentError):
    """One document occurs twice in a batch with different content."""


class RepeatedDocument(DocumentError):
    """One document is listed more than once, and ``on_repeated="fail"``; nothing was executed."""


class UnexpectedListing(GuardError):
    """A listing has fewer or more documents than expected, another total, or none and ``on_empty="fail"``.

    Nothing was executed. Another try lists again: the file may be complete by then.
    """

    retryable = True


class ResultError(GuardError):
    """A result cannot be stored: not JSON, or too large."""


class TransactionError(GuardError):
    """The callable committed, rolled back or closed the transaction that it was lent."""


class LedgerError(GuardError):
    """The ledger cannot answer."""


class LedgerUnavailable(LedgerError):
    """The ledger's database is down or unreachable; nothing was started."""

    retryable = True


class LedgerRefused(LedgerUnavailable):
    """The ledger's server answers, and refuses this connection: no such database or account, a wrong password.

    Nothing was started, and it never comes back by itself: the connection is wrong.
    """

    retryable = False


class LedgerBusy(LedgerError):
    """A lock in the ledger was not free in time."""

    retryable = True


class LedgerNotMigrated(LedgerError):
    """The ledger's tables are missing or of another version."""


class UnknownCommit(LedgerError):
    """The connection broke at a commit, and it could not be found out whether it took effect."""

    retryable = True


class OwnershipLost(LedgerError):
    """Another attempt owns the key now, or a person has resolved it."""

    retryable = True


class BlockedError(GuardError):
    """The ledger forbids this key to run."""


class InProgressElsewhere(BlockedError):
    """Another attempt of the same key is at work."""

    retryable = True


class InDoubt(BlockedError):
    """The effect of an earlier attempt may or may not have happened."""


class InDoubtUnsettled(InDoubt):
    """In doubt, and too early for the "no" of ``verify`` to count."""

    retryable = True


class FollowUpFailed(BlockedError):
    """The effect is done, but what follows it in the callable is not."""


class OtherRun(BlockedError):
    """Another automatic run claimed this key first."""


class OtherDeployment(BlockedError):
    """Another deployment claimed this key."""


class ContentChanged(BlockedError):
    """The document was done before with other content."""


class DuplicateRefused(BlockedError):
    """The key is done, and ``on_duplicate="fail"``."""


class DroppedBefore(BlockedError):
    """A person has dropped the document: it was not done, and is not to be."""


class Forgotten(BlockedError):
    """Documents that an earlier try of this run listed are not done, and this try does not list them any more.

    :param retryable: whether another try may find them done: other instances of a mapped task may list them now.
    """

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable  # type: ignore[misc]


class KeyDrift(BlockedError):
    """The same documents and date were completed under a key of another shape."""


class NotGuardedThen(BlockedError):
    """The date or run lies before the ledger kept watch over this operation."""


class BeforeHorizon(BlockedError):
    """The date lies at or before the horizon of the operation: its keys were purged, so nobody knows what was done."""


class RerunRefused(BlockedError):
    """A rerun is authorised, but the task cannot execute it so: nothing reverses the first effect, or it is not
    known whether something has."""


class DocumentsFailed(GuardError):
    """Some documents of a task failed.

    :param retryable: whether another try can do some of them.
    """

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable  # type: ignore[misc]


class TooManyRejected(GuardError):
    """More documents were rejected than ``max_rejected`` allows."""


class Stopped(GuardError):
    """The task was asked to stop; what had begun was finished, the rest released."""

    retryable = True


class ReconciliationError(GuardError):
    """Two sides could not be compared; nothing is known about whether they agree."""


class SideUnavailable(ReconciliationError):
    """A side's database is down, went away, or a lock was not free in time."""

    retryable = True


class SideInvalid(ReconciliationError):
    """A side's database refused a statement (unknown table or column, syntax, permission), or the connection itself."""


class AmountError(ReconciliationError):
    """A value is not an amount that can be compared exactly: a float, or no number."""


class NeverCompared(ReconciliationError):
    """A side, or the ledger, could not be read until the timeout was over."""


class BreaksFound(GuardError):
    """Two sides differ, or a key occurs more than once."""


class BothEmpty(BreaksFound):
    """Neither side has a row, and ``allow_empty`` does not say that this is right."""


class ResolutionError(GuardError):
    """A resolution, adoption, rename or rerun is refused; nothing was changed."""


class StaleResolution(ResolutionError):
    """The resolution judged an attempt that is no longer the last, or that is settled."""


class Signal(GuardError):
    """Raised by a callable to say what happened."""


class Rejected(Signal):
    """Raised by a callable: the business refused the document. Terminal, never retried.

    :param reason: why, in words for the person who reads the ledger.
    """

    def __init__(self, reason: str = "rejected") -> None:
        super().__init__(reason)
        self.reason = reason


class NotExecuted(Signal):
    """Raised by a callable: the effect has certainly not happened, whatever else went wrong.

    :param reason: why, in words for the person who reads the ledger.
    """

    retryable = True

    def __init__(self, reason: str = "not executed") -> None:
        super().__init__(reason)
        self.reason = reason
