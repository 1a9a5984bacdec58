"""Before a rerun that a person has authorised: the first effect is reversed, or is known to stay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_guard.core.commands import rerun_command
from airflow_guard.core.errors import OwnershipLost
from airflow_guard.core.keys import reversal_key
from airflow_guard.core.reruns import REVERSAL_OPTIONS as OPTIONS
from airflow_guard.core.reruns import Rerun, Reversal, check_reversal, lost
from airflow_guard.store.changes import BEGIN

if TYPE_CHECKING:
    import sqlalchemy as sa

    from airflow_guard.execution.spec import Callee, GuardSpec
    from airflow_guard.execution.units import Unit
    from airflow_guard.store.ledger import Ledger


class FirstEffect:
    """Reverses the first effect of units of a later generation.

    :param on_rerun: of the task's side effect, ``None`` if it has none.
    """

    def __init__(self, ledger: Ledger, spec: GuardSpec, on_rerun: Callee | None) -> None:
        self._ledger = ledger
        self._spec = spec
        self._on_rerun = on_rerun

    def check(self, unit: Unit) -> None:
        """Refuse a unit that cannot be executed again as it was authorised.

        :raises RerunRefused: the task has no ``on_rerun``, or the ledger has lost what was authorised.
        :raises InDoubt: the first effect may or may not have been reversed.
        """
        if unit.generation == 1:
            return
        for document, claim in zip(unit.documents, unit.claims, strict=True):
            text = unit.space.describe(document.name)
            rerun = unit.reruns.get(claim.key_hash)
            if rerun is None:
                raise lost(text, claim.generation)
            check_reversal(
                rerun, text, has_on_rerun=self._on_rerun is not None, in_database=self._spec.database,
                ledger=unit.ledger,
            )  # fmt: skip

    def left(self, unit: Unit) -> list[Rerun]:
        """Return the reruns of a unit whose first effect is still to be reversed."""
        return [rerun for rerun in unit.reruns.values() if rerun.to_reverse]

    def reverse(self, unit: Unit, **more: Any) -> None:
        """Call ``on_rerun``.

        :param more: ``connection``, where there is one.
        """
        if self._on_rerun is None:  # cannot be: the unit was checked
            raise lost(unit.space.describe(unit.name), unit.generation)
        values = unit.values(unit.space.business_date)
        again = {"idempotency_key": reversal_key(values["idempotency_key"])}
        self._on_rerun.call({**values, **again, "previous_idempotency_key": unit.previous_keys, **more})

    # -- outside the ledger's database, each step committed on its own --------------------------------------

    def begin(self, unit: Unit) -> None:
        """Commit that the effect of the unit has begun, and with it its reversal.

        :raises OwnershipLost: another attempt owns a key now; nothing was begun (retryable).
        """

        def work(connection: sa.Connection) -> None:
            gone = self._ledger.apply(connection, unit.own, BEGIN, unit.hashes, batch=unit.batch_id)
            if gone:
                raise OwnershipLost(f"{unit.space.describe(unit.name)} is owned by another attempt.")
            self._mark(connection, unit, Reversal.BEGUN)

        self._ledger.write(work)

    def done(self, unit: Unit, *, patience_s: float = 0.0) -> None:
        """Commit that the first effect is reversed."""
        self._ledger.write(lambda c: self._mark(c, unit, Reversal.DONE), patience_s=patience_s)

    def refuted(self, unit: Unit, *, patience_s: float = 0.0) -> None:
        """Commit that the first effect has certainly not been reversed."""
        self._ledger.write(lambda c: self._mark(c, unit, Reversal.NONE), patience_s=patience_s)

    def _mark(self, connection: sa.Connection, unit: Unit, reversal: Reversal) -> None:
        self._ledger.reruns.mark_reversal(connection, unit.own.key_date, self.left(unit), reversal)


def in_doubt_note(unit: Unit) -> str:
    """Return what to add to an error that ``on_rerun`` ended in."""
    yes, no = (rerun_command(unit.hashes[0], option, ledger=unit.ledger) for option in OPTIONS)
    return (
        "it was raised by on_rerun, before the second effect: say that the second did not happen, and of the reversal: "
        f"{yes} or: {no}"
    )
