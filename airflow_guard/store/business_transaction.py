"""A transaction of the ledger's database in which a callable writes business rows.

Its first statement marks the keys ``in_transaction`` and so holds their rows; its last one completes them. Business
rows and completion commit together, or neither does.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from types import TracebackType
from typing import Any, NoReturn

import sqlalchemy as sa

from airflow_guard.core.errors import OwnershipLost, TransactionError, UnknownCommit
from airflow_guard.core.states import Phase, State
from airflow_guard.store.database import UNKNOWN_COMMIT_PATIENCE_S, commit, translated
from airflow_guard.store.ledger import Ledger, Ownership

_SAVEPOINT = "airflow_guard_business"
_REFUSED = ("commit", "rollback", "close", "invalidate", "detach")


class Ending(StrEnum):
    """What the ledger shows after a transaction ended in an error."""

    ROLLED_BACK = "rolled_back"
    COMMITTED = "committed"
    SELF_COMMITTED = "self_committed"
    LOST = "lost"


class BusinessTransaction:
    """Context manager around one call in database mode.

    :param ledger: the ledger whose database the transaction is in.
    :param own: the claim.
    :param hashes: the keys that the transaction completes together (one, or a batch).
    :raises OwnershipLost: on entering: another attempt owns a key (retryable).
    """

    def __init__(self, ledger: Ledger, own: Ownership, hashes: Sequence[str], batch_id: str | None = None) -> None:
        self._ledger = ledger
        self._own = own
        self._hashes = list(hashes)
        self._batch_id = batch_id
        self._parameters: dict[str, Any] = {"d": own.key_date, "hashes": self._hashes, "token": own.token}
        # PostgreSQL tells by the row's transaction id whether the callable ended the transaction; elsewhere a
        # savepoint tells, since it does not survive a commit or rollback.
        self._savepoint = ledger.database.dialect != "postgresql"

    def __enter__(self) -> sa.Connection:
        database = self._ledger.database
        with translated("begin of a business transaction"):
            self.connection = database.business_engine.connect()
            try:
                self._transaction = self.connection.begin()
                database.durable(self.connection)
                entered = self.connection.execute(
                    self._ledger.statements.enter_transaction, {**self._parameters, "batch": self._batch_id}
                )
                if entered.rowcount != len(self._hashes):
                    raise OwnershipLost(
                        f"{len(self._hashes) - entered.rowcount} of {len(self._hashes)} keys are owned by another "
                        "attempt now. Nothing was written."
                    )
                if self._savepoint:
                    self.connection.exec_driver_sql(f"SAVEPOINT {_SAVEPOINT}")
            except BaseException:
                self._close()
                raise
        for name in _REFUSED:
            setattr(self.connection, name, _refusal(name))
        return self.connection

    def complete(self, outcome: str | None) -> None:
        """Complete the keys and commit everything.

        :raises TransactionError: the callable ended the transaction by itself.
        :raises UnknownCommit: the answer to the commit was lost; ask :meth:`ending`.
        """
        with translated("end of a business transaction"):
            if self._savepoint:
                self._release_savepoint()
            done = self.connection.execute(
                self._ledger.statements.complete_in_transaction, {**self._parameters, "outcome": outcome}
            )
            if done.rowcount != len(self._hashes):
                raise TransactionError(_ENDED)
            commit(self._transaction, self.connection)

    def _release_savepoint(self) -> None:
        try:
            self.connection.exec_driver_sql(f"RELEASE SAVEPOINT {_SAVEPOINT}")
        except sa.exc.DBAPIError as error:
            raise TransactionError(_ENDED) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        for name in _REFUSED:
            vars(self.connection).pop(name, None)
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
            self._ledger.database.limit_locks(connection)
            locked = connection.execute(
                self._ledger.statements.lock, {"d": self._own.key_date, "hashes": self._hashes}
            ).all()
            return _ending([row for row in locked if row.owner_token == self._own.token], len(self._hashes))

        try:
            return self._ledger.database.write(work, patience_s=UNKNOWN_COMMIT_PATIENCE_S)
        except UnknownCommit:
            raise
        except Exception as error:
            raise UnknownCommit(
                f"Whether the transaction committed cannot be found out now ({error}). The row tells it as soon as "
                "the database answers; another try reads it."
            ) from error


_ENDED = (
    "The callable ended the transaction that it was lent (a commit or rollback by itself, or DDL that commits "
    "implicitly). With side_effect=\"database\" only the operator commits; for work that must commit by itself use "
    "side_effect=\"external\"."
)


def _ending(ours: Sequence[Any], expected: int) -> Ending:
    states = {(row.state, row.phase) for row in ours}
    if len(ours) != expected or not states:
        return Ending.LOST
    if states == {(State.COMPLETED.value, Phase.DONE.value)}:
        return Ending.COMMITTED
    if states == {(State.IN_PROGRESS.value, Phase.NONE.value)}:
        return Ending.ROLLED_BACK
    if (State.IN_PROGRESS.value, Phase.IN_TRANSACTION.value) in states or (
        State.IN_DOUBT.value, Phase.IN_TRANSACTION.value,
    ) in states:  # fmt: skip
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
