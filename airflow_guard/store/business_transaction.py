"""A transaction of the ledger's database in which a callable writes business rows.

Its first statement marks the keys ``in_transaction`` and so holds their rows; its last one completes them. Business
rows and completion commit together, or neither does.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, NoReturn

import sqlalchemy as sa

from airflow_guard.core.errors import LedgerUnavailable, OwnershipLost, TransactionError, UnknownCommit
from airflow_guard.core.states import Phase, State
from airflow_guard.store import dialects
from airflow_guard.store.database import UNKNOWN_COMMIT_PATIENCE_S, commit, translated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from airflow_guard.store.by_keys import ByKeys
    from airflow_guard.store.changes import Ownership
    from airflow_guard.store.database import LedgerDatabase
    from airflow_guard.store.driver import OnDriver
    from airflow_guard.store.statements import Statements

_SAVEPOINT = "airflow_guard_business"
_REFUSED = ("commit", "rollback", "close", "detach", "get_transaction")
_ABORTED = "25P02"


class Ending(StrEnum):
    """What the ledger shows after a transaction ended in an error."""

    ROLLED_BACK = "rolled_back"
    COMMITTED = "committed"
    SELF_COMMITTED = "self_committed"
    LOST = "lost"


class BusinessTransaction:
    """Context manager around one call in database mode.

    :param database: the ledger's, which the transaction is in.
    :param statements: of its tables.
    :param own: the claim.
    :param hashes: the keys that the transaction completes together (one, or a batch).
    :raises OwnershipLost: on entering: another attempt owns a key (retryable).

    ``self_ended``: after an error, whether the callable had ended the transaction by itself. What it wrote then may
    have been committed, also where the rows of the ledger show nothing.
    """

    def __init__(
        self, database: LedgerDatabase, statements: Statements, own: Ownership, hashes: Sequence[str]
    ) -> None:
        self._database = database
        self._statements = statements
        self._own = own
        self._hashes = list(hashes)
        # PostgreSQL tells by the row's transaction id whether the callable ended the transaction; elsewhere a
        # savepoint tells, since it does not survive a commit or rollback.
        self._savepoint = database.dialect != "postgresql"
        self._complete = self._lent = False
        self.self_ended = False

    def __enter__(self) -> sa.Connection:
        database = self._database
        with translated("begin of a business transaction", database):
            self.connection = database.business_engine.connect()
            try:
                self._transaction = self.connection.begin()
                database.durable(self.connection)
                statements = self._statements
                entered = self._change(statements.enter_one, statements.enter_transaction)
                if entered != len(self._hashes):
                    raise OwnershipLost(
                        f"{len(self._hashes) - entered} of {len(self._hashes)} keys are owned by another "
                        "attempt now. Nothing was written."
                    )
                if self._savepoint:
                    self.connection.exec_driver_sql(f"SAVEPOINT {_SAVEPOINT}")
            except BaseException:
                self._close()
                raise
        # SQLAlchemy invalidates a connection that breaks, with the error; only the callable does it without.
        invalidate = _invalidation(self.connection.invalidate)
        vars(self.connection).update(_REFUSALS, invalidate=invalidate)
        self._lent = True
        return self.connection

    def complete(self, outcome: str | None, pushed: str | None = None) -> None:
        """Complete the keys and commit everything.

        :param pushed: what was given to other tasks beside the result, as it is stored.
        :raises TransactionError: the callable ended the transaction by itself, or swallowed an error that ended it.
        :raises LedgerUnavailable: the connection broke before the commit: nothing was committed (retryable).
        :raises UnknownCommit: the answer to the commit was lost; ask :meth:`ending`.
        """
        self._take_back()
        with translated("end of a business transaction", self._database):
            try:
                if self._savepoint:
                    self._release_savepoint()
                ours = self._write_completion(outcome, pushed)
            except sa.exc.InvalidRequestError as error:
                raise LedgerUnavailable(
                    f"The connection to the ledger {self._database.named} broke while the callable used it; nothing "
                    f"was committed ({error})."
                ) from error
            except sa.exc.DBAPIError as error:
                if dialects.error_code(error) == _ABORTED:
                    raise TransactionError(_SWALLOWED) from error
                raise
            if not ours:
                self.self_ended = True
                raise TransactionError(_ENDED)
            self._complete = True
            commit(self._transaction, self.connection, self._database)

    def _write_completion(self, outcome: str | None, pushed: str | None = None) -> bool:
        s = self._statements
        done = self._change(
            s.complete_one_in_transaction, s.complete_in_transaction, outcome=outcome, pushed=pushed
        )
        return done == len(self._hashes)

    def _change(self, one: OnDriver, some: ByKeys, **values: Any) -> int:
        """Execute a change of the keys and return the row count; the usual single key on the hot path."""
        own, hashes = self._own, self._hashes
        if len(hashes) == 1:
            parameters = {"d": own.key_date, "h": hashes[0], "token": own.token, **values}
            return one.changed(self.connection, parameters)
        return int(some.run(self.connection, own.key_date, hashes, token=own.token, **values).rowcount)

    def _take_back(self) -> None:
        if not self._lent:
            return
        self._lent = False
        for name in (*_REFUSED, "invalidate"):
            vars(self.connection).pop(name, None)

    def _release_savepoint(self) -> None:
        try:
            self.connection.exec_driver_sql(f"RELEASE SAVEPOINT {_SAVEPOINT}")
        except sa.exc.DBAPIError as error:
            if dialects.is_down(error) or dialects.is_transient(error):
                raise
            self.self_ended = True
            raise TransactionError(_ENDED) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._take_back()
        if error is not None and not self._complete:
            self.self_ended = self.self_ended or self._is_gone(error)
        self._close()

    def _is_gone(self, error: BaseException) -> bool:
        """Return whether the transaction had ended before the callable failed.

        An aborted transaction of PostgreSQL does not tell, and counts as the one that was lent.
        """
        try:
            if not self._savepoint:
                return not self._write_completion(None)  # rolled back in a moment
            self.connection.exec_driver_sql(f"RELEASE SAVEPOINT {_SAVEPOINT}")
        except sa.exc.DBAPIError as problem:
            # A deadlock takes the savepoint too, and there the server has rolled all of it back.
            return dialects.is_no_savepoint(problem) and not _is_deadlock(error)
        except sa.exc.InvalidRequestError:
            return False  # the connection broke
        return False

    def _close(self) -> None:
        self._take_back()
        try:
            if self.connection.in_transaction():
                self.connection.rollback()
        except sa.exc.DBAPIError:
            # A broken connection rolls back on the server; the pool must not hand it out again.
            self.connection.invalidate()
        finally:
            self.connection.close()

    def ending(self) -> Ending:
        """Return what became of the transaction, by locking the rows on the primary.

        The lock waits for the old transaction if its commit is still on its way (a standby that holds it), which
        a plain read would not.

        :raises UnknownCommit: the lock was not free in time: still unknown (retryable).
        """

        def work(connection: sa.Connection) -> Ending:
            statements, key_date = self._statements, self._own.key_date
            plain = statements.plain.run(connection, key_date, self._hashes)
            if sum(row.owner_token == self._own.token for row in plain) != len(self._hashes):
                # Only after our transaction has ended can another token be there; its owner may hold the row for long.
                return Ending.LOST
            self._database.limit_locks(connection)
            locked = statements.lock.run(connection, key_date, self._hashes).all()
            return _ending([row for row in locked if row.owner_token == self._own.token], len(self._hashes))

        try:
            return self._database.write(work, patience_s=UNKNOWN_COMMIT_PATIENCE_S)
        except UnknownCommit:
            raise
        except Exception as error:
            raise UnknownCommit(
                f"Whether the transaction committed cannot be found out now ({error}). The row tells it as soon as "
                "the database answers; another try reads it."
            ) from error


_ENDED = (
    "The callable ended the transaction that it was lent (a commit or rollback by itself, DDL that commits "
    'implicitly, or a deadlock that it swallowed). With side_effect="database" only the operator commits; for work '
    'that must commit by itself use side_effect="external".'
)

_SWALLOWED = (
    "The callable swallowed an error of the database, which had aborted the transaction: nothing was committed. Put "
    'statements that may fail into "with connection.begin_nested():".'
)


def _is_deadlock(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, sa.exc.DBAPIError) and dialects.is_transient(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _ending(ours: Sequence[Any], expected: int) -> Ending:
    states = {(row.state, row.phase) for row in ours}
    if len(ours) != expected or not states:
        return Ending.LOST
    if states == {(State.COMPLETED.value, Phase.DONE.value)}:
        return Ending.COMMITTED
    if states == {(State.IN_PROGRESS.value, Phase.NONE.value)}:
        return Ending.ROLLED_BACK
    if (State.IN_PROGRESS.value, Phase.IN_TRANSACTION.value) in states or (
        State.IN_DOUBT.value,
        Phase.IN_TRANSACTION.value,
    ) in states:
        return Ending.SELF_COMMITTED
    return Ending.LOST


def _refusal(name: str) -> Any:
    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise TransactionError(
            f"connection.{name}() is refused: business rows and the ledger's completion commit together, by the "
            "operator, when the callable returns; raise an exception to roll back. Use connection.begin_nested() for "
            "a savepoint."
        )

    return refuse


_REFUSALS = {name: _refusal(name) for name in _REFUSED}


def _invalidation(invalidate: Callable[[BaseException], None]) -> Callable[..., None]:
    refuse = _refusal("invalidate")

    def invalidate_broken(exception: BaseException | None = None) -> None:
        if exception is None:
            refuse()
        else:
            invalidate(exception)

    return invalidate_broken
